//! GPU memory whose contents nobody will read: blocks that torch's caching allocator has free, and keeps for itself.
//!
//! ```text
//!  program's threads  ──run──┬ wait for the interpreter ┬──run, up to the next CUDA call
//!  this thread               └ quiet ─ asks torch ──────┴ the barrier is closed
//! ```
//!
//! Whoever writes to GPU memory has to ask the worker for it. So what is free when torch answers stays without contents until the
//! next request, whoever allocates it meanwhile. If there was none between the question and the closed barrier, the answer is true
//! of the moment that an image is taken of. That the interpreter is held brings the program to such a moment, and no more.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rekindle_protocol::client::{ToWorker, UnusedRange};

use super::TORCH;
use crate::python::{Held, Task, put};
use crate::quiesce;
use crate::session::Session;

/// How long all of it may take. What has no end by then is not waited for, and nothing counts as unused.
const LIMIT: Duration = Duration::from_millis(100);
/// No request for so long: threads that run without the interpreter have done what they were asked for.
const QUIET: Duration = Duration::from_micros(200);
const LOOK: Duration = Duration::from_micros(50);

/// Addresses and lengths in bytes, eight bytes each, of what is free and as long as a chunk of an image at least: a long answer
/// would have the program's memory grow in the stop. Blocks in pools of their own are left out: a graph that was captured with
/// them may read there. Where torch records who allocates, its answer would have all of that, and it is not asked.
/// `torch.cuda.memory_snapshot` makes no CUDA call, and nothing is loaded that is not.
const SCRIPT: &CStr = cr#"
import sys

def free_blocks(segment):
    if tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0):
        return
    begin = end = segment["address"]
    for block in segment["blocks"]:
        if block["state"] != "inactive":
            yield begin, end - begin
            begin = end + block["size"]
        end += block["size"]
    yield begin, end - begin

def long_ones():
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    is_recorded = getattr(getattr(torch, "_C", None), "_cuda_isHistoryEnabled", bool)
    if cuda is not None and cuda.is_initialized() and not is_recorded():
        for segment in cuda.memory_snapshot():
            for address, size in free_blocks(segment):
                if size >= 2 << 20:
                    yield address.to_bytes(8, "little") + size.to_bytes(8, "little")

found = b"".join(long_ones())
"#;

/// What was unused when the barrier closed.
#[derive(Default)]
pub struct Unused {
    ranges: Vec<UnusedRange>,
    /// Requests of the program by then.
    requests: u64,
}

/// Between the thread that asks and the one that waits for it.
#[derive(Default)]
struct Answer {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
enum State {
    #[default]
    Asked,
    Answered(Option<Unused>),
    /// Nobody waits any more.
    Over,
}

struct Question {
    session: &'static Session,
    to: Asker,
}

/// Who asks.
enum Asker {
    /// Who closes the barrier.
    Barrier(Arc<Answer>),
    /// The worker, while the program runs: what it is to be told.
    Worker(OnceLock<Vec<UnusedRange>>),
}

impl Unused {
    /// Closes the barrier, and finds out before what is unused then, if that is `wanted` and the program has torch.
    pub fn close_barrier(session: &'static Session, wanted: bool) -> Unused {
        let unused = if wanted && TORCH.is_loaded() { ask(session) } else { None };
        quiesce::close();
        unused.unwrap_or_default()
    }

    /// What is unused still: nothing if the program has asked for anything since. Call when nobody is inside.
    pub fn ranges(&self, session: &Session) -> Vec<UnusedRange> {
        if session.board.tickets() == self.requests { self.ranges.clone() } else { Vec::new() }
    }
}

/// Tells the worker what is unused while the program runs. The question has the program's memory grow by as much as it needs the
/// next time, when that would be part of a stop.
pub fn tell(session: &'static Session) {
    let question = Question { session, to: Asker::Worker(OnceLock::new()) };
    if !(TORCH.is_loaded() && put(question).is_ok()) {
        let _ = session.send(&ToWorker::Unused(Vec::new()));
    }
}

fn ask(session: &'static Session) -> Option<Unused> {
    let answer = Arc::new(Answer::default());
    put(Question { session, to: Asker::Barrier(answer.clone()) }).ok()?;
    let state = answer.state();
    let is_open = |state: &mut State| matches!(state, State::Asked);
    let waited = answer.changed.wait_timeout_while(state, LIMIT, is_open);
    let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
    match std::mem::replace(&mut *state, State::Over) {
        State::Answered(unused) => unused,
        State::Asked | State::Over => None,
    }
}

impl Task for Question {
    fn run(&self, held: Option<&Held<'_>>) {
        /// The interpreter keeps some of what the first question took, and so takes more for the second one.
        static WAS_ASKED: AtomicBool = AtomicBool::new(false);
        match &self.to {
            Asker::Worker(told) => {
                if !WAS_ASKED.swap(true, Ordering::Relaxed) {
                    let _ = held.and_then(free_blocks);
                }
                let _ = told.set(held.and_then(free_blocks).unwrap_or_default());
            }
            Asker::Barrier(answer) => {
                let look = |held| {
                    let requests = self.quiet(answer)?;
                    Some(Unused { ranges: free_blocks(held)?, requests })
                };
                answer.give(held.and_then(look));
            }
        }
    }

    /// Who waits goes on now: what the interpreter had for this thread is given back.
    fn end(&self) {
        match &self.to {
            Asker::Barrier(answer) => answer.changed.notify_all(),
            Asker::Worker(told) => {
                let told = told.get().cloned().unwrap_or_default();
                let _ = self.session.send(&ToWorker::Unused(told));
            }
        }
    }
}

impl Question {
    /// How many requests there were when there were no more; none if there are all the time.
    fn quiet(&self, answer: &Answer) -> Option<u64> {
        let mut requests = self.session.board.tickets();
        let mut since = Instant::now();
        while since.elapsed() < QUIET {
            if matches!(*answer.state(), State::Over) {
                return None;
            }
            std::thread::sleep(LOOK);
            let now = self.session.board.tickets();
            if now != requests {
                (requests, since) = (now, Instant::now());
            }
        }
        Some(requests)
    }
}

impl Answer {
    /// With the interpreter still ours the barrier is closed, if somebody waits for that.
    fn give(&self, unused: Option<Unused>) {
        let mut state = self.state();
        if matches!(*state, State::Asked) {
            if unused.is_some() {
                quiesce::close();
            }
            *state = State::Answered(unused);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn free_blocks(held: &Held<'_>) -> Option<Vec<UnusedRange>> {
    let rows = held.run(SCRIPT)?;
    let word = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).unwrap_or_default();
    let range = |row: &[u8]| UnusedRange { address: word(&row[..8]), bytes: word(&row[8..]) };
    Some(rows.chunks_exact(16).map(range).collect())
}
