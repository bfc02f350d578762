//! What a client's streams are given, in its order, where some of it has to wait for a copy that is issued piece by piece.
//!
//! A stream has a lane while there is something that it was given and that the device was not. Behind it waits all that
//! the stream is given then; and beyond the stream what CUDA's rules order behind it: waits for an event whose record is
//! in a lane, and records of an event that waits in lanes are still for.
//!
//! What is in lanes is numbered. A number is only ever after smaller ones, so lanes cannot wait for each other in a
//! circle.

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use rekindle_cuda::{CUDA_ERROR_DEINITIALIZED, CuResult};
use rekindle_device::{Device, Event, Result, Stream};

use super::lane::{StreamWork, Task};
use super::link::Link;
use super::order::Order;
use super::overtake::Computes;
use super::piece::{Direction, RemainingCopy};
use super::queues::Queues;

/// So much a stream's lane takes; then calls wait, as they do when a driver's queue is full.
const MOST: usize = 1024;
/// A client's streams on one device.
pub(super) struct Lanes {
    state: Mutex<State>,
    /// Something was issued, or the client is no more.
    issued: Condvar,
    /// The first error of what was issued later and that nobody was told of; 0: none.
    late: AtomicI32,
}

pub(super) struct State {
    pub order: Order,
    pub queues: Queues,
}

/// Whether work may be issued now.
pub(super) enum IssueSlot<'a> {
    Now(Stream),
    Later(DeferredIssue<'a>),
}

/// The place of work that is issued later.
pub(super) struct DeferredIssue<'a> {
    state: MutexGuard<'a, State>,
    stream: Stream,
}

impl Lanes {
    pub(super) fn new(
        device: Arc<dyn Device>,
        link: Option<Arc<Link>>,
        legacy: Stream,
        order_event: Event,
        computes: Arc<Computes>,
    ) -> Arc<Lanes> {
        Arc::new_cyclic(|own: &Weak<Lanes>| {
            let client = link.as_ref().map_or(0, |link| link.join(own.clone(), computes));
            let queues = Queues::new(device, link, client, order_event);
            let state = State { order: Order::new(legacy), queues };
            Lanes { state: Mutex::new(state), issued: Condvar::new(), late: AtomicI32::new(0) }
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until(&self, reached: impl Fn(&Queues) -> bool) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        while !reached(&state.queues) {
            if state.queues.is_closed() {
                return Err(CUDA_ERROR_DEINITIALIZED);
            }
            state = self.issued.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(state)
    }

    /// Waits until all that these streams were given so far is issued.
    pub(super) fn wait_for(&self, streams: &[Stream]) -> Result<()> {
        let last = self.state().queues.last();
        self.wait_until(|queues| queues.is_issued(last, Some(streams))).map(drop)
    }

    /// Waits until all that is in lanes now is issued.
    pub(super) fn wait_for_all(&self) -> Result<()> {
        let last = self.state().queues.last();
        self.wait_until(|queues| queues.is_issued(last, None)).map(drop)
    }

    /// Waits until the latest record of the event is issued.
    pub(super) fn wait_for_record(&self, event: Event) -> Result<()> {
        self.wait_until(|queues| !queues.is_unrecorded(event)).map(drop)
    }

    /// The place of work that a stream is given.
    pub(super) fn place(&self, stream: Stream) -> Result<IssueSlot<'_>> {
        let (mut state, stream) = self.enter(stream)?;
        if state.queues.is_behind(stream) {
            return Ok(IssueSlot::Later(DeferredIssue { state, stream }));
        }
        state.queues.note_work(stream);
        Ok(IssueSlot::Now(stream))
    }

    /// The driver's stream for the client's, once there is room in its lane.
    fn enter(&self, stream: Stream) -> Result<(MutexGuard<'_, State>, Stream)> {
        let mut guard = self.state();
        let real = guard.order.real(stream);
        let capturing = guard.queues.is_capturing();
        let most = if capturing { 1 } else { MOST };
        if guard.queues.length(real) >= most {
            drop(guard);
            guard = self.wait_until(|queues| queues.length(real) < most)?;
        }
        let state = &mut *guard;
        let real = state.order.enter(&mut state.queues, stream)?;
        Ok((guard, real))
    }

    pub(super) fn record(&self, event: Event, stream: Stream, flags: u32) -> Result<()> {
        let (mut state, stream) = self.enter(stream)?;
        if !state.queues.put_record(event, stream, flags) {
            return Ok(());
        }
        let device = state.queues.device().clone();
        drop(state);
        device.event_record(event, stream, flags)
    }

    pub(super) fn wait_event(&self, stream: Stream, event: Event, flags: u32) -> Result<()> {
        let (mut state, stream) = self.enter(stream)?;
        if !state.queues.put_wait(stream, event, flags) {
            return Ok(());
        }
        let device = state.queues.device().clone();
        drop(state);
        device.stream_wait_event(stream, event, flags)
    }

    /// Issues a copy over the link, or as much of it as is the client's turn. `reaches` says whether a kernel of the client's
    /// could make it.
    pub(super) fn copy(
        &self,
        way: Direction,
        mut rest: RemainingCopy,
        stream: Stream,
        whole: impl FnOnce(&dyn Device, Stream) -> Result<()>,
        reaches: impl FnOnce() -> bool,
    ) -> Result<()> {
        let (mut state, stream) = self.enter(stream)?;
        let queues = &mut state.queues;
        let Some(link) = queues.link() else {
            queues.note_work(stream);
            return whole(&**queues.device(), stream);
        };
        if queues.is_behind(stream) {
            queues.push(stream, Vec::new(), Task::Copy(way, rest));
        } else if let Some(event) = queues.take_small(&link, stream, rest.left())? {
            let (device, client) = (queues.device().clone(), queues.client());
            drop(state);
            match rest.line().zip(link.overtaking(way, client)).filter(|_| reaches()) {
                Some((line, kernels)) => kernels.copy(&*device, line, stream)?,
                None => whole(&*device, stream)?,
            }
            return device.event_record(event, stream, 0);
        } else if !queues.advance(&link, stream, way, &mut rest)? {
            queues.push(stream, Vec::new(), Task::Copy(way, rest));
        }
        Ok(())
    }

    /// The error of what was issued later, of which nobody has been told. It is there before anything behind it is seen to be done.
    pub(super) fn take_late(&self) -> Option<CuResult> {
        match self.late.load(Ordering::Acquire) {
            0 => None,
            _ => Some(CuResult(self.late.swap(0, Ordering::AcqRel))),
        }
    }

    /// Issues what may be issued, on a thread that is bound to the device. Whether something was.
    pub(super) fn pump(&self) -> bool {
        let mut state = self.state();
        let progress = state.queues.pump();
        if let Some(code) = state.queues.take_late() {
            let _ = self.late.compare_exchange(0, code.0, Ordering::Release, Ordering::Relaxed);
        }
        drop(state);
        if progress {
            self.issued.notify_all();
        }
        progress
    }

    /// The client is no more: what is in its lanes is forgotten, and nothing is put there any more.
    pub(super) fn close(&self) {
        let dropped = self.state().queues.close();
        drop(dropped);
        self.issued.notify_all();
    }
}

impl State {
    pub(super) fn capture(&mut self, stream: Stream, begins: bool) {
        self.order.capture(stream, begins);
        self.queues.capture(stream, begins);
    }
}

impl DeferredIssue<'_> {
    pub(super) fn put(mut self, work: StreamWork) {
        let stream = self.stream;
        self.state.queues.push(stream, Vec::new(), Task::Work(work));
    }
}
