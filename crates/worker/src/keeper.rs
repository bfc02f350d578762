//! A worker that sleeps: it has no GPU, and keeps what its client needs to go on with another one.
//!
//! ```text
//!   worker ─┬─exec───▶ keeper: the same process, listening at the same place
//!           │            client's socket     so that the client sees no worker die
//!           │            memory              descriptors of what was left on the GPU, until it lies elsewhere
//!           └─spawns─▶ keeper: another process, listening there too
//!             and waits at another place, once all is given back, for a program that its context is to serve
//! ```
//!
//! The worker starts its own program again ([`successor`]) and passes on nothing but descriptors. The first way takes as long as a
//! driver takes to end a context, in which it lets others wait; the second is gone where the context [can serve another
//! program](crate::serve). As a worker does, a keeper outlives the daemon and ends with its client.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::ExitCode;

use rekindle_protocol::frame::{self, FrameError};
use rekindle_protocol::peer;
use rekindle_protocol::worker::{
    self as protocol, MOST_DESCRIPTORS, Message, Phase, Reply, Request, Status, ask,
};
use serde::{Deserialize, Serialize};

use crate::control::GREETING_LIMIT;
use crate::image::LeftMemory;
use crate::successor;

/// The argument before the number of the descriptor that [`PassedDescriptors`] are read from.
pub(crate) const ARGUMENT: &str = "--keep";

/// What is passed on, by numbers of descriptors.
#[derive(Serialize, Deserialize)]
struct PassedDescriptors {
    listener: RawFd,
    client: RawFd,
    memory: Vec<(String, RawFd)>,
    status: Status,
}

impl PassedDescriptors {
    fn new(
        listener: &UnixListener,
        client: &UnixStream,
        memory: &LeftMemory,
        status: Status,
    ) -> PassedDescriptors {
        PassedDescriptors {
            listener: listener.as_raw_fd(),
            client: client.as_raw_fd(),
            memory: memory.iter().map(|(name, memory)| (name.clone(), memory.as_raw_fd())).collect(),
            status: Status {
                asleep: true,
                device_bytes: if memory.is_empty() { 0 } else { status.device_bytes },
                ..status
            },
        }
    }

    fn numbers(&self) -> Vec<RawFd> {
        let memory = self.memory.iter().map(|(_, number)| *number);
        memory.chain([self.listener, self.client]).collect()
    }
}

/// Makes this process a keeper. Returns only if that does not work, with the reason.
pub(crate) fn become_one(
    listener: &UnixListener,
    client: &UnixStream,
    memory: &LeftMemory,
    status: Status,
) -> String {
    let belongings = PassedDescriptors::new(listener, client, memory, status);
    let error = successor::start_again(ARGUMENT, &belongings, &belongings.numbers());
    format!("it cannot start again without a GPU: {error}")
}

/// Starts a keeper beside this process: its pid.
pub(crate) fn leave_one(
    listener: &UnixListener,
    client: &UnixStream,
    memory: &LeftMemory,
    status: Status,
) -> std::io::Result<i32> {
    let belongings = PassedDescriptors::new(listener, client, memory, status);
    let keeper = successor::start_beside(ARGUMENT, &belongings, &belongings.numbers())?;
    let pid = keeper.pid();
    std::thread::spawn(move || keeper.wait());
    Ok(pid)
}

