//! How much GPU memory a program needs, now and in a moment: from what its former requests used at the same launch.
//!
//! ```text
//!   former requests ──▶ courses ──┐
//!   launches, first uses, frees ──┴▶ where it is ──▶ Need { now, next, used, wanted } ──▶ the context's pool
//! ```

mod course;
mod named;
mod size;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rekindle_store::{MemoryChange, RequestKinds, RequestMemory};

use course::rest_of;
pub(crate) use named::NamedBuffers;
pub(crate) use size::ready_bytes;

/// Requests with more changes are not kept.
const LONGEST: usize = 4096;

/// What one program has of one GPU's memory, as its requests go on.
pub(crate) struct Demand {
    /// Of the request that is under way; 0 between two.
    launches: AtomicU32,
    state: Mutex<Following>,
    /// Called when a request begins.
    begins: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct Following {
    courses: RequestKinds,
    request: Option<Request>,
    /// How many kinds of requests were learned.
    learned: u64,
    /// Which buffers the request has named, where that was asked for, or the last one.
    named: Option<NamedBuffers>,
}

struct Request {
    begun: Instant,
    changes: Vec<MemoryChange>,
    level: i64,
    /// There were more changes than are kept.
    is_too_long: bool,
}

/// What a program needs of a GPU, in bytes more than when its request began.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    /// At the launch that it has got to.
    pub now: i64,
    /// The most within the next interval.
    pub next: i64,
    /// What it has.
    pub used: i64,
    /// Bytes of each first use within the next interval.
    pub wanted: Vec<u64>,
}

impl Demand {
    pub(crate) fn new(begins: impl Fn() + Send + Sync + 'static) -> Demand {
        Demand { launches: AtomicU32::new(0), state: Mutex::default(), begins: Box::new(begins) }
    }

    /// The program launches a kernel or a graph.
    #[inline]
    pub(crate) fn note_launch(&self) {
        if self.launches.fetch_add(1, Ordering::Relaxed) == 0 {
            self.begin();
        }
    }

    /// Memory has come to a buffer that begins there, for a first use, or goes (less than 0).
    pub(crate) fn note(&self, at: u64, bytes: i64) {
        self.begin();
        let launch = self.launches.load(Ordering::Relaxed);
        let mut state = self.state();
        if let Some(named) = &mut state.named {
            match u64::try_from(bytes) {
                Ok(bytes) => named.come(at, bytes, launch),
                Err(_) => named.go(at),
            }
        }
        let Some(request) = &mut state.request else { return };
        request.level += bytes;
        if request.changes.len() == LONGEST {
            request.is_too_long = true;
            return;
        }
        let micros = u32::try_from(request.begun.elapsed().as_micros()).unwrap_or(u32::MAX);
        request.changes.push(MemoryChange { launch, micros, bytes });
    }

    /// From now on it is noted which buffers requests name.
    pub(crate) fn record(&self) {
        self.state().named.get_or_insert_default();
    }

    /// A request names these addresses, while so many bytes are allocated.
    pub(crate) fn note_named(&self, addresses: impl Iterator<Item = u64>, allocated: impl Fn() -> u64) {
        let launch = self.launches.load(Ordering::Relaxed);
        let mut state = self.state();
        if let Some(named) = &mut state.named {
            addresses.for_each(|address| named.name(address, launch));
            named.allocated = named.allocated.max(allocated());
        }
    }

    /// What was noted of the request, or of the last one.
    pub(crate) fn named(&self) -> Option<NamedBuffers> {
        self.state().named.clone()
    }

    fn begin(&self) {
        let mut state = self.state();
        if state.request.is_some() {
            return;
        }
        let request = Request { begun: Instant::now(), changes: Vec::new(), level: 0, is_too_long: false };
        state.request = Some(request);
        if let Some(named) = &mut state.named {
            *named = NamedBuffers::default();
        }
        drop(state);
        (self.begins)();
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.state().request.is_some()
    }

