//! The memory daemon, which has objects of stores in memory for all programs: when it is started, and what is asked of it
//! here.
//!
//! ```text
//!   socket, open for the daemon's life ── somebody connects ─▶ `rekindled memory` accepts, and all who come later
//!                                              ▲                     └─ ends, or is killed ─┐
//!                                              └────────────────────────────────────────────┘
//! ```
//!
//! It is a process of its own: what reads answers of servers, and may take much memory, is not what holds sandboxes. It
//! ends with this daemon. Who has connected waits at the socket while there is none.

mod lend;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use rekindle_protocol::data::{Answer, Count as ObjectCount, DataRequest, DataRequestHead, Problem};
use rekindle_protocol::exchange::{self, Count, MoveCounts};
use rekindle_protocol::frame::{self, FrameError, Limits};

use crate::error::{Error, Result};
use crate::host::paths::Paths;
use crate::host::private_socket;

pub use lend::Loan;

/// One that ended sooner than this has the next one wait.
const SOON: Duration = Duration::from_secs(1);
/// How long it may take to say how much it has.
const GLANCE: Duration = Duration::from_secs(1);
/// How long a store may take to say how large an object is.
const SIZE_LIMIT: Duration = Duration::from_secs(5);

/// What `rekindled` is called with to be a memory daemon.
const ARGUMENT: &str = "memory";

/// What data may take.
#[derive(Clone, Debug)]
pub struct DataLimits {
    /// The most bytes of the host's memory; none: a quarter of it.
    pub memory: Option<u64>,
    /// For how long what fails is tried again.
    pub patience: Duration,
    /// Programs may have the files that lie below it; none: no files.
    pub files: Option<PathBuf>,
    /// How the URLs begin of what programs may write.
    pub writable: Vec<String>,
    /// The most bytes of each GPU's memory that arrays have which functions hand on, and of the host's; none: an eighth of it.
    pub exchange_gpu: u64,
    pub exchange_host: Option<u64>,
}

/// The way to the memory daemon.
pub struct Data {
    socket: PathBuf,
    /// There is a memory daemon.
    runs: Arc<AtomicBool>,
}

impl Data {
    /// Listens, and has a thread see to it that somebody answers. Names of arrays that are put here begin with `node`.
    pub fn open(paths: &Paths, program: PathBuf, limits: DataLimits, node: String) -> Result<Arc<Data>> {
        let socket = paths.data_socket();
        let listener = private_socket::listen(&socket)?;
        let runs = Arc::new(AtomicBool::new(false));
        let log = paths.logs().join("memory.log");
        let node = (node, paths.elsewhere_socket());
        let keeper = Keeper { program, log, limits, node, listener, runs: runs.clone() };
        let thread = std::thread::Builder::new().name("memory".into()).spawn(move || keeper.run());
        thread.map_err(|source| Error::system("start a thread", source))?;
        Ok(Arc::new(Data { socket, runs }))
    }

    /// How much functions hand on just now, by owner, and how much was moved for it. Nothing if the memory daemon cannot say.
    pub fn handed_on(&self) -> (Vec<Count>, MoveCounts) {
        if !self.runs.load(Ordering::Acquire) {
            return Default::default();
        }
        self.count().unwrap_or_else(|error| {
            log::warn!("how much functions hand on is not known: {error}");
            Default::default()
        })
    }

    fn count(&self) -> std::result::Result<(Vec<Count>, MoveCounts), FrameError> {
        let stream = UnixStream::connect(&self.socket)?;
        frame::send(
            &stream,
            &DataRequestHead::new(DataRequest::Exchange(exchange::ExchangeRequest::Count {})),
            &[],
        )?;
        let limits = Limits { time: Some(GLANCE), ..Limits::default() };
        match frame::receive_within(&stream, &limits)?.0 {
            exchange::Answer::Counts(counts, moves) => Ok((counts, moves)),
            _ => Err(io::Error::other("it answered something else").into()),
        }
    }

    /// What was fetched, and is in memory. Nothing if there is no memory daemon, or it cannot say.
    pub fn objects(&self) -> Option<ObjectCount> {
        if !self.runs.load(Ordering::Acquire) {
            return None;
        }
        let ask = || {
            let stream = UnixStream::connect(&self.socket)?;
            frame::send(&stream, &DataRequestHead::new(DataRequest::Count {}), &[])?;
            let limits = Limits { time: Some(GLANCE), ..Limits::default() };
            frame::receive_within::<Answer>(&stream, &limits)
        };
        match ask() {
            Ok((Answer::Count(count), _)) => Some(count),
            Ok(_) => None,
            Err(error) => {
                log::warn!("what was fetched is not known: {error}");
                None
            }
        }
    }

    /// Has an object fetched for a program that is about to want it. What fails is said to whoever wants it then.
    pub fn prefetch(self: &Arc<Data>, url: &str) {
        let (data, url) = (self.clone(), url.to_string());
        std::thread::spawn(move || match data.fetch(&url) {
            Ok(Ok(())) => log::debug!("{url} is in memory"),
            Ok(Err(problem)) => log::debug!("{}", problem.sentence),
            Err(error) => log::warn!("{url} was not fetched ahead: {error}"),
        });
    }

