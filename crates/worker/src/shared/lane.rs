//! What one stream was given and the device was not, and what of its copies is not counted in the link's window.

use std::collections::VecDeque;

use rekindle_device::{Device, Event, Result, Stream};

use super::fair_queue::CopyRank;
use super::link::Link;
use super::piece::{Direction, RemainingCopy};

/// What is issued to a stream later.
pub(super) type StreamWork = Box<dyn FnOnce(&dyn Device, Stream) -> Result<()> + Send>;

/// Gives something back that what is in lanes may still need.
pub(super) type Destroy = Box<dyn FnOnce(&dyn Device) + Send>;

/// Of what is in lanes.
pub(super) type Number = u64;

/// Several copies have one event behind them until they are so many bytes.
const TOGETHER: u64 = 256 << 10;

#[derive(Default)]
pub(super) struct Lane {
    pub queue: VecDeque<Op>,
    pub rank: CopyRank,
    /// How much it was given beside copies over the link, and how much of that was found to be done.
    pub works: u64,
    known: u64,
    pub ahead: UnqueuedCopies,
}

pub(super) struct Op {
    pub number: Number,
    /// What has to be issued before.
    pub after: Vec<Number>,
    pub task: Task,
}

pub(super) enum Task {
    Copy(Direction, RemainingCopy),
    Work(StreamWork),
    Record(Event, u32),
    Wait(Event, u32),
    /// Of the stream.
    Destroy(StreamWork),
}

/// Copies that were issued without a turn: small ones, and those behind work that was not done.
#[derive(Default)]
pub(super) struct UnqueuedCopies {
    under_way: VecDeque<CopyGroup>,
    bytes: u64,
    /// The works before those that are done.
    done: u64,
}

struct CopyGroup {
    event: Event,
    bytes: u64,
    works: u64,
}

impl Lane {
    /// The number of what is first in it.
    pub(super) fn first(&self) -> Option<Number> {
        self.queue.front().map(|op| op.number)
    }

    /// Whether all that the stream was given beside copies is done.
    pub(super) fn is_ready(&mut self, device: &dyn Device, link: &Link, stream: Stream) -> Result<bool> {
        if self.known < self.works {
            self.ahead.reap(device, link);
            self.known = self.known.max(self.ahead.done);
        }
        if self.known < self.works && self.ahead.under_way.is_empty() && device.stream_query(stream)? {
            self.known = self.works;
        }
        Ok(self.known >= self.works)
    }

    /// The events that it uses, which nobody asks for any more.
    pub(super) fn take_events(&mut self) -> Vec<Event> {
        self.ahead.bytes = 0;
        self.ahead.under_way.drain(..).map(|one| one.event).collect()
    }
}

impl UnqueuedCopies {
    /// How many bytes more there may be of at most so many.
    pub(super) fn room(&mut self, device: &dyn Device, link: &Link, most: u64) -> u64 {
        if self.bytes >= most / 2 {
            self.reap(device, link);
        }
        most.saturating_sub(self.bytes)
    }

    /// So many bytes are issued behind so much work: the event that is to be recorded behind them.
    pub(super) fn put(&mut self, link: &Link, bytes: u64, works: u64) -> Result<Event> {
        self.bytes += bytes;
        if let Some(last) = self.under_way.back_mut().filter(|last| last.bytes + bytes <= TOGETHER) {
            (last.bytes, last.works) = (last.bytes + bytes, works);
            return Ok(last.event);
        }
        let event = link.event().inspect_err(|_| self.bytes -= bytes)?;
        self.under_way.push_back(CopyGroup { event, bytes, works });
        Ok(event)
    }

    fn reap(&mut self, device: &dyn Device, link: &Link) {
        let is_done = |one: &mut CopyGroup| !matches!(device.event_query(one.event), Ok(false));
        while let Some(done) = self.under_way.pop_front_if(is_done) {
            self.bytes -= done.bytes;
            self.done = done.works;
            link.give_event(done.event);
        }
    }
}
