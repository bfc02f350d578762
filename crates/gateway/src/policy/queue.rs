//! Requests that wait for an instance, the first to come first.

use std::collections::VecDeque;
use std::time::Instant;

use super::near::Near;

#[derive(Default)]
pub struct Queue {
    waiting: VecDeque<Waiting>,
    last: u64,
}

#[derive(Clone, Debug)]
pub struct Waiting {
    pub request: u64,
    pub deadline: Instant,
    /// The instance that has failed it.
    pub avoid: Option<u32>,
    /// It is among the requests that the service has had.
    pub counts: bool,
    /// Where its arrays lie.
    pub near: Option<Near>,
}

/// How a request comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coming {
    Anew,
    /// It was let in before, and the instance that it was sent to has failed it. `avoid`: that, if it is one of these.
    Again {
        avoid: Option<u32>,
    },
}

impl Queue {
    pub fn push(&mut self, deadline: Instant, coming: Coming, (counts, near): (bool, Option<Near>)) -> u64 {
        self.last += 1;
        let waiting = |avoid| Waiting { request: self.last, deadline, avoid, counts, near };
        match coming {
            // It was first before.
            Coming::Again { avoid } => self.waiting.push_front(waiting(avoid)),
            Coming::Anew => self.waiting.push_back(waiting(None)),
        }
        self.last
    }

    pub fn remove(&mut self, request: u64) -> Option<Waiting> {
        let place = self.waiting.iter().position(|waiting| waiting.request == request)?;
        self.waiting.remove(place)
    }

    /// Takes those that are over their time.
    pub fn expired(&mut self, now: Instant) -> Vec<Waiting> {
        let over: Vec<Waiting> = self.waiting.iter().filter(|one| one.deadline <= now).cloned().collect();
        if !over.is_empty() {
            self.waiting.retain(|waiting| waiting.deadline > now);
        }
        over
    }

    pub fn clear(&mut self) -> Vec<Waiting> {
        self.waiting.drain(..).collect()
    }

    /// How many any instance may have.
    pub fn fresh(&self) -> usize {
        self.waiting.iter().filter(|waiting| waiting.avoid.is_none()).count()
    }

    pub fn all(&self) -> impl Iterator<Item = &Waiting> {
        self.waiting.iter()
    }

    pub fn get(&self, place: usize) -> Option<&Waiting> {
        self.waiting.get(place)
    }

    pub fn take(&mut self, place: usize) {
        self.waiting.remove(place);
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn deadlines(&self) -> impl Iterator<Item = Instant> {
        self.waiting.iter().map(|waiting| waiting.deadline)
    }
}
