//! What can go wrong when programs move between GPUs.

#[derive(Debug, thiserror::Error)]
pub enum MigrationError {
    #[error("{name:?} cannot be migrated: {reason}")]
    CannotMove { name: String, reason: String },

    #[error("the migration was cancelled: the program goes on where it was")]
    Cancelled,
}
