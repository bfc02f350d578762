//! Obeys the daemon.
//!
//! One connection is served at a time. If it closes between `Quiesce` and `Resume`, the daemon has died or given the
//! checkpoint up, and the worker undoes it.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rekindle_protocol::frame::{self, FrameError};
use rekindle_protocol::worker::{FIRST_CLIENT, Message, Reply, Request, WorkWait, ask};

use crate::dispatch::{Ended, Remote};
use crate::image::{CodePreCopy, LeftMemory, PreCopy};
use crate::link::Link;
use crate::ondemand::{Conversations, Daemon, wait_for_parting};
use crate::succession::Succession;

mod client;
mod error;
mod images;
mod mending;
mod parting;
mod quiesce;
mod request;
mod sleep;
mod sockets;
mod watchers;

use error::ControlError;
use parting::{Giving, Parting, Waited};
pub(crate) use request::{Answer, answer, refuse};
use sockets::poll;
pub(crate) use sockets::{GREETING_LIMIT, accept, is_closed, is_waiting};
pub(crate) use watchers::Watchers;

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
    /// For what of that work the program has stood still, where it is one that goes on.
    waited: Option<WorkWait>,
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
    /// Where the worker goes when the program has ended.
    succession: Arc<Succession>,
}

/// How the next restore loads, with its journal.
type Demand = (ask::OnDemand, Option<OwnedFd>);

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
            waited: None,
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
            succession: Arc::default(),
        }
    }

    /// The worker may go on elsewhere.
    pub(crate) fn followed_by(self, succession: Arc<Succession>) -> Control {
        Control { succession, ..self }
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
            if waited == Waited::Taken || self.is_over() {
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
                if self.is_over() {
                    return self.join();
                }
                self.undo();
                if self.is_spare() {
                    return self.remote.end(Ended::Done);
                }
                lonely_since = Instant::now();
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
                if let Err(problem) = self.sleep() {
                    self.link.set_parted(false);
                    log::error!("the worker stays awake: {problem}");
                }
                return;
            }
        }
    }

    /// Nothing of the client is under way, and its requests wait.
    fn stands_still(&self) -> bool {
        self.quiesced || self.leaves
    }

    fn is_shared(&self) -> bool {
        matches!(self.kind, Kind::Shared(_))
    }

    /// The client is no more, and its process goes on.
    fn is_over(&self) -> bool {
        self.succession.has_gone() || self.is_shared() && self.remote.is_over()
    }
}
