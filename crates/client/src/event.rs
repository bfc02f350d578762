//! Events.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rekindle_cuda::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_READY};
use rekindle_protocol::operation::{
    ContextRecord, ContextWait, EventAwait, EventCreate, EventDestroy, EventElapsed, EventQuery, EventRecord,
    EventSynchronize, Id, IpcEventRecord,
};

use crate::abi::{Handle, Out, Result};
use crate::arena::{self, Kind, Object};
use crate::export::exports;
use crate::refusal::refused;
use crate::stream::enter;
use crate::{context, lane, session};

pub struct Event {
    pub id: Id,
    device: u8,
    flags: u32,
    /// An event that was never recorded is complete, and nobody needs to be asked.
    recorded: AtomicBool,
}

impl Event {
    /// One that another process has made.
    pub fn of_others(id: Id, device: u8) -> Event {
        Event { id, device, flags: INTERPROCESS | NO_TIMING, recorded: AtomicBool::new(true) }
    }

    pub fn is_interprocess(&self) -> bool {
        self.flags & INTERPROCESS != 0
    }

    pub fn is_on(&self, device: u8) -> bool {
        self.device == device
    }

    /// A graph may record it from now on.
    pub fn note_recorded(&self) {
        self.recorded.store(true, Ordering::Release);
    }

    /// Whether it may be under way; other processes may have recorded one of several.
    fn may_be_pending(&self) -> bool {
        self.is_interprocess() || self.recorded.load(Ordering::Acquire)
    }
}

impl Object for Event {
    const KIND: Kind = Kind::Event;
    fn device(&self) -> Option<u8> {
        Some(self.device)
    }
}

/// `CU_EVENT_DISABLE_TIMING`.
pub const NO_TIMING: u32 = 2;
/// `CU_EVENT_INTERPROCESS`.
const INTERPROCESS: u32 = 4;

/// A number that no other event has, and that none had in four thousand million before.
pub fn new_id() -> Id {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    next_id(&NEXT, |id| arena::search::<Event>(|event| event.id == id).is_some())
}

fn next_id(next: &AtomicU64, is_used: impl Fn(Id) -> bool) -> Id {
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number <= u64::from(Id::MAX) || !is_used(number as Id) {
            return number as Id;
        }
    }
}

fn record(event: Handle, stream: Handle, flags: u32) -> Result<()> {
    if flags > 1 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let event = arena::get::<Event>(event)?;
    let target = enter(stream)?;
    if target.device != event.device {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    if event.is_interprocess() {
        return lane::ask(&IpcEventRecord { device: target.device, stream: target.id, event: event.id });
    }
    event.recorded.store(true, Ordering::Release);
    lane::post(&EventRecord { device: target.device, stream: target.id, event: event.id, flags }, &[])
}

/// Records an event behind all that the streams of a part of the device have, or of all of it.
pub fn record_all(device: u8, part: Option<Id>, event: Handle) -> Result<()> {
    let event = own(event)?;
    if device != event.device {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    lane::ask(&ContextRecord { device, part, event: event.id })?;
    event.recorded.store(true, Ordering::Release);
    Ok(())
}

/// Has what those streams are given from now on wait for an event.
pub fn wait_in_all(device: u8, part: Option<Id>, event: Handle) -> Result<()> {
    lane::ask(&ContextWait { device, part, event: own(event)?.id })
}

/// An event of this process alone.
fn own(event: Handle) -> Result<&'static Event> {
    let event = arena::get::<Event>(event)?;
    match event.is_interprocess() {
        true => Err(refused(
            "cuCtxRecordEvent",
            "an event of several processes is recorded and waited for in a stream",
        )),
        false => Ok(event),
    }
}

fn elapsed(out: Out<f32>, start: Handle, end: Handle) -> Result<()> {
    out.check()?;
    let (start, end) = (arena::get::<Event>(start)?, arena::get::<Event>(end)?);
    let recorded = |event: &Event| event.recorded.load(Ordering::Acquire) && event.flags & NO_TIMING == 0;
    if !recorded(start) || !recorded(end) || start.device != end.device {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    out.put(lane::ask(&EventElapsed { start: start.id, end: end.id })?)
}

exports! {
    call fn cuEventCreate(out: Out<Handle>, flags: u32) {
        out.check()?;
        if flags & !7 != 0 || flags & INTERPROCESS != 0 && flags & NO_TIMING == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let device = context::device()?;
        let id = new_id();
        lane::post(&EventCreate { device, id, flags }, &[])?;
        out.put(arena::insert(Event { id, device, flags, recorded: AtomicBool::new(false) })?)
    }
    call fn cuEventDestroy(event: Handle) { lane::post(&EventDestroy { id: arena::remove::<Event>(event)?.id }, &[]) }
    call fn cuEventDestroy_v2(event: Handle) { lane::post(&EventDestroy { id: arena::remove::<Event>(event)?.id }, &[]) }
    call fn cuEventRecord | cuEventRecord_ptsz [stream] (event: Handle, stream: Handle) { record(event, stream, 0) }
    call fn cuEventRecordWithFlags | cuEventRecordWithFlags_ptsz [stream] (event: Handle, stream: Handle, flags: u32) {
        record(event, stream, flags)
    }
    call fn cuEventQuery(event: Handle) {
        let event = arena::get::<Event>(event)?;
        session::get()?.sticky_error(event.device)?;
        if !event.may_be_pending() {
            return Ok(());
        }
        let done = lane::ask(&EventQuery { event: event.id })?;
        session::get()?.take_error(event.device)?;
        if done { Ok(()) } else { Err(CUDA_ERROR_NOT_READY) }
    }
    call fn cuEventSynchronize(event: Handle) {
        let event = arena::get::<Event>(event)?;
        session::get()?.sticky_error(event.device)?;
        if event.may_be_pending() {
            lane::wait_for(&EventAwait { event: event.id }, &EventSynchronize { event: event.id })?;
        }
        session::get()?.take_error(event.device)
    }
    call fn cuEventElapsedTime(out: Out<f32>, start: Handle, end: Handle) { elapsed(out, start, end) }
    call fn cuEventElapsedTime_v2(out: Out<f32>, start: Handle, end: Handle) { elapsed(out, start, end) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_counted_around_leave_out_those_in_use() {
        let next = AtomicU64::new(u64::from(Id::MAX));
        let ids: Vec<Id> = (0..3).map(|_| next_id(&next, |id| id < 2 || id == 3)).collect();
        assert_eq!(ids, [Id::MAX, 2, 4]);
    }
}
