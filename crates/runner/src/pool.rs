//! Which instances there are, and which of them has nothing to do.

use std::collections::VecDeque;
use std::sync::mpsc::Sender;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How many starts are remembered.
const REMEMBERED: usize = 256;

/// An instance's number.
pub type Number = u64;

struct Waiting<W> {
    number: Number,
    function: usize,
    work: Sender<W>,
}

struct State<W> {
    /// The one that has waited longest is the first.
    waiting: Vec<Waiting<W>>,
    /// Those that are counted. One whose call has used up its time is not.
    live: usize,
    lost: usize,
    /// Those that have not ended, counted or not.
    threads: usize,
    started: Number,
    starts: VecDeque<Started>,
    is_over: bool,
}

/// How long a start took, in seconds: all of it, and its stream.
#[derive(Debug, Clone, Copy)]
pub struct Started {
    pub whole: f64,
    pub stream: f64,
}

/// What becomes of a call.
pub enum Placement<W> {
    /// An instance that waits.
    Waiting(Sender<W>),
    /// A new one, with this number.
    New(Number),
    /// There are none any more.
    Over,
}

#[derive(Debug, Clone, Default)]
pub struct Counts {
    pub live: usize,
    pub waiting: usize,
    pub lost: usize,
    pub started: Number,
    pub starts: Vec<Started>,
}

/// Of instances that are given `W`.
pub struct Pool<W> {
    most: usize,
    state: Mutex<State<W>>,
    changed: Condvar,
}

impl<W> Pool<W> {
    pub fn new(most: usize) -> Pool<W> {
        let state = State {
            waiting: Vec::new(),
            live: 0,
            lost: 0,
            threads: 0,
            started: 0,
            starts: VecDeque::new(),
            is_over: false,
        };
        Pool { most, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// For a call of a function: the instance that has waited least, so that the others grow idle. Where there may be no
    /// further one, one of another function goes, or the call waits. To drop a sender is to end its instance.
    pub fn take(&self, function: usize) -> Placement<W> {
        let mut state = self.lock();
        loop {
            if state.is_over {
                return Placement::Over;
            }
            if let Some(at) = state.waiting.iter().rposition(|one| one.function == function) {
                return Placement::Waiting(state.waiting.remove(at).work);
            }
            if state.live < self.most || !state.waiting.is_empty() {
                if state.live >= self.most {
                    drop(state.waiting.remove(0));
                    state.live -= 1;
                }
                state.live += 1;
                state.threads += 1;
                state.started += 1;
                return Placement::New(state.started);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn started(&self, took: Started) {
        let mut state = self.lock();
        if state.starts.len() == REMEMBERED {
            state.starts.pop_front();
        }
        state.starts.push_back(took);
    }

    /// It waits for a call. False: it is to end.
    pub fn put_back(&self, number: Number, function: usize, work: Sender<W>) -> bool {
        let mut state = self.lock();
        if state.is_over {
            state.live -= 1;
            self.changed.notify_all();
            return false;
        }
        state.waiting.push(Waiting { number, function, work });
        self.changed.notify_all();
        true
    }

    /// It has waited for long enough. False: somebody has just taken it, or ended it.
    pub fn leave(&self, number: Number) -> bool {
        let mut state = self.lock();
        let Some(at) = state.waiting.iter().position(|one| one.number == number) else { return false };
        drop(state.waiting.remove(at));
        state.live -= 1;
        self.changed.notify_all();
        true
    }

    /// One that does not wait is to end.
    pub fn ending(&self) {
        self.lock().live -= 1;
        self.changed.notify_all();
    }

    /// Its call has used up its time: it goes on for itself, and another one may come.
    pub fn lose(&self) {
        let mut state = self.lock();
        state.live -= 1;
        state.lost += 1;
        self.changed.notify_all();
    }

    /// The call of one that was lost has come to its end.
    pub fn found(&self) {
        self.lock().lost -= 1;
        self.changed.notify_all();
    }

    /// A thread has ended, whatever it was counted as.
    pub fn ended(&self) {
        self.lock().threads -= 1;
        self.changed.notify_all();
    }

    /// Ends those that wait, and waits for all that are not lost. Whether all have ended.
    pub fn end(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        let mut state = self.lock();
        state.is_over = true;
        state.live -= state.waiting.len();
        state.waiting.clear();
        self.changed.notify_all();
        while state.threads > state.lost {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.threads == 0
    }

    pub fn counts(&self) -> Counts {
        let state = self.lock();
        Counts {
            live: state.live,
            waiting: state.waiting.len(),
            lost: state.lost,
            started: state.started,
            starts: state.starts.iter().copied().collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    fn come(pool: &Pool<u32>, function: usize) -> (Number, Receiver<u32>) {
        let Placement::New(number) = pool.take(function) else { panic!("none is to wait") };
        let (work, receiver) = channel();
        assert!(pool.put_back(number, function, work));
        (number, receiver)
    }

    #[test]
    fn the_one_that_has_waited_least_is_taken() {
        let pool = Pool::new(4);
        let Placement::New(first) = pool.take(0) else { panic!() };
        let Placement::New(second) = pool.take(0) else { panic!() };
        let ((one, _first), (other, last)) = (channel(), channel());
        pool.put_back(first, 0, one);
        pool.put_back(second, 0, other);
        let Placement::Waiting(work) = pool.take(0) else { panic!() };
        work.send(7).unwrap();
        assert_eq!(last.try_recv(), Ok(7));
        assert!(pool.leave(first) && !pool.leave(second));
        assert_eq!(pool.counts().live, 1);
    }

    #[test]
    fn one_of_another_function_goes_where_there_may_be_no_more() {
        let pool = Pool::new(1);
        let (_, old) = come(&pool, 0);
        let Placement::New(_) = pool.take(1) else { panic!() };
        assert!(old.recv().is_err(), "it is to end");
        assert_eq!((pool.counts().live, pool.counts().waiting), (1, 0));
    }

    #[test]
    fn a_call_waits_where_all_are_at_work_and_one_that_is_lost_is_not_counted() {
        let pool: Pool<u32> = Pool::new(1);
        let Placement::New(_) = pool.take(0) else { panic!() };
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| matches!(pool.take(0), Placement::New(2)));
            pool.lose();
            assert!(waits.join().unwrap());
        });
        assert_eq!((pool.counts().live, pool.counts().lost), (1, 1));
        assert!(!pool.end(Duration::ZERO), "two threads are there");
        pool.found();
        pool.ending();
        pool.ended();
        pool.ended();
        assert!(pool.end(Duration::ZERO));
        assert!(matches!(pool.take(0), Placement::Over));
    }
}
