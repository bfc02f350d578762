//! The CPU half of a sandbox as the daemon holds it.
//!
//! Dropping a [`Sandbox`] leaves the program running: it belongs to its init, not to the daemon. Only a
//! [`Sandbox`] that is waited for or killed frees the entry of its outer process in the process table.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rekindle_protocol::mounts::Mounts;
use serde::Serialize;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{getsockopt, sockopt};
use rekindle_protocol::terminal::WindowSize;

use crate::affinity::Noted;
use crate::error::{Error, Result};
use crate::exec::{Guest, GuestTask};
use crate::init::{EXIT_FILE, PID_FILE, SOCKET};
use crate::inventory::{Inventory, PartialInventory};
use crate::mapped_file::KnownFiles;
use crate::message::{self, Exit, NotStarted, Program, Reply, Setup};
use crate::network::Network;
use crate::process::{self, Handle};
use crate::wire::Channel;
use rekindle_protocol::spawn::Spawned;

const SETUP_TIMEOUT: Duration = Duration::from_secs(20);
const KILL_TIMEOUT: Duration = Duration::from_secs(20);
/// How long init may take to come to the end of a restore.
const SETTLE_LIMIT: Duration = Duration::from_secs(150);
/// Processes are waited for by init for less.
const WATCH_LIMIT: Duration = Duration::from_secs(30);

/// Where a sandbox lives.
#[derive(Clone, Debug, Default)]
pub struct Spec {
    /// The command that becomes its init: a program that calls [`crate::init_main`] with the number that is
    /// appended as its last argument. For the daemon: itself and [`crate::INIT_ARGUMENT`].
    pub init: Vec<OsString>,
    /// An existing directory, best on a tmpfs, of this sandbox alone; the program sees it as
    /// [`crate::RUN_PATH`].
    pub run_dir: PathBuf,
    /// Where the program's output goes; `log` in the run directory where there is none. It is appended to.
    pub log: Option<PathBuf>,
    /// A file, best in a directory that a reboot empties, where CRIU's findings about the kernel are kept for
    /// the next sandbox; made when missing. It saves CRIU some 20 ms where `/run` is no tmpfs, and is not used
    /// where it is one.
    pub criu_cache: Option<PathBuf>,
    /// The directory of the page files that the program maps, if it is restored with such.
    pub pages: Option<PathBuf>,
    /// What the program sees beside the machine's files.
    pub mounts: Mounts,
    /// Its network, if it has one of its own.
    pub network: Option<Arc<Network>>,
    /// Files by which its processes come into groups of the kernel's that limit what they may use.
    pub groups: Vec<PathBuf>,
    /// The most bytes of the log that are kept, its last ones; 0: all.
    pub log_max: u64,
}

/// A sandbox with a program in it.
#[derive(Debug)]
pub struct Sandbox {
    run_dir: PathBuf,
    init: Handle,
    init_pid: i32,
    outer: Mutex<Option<Spawned>>,
    /// The program's pid in its namespace.
    program: i32,
    /// The program from outside; none if it had ended before it was looked at.
    root: Option<Root>,
    /// How we have ended it.
    ours: OnceLock<Exit>,
    /// Which processors the program's threads had when it came to its last stand: CRIU's tracer changes that for a while.
    processors: Mutex<Noted>,
}

#[derive(Debug)]
struct Root {
    pid: i32,
    handle: Handle,
}

impl Root {
    fn find(init: i32, program: i32) -> Option<Self> {
        let pid = process::find_inside(init, program)?;
        Some(Self { pid, handle: Handle::open(pid).ok()? })
    }
}

/// What a new daemon finds in a run directory.
#[derive(Debug)]
pub enum Adopted {
    Running(Sandbox),
    /// `None`: no program was ever started there.
    Ended(Option<Exit>),
}

/// A sandbox's namespaces, before there is a program in them.
pub(crate) struct Empty {
    run_dir: PathBuf,
    init: Handle,
    pub init_pid: i32,
    outer: Spawned,
    pub channel: Channel,
}

