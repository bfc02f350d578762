//! Bytes between a ring's staging area and the GPU.
//!
//! Transfers that follow one another on one stream are a batch; one event behind a batch tells that it is complete, and
//! then its last position is published. Positions of a ring are published in their order. A batch is closed before any
//! other kind of work is issued, because that might never end until the program has been told of the batch.
//!
//! The driver is told of an area unit by unit, as far as it is used: that takes all memory of the unit, and for a whole
//! area as long as a small program takes to answer.

use std::collections::VecDeque;
use std::ops::Range;

use rekindle_cuda::{
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, CUDA_ERROR_INVALID_VALUE,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CuResult,
};
use rekindle_device::{DEVICE_RANGE, Device, Event, Result, Stream};
use rekindle_protocol::operation::{Asynchronous, Download, Origin, Upload};
use rekindle_ring::STAGING_BYTES;

use super::Client;
use super::waiting::TransferFence;

/// A batch is closed when it has grown to this.
const BATCH_BYTES: u64 = 1 << 20;
/// What is registered at once. A copy never crosses from one unit to the next.
const UNIT: u64 = 2 << 20;

const _: () = assert!((STAGING_BYTES as u64).is_multiple_of(UNIT));

/// The staging transfers of one ring.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    open: Option<Open>,
    closed: VecDeque<Closed>,
    /// The last position that was published.
    complete: u64,
}

/// A transfer as it was asked for.
#[derive(Clone, Copy, Debug)]
struct Staged {
    device: u8,
    stream: u32,
    offset: u64,
    bytes: u64,
    end: u64,
    is_down: bool,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    device: usize,
    stream: Stream,
    bytes: u64,
    end: u64,
    /// Whether some of it comes from the GPU.
    is_down: bool,
}

#[derive(Clone, Copy, Debug)]
struct Closed {
    device: usize,
    /// None when there is nothing to wait for: the transfer could not be issued.
    event: Option<Event>,
    end: u64,
    /// The stream of one from the GPU, which has whoever waits for the bytes see what came before them.
    down: Option<Stream>,
    /// How much work there had been.
    work: u64,
}

/// The device of a transfer through a staging area, and up to where it uses that.
pub(crate) fn staged_by(opcode: u32, body: &[u8]) -> Option<(u8, u64)> {
    match opcode {
        Upload::OPCODE => postcard::from_bytes(body).ok().map(|Upload { device, end, .. }| (device, end)),
        Download::OPCODE => postcard::from_bytes(body).ok().map(|Download { device, end, .. }| (device, end)),
        _ => None,
    }
}

impl Client {
    pub(super) fn stage_up(&mut self, origin: Origin, request: Upload) -> Result<()> {
        let Upload { device, stream, to, offset, bytes, end } = request;
        let place = Staged { device, stream, offset, bytes, end, is_down: false };
        let issued = self.stage(origin, place, |area, at| (to.wrapping_add(at), area));
        if issued.is_ok() {
            self.transferred.to_gpu += bytes;
        }
        self.abandon_if_failed(origin, device, end, issued)
    }

    pub(super) fn stage_down(&mut self, origin: Origin, request: Download) -> Result<()> {
        let Download { device, stream, from, offset, bytes, end } = request;
        let place = Staged { device, stream, offset, bytes, end, is_down: true };
        let issued = self.stage(origin, place, |area, at| (area, from.wrapping_add(at)));
        if issued.is_ok() {
            self.transferred.from_gpu += bytes;
        }
        self.abandon_if_failed(origin, device, end, issued)
    }

