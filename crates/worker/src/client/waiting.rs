//! Requests that are answered when the GPU has come so far.
//!
//! Each waits for a list of events, then does what it had in mind and answers its ring. The dispatch thread polls: hard
//! while a wait is young, for that is what its latency is made of, then ever more rarely.
//!
//! When the program is to stand still, waits that give way are answered `false` before their time: their threads come to
//! rest, and ask again when the program goes on.

use std::time::{Duration, Instant};

use rekindle_device::{Event, Result, Stream};
use rekindle_protocol::operation::{Answer, Asynchronous, Download, Origin, Upload, encode_reply};
use serde::Serialize;

use super::Client;
use super::assumed::AssumedDone;
use crate::ipc::SharedRecord;

/// `CU_EVENT_DISABLE_TIMING`.
pub(super) const SCRATCH_EVENT: u32 = 2;

/// Gives the answer; none if that waits for more.
type Then = Box<dyn FnOnce(&mut Client, Result<()>) -> Option<Vec<u8>>>;

struct Pending {
    ring: usize,
    device: usize,
    events: Vec<Awaited>,
    since: Instant,
    /// Whether it is answered `false` if the program is to stand still.
    gives_way: bool,
    /// It was answered before, by another worker.
    is_answered: bool,
    then: Then,
}

pub(super) enum Awaited {
    Event {
        event: Event,
        /// The client's own, to be used again.
        scratch: bool,
    },
    /// What an event of several processes was recorded for.
    Shared(SharedRecord),
    /// A ring's transfers up to this position.
    Transfers { ring: usize, end: u64 },
    /// A stream takes more work.
    Room(Stream),
}

/// Nothing was issued to a stream behind these transfers of a ring's.
#[derive(Clone, Copy)]
pub(super) struct TransferFence {
    pub device: usize,
    pub stream: Stream,
    pub ring: usize,
    pub end: u64,
}

#[derive(Default)]
pub(crate) struct Waiting {
    pending: Vec<Pending>,
    /// The program's events that it destroyed while somebody waited.
    destroyed: Vec<(usize, Event)>,
    /// Transfers of all rings that are not published yet.
    pub transfers: usize,
    /// Stream-ordered frees that are not complete yet.
    pub frees: usize,
    /// Transfers behind which an event lies already.
    pub(super) behind: Option<TransferFence>,
    /// What is known of streams that have nothing but transfers.
    pub(crate) assumed: AssumedDone,
    /// The program is to stand still.
    is_hurried: bool,
}

impl Waiting {
    /// No thread of the program waits for an answer.
    pub(crate) fn is_nobody_waiting(&self) -> bool {
        self.pending.is_empty()
    }

    /// All that wait do so for the GPU alone: when it has come so far they are answered, and nothing else is done.
    pub(super) fn is_plain(&self) -> bool {
        self.pending.iter().all(|pending| pending.gives_way)
    }

    /// Nothing but frees is outstanding.
    pub(crate) fn is_settled(&self) -> bool {
        self.pending.is_empty() && self.transfers == 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.is_settled() && self.frees == 0
    }

    /// The ring's request that waits was answered before.
    pub(crate) fn is_answered(&mut self, ring: usize) {
        let of_ring = self.pending.iter_mut().filter(|pending| pending.ring == ring);
        of_ring.for_each(|pending| pending.is_answered = true);
    }

    /// A request was done, which may have had a stream wait for something.
    pub(crate) fn forget_behind(&mut self, opcode: u32) {
        if opcode != Upload::OPCODE && opcode != Download::OPCODE {
            self.behind = None;
        }
    }

    /// How long the youngest wait has lasted; none when nobody's time is lost.
    pub(crate) fn youngest(&self) -> Option<Duration> {
        self.pending.iter().map(|pending| pending.since.elapsed()).min()
    }
}

