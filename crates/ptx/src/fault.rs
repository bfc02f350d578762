//! What can stop a running grid.

use std::fmt;

/// The thread and the PTX line at which a fault happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    pub kernel: String,
    pub line: u32,
    pub block: [u32; 3],
    pub thread: [u32; 3],
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([bx, by, bz], [tx, ty, tz]) = (self.block, self.thread);
        write!(
            f,
            "kernel `{}`, PTX line {}, block ({bx},{by},{bz}), thread ({tx},{ty},{tz})",
            self.kernel, self.line
        )
    }
}

/// Why a grid stopped before its end. All of them but `Cancelled` are sticky errors of the context in CUDA.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("{}: {} address {address:#x}, which is not mapped for that", .at, if *.write { "wrote to" } else { "read from" })]
    IllegalAddress { at: Location, address: u64, write: bool },
    #[error("{at}: accessed address {address:#x}, which is not a multiple of {align}")]
    MisalignedAddress { at: Location, address: u64, align: u32 },
    #[error("{at}: assertion failed: {message}")]
    Assert { at: Location, message: String },
    #[error("{at}: executed `trap`")]
    Trap { at: Location },
    #[error("{at}: illegal instruction: {message}")]
    IllegalInstruction { at: Location, message: String },
    #[error("{at}: the call stack and local memory of a thread exceed {limit} bytes")]
    StackOverflow { at: Location, limit: u32 },
    #[error("{at}: every thread of the block waits at a barrier that cannot complete")]
    Deadlock { at: Location },
    #[error("the launch was cancelled")]
    Cancelled,
}

impl Fault {
    /// Where it happened, for all but a cancelled launch.
    pub fn location(&self) -> Option<&Location> {
        match self {
            Self::IllegalAddress { at, .. }
            | Self::MisalignedAddress { at, .. }
            | Self::Assert { at, .. }
            | Self::Trap { at }
            | Self::IllegalInstruction { at, .. }
            | Self::StackOverflow { at, .. }
            | Self::Deadlock { at } => Some(at),
            Self::Cancelled => None,
        }
    }
}
