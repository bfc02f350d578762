//! What is told of sandboxes, and of those who wait for them.

use serde::{Deserialize, Serialize};

use super::{Level, Recovery};
use crate::mending::{MendMode, MendObstacle, MendStatus};
use crate::mounts::Mounts;
use crate::network::{Network, Port};
use crate::worker::{DEFAULT_LINK_WEIGHT, Portion, ShareMemory};

/// A user by numbers, and the groups that they belong to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// What a program may use, and what is used for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes.
    pub memory: Option<u64>,
    /// Thousandths of a processor.
    pub processors: Option<u32>,
    /// In a shared context, by which it has bytes over the link while others copy too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_weight: Option<u32>,
    /// There, how much of the multiprocessors are its own, in percent; 0: none, whatever an image says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_share: Option<u32>,
    /// There, by which weight it has multiprocessors beyond that while it has work; 0: by none, whatever an image says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_weight: Option<u32>,
    /// There, the most that it has of them, in percent; 0: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_most: Option<u32>,
    /// There, when what it allocates gets memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_memory: Option<ShareMemory>,
    /// Whether the program is kept from seeing the loss of its worker, which takes GPU memory and time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mend: Option<MendMode>,
}

impl Limits {
    pub fn is_none(&self) -> bool {
        *self == Limits::default()
    }

    /// These, and for what they leave open the others.
    pub fn or(self, others: Limits) -> Limits {
        Limits {
            memory: self.memory.or(others.memory),
            processors: self.processors.or(others.processors),
            link_weight: self.link_weight.or(others.link_weight),
            sm_share: self.sm_share.or(others.sm_share),
            sm_weight: self.sm_weight.or(others.sm_weight),
            sm_most: self.sm_most.or(others.sm_most),
            share_memory: self.share_memory.or(others.share_memory),
            mend: self.mend.or(others.mend),
        }
    }

    /// What it has of contexts that it shares.
    pub fn portion(&self) -> Portion {
        Portion {
            link_weight: self.link_weight.unwrap_or(DEFAULT_LINK_WEIGHT),
            sm_share: self.sm_share.filter(|percent| *percent > 0),
            sm_weight: self.sm_weight.filter(|weight| *weight > 0),
            sm_most: self.sm_most.filter(|percent| *percent > 0),
        }
    }

    /// Whether anything is said of contexts that it shares.
    pub fn names_portion(&self) -> bool {
        let compute = [self.sm_share, self.sm_weight, self.sm_most];
        self.link_weight.is_some() || self.share_memory.is_some() || compute.iter().any(Option::is_some)
    }
}

/// A sandbox, as `rekindle ps --json` prints it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sandbox {
    pub name: String,
    pub mode: Mode,
    pub state: State,
    /// Pid of the program's first process, as the host sees it; 0 when it has ended.
    pub pid: i32,
    pub command: Vec<String>,
    pub gpu: String,
    /// RFC 3339.
    pub started: String,
    /// RFC 3339; none while it runs.
    #[serde(default)]
    pub ended: Option<String>,
    pub exit_code: Option<i32>,
    /// The image that it was restored from.
    pub image: Option<String>,
    /// What went wrong, if something did: a dead worker, a checkpoint that was undone.
    pub problem: Option<String>,
    pub device_bytes: u64,
    /// How much of that others have mapped too, or may.
    #[serde(default)]
    pub shared_bytes: u64,
    pub pinned_bytes: u64,
    /// Pids of its workers, as the host sees them.
    #[serde(default)]
    pub workers: Vec<i32>,
    /// How it is brought back after a failure; none if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
    #[serde(default)]
    pub network: Network,
    /// The ports of the machine's that lead to it.
    #[serde(default)]
    pub ports: Vec<Port>,
    #[serde(default)]
    pub limits: Limits,
    #[serde(default, skip_serializing_if = "Mounts::is_empty")]
    pub mounts: Mounts,
    /// Whose programs it shares GPU contexts with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Where its GPU memory is while its GPU half sleeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asleep: Option<Level>,
    /// The node that it has gone on at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Why it has its mode, where the daemon chose that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode_reason: Option<String>,
    /// Functions of the driver that the program was refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
    /// How it stands with the mending of a lost worker; none if that is not wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mending: Option<Mending>,
}

/// How it stands with the mending of a program's worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mending {
    /// Whether its loss would be mended just now.
    pub on: bool,
    /// Why not, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The copy of GPU memory that the requests since are done on once more: its size, its age, where it lies, how many were
    /// taken, and how long the last one took.
    pub base_bytes: u64,
    pub base_on_host: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_age_ms: Option<u64>,
    pub bases: u64,
    pub base_us: u64,
    /// What is kept of those requests.
    pub journal_bytes: u64,
    /// How often a lost worker was mended, and for how long the program had none then.
    pub mended: u64,
    pub lost_ms: u64,
}

