//! Requests that wait for an instance, the first to come first.

use std::collections::VecDeque;
use std::time::Instant;

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
}

impl Queue {
    pub fn push(&mut self, deadline: Instant, avoid: Option<u32>) -> u64 {
        self.last += 1;
        let waiting = Waiting { request: self.last, deadline, avoid };
        match avoid {
            // It was first before.
            Some(_) => self.waiting.push_front(waiting),
            None => self.waiting.push_back(waiting),
        }
        self.last
    }

    pub fn remove(&mut self, request: u64) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| waiting.request != request);
        self.waiting.len() < before
    }

    /// Takes those that are over their time.
    pub fn expired(&mut self, now: Instant) -> Vec<u64> {
        let over: Vec<u64> =
            self.waiting.iter().filter(|one| one.deadline <= now).map(|one| one.request).collect();
        if !over.is_empty() {
            self.waiting.retain(|waiting| waiting.deadline > now);
        }
        over
    }

    pub fn clear(&mut self) -> Vec<u64> {
        self.waiting.drain(..).map(|waiting| waiting.request).collect()
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
