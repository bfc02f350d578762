//! Taking the CPU half of a running program.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use nix::sys::statvfs::statvfs;
use rekindle_protocol::tuning;

use crate::criu::Criu;
use crate::ending;
use crate::error::{Error, Result};
use crate::init::DUMP_LOG;
use crate::inventory::{Inventory, PartialInventory};
use crate::mapped_file::KnownFiles;
use crate::message::{Command, Dump, DumpStats, Exit, Reply, Verdict};
use crate::overlay;
use crate::pages::tell_stands;
use crate::process;
use crate::processor::{self, Uses};
use crate::sandbox::{Sandbox, receive, unexpected};
use crate::tree::Tree;
use crate::unfit;
use crate::waiting::Waiting;
use crate::wire::Channel;

#[derive(Debug, Clone)]
pub struct DumpSpec<'a> {
    pub criu: &'a Criu,
    /// Where the images and CRIU's log go; made if it is not there.
    pub images_dir: &'a Path,
    /// Whether the program goes on afterwards or is ended.
    pub leave_running: bool,
    /// Inodes of the program's ends of Unix sockets whose other ends are outside the sandbox.
    pub external_sockets: Vec<u32>,
    /// How long it may take to bring all threads to a stand.
    pub freeze_timeout: Duration,
    /// How long the step taken while the program stands may take.
    pub frozen_timeout: Duration,
    /// CRIU's end of a connection to a [`crate::pages::PageServer`] that takes the pages.
    pub page_server: Option<BorrowedFd<'a>>,
    /// Whether pages were [copied ahead](crate::pages::Ahead), which that server has then.
    pub ahead: bool,
    /// Whether CRIU writes down all that it does, which takes it as long again.
    pub steps_told: bool,
    /// The command that becomes the tracer of a program without a sandbox: one that calls [`crate::tracer_main`] with the
    /// number that is appended. Where there is none CRIU traces by itself, and the program may end with it.
    pub tracer: Option<Vec<OsString>>,
}

/// How long a sandbox may take to be gone whose program is ended.
const PARTING: Duration = Duration::from_secs(2);
/// How long init may take to hold a program, or to let go of it.
const HOLD_LIMIT: Duration = Duration::from_secs(10);

impl<'a> DumpSpec<'a> {
    pub fn new(criu: &'a Criu, images_dir: &'a Path, leave_running: bool) -> Self {
        Self {
            criu,
            images_dir,
            leave_running,
            external_sockets: Vec::new(),
            freeze_timeout: Duration::from_secs(10),
            frozen_timeout: Duration::from_secs(600),
            page_server: None,
            ahead: false,
            steps_told: false,
            tracer: None,
        }
    }

    /// What a sandbox's init is told of it.
    fn told(&self) -> Dump {
        Dump {
            criu: self.criu.command().to_vec(),
            leave_running: self.leave_running,
            external_sockets: self.external_sockets.clone(),
            freeze_seconds: u32::try_from(self.freeze_timeout.as_secs().max(1)).unwrap_or(u32::MAX),
            verdict_millis: u64::try_from(self.frozen_timeout.as_millis()).unwrap_or(u64::MAX),
            steps_told: self.steps_told,
            ahead: self.ahead,
            assist: !tuning::is(tuning::ASSIST, "off"),
        }
    }
}

/// A program that stands still, its images written.
#[derive(Debug)]
pub struct Frozen<'a> {
    pub(crate) cpu: Cpu<'a>,
    pub images_dir: &'a Path,
    /// Leads to its init, if it has one.
    pub(crate) init: Option<&'a Channel>,
}

