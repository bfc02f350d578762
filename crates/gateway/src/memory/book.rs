//! Who has how much of each GPU's memory, who waits for some, and who is to go for it. It does nothing by itself.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// A service by its number, and an instance of it by its own.
pub type Key = (u64, u32);

/// How long one that found its GPU full waits for others to give memory back before it tries again anyway.
const AGAIN: Duration = Duration::from_secs(1);

/// An instance that nobody needs just now.
#[derive(Clone, Debug)]
pub struct Idle {
    pub key: Key,
    /// Requests a second that find it.
    pub rate: f64,
    /// How much is free once it has gone one stage down.
    pub frees: u64,
    pub since: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is room for it, and it has that.
    Grant(Key),
    /// It is to go one stage down.
    Demote(Key),
    /// It cannot have room, and why.
    Fail(Key, String),
}

#[derive(Default)]
pub struct Book {
    gpus: BTreeMap<String, Gpu>,
}

#[derive(Default)]
struct Gpu {
    held: BTreeMap<Key, Held>,
    waiting: VecDeque<Waiting>,
}

struct Held {
    bytes: u64,
    /// How much of it is about to be free.
    leaving: Option<u64>,
}

struct Waiting {
    key: Key,
    /// What it is to have in all.
    bytes: u64,
    full: Option<Full>,
}

/// Its GPU was full when it was to be brought up.
struct Full {
    /// What was missing, and how much was given back since; at least a byte.
    missing: u64,
    given_back: u64,
    since: Instant,
    why: String,
}

impl Book {
    /// What an instance is known to have.
    pub fn hold(&mut self, gpu: &str, key: Key, bytes: u64) {
        let gpu = self.gpus.entry(gpu.to_string()).or_default();
        let held = gpu.held.entry(key).or_insert(Held { bytes: 0, leaving: None });
        let gone = held.bytes.saturating_sub(bytes);
        *held = Held { bytes, leaving: None };
        gpu.given_back(gone);
    }

    /// What was measured of an instance, unless it is about to have less.
    pub fn measured(&mut self, key: Key, bytes: u64) {
        let mut held = self.gpus.values_mut().filter_map(|gpu| gpu.held.get_mut(&key));
        if let Some(held) = held.next().filter(|held| held.leaving.is_none()) {
            held.bytes = bytes;
        }
    }

    /// It was to go down, and does not.
    pub fn stays(&mut self, key: Key) {
        for held in self.gpus.values_mut().filter_map(|gpu| gpu.held.get_mut(&key)) {
            held.leaving = None;
        }
    }

    /// It has nothing any more, and wants nothing.
    pub fn gone(&mut self, key: Key) {
        for gpu in self.gpus.values_mut() {
            gpu.waiting.retain(|waiting| waiting.key != key);
            if let Some(held) = gpu.held.remove(&key) {
                gpu.given_back(held.bytes);
            }
        }
        self.gpus.retain(|_, gpu| !gpu.held.is_empty() || !gpu.waiting.is_empty());
    }

    /// It wants nothing more than it has.
    pub fn withdraw(&mut self, key: Key) {
        self.gpus.values_mut().for_each(|gpu| gpu.waiting.retain(|waiting| waiting.key != key));
    }

    /// An instance waits until it can have so many bytes in all.
    pub fn claim(&mut self, gpu: &str, key: Key, bytes: u64) {
        let gpu = self.gpus.entry(gpu.to_string()).or_default();
        gpu.waiting.push_back(Waiting { key, bytes, full: None });
    }

    /// An instance had been granted its bytes and found the GPU full, which lacked `missing` (0: nobody knows how many): it
    /// has `left`, and is the first to have room.
    pub fn found_full(
        &mut self,
        gpu: &str,
        key: Key,
        (bytes, left): (u64, u64),
        (missing, why): (u64, String),
        now: Instant,
    ) {
        let gpu = self.gpus.entry(gpu.to_string()).or_default();
        match left {
            0 => drop(gpu.held.remove(&key)),
            left => drop(gpu.held.insert(key, Held { bytes: left, leaving: None })),
        }
        let full = Some(Full { missing: missing.max(1), given_back: 0, since: now, why });
        gpu.waiting.push_front(Waiting { key, bytes, full });
    }

    /// Whether somebody waits, or has more than all may.
    pub fn is_short(&self, limit: Option<u64>) -> bool {
        self.gpus.values().any(|gpu| !gpu.waiting.is_empty() || limit.is_some_and(|limit| gpu.used() > limit))
    }

    /// Why an instance waits.
    pub fn why(&self, key: Key, limit: Option<u64>) -> Option<String> {
        let of = |gpu: &Gpu| {
            let waiting = gpu.waiting.iter().find(|waiting| waiting.key == key)?;
            let full = || waiting.full.as_ref().map(|full| full.why.clone());
            full().or_else(|| {
                Some(format!(
                    "it needs {} MB of GPU memory, and services have {} of the {} MB that they may have",
                    waiting.bytes >> 20,
                    gpu.used() >> 20,
                    limit.unwrap_or_default() >> 20
                ))
            })
        };
        self.gpus.values().find_map(of)
    }

