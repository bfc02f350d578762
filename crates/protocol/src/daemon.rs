//! Command line ↔ daemon: one [`Call`] a connection, then any number of [`Event::Progress`] and output events, then one
//! final event. A checkpoint is given up if the command line says anything meanwhile ([`Cancel`]), or closes the
//! connection.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::mounts::{Mounts, Volume};
use crate::network::{Network, Port};
use crate::service::ServiceWish;
use crate::tenant::QuotaWish;
use crate::terminal::WindowSize;
use crate::worker::Phase;

/// A request, with which directories the user has named: it is for a daemon that has these.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Call {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted_state: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted_runs: Option<PathBuf>,
    #[serde(flatten)]
    pub request: Request,
}

/// The user does not want any more what was asked for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Cancel;

/// A signal for a command that `Exec` runs.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PassOn {
    pub signal: i32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum Request {
    Run {
        name: Option<String>,
        gpu: Option<String>,
        /// None: sandbox.
        mode: Option<Mode>,
        command: Vec<String>,
        directory: String,
        environment: Vec<(String, String)>,
        /// The framework image whose program is to become the command.
        #[serde(default)]
        from: Option<String>,
        /// What the program gets although it cannot be checkpointed with it, by name.
        #[serde(default)]
        allow: Vec<String>,
        #[serde(default)]
        recovery: Option<RecoveryPlan>,
        /// None: that of the framework image, or else the machine's.
        #[serde(default)]
        network: Option<Network>,
        /// Ports of the machine's that are to lead to the program's.
        #[serde(default)]
        publish: Vec<Port>,
        /// Whom it runs as; none: the daemon's user.
        #[serde(default)]
        user: Option<User>,
        #[serde(default)]
        limits: Limits,
        #[serde(default)]
        mounts: Mounts,
        /// Whose programs it is to share GPU contexts with; none: nobody's.
        #[serde(default)]
        tenant: Option<String>,
        /// Its standard input, output and error are a terminal of this size. What comes along is then the socket of who
        /// [uses](crate::terminal) that, and not a pipe.
        #[serde(default)]
        terminal: Option<WindowSize>,
    },
    /// Uses a program's terminal by the [socket](crate::terminal) that comes along. With `again` a program that has failed
    /// and is brought back is waited for.
    Attach {
        name: String,
        again: bool,
    },
    /// Makes a framework image: runs a program until it is ready for an app.
    Framework {
        image: String,
        gpu: Option<String>,
        /// Empty: Python's.
        command: Vec<String>,
        interpreter: Option<String>,
        imports: Vec<String>,
        warm: Option<String>,
        directory: String,
        environment: Vec<(String, String)>,
        limit_ms: u64,
    },
    /// Runs a command beside a sandbox's program. Its standard input, output and error come along.
    Exec {
        name: String,
        command: Vec<String>,
        /// Beside the program's own environment.
        environment: Vec<(String, String)>,
        /// None: the program's.
        directory: Option<String>,
    },
    /// Sends what lies at a path of a sandbox to the descriptor that comes along, as an archive.
    CopyOut {
        name: String,
        path: String,
    },
    /// Puts the archive that the descriptor gives which comes along at a path of a sandbox.
    CopyIn {
        name: String,
        path: String,
    },
    /// Answers `Exited` when the sandbox ends.
    Wait {
        name: String,
    },
    List,
    /// What programs use just now: those of these names, or all that run.
    Stats {
        names: Vec<String>,
    },
    Logs {
        name: String,
        follow: bool,
        /// Only what this run of the program has printed, and nothing from before a restore under the same name.
        #[serde(default)]
        own: bool,
        /// Only what was printed then or later: microseconds since 1970.
        #[serde(default)]
        since_us: Option<u64>,
        /// Only so many lines, the last ones.
        #[serde(default)]
        tail: Option<u64>,
        /// As lines, each with its time and its stream, in place of bytes.
        #[serde(default)]
        lines: bool,
    },
    Kill {
        names: Vec<String>,
        signal: Option<i32>,
        /// How long a program that is ended has between SIGTERM and SIGKILL; the daemon's usual if not said.
        #[serde(default)]
        grace_ms: Option<u64>,
    },
    Checkpoint {
        name: String,
        to: String,
        leave_running: bool,
        gpu_wait_ms: u64,
        /// Whether the image is restored once beside the program, and is none if that fails.
        #[serde(default)]
        prove: bool,
    },
    /// Takes an image of a program that was started without Rekindle.
    CheckpointPid {
        pid: i32,
        /// None: driver, and a program that does not use a GPU is taken too.
        mode: Option<Mode>,
        to: String,
        leave_running: bool,
        gpu_wait_ms: u64,
        /// Whether the image is restored once beside the program, and is none if that fails.
        #[serde(default)]
        prove: bool,
    },
    /// Makes a GPU for a container.
    Device {
        name: String,
        gpu: Option<String>,
    },
    /// Takes an image of a container.
    CheckpointContainer {
        container: String,
        /// Who runs it; all are asked if none is given.
        engine: Option<String>,
        to: String,
        leave_running: bool,
        gpu_wait_ms: u64,
        /// Whether the image is restored once beside the program, and is none if that fails.
        #[serde(default)]
        prove: bool,
    },
    Restore {
        image: String,
        name: Option<String>,
        gpu: Option<String>,
        /// `OLD=NEW` for GPUs by their UUIDs.
        gpu_map: Vec<String>,
        /// None: what the daemon usually does.
        order: Option<LoadOrder>,
        /// Note which buffers requests name first, for `KeepOrder`.
        record: bool,
        /// Read and check all of the image before its program runs.
        #[serde(default)]
        verify: bool,
        /// None: as the image has it.
        #[serde(default)]
        network: Option<Network>,
        /// Ports of the machine's that are to lead to the program's; none: those that the image has.
        #[serde(default)]
        publish: Vec<Port>,
        /// What is not limited here is as the image has it.
        #[serde(default)]
        limits: Limits,
        /// They take the place of the image's at the same paths.
        #[serde(default)]
        volumes: Vec<Volume>,
        /// Whose programs it is to share GPU contexts with; none: nobody's.
        #[serde(default)]
        tenant: Option<String>,
    },
    /// Keeps what a restore with `record` has noted with its image.
    KeepOrder {
        name: String,
    },
    /// Marks the GPU buffers of a program that is there to learn from, for `KeepUnwritten`. It is good for nothing else then.
    Mark {
        name: String,
    },
    /// Keeps with its image which buffers a program has not written to since.
    KeepUnwritten {
        name: String,
    },
    /// Gives a program's GPU back while it needs none.
    Sleep {
        name: String,
        level: Level,
    },
    Wake {
        name: String,
    },
    /// Moves a running program to another GPU of this machine.
    Migrate {
        name: String,
        gpu: String,
        /// How often its memory is copied at most before it stands still, through the host's memory; none: as is best.
        rounds: Option<u32>,
    },
    /// Moves a running program to another node.
    MigrateTo {
        name: String,
        node: String,
        /// None: the other node's usual one.
        gpu: Option<String>,
        /// How often it is copied at most before it stands still, at least once; none: as is best.
        rounds: Option<u32>,
        /// Ports of the other machine's that are to lead to it; none: those that it has here.
        publish: Vec<Port>,
        /// For how long its ports here lead there.
        forward_ms: Option<u64>,
    },
    /// Has a program go on here that waits for another node to say whether it has it.
    TakeBack {
        name: String,
    },
    /// This node's public key.
    Node,
    Nodes,
    /// Has another node be known by a name.
    AddNode {
        name: String,
        address: String,
        key: String,
    },
    RemoveNode {
        name: String,
    },
    /// Has HTTP requests that come to a port go to instances of an image. What is not said of a service that is there stays
    /// as it is.
    Serve {
        name: String,
        image: String,
        wish: ServiceWish,
    },
    Services,
    /// Where the daemon's page is.
    Page,
    /// Changes how many instances a service has.
    Scale {
        name: String,
        min: Option<u32>,
        max: Option<u32>,
    },
    /// Has a service take no more requests, and end its instances when those that there are have been answered, or with
    /// `now` at once. With `remove` it is forgotten then.
    Drain {
        name: String,
        remove: bool,
        now: bool,
    },
    /// Makes a tenant, with its first token.
    CreateTenant {
        name: String,
        quota: QuotaWish,
    },
    Tenants,
    /// Changes how much a tenant's services have.
    SetTenant {
        name: String,
        quota: QuotaWish,
    },
    /// A further token of a tenant, or with `revoke` one fewer.
    TenantToken {
        name: String,
        revoke: Option<String>,
    },
    RemoveTenant {
        name: String,
    },
    /// Tells what happens from now on.
    Events,
    /// The traces of a sandbox's checkpoints and of its restore.
    Trace {
        name: String,
    },
    Images,
    Inspect {
        image: String,
    },
    Verify {
        image: String,
    },
    /// Writes an image as one file to the descriptor that comes along.
    Export {
        image: String,
    },
    /// Takes in the image that the descriptor gives which comes along; under its own name if no other is given.
    Import {
        name: Option<String>,
    },
    /// Gives an image another name.
    Tag {
        image: String,
        other: String,
    },
    /// Removes images.
    Remove {
        images: Vec<String>,
    },
    /// Removes ended sandboxes with their logs, and by names that only images have those, unless just sandboxes are meant.
    Forget {
        names: Vec<String>,
        only_sandboxes: bool,
    },
    /// Removes all ended sandboxes with their logs; with `images` all images too that no sandbox runs from.
    Prune {
        images: bool,
    },
    Doctor,
    Version,
    Shutdown,
}

