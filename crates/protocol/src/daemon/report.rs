//! What is told of checkpoints, restores, sleep and moves.

use serde::{Deserialize, Serialize};

use super::Mode;
use crate::network::Port;
use crate::worker::{Phase, TransferReport, WorkWait};

/// How one checkpoint or restore went, kept with the sandbox that it was done to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    pub operation: Operation,
    /// The image, or the level of a sleep, or the GPU that a program has moved to.
    pub image: String,
    /// When it began; RFC 3339.
    pub began: String,
    pub total_us: u64,
    /// How long the program stood still.
    pub stopped_us: u64,
    /// Why it failed, if it did.
    pub problem: Option<String>,
    pub phases: Vec<Phase>,
    /// As a [`Report`] has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<TransferReport>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waited: Vec<WorkWait>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<Written>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    Checkpoint,
    Restore,
    Sleep,
    Wake,
    Migrate,
}

/// Where the GPU memory of a program is while its GPU half sleeps.
/// Those further down come later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    Gpu,
    #[default]
    Host,
    Disk,
}

/// What `sleep` and `wake` report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SleepReport {
    pub name: String,
    pub level: Level,
    /// GPU memory of the program.
    pub bytes: u64,
    pub total_us: u64,
    pub phases: Vec<Phase>,
}

/// What `migrate` reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MigrationReport {
    pub name: String,
    /// The GPU that it was on, and the one that it is on.
    pub from: String,
    pub gpu: String,
    pub way: MigrationPath,
    /// GPU memory of the program.
    pub bytes: u64,
    pub total_us: u64,
    /// How long the program stood still the last time, to go on there.
    pub stopped_us: u64,
    /// What was copied, the last time while it stood still.
    pub rounds: Vec<Round>,
    pub phases: Vec<Phase>,
}

/// What `migrate --to` reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeMigrationReport {
    pub name: String,
    pub node: String,
    /// The GPU there, if it uses one.
    pub gpu: String,
    /// The ports there that lead to it.
    pub ports: Vec<Port>,
    /// What was sent, all rounds together.
    pub bytes: u64,
    pub total_us: u64,
    /// How long the program stood still the last time, to go on there.
    pub stopped_us: u64,
    /// What was sent, the last time while it stood still.
    pub rounds: Vec<Round>,
    pub phases: Vec<Phase>,
}

/// How GPU memory gets to another GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MigrationPath {
    /// The other GPU copies it from the first, while the program stands still.
    Direct,
    /// Through the host's memory, most of it while the program runs.
    Host,
}

/// A round of copying a program's GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// What was copied, or sent: what the other GPU, or node, did not have yet.
    pub bytes: u64,
    pub duration_us: u64,
    /// For how long of that the program stood still.
    pub stopped_us: u64,
}

/// In which order a restore loads GPU buffers, and what of the program's requests waits for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadOrder {
    /// All requests wait until all is loaded.
    None,
    /// As the image has them; requests wait for what they name.
    Default,
    /// As recorded with the image, or else as the image has them; requests wait for what they name.
    #[default]
    Profile,
    /// The other way round.
    Worst,
}

/// What `checkpoint` and `restore` report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What worked less well than it could, a sentence each.
    #[serde(default)]
    pub warnings: Vec<String>,
    pub name: String,
    pub image: String,
    pub mode: Mode,
    /// Who runs it, if it is a container and no sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The processes whose GPU half is in the image.
    pub gpu_processes: usize,
    pub total_us: u64,
    /// How long the program stood still.
    pub stopped_us: u64,
    pub phases: Vec<Phase>,
    /// How GPU memory came to the image of a program that goes on, for each of its processes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<TransferReport>,
    /// Why such a program stood still for what its GPU had to do, for each of its processes that did.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waited: Vec<WorkWait>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<Written>,
}

/// What a program that goes on has written since its image before, as far as this one shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// From one stop to the next.
    pub since_us: u64,
    /// Of chunks of 2 MB that are not what they were.
    pub gpu_bytes: u64,
    /// Of pages that were copied because they were written to; none where that was not noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_bytes: Option<u64>,
}
