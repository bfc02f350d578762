//! What a client's streams are given, in its order, where some of it has to wait for a copy that is issued piece by piece.
//!
//! A stream has a lane while there is something that it was given and that the device was not. Behind it waits all that
//! the stream is given then; and beyond the stream what CUDA's rules order behind it: waits for an event whose record is
//! in a lane, and records of an event that waits in lanes are still for.
//!
//! What is in lanes is numbered. A number is only ever after smaller ones, so lanes cannot wait for each other in a
//! circle.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use rekindle_cuda::{CUDA_ERROR_DEINITIALIZED, CuResult};
use rekindle_device::{Device, Event, Result, Stream};

use super::lane::{Lane, Number, Op, Task};
use super::link::{ClientId, Link, Rank};
use super::order::Order;
use super::piece::{Piece, Rest, Way};

/// What is issued to a stream later.
pub(super) type Work = Box<dyn FnOnce(&dyn Device, Stream) -> Result<()> + Send>;

/// So much a stream's lane takes; then calls wait, as they do when a driver's queue is full.
const MOST: usize = 1024;
/// A copy of no more is issued at once, where a stream has not more than [`AT_ONCE`] of such under way.
const SMALL: u64 = 64 << 10;
const AT_ONCE: u64 = 256 << 10;

/// A client's streams on one device.
pub(super) struct Lanes {
    client: ClientId,
    state: Mutex<State>,
    /// Something was issued, or the client is no more.
    issued: Condvar,
}

pub(super) struct State {
    pub order: Order,
    pub queues: Queues,
}

pub(super) struct Queues {
    device: Arc<dyn Device>,
    link: Option<Arc<Link>>,
    client: ClientId,
    lanes: HashMap<Stream, Lane>,
    events: HashMap<Event, Named>,
    last: Number,
    waiting: BTreeSet<Number>,
    /// Done once all that was in lanes before is issued.
    later: VecDeque<(Number, Box<dyn FnOnce(&dyn Device) + Send>)>,
    capturing: HashSet<Stream>,
    /// An error of what was issued later, for the next call.
    late: Option<CuResult>,
    closed: bool,
    /// Recorded and waited for again and again, while nothing is in lanes.
    order_event: Event,
}

/// An event, in what is in lanes.
#[derive(Default)]
struct Named {
    /// Its latest record.
    record: Option<Number>,
    waits: Vec<Number>,
    /// The client has destroyed it.
    destroyed: Option<Box<dyn FnOnce(&dyn Device) + Send>>,
}

/// Whether work may be issued now.
pub(super) enum Place<'a> {
    Now(Stream),
    Later(Held<'a>),
}

/// The place of work that is issued later.
pub(super) struct Held<'a> {
    state: MutexGuard<'a, State>,
    stream: Stream,
}