/// A user by numbers, and the groups that they belong to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// The most that a program may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes.
    pub memory: Option<u64>,
    /// Thousandths of a processor.
    pub processors: Option<u32>,
}

impl Limits {
    pub fn is_none(&self) -> bool {
        *self == Limits::default()
    }

    /// These, and for what they leave open the others.
    pub fn or(self, others: Limits) -> Limits {
        Limits { memory: self.memory.or(others.memory), processors: self.processors.or(others.processors) }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// `done` of `total` (bytes, or steps), 0 where unknown.
    Progress { phase: String, done: u64, total: u64 },
    /// Bytes of a log, as text where they are UTF-8 (lossy).
    Output { bytes: Vec<u8> },
    /// Lines of a log.
    Lines { lines: Vec<LogLine> },
    /// Something has happened.
    Happened { what: Happened },
    /// The last event of a request that worked. The value's fields are documented with the command.
    Done { value: serde_json::Value },
    /// The last event of a request that failed: one sentence, and how the command is to end if not with 1.
    Failed {
        message: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<u8>,
    },
}

/// What has happened, as `rekindle events --json` prints it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Happened {
    /// RFC 3339, with microseconds.
    pub time: String,
    /// `listening`, `state`, `problem`, `migrated`, `outlived`, `removed`, `image-made` or `image-removed`.
    pub event: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The GPU that it runs on now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// The node that it runs at now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// A line of a log, as `rekindle logs --json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// RFC 3339, with microseconds; none where it is not known.
    pub time: Option<String>,
    pub stream: Stream,
    /// Without its end.
    pub text: String,
}