impl Frozen<'_> {
    /// All pids of the program's tree, as it sees them itself, with ours.
    pub fn pids(&self) -> BTreeMap<i32, i32> {
        self.cpu.pids()
    }

    /// Has the program stand still until there is a verdict, even if this process dies: the next one gives it by
    /// [`Sandbox::settle`].
    pub fn hold(&self) -> Result<()> {
        let (Some(init), Cpu::Sandbox(sandbox)) = (self.init, self.cpu) else {
            return Err(Error::CannotHold);
        };
        init.send(&Verdict::Hold, &[]).map_err(Error::io("having the program held"))?;
        match receive(init, Some(HOLD_LIMIT), sandbox.run_dir())? {
            Reply::Held => Ok(()),
            other => Err(unexpected(&other, "Held")),
        }
    }

    /// Whether the program has not ended.
    pub fn goes_on(&self) -> bool {
        self.cpu.goes_on()
    }

    /// What the program needs of a machine that restores it, which was [begun](Cpu::begin_inventory) while it stands still.
    pub fn inventory(&self, begun: PartialInventory) -> Result<Inventory> {
        let pids: Vec<_> = self.pids().into_values().collect();
        let mut inventory = begun.finish(&pids).map_err(Error::io("taking stock of the program"))?;
        let kept = overlay::kept(self.images_dir).map_err(Error::io("reading what was kept of layers"))?;
        inventory.leave_out(&kept);
        inventory.uses =
            Uses::read(self.images_dir).map_err(Error::io(format!("reading {}", processor::NAME)))?;
        // What is killed has lost its memory's map, and what was read of it may be nothing.
        self.check_alive()?;
        Ok(inventory)
    }

    /// An error if a process of the program was killed while it stands still.
    pub fn check_alive(&self) -> Result<()> {
        let died = |pid: &i32| ending::is_dying(*pid) && process::tracer(*pid).is_some();
        match self.pids().into_values().find(died) {
            Some(pid) => Err(Error::Died { pid }),
            None => Ok(()),
        }
    }
}

/// A program that can be dumped, wherever it is.
#[derive(Debug, Clone, Copy)]
pub enum Cpu<'a> {
    Sandbox(&'a Sandbox),
    Tree(&'a Tree),
}

impl Cpu<'_> {
    /// All pids of the program's tree, as it sees them itself, with ours.
    pub fn pids(&self) -> BTreeMap<i32, i32> {
        match self {
            Self::Sandbox(sandbox) => sandbox.pids(),
            Self::Tree(tree) => tree.pids(),
        }
    }

    /// Our pid of the process that the program knows as `pid`.
    pub fn host_pid(&self, pid: i32) -> Option<i32> {
        match self {
            Self::Sandbox(sandbox) => sandbox.host_pid(pid),
            Self::Tree(tree) => tree.pids().get(&pid).copied(),
        }
    }

    /// Our pid of the program's first process; none if it had ended before it was looked at.
    pub fn root_pid(&self) -> Option<i32> {
        match self {
            Self::Sandbox(sandbox) => sandbox.root_pid(),
            Self::Tree(tree) => Some(tree.root_pid()),
        }
    }

    /// The pid of the program's first process, as it sees it itself.
    pub fn program_pid(&self) -> i32 {
        match self {
            Self::Sandbox(sandbox) => sandbox.program_pid(),
            Self::Tree(tree) => tree.root_pid(),
        }
    }

    /// Whether the program has not ended.
    pub fn goes_on(&self) -> bool {
        match self {
            Self::Sandbox(sandbox) => matches!(sandbox.exit_status(), Ok(None)),
            Self::Tree(tree) => tree.is_alive(),
        }
    }

    /// Reads the files that the program has mapped, which may run.
    pub fn known_files(&self) -> KnownFiles {
        KnownFiles::read(&self.pids().into_values().collect::<Vec<_>>())
    }

    /// Begins with what the program has of the machine, for [`Frozen::inventory`]: it stands still, and CRIU may be at it.
    pub fn begin_inventory(&self, known: &KnownFiles) -> Result<PartialInventory> {
        match self {
            Self::Sandbox(sandbox) => sandbox.begin_inventory(known),
            Self::Tree(tree) => tree.begin_inventory(known),
        }
    }

    /// Has CRIU make itself ready for this dump, while the program runs and other things are done: it is loaded, and learns
    /// what the kernel can do. Nothing of the program is touched.
    pub fn prepare(&self, spec: &DumpSpec<'_>) -> Prepared {
        // Where it cannot be had the dump will say why.
        match self {
            Self::Sandbox(sandbox) => Prepared(sandbox.prepare(spec).map_or(Ready::None, Ready::Sandbox)),
            Self::Tree(tree) => Prepared(tree.prepare(spec).map_or(Ready::None, Ready::Tree)),
        }
    }

    /// See [`Sandbox::dump`].
    pub fn dump<E>(
        &self,
        spec: &DumpSpec<'_>,
        prepared: Prepared,
        on_frozen: impl FnOnce(&Frozen<'_>) -> Result<(), E>,
    ) -> Result<DumpReport>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        match self {
            Self::Sandbox(sandbox) => sandbox.dump_by(prepared, spec, on_frozen),
            Self::Tree(tree) => tree.dump(spec, prepared, on_frozen),
        }
    }
}

