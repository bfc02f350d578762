//! Obeys the daemon.
//!
//! One connection is served at a time. If it closes between `Quiesce` and `Resume`, the daemon has died or given the
//! checkpoint up, and the worker undoes it.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rekindle_protocol::client::ToClient;
use rekindle_protocol::frame::{self, FrameError};
use rekindle_protocol::peer;
use rekindle_protocol::worker::{Phase, Recording, Request, Response, Status};

use crate::dispatch::{Dispatcher, Ended, Remote};
use crate::image::{self, LeftMemory, Loading};
use crate::keeper;
use crate::link::Link;
use crate::ondemand::{self, Conversations, Daemon, wait_for_parting, wait_readable};

mod client;
mod images;
mod standstill;

/// A worker that nobody needs ends after this time.
const LONELY: Duration = Duration::from_secs(60);

pub(crate) struct Control {
    listener: UnixListener,
    remote: Remote,
    link: Arc<Link>,
    /// It waits in a pool, and whoever connects is its daemon.
    spare: bool,
    /// What a dead daemon leaves to undo.
    quiesced: bool,
    detached: Option<i32>,
    /// The client is from before this worker, and waits for `Resume`.
    held_back: bool,
    /// Memory that is to outlive this worker, or has outlived the one before.
    left: LeftMemory,
    /// What goes with the next answer.
    along: Vec<OwnedFd>,
    conversations: Arc<Conversations>,
    /// How the next restore loads.
    demand: Option<Demand>,
}

/// See [`Request::OnDemand`].
#[derive(Default)]
struct Demand {
    run_ahead: bool,
    order: Vec<String>,
    record: Recording,
    journal: Option<OwnedFd>,
}

impl Control {
    pub(crate) fn new(
        listener: UnixListener,
        remote: Remote,
        link: Arc<Link>,
        spare: bool,
        conversations: Arc<Conversations>,
    ) -> Control {
        Control {
            listener,
            remote,
            link,
            spare,
            quiesced: false,
            detached: None,
            held_back: false,
            left: LeftMemory::new(),
            along: Vec::new(),
            conversations,
            demand: None,
        }
    }

    /// Goes on with a daemon that waits for its answer to [`Request::Loaded`].
    pub(crate) fn go_on(mut self, stream: &UnixStream, waits: bool) {
        *self.conversations.daemon() = Daemon { stream: Some(stream.as_raw_fd()), waits };
        let goes_on = !waits || self.answer_loaded(stream);
        if goes_on {
            self.serve(stream);
        }
        *self.conversations.daemon() = Daemon::default();
        self.run();
    }

    pub(crate) fn run(mut self) {
        let mut lonely_since = Instant::now();
        loop {
            if is_waiting(&self.listener, Duration::from_secs(1)) {
                match self.accept() {
                    Ok(Some(stream)) => self.serve(&stream),
                    Ok(None) => continue,
                    Err(error) => log::warn!("cannot take a connection: {error}"),
                }
                *self.conversations.daemon() = Daemon::default();
                self.undo();
                if self.spare {
                    return self.remote.end(Ended::Done);
                }
                lonely_since = Instant::now();
            } else if self.spare && poll(libc::STDIN_FILENO, 0, 0) & (libc::POLLHUP | libc::POLLERR) != 0 {
                // The daemon died before it connected.
                return self.remote.end(Ended::Done);
            } else if !self.link.is_connected() && lonely_since.elapsed() > LONELY {
                return self.remote.end(Ended::Failed("no daemon and no client has come".to_string()));
            }
        }
    }

    /// None if it was nobody who may ask for anything.
    fn accept(&self) -> std::io::Result<Option<UnixStream>> {
        let mut daemon = self.conversations.daemon();
        let (stream, _) = self.listener.accept()?;
        if !peer::is_beside(&stream) {
            log::warn!("a process of the sandbox is sent away that came where the daemon does");
            return Ok(None);
        }
        daemon.stream = Some(stream.as_raw_fd());
        Ok(Some(stream))
    }

    /// False if the connection is no more.
    fn answer_loaded(&self, stream: &UnixStream) -> bool {
        let loaded = self.await_loaded();
        let mut daemon = self.conversations.daemon();
        daemon.waits = false;
        let response = loaded.clone().map_or_else(Response::Failed, |phases| Response::Restored { phases });
        let sent = frame::send(stream, &response, &[]);
        self.remote.heard();
        if let Err(problem) = loaded {
            if let Some(client) = self.link.socket().filter(|_| sent.is_ok()) {
                wait_for_parting(&client);
            }
            self.remote.end(Ended::Failed(problem));
        }
        sent.is_ok()
    }

