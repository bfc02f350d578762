//! What the driver can do with another process, and what it says that process's state is.

use std::fmt;
use std::time::Duration;

use crate::error::Result;
use crate::message::{Gpu, UuidPair};

/// `CUprocessState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Running,
    Locked,
    Checkpointed,
    Failed,
}

impl State {
    pub fn word(self) -> &'static str {
        match self {
            State::Running => "running",
            State::Locked => "locked",
            State::Checkpointed => "checkpointed",
            State::Failed => "failed",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.word())
    }
}

/// The driver's checkpoint functions. Each blocks until it is done, `lock` at most for its limit.
pub trait Driver: Send + Sync {
    fn gpus(&self) -> Result<Vec<Gpu>>;
    /// None: the driver knows no CUDA program in that process.
    fn state(&self, pid: i32) -> Option<State>;
    fn lock(&self, pid: i32, limit: Duration) -> Result<()>;
    fn checkpoint(&self, pid: i32) -> Result<()>;
    fn restore(&self, pid: i32, pairs: &[UuidPair]) -> Result<()>;
    fn unlock(&self, pid: i32) -> Result<()>;
    /// Bytes that each process has on each GPU, by UUID, as far as NVML tells.
    fn usage(&self) -> Vec<(String, i32, u64)>;
}
