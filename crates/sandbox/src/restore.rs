//! Bringing the CPU half back in a new sandbox.
//!
//! Namespaces and CRIU's process need nothing of the image, so they are made beside what is checked of it ([`ReadySandbox`]).

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::criu::Criu;
use crate::error::{Error, Result};
use crate::ghosts;
use crate::init::RESTORE_LOG;
use crate::inventory::Inventory;
use crate::message::{Begin, Command, Reply, Restore, Step, Verdict};
use crate::openfile;
use crate::ports;
use crate::process;
use crate::sandbox::{Empty, Sandbox, Spec, unexpected};

/// Init gives up first, and says why; this long after it, we do.
const GRACE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct RestoreSpec<'a> {
    /// The new sandbox. By when the program is restored, its run directory holds a file of the same name and size for
    /// every one that the program had mapped from its old run directory.
    pub sandbox: Spec,
    pub criu: &'a Criu,
    /// What takes the place of the sockets named as external at the dump.
    pub sockets: Vec<ExternalSocket<'a>>,
    /// A pipe that takes the place of the one that was its standard input, if that was one that somebody outside of its
    /// tree wrote to.
    pub input: Option<BorrowedFd<'a>>,
    /// Taken at the dump; with it, files that the program writes may have grown since.
    pub inventory: Option<&'a Inventory>,
    pub timeout: Duration,
    /// Whether CRIU's log has all its steps, which takes it a line and a system call for each area of memory; else it has
    /// what goes wrong.
    pub steps_told: bool,
}

impl<'a> RestoreSpec<'a> {
    /// Of a program without sockets of others, standard input or inventory, and with a log of what goes wrong.
    pub fn new(sandbox: Spec, criu: &'a Criu, timeout: Duration) -> Self {
        let (sockets, input, inventory, steps_told) = (Vec::new(), None, None, false);
        Self { sandbox, criu, sockets, input, inventory, timeout, steps_told }
    }
}

/// The program's end of a connection.
#[derive(Debug, Clone, Copy)]
pub struct ExternalSocket<'a> {
    /// Its inode when the program was dumped.
    pub inode: u32,
    pub socket: BorrowedFd<'a>,
}

/// A program brought back, complete, not yet running.
#[derive(Debug)]
pub struct Restored {
    init_pid: i32,
}

impl Restored {
    /// All pids inside the sandbox with ours, init among them as 1.
    pub fn pids(&self) -> BTreeMap<i32, i32> {
        process::pid_map(self.init_pid)
    }
}

/// A sandbox that waits for the program that is to be brought back there, CRIU started in it. It is to be used or killed.
#[must_use]
pub struct ReadySandbox {
    empty: Empty,
    timeout: Duration,
    steps_told: bool,
    log: PathBuf,
    /// Whether it has the machine's ports.
    shares_ports: bool,
}

/// How a restore went.
#[derive(Debug, Clone)]
pub struct RestoreReport {
    /// From when the sandbox had the images until the program was complete.
    pub until_restored: Duration,
    /// The caller's step.
    pub restored_step: Duration,
    pub total: Duration,
    /// CRIU's steps until the program was complete, counted from when it was asked.
    pub steps: Vec<Step>,
    /// Those after that.
    pub last_steps: Vec<Step>,
    /// What the program does not have as it had it: a sentence each.
    pub warnings: Vec<String>,
    pub log: PathBuf,
}

/// How long the parts took.
struct RestoreTimes {
    until_restored: Duration,
    restored_step: Duration,
    steps: Vec<Step>,
    last_steps: Vec<Step>,
    warnings: Vec<String>,
}

impl ReadySandbox {
    /// Makes the sandbox. It needs nothing of the image but what the specification has.
    pub fn make(spec: &RestoreSpec<'_>) -> Result<Self> {
        let inventory = spec.inventory.cloned().unwrap_or_default();
        let has_input = inventory.input.is_some();
        let command = Command::Restore(Restore {
            criu: spec.criu.command().to_vec(),
            sockets: spec.sockets.iter().map(|socket| socket.inode).collect(),
            files: openfile::to_pass(&inventory.open_files, &spec.sandbox.mounts),
            outputs: inventory.outputs,
            errors: inventory.errors,
            session_outside: inventory.session_outside,
            attributes: inventory.attributes,
            uses: inventory.uses,
            input: inventory.input.filter(|_| spec.input.is_some()),
            highest_pid: inventory.highest_pid,
            timeout_millis: u64::try_from(spec.timeout.as_millis()).unwrap_or(u64::MAX),
        });
        let descriptors = spec.sockets.iter().map(|socket| socket.socket);
        let descriptors: Vec<_> = descriptors.chain(spec.input.filter(|_| has_input)).collect();
        let log = spec.sandbox.run_dir.join(RESTORE_LOG);
        let empty = Empty::make(&spec.sandbox)?;
        match empty.send(&command, &descriptors) {
            Ok(()) => {
                let (timeout, steps_told) = (spec.timeout, spec.steps_told);
                Ok(Self { empty, timeout, steps_told, log, shares_ports: spec.sandbox.network.is_none() })
            }
            Err(error) => {
                empty.kill();
                Err(error)
            }
        }
    }

