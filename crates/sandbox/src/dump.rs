//! Taking the CPU half of a running sandbox.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::statvfs::statvfs;

use crate::criu::Criu;
use crate::error::{Error, Result};
use crate::init::DUMP_LOG;
use crate::inventory::Inventory;
use crate::message::{Command, Dump, DumpStats, Reply, Verdict};
use crate::process;
use crate::sandbox::{Sandbox, receive, unexpected};

#[derive(Debug)]
pub struct DumpSpec<'a> {
    pub criu: &'a Criu,
    /// Where the images and CRIU's log go; made if it is not there.
    pub images_dir: &'a Path,
    /// Whether the program goes on afterwards or is ended.
    pub leave_running: bool,
    /// Inodes of the program's ends of Unix sockets whose other ends are outside the sandbox.
    pub external_sockets: Vec<u32>,
    /// Whether established TCP connections are taken along; without, they make the dump fail.
    pub tcp_established: bool,
    /// How long it may take to bring all threads to a stand.
    pub freeze_timeout: Duration,
    /// How long the step taken while the program stands may take.
    pub frozen_timeout: Duration,
}

impl<'a> DumpSpec<'a> {
    pub fn new(criu: &'a Criu, images_dir: &'a Path, leave_running: bool) -> Self {
        Self {
            criu,
            images_dir,
            leave_running,
            external_sockets: Vec::new(),
            tcp_established: false,
            freeze_timeout: Duration::from_secs(10),
            frozen_timeout: Duration::from_secs(600),
        }
    }
}

/// A program that stands still, its images written.
#[derive(Debug)]
pub struct Frozen<'a> {
    pub sandbox: &'a Sandbox,
    pub images_dir: &'a Path,
}

impl Frozen<'_> {
    /// All pids of the program's tree inside the sandbox, with ours.
    pub fn pids(&self) -> BTreeMap<i32, i32> {
        self.sandbox.pids()
    }

    /// What the program needs of a machine that restores it.
    pub fn inventory(&self) -> Result<Inventory> {
        self.sandbox.inventory()
    }
}

/// How a dump went.
#[derive(Debug, Clone)]
pub struct DumpReport {
    /// CRIU's own measurements.
    pub stats: DumpStats,
    /// From the request until the images were written.
    pub until_frozen: Duration,
    /// The caller's step.
    pub frozen_step: Duration,
    pub total: Duration,
    pub log: PathBuf,
}

impl Sandbox {
    /// Dumps the program. `on_frozen` runs while it stands still with the images written; if it fails, or this
    /// process dies in it, the program goes on as if nothing had been.
    ///
    /// Does not return before CRIU has let go of the program.
    pub fn dump<E>(
        &self,
        spec: &DumpSpec<'_>,
        on_frozen: impl FnOnce(&Frozen<'_>) -> Result<(), E>,
    ) -> Result<DumpReport>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let began = Instant::now();
        refuse_traced(self)?;
        let images =
            open_dir(spec.images_dir).map_err(Error::io(format!("making {}", spec.images_dir.display())))?;
        let log = spec.images_dir.join(DUMP_LOG);
        let channel = self.connect()?;
        let command = Command::Dump(Dump {
            criu: spec.criu.command().to_vec(),
            leave_running: spec.leave_running,
            external_sockets: spec.external_sockets.clone(),
            tcp_established: spec.tcp_established,
            freeze_seconds: u32::try_from(spec.freeze_timeout.as_secs().max(1)).unwrap_or(u32::MAX),
            verdict_millis: u64::try_from(spec.frozen_timeout.as_millis()).unwrap_or(u64::MAX),
        });
        channel.send(&command, &[images.as_fd()]).map_err(Error::io("asking for a dump"))?;
        let failed = |reply| match reply {
            Reply::Failed(_) if is_full(spec.images_dir) => Error::DiskFull { place: spec.images_dir.into() },
            Reply::Failed(cause) => Error::Criu { action: "dump", cause, log: log.clone() },
            Reply::Aborted(cause) => Error::Aborted { action: "dump", cause },
            other => unexpected(&other, "Frozen or Dumped"),
        };
        match receive(&channel, None, self.run_dir())? {
            Reply::Frozen { .. } => {}
            other => return Err(failed(other)),
        }
        let until_frozen = began.elapsed();
        let step = on_frozen(&Frozen { sandbox: self, images_dir: spec.images_dir }).map_err(Into::into);
        let frozen_step = began.elapsed() - until_frozen;
        let verdict = match &step {
            Ok(()) => Verdict::Commit,
            Err(error) => Verdict::Abort(error.to_string()),
        };
        channel.send(&verdict, &[]).map_err(Error::io("answering about the dump"))?;
        let reply = receive(&channel, None, self.run_dir())?;
        step.map_err(Error::Hook)?;
        match reply {
            Reply::Dumped { stats } => {
                Ok(DumpReport { stats, until_frozen, frozen_step, total: began.elapsed(), log })
            }
            other => Err(failed(other)),
        }
    }
}

/// CRIU traces what it dumps, and a process has one tracer; from inside the sandbox it cannot tell whose.
fn refuse_traced(sandbox: &Sandbox) -> Result<()> {
    let traced = |(inside, pid): (i32, i32)| Some((inside, process::tracer(pid)?));
    match sandbox.pids().into_iter().find_map(traced) {
        None => Ok(()),
        Some((pid, tracer)) => {
            let (process, name) = (format!("its process {pid}"), process::name(tracer));
            let cause =
                format!("process {tracer} ({name}) traces {process}; detach that debugger or tracer first");
            Err(Error::Refused { cause })
        }
    }
}

/// Whether the file system has no room left. CRIU's log stands on it too, and may be cut before the reason.
fn is_full(place: &Path) -> bool {
    const LEAST: u64 = 1 << 20;
    statvfs(place).is_ok_and(|of| of.blocks_available() * of.fragment_size() < LEAST)
}

fn open_dir(path: &Path) -> io::Result<File> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    File::open(path)
}
