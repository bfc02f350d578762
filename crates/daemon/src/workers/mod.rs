//! The daemon's side of a worker process: starting it, finding it again, asking it things.
//!
//! A worker is a process of its own that outlives the daemon; requests to it are answered one at a time. Dropping the
//! connection in the middle of a checkpoint makes the worker undo it.
//!
//! A [spare](spares) worker, as those that wait in the [`pool`](crate::pool), ends with this daemon until a sandbox takes
//! it.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use rekindle_device::Slice;
use rekindle_protocol::frame::FrameError;
use rekindle_protocol::worker::{Ask, ContextLost, GreetingError, Status, ask, socket_name};
use rekindle_sandbox::ending;

use crate::error::{Error, Result};
use crate::host::process;

mod connection;
mod error;
pub mod gpu_half;
pub mod leaving;
mod returning;
mod spares;
mod start;
mod takeover;

use connection::Connection;
pub use error::WorkerError;
use leaving::Leaving;
use returning::WorkerProcess;
pub use spares::Spares;
pub use start::{Purpose, Start};
pub use takeover::TakeoverState;

/// How long a worker may take until it listens. It opens the GPU beside that.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long a worker may take over a question that needs no GPU work. It may still be opening the GPU.
const STATUS_LIMIT: Duration = Duration::from_secs(60);

/// How one has ended that has not failed.
const ENDED: &str = "it ended";
/// How long a killed worker's end is waited for.
const KILL_LIMIT: Duration = Duration::from_secs(2);

/// How long after its connection's end a worker's own end may begin, and how long one that is dying may take to be gone.
const END_NOTICE: Duration = Duration::from_millis(500);
const DEATH: Duration = Duration::from_secs(30);

/// Where a worker is found.
#[derive(Clone)]
pub struct Address {
    /// Its number in its sandbox.
    pub number: u32,
    pub socket: PathBuf,
    /// The worker's own log.
    pub log: PathBuf,
}

impl Address {
    pub fn in_sandbox(run_directory: &Path, number: u32, log: PathBuf) -> Address {
        Address { number, socket: run_directory.join(socket_name(number)), log }
    }
}

/// What is done when a worker has ended.
pub type OnEnd = Box<dyn FnOnce(&Worker) + Send>;

/// What is done when the context has failed that its client shares with others.
pub type OnLoss = Box<dyn Fn(&Arc<Worker>, ContextLost) + Send>;

pub struct Worker {
    address: Mutex<Address>,
    connection: Mutex<Option<Connection>>,
    pid: AtomicI32,
    client: AtomicI32,
    /// Its state as it was when it was taken.
    said: Mutex<Option<Status>>,
    ended: Mutex<Option<String>>,
    on_end: Mutex<Option<OnEnd>>,
    /// The process that it serves has taken up with it, or is from before it.
    settled: AtomicBool,
    /// Somebody waits until it has loaded all, and sees to what becomes of its client if it ends.
    followed: AtomicBool,
    /// Its process serves others too.
    shared: bool,
    /// This daemon started it, and it may not listen yet. Of any other a refused connection means its end.
    starting: bool,
    /// Whose arrays its client hands on, and what workers of its GPU are started with.
    owner: Mutex<Option<(String, String)>>,
    /// The addresses that its client keeps to, if it may share contexts.
    slice: OnceLock<Slice>,
    /// Since it was told to end, until it has.
    leaving: Mutex<Option<Leaving>>,
    /// What another one would go on from, if its loss is mended.
    held: Mutex<Option<Arc<TakeoverState>>>,
    /// Its process, if this daemon has started that.
    process: Mutex<Weak<WorkerProcess>>,
    /// It is waited for that it comes back.
    awaited: AtomicBool,
}

impl Worker {
    /// Makes a spare worker that of a sandbox: moves it to its place there, and has it print to `output`.
    pub fn take(&self, address: Address, output: &Path, on_end: OnEnd) -> Result<()> {
        let output = append(output)?;
        let action = "join a sandbox";
        *lock(&self.said) = Some(self.ask(action, ask::Take {}, &[output.as_fd()])?);
        let mut own = self.lock_address();
        for (from, to) in [(&own.socket, &address.socket), (&own.log, &address.log)] {
            std::fs::rename(from, to).map_err(|source| Error::io("move", from, source))?;
        }
        *own = address;
        drop(own);
        *lock(&self.on_end) = Some(on_end);
        match self.ended() {
            Some(how) => {
                Err(WorkerError::Start { reason: self.with_words(how), log: self.address().log }.into())
            }
            None => Ok(()),
        }
    }