impl Client {
    /// Answers when all work that was issued to the device is done, after `then`.
    pub(crate) fn when_idle<T: Serialize + 'static>(
        &mut self,
        origin: Origin,
        device: usize,
        then: impl FnOnce(&mut Client) -> Result<T> + 'static,
    ) -> Answer<T> {
        match self.marks(device) {
            Err(code) => Answer::Now(Err(code)),
            Ok(events) if events.is_empty() => Answer::Now(then(self)),
            Ok(events) => self.later(origin, device, events, then),
        }
    }

    /// Answers when all work that was issued to the stream is done, after `then`.
    pub(super) fn when_done<T: Serialize + 'static>(
        &mut self,
        origin: Origin,
        device: usize,
        stream: Stream,
        then: impl FnOnce(&mut Client) -> Result<T> + 'static,
    ) -> Answer<T> {
        if let Some(TransferFence { ring, end, .. }) =
            self.waiting.behind.filter(|behind| (behind.device, behind.stream) == (device, stream))
        {
            return self.later(origin, device, vec![Awaited::Transfers { ring, end }], then);
        }
        let done = self.on(device).and_then(|device| device.stream_query(stream));
        match done {
            Err(code) => Answer::Now(Err(code)),
            Ok(true) => Answer::Now(then(self)),
            Ok(false) => match self.record(device, stream) {
                Err(code) => Answer::Now(Err(code)),
                Ok(event) => self.later(origin, device, vec![Awaited::Event { event, scratch: true }], then),
            },
        }
    }

    /// Answers when the program's own event is done, after `then`.
    pub(super) fn when_recorded<T: Serialize + 'static>(
        &mut self,
        origin: Origin,
        device: usize,
        event: Event,
        then: impl FnOnce(&mut Client) -> Result<T> + 'static,
    ) -> Answer<T> {
        match self.on(device).and_then(|device| device.event_query(event)) {
            Err(code) => Answer::Now(Err(code)),
            Ok(true) => Answer::Now(then(self)),
            Ok(false) => self.later(origin, device, vec![Awaited::Event { event, scratch: false }], then),
        }
    }

    /// Answers `done` when what an event of several processes was recorded for is.
    pub(super) fn when_shared<T: Serialize + 'static>(
        &mut self,
        origin: Origin,
        device: usize,
        record: SharedRecord,
        done: T,
    ) -> Answer<T> {
        match record.is_done() {
            true => Answer::Now(Ok(done)),
            false => self.later(origin, device, vec![Awaited::Shared(record)], |_| Ok(done)),
        }
    }

    /// Answers when a stream takes more work.
    pub(super) fn when_room(&mut self, origin: Origin, device: usize, stream: Stream) -> Answer<bool> {
        self.later(origin, device, vec![Awaited::Room(stream)], |_| Ok(true))
    }

    /// The wait that was just begun, if there is one, gives way.
    pub(super) fn gives_way(&mut self, answer: Answer<bool>) -> Answer<bool> {
        match (answer, self.waiting.pending.last_mut()) {
            (Answer::Later, Some(pending)) => {
                pending.gives_way = true;
                if !self.waiting.is_hurried {
                    return Answer::Later;
                }
                let pending = self.waiting.pending.pop();
                pending.into_iter().for_each(|pending| self.let_go(pending.device, pending.events));
                Answer::Now(Ok(false))
            }
            (answer, _) => answer,
        }
    }

    /// Whether waits that can give way do, from now on.
    pub(crate) fn hurry_waits(&mut self, is_hurried: bool) {
        self.waiting.is_hurried = is_hurried;
        if !is_hurried {
            return;
        }
        for pending in self.waiting.pending.extract_if(.., |pending| pending.gives_way).collect::<Vec<_>>() {
            self.let_go(pending.device, pending.events);
            self.forget_answer(pending.ring);
            self.reply(pending.ring, &encode_reply(&Ok(false)));
        }
    }

    fn let_go(&mut self, device: usize, events: Vec<Awaited>) {
        for awaited in events {
            if let Awaited::Event { event, scratch: true } = awaited {
                self.give_event(device, event);
            }
        }
    }

    fn later<T: Serialize + 'static>(
        &mut self,
        origin: Origin,
        device: usize,
        events: Vec<Awaited>,
        then: impl FnOnce(&mut Client) -> Result<T> + 'static,
    ) -> Answer<T> {
        self.wait_for(origin, device, events, move |client, result| {
            Some(encode_reply(&result.and_then(|()| then(client))))
        });
        Answer::Later
    }

    /// Has an answer given when all of this has come.
    pub(super) fn wait_for(
        &mut self,
        origin: Origin,
        device: usize,
        events: Vec<Awaited>,
        then: impl FnOnce(&mut Client, Result<()>) -> Option<Vec<u8>> + 'static,
    ) {
        let (since, then) = (Instant::now(), Box::new(then));
        let (ring, gives_way, is_answered) = (origin.ring, false, false);
        let pending = Pending { ring, device, events, since, gives_way, is_answered, then };
        self.waiting.pending.push(pending);
    }

    /// Events behind the work of every stream of the device that is not done yet.
    pub(super) fn marks(&mut self, device: usize) -> Result<Vec<Awaited>> {
        let mut events = Vec::new();
        for stream in self.busy_streams(device)? {
            events.push(Awaited::Event { event: self.record(device, stream)?, scratch: true });
        }
        let orphans = self.orphans(device)?;
        events.extend(orphans.into_iter().map(|event| Awaited::Event { event, scratch: false }));
        Ok(events)
    }

    /// Events behind unfinished work of streams that are no more.
    pub(super) fn orphans(&mut self, device: usize) -> Result<Vec<Event>> {
        let context = self.context_mut(device)?;
        if context.orphans.is_empty() {
            return Ok(Vec::new());
        }
        let gpu = context.device.clone();
        let done: Vec<Event> =
            context.orphans.extract_if(.., |event| gpu.event_query(*event) != Ok(false)).collect();
        let left = context.orphans.clone();
        done.into_iter().try_for_each(|event| self.destroy_event(device, event))?;
        Ok(left)
    }

    /// True when no work is under way on the device.
    pub(crate) fn is_idle(&mut self, device: usize) -> Result<bool> {
        Ok(self.busy_streams(device)?.is_empty() && self.orphans(device)?.is_empty())
    }

    /// The stream that has all the work that is under way on the device; none if that is several, or none.
    pub(super) fn only_busy_stream(&mut self, device: usize) -> Result<Option<Stream>> {
        let busy = self.busy_streams(device)?;
        let is_all = self.orphans(device)?.is_empty();
        Ok(busy.first().copied().filter(|_| is_all && busy.len() == 1))
    }

    /// Streams with unfinished work, those under capture left out: what they are given does not run yet.
    fn busy_streams(&mut self, index: usize) -> Result<Vec<Stream>> {
        self.bind(index)?;
        let capturing = !self.recordings.is_empty();
        let Client { contexts, streams, threads, .. } = self;
        let context = contexts[index].as_mut().ok_or(rekindle_cuda::CUDA_ERROR_INVALID_CONTEXT)?;
        let device = &*context.device;
        let mut busy = Vec::new();
        let own = threads.iter_mut().filter_map(|thread| thread.streams.get_mut(index)?.as_mut());
        for stream in streams.values_mut().filter(|stream| stream.device == index).chain(own) {
            if !stream.busy || capturing && device.capture(stream.handle)?.status != 0 {
                continue;
            }
            stream.busy = !device.stream_query(stream.handle)?;
            if stream.busy {
                busy.push(stream.handle);
            }
        }
        // While a stream captures, the legacy stream may not be asked.
        if context.legacy_busy && !capturing {
            context.legacy_busy = !device.stream_query(Stream::LEGACY)?;
            if context.legacy_busy {
                busy.push(Stream::LEGACY);
            }
        }
        Ok(busy)
    }

    /// Destroys an event of the program, or lets it live until nobody waits for it.
    pub(super) fn destroy_event(&mut self, device: usize, event: Event) -> Result<()> {
        if self.waiting.pending.is_empty() {
            return self.on(device)?.event_destroy(event);
        }
        self.waiting.destroyed.push((device, event));
        Ok(())
    }

    /// Looks at everything that is outstanding and answers what is done. True when something was.
    pub(crate) fn poll(&mut self) -> bool {
        let mut progress = self.waiting.transfers != 0 && self.poll_transfers();
        progress |= self.waiting.frees != 0 && self.poll_frees();
        let mut at = 0;
        while at < self.waiting.pending.len() {
            match self.look(at) {
                None => at += 1,
                Some(result) => {
                    self.finish(at, result);
                    progress = true;
                }
            }
        }
        if self.waiting.pending.is_empty() && !self.waiting.destroyed.is_empty() {
            for (device, event) in std::mem::take(&mut self.waiting.destroyed) {
                let _ = self.on(device).and_then(|device| device.event_destroy(event));
            }
        }
        progress
    }

    /// Whether what a ring's request waits for has come; then it was done.
    pub(crate) fn has_come(&mut self, ring: usize) -> bool {
        let Some(at) = self.waiting.pending.iter().position(|pending| pending.ring == ring) else {
            return true;
        };
        let Some(result) = self.look(at) else { return false };
        self.finish(at, result);
        self.waiting.pending.iter().all(|pending| pending.ring != ring)
    }

    /// Whether a wait is over, and how.
    fn look(&mut self, at: usize) -> Option<Result<()>> {
        let device = self.waiting.pending[at].device;
        if let Err(code) = self.bind(device) {
            return Some(Err(code));
        }
        while let Some(awaited) = self.waiting.pending[at].events.last() {
            let (event, scratch) = match awaited {
                Awaited::Event { event, scratch } => (*event, *scratch),
                Awaited::Shared(record) if !record.is_done() => return None,
                Awaited::Transfers { ring, end } if !self.are_complete(*ring, *end) => return None,
                &Awaited::Room(stream) => {
                    if !self.has_room(device, stream) {
                        return None;
                    }
                    self.waiting.pending[at].events.pop();
                    continue;
                }
                Awaited::Shared(_) | Awaited::Transfers { .. } => {
                    self.waiting.pending[at].events.pop();
                    continue;
                }
            };
            match self.context(device).and_then(|context| context.device.event_query(event)) {
                Ok(false) => return None,
                Err(code) => return Some(Err(code)),
                Ok(true) => {
                    self.waiting.pending[at].events.pop();
                    if scratch {
                        self.give_event(device, event);
                    }
                }
            }
        }
        Some(Ok(()))
    }

    fn finish(&mut self, at: usize, result: Result<()>) {
        let pending = self.waiting.pending.remove(at);
        self.let_go(pending.device, pending.events);
        let Some(reply) = (pending.then)(self, result) else { return };
        self.tell_late_failures();
        self.note_failure(pending.device, &reply);
        // Whoever goes on in place of this worker answers.
        if !self.is_broken() && !pending.is_answered {
            self.note_told();
            self.note_answer(pending.ring);
            self.reply(pending.ring, &reply);
        }
    }

    /// Answers the request that a ring's thread waits for.
    pub(crate) fn reply(&self, ring: usize, bytes: &[u8]) {
        self.reply_when(ring, bytes, |_| ());
    }

    /// As [`Client::reply`]. `written` is told how many answers the ring has had, when this one is written and not yet
    /// given.
    pub(crate) fn reply_when(&self, ring: usize, bytes: &[u8], written: impl FnOnce(u32)) {
        let Some(thread) = self.threads.get(ring) else { return };
        let failed;
        let bytes = if bytes.len() <= rekindle_ring::REPLY_BYTES {
            bytes
        } else {
            log::error!("an answer of {} bytes does not fit the reply area", bytes.len());
            failed = encode_reply::<()>(&Err(rekindle_cuda::CUDA_ERROR_UNKNOWN));
            &failed
        };
        // SAFETY: the reply area is REPLY_BYTES long, and its thread reads it only after the signal below.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), thread.ring.reply_area(), bytes.len()) };
        let reply = &thread.ring.header().reply;
        written(reply.count());
        reply.raise();
    }
}