    /// How large objects are, bytes, as far as their stores say so within a few seconds. Nothing is fetched.
    pub fn sizes(&self, urls: &[String]) -> Vec<(String, u64)> {
        let size = |url: &String| match self.ask(url, DataRequest::Look { url: url.clone() }) {
            Ok(bytes) => Some((url.clone(), bytes?)),
            Err(problem) => {
                log::warn!("how large {url} is is not known: {}", problem.sentence);
                None
            }
        };
        std::thread::scope(|scope| {
            let asked: Vec<_> = urls.iter().map(|url| scope.spawn(move || size(url))).collect();
            asked.into_iter().filter_map(|one| one.join().ok().flatten()).collect()
        })
    }

    /// Has an object fetched, and says how large it is if the memory daemon can soon, or why it cannot be had.
    pub fn begin(&self, url: &str) -> std::result::Result<Option<u64>, Problem> {
        self.ask(url, DataRequest::Object { url: url.to_string(), bytes: None, sharer: None, write: None })
    }

    /// How large the object of a request is; none if nobody says so soon.
    fn ask(&self, url: &str, request: DataRequest) -> std::result::Result<Option<u64>, Problem> {
        let ask = || {
            let stream = UnixStream::connect(&self.socket)?;
            frame::send(&stream, &DataRequestHead::new(request), &[])?;
            let limits = Limits { time: Some(SIZE_LIMIT), ..Limits::default() };
            frame::receive_within::<Answer>(&stream, &limits)
        };
        match ask() {
            Ok((Answer::Object { version }, _)) => Ok(Some(version.bytes)),
            Ok((Answer::Failed(problem), _)) => Err(problem),
            Ok(_) => Ok(None),
            Err(error) => {
                log::warn!("how large {url} is is not known: {error}");
                Ok(None)
            }
        }
    }

    fn fetch(&self, url: &str) -> std::result::Result<std::result::Result<(), Problem>, FrameError> {
        let stream = UnixStream::connect(&self.socket)?;
        let request = DataRequest::Object { url: url.to_string(), bytes: None, sharer: None, write: None };
        frame::send(&stream, &DataRequestHead::new(request), &[])?;
        loop {
            match frame::receive(&stream)?.0 {
                Answer::Whole {} => return Ok(Ok(())),
                Answer::Failed(problem) => return Ok(Err(problem)),
                _ => {}
            }
        }
    }
}

/// Starts memory daemons, one after the other.
struct Keeper {
    program: PathBuf,
    log: PathBuf,
    limits: DataLimits,
    /// How names of arrays begin, and where it asks for those of other nodes.
    node: (String, PathBuf),
    listener: UnixListener,
    runs: Arc<AtomicBool>,
}

impl Keeper {
    fn run(self) {
        loop {
            let began = Instant::now();
            match self.wait().and_then(|()| self.serve()) {
                Ok(how) => log::warn!("the memory daemon ended ({how}); the next one begins anew"),
                Err(error) => log::error!("the memory daemon cannot be started: {error}"),
            }
            std::thread::sleep(SOON.saturating_sub(began.elapsed()));
        }
    }

    /// Returns when somebody has connected.
    fn wait(&self) -> io::Result<()> {
        let mut entries = [PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
        while let Err(errno) = poll(&mut entries, PollTimeout::NONE) {
            if errno != nix::errno::Errno::EINTR {
                return Err(errno.into());
            }
        }
        Ok(())
    }

    /// Returns when the process has ended.
    fn serve(&self) -> io::Result<ExitStatus> {
        let log: File = OpenOptions::new().append(true).create(true).open(&self.log)?;
        let most = |given: Option<u64>, part| given.map_or_else(|| Ok(host_memory()? / part), io::Result::Ok);
        let (data, exchange) = (most(self.limits.memory, 4)?, most(self.limits.exchange_host, 8)?);
        let mut command = Command::new(&self.program);
        command
            .arg(ARGUMENT)
            .args(
                [data, self.limits.patience.as_secs(), self.limits.exchange_gpu, exchange]
                    .map(|n| n.to_string()),
            )
            .arg(&self.node.0)
            .arg(&self.node.1)
            .arg(self.limits.files.as_deref().unwrap_or("".as_ref()))
            .args(&self.limits.writable)
            .current_dir("/")
            .stdin(OwnedFd::from(self.listener.try_clone()?))
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0);
        // SAFETY: between fork and exec, one system call. The thread that it is about lives as long as this process.
        unsafe {
            command.pre_exec(|| Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?));
        }
        let mut process = command.spawn()?;
        self.runs.store(true, Ordering::Release);
        let ended = process.wait();
        self.runs.store(false, Ordering::Release);
        ended
    }
}

/// How much memory the host has.
fn host_memory() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let total =
        text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok());
    let total: u64 =
        total.ok_or_else(|| io::Error::other("/proc/meminfo does not say how much memory there is"))?;
    Ok(total << 10)
}