    /// What serves a sandbox's program in a process whose contexts others share: it listens at the address, and is no more
    /// when all is given back that the program had there.
    pub fn of_process(
        address: Address,
        process: i32,
        (on_end, on_loss): (OnEnd, OnLoss),
    ) -> Result<Arc<Worker>> {
        let mut worker = Worker::new(address, process, None, on_end);
        worker.shared = true;
        let worker = Arc::new(worker);
        let (ended, sign) = nix::unistd::pipe2(OFlag::O_CLOEXEC)
            .map_err(|errno| Error::system("make a pipe", std::io::Error::from(errno)))?;
        worker.ask("tell of its end", ask::Watch {}, &[sign.as_fd()])?;
        drop(sign);
        let watched = worker.clone();
        std::thread::spawn(move || {
            let said = BufReader::new(File::from(ended))
                .bytes()
                .map_while(std::io::Result::ok)
                .filter_map(ContextLost::of);
            said.for_each(|lost| on_loss(&watched, lost));
            // One that is being killed closes that before it is gone.
            watched.note_end(match process::is_alive(process) && !ending::is_dying(process) {
                true => ENDED.to_string(),
                false => "the process whose contexts it shared ended".to_string(),
            });
        });
        Ok(worker)
    }

    /// As [`Worker::of_process`], of one that an earlier daemon knew.
    pub fn reconnect_to_client(address: Address, client: i32, on: (OnEnd, OnLoss)) -> Result<Arc<Worker>> {
        let process = Worker::new(address.clone(), 0, None, Box::new(|_| ())).status()?.pid;
        let worker = Worker::of_process(address, process, on)?;
        worker.set_client(client);
        Ok(worker)
    }

    /// Finds the worker that an earlier daemon has started.
    pub fn reconnect(address: Address, client: i32, on_end: OnEnd) -> Result<Arc<Worker>> {
        let pid = |worker: &Worker| Ok((worker.status()?.pid, ()));
        Ok(Worker::reconnect_with(address, client, on_end, pid)?.0)
    }

    /// As [`Worker::reconnect`], of one that says its pid in answer to another question.
    pub fn reconnect_with<S>(
        address: Address,
        client: i32,
        on_end: OnEnd,
        ask: impl FnOnce(&Worker) -> Result<(i32, S)>,
    ) -> Result<(Arc<Worker>, S)> {
        let stream = UnixStream::connect(&address.socket)
            .map_err(|source| Error::io("connect to", &address.socket, source))?;
        let connection = greeted("connect to", stream)?;
        let worker = Arc::new(Worker::new(address, 0, Some(connection), on_end));
        worker.client.store(client, Ordering::Relaxed);
        let (pid, said) = ask(&worker)?;
        worker.pid.store(pid, Ordering::Relaxed);
        let watched = worker.clone();
        std::thread::spawn(move || {
            process::wait_for_end(pid);
            watched.note_end(ENDED.to_string());
        });
        Ok((worker, said))
    }

    fn new(address: Address, pid: i32, connection: Option<Connection>, on_end: OnEnd) -> Worker {
        Worker {
            address: Mutex::new(address),
            connection: Mutex::new(connection),
            pid: AtomicI32::new(pid),
            client: AtomicI32::new(0),
            said: Mutex::new(None),
            ended: Mutex::new(None),
            on_end: Mutex::new(Some(on_end)),
            settled: AtomicBool::new(true),
            followed: AtomicBool::new(false),
            shared: false,
            starting: false,
            owner: Mutex::new(None),
            slice: OnceLock::new(),
            leaving: Mutex::new(None),
            held: Mutex::new(None),
            process: Mutex::default(),
            awaited: AtomicBool::new(false),
        }
    }

    /// Its number in its sandbox.
    pub fn number(&self) -> u32 {
        self.lock_address().number
    }

    pub fn address(&self) -> Address {
        self.lock_address().clone()
    }

    pub fn pid(&self) -> i32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// The process that it serves, as the daemon sees it; 0 if it serves none.
    pub fn client(&self) -> i32 {
        self.client.load(Ordering::Relaxed)
    }

    pub fn set_client(&self, pid: i32) {
        self.client.store(pid, Ordering::Relaxed);
    }

    /// The addresses that its client keeps to in contexts that it shares.
    pub fn slice(&self) -> Option<Slice> {
        self.slice.get().copied()
    }

    pub fn set_slice(&self, slice: Slice) {
        self.slice.get_or_init(|| slice);
    }

    /// Whose arrays its client is to have and hand on.
    pub fn set_owner(&self, owner: String, gpu: &str) {
        *lock(&self.owner) = Some((owner, gpu.to_string()));
    }

