//! Streams, and which one a request means.

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_device::{Result, Stream};
use rekindle_protocol::operation::{
    Answer, FIRST_STREAM, Id, LEGACY_STREAM, Origin, PER_THREAD_STREAM, StreamCreate, StreamDestroy,
    StreamQuery,
};
use serde::Serialize;

use super::backlog::is_marked;
use super::parts::begin_behind_all;
use super::{Client, StreamObject, Turn};

impl Client {
    /// The stream that a request names, its device's context made current.
    #[inline]
    pub(crate) fn stream(&mut self, origin: Origin, device: u8, id: Id) -> Result<(usize, Stream)> {
        let device = usize::from(device);
        self.bind(device)?;
        let handle = match id {
            LEGACY_STREAM => Stream::LEGACY,
            PER_THREAD_STREAM => self.own_stream(origin, device)?.handle,
            _ => self.streams.get(id)?.handle,
        };
        self.come_after_assumed(device, handle)?;
        Ok((device, handle))
    }

    /// As [`Client::stream`], for work: the stream counts as busy from now on.
    #[inline]
    pub(crate) fn enter(&mut self, origin: Origin, device: u8, id: Id) -> Result<(usize, Stream)> {
        let device = usize::from(device);
        self.bind(device)?;
        self.waiting.behind = None;
        self.waiting.assumed.note_work();
        let (handle, issued) = match id {
            LEGACY_STREAM => {
                let context = self.context_mut(device)?;
                context.legacy_busy = true;
                (Stream::LEGACY, &mut context.legacy_issued)
            }
            PER_THREAD_STREAM => {
                let stream = self.own_stream(origin, device)?;
                stream.busy = true;
                (stream.handle, &mut stream.issued)
            }
            _ => {
                let stream = self.streams.get_mut(id)?;
                stream.busy = true;
                (stream.handle, &mut stream.issued)
            }
        };
        let is_marked = is_marked(issued);
        self.come_after_assumed(device, handle)?;
        if is_marked {
            self.mark_backlog(origin, device, handle, id);
        }
        Ok((device, handle))
    }

    /// The per-thread default stream of a ring, made when it is first used.
    fn own_stream(&mut self, origin: Origin, device: usize) -> Result<&mut StreamObject> {
        let Client { contexts, threads, turns, .. } = self;
        let thread = threads.get_mut(origin.ring).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if thread.streams.len() <= device {
            thread.streams.resize(device + 1, None);
        }
        let slot = &mut thread.streams[device];
        match slot {
            Some(stream) => Ok(stream),
            None => {
                let context = contexts[device].as_mut().ok_or(rekindle_cuda::CUDA_ERROR_INVALID_CONTEXT)?;
                let mut turn = turns.take();
                let handle = context.device.stream_create(0, 0)?;
                let at = turn.number();
                drop(turn);
                begin_behind_all(context, handle)?;
                Ok(slot.insert(StreamObject {
                    device,
                    flags: 0,
                    priority: 0,
                    handle,
                    busy: false,
                    issued: 0,
                    at,
                    part: None,
                }))
            }
        }
    }

    pub(super) fn create_stream(&mut self, request: StreamCreate) -> Result<()> {
        let StreamCreate { device, id, flags, priority } = request;
        let device = usize::from(device);
        if id < FIRST_STREAM || !self.streams.is_free(id) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let turns = self.turns.clone();
        let mut turn = turns.take();
        let handle = self.on(device)?.stream_create(flags, priority)?;
        let at = self.room_for_stream((device, flags, priority), &mut turn);
        drop(turn);
        self.waiting.assumed.note_work();
        begin_behind_all(self.context_mut(device)?, handle)?;
        let made = StreamObject { device, flags, priority, handle, busy: false, issued: 0, at, part: None };
        self.streams.insert(id, made)
    }

    /// When the room in the driver's heaps was taken that a new stream has: it gets that of a like one that is gone.
    fn room_for_stream(&mut self, (device, flags, priority): (usize, u32, i32), turn: &mut Turn<'_>) -> u64 {
        let like = |former: &StreamObject| {
            (former.device, former.flags, former.priority) == (device, flags, priority)
        };
        match self.former_streams.iter().position(like) {
            Some(at) => self.former_streams.remove(at).at,
            None => turn.number(),
        }
    }

    pub(super) fn destroy_stream(&mut self, request: StreamDestroy) -> Result<()> {
        let stream = self.streams.remove(request.id)?;
        // Work that it still has goes on, and later waits for the device must see it.
        if stream.busy {
            self.remember_work(&stream)?;
        }
        self.forget_stream(stream.device, stream.handle);
        if stream.part.is_none() {
            self.former_streams.push(StreamObject { busy: false, ..stream });
        }
        self.on(stream.device)?.stream_destroy(stream.handle)
    }

    /// Another stream may get this one's handle; it must not inherit what this one freed, printed or had to do.
    fn forget_stream(&mut self, device: usize, handle: Stream) {
        self.forget_backlog(device, handle);
        let Ok(context) = self.context_mut(device) else { return };
        context.printing.retain(|stream| *stream != handle);
        for (owner, _) in context.freed.iter_mut().filter_map(|freed| freed.pending.as_mut()) {
            if *owner == handle.0 {
                *owner = u64::MAX;
            }
        }
    }

    /// Makes waits for the device also wait for what a stream has now.
    fn remember_work(&mut self, stream: &StreamObject) -> Result<()> {
        let done = self.on(stream.device)?.stream_query(stream.handle).unwrap_or(true);
        if !done {
            let event = self.record(stream.device, stream.handle)?;
            self.context_mut(stream.device)?.orphans.push(event);
        }
        Ok(())
    }

    pub(super) fn query_stream(&mut self, origin: Origin, request: StreamQuery) -> Result<bool> {
        let (device, stream) = self.stream(origin, request.device, request.stream)?;
        self.context(device)?.device.stream_query(stream)
    }

    /// Answers `done` when the stream is.
    pub(super) fn synchronize_stream<T: Serialize + 'static>(
        &mut self,
        origin: Origin,
        (device, stream): (u8, Id),
        done: T,
    ) -> Answer<T> {
        let (device, stream) = match self.stream(origin, device, stream) {
            Ok(found) => found,
            Err(code) => return Answer::Now(Err(code)),
        };
        if self.is_assumed_done(device, stream) {
            return Answer::Now(Ok(done));
        }
        let work = self.waiting.assumed.work();
        self.when_done(origin, device, stream, move |client| {
            client.hand_out_printed(device, stream)?;
            client.waiting.assumed.note_idle(work, (device, stream));
            Ok(done)
        })
    }
}
