//! How other threads of the worker have the dispatch thread do things.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rekindle_ring::Board;

use super::{DispatchError, Dispatcher, Ended, QuiesceLevel, Rest};

type Command = Box<dyn FnOnce(&mut Dispatcher) + Send>;

/// Has the dispatch thread do things.
#[derive(Clone)]
pub(crate) struct Remote {
    commands: Sender<Command>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    attention: AtomicBool,
    /// By which it is woken; none before there is one and once there is no dispatch thread.
    board: Mutex<Option<&'static Board>>,
    /// Why there is no dispatch thread.
    problem: OnceLock<String>,
    /// The daemon was answered after there was a problem.
    heard: AtomicBool,
}

/// The dispatch thread's end of a [`Remote`].
pub(crate) struct Inbox {
    commands: Receiver<Command>,
    shared: Arc<Shared>,
}

pub(crate) fn remote() -> (Remote, Inbox) {
    let (sender, commands) = channel();
    let shared = Arc::new(Shared::default());
    (Remote { commands: sender, shared: shared.clone() }, Inbox { commands, shared })
}

impl Shared {
    /// Held while somebody uses it.
    fn board(&self) -> MutexGuard<'_, Option<&'static Board>> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Remote {
    pub(crate) fn run(&self, command: impl FnOnce(&mut Dispatcher) + Send + 'static) {
        if self.commands.send(Box::new(command)).is_ok() {
            self.wake();
        }
    }

    /// Has the dispatch thread look at everything.
    pub(crate) fn wake(&self) {
        self.shared.attention.store(true, Ordering::Release);
        if let Some(board) = &*self.shared.board() {
            board.ring();
        }
    }

    /// Runs a command and leads its result back; the other end closes without one when the thread has ended.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        command: impl FnOnce(&mut Dispatcher) -> T + Send + 'static,
    ) -> Receiver<T> {
        let (sender, receiver) = channel();
        self.run(move |dispatcher| {
            let _ = sender.send(command(dispatcher));
        });
        receiver
    }

    /// Runs a command and waits for its result. `Err` says why there is none.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        command: impl FnOnce(&mut Dispatcher) -> T + Send + 'static,
    ) -> Result<T, DispatchError> {
        self.start(command).recv().map_err(|_| self.problem())
    }

    /// Whether no command is run any more.
    pub(crate) fn is_over(&self) -> bool {
        self.shared.problem.get().is_some()
    }

    /// Why commands are not run any more.
    pub(crate) fn problem(&self) -> DispatchError {
        let problem = self.shared.problem.get().cloned();
        DispatchError::Over(problem.unwrap_or_else(|| "the worker is ending".to_string()))
    }

    /// Waits until a program that makes no more calls has come to such a rest, or to more.
    pub(crate) fn drain(&self, wanted: QuiesceLevel, limit: Duration) -> Result<Rest, DispatchError> {
        let (answer, result) = channel();
        self.run(move |dispatcher| dispatcher.drain(wanted, limit, answer));
        result.recv().unwrap_or_else(|_| Err(self.problem()))
    }

    pub(crate) fn end(&self, how: Ended) {
        self.run(move |dispatcher| dispatcher.ended = Some(how));
    }

    /// The daemon got an answer.
    pub(crate) fn heard(&self) {
        if self.shared.problem.get().is_some() {
            self.shared.heard.store(true, Ordering::Release);
        }
    }

    /// Gives the daemon some time to ask, and so to learn the problem.
    pub(crate) fn wait_until_heard(&self) {
        let since = Instant::now();
        while !self.shared.heard.load(Ordering::Acquire) && since.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// From now on the dispatch thread can be woken through this board.
    pub(crate) fn use_board(&self, board: &'static Board) {
        let mut slot = self.shared.board();
        if self.shared.problem.get().is_none() {
            *slot = Some(board);
        }
    }
}

impl Inbox {
    /// Somebody wants something.
    pub(super) fn is_wanted(&self) -> bool {
        self.shared.attention.load(Ordering::Acquire)
    }

    /// Whether somebody has wanted something since this was asked.
    pub(super) fn is_wanted_anew(&self) -> bool {
        self.shared.attention.swap(false, Ordering::Acquire)
    }

    /// Does what was asked for so far.
    pub(crate) fn obey(&self, dispatcher: &mut Dispatcher) {
        while let Ok(command) = self.commands.try_recv() {
            command(dispatcher);
        }
    }

    /// Waits for something that is asked for, and does it; false when nobody can ask any more.
    pub(crate) fn obey_next(&self, dispatcher: &mut Dispatcher) -> bool {
        self.commands.recv().map(|command| command(dispatcher)).is_ok()
    }

    /// Runs no command, now or later: all who ask get this sentence.
    pub(crate) fn refuse(self, problem: String) {
        let _ = self.shared.problem.set(problem);
        *self.shared.board() = None;
    }
}