/// What a program has for its standard input; its output goes to its log.
#[derive(Debug, Clone, Copy)]
pub enum Standard<'a> {
    Empty,
    Pipe(BorrowedFd<'a>),
    /// A terminal, for its output and errors too, and the socket of one who uses it.
    Terminal(WindowSize, Option<BorrowedFd<'a>>),
}

impl Sandbox {
    /// Starts `program` in a new sandbox. Its standard input is empty.
    pub fn start(spec: &Spec, program: &Program) -> Result<Self> {
        Self::start_with(spec, program, Standard::Empty)
    }

    pub fn start_with(spec: &Spec, program: &Program, standard: Standard<'_>) -> Result<Self> {
        let empty = Empty::make(spec)?;
        let (terminal, comes) = match standard {
            Standard::Empty => (None, None),
            Standard::Pipe(pipe) => (None, Some(pipe)),
            Standard::Terminal(size, user) => (Some(size), user),
        };
        let command = message::Command::Start { program: program.clone(), terminal };
        let started = empty.send(&command, comes.as_slice()).and_then(|()| empty.recv(None));
        let result = match started {
            Ok(Reply::Running(pid)) => return Ok(empty.with_program(pid)),
            Ok(Reply::NotStarted(NotStarted { cause, shell_code })) => {
                Err(Error::Start { cause, shell_code })
            }
            Ok(Reply::Failed(cause)) => Err(Error::Start { cause, shell_code: None }),
            Ok(other) => Err(unexpected(&other, "Running")),
            Err(error) => Err(error),
        };
        empty.kill();
        result
    }

    /// Finds the sandbox whose run directory this is, started by this daemon or by one before it.
    pub fn adopt(run_dir: &Path) -> Result<Adopted> {
        let Ok(socket) = connect(run_dir) else { return Ok(Adopted::Ended(read_exit(run_dir)?)) };
        let init_pid = peer_pid(&socket)?;
        let init = Handle::open(init_pid).map_err(Error::io("holding the sandbox's init"))?;
        let Some(program) = read_pid(run_dir)? else {
            // Its daemon died between making the namespaces and starting the program: nothing is lost.
            let _ = init.signal(libc::SIGKILL);
            return Ok(Adopted::Ended(None));
        };
        let Some(root) = Root::find(init_pid, program) else {
            // Init is about to record how the program ended.
            init.ended(Some(KILL_TIMEOUT)).map_err(Error::io("waiting for the sandbox"))?;
            return Ok(Adopted::Ended(read_exit(run_dir)?));
        };
        let outer = Mutex::new(None);
        Ok(Adopted::Running(Self {
            run_dir: run_dir.into(),
            init,
            init_pid,
            outer,
            program,
            root: Some(root),
            ours: OnceLock::new(),
            processors: Mutex::default(),
        }))
    }

    /// As [`Sandbox::adopt`], once its init has come to the end of what it was told: of a restore whose daemon died it is
    /// known then whether the program has run.
    pub fn adopt_settled(run_dir: &Path) -> Result<Adopted> {
        if let Ok(socket) = connect(run_dir) {
            let channel = Channel::new(socket);
            // One that has ended meanwhile has come to its end too.
            if channel.send(&message::Command::Flush, &[]).is_ok() {
                let _ = receive(&channel, Some(SETTLE_LIMIT), run_dir);
            }
        }
        Self::adopt(run_dir)
    }

    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// The program's pid, as we see it; none if it had ended before it was looked at.
    pub fn root_pid(&self) -> Option<i32> {
        self.root.as_ref().map(|root| root.pid)
    }

    /// The program's pid, as it sees it itself.
    pub fn program_pid(&self) -> i32 {
        self.program
    }

    /// The pid, as we see it, of init: while it lives, the sandbox does.
    pub fn init_pid(&self) -> i32 {
        self.init_pid
    }

    /// Our pid of the process that has `pid` inside the sandbox.
    pub fn host_pid(&self, pid: i32) -> Option<i32> {
        process::find_inside(self.init_pid, pid)
    }

    /// All pids of the program's tree inside the sandbox, with ours.
    pub fn pids(&self) -> BTreeMap<i32, i32> {
        let tree = self.root_pid().map(process::tree).unwrap_or_default();
        tree.into_iter().filter_map(|pid| Some((process::innermost_pid(pid)?, pid))).collect()
    }

    /// The program stands still, and nobody has changed which processors its threads have.
    pub(crate) fn note_processors(&self) {
        let processes = self.root_pid().map(process::tree).unwrap_or_default();
        let threads = processes.into_iter().flat_map(process::threads).chain([self.init_pid]);
        *self.processors.lock().unwrap_or_else(PoisonError::into_inner) = Noted::take(threads);
    }

    /// Begins with what the program needs of the machine, while it stands still.
    pub fn begin_inventory(&self, known: &KnownFiles) -> Result<PartialInventory> {
        let pids: Vec<_> = self.pids().into_values().collect();
        let processors = std::mem::take(&mut *self.processors.lock().unwrap_or_else(PoisonError::into_inner));
        Inventory::begin(&pids, self.init_pid, known, &processors)
            .map_err(Error::io("taking stock of the program"))
    }

    /// Has what the program has printed so far put into its log; an error if that was not done within the time.
    pub fn flush(&self, within: Duration) -> Result<()> {
        let channel = self.connect()?;
        channel.send(&message::Command::Flush, &[]).map_err(Error::io("asking the sandbox's init"))?;
        match receive(&channel, Some(within), &self.run_dir)? {
            Reply::Flushed => Ok(()),
            other => Err(unexpected(&other, "Flushed")),
        }
    }

    /// Has processes, by their pids inside, make a userfaultfd each, which they keep nothing of. One that cannot is left out.
    pub(crate) fn watch(&self, pids: Vec<i32>) -> Result<Vec<(i32, OwnedFd)>> {
        let channel = self.connect()?;
        channel
            .send(&message::Command::Watch { pids }, &[])
            .map_err(Error::io("asking the sandbox's init"))?;
        match receive_with(&channel, Some(WATCH_LIMIT), &self.run_dir)? {
            (Reply::Watched { pids }, made) => Ok(pids.into_iter().zip(made).collect()),
            (other, _) => Err(unexpected(&other, "Watched")),
        }
    }

    /// Has somebody use the program's terminal by their [socket](rekindle_protocol::terminal).
    pub fn attach(&self, user: BorrowedFd<'_>) -> Result<()> {
        let channel = self.connect()?;
        channel.send(&message::Command::Attach, &[user]).map_err(Error::io("asking the sandbox's init"))?;
        match receive(&channel, None, &self.run_dir)? {
            Reply::Attached => Ok(()),
            Reply::NoTerminal => Err(Error::NoTerminal),
            other => Err(unexpected(&other, "Attached")),
        }
    }

    /// Begins a guest beside the program: `helper` is a program that calls [`crate::exec_main`] with the number that is
    /// appended as its last argument.
    pub fn exec(&self, helper: &[OsString], work: GuestTask, stdio: [BorrowedFd<'_>; 3]) -> Result<Guest> {
        let root = self.root.as_ref().ok_or_else(|| Error::Ended { run_dir: self.run_dir.clone() })?;
        Guest::begin(helper, &root.handle, self.program, work, stdio)
    }

    /// Sends the program a signal.
    pub fn signal(&self, signal: i32) -> Result<()> {
        let ended = || Error::Ended { run_dir: self.run_dir.clone() };
        let root = self.root.as_ref().ok_or_else(ended)?;
        root.handle.signal(signal).map_err(|error| match error.raw_os_error() {
            Some(libc::ESRCH) => ended(),
            _ => Error::Io { what: format!("sending signal {signal}"), source: error },
        })
    }

    /// Ends everything in the sandbox at once.
    pub fn kill(&self) -> Result<()> {
        self.is_ended_as(Exit::Signal(libc::SIGKILL));
        match self.init.signal(libc::SIGKILL) {
            Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
                return Err(Error::io("killing the sandbox")(error));
            }
            _ => {}
        }
        match self.wait_exit(Some(KILL_TIMEOUT))? {
            Some(_) => Ok(()),
            None => Err(Error::TimedOut { what: "the sandbox's end".into(), after: KILL_TIMEOUT }),
        }
    }

    /// Waits (`None`: for ever) for the sandbox's end; `None` if it did not come.
    pub fn wait_exit(&self, timeout: Option<Duration>) -> Result<Option<Exit>> {
        if !self.init.ended(timeout).map_err(Error::io("waiting for the sandbox"))? {
            return Ok(None);
        }
        if let Ok(mut outer) = self.outer.lock()
            && let Some(outer) = outer.take()
        {
            // It ends with init; this only frees its entry in the process table.
            outer.wait();
        }
        let ours = self.ours.get().copied();
        if let Some(Exit::Stopped) = ours {
            return Ok(ours);
        }
        let recorded = read_exit(&self.run_dir)?.filter(|exit| *exit != Exit::WithInit);
        Ok(recorded.or(ours).or(Some(Exit::WithInit)))
    }

    /// From here on its end is ours, and this one.
    pub(crate) fn is_ended_as(&self, exit: Exit) {
        // The first is the cause.
        let _ = self.ours.set(exit);
    }

    /// How the sandbox ended, if it has.
    pub fn exit_status(&self) -> Result<Option<Exit>> {
        self.wait_exit(Some(Duration::ZERO))
    }

    /// A connection of its own to the sandbox's init.
    pub(crate) fn connect(&self) -> Result<Channel> {
        match connect(&self.run_dir) {
            Ok(socket) => Ok(Channel::new(socket)),
            Err(_) => Err(Error::Ended { run_dir: self.run_dir.clone() }),
        }
    }
}

impl Empty {
    pub fn make(spec: &Spec) -> Result<Self> {
        let (ours, theirs) = Channel::pair().map_err(Error::io("making a socket"))?;
        let outer = spawn(spec, theirs)?;
        let made = Self::await_ready(spec, &ours).and_then(|()| {
            let socket = connect(&spec.run_dir).map_err(Error::io("connecting to the sandbox's init"))?;
            let init_pid = peer_pid(&socket)?;
            Ok((init_pid, Handle::open(init_pid).map_err(Error::io("holding the sandbox's init"))?))
        });
        match made {
            Ok((init_pid, init)) => {
                Ok(Self { run_dir: spec.run_dir.clone(), init, init_pid, outer, channel: ours })
            }
            Err(error) => {
                // Init ends by itself once the connection is closed.
                drop(ours);
                outer.kill();
                outer.wait();
                Err(error)
            }
        }
    }

    fn await_ready(spec: &Spec, channel: &Channel) -> Result<()> {
        match receive(channel, Some(SETUP_TIMEOUT), &spec.run_dir) {
            Ok(Reply::Ready) => Ok(()),
            Ok(Reply::Failed(cause)) => Err(Error::Setup { cause }),
            Ok(other) => Err(unexpected(&other, "Ready")),
            Err(Error::Ended { .. }) => Err(Error::Setup {
                cause: format!(
                    "{:?} ended; see {}",
                    spec.init,
                    spec.run_dir.join(crate::init::INIT_LOG).display()
                ),
            }),
            Err(error) => Err(error),
        }
    }

    pub fn send(&self, command: &message::Command, fds: &[std::os::fd::BorrowedFd<'_>]) -> Result<()> {
        self.channel.send(command, fds).map_err(Error::io("sending the sandbox's init a command"))
    }

    pub fn recv(&self, timeout: Option<Duration>) -> Result<Reply> {
        receive(&self.channel, timeout, &self.run_dir)
    }

    pub fn with_program(self, program: i32) -> Sandbox {
        let Self { run_dir, init, init_pid, outer, channel } = self;
        drop(channel);
        let root = Root::find(init_pid, program);
        Sandbox {
            run_dir,
            init,
            init_pid,
            outer: Mutex::new(Some(outer)),
            program,
            root,
            ours: OnceLock::new(),
            processors: Mutex::default(),
        }
    }

    /// Gives everything back.
    pub fn kill(self) {
        // Failure means that it has ended.
        let _ = self.init.signal(libc::SIGKILL);
        let _ = self.init.ended(Some(KILL_TIMEOUT));
        self.outer.wait();
    }
}

fn spawn(spec: &Spec, control: Channel) -> Result<Spawned> {
    let control = OwnedFd::from(control.socket().try_clone().map_err(Error::io("making a socket"))?);
    let setup = Setup {
        run_dir: absolute(&spec.run_dir)?.into(),
        log: spec.log.as_deref().map(absolute).transpose()?.map(Into::into),
        criu_cache: spec.criu_cache.as_deref().map(absolute).transpose()?.map(Into::into),
        pages: spec.pages.as_deref().map(absolute).transpose()?.map(Into::into),
        mounts: spec.mounts.clone(),
        log_max: spec.log_max,
        control: control.as_raw_fd(),
        groups: spec.groups.iter().map(Into::into).collect(),
        network: spec.network.as_ref().map(|network| network.as_fd().as_raw_fd()),
    };
    let memory = in_memory(&setup)?;
    let program = spec.init.first().ok_or_else(|| Error::Setup { cause: "no init is given".into() })?;
    let passed: Vec<_> = [control.as_raw_fd(), memory.as_raw_fd()].into_iter().chain(setup.network).collect();
    let command = [&spec.init[..], &[memory.as_raw_fd().to_string().into()]].concat();
    Spawned::start(&command, &passed).map_err(Error::io(format!("starting {}", Path::new(program).display())))
}

/// A set-up as a file in memory.
pub(crate) fn in_memory(setup: &impl Serialize) -> Result<File> {
    let what = "passing on the set-up";
    let memory = memfd_create("rekindle-setup", MFdFlags::MFD_CLOEXEC).map_err(io::Error::from);
    let mut memory = File::from(memory.map_err(Error::io(what))?);
    let text = serde_json::to_vec(setup).map_err(io::Error::from).map_err(Error::io(what))?;
    memory.write_all(&text).and_then(|()| memory.rewind()).map_err(Error::io(what))?;
    Ok(memory)
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(Error::io(format!("resolving {}", path.display())))
}

pub(crate) fn receive(channel: &Channel, timeout: Option<Duration>, run_dir: &Path) -> Result<Reply> {
    receive_with(channel, timeout, run_dir).map(|(reply, _)| reply)
}

fn receive_with(
    channel: &Channel,
    timeout: Option<Duration>,
    run_dir: &Path,
) -> Result<(Reply, Vec<OwnedFd>)> {
    let what = "hearing from the sandbox's init";
    if !process::readable(channel.as_fd(), timeout).map_err(Error::io(what))? {
        let after = timeout.unwrap_or_default();
        return Err(Error::TimedOut { what: "an answer from the sandbox's init".into(), after });
    }
    match channel.recv() {
        Ok(Some(told)) => Ok(told),
        Ok(None) => Err(Error::Ended { run_dir: run_dir.into() }),
        Err(error) => Err(Error::io(what)(error)),
    }
}

pub(crate) fn unexpected(found: &Reply, expected: &'static str) -> Error {
    Error::Protocol { found: format!("{found:?}"), expected }
}

/// Connects by the directory's descriptor: a socket's path may have 107 bytes only.
fn connect(run_dir: &Path) -> io::Result<UnixStream> {
    let dir = File::open(run_dir)?;
    UnixStream::connect(format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd()))
}

fn peer_pid(socket: &UnixStream) -> Result<i32> {
    let peer = getsockopt(socket, sockopt::PeerCredentials).map_err(io::Error::from);
    Ok(peer.map_err(Error::io("asking for the sandbox's init"))?.pid())
}

fn read_if_there(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(format!("reading {}", path.display()))(error)),
    }
}

fn read_exit(run_dir: &Path) -> Result<Option<Exit>> {
    let path = run_dir.join(EXIT_FILE);
    if let Some(text) = read_if_there(&path)? {
        let exit = serde_json::from_str(&text).map_err(io::Error::from);
        return exit.map(Some).map_err(Error::io(format!("reading {}", path.display())));
    }
    // A program was there and left no record: its init was killed.
    Ok(read_pid(run_dir)?.map(|_| Exit::WithInit))
}

fn read_pid(run_dir: &Path) -> Result<Option<i32>> {
    let path = run_dir.join(PID_FILE);
    let Some(text) = read_if_there(&path)? else { return Ok(None) };
    let pid = text.trim().parse().map_err(io::Error::other);
    pid.map(Some).map_err(Error::io(format!("reading {}", path.display())))
}