    fn serve(&mut self, stream: &UnixStream) {
        let conversations = self.conversations.clone();
        loop {
            wait_readable(stream);
            let mut turn = conversations.daemon();
            let (request, descriptors) = match frame::receive::<Request>(stream) {
                Ok(received) => received,
                Err(FrameError::Closed) => return,
                Err(error) => return log::warn!("the daemon's connection: {error}"),
            };
            if matches!(request, Request::Loaded) {
                turn.waits = true;
                drop(turn);
                if !self.answer_loaded(stream) {
                    return;
                }
                continue;
            }
            let end = matches!(request, Request::Shutdown);
            let sleep = matches!(request, Request::Sleep);
            let response = self.obey(request, descriptors, stream).unwrap_or_else(Response::Failed);
            if let Response::Failed(problem) = &response {
                log::warn!("a request of the daemon failed: {problem}");
            }
            let along: Vec<OwnedFd> = std::mem::take(&mut self.along);
            let along: Vec<_> = along.iter().map(AsFd::as_fd).collect();
            let sent = frame::send(stream, &response, &along);
            self.remote.heard();
            if end {
                self.remote.end(Ended::Done);
            }
            if let Err(error) = sent {
                return log::warn!("the daemon's connection: {error}");
            }
            if sleep && matches!(response, Response::Done) {
                return log::error!("the worker stays awake: {}", self.sleep());
            }
        }
    }

    fn obey(
        &mut self,
        request: Request,
        descriptors: Vec<OwnedFd>,
        stream: &UnixStream,
    ) -> Result<Response, String> {
        match request {
            Request::Status => self.status().map(Response::Status),
            Request::Take => self.take(descriptors).and_then(|()| self.status().map(Response::Status)),
            Request::Prepare { image, register } => {
                self.work(stream, move |dispatcher, _| image::prepare(dispatcher, image.as_ref(), register))?;
                Ok(Response::Done)
            }
            // A sandbox that has taken this worker meanwhile has no use for them.
            Request::Survey { .. } | Request::LoadAhead { .. } if !self.spare => {
                Err("this worker is in use".to_string())
            }
            Request::Survey { image } => {
                let (modules, course) =
                    self.work(stream, move |dispatcher, _| image::survey(dispatcher, image.as_ref()))?;
                Ok(Response::Surveyed { modules, course })
            }
            Request::LoadAhead { image, key } => {
                self.work(stream, move |dispatcher, _| image::load_ahead(dispatcher, image.as_ref(), &key))?;
                Ok(Response::Done)
            }
            Request::UnloadAhead { keys } => {
                self.remote.ask(move |dispatcher| {
                    dispatcher.ahead.forget(&keys);
                    dispatcher.client.bind_anew();
                })?;
                Ok(Response::Done)
            }
            Request::Serve { run_directory } => self.welcome(run_directory.into(), descriptors),
            Request::Quiesce { limit_ms, leave_memory } => {
                self.quiesce(Duration::from_millis(limit_ms), leave_memory).map(Response::Quiesced)
            }
            Request::Detach { pid, limit_ms } => self.detach(pid, limit_ms),
            Request::Attach { pid } => self.attach(pid),
            Request::Save { staging, leave_memory } => self.save(stream, staging.into(), leave_memory),
            Request::SavePinned { staging } => self.save_pinned(stream, staging.into()),
            Request::Sleep if self.quiesced && self.link.is_connected() => Ok(Response::Done),
            Request::Sleep => Err("only a program that stands still can be put to sleep".to_string()),
            Request::HandOver { .. } => Err("this worker is awake and keeps nothing".to_string()),
            Request::Memory { names } => {
                self.left.extend(names.into_iter().zip(descriptors));
                Ok(Response::Done)
            }
            Request::Cache { memories, register } => self.take_cache(memories, descriptors, register),
            Request::LeaveCaches => {
                self.remote.ask(|dispatcher| {
                    dispatcher.cache.leave();
                    dispatcher.client.bind_anew();
                })?;
                Ok(Response::Done)
            }
            Request::MakeCacheMemory { memory } => {
                let made =
                    self.work(stream, move |dispatcher, _| image::make_cache_memory(dispatcher, memory))?;
                self.along.push(made);
                Ok(Response::Made)
            }
            Request::FillCache { image, memory, into, cached } => {
                let descriptor = descriptors.into_iter().next().ok_or("no memory came along")?;
                self.fill_cache(stream, image.into(), (memory, descriptor), into, cached)
            }
            Request::OnDemand { run_ahead, order, record } => {
                let journal = descriptors.into_iter().next();
                self.demand = Some(Demand { run_ahead, order, record, journal });
                Ok(Response::Done)
            }
            Request::Unwritten { image, cheaply } => {
                let names = self.work(stream, move |dispatcher, stop| {
                    image::unwritten(dispatcher, image.as_ref(), cheaply, stop)
                })?;
                Ok(Response::Unwritten { names })
            }
            Request::Mark => {
                self.unshare()?;
                self.work(stream, image::mark)?;
                Ok(Response::Done)
            }
            Request::Unshare => self.unshare().map(|()| Response::Done),
            Request::Uses => {
                let names =
                    self.remote.ask(|dispatcher| dispatcher.uses.as_ref().map(|uses| uses.names()))?;
                let names = names.ok_or("this worker was not asked to record what is used first")?;
                Ok(Response::Uses { names })
            }
            Request::Restore { image, run_directory, cached } => {
                self.restore(stream, image.into(), run_directory.into(), cached)
            }
            Request::Replace { image, run_directory } => {
                let remote = self.remote.clone();
                let phases = self.work(stream, move |dispatcher, _| {
                    ondemand::restore(dispatcher, image.as_ref(), run_directory.into(), &remote)
                })?;
                Ok(Response::Restored { phases })
            }
            Request::GoOn { pid } => self.go_on_with(pid, descriptors),
            Request::Loaded => Err("what is loaded is told beside other requests only".to_string()),
            Request::Adopt { pid, driver_attached: _ } => self.adopt(pid, descriptors),
            Request::Resume { restored, driver_attached } => self.resume(restored, driver_attached),
            Request::Shutdown => Ok(Response::Done),
        }
    }