    pub fn bytes(&self, key: Key) -> Option<u64> {
        self.gpus.values().find_map(|gpu| gpu.held.get(&key)).map(|held| held.bytes)
    }

    /// Each GPU with what is held of it.
    pub fn used(&self) -> BTreeMap<String, u64> {
        self.gpus.iter().map(|(name, gpu)| (name.clone(), gpu.used())).collect()
    }

    /// What is to be done next, with these that nobody needs.
    pub fn step(&mut self, limit: Option<u64>, idle: &[Idle], now: Instant) -> Vec<Step> {
        let mut steps = Vec::new();
        for gpu in self.gpus.values_mut() {
            while gpu.step(limit, idle, now, &mut steps) {}
        }
        steps
    }
}

impl Gpu {
    fn used(&self) -> u64 {
        self.held.values().map(|held| held.bytes).sum()
    }

    fn given_back(&mut self, bytes: u64) {
        for full in self.waiting.iter_mut().filter_map(|waiting| waiting.full.as_mut()) {
            full.given_back += bytes;
        }
    }

    /// Whether the next one that waits is to be looked at, too.
    fn step(&mut self, limit: Option<u64>, idle: &[Idle], now: Instant, steps: &mut Vec<Step>) -> bool {
        let leaving: u64 = self.held.values().filter_map(|held| held.leaving).sum();
        let used = self.used();
        let over = |more: u64| limit.map_or(0, |limit| (used + more).saturating_sub(limit));
        let Some(first) = self.waiting.front_mut() else {
            self.demote(over(0).saturating_sub(leaving), idle, steps);
            return false;
        };
        let key = first.key;
        if let Some(limit) = limit.filter(|limit| first.bytes > *limit) {
            let why = format!(
                "it needs {} MB of GPU memory, and services may have {} MB (`--service-memory`)",
                first.bytes >> 20,
                limit >> 20
            );
            self.waiting.pop_front();
            steps.push(Step::Fail(key, why));
            return true;
        }
        first
            .full
            .take_if(|full| full.given_back >= full.missing || (leaving == 0 && now - full.since >= AGAIN));
        let own = self.held.get(&key).map_or(0, |held| held.bytes);
        let missing = match &first.full {
            Some(full) => full.missing - full.given_back,
            None => over(first.bytes.saturating_sub(own)),
        };
        if missing == 0 {
            let Some(Waiting { key, bytes, .. }) = self.waiting.pop_front() else { return false };
            self.held.insert(key, Held { bytes, leaving: None });
            steps.push(Step::Grant(key));
            return true;
        }
        if missing <= leaving || self.demote(missing - leaving, idle, steps) || leaving > 0 {
            return false;
        }
        // Nobody can go just now.
        let is_alone = self.held.iter().all(|(other, held)| *other == key || held.bytes == 0);
        let Some(first) = self.waiting.front_mut() else { return false };
        match first.full.take() {
            Some(full) if full.given_back > 0 => true,
            Some(full) if is_alone => {
                self.waiting.pop_front();
                steps.push(Step::Fail(key, full.why));
                true
            }
            other => {
                first.full = other;
                false
            }
        }
    }

