//! What can go wrong when programs are brought back.

#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("which buffers the program of {name:?} writes to cannot be told: {reason}")]
    NotLearned { name: String, reason: String },

    #[error("no load order is known of the sandbox {name:?}: {reason}; use `rekindle profile`")]
    NoLoadOrder { name: String, reason: String },

    #[error("{reason}")]
    Unmended { reason: String },

    #[error(
        "the image did not come back when it was proven, and there is none: {reason}; the program goes on"
    )]
    Unproven { reason: String },
}
