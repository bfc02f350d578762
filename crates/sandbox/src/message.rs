//! What the daemon and a sandbox's init say to each other.
//!
//! A connection carries one command at a time: `Start` is answered by `Running` or `Failed`, `Prepare` by `Prepared` or
//! `Failed`; what it prepares is for a `Dump` on the same connection, and ends with that. `Dump` and
//! `Restore` by `Frozen` (the program stands still), which the daemon answers with a [`Verdict`], and then by
//! `Dumped`, `Restored` or `Failed`. A daemon that closes the connection instead has said [`Verdict::Abort`].
//! `Restore` is followed by [`Begin`]: what needs nothing of the image is done before that. `Flush` is answered by
//! `Flushed`, `Attach` by `Attached` or `NoTerminal`, `Watch` by `Watched`.
//!
//! After [`Verdict::Hold`], which is answered by `Held`, the program of a dump stands still until there is another verdict,
//! whether a daemon listens or not; the next daemon gives it by `Settle`, which is answered by `Settled`.

use std::ffi::OsString;

use rekindle_protocol::mounts::Mounts;
use rekindle_protocol::terminal::WindowSize;
use serde::{Deserialize, Serialize};

use crate::attributes::Attributes;
use crate::openfile::OpenFile;
use crate::processor::Uses;

/// The program to run in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The program and its arguments; the program is looked for in `PATH` of `env` if it has no slash.
    pub args: Vec<OsString>,
    /// The whole environment.
    pub env: Vec<(OsString, OsString)>,
    pub cwd: OsString,
    /// What it gets although CRIU cannot take it, by the names of [`crate::withheld`].
    pub allowed: Vec<String>,
    /// Whom it runs as, if not as init does.
    pub user: Option<User>,
}

/// A user by numbers, and the groups that they belong to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// What init needs before anything else; passed in a memory file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Setup {
    pub run_dir: OsString,
    pub log: Option<OsString>,
    pub criu_cache: Option<OsString>,
    pub pages: Option<OsString>,
    pub mounts: Mounts,
    /// The most bytes of the log that are kept; 0: all.
    pub log_max: u64,
    pub control: i32,
    /// The network that it is to be in, if not that of whoever starts it.
    pub network: Option<i32>,
    /// Files by which a process comes into groups of the kernel's.
    pub groups: Vec<OsString>,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Command {
    /// With a terminal the socket of one who uses it may come along, without one a pipe for its standard input.
    Start {
        program: Program,
        /// Its standard input, output and error are a terminal of this size.
        terminal: Option<WindowSize>,
    },
    /// The socket comes along of one who uses the program's terminal.
    Attach,
    /// CRIU is to be started for this dump. The images directory comes along, and a page server if there is one.
    Prepare(Dump),
    /// The same descriptors come along.
    Dump(Dump),
    /// A descriptor for each of the sockets comes along, and one for its standard input if that is replaced.
    Restore(Restore),
    /// Put what the program has printed so far into the log.
    Flush,
    /// What is to become of a program that is held.
    Settle(Verdict),
    /// Have these processes, by their pids inside, make a userfaultfd each.
    Watch { pids: Vec<i32> },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dump {
    pub criu: Vec<OsString>,
    pub leave_running: bool,
    pub external_sockets: Vec<u32>,
    pub freeze_seconds: u32,
    pub verdict_millis: u64,
    /// Whether CRIU writes down all that it does.
    pub steps_told: bool,
    /// Whether pages that were not written to since they were protected are in the image already.
    #[serde(default)]
    pub ahead: bool,
    /// Whether CRIU has our [library](crate::assist).
    #[serde(default)]
    pub assist: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Restore {
    pub criu: Vec<OsString>,
    pub sockets: Vec<u32>,
    /// To be opened by init and given to CRIU.
    pub files: Vec<OpenFile>,
    /// What the program wrote to outside of its tree.
    pub outputs: Vec<String>,
    /// Those of them that are its standard error alone.
    pub errors: Vec<String>,
    pub session_outside: bool,
    pub attributes: Attributes,
    pub uses: Uses,
    /// The pipe that its standard input was, if it gets another one.
    pub input: Option<String>,
    /// The highest pid that comes back: CRIU's own must lie above.
    pub highest_pid: i32,
    pub timeout_millis: u64,
}

/// The image may be restored from now on; the images directory comes along.
#[derive(Debug, Serialize, Deserialize)]
pub struct Begin {
    /// Whether CRIU writes down all its steps.
    pub steps_told: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Verdict {
    Commit,
    Abort(String),
    /// Of a dump: from here on the end of the daemon is no verdict.
    Hold,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    Ready,
    /// The program runs, under this pid in its namespace.
    Running(i32),
    /// The same of a program that was restored, and what was done since it was complete.
    Restored {
        pid: i32,
        steps: Vec<Step>,
        /// What it does not have as it had it: a sentence each.
        warnings: Vec<String>,
    },
    NotStarted(NotStarted),
    Prepared,
    Frozen {
        steps: Vec<Step>,
    },
    Dumped {
        stats: DumpStats,
    },
    Aborted(String),
    Failed(String),
    Flushed,
    Held,
    /// Whether a program was held.
    Settled(bool),
    Attached,
    NoTerminal,
    /// CRIU has brought the program to a stand and has not looked at it yet; it goes on at a [`Verdict`].
    Standing,
    /// The descriptors come along, in this order. Others of those that were asked for could not make one.
    Watched {
        pids: Vec<i32>,
    },
}

/// Why a program does not run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotStarted {
    pub cause: String,
    /// The status by which a shell tells of it, if it has one for that.
    pub shell_code: Option<u8>,
}

impl From<String> for NotStarted {
    fn from(cause: String) -> Self {
        Self { cause, shell_code: None }
    }
}

/// A step that CRIU has announced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub name: String,
    /// When, since CRIU was asked.
    pub at_us: u64,
}

/// How a sandbox's program ended; kept in the run directory's `exit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Exit {
    Code(i32),
    Signal(i32),
    /// It was dumped and then stopped, as asked.
    Stopped,
    /// The first process of its namespace was killed, and by the kernel's rule all others with it.
    WithInit,
}

impl Exit {
    /// The status that a shell would show.
    pub fn shell_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
            Self::Stopped => 0,
            Self::WithInit => 128 + libc::SIGKILL,
        }
    }
}

/// What CRIU measured about a dump.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DumpStats {
    pub freezing_us: u64,
    pub frozen_us: u64,
    pub memory_dump_us: u64,
    pub memory_write_us: u64,
    pub pages_scanned: u64,
    pub pages_written: u64,
    /// The processes whose areas were known before they stood still.
    #[serde(default)]
    pub known_areas: u64,
    /// Its questions about threads that were answered before it asked.
    #[serde(default)]
    pub known_answers: u64,
    /// The areas whose links were asked for before it did.
    #[serde(default)]
    pub known_links: u64,
}