impl Mending {
    /// Before anything is known.
    pub fn new(mended: u64, lost_ms: u64, standing: Option<MendStatus>, now_unix_ms: u64) -> Mending {
        let known = standing.unwrap_or_default();
        let on = known.epoch.is_some();
        let why = match standing {
            Some(_) if on => None,
            Some(known) => Some(known.why.unwrap_or(MendObstacle::Beginning).why()),
            None => Some("its worker has not said yet what is to be held for it"),
        };
        Mending {
            on,
            why: why.map(|why| format!("the loss of its worker would not be mended just now: {why}")),
            base_bytes: if on { known.base_bytes } else { 0 },
            base_on_host: on && known.base_on_host,
            base_age_ms: on.then(|| now_unix_ms.saturating_sub(known.base_unix_ms)),
            bases: known.bases,
            base_us: known.base_us,
            journal_bytes: if on { known.journal_bytes } else { 0 },
            mended,
            lost_ms,
        }
    }
}

/// What a sandbox's program uses at a moment. None of a number: it is not known just now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    pub name: String,
    pub state: State,
    /// Where its GPU memory is while its GPU half sleeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asleep: Option<Level>,
    /// How many processes the program has.
    pub processes: u64,
    /// Processor time that they have used so far.
    pub processor_us: u64,
    /// Their share of the host's memory, pages that several processes have divided among those.
    pub host_bytes: Option<u64>,
    pub device_bytes: Option<u64>,
    pub shared_bytes: Option<u64>,
    /// Of contexts that it shares: what it has allocated there and has no memory, since nothing has named it yet.
    #[serde(default)]
    pub unbacked_bytes: Option<u64>,
    /// What these contexts have ready for first uses of all their programs; how often the program's own found memory there, and how
    /// often it had to be made.
    #[serde(default)]
    pub pool_bytes: Option<u64>,
    #[serde(default)]
    pub pool_hits: Option<u64>,
    #[serde(default)]
    pub pool_misses: Option<u64>,
    pub pinned_bytes: Option<u64>,
    /// What was copied to its GPUs and from them, for the program by its worker.
    pub to_gpu_bytes: Option<u64>,
    pub from_gpu_bytes: Option<u64>,
    /// Instances of graphs that a restore has left to be made, when they are launched or the program rests.
    #[serde(default)]
    pub unmade_graphs: Option<u64>,
    /// In a context that it shares: how long its copies have waited for their turn, and what it has of the context.
    #[serde(default)]
    pub link_waited_us: Option<u64>,
    #[serde(default)]
    pub link_weight: Option<u32>,
    #[serde(default)]
    pub sm_share: Option<u32>,
    #[serde(default)]
    pub sm_weight: Option<u32>,
    #[serde(default)]
    pub sm_most: Option<u32>,
    /// How many multiprocessors its work has there now; 0 while it rests and others may have them.
    #[serde(default)]
    pub multiprocessors: Option<u64>,
    /// How it stands with the mending of a lost worker; none if that is not wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mending: Option<Mending>,
    /// What has come of its plan to be brought back; none without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
}

/// A worker that waits for a sandbox, as `rekindle ps --json` prints it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spare {
    pub gpu: String,
    pub pid: i32,
    /// Its context is there.
    pub ready: bool,
    /// It has served a program, and waits for the next one of the same tenant.
    #[serde(default)]
    pub returned: bool,
}

/// How many workers are to wait for a GPU and why, as `rekindle ps --json` prints it: the most of the reasons, as far as
/// there is room.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolTarget {
    pub gpu: String,
    pub workers: usize,
    /// So many always are.
    pub least: usize,
    /// So many were taken at once of late.
    pub recent: usize,
    /// So many programs sleep for which a context is kept.
    pub asleep: usize,
    /// So many processes with a GPU has an image that was made or restored within a day.
    #[serde(default)]
    pub processes: usize,
    /// Fewer are made, for the GPU has little memory free.
    pub short_of_memory: bool,
}

/// A process whose GPU contexts programs of a tenant share, as `rekindle ps --json` prints it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedContexts {
    pub tenant: String,
    pub gpu: String,
    /// That of their workers.
    pub pid: i32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    #[default]
    Starting,
    Running,
    Checkpointing,
    Restoring,
    FallingAsleep,
    /// Its GPU half sleeps; the rest runs.
    Asleep,
    Waking,
    Migrating,
    Exited,
    Killed,
    /// Checkpointed with `--stop`.
    Stopped,
    Failed,
}

impl State {
    /// Whether there is a program, or is about to be.
    pub fn is_live(self) -> bool {
        !matches!(self, State::Exited | State::Killed | State::Stopped | State::Failed)
    }
}

/// How a program's GPU half is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Through the client and a worker.
    #[default]
    Sandbox,
    /// By the driver's own checkpoint.
    Driver,
}