    /// The program rests: its request is over.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        let launches = self.launches.swap(0, Ordering::Relaxed);
        let Some(request) = state.request.take() else { return };
        if request.is_too_long || request.changes.is_empty() {
            return;
        }
        let is_new = state.courses.learn(RequestMemory { launches, changes: request.changes });
        state.learned += u64::from(is_new);
    }

    /// What it needs, if a request is under way. Where no former one was like it, what it has.
    pub(crate) fn need(&self, interval: Duration) -> Option<Need> {
        let state = self.state();
        let request = state.request.as_ref()?;
        let launches = self.launches.load(Ordering::Relaxed);
        let elapsed = u32::try_from(request.begun.elapsed().as_micros()).unwrap_or(u32::MAX);
        let interval = u32::try_from(interval.as_micros()).unwrap_or(u32::MAX);
        let mut need =
            Need { now: request.level, next: request.level, used: request.level, wanted: Vec::new() };
        let known = state.courses.0.iter();
        for rest in known.filter_map(|course| rest_of(course, &request.changes, launches)) {
            let next = rest.changes.first().map_or(u32::MAX, |change| change.micros);
            // It may be slower than it was then, and is not before the last change that it has had.
            let until = elapsed.clamp(rest.since.min(next), next).saturating_add(interval);
            let (mut level, mut most, mut wanted) = (rest.level, rest.level, Vec::new());
            for change in rest.changes.iter().take_while(|change| change.micros <= until) {
                level += change.bytes;
                most = most.max(level);
                wanted.extend(u64::try_from(change.bytes).ok());
            }
            need.now = need.now.max(rest.level);
            need.next = need.next.max(most);
            if wanted.iter().sum::<u64>() > need.wanted.iter().sum() {
                need.wanted = wanted;
            }
        }
        Some(need)
    }

    /// What former requests of the same program have used.
    pub(crate) fn expect(&self, courses: RequestKinds) {
        self.state().courses = courses;
    }

    /// What is known of its requests, and how many kinds of them were learned here.
    pub(crate) fn known(&self) -> (RequestKinds, u64) {
        let state = self.state();
        (state.courses.clone(), state.learned)
    }

    fn state(&self) -> MutexGuard<'_, Following> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::course::tests::course;
    use super::*;

    const SOON: Duration = Duration::from_micros(20);
    const LATE: Duration = Duration::from_secs(3600);

    #[test]
    fn a_request_that_is_known_says_what_it_will_need() {
        let begun = Arc::new(AtomicU32::new(0));
        let told = begun.clone();
        let demand = Demand::new(move || {
            told.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(demand.need(LATE), None);
        let slow = 1_000_000_000;
        demand.expect(RequestKinds(vec![course(&[
            (1, 0, 5),
            (2, slow, 7),
            (3, slow, -5),
            (4, slow + 1, 8),
        ])]));
        demand.note_launch();
        demand.note(64, 5);
        assert_eq!(demand.need(SOON), Some(Need { now: 5, next: 5, used: 5, wanted: vec![] }));
        assert_eq!(demand.need(LATE), Some(Need { now: 5, next: 15, used: 5, wanted: vec![7, 8] }));
        demand.note_launch();
        demand.note(128, 6);
        assert_eq!(demand.need(LATE), Some(Need { now: 11, next: 11, used: 11, wanted: vec![] }));
        demand.end();
        assert!(!demand.is_under_way() && begun.load(Ordering::Relaxed) == 1);
        // Now that kind is known too.
        demand.note_launch();
        let (known, learned) = demand.known();
        assert_eq!((known.0.len(), learned, known.0[1].launches), (2, 1, 2));
        assert_eq!(demand.need(LATE).map(|need| need.next), Some(15));
    }

    #[test]
    fn what_is_too_long_or_needs_nothing_is_not_learned() {
        let demand = Demand::new(|| ());
        (0..=LONGEST).for_each(|_| demand.note(64, 1));
        assert_eq!(demand.need(SOON).map(|need| need.used), Some(LONGEST as i64 + 1));
        demand.end();
        demand.note_launch();
        demand.end();
        assert_eq!(demand.known(), (RequestKinds::default(), 0));
    }
}
