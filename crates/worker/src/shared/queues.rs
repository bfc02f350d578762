//! What is in a client's [lanes](super::lanes), and in which order it may be issued.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rekindle_cuda::CuResult;
use rekindle_device::{Device, Event, Result, Stream};

use super::fair_queue::{ClientId, CopyRank};
use super::lane::{Destroy, Lane, Number, Op, StreamWork, Task};
use super::link::Link;
use super::piece::{Direction, Piece, RemainingCopy};

/// A copy of no more is issued at once, where a stream has not more than [`AT_ONCE`] of such under way.
const SMALL: u64 = 64 << 10;
const AT_ONCE: u64 = 256 << 10;

/// What a client's streams were given and the device was not.
pub(super) struct Queues {
    device: Arc<dyn Device>,
    link: Option<Arc<Link>>,
    client: ClientId,
    lanes: HashMap<Stream, Lane>,
    events: HashMap<Event, EventUses>,
    last: Number,
    waiting: BTreeSet<Number>,
    /// Done once all that was in lanes before is issued.
    later: VecDeque<(Number, Destroy)>,
    capturing: HashSet<Stream>,
    /// The first error of what was issued later.
    late: Option<CuResult>,
    closed: bool,
    /// Recorded and waited for again and again, while nothing is in lanes.
    order_event: Event,
}

/// An event, in what is in lanes.
#[derive(Default)]
struct EventUses {
    /// Its latest record.
    record: Option<Number>,
    waits: Vec<Number>,
    /// The client has destroyed it.
    destroyed: Option<Destroy>,
}

impl Queues {
    pub(super) fn new(
        device: Arc<dyn Device>,
        link: Option<Arc<Link>>,
        client: ClientId,
        order_event: Event,
    ) -> Queues {
        Queues {
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
        }
    }

