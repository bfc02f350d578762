//! What daemon and helper say to each other: frames on a connection of its own for each operation. A daemon that
//! closes the connection in the middle has asked for the operation to be undone.

use rekindle_protocol::worker::Phase;
use serde::{Deserialize, Serialize};

/// A GPU as the driver counts them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    pub model: String,
    /// `GPU-` and the number in the usual five groups.
    pub uuid: String,
    pub memory_bytes: u64,
    /// None where NVML does not tell.
    pub free_bytes: Option<u64>,
    /// What the processes of the operation have on it.
    pub used_bytes: u64,
    pub driver_version: String,
}

/// What a process has of a GPU's memory: bytes, those of its context and of its code among them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    pub gpu_uuid: String,
    pub pid: i32,
    pub bytes: u64,
}

/// The contents of GPU `old` are to come to `new`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UuidPair {
    pub old: String,
    pub new: String,
}

/// Memory in which the driver keeps what was on GPUs. It reads it when it brings that back, and unmaps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Area {
    pub pid: i32,
    pub start: u64,
    pub end: u64,
}

/// Processes whose GPU half is in their memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckpointedProcesses {
    pub pids: Vec<i32>,
    pub areas: Vec<Area>,
    pub gpus: Vec<Gpu>,
    pub phases: Vec<Phase>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum Request {
    Gpus,
    /// What processes have on GPUs.
    Usage,
    /// Finds the GPU processes of the tree below `root`, locks them and takes their GPU halves; then waits for
    /// `Release` or `Forget`.
    Hold {
        id: String,
        root: i32,
        lock_ms: u64,
    },
    /// Brings the held processes back to running.
    Release,
    /// The held processes have ended, as was wanted.
    Forget,
    /// Brings processes that came out of an image to running.
    Restore {
        id: String,
        pids: Vec<i32>,
        pairs: Vec<UuidPair>,
    },
    /// Finishes or undoes what these journals speak of.
    Recover {
        ids: Vec<String>,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "response", rename_all = "kebab-case")]
pub enum Response {
    Gpus {
        gpus: Vec<Gpu>,
    },
    Usage {
        used: Vec<Used>,
    },
    Held(CheckpointedProcesses),
    Done {
        phases: Vec<Phase>,
    },
    /// A sentence for each thing that was found.
    Recovered {
        notes: Vec<String>,
    },
    Failed {
        message: String,
    },
}
