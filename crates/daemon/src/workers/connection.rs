//! The daemon's connection to a worker: one message is answered before the next is sent.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rekindle_protocol::frame::{self, FrameError};
use rekindle_protocol::worker::{Ask, FIRST_CLIENT, GreetingError, Message, Reply, greet};
use serde::de::IgnoredAny;

/// How long a worker may take to greet: it does so before it opens the GPU, once it is done with who came before.
const GREETING_LIMIT: Duration = Duration::from_secs(60);

/// What came back: the answer, or why there is none, and descriptors.
type Answered<A> = (Result<<A as Ask>::Answer, String>, Vec<OwnedFd>);

pub struct Connection {
    stream: UnixStream,
    /// The number of the last message.
    id: u64,
    /// How many answers are still to come that nobody waits for.
    late: u32,
}

impl Connection {
    /// Greets the worker at the other end.
    pub fn over(stream: UnixStream) -> Result<Connection, GreetingError> {
        greet(&stream, "daemon", "worker", GREETING_LIMIT)?;
        Ok(Connection { stream, id: 0, late: 0 })
    }

    /// Asks for something: its answer, or why there is none, with the descriptors that came along. After an error the
    /// connection is good for nothing.
    pub fn ask<A: Ask>(
        &mut self,
        request: A,
        descriptors: &[BorrowedFd<'_>],
        limit: Option<Duration>,
    ) -> Result<Answered<A>, FrameError> {
        self.send(request, descriptors)?;
        self.stream.set_read_timeout(limit)?;
        while self.late > 0 {
            frame::receive::<Reply<IgnoredAny>>(&self.stream)?;
            self.late -= 1;
        }
        self.answer::<A>()
    }

    /// As [`Connection::ask`], but not waiting longer than the limit: none if the answer, or one from before that nobody
    /// has waited for, is not there by then. The connection stays good.
    pub fn ask_in_passing<A: Ask>(
        &mut self,
        request: A,
        limit: Duration,
    ) -> Result<Option<Result<A::Answer, String>>, FrameError> {
        let until = Instant::now() + limit;
        self.send(request, &[])?;
        self.stream.set_read_timeout(None)?;
        self.late += 1;
        while has_answer(&self.stream, until)? {
            self.late -= 1;
            if self.late == 0 {
                return Ok(Some(self.answer::<A>()?.0));
            }
            frame::receive::<Reply<IgnoredAny>>(&self.stream)?;
        }
        Ok(None)
    }

    fn send<A: Ask>(&mut self, request: A, descriptors: &[BorrowedFd<'_>]) -> Result<(), FrameError> {
        self.id += 1;
        let message = Message { id: self.id, client: FIRST_CLIENT, request: request.into() };
        frame::send(&self.stream, &message, descriptors)
    }

    fn answer<A: Ask>(&self) -> Result<Answered<A>, FrameError> {
        let (Reply { id, answer }, descriptors) = frame::receive::<Reply<A::Answer>>(&self.stream)?;
        match id == self.id {
            true => Ok((answer, descriptors)),
            false => Err(FrameError::OutOfOrder { expected: self.id, found: id }),
        }
    }
}

/// Whether there is something to read before then.
fn has_answer(stream: &UnixStream, until: Instant) -> Result<bool, FrameError> {
    let left = until.saturating_duration_since(Instant::now());
    let mut entry = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
    match poll(&mut entry, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(errno) => Err(FrameError::Io(errno.into())),
    }
}

#[cfg(test)]
mod tests {
    use rekindle_protocol::worker::{Greeting, Request, Status, VERSION, ask};

    use super::*;

    #[test]
    fn an_answer_that_comes_late_is_not_taken_for_another() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        frame::send(&theirs, &Greeting { version: VERSION }, &[]).unwrap();
        let mut connection = Connection::over(ours).unwrap();
        let (_, _) = frame::receive::<Greeting>(&theirs).unwrap();
        let passing = |connection: &mut Connection| {
            connection.ask_in_passing(ask::GetStatus {}, Duration::from_millis(1)).unwrap()
        };
        assert!(passing(&mut connection).is_none() && passing(&mut connection).is_none());
        let answers = || {
            for pid in 1..=3 {
                let (Message { id, request, .. }, _) = frame::receive(&theirs).unwrap();
                assert!(matches!(request, Request::GetStatus(_)));
                let answer = Ok(Status { pid, ..Status::default() });
                frame::send(&theirs, &Reply { id, answer }, &[]).unwrap();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(answers);
            let (answer, _) = connection.ask(ask::GetStatus {}, &[], None).unwrap();
            assert_eq!(answer.unwrap().pid, 3);
        });
        assert!(passing(&mut connection).is_none());
        assert!(passing(&mut connection).is_none());
        for pid in 4..=5 {
            let (Message { id, .. }, _) = frame::receive(&theirs).unwrap();
            frame::send(&theirs, &Reply { id, answer: Ok(Status { pid, ..Status::default() }) }, &[])
                .unwrap();
        }
        drop(theirs);
        // It was not heard of in time that the worker is gone.
        assert!(passing_fails(&mut connection));
    }

    fn passing_fails(connection: &mut Connection) -> bool {
        connection.ask_in_passing(ask::GetStatus {}, Duration::from_secs(120)).is_err()
    }
}