    /// Gives everything back.
    pub fn kill(self) {
        self.empty.kill();
    }

    /// Restores the program whose images are given, which are only read; several restores may use them at once.
    /// `before_resume` runs when it is complete but not yet running. On any failure everything taken is given back; the
    /// run directory stays, with CRIU's log in it.
    pub fn restore<E>(
        self,
        images_dir: &Path,
        before_resume: impl FnOnce(&Restored) -> Result<(), E>,
    ) -> Result<(Sandbox, RestoreReport)>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let began = Instant::now();
        let Self { empty, timeout, steps_told, log, shares_ports } = self;
        if !images_dir.join("inventory.img").is_file() {
            empty.kill();
            return Err(Error::NoImages { path: images_dir.into() });
        }
        let ports = match shares_ports {
            false => None,
            true => match ports::reserve(images_dir) {
                Ok(ports) => Some(ports),
                Err(error) => {
                    empty.kill();
                    return Err(error);
                }
            },
        };
        let ghost_lock = ghosts::lock(images_dir);
        // What a failed restore leaves of deleted files is known from its steps.
        let begin = Begin { steps_told: steps_told || ghost_lock.is_some() };
        let before_resume = |restored: &Restored| {
            // The sockets listen, and are seen by the next.
            drop(ports);
            before_resume(restored)
        };
        match conduct(&empty, images_dir, &begin, timeout, &log, before_resume) {
            Ok((pid, course)) => {
                let sandbox = empty.with_program(pid);
                let RestoreTimes { until_restored, restored_step, steps, last_steps, warnings } = course;
                let total = began.elapsed();
                let report =
                    RestoreReport { until_restored, restored_step, total, steps, last_steps, warnings, log };
                Ok((sandbox, report))
            }
            Err(error) => {
                empty.kill();
                if ghost_lock.is_some() {
                    ghosts::clean(&log);
                }
                Err(error)
            }
        }
    }
}

fn conduct<E>(
    empty: &Empty,
    images_dir: &Path,
    begin: &Begin,
    timeout: Duration,
    log: &Path,
    before_resume: impl FnOnce(&Restored) -> Result<(), E>,
) -> Result<(i32, RestoreTimes)>
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let began = Instant::now();
    let images = File::open(images_dir).map_err(Error::io(format!("opening {}", images_dir.display())))?;
    let failed = |reply| match reply {
        Reply::Failed(cause) => Error::Criu { action: "restore", cause, log: Some(log.into()) },
        Reply::Aborted(cause) => Error::Aborted { action: "restore", cause },
        other => unexpected(&other, "Frozen or Running"),
    };
    // An init that could not start CRIU does not listen any more, and has said why.
    let asked = empty.channel.send(begin, &[images.as_fd()]);
    let patience = timeout.saturating_add(GRACE);
    let steps = match (empty.recv(Some(patience)), asked) {
        (Ok(Reply::Frozen { steps }), _) => steps,
        (Ok(other), _) => return Err(failed(other)),
        (Err(_), Err(error)) => return Err(Error::io("telling the sandbox of the image")(error)),
        (Err(error), _) => return Err(error),
    };
    let until_restored = began.elapsed();
    // On failure the sandbox is killed, so nobody needs to be told.
    before_resume(&Restored { init_pid: empty.init_pid }).map_err(|error| Error::Hook(error.into()))?;
    let restored_step = began.elapsed() - until_restored;
    empty.channel.send(&Verdict::Commit, &[]).map_err(Error::io("answering about the restore"))?;
    match empty.recv(Some(patience))? {
        Reply::Restored { pid, steps: last_steps, warnings } => {
            Ok((pid, RestoreTimes { until_restored, restored_step, steps, last_steps, warnings }))
        }
        other => Err(failed(other)),
    }
}