/// A CRIU that has been told of a dump and waits for leave to begin it, if one could be had. Dropped, it ends. One that does
/// not fit the dump, because the program is another by then, is replaced.
#[derive(Debug, Default)]
pub struct Prepared(pub(crate) Ready);

#[derive(Debug, Default)]
pub(crate) enum Ready {
    #[default]
    None,
    Tree(Waiting),
    /// The sandbox's init has it, for whoever has this connection.
    Sandbox(Channel),
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
    fn prepare(&self, spec: &DumpSpec<'_>) -> Result<Channel> {
        let images =
            open_dir(spec.images_dir).map_err(Error::io(format!("making {}", spec.images_dir.display())))?;
        let channel = self.connect()?;
        let descriptors: Vec<_> = [images.as_fd()].into_iter().chain(spec.page_server).collect();
        channel
            .send(&Command::Prepare(spec.told()), &descriptors)
            .map_err(Error::io("having a dump prepared"))?;
        match receive(&channel, Some(HOLD_LIMIT), self.run_dir())? {
            Reply::Prepared => Ok(channel),
            other => Err(unexpected(&other, "Prepared")),
        }
    }

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
        self.dump_by(Prepared::default(), spec, on_frozen)
    }

    fn dump_by<E>(
        &self,
        prepared: Prepared,
        spec: &DumpSpec<'_>,
        on_frozen: impl FnOnce(&Frozen<'_>) -> Result<(), E>,
    ) -> Result<DumpReport>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let began = Instant::now();
        let pids: Vec<_> = self.pids().into_values().collect();
        // From inside a sandbox CRIU cannot tell who traces it.
        unfit::refuse_traced(&pids)?;
        unfit::refuse_headless(pids.iter().copied())?;
        if pids.len() > 1 {
            unfit::refuse_uninterruptible(|| self.pids().into_values().collect(), spec.freeze_timeout)?;
        }
        let images =
            open_dir(spec.images_dir).map_err(Error::io(format!("making {}", spec.images_dir.display())))?;
        let log = spec.images_dir.join(DUMP_LOG);
        let channel = match prepared.0 {
            Ready::Sandbox(channel) => channel,
            _ => self.connect()?,
        };
        let descriptors: Vec<_> = [images.as_fd()].into_iter().chain(spec.page_server).collect();
        let failed = |reply| match reply {
            Reply::Failed(_) if is_full(spec.images_dir) => Error::DiskFull { place: spec.images_dir.into() },
            Reply::Failed(cause) => Error::Criu { action: "dump", cause, log: Some(log.clone()) },
            Reply::Aborted(cause) => Error::Aborted { action: "dump", cause },
            other => unexpected(&other, "Frozen or Dumped"),
        };
        match self.write_images(spec, &channel, &descriptors)? {
            Reply::Frozen { .. } => {}
            other => return Err(failed(other)),
        }
        let until_frozen = began.elapsed();
        let step = {
            let init = Some(&channel);
            on_frozen(&Frozen { cpu: Cpu::Sandbox(self), images_dir: spec.images_dir, init })
                .map_err(Into::into)
        };
        let frozen_step = began.elapsed() - until_frozen;
        let ended = step.is_ok() && !spec.leave_running;
        if ended {
            self.is_ended_as(Exit::Stopped);
            ending::end_all(self.pids().into_values());
        }
        let verdict = match &step {
            Ok(()) => Verdict::Commit,
            Err(error) => Verdict::Abort(error.to_string()),
        };
        let reply = channel
            .send(&verdict, &[])
            .map_err(Error::io("answering about the dump"))
            .and_then(|()| receive(&channel, None, self.run_dir()));
        step.map_err(Error::Hook)?;
        let stats = match reply {
            Ok(Reply::Dumped { stats }) => stats,
            // All is written, and the program is ended: whoever held it has nothing to add.
            Ok(_) | Err(_) if ended => {
                self.end_what_is_left()?;
                DumpStats::default()
            }
            Ok(other) => return Err(failed(other)),
            Err(error) => return Err(error),
        };
        Ok(DumpReport { stats, until_frozen, frozen_step, total: began.elapsed(), log })
    }

    /// Has CRIU bring the program to a stand and write its images; what init says then. What the program has is looked at
    /// while CRIU brings it to a stand, and refused before CRIU does anything to it.
    fn write_images(
        &self,
        spec: &DumpSpec<'_>,
        channel: &Channel,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Reply> {
        let look = || {
            let pids: Vec<_> = self.pids().into_values().collect();
            unfit::refuse_contents(&pids, &spec.external_sockets)
        };
        let joined = |thread: ScopedJoinHandle<'_, Result<()>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let answer =
            |verdict: &Verdict| channel.send(verdict, &[]).map_err(Error::io("answering about the dump"));
        std::thread::scope(|scope| {
            let mut first_look = Some(scope.spawn(look));
            let asked = channel.send(&Command::Dump(spec.told()), descriptors);
            asked.map_err(Error::io("asking for a dump"))?;
            loop {
                let reply = receive(channel, None, self.run_dir())?;
                let fit = match &reply {
                    // It comes to a stand again if it was another than CRIU was told of.
                    Reply::Standing => first_look.take().map_or_else(look, joined),
                    _ => first_look.take().map_or(Ok(()), joined),
                };
                match (reply, fit) {
                    (Reply::Standing, Ok(())) => {
                        self.note_processors();
                        spec.page_server.iter().for_each(|server| tell_stands(*server));
                        answer(&Verdict::Commit)?;
                    }
                    (Reply::Standing | Reply::Frozen { .. }, Err(refusal)) => {
                        answer(&Verdict::Abort(refusal.to_string()))?;
                        receive(channel, None, self.run_dir())?;
                        return Err(refusal);
                    }
                    (reply, fit) => return fit.map(|()| reply),
                }
            }
        })
    }
}

