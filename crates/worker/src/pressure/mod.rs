//! A worker that lacks memory of a GPU asks the pools of other workers' shared contexts for theirs.
//!
//! ```text
//!   a worker: an allocation finds no memory ─ asks ─▶ [`page`] ─▶ every pool with idle memory gives some to the GPU
//!             ▲                                                        │
//!             └──────── tries again ◀── answered: so many bytes ───────┘
//! ```
//!
//! What pools have counts as free for all workers of the GPU, and goes before anything else that could be given back: waiting
//! workers, sleeping programs, caches.

mod page;

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rekindle_device::Device;
use rekindle_protocol::worker::LINKS_VARIABLE;

use page::PressurePage;

/// So long whoever asks waits for all that are to answer. One that unmaps waits for its GPU work.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// How often it is looked whether one that was asked has ended.
const LOOK: Duration = Duration::from_millis(10);
/// How long a pool that is asked for nothing sleeps at a time.
const NAP: Duration = Duration::from_millis(500);

/// A worker's view of who has idle memory of a GPU.
pub(crate) struct Pressure {
    page: PressurePage,
    /// The slot of this worker's pool, once it has one.
    own: OnceLock<usize>,
}

impl Pressure {
    /// None where the GPU's memory is this process's alone, or this worker is not told where pages are.
    pub(crate) fn open(device: &dyn Device) -> Option<Arc<Pressure>> {
        let directory = std::env::var_os(LINKS_VARIABLE).filter(|_| device.has_common_memory())?;
        Pressure::open_in(Path::new(&directory), &device.info().uuid)
    }

    pub(crate) fn open_in(directory: &Path, uuid: &[u8; 16]) -> Option<Arc<Pressure>> {
        match PressurePage::open(directory, uuid) {
            Ok(page) => Some(Arc::new(Pressure { page, own: OnceLock::new() })),
            Err(error) => {
                let directory = directory.display();
                log::warn!(
                    "no page of idle memory in {directory}: {error}; pools of others do not give way to this worker"
                );
                None
            }
        }
    }

    /// Bytes that pools of other workers have idle.
    pub(crate) fn elsewhere(&self) -> u64 {
        self.others().map(|slot| self.page.idle(slot)).fold(0, u64::saturating_add)
    }

    /// Has the pools of other workers give idle memory to the GPU: whether any has. It takes until they have, a second at most.
    pub(crate) fn ask(&self) -> bool {
        let asked: Vec<(usize, u64)> = self.others().map(|slot| (slot, self.page.given(slot))).collect();
        if asked.is_empty() {
            return false;
        }
        let (began, number) = (Instant::now(), self.page.ask());
        loop {
            let seen = self.page.answers();
            let mut silent = asked.iter().filter(|(slot, _)| !self.page.has_answered(*slot, number));
            if silent.all(|(slot, _)| !self.page.is_there(*slot)) {
                break;
            }
            if began.elapsed() > ANSWER_LIMIT {
                log::warn!("a pool of another worker has given no memory within {ANSWER_LIMIT:?}");
                break;
            }
            self.page.await_answer(seen, LOOK);
        }
        asked.iter().any(|(slot, given)| self.page.given(*slot) != *given)
    }

    /// This worker's pool has so much idle memory.
    pub(crate) fn tell(&self, idle: u64) {
        if let Some(own) = self.own.get() {
            self.page.set_idle(*own, idle);
        }
    }

    /// Takes a place for this worker's pool; false if it has one, or all are taken.
    pub(crate) fn join(&self) -> bool {
        let slot = if self.own.get().is_none() { self.page.take_slot() } else { None };
        slot.is_some_and(|slot| self.own.set(slot).is_ok())
    }

    /// Answers those that lack memory by what `give` has given to the GPU, in bytes, until that says none. It is called now and
    /// then without a question too, with false.
    pub(crate) fn serve(&self, give: impl Fn(bool) -> Option<u64>) {
        let Some(own) = self.own.get() else { return };
        let mut answered = self.page.answered(*own);
        loop {
            let asked = self.page.await_ask(answered, NAP);
            let Some(bytes) = give(asked != answered) else { break };
            if asked != answered {
                self.page.answer(*own, bytes, asked);
                answered = asked;
            }
        }
        self.page.set_idle(*own, 0);
    }

    /// Slots of other workers' pools that have something.
    fn others(&self) -> impl Iterator<Item = usize> {
        let own = self.own.get().copied();
        self.page
            .slots()
            .filter(move |slot| Some(*slot) != own && self.page.idle(*slot) > 0 && self.page.is_there(*slot))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const UUID: [u8; 16] = [5; 16];

    fn open(directory: &Path) -> Arc<Pressure> {
        Pressure::open_in(directory, &UUID).unwrap()
    }

    #[test]
    fn whoever_lacks_memory_gets_what_pools_of_others_have_and_not_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let (asks, pool) = (open(directory.path()), open(directory.path()));
        assert!(!asks.ask(), "there is no pool");
        assert!(pool.join() && !pool.join());
        let has = AtomicU64::new(30);
        std::thread::scope(|scope| {
            pool.tell(30);
            let serving = scope.spawn(|| {
                pool.serve(|is_asked| match (is_asked, has.load(Ordering::SeqCst)) {
                    (_, u64::MAX) => None,
                    (false, _) | (true, 0) => Some(0),
                    (true, left) => {
                        has.store(left - 10, Ordering::SeqCst);
                        pool.tell(left - 10);
                        Some(10)
                    }
                })
            });
            assert_eq!((asks.elsewhere(), pool.elsewhere()), (30, 0));
            assert!(!pool.ask(), "what is its own it knows itself");
            assert_eq!([asks.ask(), asks.ask(), asks.ask(), asks.ask()], [true, true, true, false]);
            assert_eq!(asks.elsewhere(), 0);
            has.store(u64::MAX, Ordering::SeqCst);
            serving.join().unwrap();
        });
    }

    #[test]
    fn a_pool_that_does_not_answer_is_waited_for_no_longer_than_a_second_and_one_that_has_gone_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let (asks, pool) = (open(directory.path()), open(directory.path()));
        assert!(pool.join());
        pool.tell(10);
        let began = Instant::now();
        assert!(!asks.ask());
        assert!((ANSWER_LIMIT..Duration::from_secs(30)).contains(&began.elapsed()));
        drop(pool);
        assert_eq!(asks.elsewhere(), 0);
        // Its slot is another one's, which has nothing yet.
        let next = open(directory.path());
        assert!(next.join());
        assert_eq!(asks.elsewhere(), 0);
    }
}