/// Who has printed a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stream {
    Stdout,
    Stderr,
    /// Not the program: a restore's marker, and what is said of lost output.
    Rekindle,
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
    /// The node that it has gone on at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// What a sandbox's program uses at a moment. None of a number: it is not known just now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    pub name: String,
    pub state: State,
    /// How many processes the program has.
    pub processes: u64,
    /// Processor time that they have used so far.
    pub processor_us: u64,
    /// Their share of the host's memory, pages that several processes have divided among those.
    pub host_bytes: Option<u64>,
    pub device_bytes: Option<u64>,
    pub shared_bytes: Option<u64>,
    pub pinned_bytes: Option<u64>,
    /// What was copied to its GPUs and from them, for the program by its worker.
    pub to_gpu_bytes: Option<u64>,
    pub from_gpu_bytes: Option<u64>,
}

/// What a user wants for a program that may fail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryPlan {
    /// How often an image is taken, milliseconds; none: never.
    pub every_ms: Option<u64>,
    /// After how many of the program's steps one is.
    #[serde(default)]
    pub steps: Option<StepPlan>,
    /// How many of the images stay.
    pub keep: u32,
    /// How often it may fail without coming farther than before; none: it is not brought back.
    pub restarts: Option<u32>,
}

/// What a user calls the steps of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepPlan {
    /// How many are between two images.
    pub every: u64,
    /// Each change of this file of the program's is one; without it those count that `rekindle.step()` tells.
    pub file: Option<PathBuf>,
}

/// What has come of that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    pub plan: RecoveryPlan,
    /// The images that are kept, the oldest first.
    pub images: Vec<String>,
    pub recoveries: u32,
    /// The program's time that it had to do again, milliseconds.
    pub repeated_ms: u64,
    /// From ends to when it was about to run again, milliseconds.
    pub lost_ms: u64,
    /// Whether it is not brought back any more.
    pub over: bool,
}

/// A worker that waits for a sandbox, as `rekindle ps --json` prints it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spare {
    pub gpu: String,
    pub pid: i32,
    /// Its context is there.
    pub ready: bool,
}

/// A process whose GPU contexts programs of a tenant share, as `rekindle ps --json` prints it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedContexts {
    pub tenant: String,
    pub gpu: String,
    /// That of their workers.
    pub pid: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    Gpu,
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
    pub way: Way,
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
pub enum Way {
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
}
