//! What is asked for with a program that is started or brought back.

use serde::{Deserialize, Serialize};

use super::{Limits, LoadOrder, Mode, RecoveryPlan, User};
use crate::mounts::{Mounts, Volume};
use crate::network::{Network, Port};
use crate::terminal::WindowSize;

/// A program that is started in a new sandbox.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Run {
    pub name: Option<String>,
    pub gpu: Option<String>,
    /// None: sandbox.
    pub mode: Option<Mode>,
    /// The daemon is to choose the mode.
    #[serde(default)]
    pub choose: bool,
    pub command: Vec<String>,
    pub directory: String,
    pub environment: Vec<(String, String)>,
    /// The framework image whose program is to become the command.
    #[serde(default)]
    pub from: Option<String>,
    /// What the program gets although it cannot be checkpointed with it, by name.
    #[serde(default)]
    pub allow: Vec<String>,
    #[serde(default)]
    pub recovery: Option<RecoveryPlan>,
    /// None: that of the framework image, or else the machine's.
    #[serde(default)]
    pub network: Option<Network>,
    /// Ports of the machine's that are to lead to the program's.
    #[serde(default)]
    pub publish: Vec<Port>,
    /// Whom it runs as; none: the daemon's user.
    #[serde(default)]
    pub user: Option<User>,
    #[serde(default)]
    pub limits: Limits,
    /// What it is to see beside the machine's files.
    #[serde(default)]
    pub mounts: Mounts,
    /// Whose programs it is to share GPU contexts with; none: nobody's.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Its standard input, output and error are a terminal of this size. What comes along is then the socket of who
    /// [uses](crate::terminal) that, and not a pipe.
    #[serde(default)]
    pub terminal: Option<WindowSize>,
}

/// A framework image that is made: of a program that is run until it is ready for an app.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Framework {
    pub image: String,
    pub gpu: Option<String>,
    /// Empty: Python's.
    pub command: Vec<String>,
    #[serde(flatten)]
    pub python: Python,
    pub directory: String,
    pub environment: Vec<(String, String)>,
    /// How long the program may take to be ready.
    pub limit_ms: u64,
}

/// What Python is to get ready.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Python {
    pub interpreter: Option<String>,
    /// Modules to import; those that most use, if there are none.
    pub imports: Vec<String>,
    /// A script to run after that.
    pub warm: Option<String>,
    /// It leaves the GPU alone.
    #[serde(default)]
    pub no_gpu: bool,
}

/// A program that is brought back.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Restore {
    pub image: String,
    pub name: Option<String>,
    pub gpu: Option<String>,
    /// `OLD=NEW` for GPUs by their UUIDs.
    pub gpu_map: Vec<String>,
    /// None: what the daemon usually does.
    pub order: Option<LoadOrder>,
    /// Note which buffers requests name first, for `KeepOrder`.
    pub record: bool,
    /// Read and check all of the image before its program runs.
    #[serde(default)]
    pub verify: bool,
    /// None: as the image has it.
    #[serde(default)]
    pub network: Option<Network>,
    /// Ports of the machine's that are to lead to the program's; none: those that the image has.
    #[serde(default)]
    pub publish: Vec<Port>,
    /// What is not limited here is as the image has it.
    #[serde(default)]
    pub limits: Limits,
    /// They take the place of the image's at the same paths.
    #[serde(default)]
    pub volumes: Vec<Volume>,
    /// Whose programs it is to share GPU contexts with; none: nobody's.
    #[serde(default)]
    pub tenant: Option<String>,
}

/// An image that is taken.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Take {
    pub to: String,
    pub leave_running: bool,
    pub gpu_wait_ms: u64,
    /// Whether the image is restored once beside the program, and is none if that fails.
    #[serde(default)]
    pub prove: bool,
}
