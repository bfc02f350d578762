//! Serving a program, and then the next one in the same context.
//!
//! ```text
//!   listens ─▶ client ─▶ its program ends ─┬─▶ the process ends
//!      ▲                                   └─▶ all of it is given back ─┬─▶ something stays: the process ends
//!      └──────── at another place, as a worker that waits ◀─────────────┘
//! ```
//!
//! The second way is taken if the daemon has [asked](Succession) for it, the program has ended well, and the context can be
//! as it was before ([`NotedDevice`](crate::noted_device::NotedDevice)). Making a context takes a driver long, and ending
//! one does too, and meanwhile it lets all others of the GPU wait.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::socket::{Shutdown, shutdown};
use rekindle_protocol::fault;
use rekindle_protocol::operation::ContextReset;
use rekindle_protocol::worker::Contents;

use crate::client::Client;
use crate::control::{Control, Kind};
use crate::dispatch::{Dispatcher, Ended, Inbox, Mappings, Remote, remote};
use crate::gpu::{OpenError, OpenedDriver};
use crate::gpus::{Gpus, alone};
use crate::link::Link;
use crate::ondemand::Conversations;
use crate::printed::ProgramOutput;
use crate::shared::LinkSettings;
use crate::succession::{NextPlace, Succession};
use crate::{image, ondemand};

/// So long a program's work, and whatever does something for it, may go on after its end without the context going with it.
const END_LIMIT: Duration = Duration::from_secs(2);
/// So many programs one process serves at most: each leaves a little of the driver's own in its memory.
const MOST: u32 = 32;

/// A program's place: where it is waited for, and who listens there.
struct Place {
    /// Of how many this is.
    number: u32,
    spare: bool,
    remote: Remote,
    inbox: Inbox,
    link: Arc<Link>,
    conversations: Arc<Conversations>,
    succession: Arc<Succession>,
    /// The control thread has it too.
    listener: UnixListener,
    control: JoinHandle<()>,
}

/// Serves a client, as the daemon says that connects to `listener`, and those after it, if the daemon asks for that. `open`
/// opens the driver; the first device's context is made at once, so that it is there when the client comes.
///
/// Threads of the worker may outlast the return; the process is to end after it.
pub fn serve(listener: UnixListener, open: impl FnOnce() -> Result<OpenedDriver, OpenError>) -> Ended {
    let (ended, dispatcher) = serve_in_turn(listener, false, ProgramOutput::default(), open);
    drop(dispatcher);
    ended
}

/// As [`serve`], in a process that ends then. Whoever connects to a spare worker is its daemon.
pub(crate) fn serve_last(
    listener: UnixListener,
    spare: bool,
    open: impl FnOnce() -> Result<OpenedDriver, OpenError>,
) -> Ended {
    let (ended, dispatcher) = serve_in_turn(listener, spare, ProgramOutput::followed(), open);
    if let Some(mut dispatcher) = dispatcher
        && (dispatcher.client.ipc.is_used() || dispatcher.works_on())
    {
        // It goes with the process: a driver that is asked to take it back would wait for work that may go on.
        std::mem::forget(dispatcher);
    }
    ended
}

/// How it has ended, with what was there by then.
fn serve_in_turn(
    listener: UnixListener,
    spare: bool,
    output: ProgramOutput,
    open: impl FnOnce() -> Result<OpenedDriver, OpenError>,
) -> (Ended, Option<Box<Dispatcher>>) {
    let mut place = match Place::begin(listener, 1, spare) {
        Ok(place) => place,
        Err(problem) => return (Ended::Failed(problem), None),
    };
    let mut gpus = match open().and_then(open_gpus) {
        Ok(gpus) => Arc::new(gpus),
        Err(error) => return (place.fail(&error), None),
    };
    let mut output = output;
    loop {
        let renewed = match place.serve(gpus, output) {
            Ok(renewed) => renewed,
            Err(ended) => return ended,
        };
        gpus = Arc::new(renewed.gpus);
        let listener = match renewed.next.enter() {
            Ok(listener) => listener,
            Err(problem) => {
                log::info!("this worker ends, for nobody waits for its context: {problem}");
                return (Ended::Done, None);
            }
        };
        output = ProgramOutput::followed();
        place = match Place::begin(listener, renewed.number + 1, true) {
            Ok(place) => place,
            Err(problem) => return (Ended::Failed(problem), None),
        };
    }
}

/// GPUs of which the first has a context.
pub(crate) fn open_gpus(opened: OpenedDriver) -> Result<Gpus, OpenError> {
    Gpus::new(opened, LinkSettings::from_env()?).map_err(OpenError::Context)
}

