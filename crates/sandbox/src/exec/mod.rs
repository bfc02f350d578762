//! A guest in a sandbox: a command, or a copy of files, in the namespaces of a program that runs there.
//!
//! ```text
//!  daemon ──▶ helper ──▶ warden ──▶ the command ──▶ its children
//!             outside    in the sandbox; no parent there
//! ```
//!
//! A guest is none of the program's: a checkpoint does not take it. Processes that the command leaves behind come to the
//! warden, which ends them with it, so that none is taken for a stray of the program's. Whoever dies, those to the right
//! of it end: the helper notices the daemon's end by their connection, the kernel does the rest.

mod copy;
mod helper;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use copy::{pack, unpack};
pub use helper::exec_main;

use crate::error::{Error, Result};
use crate::message::NotStarted;
use crate::process::Handle;
use crate::wire::Channel;
use rekindle_protocol::spawn::Spawned;

/// The argument with which the helper is run.
pub const EXEC_ARGUMENT: &str = "sandbox-exec";

/// What a guest is there for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum GuestTask {
    Command {
        /// The command and its arguments; it is looked for in the `PATH` of its environment if it has no slash.
        args: Vec<OsString>,
        /// Beside the program's own environment, and in place of what has the same name there.
        env: Vec<(OsString, OsString)>,
        /// The program's current one if none is given.
        cwd: Option<OsString>,
    },
    /// Writes what lies there to standard output, as an archive.
    Pack(PathBuf),
    /// Puts the archive that comes on standard input there.
    Unpack(PathBuf),
}

/// What the helper needs before anything else; passed in a memory file.
#[derive(Debug, Serialize, Deserialize)]
struct Setup {
    control: RawFd,
    /// The program, by descriptor and by its pid in the sandbox.
    program: RawFd,
    pid: i32,
    stdio: [RawFd; 3],
    work: GuestTask,
}

/// To the helper. A connection that closes ends the guest.
#[derive(Debug, Serialize, Deserialize)]
struct Signal(i32);

/// How a guest has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// With the code that a shell would show.
    Code(i32),
    /// It did not begin, or the copy failed.
    Failed(NotStarted),
}

/// A guest. Dropped, it ends.
#[derive(Debug)]
pub struct Guest {
    control: Option<Channel>,
    helper: Option<Spawned>,
}

impl Guest {
    /// `helper` is a program that calls [`exec_main`] with the number that is appended as its last argument.
    pub(crate) fn begin(
        helper: &[OsString],
        program: &Handle,
        pid: i32,
        work: GuestTask,
        stdio: [BorrowedFd<'_>; 3],
    ) -> Result<Guest> {
        let (ours, theirs) = Channel::pair().map_err(Error::io("making a socket"))?;
        let setup = Setup {
            control: theirs.socket().as_raw_fd(),
            program: program.as_fd().as_raw_fd(),
            pid,
            stdio: stdio.map(|descriptor| descriptor.as_raw_fd()),
            work,
        };
        let memory = crate::sandbox::in_memory(&setup)?;
        let mut passed = vec![setup.control, setup.program, memory.as_raw_fd()];
        passed.extend(setup.stdio);
        let command = [helper, &[memory.as_raw_fd().to_string().into()]].concat();
        let helper = Spawned::start(&command, &passed).map_err(Error::io("starting the guest's helper"))?;
        Ok(Guest { control: Some(ours), helper: Some(helper) })
    }

    /// Can be read once the guest has ended.
    pub fn ending(&self) -> Option<BorrowedFd<'_>> {
        self.control.as_ref().map(|control| control.socket().as_fd())
    }

    /// How it has ended; waits for that.
    pub fn wait(&self) -> Result<Ended> {
        let lost = || Error::io("hearing from the guest's helper")(io::ErrorKind::UnexpectedEof.into());
        let control = self.control.as_ref().ok_or_else(lost)?;
        match control.recv::<Ended>().map_err(Error::io("hearing from the guest's helper"))? {
            Some((ended, _)) => Ok(ended),
            None => Err(lost()),
        }
    }

    /// Sends the command, and those of its children that have stayed with it, a signal.
    pub fn signal(&self, signal: i32) {
        // One that has just ended needs none.
        let _ = self.control.as_ref().map(|control| control.send(&Signal(signal), &[]));
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.control = None;
        if let Some(helper) = self.helper.take() {
            helper.wait();
        }
    }
}

/// Takes a descriptor that was passed on under this number.
fn take(number: RawFd) -> OwnedFd {
    use std::os::fd::FromRawFd;
    // SAFETY: the daemon passed it on to this process, whose only thread asks for each number once.
    unsafe { OwnedFd::from_raw_fd(number) }
}