    /// Tells it whose arrays its client hands on, before it has that.
    pub fn tell_owner(&self) -> Result<()> {
        let owner = lock(&self.owner).clone();
        owner.map_or(Ok(()), |(owner, gpu)| {
            self.ask("tell it whose program it serves", ask::Belong { owner, gpu }, &[])
        })
    }

    pub fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed)
    }

    pub fn set_settled(&self, settled: bool) {
        self.settled.store(settled, Ordering::Relaxed);
    }

    pub fn is_followed(&self) -> bool {
        self.followed.load(Ordering::Relaxed)
    }

    pub fn set_followed(&self, followed: bool) {
        self.followed.store(followed, Ordering::Relaxed);
    }

    /// How it ended, if it has.
    pub fn ended(&self) -> Option<String> {
        lock(&self.ended).clone()
    }

    /// Whether it has ended by itself and without a failure, as far as that was seen.
    pub fn ended_well(&self) -> bool {
        self.ended().is_some_and(|how| how == ENDED)
    }

    pub fn status(&self) -> Result<Status> {
        self.ask_within("tell its state", ask::GetStatus {}, &[], Some(STATUS_LIMIT))
    }

    /// As [`Worker::status`], of one that was taken just now: it is asked once.
    pub fn first_status(&self) -> Result<Status> {
        lock(&self.said).take().map_or_else(|| self.status(), Ok)
    }

    /// The state, unless the worker is busy with something else or slow to answer.
    pub fn glance(&self) -> Option<Status> {
        let mut connection = self.connection.try_lock().ok()?;
        let limit = Duration::from_millis(500);
        match connection.as_mut()?.ask_in_passing(ask::GetStatus {}, limit) {
            Ok(answer) => answer?.ok(),
            Err(_) => {
                *connection = None;
                None
            }
        }
    }

    /// Asks for something.
    pub fn ask<A: Ask>(
        &self,
        action: &'static str,
        request: A,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<A::Answer> {
        self.ask_within(action, request, descriptors, None)
    }

    /// As [`Worker::ask`], of one that is to answer within a limit.
    pub fn ask_within<A: Ask>(
        &self,
        action: &'static str,
        request: A,
        descriptors: &[BorrowedFd<'_>],
        limit: Option<Duration>,
    ) -> Result<A::Answer> {
        Ok(self.ask_whole(action, request, descriptors, limit)?.0)
    }

    /// Asks a keeper for what it keeps, from so many descriptors on.
    pub fn hand_over(&self, from: usize) -> Result<(Vec<String>, Vec<OwnedFd>)> {
        let action = "hand the sleeping program over";
        let (names, descriptors) = self.ask_whole(action, ask::HandOver { from }, &[], Some(STATUS_LIMIT))?;
        if names.len() != descriptors.len() {
            let reason = format!("{} descriptors came with {} names", descriptors.len(), names.len());
            return Err(WorkerError::Failed { action, reason }.into());
        }
        Ok((names, descriptors))
    }

    /// As [`Worker::ask_within`], with the descriptors that came with the answer.
    pub fn ask_whole<A: Ask>(
        &self,
        action: &'static str,
        request: A,
        descriptors: &[BorrowedFd<'_>],
        limit: Option<Duration>,
    ) -> Result<(A::Answer, Vec<OwnedFd>)> {
        let mut slot = self.lock();
        let asked = match &mut *slot {
            Some(connection) => connection.ask(request, descriptors, limit),
            none => {
                let stream = self.connect()?;
                let connection = greeted(action, stream).map_err(|error| match error {
                    Error::Workers(WorkerError::Connection { action, source }) => self.lost(action, source),
                    other => other,
                })?;
                none.insert(connection).ask(request, descriptors, limit)
            }
        };
        match asked {
            Ok((Ok(answer), descriptors)) => Ok((answer, descriptors)),
            Ok((Err(reason), _)) => Err(WorkerError::Failed { action, reason }.into()),
            Err(source) => {
                *slot = None;
                Err(self.lost(action, source))
            }
        }
    }

    /// Its next question comes by a new connection.
    pub fn hang_up(&self) {
        *self.lock() = None;
    }

    /// Waits until the worker listens: it has then understood how it was started.
    pub fn check_start(&self) -> Result<()> {
        self.connect().map(drop)
    }

    /// Why a request was not answered. A worker that ended says so in its log.
    fn lost(&self, action: &'static str, source: FrameError) -> Error {
        let began = Instant::now();
        let may_end = || match began.elapsed() {
            past if past < END_NOTICE => true,
            past => past < DEATH && self.pid() > 0 && ending::is_dying(self.pid()),
        };
        while matches!(source, FrameError::Closed) && may_end() {
            if let Some(how) = self.ended() {
                return WorkerError::Ended { action, how: self.with_words(how), log: self.address().log }
                    .into();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        WorkerError::Connection { action, source }.into()
    }

    /// Its end, once it has ended or is about to, if that did not come of its client's: it failed or was killed.
    pub fn failure(&self, action: &'static str) -> Option<Error> {
        let began = Instant::now();
        while self.ended().is_none()
            && began.elapsed() < DEATH
            && self.pid() > 0
            // Or gone, and its end not noted yet.
            && (ending::is_dying(self.pid()) || !process::is_alive(self.pid()))
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        let how = self.ended().filter(|how| how != ENDED)?;
        Some(WorkerError::Ended { action, how: self.with_words(how), log: self.address().log }.into())
    }

    /// How it ended, with the last line of its log, without the line's time and level.
    fn with_words(&self, how: String) -> String {
        let log = std::fs::read_to_string(self.address().log).unwrap_or_default();
        match log.lines().last() {
            Some(line) => {
                format!("{how}, saying: {}", line.split_once("] ").map_or(line, |(_, words)| words))
            }
            None => how,
        }
    }

    /// Ends the worker; one that does not listen any more is killed, if it serves nobody else.
    pub fn shut_down(&self) {
        if self.ended().is_some() {
            return;
        }
        self.leaves();
        let asked = self.ask_within("shut down", ask::Shutdown {}, &[], Some(Duration::from_secs(5)));
        let began = Instant::now();
        while asked.is_err() && self.ended().is_none() && began.elapsed() < END_NOTICE {
            std::thread::sleep(Duration::from_millis(1));
        }
        if asked.is_err() && self.ended().is_none() && self.pid() > 0 && !self.shared {
            let _ = nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(self.pid()),
                nix::sys::signal::Signal::SIGKILL,
            );
        }
    }

    /// Ends a worker that nobody needs at once, whatever it does. Returns when it has ended, or soon.
    pub fn kill(&self) {
        let began = Instant::now();
        if self.shared {
            self.shut_down();
        } else if self.ended().is_none() && self.pid() > 0 {
            self.leaves();
            let pid = nix::unistd::Pid::from_raw(self.pid());
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
        while self.ended().is_none() && began.elapsed() < KILL_LIMIT {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Its process is about to end, and what it has of its GPU is free then.
    fn leaves(&self) {
        let ended = lock(&self.ended);
        if ended.is_none() && !self.shared {
            lock(&self.leaving).get_or_insert_with(Leaving::begin);
        }
    }

    fn connect(&self) -> Result<UnixStream> {
        let began = Instant::now();
        loop {
            match UnixStream::connect(self.address().socket) {
                Ok(stream) => return Ok(stream),
                Err(error) => {
                    let reason = match self.ended() {
                        Some(how) => self.with_words(how),
                        None if !self.starting => format!("it does not listen any more ({error})"),
                        None if began.elapsed() > START_LIMIT => {
                            format!("it did not listen within {} s ({error})", START_LIMIT.as_secs())
                        }
                        None => {
                            std::thread::sleep(Duration::from_millis(2));
                            continue;
                        }
                    };
                    return Err(WorkerError::Start { reason, log: self.address().log }.into());
                }
            }
        }
    }

    fn note_end(&self, how: String) {
        log::info!("worker at {} (pid {}): {how}", self.address().socket.display(), self.pid());
        *lock(&self.ended) = Some(how);
        lock(&self.leaving).take();
        let on_end = lock(&self.on_end).take();
        if let Some(on_end) = on_end {
            on_end(self);
        }
    }

    fn lock_address(&self) -> MutexGuard<'_, Address> {
        lock(&self.address)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Connection>> {
        lock(&self.connection)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn append(path: &Path) -> Result<File> {
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(|source| Error::io("open", path, source))
}

/// A connection to a worker of the same version.
fn greeted(action: &'static str, stream: UnixStream) -> Result<Connection> {
    Connection::over(stream).map_err(|error| match error {
        GreetingError::Frame(source) => WorkerError::Connection { action, source }.into(),
        other => WorkerError::Failed { action, reason: other.to_string() }.into(),
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::start::describe;
    use super::*;

    #[test]
    fn the_end_of_one_that_takes_long_to_be_gone_is_told_as_its_end() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let address = Address { number: 0, socket: PathBuf::new(), log: PathBuf::new() };
        let worker = Worker::new(address, child.id() as i32, None, Box::new(|_| {}));
        child.kill().unwrap();
        let told = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(2 * END_NOTICE);
                worker.note_end(describe(child.wait().unwrap()));
            });
            worker.lost("tell its state", FrameError::Closed)
        });
        assert!(
            matches!(&told, Error::Workers(WorkerError::Ended { how, .. }) if how.contains("signal 9")),
            "{told}"
        );
    }
}