/// A context as it was before, and where it is to wait for its next program.
struct Renewed {
    /// It has served so many programs.
    number: u32,
    gpus: Gpus,
    next: NextPlace,
}

impl Place {
    fn begin(listener: UnixListener, number: u32, spare: bool) -> Result<Place, String> {
        let (remote, inbox) = remote();
        let (link, conversations, succession) = (Link::new(), Arc::default(), Arc::default());
        let kind = if spare { Kind::Spare } else { Kind::Alone };
        let own = listener.try_clone().map_err(|error| format!("the socket cannot be shared: {error}"))?;
        let control = Control::new(own, remote.clone(), link.clone(), kind, Arc::clone(&conversations));
        let control = control.followed_by(Arc::clone(&succession));
        let control = std::thread::Builder::new().name("control".into()).spawn(move || control.run());
        let control = control.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Place { number, spare, remote, inbox, link, conversations, succession, listener, control })
    }

    /// The daemon hears why when it asks for something.
    fn fail(self, error: &OpenError) -> Ended {
        let problem = error.to_string();
        log::error!("{problem}");
        self.inbox.refuse(problem.clone());
        self.remote.wait_until_heard();
        Ended::Failed(problem)
    }

    /// Serves the client that comes. An error is how the process is to end, with what there is.
    fn serve(
        self,
        gpus: Arc<Gpus>,
        output: ProgramOutput,
    ) -> Result<Renewed, (Ended, Option<Box<Dispatcher>>)> {
        let client = match Client::new(gpus.clone(), output, self.link.clone()) {
            Ok(client) => client,
            Err(code) => return Err((self.fail(&OpenError::Context(code)), None)),
        };
        let listens = self.listener.as_raw_fd();
        let conversations = self.conversations.clone();
        let again = |dispatcher: &mut Dispatcher, inbox: &_| {
            ondemand::do_again(dispatcher, inbox, listens, &conversations)
        };
        let mut dispatcher = Dispatcher::new(client);
        if self.spare {
            dispatcher.blocks = image::blocks(&dispatcher.client, Contents::Saved);
        }
        let ended = dispatcher.run(&self.inbox, again);
        let next = self.succession.take().filter(|_| ended == Ended::Done).filter(|_| {
            let is_last = (self.number >= MOST).then_some("it has served many");
            let trace = is_last.or_else(|| dispatcher.lasting_trace(END_LIMIT));
            trace.iter().for_each(|trace| log::info!("this worker ends with its program: {trace}"));
            trace.is_none()
        });
        if next.is_some() {
            // So the driver hands out what kernels have printed.
            let _ = dispatcher.client.on(0).and_then(|device| device.synchronize());
        }
        dispatcher.client.output.end();
        let _ = fault::point("worker-ending");
        let Some(next) = next else {
            dispatcher.client.ipc.stop();
            self.inbox.refuse(match &ended {
                Ended::Done => "the worker is ending".to_string(),
                Ended::Failed(problem) => problem.clone(),
            });
            return Err((ended, Some(Box::new(dispatcher))));
        };
        let number = self.number;
        let gpus = self.clear(dispatcher, gpus).ok_or((Ended::Done, None))?;
        Ok(Renewed { number, gpus, next })
    }

    /// Gives all back that the program has had.
    fn clear(self, mut dispatcher: Dispatcher, gpus: Arc<Gpus>) -> Option<Gpus> {
        let began = Instant::now();
        self.succession.note_gone();
        self.inbox.refuse("the program of this worker has ended".to_string());
        if !self.succession.has_keeper() {
            // Whoever is about to connect is told that nobody listens.
            let _ = shutdown(self.listener.as_raw_fd(), Shutdown::Both);
        }
        // Somebody else may have its socket too, and go on with it.
        self.link.hand_over();
        let client = &mut dispatcher.client;
        client.data.stop();
        client.exchange.forget_all();
        client.reset_context(ContextReset { device: 0 }).ok()?;
        let mappings = Mappings::of(client);
        drop(dispatcher);
        let until = began + END_LIMIT;
        let gpus = alone(gpus, until)?.renew(until)?;
        let control = self.control;
        std::thread::spawn(move || {
            if control.join().is_ok() {
                // SAFETY: all that had them has ended: the dispatcher, and the threads that listen to the client and the daemon.
                unsafe { mappings.unmap() };
            }
        });
        log::info!("all that a program had is given back after {} us", began.elapsed().as_micros());
        Some(gpus)
    }
}
