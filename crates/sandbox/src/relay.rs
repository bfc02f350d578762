//! A CRIU that an OCI runtime starts, and in whose conversation with the runtime we have a word.
//!
//! ```text
//!  daemon ─asks─▶ engine ─▶ runtime ─starts─▶ `criu`, a script of ours ─▶ relay process ─starts─▶ CRIU
//!    ▲                         └───────requests, steps, answers───────────────┘└────the same────────┘
//!    └──"it is asked"; plan; "the step is reached"; leave─────────────────┘
//! ```
//!
//! The relay adds to the runtime's request what the runtime knows nothing of: the program's sockets whose other ends are
//! ours, and what takes their places; who takes the pages of a dump; from which images and page files a program is
//! restored. All else it passes on as it is. Before CRIU is asked, the daemon may take its time. At one step it is asked
//! for leave, while CRIU waits; a refusal, or a daemon that is gone, makes CRIU undo what it did.

mod process;
mod request;

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::socket::{getsockopt, sockopt};
use serde::{Deserialize, Serialize};

use crate::criu::Criu;
use crate::ending::AFTER_RESTORE;
use crate::error::{Error, Result};
use crate::message::Verdict;
use crate::waiting::POST_DUMP_STEP;
use crate::wire::Channel;

pub use process::relay_main;

/// The argument with which a relay is run.
pub const RELAY_ARGUMENT: &str = "criu-relay";

/// The runtime asks for something. With it comes the directory that it wants the images in, or has them.
#[derive(Debug, Serialize, Deserialize)]
struct RelayRequest;

/// What the relay adds, and when it asks.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Plan {
    /// Inodes of the program's ends of sockets.
    sockets: Vec<u32>,
    /// What the descriptors are that come with this, in their order.
    passed: Vec<PassedDescriptor>,
    /// Whether CRIU's log has all that it does, which takes it as long again.
    steps_told: bool,
    step: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
enum PassedDescriptor {
    /// Takes the place of the socket with this inode.
    Socket(u32),
    /// CRIU's end of a page server's connection.
    PageServer,
    /// The directory that has the images, in place of the runtime's.
    Images,
    /// The directory that has page files, and which of them.
    PageFiles(Vec<String>),
}

#[derive(Debug, Serialize, Deserialize)]
struct StepReached;

/// Which of CRIU's steps is waited for, and for what it is asked beside.
#[derive(Debug, Clone, Copy)]
pub enum RelayStep<'a> {
    /// Of a dump: the images are written, and the program still stands. Its pages go to a
    /// [`crate::pages::PageServer`].
    Dump { sockets: &'a [u32], page_server: BorrowedFd<'a>, steps_told: bool },
    /// Of a restore: the program is complete and does not run yet. A socket for each of those of the dump.
    Restore { sockets: &'a [(u32, BorrowedFd<'a>)], images: Option<Images<'a>>, steps_told: bool },
}

/// Images to restore from, in place of those that a runtime has.
#[derive(Debug, Clone, Copy)]
pub struct Images<'a> {
    pub directory: BorrowedFd<'a>,
    /// Where the page files are that they speak of, and their names.
    pub page_files: Option<(BorrowedFd<'a>, &'a [String])>,
}

impl<'a> RelayStep<'a> {
    fn plan(self) -> (Plan, Vec<BorrowedFd<'a>>) {
        let (sockets, with, steps_told, step) = match self {
            Self::Dump { sockets, page_server, steps_told } => (
                sockets.to_vec(),
                vec![(PassedDescriptor::PageServer, page_server)],
                steps_told,
                POST_DUMP_STEP,
            ),
            Self::Restore { sockets, images, steps_told } => {
                let inodes = sockets.iter().map(|(inode, _)| *inode).collect();
                let ends = sockets.iter().map(|(inode, socket)| (PassedDescriptor::Socket(*inode), *socket));
                let pages = images.and_then(|images| images.page_files);
                let pages =
                    pages.map(|(directory, names)| (PassedDescriptor::PageFiles(names.to_vec()), directory));
                let images = images.map(|images| (PassedDescriptor::Images, images.directory));
                (inodes, ends.chain(images).chain(pages).collect(), steps_told, AFTER_RESTORE)
            }
        };
        let (passed, descriptors) = with.into_iter().unzip();
        (Plan { sockets, passed, steps_told, step: step.into() }, descriptors)
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

    /// Runs `work`, which has a runtime run CRIU. `attend` is called for each that it asks, one after the other: a
    /// runtime may try again. What it drops is refused.
    pub fn conduct<T>(&self, mut attend: impl FnMut(RelayedRequest) + Send, work: impl FnOnce() -> T) -> T {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while let Ok((socket, _)) = self.listener.accept() {
                    if over.load(Ordering::SeqCst) {
                        return;
                    }
                    // One that is gone already asks for nothing.
                    if let Ok(Some(asked)) = RelayedRequest::hear(Channel::new(socket)) {
                        attend(asked);
                    }
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

/// A CRIU that a runtime is about to ask.
pub struct RelayedRequest {
    channel: Channel,
    /// The relay's pid, from which a restored program descends.
    pub pid: i32,
    /// The directory that the runtime wants the images in, or has them.
    pub images: File,
}

impl RelayedRequest {
    fn hear(channel: Channel) -> io::Result<Option<RelayedRequest>> {
        let pid = getsockopt(channel.socket(), sockopt::PeerCredentials)?.pid();
        let Some((RelayRequest, descriptors)) = channel.recv()? else { return Ok(None) };
        let images = descriptors.into_iter().next().ok_or(io::ErrorKind::InvalidData)?;
        Ok(Some(RelayedRequest { channel, pid, images: images.into() }))
    }

    /// Has CRIU begin. `at_step` runs while it waits at its step; it does not where CRIU fails or the relay ends before.
    /// `BrokenPipe`: the relay ended while `at_step` ran.
    pub fn lead(
        &self,
        course: RelayStep<'_>,
        at_step: impl FnOnce() -> std::result::Result<(), String>,
    ) -> io::Result<()> {
        let (plan, descriptors) = course.plan();
        match self.channel.send(&plan, &descriptors) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            other => other?,
        }
        let Some((StepReached, _)) = self.channel.recv()? else { return Ok(()) };
        let verdict = match at_step() {
            Ok(()) => Verdict::Commit,
            Err(cause) => Verdict::Abort(cause),
        };
        self.channel.send(&verdict, &[])
    }

    /// Waits until CRIU has ended: it has let go of the program, or undone all.
    pub fn until_end(&self) -> io::Result<()> {
        self.channel.recv::<StepReached>().map(drop)
    }
}

/// As a shell reads one word.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}