impl Lanes {
    pub(super) fn new(
        device: Arc<dyn Device>,
        link: Option<Arc<Link>>,
        legacy: Stream,
        order_event: Event,
    ) -> Arc<Lanes> {
        Arc::new_cyclic(|own: &Weak<Lanes>| {
            let client = link.as_ref().map_or(0, |link| link.join(own.clone()));
            let queues = Queues {
                device,
                link,
                client,
                lanes: HashMap::new(),
                events: HashMap::new(),
                last: 0,
                waiting: BTreeSet::new(),
                later: VecDeque::new(),
                capturing: HashSet::new(),
                late: None,
                closed: false,
                order_event,
            };
            let state = State { order: Order::new(legacy), queues };
            Lanes { client, state: Mutex::new(state), issued: Condvar::new() }
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until(&self, reached: impl Fn(&Queues) -> bool) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        while !reached(&state.queues) {
            if state.queues.closed {
                return Err(CUDA_ERROR_DEINITIALIZED);
            }
            state = self.issued.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(state)
    }

    /// Waits until all that these streams were given so far is issued.
    pub(super) fn wait_for(&self, streams: &[Stream]) -> Result<()> {
        let mut state = self.state();
        let last = state.queues.last;
        if streams.iter().any(|stream| state.queues.is_behind(*stream)) {
            drop(state);
            let through = |queues: &Queues, stream: &Stream| {
                queues.lanes.get(stream).and_then(Lane::first).is_none_or(|first| first > last)
            };
            state = self.wait_until(|queues| streams.iter().all(|stream| through(queues, stream)))?;
        }
        state.queues.take_late()
    }

    /// Waits until all that is in lanes now is issued.
    pub(super) fn wait_for_all(&self) -> Result<()> {
        let last = self.state().queues.last;
        let reached = |queues: &Queues| queues.waiting.first().is_none_or(|first| *first > last);
        self.wait_until(reached)?.queues.take_late()
    }

    /// Waits until the latest record of the event is issued.
    pub(super) fn wait_for_record(&self, event: Event) -> Result<()> {
        let mut state = self.wait_until(|queues| !queues.is_unrecorded(event))?;
        state.queues.take_late()
    }

    /// The place of work that a stream is given.
    pub(super) fn place(&self, stream: Stream) -> Result<Place<'_>> {
        let (mut state, stream) = self.enter(stream)?;
        if state.queues.is_behind(stream) {
            return Ok(Place::Later(Held { state, stream }));
        }
        state.queues.note_work(stream);
        Ok(Place::Now(stream))
    }

    /// The driver's stream for the client's, once there is room in its lane.
    fn enter(&self, stream: Stream) -> Result<(MutexGuard<'_, State>, Stream)> {
        let mut guard = self.state();
        guard.queues.take_late()?;
        let real = guard.order.real(stream);
        let capturing = !guard.queues.capturing.is_empty();
        let length = guard.queues.lanes.get(&real).map_or(0, |lane| lane.queue.len());
        if length >= MOST || capturing && length > 0 {
            drop(guard);
            let most = if capturing { 1 } else { MOST };
            guard =
                self.wait_until(|queues| queues.lanes.get(&real).is_none_or(|lane| lane.queue.len() < most))?;
        }
        let state = &mut *guard;
        let real = state.order.enter(&mut state.queues, stream)?;
        Ok((guard, real))
    }

    pub(super) fn record(&self, event: Event, stream: Stream, flags: u32) -> Result<()> {
        let (mut state, stream) = self.enter(stream)?;
        state.queues.record(event, stream, flags)
    }

    pub(super) fn wait_event(&self, stream: Stream, event: Event, flags: u32) -> Result<()> {
        let (mut state, stream) = self.enter(stream)?;
        state.queues.wait(stream, event, flags)
    }

    /// Issues a copy over the link, or as much of it as is the client's turn.
    pub(super) fn copy(
        &self,
        way: Way,
        mut rest: Rest,
        stream: Stream,
        whole: impl FnOnce(&dyn Device, Stream) -> Result<()>,
    ) -> Result<()> {
        let (mut state, stream) = self.enter(stream)?;
        let queues = &mut state.queues;
        let Some(link) = queues.link.clone().filter(|_| queues.capturing.is_empty()) else {
            queues.note_work(stream);
            return whole(&*queues.device, stream);
        };
        if queues.is_behind(stream) || !queues.advance(&link, stream, way, &mut rest)? {
            queues.push(stream, Vec::new(), Task::Copy(way, rest));
        }
        Ok(())
    }

    /// Issues what may be issued. Whether something was.
    pub(super) fn pump(&self) -> bool {
        let mut state = self.state();
        let progress = state.queues.pump();
        drop(state);
        if progress {
            self.issued.notify_all();
        }
        progress
    }

    /// The client is no more: what is in its lanes is forgotten, and nothing is put there any more.
    pub(super) fn close(&self) {
        let mut state = self.state();
        let queues = &mut state.queues;
        queues.closed = true;
        let dropped: Vec<_> = queues.lanes.values_mut().map(|lane| std::mem::take(&mut lane.queue)).collect();
        queues.waiting.clear();
        queues.events.clear();
        let later = std::mem::take(&mut queues.later);
        let link = queues.link.take();
        let mut events = queues.lanes.values_mut().flat_map(Lane::take_events).collect::<Vec<_>>();
        drop(state);
        drop((dropped, later));
        self.issued.notify_all();
        if let Some(link) = link {
            link.leave(self.client);
            events.drain(..).for_each(|event| link.give_event(event));
        }
    }
}

impl State {
    pub(super) fn capture(&mut self, stream: Stream, begins: bool) {
        self.order.capture(stream, begins);
        self.queues.capture(stream, begins);
    }
}

impl Held<'_> {
    pub(super) fn put(mut self, work: Work) {
        let stream = self.stream;
        self.state.queues.push(stream, Vec::new(), Task::Work(work));
    }
}

impl Queues {
    pub(super) fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Whether the stream was given something that is not issued.
    pub(super) fn is_behind(&self, stream: Stream) -> bool {
        self.lanes.get(&stream).is_some_and(|lane| !lane.queue.is_empty())
    }

