//! The client beside its rings: the control socket, host functions that it runs for a stream, and what it answers.

use std::collections::HashMap;
use std::io::{PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rekindle_protocol::client::{Quiesced, ToClient, UnusedRange};
use rekindle_protocol::frame;
use serde::Serialize;

use crate::control::is_closed;
use crate::driver_half::DriverHalfError;

/// The worker's one client. It exists before the client has come and after it has gone.
pub(crate) struct Link {
    state: Mutex<State>,
    /// Raised when a host function has returned or the client has gone.
    changed: Condvar,
    /// One frame at a time.
    sending: Mutex<()>,
    answer: Sender<Answer>,
    answers: Mutex<Receiver<Answer>>,
    /// Host functions that streams have and that have not returned.
    calls: AtomicUsize,
    /// Both ends of a pipe: the first is readable once the other is closed.
    over: Option<PipeReader>,
    not_over: Mutex<Option<PipeWriter>>,
}

/// A host function that a stream has, until it has returned or is not called any more.
struct HostCallGuard(Arc<Link>);

impl HostCallGuard {
    fn begin(link: &Arc<Link>) -> Self {
        link.calls.fetch_add(1, Ordering::AcqRel);
        Self(link.clone())
    }
}

impl Drop for HostCallGuard {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::AcqRel);
    }
}

#[derive(Default)]
struct State {
    socket: Option<Arc<UnixStream>>,
    gone: bool,
    /// What the client says may be for another worker.
    parted: bool,
    /// The client is another worker's until it is let go on here.
    lent: bool,
    /// It is another worker's.
    handed_over: bool,
    /// How often the host function with this token has returned and nobody has noticed yet.
    called: HashMap<u64, u32>,
}

/// What the client says to a request of ours.
#[derive(Debug)]
pub(crate) enum Answer {
    Quiesced(Quiesced),
    Unused(Vec<UnusedRange>),
    Busy(String),
    Resumed,
    /// Whether the driver half was detached.
    Released(Result<bool, DriverHalfError>),
    Gone,
}

impl Link {
    pub(crate) fn new() -> Arc<Link> {
        let (answer, answers) = channel();
        // Without it, the thread that listens to the client notices with the client's next word.
        let (over, not_over) = std::io::pipe().ok().unzip();
        Arc::new(Link {
            state: Mutex::default(),
            changed: Condvar::new(),
            sending: Mutex::new(()),
            answer,
            answers: Mutex::new(answers),
            calls: AtomicUsize::new(0),
            over,
            not_over: Mutex::new(not_over),
        })
    }

    /// Takes the client's socket. False if there was a client already: a worker serves one.
    pub(crate) fn connect(&self, socket: Arc<UnixStream>) -> bool {
        let mut state = self.state();
        let first = state.socket.is_none() && !state.gone;
        if first {
            state.socket = Some(socket);
        }
        first
    }

    /// The client's socket, while there is a client.
    pub(crate) fn socket(&self) -> Option<Arc<UnixStream>> {
        let state = self.state();
        state.socket.clone().filter(|_| !state.gone)
    }

    pub(crate) fn is_connected(&self) -> bool {
        let state = self.state();
        state.socket.is_some() && !state.gone
    }

    /// The client has gone, or has closed its end.
    pub(crate) fn is_leaving(&self) -> bool {
        let state = self.state();
        state.gone || state.socket.as_ref().is_some_and(|socket| is_closed(socket))
    }

    /// Whether what the client says is for this worker.
    pub(crate) fn set_parted(&self, parted: bool) {
        self.state().parted = parted;
    }

    pub(crate) fn is_parted(&self) -> bool {
        self.state().parted
    }

    /// Whether the client is another worker's yet, and goes on there if this one ends.
    pub(crate) fn set_lent(&self, lent: bool) {
        self.state().lent = lent;
    }

    /// This worker ends: the client finds its socket closed, if it is not another worker's.
    pub(crate) fn leave(&self) {
        let is_others = {
            let state = self.state();
            state.lent || state.handed_over
        };
        if is_others { self.hand_over() } else { self.hang_up() }
    }

