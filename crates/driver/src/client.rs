//! The daemon's side: the helper process, started when it is needed and again when it has died, and what it holds.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rekindle_protocol::frame::{self, FrameError};
use rekindle_protocol::worker::Phase;

use crate::error::{Error, Result};
use crate::helper::HELPER_ARGUMENT;
use crate::journal::Journal;
use crate::message::{CheckpointedProcesses, Gpu, Request, Response, Used, UuidPair};

/// How often a helper that dies while it brings processes back, or is asked what it knows, is replaced.
const TRIES: usize = 3;
/// How often is looked for what nobody has finished: what could not be brought back, and what a helper of an earlier
/// daemon began after this one had looked.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// The pause after failures, which doubles up to here.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long an operation waits for processes to be brought back that may be its own.
const RECOVERY_LIMIT: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub struct Helper {
    /// `rekindled`, which is the helper too.
    program: PathBuf,
    /// Where the journals lie.
    directory: PathBuf,
    log: PathBuf,
    control: Arc<Mutex<Option<UnixStream>>>,
    recoveries: Arc<Recoveries>,
    /// Operations of this daemon's: nobody else finishes them, whatever becomes of their helper.
    own: Arc<Mutex<HashSet<String>>>,
}

/// How many recoveries of what an earlier daemon left are under way.
#[derive(Default)]
struct Recoveries {
    count: Mutex<usize>,
    done: Condvar,
}

impl Helper {
    pub fn new(program: &Path, directory: PathBuf, log: PathBuf) -> Helper {
        Helper {
            program: program.to_path_buf(),
            directory,
            log,
            control: Arc::default(),
            own: Arc::default(),
            recoveries: Arc::default(),
        }
    }

    /// The GPUs of this machine, in the driver's order.
    pub fn gpus(&self) -> Result<Vec<Gpu>> {
        let action = "list the GPUs";
        let mut tries = 0;
        loop {
            tries += 1;
            match self.ask(action, &Request::Gpus) {
                // One that nobody had asked for anything may have been killed just now.
                Err(Error::HelperEnded { .. }) if tries < TRIES => {}
                Ok(Response::Gpus { gpus }) => return Ok(gpus),
                Ok(other) => return Err(unexpected(action, other)),
                Err(error) => return Err(error),
            }
        }
    }

    /// What processes have of the GPUs' memory, as far as NVML tells: nothing where it tells of no processes, as in a
    /// container.
    pub fn usage(&self) -> Result<Vec<Used>> {
        let action = "tell what processes have on the GPUs";
        match self.ask(action, &Request::Usage)? {
            Response::Usage { used } => Ok(used),
            other => Err(unexpected(action, other)),
        }
    }

