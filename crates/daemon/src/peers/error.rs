//! What can go wrong with other nodes and connections to them.

#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    #[error("node {name:?}: {reason}")]
    Failed { name: String, reason: String },

    #[error(
        "there is no node named {name:?}; `rekindle node ls` lists those that are known, `rekindle node add` adds one"
    )]
    Unknown { name: String },

    #[error("the node cannot be added: {reason}")]
    Bad { reason: String },

    #[error("the node that the program comes from has given its migration up")]
    GivenUp,

    #[error("a program named {name:?} comes there already from a node; try again when that is over")]
    ComesAlready { name: String },
}