    /// The client is another worker's, and its socket too.
    pub(crate) fn hand_over(&self) {
        let mut state = self.state();
        (state.handed_over, state.gone, state.socket) = (true, true, None);
        drop(state);
        self.changed.notify_all();
        *self.not_over.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Readable once the client is another worker's; none if there is no such descriptor.
    pub(crate) fn over(&self) -> Option<BorrowedFd<'_>> {
        self.over.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn is_handed_over(&self) -> bool {
        self.state().handed_over
    }

    /// The client's end is closed: nobody waits for it any more.
    pub(crate) fn disconnect(&self) {
        self.state().gone = true;
        self.changed.notify_all();
        let _ = self.answer.send(Answer::Gone);
    }

    /// Lets the client go: both sides find the socket closed.
    pub(crate) fn hang_up(&self) {
        if let Some(socket) = self.socket() {
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
        self.disconnect();
    }

    /// Sends a message; false when there is no client.
    pub(crate) fn send(&self, message: &impl Serialize) -> bool {
        let socket = self.state().socket.clone();
        let Some(socket) = socket else { return false };
        let _one = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        frame::send(&socket, message, &[]).is_ok()
    }

    pub(crate) fn answered(&self, answer: Answer) {
        let _ = self.answer.send(answer);
    }

    /// Sends a request and waits for an answer that `take` accepts; others are left over from earlier requests.
    pub(crate) fn ask<T>(
        &self,
        message: &ToClient,
        limit: Duration,
        take: impl Fn(Answer) -> Option<T>,
    ) -> Result<T, Unanswered> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        while let Ok(answer) = answers.try_recv() {
            if matches!(answer, Answer::Gone) {
                return Err(Unanswered::Gone);
            }
        }
        if !self.send(message) {
            return Err(Unanswered::Gone);
        }
        let deadline = Instant::now() + limit;
        loop {
            match answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Answer::Gone) | Err(RecvTimeoutError::Disconnected) => return Err(Unanswered::Gone),
                Err(RecvTimeoutError::Timeout) => return Err(Unanswered::Late),
                Ok(answer) => {
                    if let Some(taken) = take(answer) {
                        return Ok(taken);
                    }
                }
            }
        }
    }

    /// What a stream runs to have the client call a function: returns when the function has, or the client is gone.
    pub(crate) fn host_call(self: &Arc<Link>, token: u64) -> Box<dyn FnOnce() + Send> {
        let link = self.clone();
        let under_way = HostCallGuard::begin(self);
        Box::new(move || {
            let _under_way = under_way;
            if !link.send(&ToClient::Call { token }) {
                return;
            }
            let mut state = link.state();
            loop {
                if state.gone {
                    return;
                }
                if let Some(count) = state.called.get_mut(&token) {
                    *count -= 1;
                    if *count == 0 {
                        state.called.remove(&token);
                    }
                    return;
                }
                state = link.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        })
    }

    /// Whether a stream has a function of the client's to be called.
    pub(crate) fn has_calls(&self) -> bool {
        self.calls.load(Ordering::Acquire) != 0
    }

    /// The client's function with this token has returned.
    pub(crate) fn called(&self, token: u64) {
        *self.state().called.entry(token).or_default() += 1;
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why the client gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unanswered {
    #[error("the program has no GPU client, or it has ended")]
    Gone,
    #[error("the program's GPU client did not answer in time; it may be stopped, or blocked in a GPU call")]
    Late,
}

#[cfg(test)]
mod tests {
    use rekindle_protocol::client::ToWorker;

    use super::*;

    #[test]
    fn a_host_call_ends_when_the_client_says_so_or_dies() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let link = Link::new();
        assert!(link.connect(Arc::new(ours)));
        let call = link.host_call(7);
        let runner = std::thread::spawn(call);
        let (message, _): (ToClient, _) = frame::receive(&theirs).unwrap();
        assert!(matches!(message, ToClient::Call { token: 7 }));
        assert!(!runner.is_finished());
        frame::send(&theirs, &ToWorker::Called { token: 7 }, &[]).unwrap();
        link.called(7);
        runner.join().unwrap();

        let runner = std::thread::spawn(link.host_call(8));
        link.disconnect();
        runner.join().unwrap();
    }

    #[test]
    fn stale_answers_are_passed_over() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let link = Link::new();
        link.connect(Arc::new(ours));
        link.answered(Answer::Resumed);
        let question = ToClient::Quiesce { limit_ms: 1, unused: false };
        let asked = link.ask(&question, Duration::from_millis(10), |_| Some(()));
        assert_eq!(asked, Err(Unanswered::Late));
        link.disconnect();
        let asked = link.ask(&question, Duration::from_secs(10), |_| Some(()));
        assert_eq!(asked, Err(Unanswered::Gone));
    }
}
