//! What can go wrong when programs move to other nodes.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error(
        "{name:?} is to go on at node {node:?} if that has accepted it, and waits for it to say so: {reason}; `rekindle migrate {name} --take-back` has it go on here, at the risk that it runs at both"
    )]
    Held { name: String, node: String, reason: String },

    #[error("the program {name:?} waits for no other node")]
    NotHeld { name: String },

    #[error("the program {name:?} was given to node {node:?} meanwhile; end it there")]
    GivenAway { name: String, node: String },

    #[error(
        "other nodes cannot be heard at {address}: {source}; give --node-port a port of this machine's that is free"
    )]
    CannotHear { address: String, source: io::Error },

    #[error(
        "no image can be named {name:?}: names that begin with \"migration:\" are those of programs that move to other nodes"
    )]
    PassingName { name: String },
}
