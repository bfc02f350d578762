//! Parts of the multiprocessors that the program has divided off, which are its green contexts; and events of all streams of
//! one, or of a device.

use rekindle_cuda::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
};
use rekindle_device::{Event, Result, Stream, Units};
use rekindle_protocol::operation::{
    ContextRecord, ContextWait, FIRST_STREAM, Id, PartCreate, PartDestroy, StreamCreateOn,
};

use super::{Client, Context, EventJoin, PartObject, StreamObject};

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;

/// A new stream begins behind what all of its part or device are to wait for.
pub(super) fn begin_behind(context: &Context, meeting: EventJoin, new: Stream) -> Result<()> {
    match meeting.stream.filter(|_| meeting.holds) {
        Some(stream) => come_after(context, stream, new),
        None => Ok(()),
    }
}

/// So, and behind a copy that all are to wait for, until that is made.
pub(super) fn begin_behind_all(context: &mut Context, new: Stream) -> Result<()> {
    begin_behind(context, context.meeting, new)?;
    let copies = context.gpu.copies.first().copied().filter(|_| context.copies_first);
    let Some(copies) = copies else { return Ok(()) };
    context.copies_first = !context.device.stream_query(copies)?;
    if context.copies_first { come_after(context, copies, new) } else { Ok(()) }
}

fn come_after(context: &Context, stream: Stream, new: Stream) -> Result<()> {
    let event = context.device.event_create(super::waiting::SCRATCH_EVENT)?;
    context.device.event_record(event, stream, 0)?;
    context.device.stream_wait_event(new, event, 0)?;
    context.device.event_destroy(event)
}

impl Client {
    pub(super) fn units(&mut self, device: u8) -> Result<Units> {
        self.open(device.into())?;
        self.on(device.into())?.units().ok_or(CUDA_ERROR_NOT_SUPPORTED)
    }

    pub(super) fn create_part(&mut self, request: PartCreate) -> Result<()> {
        let PartCreate { device, id, units } = request;
        let device = usize::from(device);
        if !self.parts.is_free(id) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let handle = self.on(device)?.part_create(units)?;
        self.parts.insert(id, PartObject { device, units, handle, meeting: EventJoin::default() })
    }

    pub(super) fn destroy_part(&mut self, request: PartDestroy) -> Result<()> {
        let part = self.parts.remove(request.id)?;
        let streams = self.streams.iter().filter(|(_, stream)| stream.part == Some(request.id));
        let streams: Vec<Id> = streams.map(|(id, _)| id).collect();
        for id in streams {
            self.destroy_stream(rekindle_protocol::operation::StreamDestroy { id })?;
        }
        let device = self.on(part.device)?;
        if let Some(stream) = part.meeting.stream {
            device.stream_destroy(stream)?;
        }
        device.part_destroy(part.handle)
    }

    pub(super) fn create_stream_on(&mut self, request: StreamCreateOn) -> Result<()> {
        let StreamCreateOn { part: name, id, priority } = request;
        let part = *self.parts.get(name)?;
        if id < FIRST_STREAM || !self.streams.is_free(id) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let turns = self.turns.clone();
        let mut turn = turns.take();
        let handle = self.on(part.device)?.stream_create_on(part.handle, priority)?;
        let at = turn.number();
        drop(turn);
        self.waiting.assumed.note_work();
        let context = self.context_mut(part.device)?;
        begin_behind(context, part.meeting, handle)?;
        begin_behind_all(context, handle)?;
        let stream = StreamObject {
            device: part.device,
            flags: NON_BLOCKING,
            priority,
            handle,
            busy: false,
            issued: 0,
            at,
            part: Some(name),
        };
        self.streams.insert(id, stream)
    }

    pub(super) fn record_all(&mut self, request: ContextRecord) -> Result<()> {
        let ContextRecord { device, part, event } = request;
        let device = usize::from(device);
        let streams = self.streams_of(device, part)?;
        let meeting = self.meeting_of(device, part)?;
        self.come_after(device, meeting, &streams)?;
        let event = self.events.get_mut(event)?;
        event.recorded = true;
        event.restored = None;
        let event = event.handle;
        self.on(device)?.event_record(event, meeting, 0)
    }