    fn stage(&mut self, origin: Origin, place: Staged, sides: impl Fn(u64, u64) -> (u64, u64)) -> Result<()> {
        let Staged { device, stream, offset, bytes, end, is_down } = place;
        if bytes == 0 || offset.checked_add(bytes).is_none_or(|last| last > STAGING_BYTES as u64) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let before = self.waiting.assumed.only_transfers();
        let (device, stream) = self.enter(origin, device, stream)?;
        // What lies elsewhere the program can look at itself.
        let (to, from) = sides(0, 0);
        if DEVICE_RANGE.contains(&to.max(from)) {
            self.waiting.assumed.note_transfer(before, (device, stream));
        }
        if !self.recordings.is_empty() && stream != Stream::LEGACY && self.is_capturing(device, stream)? {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let area = self.threads.get(origin.ring).ok_or(CUDA_ERROR_INVALID_VALUE)?.ring.staging_area() as u64;
        let parts = split(offset, bytes);
        for part in parts.clone() {
            self.register_unit(device, area + part.start / UNIT * UNIT)?;
        }
        let open = self.threads[origin.ring].lane.open;
        if open.is_some_and(|open| (open.device, open.stream) != (device, stream)) {
            self.close_batch(origin.ring);
            // That batch may be of another device.
            self.bind(device)?;
        }
        for part in parts {
            let (to, from) = sides(area + part.start, part.start - offset);
            let bytes = part.end - part.start;
            let copy = |device: &dyn Device, stream| device.copy(to, from, bytes, stream);
            self.give_copy(device, stream, (to, from, bytes), copy)?;
            self.add_to_batch(origin.ring, Open { device, stream, bytes, end, is_down });
        }
        if self.threads[origin.ring].lane.open.is_some_and(|open| open.bytes >= BATCH_BYTES) {
            self.close_batch(origin.ring);
        }
        Ok(())
    }

    fn add_to_batch(&mut self, ring: usize, more: Open) {
        match &mut self.threads[ring].lane.open {
            Some(open) => {
                open.bytes += more.bytes;
                open.end = more.end;
                open.is_down |= more.is_down;
            }
            none => {
                *none = Some(more);
                self.waiting.transfers += 1;
            }
        }
    }

    /// Has the request be complete, if it is a transfer, and nothing done.
    pub(super) fn abandon(&mut self, ring: usize, opcode: u32, body: &[u8], code: CuResult) {
        let Some((device, end)) = staged_by(opcode, body) else { return };
        let _ = self.abandon_if_failed(Origin { ring }, device, end, Err(code));
    }

    /// A transfer that could not be issued must not hold up those after it.
    fn abandon_if_failed(&mut self, origin: Origin, device: u8, end: u64, issued: Result<()>) -> Result<()> {
        if issued.is_err() {
            self.needs_no_transfer(origin.ring, device, end);
            // The program is told on the device that the transfer was for.
            let _ = self.bind(device.into());
        }
        issued
    }

    /// The ring's staging area is not needed up to this position but for transfers before.
    pub(crate) fn needs_no_transfer(&mut self, ring: usize, device: u8, end: u64) {
        self.close_batch(ring);
        let work = self.waiting.assumed.work();
        let closed = Closed { device: usize::from(device), event: None, end, down: None, work };
        self.threads[ring].lane.closed.push_back(closed);
        self.waiting.transfers += 1;
    }

    /// Makes the unit of a staging area that begins there known to the device.
    fn register_unit(&mut self, device: usize, unit: u64) -> Result<()> {
        let context = self.context_mut(device)?;
        if !context.registered.contains(&unit) {
            match context.device.host_register(unit, UNIT) {
                Ok(()) | Err(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) => {
                    context.registered.insert(unit);
                }
                Err(code) => return Err(code),
            }
        }
        Ok(())
    }

    /// Puts an event behind what every ring has staged.
    pub(crate) fn close_batches(&mut self) {
        for ring in 0..self.threads.len() {
            self.close_batch(ring);
        }
    }

    fn close_batch(&mut self, ring: usize) {
        let Some(open) = self.threads[ring].lane.open.take() else { return };
        let event = match self.record(open.device, open.stream) {
            Ok(event) => Some(event),
            Err(code) => {
                self.asynchronous_failure("a staged transfer", code);
                None
            }
        };
        let Open { device, stream, end, is_down, .. } = open;
        let work = self.waiting.assumed.work();
        let closed = Closed { device, event, end, down: is_down.then_some(stream), work };
        self.threads[ring].lane.closed.push_back(closed);
        self.waiting.behind = Some(TransferFence { device, stream, ring, end });
    }

    /// The event behind a ring's transfers up to this position, if they are not known to be complete.
    pub(super) fn event_behind(&self, ring: usize, end: u64) -> Option<Event> {
        let closed = &self.threads.get(ring)?.lane.closed;
        closed.iter().find(|closed| closed.end >= end)?.event
    }

    /// Whether a ring's transfers up to this position are complete, and that is published.
    pub(super) fn are_complete(&self, ring: usize, end: u64) -> bool {
        self.threads.get(ring).is_none_or(|thread| thread.lane.complete >= end)
    }

    /// Publishes what is complete. True when something was.
    pub(super) fn poll_transfers(&mut self) -> bool {
        let mut progress = false;
        for ring in 0..self.threads.len() {
            let mut complete = None;
            while let Some(Closed { device, event, end, down, work }) =
                self.threads[ring].lane.closed.front().copied()
            {
                match event.map(|event| self.on(device).and_then(|device| device.event_query(event))) {
                    Some(Ok(false)) => break,
                    Some(Err(code)) => self.note_fault(device, code),
                    Some(Ok(true)) | None => {}
                }
                if let Some(event) = event {
                    self.give_event(device, event);
                }
                if let Some(stream) = down {
                    if let Err(code) = self.hand_out_printed(device, stream) {
                        self.note_fault(device, code);
                    }
                    self.waiting.assumed.note_idle(work, (device, stream));
                }
                self.threads[ring].lane.closed.pop_front();
                self.waiting.transfers -= 1;
                complete = Some(end);
            }
            if let Some(end) = complete.filter(|_| !self.is_broken()) {
                self.tell_late_failures();
                self.note_told();
                self.note_staged(ring, end);
                self.threads[ring].lane.complete = end;
                self.threads[ring].ring.staged(end);
                progress = true;
            }
        }
        progress
    }
}

/// A range of the area, cut where units meet.
fn split(offset: u64, bytes: u64) -> impl Iterator<Item = Range<u64>> + Clone {
    let end = offset + bytes;
    let part = move |start: u64| (start < end).then(|| start..((start / UNIT + 1) * UNIT).min(end));
    std::iter::successors(part(offset), move |before| part(before.end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_are_cut_where_units_meet() {
        let parts = |offset, bytes| -> Vec<(u64, u64)> {
            split(offset, bytes).map(|part| (part.start, part.end)).collect()
        };
        assert_eq!(parts(64, 4096), [(64, 4160)]);
        assert_eq!(parts(UNIT - 64, 64), [(UNIT - 64, UNIT)]);
        let rest = [(UNIT - 64, UNIT), (UNIT, 2 * UNIT), (2 * UNIT, 3 * UNIT - 64)];
        assert_eq!(parts(UNIT - 64, 2 * UNIT), rest);
    }
}