/// Runs a keeper, whose belongings are to be read from the descriptor of this number.
pub(crate) fn main(number: &OsStr) -> ExitCode {
    match open(number) {
        Ok(keeper) => {
            keeper.run();
            ExitCode::SUCCESS
        }
        Err(problem) => {
            log::error!("a worker that was to sleep could not: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn open(number: &OsStr) -> std::io::Result<Keeper> {
    let belongings: PassedDescriptors = successor::known(number)?;
    // SAFETY: the program that this process ran before has left them open, each for one owner here.
    let own = |number| unsafe { OwnedFd::from_raw_fd(number) };
    let keeper = Keeper {
        listener: own(belongings.listener).into(),
        client: own(belongings.client).into(),
        memory: belongings.memory.into_iter().map(|(name, number)| (name, own(number))).collect(),
        status: Status { pid: std::process::id() as i32, ..belongings.status },
        daemon: None,
    };
    keeper.close_others();
    Ok(keeper)
}

struct Keeper {
    listener: UnixListener,
    client: UnixStream,
    memory: Vec<(String, OwnedFd)>,
    status: Status,
    /// The newest connection; one before it is a dead daemon's.
    daemon: Option<UnixStream>,
}

impl Keeper {
    fn close_others(&self) {
        let mut kept = vec![self.listener.as_raw_fd(), self.client.as_raw_fd()];
        kept.extend(self.memory.iter().map(|(_, memory)| memory.as_raw_fd()));
        successor::close_others(&kept);
    }

    fn run(mut self) {
        loop {
            let entry = |socket: Option<BorrowedFd<'_>>, events| libc::pollfd {
                fd: socket.map_or(-1, |socket| socket.as_raw_fd()),
                events,
                revents: 0,
            };
            let mut entries = [
                entry(Some(self.listener.as_fd()), libc::POLLIN),
                entry(Some(self.client.as_fd()), libc::POLLRDHUP),
                entry(self.daemon.as_ref().map(AsFd::as_fd), libc::POLLIN),
            ];
            // SAFETY: three valid entries, borrowed for the call.
            if unsafe { libc::poll(entries.as_mut_ptr(), 3, -1) } < 0 {
                continue;
            }
            let [listener, client, daemon] = entries.map(|entry| entry.revents != 0);
            if client || daemon && !self.answer() {
                return;
            }
            if listener
                && let Ok((stream, _)) = self.listener.accept()
                && peer::is_beside(&stream)
                && greeted(&stream)
            {
                self.daemon = Some(stream);
            }
        }
    }

    /// Answers one request; false if it was the last.
    fn answer(&mut self) -> bool {
        let Some(stream) = &self.daemon else { return true };
        let Ok((Message { id, request, .. }, _)) = frame::receive(stream) else {
            self.daemon = None;
            return true;
        };
        let ends = matches!(request, Request::Shutdown(_));
        let sent = match request {
            Request::GetStatus(_) => frame::send(stream, &Reply { id, answer: Ok(&self.status) }, &[]),
            Request::HandOver(ask::HandOver { from }) => self.hand_over(stream, id, from),
            Request::LetGo(_) => {
                self.memory.clear();
                self.status.device_bytes = 0;
                frame::send(stream, &Reply { id, answer: Ok(()) }, &[])
            }
            // All was loaded before the program fell asleep: who waits for that may come to ask later.
            Request::Loaded(_) => frame::send(stream, &Reply { id, answer: Ok(Vec::<Phase>::new()) }, &[]),
            Request::Shutdown(_) => frame::send(stream, &Reply { id, answer: Ok(()) }, &[]),
            _ => {
                let problem = "the program's GPU half sleeps; wake it first".to_string();
                frame::send(stream, &Reply::<()> { id, answer: Err(problem) }, &[])
            }
        };
        if sent.is_err() {
            self.daemon = None;
        }
        !ends
    }

    fn hand_over(&self, stream: &UnixStream, id: u64, from: usize) -> Result<(), FrameError> {
        let memory = self.memory.iter().map(|(name, memory)| (name.as_str(), memory.as_fd()));
        let all = std::iter::once(("", self.client.as_fd())).chain(memory);
        let (names, descriptors): (Vec<_>, Vec<_>) =
            all.skip(from).take(MOST_DESCRIPTORS).map(|(name, kept)| (name.to_string(), kept)).unzip();
        frame::send(stream, &Reply { id, answer: Ok(names) }, &descriptors)
    }
}

fn greeted(stream: &UnixStream) -> bool {
    let greeted = protocol::greet(stream, "worker", "daemon", GREETING_LIMIT);
    greeted.inspect_err(|error| log::warn!("a daemon is sent away: {error}")).is_ok()
}
