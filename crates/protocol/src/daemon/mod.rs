//! Command line ↔ daemon: one [`Call`] a connection, then any number of [`Event::Progress`] and output events, then one
//! final event. A checkpoint is given up if the command line says anything meanwhile ([`Cancel`]), or closes the
//! connection.

mod event;
mod recovery;
mod report;
mod sandbox;
mod start;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::network::Port;
use crate::service::{ServiceRequest, SleepStage, WorkflowRequest};
use crate::tenant::QuotaRequest;

pub use event::{Event, EventNotice, LogLine, Stream};
pub use recovery::{Recovery, RecoveryPlan, StepPlan};
pub use report::{
    Level, LoadOrder, MigrationPath, MigrationReport, NodeMigrationReport, Operation, Report, Round,
    SleepReport, Trace, Written,
};
pub use sandbox::{Limits, Mending, Mode, PoolTarget, Sandbox, SharedContexts, Spare, State, Stats, User};
pub use start::{Framework, Python, Restore, Run, Take};

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
    /// Runs a program. What comes along is its standard input.
    Run(Box<Run>),
    /// Uses a program's terminal by the [socket](crate::terminal) that comes along. With `again` a program that has failed
    /// and is brought back is waited for.
    Attach {
        name: String,
        again: bool,
    },
    /// Makes a framework image: runs a program until it is ready for an app.
    Framework(Framework),
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
        #[serde(flatten)]
        take: Take,
    },
    /// Takes an image of a program that was started without Rekindle.
    CheckpointPid {
        pid: i32,
        /// None: driver, and a program that does not use a GPU is taken too.
        mode: Option<Mode>,
        #[serde(flatten)]
        take: Take,
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
        #[serde(flatten)]
        take: Take,
    },
    /// Brings a program back. What comes along is its standard input.
    Restore(Restore),
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
    /// Changes what a program has of GPU contexts that it shares. None: as it is.
    SetLimits {
        name: String,
        link_weight: Option<u32>,
        /// 0: no share.
        sm_share: Option<u32>,
        /// 0: none.
        #[serde(default)]
        sm_weight: Option<u32>,
        /// 0: all.
        #[serde(default)]
        sm_most: Option<u32>,
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
        /// Functions there and here have each other's arrays.
        #[serde(default)]
        arrays: bool,
    },
    RemoveNode {
        name: String,
    },
    /// Has HTTP requests that come to a port go to instances of an image. What is not said of a service that is there stays
    /// as it is.
    Serve {
        name: String,
        image: String,
        #[serde(rename = "wish")]
        service: Box<ServiceRequest>,
    },
    /// Has HTTP requests that come to a port go through a graph of calls of services.
    ServeWorkflow {
        name: String,
        #[serde(rename = "wish")]
        workflow: Box<WorkflowRequest>,
    },
    /// All services, or a tenant's.
    Services {
        #[serde(default)]
        tenant: Option<String>,
    },
    /// Where the daemon's page is.
    Page,
    /// Changes how many instances a service has, and at which levels they sleep.
    Scale {
        name: String,
        /// Whose service it is; [`NOBODY`](crate::tenant::NOBODY): nobody's.
        #[serde(default)]
        tenant: Option<String>,
        min: Option<u32>,
        max: Option<u32>,
        /// As of [`ServiceRequest`].
        #[serde(default)]
        stages: Option<Vec<SleepStage>>,
        #[serde(default)]
        context_ms: Option<u64>,
    },
    /// Has a service take no more requests, and end its instances when those that there are have been answered, or with
    /// `now` at once. With `remove` it is forgotten then.
    Drain {
        name: String,
        #[serde(default)]
        tenant: Option<String>,
        remove: bool,
        now: bool,
    },
    /// Makes a tenant, with its first token.
    CreateTenant {
        name: String,
        quota: QuotaRequest,
    },
    Tenants,
    /// Changes how much a tenant's services have.
    SetTenant {
        name: String,
        quota: QuotaRequest,
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