    pub(super) fn is_unrecorded(&self, event: Event) -> bool {
        self.events.get(&event).is_some_and(|named| named.record.is_some())
    }

    pub(super) fn take_late(&mut self) -> Result<()> {
        self.late.take().map_or(Ok(()), Err)
    }

    pub(super) fn set_rank(&mut self, stream: Stream, rank: Rank) {
        self.lanes.entry(stream).or_default().rank = rank;
    }

    fn capture(&mut self, stream: Stream, begins: bool) {
        if begins {
            self.capturing.insert(stream);
        } else {
            self.capturing.remove(&stream);
        }
    }

    /// The stream is given something else than a copy over the link.
    fn note_work(&mut self, stream: Stream) {
        if self.link.is_some() {
            self.lanes.entry(stream).or_default().works += 1;
        }
    }

    fn push(&mut self, stream: Stream, after: Vec<Number>, task: Task) -> Number {
        self.last += 1;
        self.waiting.insert(self.last);
        self.lanes.entry(stream).or_default().queue.push_back(Op { number: self.last, after, task });
        self.last
    }

    pub(super) fn record(&mut self, event: Event, stream: Stream, flags: u32) -> Result<()> {
        let after: Vec<Number> = match self.events.get(&event) {
            Some(named) => named.waits.iter().copied().chain(named.record).collect(),
            None => Vec::new(),
        };
        if after.is_empty() && !self.is_behind(stream) {
            self.note_work(stream);
            return self.device.event_record(event, stream, flags);
        }
        let number = self.push(stream, after, Task::Record(event, flags));
        self.events.entry(event).or_default().record = Some(number);
        Ok(())
    }

    pub(super) fn wait(&mut self, stream: Stream, event: Event, flags: u32) -> Result<()> {
        let record = self.events.get(&event).and_then(|named| named.record);
        if record.is_none() && !self.is_behind(stream) {
            self.note_work(stream);
            return self.device.stream_wait_event(stream, event, flags);
        }
        let number = self.push(stream, record.into_iter().collect(), Task::Wait(event, flags));
        self.events.entry(event).or_default().waits.push(number);
        Ok(())
    }

    /// Has a stream wait for what another one was given so far.
    pub(super) fn follow(&mut self, behind: Stream, before: Stream) -> Result<()> {
        if self.waiting.is_empty() {
            self.note_work(behind);
            self.device.event_record(self.order_event, before, 0)?;
            return self.device.stream_wait_event(behind, self.order_event, 0);
        }
        let Some(link) = self.link.clone() else { return Ok(()) };
        let event = link.event()?;
        self.record(event, before, 0)?;
        self.wait(behind, event, 0)?;
        self.destroy_event(event, Box::new(move |_| link.give_event(event)));
        Ok(())
    }

    /// Destroys an event when nothing in a lane is for it any more.
    pub(super) fn destroy_event(&mut self, event: Event, destroy: Box<dyn FnOnce(&dyn Device) + Send>) {
        match self.events.get_mut(&event) {
            Some(named) => named.destroyed = Some(destroy),
            None => destroy(&*self.device),
        }
    }

    /// Destroys a stream behind what it was given.
    pub(super) fn destroy_stream(&mut self, stream: Stream, destroy: Box<dyn FnOnce(&dyn Device) + Send>) {
        self.capturing.remove(&stream);
        if self.is_behind(stream) {
            self.push(stream, Vec::new(), Task::Destroy(destroy));
            return;
        }
        destroy(&*self.device);
        self.forget(stream);
    }

    fn forget(&mut self, stream: Stream) {
        if let (Some(mut lane), Some(link)) = (self.lanes.remove(&stream), &self.link) {
            lane.take_events().into_iter().for_each(|event| link.give_event(event));
        }
    }

    /// Done when all that is in lanes now is issued.
    pub(super) fn do_later(&mut self, work: Box<dyn FnOnce(&dyn Device) + Send>) {
        if self.waiting.is_empty() {
            return work(&*self.device);
        }
        self.later.push_back((self.last, work));
    }