    fn status(&self) -> Result<Status, String> {
        let status = self.remote.ask(|dispatcher| dispatcher.client.status())?;
        Ok(Status { held_back: self.held_back, ..status })
    }

    /// Returns only if it does not work, with the reason; the client is then to go on.
    fn sleep(&mut self) -> String {
        let Some(client) = self.link.socket() else { return "the client has gone".to_string() };
        let status = match self.status() {
            Ok(status) => status,
            Err(problem) => return problem,
        };
        self.link.send(&ToClient::Sleep);
        let memory = std::mem::take(&mut self.left);
        keeper::become_one(&self.listener, &client, memory, status)
    }

    /// Kernels print to the descriptor from now on; the daemon's end is no longer this worker's.
    fn take(&mut self, descriptors: Vec<OwnedFd>) -> Result<(), String> {
        let output = descriptors.first().ok_or("no descriptor for what kernels print came along")?;
        // SAFETY: both are open descriptors of this process, and standard output is nobody's to keep.
        if unsafe { libc::dup2(output.as_raw_fd(), libc::STDOUT_FILENO) } < 0 {
            return Err(format!("cannot print to another file: {}", std::io::Error::last_os_error()));
        }
        self.spare = false;
        Ok(())
    }

    /// Waits until no buffer is shared with other programs.
    fn unshare(&self) -> Result<(), String> {
        let (answer, outcome) = channel();
        self.remote.run(move |dispatcher| dispatcher.unshare(answer));
        outcome.recv().unwrap_or_else(|_| Err(self.remote.problem()))
    }

    /// Waits until the contents of buffers are there.
    fn await_loaded(&self) -> Result<Vec<Phase>, String> {
        let (answer, outcome) = channel();
        self.remote.run(move |dispatcher| Loading::await_outcome(dispatcher, answer));
        outcome.recv().unwrap_or_else(|_| Err(self.remote.problem()))
    }

    /// Has the dispatch thread do something long, and tells it to stop when the daemon goes away meanwhile.
    fn work<T: Send + 'static>(
        &self,
        stream: &UnixStream,
        work: impl FnOnce(&mut Dispatcher, &AtomicBool) -> Result<T, image::Error> + Send + 'static,
    ) -> Result<T, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let result = self.remote.start(move |dispatcher| work(dispatcher, &told));
        loop {
            match result.recv_timeout(Duration::from_millis(50)) {
                Ok(done) => return done.map_err(|error| error.to_string()),
                Err(RecvTimeoutError::Disconnected) => return Err(self.remote.problem()),
                Err(RecvTimeoutError::Timeout) if is_closed(stream) => stop.store(true, Ordering::Relaxed),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

fn is_waiting(socket: &impl AsRawFd, limit: Duration) -> bool {
    poll(socket.as_raw_fd(), libc::POLLIN, limit.as_millis() as i32) != 0
}

/// The other end has been closed.
fn is_closed(socket: &UnixStream) -> bool {
    poll(socket.as_raw_fd(), libc::POLLRDHUP, 0) & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
}

fn poll(descriptor: i32, events: i16, limit_ms: i32) -> i16 {
    let mut entry = libc::pollfd { fd: descriptor, events, revents: 0 };
    // SAFETY: one valid entry, borrowed for the call.
    unsafe { libc::poll(&mut entry, 1, limit_ms) };
    entry.revents
}
