//! Listens to the client on its control socket until it ends.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rekindle_protocol::client::{CLIENT_VERSION, OLDEST_CLIENT_VERSION, ToClient, ToWorker, is_served};
use rekindle_protocol::frame::{self, FrameError};
use rekindle_ring::{BoardMapping, Liveness, Ring};

use crate::dispatch::{Ended, Remote};
use crate::driver_half;
use crate::link::{Answer, Link};
use crate::ondemand::{Conversations, wait_for_close, wait_readable};

/// How often who has parted with its client looks whether it has it again.
const PARTED_LOOK: Duration = Duration::from_millis(5);

/// How long the driver may take to let go of a program that runs.
const RELEASE_LIMIT_MS: u32 = 5_000;

pub(crate) struct ClientThread {
    pub socket: Arc<UnixStream>,
    pub directory: PathBuf,
    pub remote: Remote,
    pub link: Arc<Link>,
    pub conversations: Arc<Conversations>,
}

impl ClientThread {
    pub(crate) fn run(self) {
        loop {
            wait_readable(&self.socket, self.link.over());
            let turn = self.conversations.client();
            if self.link.is_handed_over() {
                return;
            }
            if self.link.is_parted() {
                drop(turn);
                if wait_for_close(&self.socket, PARTED_LOOK) {
                    break;
                }
                continue;
            }
            match frame::receive::<ToWorker>(&self.socket) {
                Ok((message, descriptors)) => self.take(message, descriptors),
                Err(FrameError::Closed) => break,
                Err(error) => {
                    log::error!("the program's GPU client: {error}");
                    break;
                }
            }
        }
        self.link.disconnect();
        self.remote.run(|dispatcher| {
            if let Some(board) = dispatcher.client.board {
                board.set_client(Liveness::Dead);
            }
            dispatcher.client.remove_files();
        });
        self.remote.end(Ended::Done);
    }

    fn take(&self, message: ToWorker, descriptors: Vec<OwnedFd>) {
        match message {
            ToWorker::Board { name, version } if is_served(version) => {
                self.board(name, version, descriptors.into_iter().next());
            }
            ToWorker::Board { version, .. } => self.fail(format!(
                "the program's libcuda.so.1 speaks version {version} of the client's protocol, and this worker versions \
                 {OLDEST_CLIENT_VERSION} to {CLIENT_VERSION}; use both of one installation"
            )),
            ToWorker::Ring { index, name } => self.ring(index, name),
            ToWorker::Called { token } => self.link.called(token),
            ToWorker::Quiesced(quiesced) => self.link.answered(Answer::Quiesced(quiesced)),
            ToWorker::Busy(reason) => self.link.answered(Answer::Busy(reason)),
            ToWorker::Resumed => self.link.answered(Answer::Resumed),
            ToWorker::Attach => self.attach(),
            ToWorker::Released(released) => self.released(released),
            ToWorker::Unused(ranges) => self.link.answered(Answer::Unused(ranges)),
        }
    }

    fn board(&self, name: String, version: u32, process: Option<OwnedFd>) {
        let opened = self.file(&name).map(|path| BoardMapping::open(&path));
        match opened {
            Some(Ok(board)) => {
                board.set_worker(Liveness::Alive);
                board.set_client_version(version);
                self.remote.use_board(board);
                self.remote.run(move |dispatcher| {
                    dispatcher.client.take_board(board);
                    // It begins without an image. Letting go of them takes a while.
                    if let Some(blocks) = dispatcher.blocks.take() {
                        std::thread::spawn(move || drop(blocks));
                    }
                    dispatcher.client.board_name = name;
                    if let Some(process) = process {
                        dispatcher.client.output.of(process);
                    }
                });
            }
            Some(Err(error)) => self.fail(error.to_string()),
            None => self.fail(format!("the client named a board file {name:?}")),
        }
    }

    fn ring(&self, index: u32, name: String) {
        match self.file(&name).map(|path| Ring::open(&path)) {
            Some(Ok(ring)) => {
                let link = self.link.clone();
                self.remote.run(move |dispatcher| {
                    dispatcher.add_ring(index, name, ring);
                    link.send(&ToClient::RingReady { index });
                });
            }
            Some(Err(error)) => self.fail(error.to_string()),
            None => self.fail(format!("the client named a ring file {name:?}")),
        }
    }

    fn file(&self, name: &str) -> Option<PathBuf> {
        crate::memory::is_plain_name(name).then(|| self.directory.join(name))
    }

    /// A client that cannot be served is let go; it hears of it by the closed socket.
    fn fail(&self, problem: String) {
        self.remote.end(Ended::Failed(problem));
    }

    fn attach(&self) {
        let problem =
            driver_half::attach(&self.remote).err().map_or_else(String::new, |error| error.to_string());
        self.link.send(&ToClient::Attached { problem });
    }

    /// Detaches what the client has given up, before anything that it says after that is heard.
    fn released(&self, released: bool) {
        let detached = match released {
            true => driver_half::detach(&self.remote, None, RELEASE_LIMIT_MS).map(|()| true),
            false => Ok(false),
        };
        if detached.is_err() {
            self.link.send(&ToClient::Kept);
        }
        self.link.answered(Answer::Released(detached));
    }
}
