//! Requests that were taken from their rings and wait for memory, or for others that do, while those of other streams go
//! on.
//!
//! Each stream's are done in their order. So only the first of each is looked at: it goes when its memory is there and
//! nothing before it is left that it has to come after.

use std::collections::{HashMap, VecDeque};

use super::order::{Name, NamedObjects, Object, Order, Stream};

pub(crate) struct Waiting {
    pub ticket: u64,
    /// Where it is in the journal.
    pub at: usize,
    /// The parts of memory that it names.
    pub parts: Vec<usize>,
    pub named: Option<NamedObjects>,
    /// Its memory was asked for.
    pub hurried: bool,
}

#[derive(Default)]
pub(crate) struct DeferredQueue {
    queues: Vec<(Stream, VecDeque<Waiting>)>,
    /// For what those that wait name: their numbers, and whether they change it.
    named: HashMap<Object, VecDeque<(u64, bool)>>,
    count: usize,
}

impl DeferredQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Whether a request that comes now has to come after one of these.
    pub(crate) fn precedes(&self, order: &Order) -> bool {
        !self.is_empty()
            && (order.stream.is_some_and(|stream| {
                self.queue(stream.name).is_some_and(|queue| !queue.is_empty())
                    || self.legacy_before(&stream, u64::MAX)
            }) || order.named.is_some_and(|named| self.named_before(&named, u64::MAX)))
    }

    pub(crate) fn push(&mut self, stream: Stream, waiting: Waiting) {
        if let Some(NamedObjects { object, changes }) = waiting.named {
            self.named.entry(object).or_default().push_back((waiting.ticket, changes));
        }
        self.count += 1;
        match self.queues.iter_mut().find(|(known, _)| known.name == stream.name) {
            // Another stream may have got the number of one that is gone.
            Some((known, queue)) => {
                *known = stream;
                queue.push_back(waiting);
            }
            None => self.queues.push((stream, VecDeque::from([waiting]))),
        }
    }

    /// Takes one that can be done now. `is_there` tells of a part whether it is, `hurry` is told of parts that are not
    /// and that the first request of a stream waits for.
    pub(crate) fn next(
        &mut self,
        is_there: impl Fn(usize) -> bool,
        mut hurry: impl FnMut(&[usize]),
    ) -> Option<usize> {
        let mut ready = None;
        for number in 0..self.queues.len() {
            let (stream, queue) = &self.queues[number];
            let Some(first) = queue.front() else { continue };
            let missing: Vec<usize> = first.parts.iter().copied().filter(|part| !is_there(*part)).collect();
            if !missing.is_empty() {
                if !first.hurried {
                    hurry(&missing);
                    self.queues[number].1[0].hurried = true;
                }
                continue;
            }
            let waits = self.legacy_before(stream, first.ticket)
                || first.named.is_some_and(|named| self.named_before(&named, first.ticket));
            if !waits {
                ready = Some(number);
                break;
            }
        }
        let waiting = self.queues[ready?].1.pop_front()?;
        self.count -= 1;
        if let Some(NamedObjects { object, .. }) = waiting.named
            && let Some(queue) = self.named.get_mut(&object)
        {
            queue.retain(|(ticket, _)| *ticket != waiting.ticket);
            if queue.is_empty() {
                self.named.remove(&object);
            }
        }
        Some(waiting.at)
    }

    fn queue(&self, name: Name) -> Option<&VecDeque<Waiting>> {
        self.queues.iter().find(|(stream, _)| stream.name == name).map(|(_, queue)| queue)
    }

    /// Whether a stream's request with this number comes after one that waits, by the rules of the legacy stream.
    fn legacy_before(&self, stream: &Stream, ticket: u64) -> bool {
        let is_before = |queue: &VecDeque<Waiting>| queue.front().is_some_and(|first| first.ticket < ticket);
        match stream.name {
            Name::Legacy(device) => self
                .queues
                .iter()
                .any(|(other, queue)| other.blocking && other.device == device && is_before(queue)),
            _ => stream.blocking && self.queue(Name::Legacy(stream.device)).is_some_and(is_before),
        }
    }

    fn named_before(&self, named: &NamedObjects, ticket: u64) -> bool {
        let waiting = self.named.get(&named.object).into_iter().flatten();
        waiting.take_while(|(other, _)| *other < ticket).any(|(_, changes)| *changes || named.changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEGACY: Stream = Stream { name: Name::Legacy(0), device: 0, blocking: false };

    fn stream(id: u32, blocking: bool) -> Stream {
        Stream { name: Name::Numbered(id), device: 0, blocking }
    }

    fn event(id: u32, changes: bool) -> Option<NamedObjects> {
        Some(NamedObjects { object: Object::Event(id), changes })
    }

    /// Adds requests; each is in the journal at its number.
    fn aside(requests: &[(Stream, &[usize], Option<NamedObjects>)]) -> DeferredQueue {
        let mut aside = DeferredQueue::default();
        for (ticket, (stream, parts, named)) in requests.iter().enumerate() {
            let waiting = Waiting {
                ticket: ticket as u64,
                at: ticket,
                parts: parts.to_vec(),
                named: *named,
                hurried: false,
            };
            aside.push(*stream, waiting);
        }
        aside
    }

    /// What can be done when these parts are there.
    fn run(aside: &mut DeferredQueue, there: &[usize]) -> Vec<usize> {
        std::iter::from_fn(|| aside.next(|part| there.contains(&part), |_| ())).collect()
    }

    #[test]
    fn streams_go_on_by_themselves_and_each_in_its_order() {
        let (one, other) = (stream(8, false), stream(9, false));
        let mut aside = aside(&[(one, &[1], None), (one, &[], None), (other, &[2], None)]);
        assert_eq!(run(&mut aside, &[]), [] as [usize; 0]);
        assert_eq!(run(&mut aside, &[2]), [2]);
        assert!(aside.precedes(&Order { stream: Some(one), ..Order::default() }));
        assert!(!aside.precedes(&Order { stream: Some(other), ..Order::default() }));
        assert_eq!(run(&mut aside, &[1]), [0, 1]);
        assert!(aside.is_empty());
    }

    #[test]
    fn events_lead_from_stream_to_stream() {
        let (one, other) = (stream(8, false), stream(9, false));
        let mut aside = aside(&[
            (one, &[1], None),
            (one, &[], event(5, true)),
            (other, &[], event(5, false)),
            (other, &[], event(5, true)),
            (one, &[], event(5, false)),
        ]);
        assert_eq!(run(&mut aside, &[]), [] as [usize; 0]);
        let named = |changes| Order { named: event(5, changes), ..Order::default() };
        assert!(aside.precedes(&named(false)) && aside.precedes(&named(true)));
        assert_eq!(run(&mut aside, &[1]), [0, 1, 2, 3, 4]);
        assert!(!aside.precedes(&named(true)));
    }

    #[test]
    fn a_wait_holds_up_a_later_record_and_no_other_wait() {
        let (one, other) = (stream(8, false), stream(9, false));
        let mut aside =
            aside(&[(one, &[1], None), (one, &[], event(5, false)), (other, &[], event(5, false))]);
        assert_eq!(run(&mut aside, &[]), [2]);
        assert!(aside.precedes(&Order { named: event(5, true), ..Order::default() }));
        assert!(!aside.precedes(&Order { named: event(5, false), ..Order::default() }));
    }

    #[test]
    fn the_legacy_stream_waits_for_blocking_streams_and_they_for_it() {
        let (blocking, free) = (stream(8, true), stream(9, false));
        let mut aside = aside(&[(blocking, &[1], None), (LEGACY, &[], None), (free, &[3], None)]);
        assert_eq!(run(&mut aside, &[3]), [2]);
        assert!(aside.precedes(&Order { stream: Some(stream(10, true)), ..Order::default() }));
        assert!(!aside.precedes(&Order { stream: Some(free), ..Order::default() }));
        assert_eq!(run(&mut aside, &[1]), [0, 1]);
    }
}