    fn pump(&mut self) -> bool {
        let Some(link) = self.link.clone() else { return false };
        let mut progress = false;
        loop {
            let behind: Vec<Stream> = self
                .lanes
                .iter()
                .filter(|(_, lane)| !lane.queue.is_empty())
                .map(|(stream, _)| *stream)
                .collect();
            let mut issued = false;
            for stream in behind {
                while self.issue_first(&link, stream) {
                    issued = true;
                }
            }
            if !issued {
                break;
            }
            progress = true;
        }
        while self
            .later
            .front()
            .is_some_and(|(number, _)| self.waiting.first().is_none_or(|first| first > number))
        {
            if let Some((_, work)) = self.later.pop_front() {
                work(&*self.device);
            }
        }
        progress
    }

    /// Issues what is first in a lane, if that may be; whether it is out of the lane.
    fn issue_first(&mut self, link: &Link, stream: Stream) -> bool {
        let Some(lane) = self.lanes.get_mut(&stream) else { return false };
        let Some(op) = lane.queue.pop_front() else { return false };
        let Op { number, after, task } = op;
        if after.iter().any(|before| self.waiting.contains(before)) {
            lane.queue.push_front(Op { number, after, task });
            return false;
        }
        let done = match task {
            Task::Copy(way, mut rest) => match self.advance(link, stream, way, &mut rest) {
                Ok(false) => {
                    let op = Op { number, after, task: Task::Copy(way, rest) };
                    self.lanes.entry(stream).or_default().queue.push_front(op);
                    return false;
                }
                done => done.map(drop),
            },
            Task::Work(work) => {
                lane.works += 1;
                work(&*self.device, stream)
            }
            Task::Record(event, flags) => {
                lane.works += 1;
                let done = self.device.event_record(event, stream, flags);
                self.settle(event, number);
                done
            }
            Task::Wait(event, flags) => {
                lane.works += 1;
                let done = self.device.stream_wait_event(stream, event, flags);
                self.settle(event, number);
                done
            }
            Task::Destroy(destroy) => {
                destroy(&*self.device);
                self.forget(stream);
                Ok(())
            }
        };
        self.waiting.remove(&number);
        if let Err(code) = done {
            self.late.get_or_insert(code);
        }
        true
    }

    /// What is in lanes of this number has been issued, and was for the event.
    fn settle(&mut self, event: Event, number: Number) {
        let Some(named) = self.events.get_mut(&event) else { return };
        named.waits.retain(|wait| *wait != number);
        named.record.take_if(|record| *record == number);
        if named.record.is_none()
            && named.waits.is_empty()
            && let Some(Named { destroyed: Some(destroy), .. }) = self.events.remove(&event)
        {
            destroy(&*self.device);
        }
    }

    /// Issues as much of a copy as may be; whether that was all. On an error the rest is not issued.
    fn advance(&mut self, link: &Link, stream: Stream, way: Way, rest: &mut Rest) -> Result<bool> {
        let device = self.device.clone();
        let piece = link.settings().piece;
        while rest.left() > 0 {
            let left = rest.left();
            let lane = self.lanes.entry(stream).or_default();
            let rank = lane.rank;
            let ahead = match rank {
                Rank::Program if left <= SMALL && lane.ahead.room(&*device, link, AT_ONCE) >= left => left,
                // What is before it may take long, and it uses nothing of the link until then.
                Rank::Program if !lane.is_ready(&*device, link, stream)? => {
                    let room = lane.ahead.room(&*device, link, piece);
                    if room < left.min(AT_ONCE) {
                        link.watch(self.client);
                        return Ok(false);
                    }
                    left.min(room)
                }
                _ => 0,
            };
            if ahead > 0 {
                let works = lane.works;
                let piece = rest.take(ahead);
                piece.issue(&*device, stream)?;
                lane.ahead.push(&*device, link, stream, piece.bytes(), works)?;
                continue;
            }
            let Some(granted) = link.ask(way, self.client, rank, left) else { return Ok(false) };
            let piece = rest.take(granted);
            let issued = issue(&*device, link, stream, &piece);
            link.sent(way, rank, granted, issued.as_ref().ok().copied());
            issued?;
        }
        Ok(true)
    }
}

/// Issues a piece, and an event behind it.
fn issue(device: &dyn Device, link: &Link, stream: Stream, piece: &Piece) -> Result<Event> {
    piece.issue(device, stream)?;
    let event = link.event()?;
    let recorded = device.event_record(event, stream, 0);
    recorded.map(|()| event).inspect_err(|_| link.give_event(event))
}
