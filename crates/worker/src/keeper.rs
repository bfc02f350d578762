//! A worker that sleeps: it has no GPU, and keeps what its client needs to go on with another one.
//!
//! ```text
//!   worker ──exec──▶ keeper: the same process, listening at the same place
//!                      client's socket     so that the client sees no worker die
//!                      memory              descriptors of what was left on the GPU
//! ```
//!
//! A process that has used a GPU gives all of it back only when it ends, so the worker starts its own program again and
//! passes on nothing but descriptors. As a worker does, a keeper outlives the daemon and ends with its client.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rekindle_protocol::frame;
use rekindle_protocol::worker::{MOST_DESCRIPTORS, Request, Response, Status};
use serde::{Deserialize, Serialize};

use crate::image::LeftMemory;

/// The argument before the number of the descriptor that [`Belongings`] are read from.
pub(crate) const ARGUMENT: &str = "--keep";

/// What is passed on, by numbers of descriptors.
#[derive(Serialize, Deserialize)]
struct Belongings {
    listener: RawFd,
    client: RawFd,
    memory: Vec<(String, RawFd)>,
    status: Status,
}

/// Makes this process a keeper. Returns only if that does not work, with the reason.
pub(crate) fn become_one(
    listener: &UnixListener,
    client: &UnixStream,
    memory: LeftMemory,
    status: Status,
) -> String {
    let belongings = Belongings {
        listener: listener.as_raw_fd(),
        client: client.as_raw_fd(),
        memory: memory.iter().map(|(name, memory)| (name.clone(), memory.as_raw_fd())).collect(),
        status: Status {
            asleep: true,
            device_bytes: if memory.is_empty() { 0 } else { status.device_bytes },
            ..status
        },
    };
    let text = match write_down(&belongings) {
        Ok(text) => text,
        Err(error) => return format!("what it is to keep cannot be passed on: {error}"),
    };
    let passed = belongings.memory.iter().map(|(_, number)| *number);
    for number in passed.chain([belongings.listener, belongings.client, text.as_raw_fd()]) {
        // SAFETY: sets a flag of an open descriptor of ours.
        unsafe { libc::fcntl(number, libc::F_SETFD, 0) };
    }
    let name = std::env::args_os().next().unwrap_or_default();
    let number = text.as_raw_fd().to_string();
    let error = Command::new("/proc/self/exe").arg0(name).args(["worker", ARGUMENT, &number]).exec();
    format!("it cannot start again without a GPU: {error}")
}

fn write_down(belongings: &Belongings) -> std::io::Result<File> {
    // SAFETY: the name ends with a zero byte.
    let number = unsafe { libc::memfd_create(c"rekindle-keeper".as_ptr(), libc::MFD_CLOEXEC) };
    if number < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    let mut file = unsafe { File::from_raw_fd(number) };
    file.write_all(&serde_json::to_vec(belongings)?)?;
    std::io::Seek::rewind(&mut file)?;
    Ok(file)
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

fn open(number: &OsStr) -> Result<Keeper, String> {
    let number: RawFd =
        number.to_str().and_then(|text| text.parse().ok()).ok_or("the descriptor's number is none")?;
    let mut text = Vec::new();
    // SAFETY: the program that this process ran before has left this descriptor open for nothing else.
    let mut file = unsafe { File::from_raw_fd(number) };
    file.read_to_end(&mut text).map_err(|error| error.to_string())?;
    let belongings: Belongings = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    drop(file);
    // SAFETY: as above, each for one owner here.
    let own = |number| unsafe { OwnedFd::from_raw_fd(number) };
    let keeper = Keeper {
        listener: own(belongings.listener).into(),
        client: own(belongings.client).into(),
        memory: belongings.memory.into_iter().map(|(name, number)| (name, own(number))).collect(),
        status: belongings.status,
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
    /// A descriptor of the driver's that came along would hold the GPU.
    fn close_others(&self) {
        let mut kept = vec![self.listener.as_raw_fd(), self.client.as_raw_fd()];
        kept.extend(self.memory.iter().map(|(_, memory)| memory.as_raw_fd()));
        let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let numbers: Vec<RawFd> =
            entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        for number in numbers.into_iter().filter(|number| *number > 2 && !kept.contains(number)) {
            // SAFETY: nothing in this process knows the descriptor; that of the directory is closed already.
            unsafe { libc::close(number) };
        }
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
            if listener && let Ok((stream, _)) = self.listener.accept() {
                self.daemon = Some(stream);
            }
        }
    }

    /// Answers one request; false if it was the last.
    fn answer(&mut self) -> bool {
        let Some(stream) = &self.daemon else { return true };
        let (response, goes_on) = match frame::receive::<Request>(stream) {
            Ok((Request::Status, _)) => (Response::Status(self.status.clone()), true),
            Ok((Request::HandOver { from }, _)) => return self.hand_over(from),
            Ok((Request::Shutdown, _)) => (Response::Done, false),
            Ok(_) => (Response::Failed("the program's GPU half sleeps; wake it first".to_string()), true),
            Err(_) => {
                self.daemon = None;
                return true;
            }
        };
        if frame::send(stream, &response, &[]).is_err() {
            self.daemon = None;
        }
        goes_on
    }

    fn hand_over(&mut self, from: usize) -> bool {
        let Some(stream) = &self.daemon else { return true };
        let memory = self.memory.iter().map(|(name, memory)| (name.as_str(), memory.as_fd()));
        let all = std::iter::once(("", self.client.as_fd())).chain(memory);
        let (names, descriptors): (Vec<_>, Vec<_>) =
            all.skip(from).take(MOST_DESCRIPTORS).map(|(name, kept)| (name.to_string(), kept)).unzip();
        if frame::send(stream, &Response::Kept { names }, &descriptors).is_err() {
            self.daemon = None;
        }
        true
    }
}
