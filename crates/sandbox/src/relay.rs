//! A CRIU that an OCI runtime starts, and in whose conversation with the runtime we have a word.
//!
//! ```text
//!  daemon ─asks─▶ engine ─▶ runtime ─starts─▶ `criu`, a script of ours ─▶ relay process ─starts─▶ CRIU
//!    ▲                         └───────requests, steps, answers───────────────┘└────the same────────┘
//!    └──────────plan; "the step is reached"; leave──────────────────────────┘
//! ```
//!
//! The relay adds to the runtime's request what the runtime knows nothing of: the program's sockets whose other ends are
//! ours, and what takes their places. All else it passes on as it is. At one step it asks the daemon for leave, while
//! CRIU waits; a refusal, or a daemon that is gone, makes CRIU undo what it did.

mod process;

use std::fs;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::socket::{getsockopt, sockopt};
use serde::{Deserialize, Serialize};

use crate::criu::Criu;
use crate::error::{Error, Result};
use crate::message::Verdict;
use crate::wire::Channel;

pub use process::relay_main;

/// The argument with which a relay is run.
pub const RELAY_ARGUMENT: &str = "criu-relay";

/// What the relay adds, and when it asks.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Plan {
    /// Inodes of the program's ends of sockets.
    sockets: Vec<u32>,
    /// Whether something comes with this that takes their places.
    replaced: bool,
    step: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Reached;

/// Which of CRIU's steps is waited for, and for what it is asked beside.
#[derive(Debug, Clone, Copy)]
pub enum Course<'a> {
    /// Of a dump: the images are written, and the program still stands.
    Dump { sockets: &'a [u32] },
    /// Of a restore: the program is complete and does not run yet. A socket for each of those of the dump.
    Restore { sockets: &'a [(u32, BorrowedFd<'a>)] },
}

impl<'a> Course<'a> {
    fn plan(self) -> (Plan, Vec<BorrowedFd<'a>>) {
        match self {
            Self::Dump { sockets } => {
                (Plan { sockets: sockets.to_vec(), replaced: false, step: "post-dump".into() }, Vec::new())
            }
            Self::Restore { sockets } => {
                let inodes = sockets.iter().map(|(inode, _)| *inode).collect();
                let descriptors = sockets.iter().map(|(_, socket)| *socket).collect();
                (Plan { sockets: inodes, replaced: true, step: "post-restore".into() }, descriptors)
            }
        }
    }
}

/// The place where runtimes find our `criu`.
#[derive(Debug)]
pub struct Relay {
    directory: PathBuf,
    socket: PathBuf,
    listener: UnixListener,
}

impl Relay {
    /// Puts a `criu` into `directory`, to be the first in a runtime's `PATH`. `program` is the daemon's, which becomes
    /// the relay, and finds us at `socket`.
    pub fn make(directory: &Path, socket: &Path, program: &Path, criu: &Criu) -> Result<Self> {
        let failed = || Error::io(format!("making {}", directory.display()));
        fs::create_dir_all(directory).map_err(failed())?;
        let words = [program.as_os_str(), RELAY_ARGUMENT.as_ref(), socket.as_os_str()].into_iter();
        let words = words.chain(criu.command().iter().map(|word| word.as_os_str()));
        let words: Vec<_> = words.map(|word| quoted(&word.to_string_lossy())).collect();
        let script = format!("#!/bin/sh\nexec {} \"$@\"\n", words.join(" "));
        let mut file = fs::OpenOptions::new();
        let file = file.write(true).create(true).truncate(true).mode(0o700).open(directory.join("criu"));
        file.and_then(|mut file| file.write_all(script.as_bytes())).map_err(failed())?;
        // An earlier daemon may have left its own.
        let _ = fs::remove_file(socket);
        let listener =
            UnixListener::bind(socket).map_err(Error::io(format!("listening on {}", socket.display())))?;
        Ok(Self { directory: directory.into(), socket: socket.into(), listener })
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Runs `work`, which has a runtime run CRIU. `at_step` runs while CRIU waits at its step, with the pid of the
    /// relay, from which a restored program descends then. It runs once; a runtime that tries again is refused.
    pub fn conduct<T>(
        &self,
        course: Course<'_>,
        at_step: impl FnOnce(i32) -> std::result::Result<(), String> + Send,
        work: impl FnOnce() -> T,
    ) -> T {
        let over = AtomicBool::new(false);
        let at_step = Mutex::new(Some(at_step));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while let Ok((socket, _)) = self.listener.accept() {
                    if over.load(Ordering::SeqCst) {
                        return;
                    }
                    let mut leave = |pid: i32| {
                        let mut at_step = at_step.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                        let at_step = at_step.take().ok_or("this was done before and failed")?;
                        at_step(pid)
                    };
                    // What went wrong is told by CRIU, which undoes all then.
                    let _ = serve(&Channel::new(socket), course, &mut leave);
                }
            });
            let done = work();
            over.store(true, Ordering::SeqCst);
            // Wakes the thread that waits in accept.
            let _ = UnixStream::connect(&self.socket);
            done
        })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // Nobody misses one that is gone.
        let _ = fs::remove_file(&self.socket);
    }
}

fn serve(
    channel: &Channel,
    course: Course<'_>,
    leave: &mut dyn FnMut(i32) -> std::result::Result<(), String>,
) -> io::Result<()> {
    let pid = getsockopt(channel.socket(), sockopt::PeerCredentials)?.pid();
    let (plan, descriptors) = course.plan();
    channel.send(&plan, &descriptors)?;
    // A CRIU that fails before is not heard of.
    let Some((Reached, _)) = channel.recv()? else { return Ok(()) };
    let verdict = match leave(pid) {
        Ok(()) => Verdict::Commit,
        Err(cause) => Verdict::Abort(cause),
    };
    channel.send(&verdict, &[])
}

/// As a shell reads one word.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}
