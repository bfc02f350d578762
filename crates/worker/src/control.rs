//! Obeys the daemon.
//!
//! One connection is served at a time. If it closes between `Quiesce` and `Resume`, the daemon has died or given the
//! checkpoint up, and the worker undoes it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rekindle_protocol::client::ToClient;
use rekindle_protocol::frame::{self, FrameError};
use rekindle_protocol::peer;
use rekindle_protocol::worker::{
    self as protocol, Ask, ContextLost, FIRST_CLIENT, GreetingError, Message, Phase, Reply, Request, Status,
    ask,
};

use crate::dispatch::{DispatchError, Dispatcher, Ended, Remote};
use crate::image::{self, CodePreCopy, LeftMemory, Loading, PreCopy};
use crate::keeper;
use crate::link::Link;
use crate::ondemand::{self, Conversations, Daemon, wait_for_parting};

mod client;
mod error;
mod images;
mod mending;
mod parting;
mod quiesce;

use error::ControlError;
use parting::{Giving, Parting, Waited};

/// How long who connects may take to greet.
pub(crate) const GREETING_LIMIT: Duration = Duration::from_secs(10);
/// A worker that nobody needs ends after this time.
const LONELY: Duration = Duration::from_secs(60);

/// Whose client it is that the daemon talks of.
pub(crate) enum Kind {
    /// The one client of the process.
    Alone,
    /// As yet nobody's: it waits in a pool, and whoever connects is its daemon.
    Spare,
    /// One of several of the process, with what is closed when nothing is left of it.
    Shared(Watchers),
}

/// Descriptors of those who want to know of a client's end.
pub(crate) type Watchers = Arc<Mutex<Vec<OwnedFd>>>;

pub(crate) struct Control {
    listener: UnixListener,
    remote: Remote,
    link: Arc<Link>,
    kind: Kind,
    /// Tells that all halves of the program are ready to sleep.
    to_sleep: Option<File>,
    /// What a dead daemon leaves to undo.
    quiesced: bool,
    /// How long a save may wait for the work that goes on while the program stands still.
    undone: Option<Duration>,
    /// That work did not end once: it may need the program, which is stopped behind it from now on.
    waits_for_work: bool,
    /// The client leaves a context that has failed: nothing of it is done, and it was not told to stand still.
    leaves: bool,
    /// The client is from before this worker, and waits for `Resume`.
    held_back: bool,
    /// It does so without having been told to.
    runs: bool,
    /// Where it is told which worker the client goes on with.
    parted: Option<Parting>,
    /// It goes on with another one, and this one ends.
    taken: bool,
    /// To tell another worker that its client goes on with this one.
    word: Option<Giving>,
    /// Memory that is to outlive this worker, or has outlived the one before.
    left: LeftMemory,
    /// What the next save finds in its image.
    code: CodePreCopy,
    ahead: PreCopy,
    /// Memory of another worker's, which the next restore copies from.
    lent: LeftMemory,
    /// Devices whose memory the next restore takes as it lies, though it is lent.
    stays: Vec<usize>,
    /// What goes with the next answer.
    along: Vec<OwnedFd>,
    conversations: Arc<Conversations>,
    /// How the next restore loads.
    demand: Option<Demand>,
    /// Listens to the client.
    client: Option<JoinHandle<()>>,
}

/// How the next restore loads, with its journal.
type Demand = (ask::OnDemand, Option<OwnedFd>);

