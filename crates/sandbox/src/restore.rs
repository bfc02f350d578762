//! Bringing the CPU half back in a new sandbox.

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
use crate::message::{Command, Reply, Restore, Step, Verdict};
use crate::openfile;
use crate::process;
use crate::sandbox::{Empty, Sandbox, Spec, unexpected};

/// Init gives up first, and says why; this long after it, we do.
const GRACE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct RestoreSpec<'a> {
    /// The new sandbox. Its run directory holds a file of the same name and size for every one that the
    /// program had mapped from its old run directory.
    pub sandbox: Spec,
    pub criu: &'a Criu,
    /// Only read; several restores may use it at once.
    pub images_dir: &'a Path,
    /// What takes the place of the sockets named as external at the dump.
    pub sockets: Vec<ExternalSocket<'a>>,
    /// Taken at the dump; with it, files that the program writes may have grown since.
    pub inventory: Option<&'a Inventory>,
    pub timeout: Duration,
}

/// The program's end of a connection.
#[derive(Debug)]
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

/// How a restore went.
#[derive(Debug, Clone)]
pub struct RestoreReport {
    /// Making the namespaces.
    pub namespaces: Duration,
    /// From then until the program was complete.
    pub until_restored: Duration,
    /// The caller's step.
    pub restored_step: Duration,
    pub total: Duration,
    /// CRIU's steps until the program was complete, counted from when the namespaces were there.
    pub steps: Vec<Step>,
    /// Those after that.
    pub last_steps: Vec<Step>,
    pub log: PathBuf,
}

/// How long the parts took, the namespaces being there.
struct Course {
    until_restored: Duration,
    restored_step: Duration,
    steps: Vec<Step>,
    last_steps: Vec<Step>,
}

impl Sandbox {
    /// Restores a program. `before_resume` runs when it is complete but not yet running. On any failure
    /// everything taken is given back; the run directory stays, with CRIU's log in it.
    pub fn restore<E>(
        spec: &RestoreSpec<'_>,
        before_resume: impl FnOnce(&Restored) -> Result<(), E>,
    ) -> Result<(Self, RestoreReport)>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let began = Instant::now();
        if !spec.images_dir.join("inventory.img").is_file() {
            return Err(Error::NoImages { path: spec.images_dir.into() });
        }
        let empty = Empty::make(&spec.sandbox)?;
        let namespaces = began.elapsed();
        let log = spec.sandbox.run_dir.join(RESTORE_LOG);
        let turn = ghosts::turn(spec.images_dir);
        match conduct(spec, &empty, before_resume) {
            Ok((pid, course)) => {
                let sandbox = empty.with_program(pid);
                let total = began.elapsed();
                let Course { until_restored, restored_step, steps, last_steps } = course;
                let report = RestoreReport {
                    namespaces,
                    until_restored,
                    restored_step,
                    total,
                    steps,
                    last_steps,
                    log,
                };
                Ok((sandbox, report))
            }
            Err(error) => {
                empty.kill();
                if turn.is_some() {
                    ghosts::clean(&log);
                }
                Err(error)
            }
        }
    }
}

fn conduct<E>(
    spec: &RestoreSpec<'_>,
    empty: &Empty,
    before_resume: impl FnOnce(&Restored) -> Result<(), E>,
) -> Result<(i32, Course)>
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let began = Instant::now();
    let images =
        File::open(spec.images_dir).map_err(Error::io(format!("opening {}", spec.images_dir.display())))?;
    let inventory = spec.inventory.cloned().unwrap_or_default();
    let command = Command::Restore(Restore {
        criu: spec.criu.command().to_vec(),
        sockets: spec.sockets.iter().map(|socket| socket.inode).collect(),
        files: openfile::to_pass(&inventory.open_files),
        outputs: inventory.outputs,
        session_outside: inventory.session_outside,
        highest_pid: inventory.highest_pid,
        timeout_millis: u64::try_from(spec.timeout.as_millis()).unwrap_or(u64::MAX),
    });
    let mut descriptors = vec![images.as_fd()];
    descriptors.extend(spec.sockets.iter().map(|socket| socket.socket));
    empty.send(&command, &descriptors)?;
    let failed = |reply| match reply {
        Reply::Failed(cause) => {
            Error::Criu { action: "restore", cause, log: spec.sandbox.run_dir.join(RESTORE_LOG) }
        }
        Reply::Aborted(cause) => Error::Aborted { action: "restore", cause },
        other => unexpected(&other, "Frozen or Running"),
    };
    let patience = spec.timeout.saturating_add(GRACE);
    let steps = match empty.recv(Some(patience))? {
        Reply::Frozen { steps } => steps,
        other => return Err(failed(other)),
    };
    let until_restored = began.elapsed();
    // On failure the sandbox is killed, so nobody needs to be told.
    before_resume(&Restored { init_pid: empty.init_pid }).map_err(|error| Error::Hook(error.into()))?;
    let restored_step = began.elapsed() - until_restored;
    empty.channel.send(&Verdict::Commit, &[]).map_err(Error::io("answering about the restore"))?;
    match empty.recv(Some(patience))? {
        Reply::Restored { pid, steps: last_steps } => {
            Ok((pid, Course { until_restored, restored_step, steps, last_steps }))
        }
        other => Err(failed(other)),
    }
}
