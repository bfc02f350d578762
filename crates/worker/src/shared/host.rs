//! The process whose contexts clients share: it admits them, and ends when it has had none for a while.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rekindle_cuda::CuResult;
use rekindle_device::Slice;
use rekindle_protocol::frame::{self, FrameError};
use rekindle_protocol::worker::{Message, Portion, Request, ShareMemory, Sharing, ask};

use super::{Common, PortionError};
use crate::client::Client;
use crate::control::{self, Answer, Control, Kind, Watchers, answer, refuse};
use crate::dispatch::{Dispatcher, Ended, Inbox, Mappings, Outliving, remote};
use crate::gpu::{OpenError, OpenedDriver};
use crate::gpus::Gpus;
use crate::link::Link;
use crate::printed::ProgramOutput;
use crate::start::listen;

/// So long it waits for its first client.
const FIRST: Duration = Duration::from_secs(60);
/// So long it stays without clients at most if no daemon is there either.
const ALONE: Duration = Duration::from_secs(10);
/// How long a client's work may go on after its end before the contexts are given to nobody else.
const END_LIMIT: Duration = Duration::from_secs(2);
/// How often it is looked whether anybody connects.
const LOOK: Duration = Duration::from_millis(200);

/// Why a client is not admitted.
#[derive(Debug, thiserror::Error)]
enum AdmitError {
    #[error("this worker's contexts are shared: ask one of its clients")]
    OfAClient,
    #[error("cannot listen on {}: {source}", socket.display())]
    Listen { socket: PathBuf, source: std::io::Error },
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
    #[error("its thread has ended")]
    Ended,
    #[error(transparent)]
    Portion(#[from] PortionError),
    #[error("its context cannot be shared: {0}")]
    Context(#[source] CuResult),
}

struct Host {
    common: Arc<Common>,
    tenant: String,
    gpu: String,
    /// So long it stays without clients.
    keep: Duration,
    clients: Mutex<Clients>,
    /// Raised when a client is no more.
    changed: Condvar,
    /// How many connections there are.
    daemons: AtomicUsize,
}

struct Clients {
    served: BTreeMap<Slice, Arc<Link>>,
    /// Since when there are none.
    idle_since: Instant,
    /// Some have come.
    were_there: bool,
    /// No more are taken: the process is about to end.
    over: bool,
}

/// Serves clients until there have been none for a while, or the daemon says so.
pub fn serve(
    listener: UnixListener,
    (tenant, gpu): (String, String),
    keep: Duration,
    open: impl FnOnce() -> Result<OpenedDriver, OpenError>,
) -> Ended {
    let common = match open().and_then(Common::new) {
        Ok(common) => common,
        Err(error) => return Ended::Failed(error.to_string()),
    };
    let clients =
        Clients { served: BTreeMap::new(), idle_since: Instant::now(), were_there: false, over: false };
    let host = Arc::new(Host {
        common,
        tenant,
        gpu,
        keep,
        clients: Mutex::new(clients),
        changed: Condvar::new(),
        daemons: AtomicUsize::new(0),
    });
    while !host.is_over() {
        if !control::is_waiting(&listener, LOOK) {
            continue;
        }
        match control::accept(&listener) {
            Ok(Some(stream)) => {
                let host = host.clone();
                std::thread::spawn(move || {
                    host.daemons.fetch_add(1, Ordering::Relaxed);
                    host.obey_all(&stream);
                    host.daemons.fetch_sub(1, Ordering::Relaxed);
                });
            }
            Ok(None) => {}
            Err(error) => log::warn!("cannot take a connection: {error}"),
        }
    }
    Ended::Done
}

impl Host {
    /// Whether it is to end. Whoever comes after that is not taken any more.
    fn is_over(&self) -> bool {
        let mut clients = self.clients();
        let limit = if clients.were_there { self.keep } else { FIRST };
        let limit = if self.daemons.load(Ordering::Relaxed) > 0 { limit } else { limit.min(ALONE) };
        // Nobody else is given contexts that have failed.
        let is_needless = self.common.health.is_closed() || clients.idle_since.elapsed() > limit;
        // Work of theirs that never ends goes with the process.
        let have_gone =
            self.common.health.is_closed() && clients.served.values().all(|link| link.is_leaving());
        clients.over |= is_needless && (clients.served.is_empty() || have_gone);
        clients.over
    }

    fn obey_all(self: &Arc<Host>, stream: &UnixStream) {
        loop {
            let Message { id, request, .. } = match frame::receive(stream) {
                Ok((message, _)) => message,
                Err(FrameError::Closed) => return,
                Err(error) => return log::warn!("the daemon's connection: {error}"),
            };
            let obeyed: Result<Answer, AdmitError> = match request {
                Request::Admit(ask::Admit { listen, log, slice, portion, memory }) => {
                    let admitted = self.admit(listen.as_ref(), log.into(), (slice, portion, memory));
                    admitted.map(answer::<ask::Admit>)
                }
                Request::GetSharing(_) => Ok(answer::<ask::GetSharing>(self.sharing())),
                Request::Shutdown(_) => {
                    self.clients().over = true;
                    Ok(answer::<ask::Shutdown>(()))
                }
                _ => Err(AdmitError::OfAClient),
            };
            let sent = match obeyed {
                Ok(answer) => answer(stream, id, &[]),
                Err(error) => {
                    log::warn!("a request of the daemon failed: {error}");
                    refuse(stream, id, &error)
                }
            };
            if sent.is_err() {
                return;
            }
        }
    }

    fn sharing(&self) -> Sharing {
        Sharing { pid: std::process::id() as i32, tenant: self.tenant.clone(), gpu: self.gpu.clone() }
    }

    fn admit(
        self: &Arc<Host>,
        socket: &Path,
        log: PathBuf,
        (slice, portion, memory): (Slice, Portion, ShareMemory),
    ) -> Result<bool, AdmitError> {
        let Some(link) = self.make_room(slice) else { return Ok(false) };
        self.begin(socket, log, (slice, portion, memory), link).inspect_err(|_| self.forget(slice))?;
        Ok(true)
    }

    /// The link of a client that is to come; none if there is no room for it. One whose program has gone is about to go too.
    fn make_room(&self, slice: Slice) -> Option<Arc<Link>> {
        let until = Instant::now() + END_LIMIT;
        let mut clients = self.clients();
        while let Some(link) = clients.served.get(&slice) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || !link.is_leaving() {
                return None;
            }
            let waited = self.changed.wait_timeout(clients, left);
            clients = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if clients.over || self.common.health.is_closed() {
            return None;
        }
        let link = Link::new();
        clients.served.insert(slice, link.clone());
        clients.were_there = true;
        Some(link)
    }

    fn forget(&self, slice: Slice) {
        let mut clients = self.clients();
        clients.served.remove(&slice);
        clients.idle_since = Instant::now();
        self.changed.notify_all();
    }

    /// Makes a client, whose requests come to this socket.
    fn begin(
        self: &Arc<Host>,
        socket: &Path,
        log: PathBuf,
        (slice, portion, memory): (Slice, Portion, ShareMemory),
        link: Arc<Link>,
    ) -> Result<(), AdmitError> {
        let _ = std::fs::remove_file(socket);
        let failed = |source| AdmitError::Listen { socket: socket.to_owned(), source };
        let listener = listen(socket).map_err(failed)?;
        let (host, own, (made, outcome)) = (self.clone(), socket.to_owned(), channel());
        let spawned =
            std::thread::Builder::new().name(format!("client {}", slice.number())).spawn(move || {
                let served = Served::begin(&host, (own, log), (slice, portion, memory), link);
                let (served, told) = match served {
                    Ok(served) => (Some(served), Ok(())),
                    Err(error) => (None, Err(error)),
                };
                let _ = made.send(told);
                if let Some(served) = served {
                    served.run(listener, &host);
                }
            });
        let begun = spawned
            .map_err(AdmitError::Thread)
            .and_then(|_| outcome.recv().unwrap_or(Err(AdmitError::Ended)));
        begun.inspect_err(|_| drop(std::fs::remove_file(socket)))
    }

    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A client from its begin to its end, on its dispatch thread.
struct Served {
    dispatcher: Dispatcher,
    link: Arc<Link>,
    gpus: Arc<Gpus>,
    socket: PathBuf,
    /// Where its failure is said.
    log: PathBuf,
    slice: Slice,
}

impl Served {
    fn begin(
        host: &Host,
        (socket, log): (PathBuf, PathBuf),
        (slice, portion, memory): (Slice, Portion, ShareMemory),
        link: Arc<Link>,
    ) -> Result<Served, AdmitError> {
        let gpus = Arc::new(Gpus::for_client(&host.common, slice, portion, memory));
        let made = Client::new(gpus.clone(), ProgramOutput::default(), link.clone());
        let dispatcher = made.map(Dispatcher::new).map_err(|code| {
            gpus.close(END_LIMIT);
            gpus.refused().cloned().map_or(AdmitError::Context(code), AdmitError::Portion)
        })?;
        Ok(Served { dispatcher, link, gpus, socket, log, slice })
    }

    fn run(mut self, listener: UnixListener, host: &Host) {
        let (remote, inbox) = remote();
        let watchers = Watchers::default();
        host.common.health.tell(remote.clone());
        self.dispatcher.outliving = Some(Outliving::new(host.common.health.clone(), watchers.clone()));
        let kind = Kind::Shared(watchers.clone());
        let control = Control::new(listener, remote, self.link.clone(), kind, Arc::default());
        let control = std::thread::spawn(move || control.run());
        let again = |_: &mut Dispatcher, _: &Inbox| Ended::Failed("a fault cannot be mended".to_string());
        let ended = self.dispatcher.run(&inbox, again);
        let problem = match ended {
            Ended::Done => "the program's client is ending".to_string(),
            Ended::Failed(problem) => {
                log::error!("client {}: {problem}", self.slice.number());
                if let Err(error) = std::fs::write(&self.log, format!("{problem}\n")) {
                    log::warn!("cannot write {}: {error}", self.log.display());
                }
                problem
            }
        };
        inbox.refuse(problem);
        // The program is not to see the end of its connection where another worker goes on with it.
        match self.dispatcher.is_mended_elsewhere() {
            true => self.link.hand_over(),
            false => self.link.leave(),
        }
        self.dispatcher.client.data.stop();
        self.dispatcher.client.exchange.forget_all();
        self.dispatcher.client.ipc.stop();
        let Served { dispatcher, gpus, socket, slice, .. } = self;
        let _ = std::fs::remove_file(socket);
        if !gpus.close(END_LIMIT) {
            host.common.health.close();
            log::error!(
                "client {} has ended and its work goes on after {} s: its memory stays until that ends",
                slice.number(),
                END_LIMIT.as_secs()
            );
            tell(&watchers);
            while !gpus.close(END_LIMIT) {}
        }
        let mappings = Mappings::of(&dispatcher.client);
        drop(dispatcher);
        host.forget(slice);
        tell(&watchers);
        if control.join().is_ok() {
            // SAFETY: all that had them has ended: the dispatcher, and the threads that listen to the client and the daemon.
            unsafe { mappings.unmap() };
        }
    }
}

/// Closes what is to tell of the client's end.
fn tell(watchers: &Mutex<Vec<OwnedFd>>) {
    watchers.lock().unwrap_or_else(PoisonError::into_inner).clear();
}