impl Sandbox {
    /// Ends a program that a daemon before this one has [held](Frozen::hold), or has it go on. False if none was held.
    pub fn settle(&self, ends: bool) -> Result<bool> {
        let channel = self.connect()?;
        let verdict = match ends {
            true => Verdict::Commit,
            false => Verdict::Abort("it goes on after all".to_string()),
        };
        if ends {
            self.is_ended_as(Exit::Stopped);
            ending::end_all(self.pids().into_values());
        }
        channel.send(&Command::Settle(verdict), &[]).map_err(Error::io("settling a program that is held"))?;
        let settled = match receive(&channel, Some(HOLD_LIMIT), self.run_dir()) {
            Ok(Reply::Settled(was_held)) => was_held,
            Ok(other) => return Err(unexpected(&other, "Settled")),
            Err(_) if ends => true,
            Err(error) => return Err(error),
        };
        if ends {
            self.end_what_is_left()?;
        }
        Ok(settled)
    }

    /// Ends the sandbox of a program that is ended, if nobody in it does.
    fn end_what_is_left(&self) -> Result<()> {
        match self.wait_exit(Some(PARTING))? {
            Some(_) => Ok(()),
            None => self.kill(),
        }
    }
}

/// Whether the file system has no room left. CRIU's log stands on it too, and may be cut before the reason.
pub(crate) fn is_full(place: &Path) -> bool {
    const LEAST: u64 = 1 << 20;
    statvfs(place).is_ok_and(|of| of.blocks_available() * of.fragment_size() < LEAST)
}

pub(crate) fn open_dir(path: &Path) -> io::Result<File> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    File::open(path)
}
