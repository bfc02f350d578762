//! Events, and the program's clock.
//!
//! An event that was recorded before a restore has no counterpart on the new device: it counts as done, and its time is
//! known on the program's clock, which stands still while the program is an image.

use std::sync::Arc;

use rekindle_cuda::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE};
use rekindle_device::{Event, Result, Stream};
use rekindle_protocol::operation::{Answer, EventCreate, EventElapsed, EventRecord, Origin, StreamWaitEvent};
use serde::Serialize;

use super::{Client, EventObject, Step};

/// `CU_EVENT_DISABLE_TIMING`.
pub(crate) const DISABLE_TIMING: u32 = 2;
/// `CU_EVENT_INTERPROCESS`. The device's own event behind it is one of this process alone.
pub(crate) const INTERPROCESS: u32 = 4;

impl Client {
    pub(super) fn create_event(&mut self, request: EventCreate) -> Result<()> {
        let EventCreate { device, id, flags } = request;
        let device = usize::from(device);
        if !self.events.is_free(id) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if flags & INTERPROCESS != 0 {
            self.share_event(device, id)?;
        }
        let handle = self.on(device)?.event_create(flags & !INTERPROCESS)?;
        self.events.insert(id, EventObject { device, flags, handle, recorded: false, restored: None })
    }

    pub(super) fn record_event(&mut self, origin: Origin, request: EventRecord) -> Result<()> {
        let EventRecord { device, stream, event: id, flags } = request;
        let (device, handle) = self.enter(origin, device, stream)?;
        let event = self.events.get_mut(id)?;
        event.recorded = true;
        event.restored = None;
        let event = event.handle;
        self.context(device)?.device.event_record(event, handle, flags)?;
        self.note(device, handle, |stream| Step::Record { stream, event: event.0, id, flags })
    }

    pub(super) fn wait_event(&mut self, origin: Origin, request: StreamWaitEvent) -> Result<()> {
        let StreamWaitEvent { device, stream, event: id, flags } = request;
        let (device, handle) = self.enter(origin, device, stream)?;
        let EventObject { device: owner, handle: event, .. } = *self.events.get(id)?;
        let waiting = Arc::clone(&self.context(device)?.device);
        if owner != device {
            // Neither device knows what the other one keeps back.
            self.context(owner)?.device.event_issue(event)?;
        }
        waiting.stream_wait_event(handle, event, flags)?;
        if owner != device {
            waiting.stream_issue(handle)?;
        }
        self.note(device, handle, |stream| Step::Wait { stream, event: event.0, id, flags })
    }

    pub(super) fn query_event(&mut self, id: u32) -> Result<bool> {
        let EventObject { device, handle, restored, .. } = *self.events.get(id)?;
        if let Some(record) = self.shared_record(id) {
            return Ok(record.is_done());
        }
        if restored.is_some() { Ok(true) } else { self.on(device)?.event_query(handle) }
    }

    /// Answers `done` when the event is.
    pub(super) fn synchronize_event<T: Serialize + 'static>(
        &mut self,
        origin: Origin,
        event: u32,
        done: T,
    ) -> Answer<T> {
        let record = self.shared_record(event);
        match self.events.get(event) {
            Ok(event) if let Some(record) = record => self.when_shared(origin, event.device, record, done),
            Err(code) => Answer::Now(Err(code)),
            Ok(event) if event.restored.is_some() => Answer::Now(Ok(done)),
            Ok(&EventObject { device, handle, .. }) => {
                self.when_recorded(origin, device, handle, move |client| {
                    client.hand_out_printed_before(device, event)?;
                    Ok(done)
                })
            }
        }
    }

    pub(super) fn elapsed(&mut self, request: EventElapsed) -> Result<f32> {
        let (start, end) = (*self.events.get(request.start)?, *self.events.get(request.end)?);
        if start.restored.is_none() && end.restored.is_none() {
            return self.on(start.device)?.event_elapsed(start.handle, end.handle);
        }
        Ok((self.time(&end)? - self.time(&start)?) as f32)
    }

    /// When an event happened on the program's clock.
    fn time(&mut self, event: &EventObject) -> Result<f64> {
        if let Some(time) = event.restored {
            return Ok(time);
        }
        if !event.recorded || !event.keeps_time() {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        let anchor = self.context(event.device)?.anchor.ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        Ok(anchor.time + f64::from(self.on(event.device)?.event_elapsed(anchor.event, event.handle)?))
    }

    /// Whether the time of an event is still to come.
    pub(super) fn awaits_times(&mut self) -> Result<bool> {
        let is_timed = |event: &EventObject| event.recorded && event.keeps_time() && event.restored.is_none();
        let timed: Vec<_> =
            self.events.iter().filter(|(_, event)| is_timed(event)).map(|(_, event)| *event).collect();
        for event in timed {
            if !self.on(event.device)?.event_query(event.handle)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Times of the device's recorded events on the program's clock, and of this moment. All of these events have happened.
    ///
    /// The driver gives differences as single floats, whose error grows with the difference: so each event is timed
    /// against the one that follows it, not all against one.
    ///
    /// Of a client that [leaves](Client::leave) its context: as they were noted.
    pub(crate) fn event_times(&mut self, index: usize) -> Result<(Vec<(u32, f64)>, f64)> {
        if let Some(times) = self.times_at_rest(index) {
            return Ok(times);
        }
        self.bind(index)?;
        let context = self.context(index)?;
        // The program's streams may have something to do.
        let (device, stream) = (context.device.clone(), context.gpu.copies.first().copied());
        let now = device.event_create(0)?;
        let told = device.event_record(now, stream.unwrap_or(Stream::LEGACY), 0);
        let told = told.and_then(|()| device.event_synchronize(now));
        let times = told.and_then(|()| self.times_before(index, &*device, now));
        let _ = device.event_destroy(now);
        times
    }

    fn times_before(
        &mut self,
        index: usize,
        device: &dyn rekindle_device::Device,
        now: Event,
    ) -> Result<(Vec<(u32, f64)>, f64)> {
        let present = match self.context(index)?.anchor {
            Some(anchor) => anchor.time + f64::from(device.event_elapsed(anchor.event, now)?),
            None => 0.0,
        };
        let mut times = Vec::new();
        let mut live = Vec::new();
        for (id, event) in self.events.iter().filter(|(_, event)| event.device == index) {
            if let Some(time) = event.restored {
                times.push((id, time));
            } else if event.recorded
                && event.keeps_time()
                // One that a capture took has not happened and has no time.
                && let Ok(age) = device.event_elapsed(event.handle, now)
            {
                live.push((id, event.handle, age));
            }
        }
        live.sort_by(|a, b| a.2.total_cmp(&b.2));
        let (mut after, mut time) = (now, present);
        for (id, event, _) in live {
            time -= f64::from(device.event_elapsed(event, after)?);
            times.push((id, time));
            after = event;
        }
        Ok((times, present))
    }
}
