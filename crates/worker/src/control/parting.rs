//! A client that goes on with another worker: which of the two has it is one byte in a pipe.
//!
//! ```text
//!   this worker   Quiesce ─ Save ─ Part ┄┄ reads ┄┄┬─ a byte: ends
//!                                                  └─ closed, and none came: the client goes on here
//!   the other     Restore ─ TakeOver ─ Resume: writes the byte, and lets the client go on
//! ```
//!
//! The pipe's other end is the daemon's, and then the other worker's, which ends without the byte if it loses its daemon
//! before `Resume`. So whoever dies, one of the two goes on with the client, and no daemon is needed to say which.
//!
//! Of a program with several processes that use the GPU all halves move, or none. A second pipe has a byte for each of their
//! workers, here and there, which the daemon alone can write, and writes with one call:
//!
//! ```text
//!   the daemon    ── all bytes at once ──┬─▶ those there: write their own byte, and go on; without `Resume` too
//!                                        └─▶ those here: end, though their own pipe was closed
//! ```

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rekindle_protocol::fault;
use rekindle_protocol::worker::Parted;

use super::sockets::readable;
use super::{Control, ControlError};
use crate::dispatch::{Dispatcher, Ended};

impl Control {
    /// The context has failed that the client shares, and it is to go on with another worker.
    pub(super) fn leave(&mut self) -> Result<(), ControlError> {
        self.hear_no_more();
        if self.remote.ask(|dispatcher| dispatcher.is_leaving()).is_ok_and(|is_leaving| is_leaving) {
            self.leaves = true;
            return Ok(());
        }
        self.link.set_parted(false);
        Err("only a client at rest whose context has failed goes on elsewhere".into())
    }

    pub(super) fn part(&mut self, descriptors: Vec<OwnedFd>) -> Result<Parted, ControlError> {
        if self.is_shared() && !self.leaves {
            return Err(
                "a program that shares its context can go on with another worker only when that has failed"
                    .into(),
            );
        }
        if !self.stands_still() || self.parted.is_some() {
            return Err("only a program that stands still can go on with another worker".into());
        }
        let mut words = descriptors.into_iter().map(PipeEnd::from);
        let word = words.next().ok_or("the pipe did not come along")?;
        let all = words.next();
        let client = self.link.socket().ok_or("the client has gone")?;
        let client = client.try_clone().map_err(ControlError::io("its socket cannot be shared"))?;
        let parted = self.remote.ask(|dispatcher| Parted {
            next: dispatcher.next_request(),
            driver_attached: dispatcher.client.driver_attached,
        })?;
        self.hear_no_more();
        self.along.push(client.into());
        self.parted = Some(Parting { word, all });
        Ok(parted)
    }

    /// Takes the client of another worker, which stands still.
    pub(super) fn take_over(
        &mut self,
        pid: i32,
        driver_attached: bool,
        next: u64,
        mut descriptors: Vec<OwnedFd>,
    ) -> Result<(), ControlError> {
        let all = if descriptors.len() > 2 { descriptors.pop().map(PipeEnd::from) } else { None };
        let word = descriptors.pop().ok_or("the pipe did not come along")?.into();
        self.remote.ask(move |dispatcher: &mut Dispatcher| dispatcher.go_on_with(next))??;
        self.link.set_lent(true);
        self.adopt(pid, driver_attached, descriptors)?;
        self.word = Some(Giving { word, all, driver_attached });
        Ok(())
    }