/// What a request is answered with, to be sent with descriptors.
pub(crate) type Answer = Box<dyn FnOnce(&UnixStream, u64, &[BorrowedFd<'_>]) -> Result<(), FrameError>>;

/// The answer to a request of this type.
pub(crate) fn answer<A: Ask>(answer: A::Answer) -> Answer {
    Box::new(move |stream, id, along| frame::send(stream, &Reply { id, answer: Ok(answer) }, along))
}

pub(crate) fn refuse(stream: &UnixStream, id: u64, error: &impl std::error::Error) -> Result<(), FrameError> {
    frame::send(stream, &Reply::<()> { id, answer: Err(error.to_string()) }, &[])
}

impl Control {
    pub(crate) fn new(
        listener: UnixListener,
        remote: Remote,
        link: Arc<Link>,
        kind: Kind,
        conversations: Arc<Conversations>,
    ) -> Control {
        Control {
            listener,
            remote,
            link,
            kind,
            to_sleep: None,
            quiesced: false,
            undone: None,
            waits_for_work: false,
            leaves: false,
            held_back: false,
            runs: false,
            parted: None,
            taken: false,
            word: None,
            left: LeftMemory::new(),
            code: CodePreCopy::default(),
            ahead: PreCopy::default(),
            lent: LeftMemory::new(),
            stays: Vec::new(),
            along: Vec::new(),
            conversations,
            demand: None,
            client: None,
        }
    }

    /// Goes on with a daemon that waits for its answer to [`Request::Loaded`].
    pub(crate) fn go_on(mut self, stream: &UnixStream, waits: Option<u64>) {
        *self.conversations.daemon() = Daemon { stream: Some(stream.as_raw_fd()), waits };
        let goes_on = waits.is_none_or(|id| self.answer_loaded(stream, id));
        if goes_on {
            self.serve(stream);
        }
        *self.conversations.daemon() = Daemon::default();
        self.run();
    }

    pub(crate) fn run(mut self) {
        let mut lonely_since = Instant::now();
        loop {
            let waited = self.wait_for(&self.listener.as_raw_fd(), Some(Duration::from_secs(1)));
            if waited == Waited::Taken {
                return self.join();
            }
            if waited == Waited::Ready {
                match self.accept() {
                    Ok(Some(stream)) => self.serve(&stream),
                    Ok(None) => continue,
                    Err(error) => log::warn!("cannot take a connection: {error}"),
                }
                *self.conversations.daemon() = Daemon::default();
                if self.gives_up() {
                    return self.join();
                }
                self.undo();
                if self.is_spare() {
                    return self.remote.end(Ended::Done);
                }
                lonely_since = Instant::now();
            } else if self.is_shared() && self.remote.is_over() {
                return self.join();
            } else if self.is_forgotten() {
                self.undo();
            } else if self.is_spare() && poll(libc::STDIN_FILENO, 0, 0) & (libc::POLLHUP | libc::POLLERR) != 0
            {
                // The daemon died before it connected.
                return self.remote.end(Ended::Done);
            } else if !self.link.is_connected() && lonely_since.elapsed() > LONELY {
                return self.remote.end(Ended::Failed("no daemon and no client has come".to_string()));
            }
        }
    }

    fn is_spare(&self) -> bool {
        matches!(self.kind, Kind::Spare)
    }

    /// None if it was nobody who may ask for anything.
    fn accept(&self) -> std::io::Result<Option<UnixStream>> {
        let mut daemon = self.conversations.daemon();
        let accepted = accept(&self.listener)?;
        if let Some(stream) = &accepted {
            daemon.stream = Some(stream.as_raw_fd());
        }
        Ok(accepted)
    }

    /// Waits for the end of the thread that listens to the client, whose socket is closed.
    fn join(self) {
        if let Some(Err(_)) = self.client.map(JoinHandle::join) {
            log::error!("the thread that listens to the client has panicked");
        }
    }

    /// False if the connection is no more.
    fn answer_loaded(&self, stream: &UnixStream, id: u64) -> bool {
        let loaded = self.await_loaded().map_err(|error| error.to_string());
        let mut daemon = self.conversations.daemon();
        daemon.waits = None;
        let sent = frame::send(stream, &Reply { id, answer: loaded.clone() }, &[]);
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
            match self.wait_for(stream, None) {
                Waited::Ready => {}
                Waited::Late => continue,
                Waited::Taken => return,
            }
            let mut daemon = conversations.daemon();
            let (Message { id, client, request }, descriptors) = match frame::receive(stream) {
                Ok(received) => received,
                Err(FrameError::Closed) => return,
                Err(error) => return log::warn!("the daemon's connection: {error}"),
            };
            if matches!(request, Request::Loaded(_)) {
                daemon.waits = Some(id);
                drop(daemon);
                if !self.answer_loaded(stream, id) {
                    return;
                }
                continue;
            }
            let end = matches!(request, Request::Shutdown(_));
            let sleep = matches!(request, Request::Sleep(_));
            let obeyed = match client {
                FIRST_CLIENT => self.obey(request, descriptors, stream),
                other => Err(ControlError::NoClient(other)),
            };
            let sleep = sleep && obeyed.is_ok();
            let along: Vec<OwnedFd> = std::mem::take(&mut self.along);
            let sent = match obeyed {
                Ok(answer) => answer(stream, id, &along.iter().map(AsFd::as_fd).collect::<Vec<_>>()),
                Err(error) => {
                    log::warn!("a request of the daemon failed: {error}");
                    refuse(stream, id, &error)
                }
            };
            self.remote.heard();
            if end {
                self.remote.end(Ended::Done);
            }
            if let Err(error) = sent {
                return log::warn!("the daemon's connection: {error}");
            }
            if sleep && !self.may_sleep() {
                continue;
            }
            if sleep {
                return log::error!("the worker stays awake: {}", self.sleep());
            }
        }
    }

    fn obey(
        &mut self,
        request: Request,
        descriptors: Vec<OwnedFd>,
        stream: &UnixStream,
    ) -> Result<Answer, ControlError> {
        match request {
            Request::GetStatus(_) => self.status().map(answer::<ask::GetStatus>),
            Request::Take(_) => {
                self.take(descriptors)?;
                self.status().map(answer::<ask::Take>)
            }
            Request::Register(ask::Register { image }) => self
                .work(stream, move |dispatcher, _| image::register(dispatcher, image.as_ref()))
                .map(answer::<ask::Register>),
            Request::Serve(ask::Serve { run_directory }) => {
                self.welcome(run_directory.into(), descriptors).map(answer::<ask::Serve>)
            }
            Request::Mend(ask::Mend { store, name }) => {
                self.mend((store.into(), name), descriptors).map(answer::<ask::Mend>)
            }
            Request::TakeUp(request) => self.take_up(stream, request, descriptors).map(answer::<ask::TakeUp>),
            Request::Belong(ask::Belong { owner, gpu }) => {
                self.remote.run(move |dispatcher| dispatcher.client.exchange.belong(owner, gpu));
                Ok(answer::<ask::Belong>(()))
            }
            Request::CopyArray(ask::CopyArray { gpu, bytes, room }) => self
                .work(stream, move |dispatcher, _| {
                    let copied = dispatcher.client.copy_for_node(&gpu, (bytes, room), &descriptors);
                    copied.map_err(DispatchError::Array)
                })
                .map(answer::<ask::CopyArray>),
            Request::AwaitMoment(ask::AwaitMoment { limit_ms }) => {
                self.await_moment(Duration::from_millis(limit_ms)).map(answer::<ask::AwaitMoment>)
            }
            Request::Quiesce(ask::Quiesce { limit_ms, contents }) => {
                self.quiesce(Duration::from_millis(limit_ms), contents).map(answer::<ask::Quiesce>)
            }
            Request::Detach(ask::Detach { pid, limit_ms }) => {
                self.detach(pid, limit_ms).map(answer::<ask::Detach>)
            }
            Request::Release(ask::Release { processes, limit_ms }) => {
                self.release(&processes, limit_ms).map(answer::<ask::Release>)
            }
            Request::SaveCode(ask::SaveCode { staging }) => {
                self.save_code(staging.into()).map(answer::<ask::SaveCode>)
            }
            Request::SaveAhead(ask::SaveAhead { staging }) => {
                self.save_ahead(stream, staging.into()).map(answer::<ask::SaveAhead>)
            }
            Request::Save(ask::Save { staging, contents }) => {
                self.save(stream, staging.into(), contents).map(answer::<ask::Save>)
            }
            Request::Drain(ask::Drain { wanted }) => self.drain(stream, wanted).map(answer::<ask::Drain>),
            Request::SavePinned(ask::SavePinned { staging }) => {
                self.save_pinned(stream, staging.into()).map(answer::<ask::SavePinned>)
            }
            Request::Sleep(_) if self.is_shared() => {
                Err("a program that shares its context cannot be put to sleep".into())
            }
            Request::Sleep(_) if self.quiesced && self.link.is_connected() => {
                let pipe = descriptors.into_iter().next().ok_or("no pipe came along")?;
                self.to_sleep = Some(File::from(pipe));
                Ok(answer::<ask::Sleep>(()))
            }
            Request::Sleep(_) => Err("only a program that stands still can be put to sleep".into()),
            Request::HandOver(ask::HandOver { from }) if self.stands_still() => {
                self.hand_over(from).map(answer::<ask::HandOver>)
            }
            Request::HandOver(_) | Request::LetGo(_) => Err("this worker is awake and keeps nothing".into()),
            Request::StandStill(_) => self.stand_still().map(answer::<ask::StandStill>),
            Request::Memory(ask::Memory { names, copy, stays }) => {
                self.stays = stays;
                let memory = if copy { &mut self.lent } else { &mut self.left };
                memory.extend(names.into_iter().zip(descriptors));
                Ok(answer::<ask::Memory>(()))
            }
            Request::Cache(ask::Cache { memories, register }) => {
                self.take_cache(memories, descriptors, register).map(answer::<ask::Cache>)
            }
            Request::MakeCacheMemory(ask::MakeCacheMemory { memory }) => {
                let made =
                    self.work(stream, move |dispatcher, _| image::make_cache_memory(dispatcher, memory))?;
                self.along.push(made);
                Ok(answer::<ask::MakeCacheMemory>(()))
            }
            Request::FillCache(ask::FillCache { image, memory, into, cached }) => {
                let descriptor = descriptors.into_iter().next().ok_or("no memory came along")?;
                self.fill_cache(stream, image.into(), (memory, descriptor), into, cached)
                    .map(answer::<ask::FillCache>)
            }
            Request::OnDemand(demand) => {
                // A fault that were to be mended would end the context of others.
                let run_ahead = demand.run_ahead && !self.is_shared();
                let demand = ask::OnDemand { run_ahead, ..demand };
                self.demand = Some((demand, descriptors.into_iter().next()));
                Ok(answer::<ask::OnDemand>(()))
            }
            Request::Unwritten(ask::Unwritten { image, cheaply }) => self
                .work(stream, move |dispatcher, stop| {
                    image::unwritten(dispatcher, image.as_ref(), cheaply, stop)
                })
                .map(answer::<ask::Unwritten>),
            Request::Mark(_) => {
                self.unshare()?;
                self.work(stream, image::mark).map(answer::<ask::Mark>)
            }
            Request::Unshare(_) => self.unshare().map(answer::<ask::Unshare>),
            Request::Uses(_) => {
                let names =
                    self.remote.ask(|dispatcher| dispatcher.uses.as_ref().map(|uses| uses.names()))?;
                let names = names.ok_or("this worker was not asked to record what is used first")?;
                Ok(answer::<ask::Uses>(names))
            }
            Request::Profile(_) => Ok(answer::<ask::Profile>(self.remote.ask(Dispatcher::profile)?)),
            Request::Restore(request) => self.restore(stream, request).map(answer::<ask::Restore>),
            Request::Replace(ask::Replace { image, run_directory }) => {
                let remote = self.remote.clone();
                self.work(stream, move |dispatcher, _| {
                    ondemand::restore(dispatcher, image.as_ref(), run_directory.into(), &remote)
                })
                .map(answer::<ask::Replace>)
            }
            Request::GoOn(ask::GoOn { pid }) => self.go_on_with(pid, descriptors).map(answer::<ask::GoOn>),
            Request::Leave(_) => self.leave().map(answer::<ask::Leave>),
            Request::Part(_) => self.part(descriptors).map(answer::<ask::Part>),
            Request::TakeOver(ask::TakeOver { pid, driver_attached, next }) => {
                self.take_over(pid, driver_attached, next, descriptors).map(answer::<ask::TakeOver>)
            }
            Request::Loaded(_) => Err("what is loaded is told beside other requests only".into()),
            Request::Adopt(ask::Adopt { pid, driver_attached }) => {
                self.adopt(pid, driver_attached, descriptors).map(answer::<ask::Adopt>)
            }
            Request::Admit(_) | Request::GetSharing(_) => Err("this worker's contexts are not shared".into()),
            Request::SetPortion(ask::SetPortion { portion }) => self
                .remote
                .ask(move |dispatcher| dispatcher.client.gpus.set_portion(portion))?
                .map_err(ControlError::from)
                .map(answer::<ask::SetPortion>),
            Request::Watch(_) => self.watch(descriptors).map(answer::<ask::Watch>),
            Request::Resume(ask::Resume { restored, driver_attached }) => {
                self.resume(restored, driver_attached).map(answer::<ask::Resume>)
            }
            Request::Shutdown(_) => Ok(answer::<ask::Shutdown>(())),
        }
    }

    /// Nothing of the client is under way, and its requests wait.
    fn stands_still(&self) -> bool {
        self.quiesced || self.leaves
    }

    fn is_shared(&self) -> bool {
        matches!(self.kind, Kind::Shared(_))
    }

    fn watch(&mut self, descriptors: Vec<OwnedFd>) -> Result<(), ControlError> {
        let Kind::Shared(watchers) = &self.kind else {
            return Err("the client's end is that of its worker".into());
        };
        let watchers = watchers.clone();
        // Another daemon than this one was to have it go on elsewhere, and is no more.
        if self.parted.is_none() && !self.leaves && self.stays() {
            for watcher in &descriptors {
                let copy = watcher.try_clone().map(File::from);
                let _ = copy.and_then(|mut watcher| watcher.write_all(&[ContextLost::Told as u8]));
            }
        }
        watchers.lock().unwrap_or_else(PoisonError::into_inner).extend(descriptors);
        Ok(())
    }

    /// Whether nobody is there any more who was told of a client that it may go on elsewhere, as by a daemon that was dying
    /// and had closed its connection already.
    fn is_forgotten(&self) -> bool {
        let Kind::Shared(watchers) = &self.kind else { return false };
        let is_gone = |watcher: &OwnedFd| poll(watcher.as_raw_fd(), 0, 0) & libc::POLLERR != 0;
        let nobody = watchers.lock().unwrap_or_else(PoisonError::into_inner).iter().all(is_gone);
        let waits = || self.remote.ask(|dispatcher| dispatcher.is_leaving()).unwrap_or(false);
        nobody && self.parted.is_none() && waits()
    }

    fn status(&self) -> Result<Status, ControlError> {
        let status = self.remote.ask(|dispatcher| dispatcher.client.status())?;
        Ok(Status { held_back: self.held_back, parted: self.parted.is_some(), ..status })
    }

    /// Waits until all halves of the program are ready to sleep; false if one is not, or the daemon has died.
    fn may_sleep(&mut self) -> bool {
        let mut word = [0];
        self.to_sleep.take().is_some_and(|mut pipe| pipe.read_exact(&mut word).is_ok())
    }

    /// Returns only if it does not work, with the reason; the client is then to go on.
    fn sleep(&mut self) -> String {
        let Some(client) = self.link.socket() else { return "the client has gone".to_string() };
        let status = match self.status() {
            Ok(status) => status,
            Err(error) => return error.to_string(),
        };
        self.link.send(&ToClient::Sleep);
        let memory = std::mem::take(&mut self.left);
        keeper::become_one(&self.listener, &client, memory, status)
    }

    /// Kernels print to the descriptor from now on; the daemon's end is no longer this worker's.
    fn take(&mut self, descriptors: Vec<OwnedFd>) -> Result<(), ControlError> {
        let output = descriptors.first().ok_or("no descriptor for what kernels print came along")?;
        nix::unistd::dup2_stdout(output)
            .map_err(|error| ControlError::io("cannot print to another file")(error.into()))?;
        self.kind = Kind::Alone;
        Ok(())
    }

    /// Waits until no buffer is shared with other programs.
    fn unshare(&self) -> Result<(), ControlError> {
        let (answer, outcome) = channel();
        self.remote.run(move |dispatcher| dispatcher.unshare(answer));
        Ok(outcome.recv().unwrap_or_else(|_| Err(self.remote.problem()))?)
    }

    /// Waits until the contents of buffers are there.
    fn await_loaded(&self) -> Result<Vec<Phase>, ControlError> {
        let (answer, outcome) = channel();
        self.remote.run(move |dispatcher| Loading::await_outcome(dispatcher, answer));
        Ok(outcome.recv().map_err(|_| self.remote.problem())??)
    }

    /// Has the dispatch thread do something long, and tells it to stop when the daemon goes away meanwhile.
    fn work<T: Send + 'static, E: Into<ControlError> + Send + 'static>(
        &self,
        stream: &UnixStream,
        work: impl FnOnce(&mut Dispatcher, &AtomicBool) -> Result<T, E> + Send + 'static,
    ) -> Result<T, ControlError> {
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let result = self.remote.start(move |dispatcher| work(dispatcher, &told));
        loop {
            match result.recv_timeout(Duration::from_millis(50)) {
                Ok(done) => return done.map_err(Into::into),
                Err(RecvTimeoutError::Disconnected) => return Err(self.remote.problem().into()),
                Err(RecvTimeoutError::Timeout) if is_closed(stream) => stop.store(true, Ordering::Relaxed),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

/// Takes a connection in and greets; none if it was nobody who may ask for anything.
pub(crate) fn accept(listener: &UnixListener) -> std::io::Result<Option<UnixStream>> {
    let (stream, _) = listener.accept()?;
    if !peer::is_beside(&stream) {
        log::warn!("a process of the sandbox is sent away that came where the daemon does");
        return Ok(None);
    }
    match protocol::greet(&stream, "worker", "daemon", GREETING_LIMIT) {
        Ok(()) => Ok(Some(stream)),
        // It only wanted to know whether anybody listens.
        Err(GreetingError::Frame(FrameError::Closed)) => Ok(None),
        Err(error) => {
            log::warn!("a daemon is sent away: {error}");
            Ok(None)
        }
    }
}

pub(crate) fn is_waiting(socket: &impl AsRawFd, limit: Duration) -> bool {
    poll(socket.as_raw_fd(), libc::POLLIN, limit.as_millis() as i32) != 0
}

/// The other end has been closed.
pub(crate) fn is_closed(socket: &UnixStream) -> bool {
    poll(socket.as_raw_fd(), libc::POLLRDHUP, 0) & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
}

/// Which of these there is something to read from, or an end of, or a connection to take; none is waited for that is negative.
fn readable(sockets: [i32; 2], limit: Option<Duration>) -> [bool; 2] {
    let mut entries = sockets.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let limit_ms = limit.map_or(-1, |limit| limit.as_millis() as i32);
    // SAFETY: two valid entries, borrowed for the call.
    unsafe { libc::poll(entries.as_mut_ptr(), 2, limit_ms) };
    entries.map(|entry| entry.revents != 0)
}

fn poll(descriptor: i32, events: i16, limit_ms: i32) -> i16 {
    let mut entry = libc::pollfd { fd: descriptor, events, revents: 0 };
    // SAFETY: one valid entry, borrowed for the call.
    unsafe { libc::poll(&mut entry, 1, limit_ms) };
    entry.revents
}