    /// Locks the GPU processes of the tree below `root` and takes their GPU halves.
    pub fn hold(&self, id: &str, root: i32, lock: Duration) -> Result<Hold<'_>> {
        let action = "take the program's GPU half";
        self.recoveries.wait();
        let own = self.own(id);
        let stream = self.connect()?;
        let request = Request::Hold { id: id.to_string(), root, lock_ms: lock.as_millis() as u64 };
        match self.exchange(&stream, action, &request) {
            Ok(Response::Held(held)) => {
                Ok(Hold { helper: self, id: id.to_string(), stream, held, over: false, _own: own })
            }
            Ok(other) => Err(unexpected(action, other)),
            Err(error) => {
                let is_left = self.has_left(id);
                Err(match self.after(id, error) {
                    error @ Error::HelperEnded { .. } => Error::Undone(Box::new(error)),
                    error @ Error::Helper { .. } if is_left => Error::Undone(Box::new(error)),
                    error => error,
                })
            }
        }
    }

    /// Brings processes that came out of an image to running. If it fails they are to be ended.
    pub fn restore(&self, id: &str, pids: Vec<i32>, pairs: Vec<UuidPair>) -> Result<Vec<Phase>> {
        let action = "bring the program's GPU half back";
        let _own = self.own(id);
        match self.ask(action, &Request::Restore { id: id.to_string(), pids, pairs })? {
            Response::Done { phases } => Ok(phases),
            other => Err(unexpected(action, other)),
        }
    }

    /// The processes of an operation that failed have been ended: nothing of it is to be finished.
    pub fn abandon(&self, id: &str) {
        if self.has_left(id)
            && let Err(error) = self.recover(vec![id.to_string()])
        {
            log::warn!("{error}");
        }
    }

    /// Finishes or undoes, beside the caller, what an earlier daemon and its helper had under way when they died, and
    /// whatever else nobody works on, for as long as this process lives. To be called once.
    pub fn recover_all(&self) {
        let ids = Journal::all(&self.directory);
        self.recoveries.begin();
        let helper = self.clone();
        std::thread::spawn(move || {
            helper.recover_and_tell(ids);
            helper.recoveries.end();
            let mut pause = LOOK_AGAIN;
            loop {
                std::thread::sleep(pause);
                let mut ids = Journal::abandoned(&helper.directory);
                let own = helper.own.lock().unwrap_or_else(PoisonError::into_inner).clone();
                ids.retain(|id| !own.contains(id));
                pause = match helper.recover_and_tell(ids) {
                    true => LOOK_AGAIN,
                    false => LONGEST_PAUSE.min(pause * 2),
                };
            }
        });
    }

    /// Whether nothing is left of these.
    fn recover_and_tell(&self, ids: Vec<String>) -> bool {
        if ids.is_empty() {
            return true;
        }
        match self.recover(ids) {
            Ok(notes) => {
                notes.iter().for_each(|note| log::warn!("{note}"));
                true
            }
            Err(error) => {
                log::error!("{error}");
                false
            }
        }
    }

    /// Finishes or undoes what helpers that are gone have left; a sentence for each process that did not run.
    fn recover(&self, ids: Vec<String>) -> Result<Vec<String>> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.recover_once(&ids) {
                Err(error) if tries == TRIES => return Err(error),
                Err(error) => log::warn!("{error}; another one is tried"),
                done => return done,
            }
        }
    }

    fn recover_once(&self, ids: &[String]) -> Result<Vec<String>> {
        let action = "bring processes back to running";
        match self.ask(action, &Request::Recover { ids: ids.to_vec() })? {
            Response::Recovered { notes } => Ok(notes),
            other => Err(unexpected(action, other)),
        }
    }

    /// An operation failed. A helper that is alive has undone it; what one that died has left is undone now.
    fn after(&self, id: &str, error: Error) -> Error {
        if !self.has_left(id) {
            return error;
        }
        match self.recover(vec![id.to_string()]) {
            Ok(_) => error,
            Err(stuck) => Error::Stuck(format!("{stuck}; that is after: {error}")),
        }
    }

    fn own(&self, id: &str) -> Own {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_string());
        Own { all: self.own.clone(), id: id.to_string() }
    }

    fn has_left(&self, id: &str) -> bool {
        Journal::all(&self.directory).iter().any(|journal| journal == id)
    }

    fn ask(&self, action: &'static str, request: &Request) -> Result<Response> {
        self.exchange(&self.connect()?, action, request)
    }

    fn exchange(&self, stream: &UnixStream, action: &'static str, request: &Request) -> Result<Response> {
        let answer = frame::send(stream, request, &[]).and_then(|()| frame::receive::<Response>(stream));
        match answer {
            Ok((Response::Failed { message }, _)) => Err(Error::Helper { action, reason: message }),
            Ok((response, _)) => Ok(response),
            Err(FrameError::Closed) => Err(Error::HelperEnded { action, log: self.log.clone() }),
            Err(error) => Err(error.into()),
        }
    }

    /// A connection to the helper, which is started if none is there.
    fn connect(&self) -> Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair().map_err(Error::io("make a connection for", &self.program))?;
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let sent =
            control.as_ref().is_some_and(|control| frame::send(control, &(), &[theirs.as_fd()]).is_ok());
        if !sent {
            let started = self.start()?;
            frame::send(&started, &(), &[theirs.as_fd()])?;
            *control = Some(started);
        }
        Ok(ours)
    }

    fn start(&self) -> Result<UnixStream> {
        let failed = || Error::io("start the driver helper", &self.program);
        let (ours, theirs) = UnixStream::pair().map_err(failed())?;
        let log = OpenOptions::new().append(true).create(true).open(&self.log);
        let log = log.map_err(Error::io("open", &self.log))?;
        let mut child = Command::new(&self.program)
            .arg(HELPER_ARGUMENT)
            .arg(&self.directory)
            .current_dir("/")
            // It must see all GPUs, whatever those who started the daemon were to see.
            .env_remove("CUDA_VISIBLE_DEVICES")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0)
            .spawn()
            .map_err(failed())?;
        std::thread::spawn(move || child.wait());
        Ok(ours)
    }
}

impl Recoveries {
    fn begin(&self) {
        *self.count() += 1;
    }

    fn end(&self) {
        *self.count() -= 1;
        self.done.notify_all();
    }

    fn wait(&self) {
        let under_way = |count: &mut usize| *count > 0;
        drop(self.done.wait_timeout_while(self.count(), RECOVERY_LIMIT, under_way));
    }

    fn count(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Processes that stand still as far as their GPU goes. Dropped, it lets them go on.
pub struct Hold<'a> {
    helper: &'a Helper,
    id: String,
    stream: UnixStream,
    pub held: CheckpointedProcesses,
    over: bool,
    _own: Own,
}

/// An operation that this daemon sees to, until it is dropped.
struct Own {
    all: Arc<Mutex<HashSet<String>>>,
    id: String,
}

impl Drop for Own {
    fn drop(&mut self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

impl Hold<'_> {
    /// Brings the processes back to running; CRIU must have let go of them.
    pub fn release(mut self) -> Result<Vec<Phase>> {
        self.go_on()
    }

    /// The processes have ended, as was wanted.
    pub fn forget(mut self) {
        self.over = true;
        let action = "forget processes that have ended";
        if let Err(error) = self.helper.exchange(&self.stream, action, &Request::Forget) {
            log::warn!("{}", self.helper.after(&self.id, error));
        }
    }

    fn go_on(&mut self) -> Result<Vec<Phase>> {
        self.over = true;
        let action = "let the program's GPU work go on";
        match self.helper.exchange(&self.stream, action, &Request::Release) {
            Ok(Response::Done { phases }) => Ok(phases),
            Ok(other) => Err(unexpected(action, other)),
            // What the helper did not do its successor does; then all is as it should be.
            Err(error) => match self.helper.after(&self.id, error) {
                Error::HelperEnded { .. } | Error::Helper { .. } if !self.helper.has_left(&self.id) => {
                    Ok(Vec::new())
                }
                error => Err(error),
            },
        }
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if !self.over
            && let Err(error) = self.go_on()
        {
            log::error!("after a checkpoint that failed: {error}");
        }
    }
}

fn unexpected(action: &'static str, found: Response) -> Error {
    Error::Helper { action, reason: format!("it answered {found:?}; is it of another version?") }
}