    /// Has those go that save the fewest requests a second for what they hold, until so much is about to be free; false if
    /// nobody can.
    fn demote(&mut self, mut missing: u64, idle: &[Idle], steps: &mut Vec<Step>) -> bool {
        let mut found = false;
        let value = |one: &Idle| one.rate / one.frees.max(1) as f64;
        let mut idle: Vec<&Idle> = idle.iter().filter(|one| one.frees > 0).collect();
        idle.sort_by(|a, b| value(a).total_cmp(&value(b)).then(a.since.cmp(&b.since)));
        for one in idle {
            if missing == 0 {
                break;
            }
            let Some(held) = self.held.get_mut(&one.key).filter(|held| held.leaving.is_none()) else {
                continue;
            };
            held.leaving = Some(one.frees);
            missing = missing.saturating_sub(one.frees);
            steps.push(Step::Demote(one.key));
            found = true;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: &str = "nvidia:0";

    struct Story {
        book: Book,
        now: Instant,
        limit: Option<u64>,
    }

    impl Story {
        fn new(limit: Option<u64>) -> Story {
            Story { book: Book::default(), now: Instant::now(), limit }
        }

        fn step(&mut self, idle: &[(u64, f64, u64)]) -> Vec<Step> {
            let of = |(service, rate, frees): &(u64, f64, u64)| Idle {
                key: (*service, 1),
                rate: *rate,
                frees: *frees,
                since: self.now,
            };
            let idle: Vec<Idle> = idle.iter().map(of).collect();
            self.book.step(self.limit, &idle, self.now)
        }
    }

    #[test]
    fn what_fits_is_granted_at_once_and_without_a_limit_all_does() {
        let mut story = Story::new(Some(10));
        story.book.claim(GPU, (1, 1), 6);
        story.book.claim("nvidia:1", (2, 1), 6);
        assert_eq!(story.step(&[]), [Step::Grant((1, 1)), Step::Grant((2, 1))], "each GPU has its own");
        story.book.claim(GPU, (3, 1), 5);
        assert_eq!(story.step(&[]), []);
        assert!(story.book.is_short(story.limit));
        story.limit = None;
        assert_eq!(story.step(&[]), [Step::Grant((3, 1))]);
        assert!(!story.book.is_short(None));
    }

    #[test]
    fn who_saves_least_for_what_it_holds_goes_first() {
        let mut story = Story::new(Some(10));
        for (service, bytes) in [(1, 4), (2, 2), (3, 4)] {
            story.book.hold(GPU, (service, 1), bytes);
        }
        story.book.claim(GPU, (4, 1), 2);
        // 1 and 3 save more requests than 2, and for each byte 3 the fewest.
        let idle = [(1, 4.0, 4), (2, 1.0, 2), (3, 1.5, 4)];
        assert_eq!(story.step(&idle), [Step::Demote((3, 1))]);
        assert_eq!(story.step(&idle), [], "it is on its way");
        story.book.stays((3, 1));
        assert_eq!(story.step(&idle[..2]), [Step::Demote((2, 1))]);
        story.book.hold(GPU, (2, 1), 0);
        assert_eq!(story.step(&idle), [Step::Grant((4, 1))]);
        story.book.claim(GPU, (5, 1), 9);
        let idle = [idle[0], idle[2]];
        assert_eq!(story.step(&idle), [Step::Demote((3, 1)), Step::Demote((1, 1))], "as many as it takes");
    }

    #[test]
    fn the_first_to_come_is_the_first_to_go_and_what_never_fits_is_refused() {
        let mut story = Story::new(Some(10));
        story.book.hold(GPU, (1, 1), 8);
        story.book.claim(GPU, (2, 1), 4);
        story.book.claim(GPU, (3, 1), 1);
        assert_eq!(story.step(&[]), []);
        assert!(story.book.why((2, 1), story.limit).unwrap().contains("services have"));
        story.book.withdraw((2, 1));
        assert_eq!(story.step(&[]), [Step::Grant((3, 1))]);
        story.book.claim(GPU, (4, 1), 11);
        let steps = story.step(&[]);
        assert!(
            matches!(&steps[..], [Step::Fail((4, 1), why)] if why.contains("--service-memory")),
            "{steps:?}"
        );
    }

    #[test]
    fn what_grows_beyond_the_limit_is_counted() {
        let mut story = Story::new(Some(10));
        story.book.hold(GPU, (1, 1), 4);
        story.book.hold(GPU, (2, 1), 4);
        assert!(!story.book.is_short(story.limit));
        story.book.measured((1, 1), 9);
        assert_eq!(story.step(&[(2, 5.0, 4)]), [Step::Demote((2, 1))]);
        story.book.measured((2, 1), 4);
        assert_eq!(story.step(&[(2, 5.0, 4)]), [], "it is on its way");
        story.book.hold(GPU, (2, 1), 0);
        assert!(!story.book.is_short(story.limit));
    }

    #[test]
    fn one_that_finds_its_gpu_full_has_others_go_and_tries_again() {
        let mut story = Story::new(None);
        for service in 1..=3 {
            story.book.hold(GPU, (service, 1), 4);
        }
        let full = |story: &mut Story, missing| {
            story.book.found_full(GPU, (4, 1), (6, 0), (missing, "full".into()), story.now);
        };
        full(&mut story, 6);
        let idle = [(1, 1.0, 4), (2, 2.0, 4), (3, 3.0, 4)];
        assert_eq!(story.step(&idle), [Step::Demote((1, 1)), Step::Demote((2, 1))]);
        story.book.gone((1, 1));
        assert_eq!(story.step(&idle), []);
        story.book.hold(GPU, (2, 1), 0);
        assert_eq!(story.step(&idle), [Step::Grant((4, 1))]);
        // The rest is busy: it waits, and looks again after a while.
        full(&mut story, 0);
        assert_eq!(story.step(&[]), []);
        story.now += AGAIN;
        assert_eq!(story.step(&[]), [Step::Grant((4, 1))]);
        // Nobody is there who could ever go.
        full(&mut story, 0);
        story.book.gone((3, 1));
        story.book.gone((2, 1));
        assert_eq!(story.step(&[]), [Step::Grant((4, 1))], "something was given back");
        full(&mut story, 0);
        assert_eq!(story.step(&[]), [Step::Fail((4, 1), "full".into())]);
    }

    #[test]
    fn one_that_wakes_needs_what_it_does_not_have_yet() {
        let mut story = Story::new(Some(10));
        story.book.hold(GPU, (1, 1), 5);
        story.book.hold(GPU, (2, 1), 3);
        story.book.claim(GPU, (2, 1), 5);
        assert_eq!(story.step(&[]), [Step::Grant((2, 1))]);
        assert_eq!(story.book.used()[GPU], 10);
        assert_eq!(story.book.bytes((2, 1)), Some(5));
    }
}