    /// The client is about to go on here, and not where it was.
    pub(super) fn give_word(&mut self) -> Result<(), ControlError> {
        let Some(Giving { mut word, mut all, .. }) = self.word.take() else { return Ok(()) };
        if all.as_mut().is_some_and(|all| !is_said(all)) {
            let problem = "a program of several processes was to go on here before all of them could";
            self.give_back(word, problem.to_string());
            return Err(problem.into());
        }
        let given = fault::point("taking-over").map_err(ControlError::from);
        let given = given.and_then(|()| match word.write_all(&[1]) {
            // The other worker has ended.
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                Err(ControlError::io("the other worker cannot be told")(error))
            }
            _ => Ok(()),
        });
        match given {
            Ok(()) => self.link.set_lent(false),
            Err(error) => {
                self.give_back(word, error.to_string());
                return Err(error);
            }
        }
        Ok(())
    }

    /// The daemon has gone before the client was let go on: it goes on where it was, or here, if all halves of the program
    /// were to by then. True if this worker ends.
    pub(super) fn gives_up(&mut self) -> bool {
        let Some(Giving { word, all, driver_attached }) = self.word.take() else { return false };
        if all.is_some_and(|mut all| is_said(&mut all)) {
            self.word = Some(Giving { word, all: None, driver_attached });
            return match self.resume(false, driver_attached) {
                Ok(()) => false,
                Err(problem) => {
                    log::error!("a program that has moved here may not go on: {problem}");
                    self.remote.is_over()
                }
            };
        }
        self.give_back(word, "the daemon has gone while a program was to move here".to_string());
        true
    }

    /// The client goes on with the other worker once the word is closed: only when this one neither hears what it says nor
    /// takes its requests.
    fn give_back(&self, word: PipeEnd, problem: String) {
        self.hear_no_more();
        let _ = self.remote.ask(move |dispatcher| dispatcher.end(Ended::Failed(problem)));
        drop(word);
    }

    /// What the client says is for the other worker; nothing of it is half read.
    pub(super) fn hear_no_more(&self) {
        let conversations = self.conversations.clone();
        let _turn = conversations.client();
        self.link.set_parted(true);
    }

    /// Waits until there is something to read, or a connection to take, within the limit; or until it is known that the client
    /// has gone on with the other worker.
    pub(super) fn wait_for(&mut self, socket: &impl AsRawFd, limit: Option<Duration>) -> Waited {
        let word =
            self.parted.as_ref().filter(|_| !self.taken).map_or(-1, |parting| parting.word.as_raw_fd());
        let [is_ready, is_known] = match self.taken {
            false => readable([socket.as_raw_fd(), word], limit),
            true => [false; 2],
        };
        if is_known && self.comes_back().is_ok() {
            self.undo();
        }
        if self.taken {
            self.remote.end(Ended::Done);
            return Waited::Taken;
        }
        if is_ready { Waited::Ready } else { Waited::Late }
    }

    /// The client is to go on here: an error if the other worker has it, or may have it yet.
    pub(super) fn comes_back(&mut self) -> Result<(), ControlError> {
        let Some(parting) = &mut self.parted else { return Ok(()) };
        let undecided = "the program may go on with another worker yet";
        self.taken = self.taken || parting.is_taken().ok_or(undecided)?;
        if self.taken {
            self.link.hand_over();
            return Err("the program has gone on with another worker".into());
        }
        self.parted = None;
        self.link.set_parted(false);
        Ok(())
    }
}

/// What a wait ended with.
#[derive(PartialEq, Eq)]
pub(super) enum Waited {
    Ready,
    Late,
    /// The client is another worker's.
    Taken,
}

/// An end of a pipe.
type PipeEnd = File;

/// Where it is told which worker a client goes on with.
pub(super) struct Parting {
    word: PipeEnd,
    /// Where that is told of all halves of the program.
    all: Option<PipeEnd>,
}

impl Parting {
    /// Whether another worker has the client; none while that is not decided.
    fn is_taken(&mut self) -> Option<bool> {
        if !readable([self.word.as_raw_fd(), -1], Some(Duration::ZERO))[0] {
            return None;
        }
        if self.word.read(&mut [0]).is_ok_and(|count| count > 0) {
            return Some(true);
        }
        // The other worker is no more: all move without it, or none does.
        self.word = match self.all.take() {
            Some(all) => all,
            None => return Some(false),
        };
        self.is_taken()
    }
}

/// What another worker is told by that its client goes on here.
pub(super) struct Giving {
    word: PipeEnd,
    /// Where it is told that all halves of the program may go on.
    all: Option<PipeEnd>,
    driver_attached: bool,
}

fn is_said(all: &mut PipeEnd) -> bool {
    readable([all.as_raw_fd(), -1], Some(Duration::ZERO))[0]
        && all.read(&mut [0]).is_ok_and(|count| count > 0)
}