    pub(super) fn wait_in_all(&mut self, request: ContextWait) -> Result<()> {
        let ContextWait { device, part, event } = request;
        let device = usize::from(device);
        let event = self.events.get(event)?.handle;
        let mut streams = self.streams_of(device, part)?;
        streams.push(self.meeting_of(device, part)?);
        self.hold(device, part, &streams, event)?;
        match part {
            Some(part) => self.parts.get_mut(part)?.meeting.holds = true,
            None => self.context_mut(device)?.meeting.holds = true,
        }
        Ok(())
    }

    /// Has a stream of this worker's come after all that a device was given by now.
    pub(super) fn come_after_all(&mut self, device: usize, stream: Stream) -> Result<()> {
        let streams = self.streams_of(device, None)?;
        self.come_after(device, stream, &streams)?;
        for orphan in self.orphans(device)? {
            self.on(device)?.stream_wait_event(stream, orphan, 0)?;
        }
        Ok(())
    }

    fn come_after(&mut self, device: usize, stream: Stream, others: &[Stream]) -> Result<()> {
        self.finish_assumed()?;
        for other in others {
            let mark = self.record(device, *other)?;
            let waited = self.context(device)?.device.stream_wait_event(stream, mark, 0);
            self.give_event(device, mark);
            waited?;
        }
        Ok(())
    }

    /// Has all that a device is given from now on come after an event of the stream of copies, in streams too that are made later.
    pub(super) fn begin_all_behind(&mut self, device: usize, event: Event) -> Result<()> {
        let streams = self.streams_of(device, None)?;
        self.hold(device, None, &streams, event)?;
        self.context_mut(device)?.copies_first = true;
        Ok(())
    }

    /// Has what these streams of a part, or of a device, are given from now on come after an event.
    fn hold(&mut self, device: usize, part: Option<Id>, streams: &[Stream], event: Event) -> Result<()> {
        self.finish_assumed()?;
        self.waiting.assumed.note_work();
        for stream in streams {
            self.on(device)?.stream_wait_event(*stream, event, 0)?;
        }
        let with =
            |stream: &&mut StreamObject| stream.device == device && (part.is_none() || stream.part == part);
        self.streams.values_mut().filter(with).for_each(|stream| stream.busy = true);
        if part.is_none() {
            let own = self.threads.iter_mut().filter_map(|thread| thread.streams.get_mut(device)?.as_mut());
            own.for_each(|stream| stream.busy = true);
            self.context_mut(device)?.legacy_busy = true;
        }
        Ok(())
    }

    /// The streams of a part, or of a device with all its parts; none of them may be captured.
    fn streams_of(&mut self, device: usize, part: Option<Id>) -> Result<Vec<Stream>> {
        self.bind(device)?;
        let with = |(_, stream): &(Id, &StreamObject)| {
            stream.device == device && (part.is_none() || stream.part == part)
        };
        let mut streams: Vec<Stream> =
            self.streams.iter().filter(with).map(|(_, stream)| stream.handle).collect();
        match part {
            Some(part) => drop(self.parts.get(part)?),
            None => {
                streams.push(Stream::LEGACY);
                let own = self.threads.iter().filter_map(|thread| thread.streams.get(device)?.as_ref());
                streams.extend(own.map(|stream| stream.handle));
            }
        }
        if !self.recordings.is_empty() {
            for stream in &streams {
                if self.is_capturing(device, *stream)? {
                    return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
                }
            }
        }
        Ok(streams)
    }

    /// Where they meet. All of a device includes those of its parts.
    fn meeting_of(&mut self, device: usize, part: Option<Id>) -> Result<Stream> {
        let known = match part {
            Some(part) => self.parts.get(part)?.meeting.stream,
            None => self.context(device)?.meeting.stream,
        };
        if let Some(known) = known {
            return Ok(known);
        }
        let made = self.on(device)?.stream_create(NON_BLOCKING, 0)?;
        match part {
            Some(part) => self.parts.get_mut(part)?.meeting.stream = Some(made),
            None => self.context_mut(device)?.meeting.stream = Some(made),
        }
        Ok(made)
    }
}