    /// Forgets all that is in lanes, and leaves the link. What is returned is dropped best where nothing is locked.
    pub(super) fn close(&mut self) -> Box<dyn Send> {
        self.closed = true;
        self.waiting.clear();
        self.events.clear();
        let lanes = std::mem::take(&mut self.lanes);
        let later = std::mem::take(&mut self.later);
        let mut queues = Vec::new();
        let link = self.link.take();
        for mut lane in lanes.into_values() {
            for event in lane.take_events() {
                link.iter().for_each(|link| link.give_event(event));
            }
            queues.push(lane.queue);
        }
        if let Some(link) = link {
            link.leave(self.client);
        }
        Box::new((queues, later))
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// The number of what was put into a lane last.
    pub(super) fn last(&self) -> Number {
        self.last
    }

    /// Whether all of such numbers, or less, is issued; of all streams, or of these.
    pub(super) fn is_issued(&self, number: Number, streams: Option<&[Stream]>) -> bool {
        match streams {
            None => self.waiting.first().is_none_or(|first| *first > number),
            Some(streams) => streams.iter().all(|stream| {
                let first = self.lanes.get(stream).and_then(Lane::first);
                first.is_none_or(|first| first > number)
            }),
        }
    }

    /// How much is in the lane of a stream.
    pub(super) fn length(&self, stream: Stream) -> usize {
        self.lanes.get(&stream).map_or(0, |lane| lane.queue.len())
    }

    pub(super) fn is_capturing(&self) -> bool {
        !self.capturing.is_empty()
    }

    pub(super) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    pub(super) fn client(&self) -> ClientId {
        self.client
    }

    /// The scheduler of the client's copies; none where they are issued as they come.
    pub(super) fn link(&self) -> Option<Arc<Link>> {
        self.link.clone().filter(|_| !self.is_capturing())
    }

    /// Whether the stream was given something that is not issued.
    pub(super) fn is_behind(&self, stream: Stream) -> bool {
        self.lanes.get(&stream).is_some_and(|lane| !lane.queue.is_empty())
    }

    pub(super) fn is_unrecorded(&self, event: Event) -> bool {
        self.events.get(&event).is_some_and(|named| named.record.is_some())
    }

    pub(super) fn take_late(&mut self) -> Option<CuResult> {
        self.late.take()
    }

    pub(super) fn set_rank(&mut self, stream: Stream, rank: CopyRank) {
        self.lanes.entry(stream).or_default().rank = rank;
    }

    pub(super) fn set_link_weight(&self, weight: u32) {
        self.link.iter().for_each(|link| link.set_weight(self.client, weight));
    }

    pub(super) fn link_waited(&self) -> Duration {
        self.link.as_ref().map_or(Duration::ZERO, |link| link.waited(self.client))
    }

    pub(super) fn capture(&mut self, stream: Stream, begins: bool) {
        if begins {
            self.capturing.insert(stream);
        } else {
            self.capturing.remove(&stream);
        }
    }

    /// The stream is given something else than a copy over the link.
    pub(super) fn note_work(&mut self, stream: Stream) {
        if self.link.is_some() {
            self.lanes.entry(stream).or_default().works += 1;
        }
    }

    pub(super) fn push(&mut self, stream: Stream, after: Vec<Number>, task: Task) -> Number {
        self.last += 1;
        self.waiting.insert(self.last);
        self.lanes.entry(stream).or_default().queue.push_back(Op { number: self.last, after, task });
        self.last
    }

    /// Puts a record of an event into the stream's lane, unless it is to be issued now.
    pub(super) fn put_record(&mut self, event: Event, stream: Stream, flags: u32) -> bool {
        let after: Vec<Number> = match self.events.get(&event) {
            Some(named) => named.waits.iter().copied().chain(named.record).collect(),
            None => Vec::new(),
        };
        if after.is_empty() && !self.is_behind(stream) {
            // It takes no time of its own: a copy behind it waits for nothing but what was before.
            return true;
        }
        let number = self.push(stream, after, Task::Record(event, flags));
        self.events.entry(event).or_default().record = Some(number);
        false
    }

    /// As [`Queues::put_record`], of a wait for an event.
    pub(super) fn put_wait(&mut self, stream: Stream, event: Event, flags: u32) -> bool {
        let record = self.events.get(&event).and_then(|named| named.record);
        if record.is_none() && !self.is_behind(stream) {
            self.note_work(stream);
            return true;
        }
        let number = self.push(stream, record.into_iter().collect(), Task::Wait(event, flags));
        self.events.entry(event).or_default().waits.push(number);
        false
    }

    /// Others take the places of streams, behind all that those were given.
    pub(super) fn replace(&mut self, by: &HashMap<Stream, Stream>) -> Result<()> {
        for (former, stream) in by {
            self.device.event_record(self.order_event, *former, 0)?;
            self.device.stream_wait_event(*stream, self.order_event, 0)?;
        }
        let lanes = std::mem::take(&mut self.lanes);
        let now = |stream: Stream| by.get(&stream).copied().unwrap_or(stream);
        self.lanes = lanes.into_iter().map(|(stream, lane)| (now(stream), lane)).collect();
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
        if self.put_record(event, before, 0) {
            self.device.event_record(event, before, 0)?;
        }
        if self.put_wait(behind, event, 0) {
            self.device.stream_wait_event(behind, event, 0)?;
        }
        self.destroy_event(event, Box::new(move |_| link.give_event(event)));
        Ok(())
    }

    /// Destroys an event when nothing in a lane is for it any more.
    pub(super) fn destroy_event(&mut self, event: Event, destroy: Destroy) {
        match self.events.get_mut(&event) {
            Some(named) => named.destroyed = Some(destroy),
            None => destroy(&*self.device),
        }
    }

    /// Destroys a stream behind what it was given.
    pub(super) fn destroy_stream(&mut self, stream: Stream, destroy: StreamWork) {
        self.capturing.remove(&stream);
        if self.is_behind(stream) {
            self.push(stream, Vec::new(), Task::Destroy(destroy));
            return;
        }
        let _ = destroy(&*self.device, stream);
        self.forget(stream);
    }

    fn forget(&mut self, stream: Stream) {
        if let (Some(mut lane), Some(link)) = (self.lanes.remove(&stream), &self.link) {
            lane.take_events().into_iter().for_each(|event| link.give_event(event));
        }
    }

    /// Done when all that is in lanes now is issued.
    pub(super) fn do_later(&mut self, work: Destroy) {
        if self.waiting.is_empty() {
            return work(&*self.device);
        }
        self.later.push_back((self.last, work));
    }

    pub(super) fn pump(&mut self) -> bool {
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
                let done = destroy(&*self.device, stream);
                self.forget(stream);
                done
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
            && let Some(EventUses { destroyed: Some(destroy), .. }) = self.events.remove(&event)
        {
            destroy(&*self.device);
        }
    }

    /// The event that is to be recorded behind a copy of so many bytes, if it is small enough to be issued at once. What
    /// issues it need not hold the lanes meanwhile: a driver whose queue is full lets a call wait.
    pub(super) fn take_small(&mut self, link: &Link, stream: Stream, bytes: u64) -> Result<Option<Event>> {
        let lane = self.lanes.entry(stream).or_default();
        let is_small = lane.rank == CopyRank::Program && bytes <= SMALL;
        if !is_small || lane.ahead.room(&*self.device, link, AT_ONCE) < bytes {
            return Ok(None);
        }
        let works = lane.works;
        lane.ahead.put(link, bytes, works).map(Some)
    }

    /// Issues as much of a copy as may be; whether that was all. On an error the rest is not issued.
    pub(super) fn advance(
        &mut self,
        link: &Link,
        stream: Stream,
        way: Direction,
        rest: &mut RemainingCopy,
    ) -> Result<bool> {
        let device = self.device.clone();
        let piece = link.settings().piece;
        while rest.left() > 0 {
            let left = rest.left();
            let lane = self.lanes.entry(stream).or_default();
            let rank = lane.rank;
            let ahead = match rank {
                CopyRank::Program if left <= SMALL && lane.ahead.room(&*device, link, AT_ONCE) >= left => {
                    left
                }
                // What is before it may take long, and it uses nothing of the link until then.
                CopyRank::Program if !lane.is_ready(&*device, link, stream)? => {
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
                let event = lane.ahead.put(link, piece.bytes(), works)?;
                device.event_record(event, stream, 0)?;
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
