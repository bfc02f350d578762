//! What a program has in the context of one device as a whole.

use std::collections::HashSet;
use std::sync::Arc;

use rekindle_device::{Device, Event, Result, Stream};
use rekindle_protocol::operation::{Answer, ContextReset, LimitSet, Origin};
use serde::Serialize;

use super::{Body, Client, EventJoin, EventObject, Mark, StreamObject};
use crate::gpus::GpuContext;
use crate::memory::{Heap, Regions};

pub(crate) struct Context {
    pub gpu: Arc<GpuContext>,
    /// That of `gpu`, one step nearer.
    pub device: Arc<dyn Device>,
    pub heap: Heap,
    /// Events of the client's own that are not in use.
    pub scratch: Vec<Event>,
    /// The legacy stream may have unfinished work.
    pub legacy_busy: bool,
    /// Pieces of work that it was given, as they are counted around.
    pub legacy_issued: u32,
    /// Streams whose kernels may have printed since the driver last handed out what kernels print.
    pub printing: Vec<Stream>,
    pub meeting: EventJoin,
    /// What streams get that are made comes after what the first stream of copies has.
    pub copies_first: bool,
    /// Events behind the work of streams that were destroyed before it was done.
    pub orphans: Vec<Event>,
    /// Limits that the program set.
    pub limits: Vec<(u32, u64)>,
    /// The limit for stacks that the program knows, while a [lower one](super::stack) is in force.
    pub stack: Option<u64>,
    /// Stream-ordered allocations that were freed, until they are used again or given back.
    pub freed: Vec<Freed>,
    /// When times before the last restore are asked for, they are counted from here.
    pub anchor: Option<Mark>,
    /// Units of staging areas that this context knows, by their addresses.
    pub registered: HashSet<u64>,
}

/// An allocation that was freed in stream order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Freed {
    pub address: u64,
    pub room: u64,
    /// The stream that freed it, by its handle, and the event that its work before was done; none when it is.
    pub pending: Option<(u64, Event)>,
}

impl Context {
    pub(crate) fn new(gpu: Arc<GpuContext>, regions: Arc<Regions>) -> Context {
        Context {
            heap: Heap::new(gpu.device.clone(), regions, gpu.pressure.clone()),
            device: gpu.device.clone(),
            gpu,
            scratch: Vec::new(),
            legacy_busy: false,
            legacy_issued: 0,
            printing: Vec::new(),
            meeting: EventJoin::default(),
            copies_first: false,
            orphans: Vec::new(),
            limits: Vec::new(),
            stack: None,
            freed: Vec::new(),
            anchor: None,
            registered: HashSet::new(),
        }
    }
}

impl Client {
    /// Kernels begin on a stream.
    #[inline]
    pub(super) fn note_kernels(&mut self, device: usize, stream: Stream) -> Result<()> {
        if !self.may_print {
            return Ok(());
        }
        let printing = &mut self.context_mut(device)?.printing;
        if printing.last() != Some(&stream) && !printing.contains(&stream) {
            printing.push(stream);
        }
        Ok(())
    }

    /// Has the driver hand out what kernels of a stream printed, if it has nothing to do. The legacy stream has waited for
    /// others.
    pub(super) fn hand_out_printed(&mut self, device: usize, stream: Stream) -> Result<()> {
        let printing = &self.context(device)?.printing;
        let is_legacy = stream == Stream::LEGACY && !printing.is_empty();
        if !is_legacy && !printing.contains(&stream) {
            return Ok(());
        }
        let gpu = self.on(device)?;
        if gpu.stream_query(stream)? {
            gpu.stream_synchronize(stream)?;
            self.output.show();
            self.context_mut(device)?.printing.retain(|other| *other != stream);
        }
        Ok(())
    }

    /// As [`hand_out_printed`](Self::hand_out_printed), where the program has waited for its own event. What was printed behind
    /// that may come too, and the streams go on.
    pub(super) fn hand_out_printed_before(&mut self, device: usize, event: u32) -> Result<()> {
        if !self.context(device)?.printing.is_empty()
            && let Ok(EventObject { handle, restored: None, .. }) = self.events.get(event).copied()
        {
            let gpu = self.on(device)?;
            // It may have been recorded anew.
            if gpu.event_query(handle)? {
                gpu.event_synchronize(handle)?;
                self.output.show();
            }
        }
        Ok(())
    }

    pub(super) fn set_limit(&mut self, request: LimitSet) -> Result<()> {
        let device = usize::from(request.device);
        self.on(device)?.set_limit(request.limit, request.value)?;
        let limits = &mut self.context_mut(device)?.limits;
        limits.retain(|(limit, _)| *limit != request.limit);
        limits.push((request.limit, request.value));
        Ok(())
    }

    /// Answers `done` when the device is.
    pub(super) fn synchronize_context<T: Serialize + 'static>(
        &mut self,
        origin: Origin,
        device: u8,
        done: T,
    ) -> Answer<T> {
        let device = usize::from(device);
        self.when_idle(origin, device, move |client| {
            if !client.context(device)?.printing.is_empty() && client.is_idle(device)? {
                // Nothing is left to wait for; this lets the driver hand out what kernels printed.
                client.on(device)?.synchronize()?;
                client.output.show();
                client.context_mut(device)?.printing.clear();
            } else {
                // Others may have broken a context that is theirs too.
                client.gpus.check()?;
            }
            Ok(done)
        })
    }

    /// Why its context cannot be as it was before it when all that it has is given back: what other processes have too is not its
    /// alone to give.
    pub(crate) fn lasting_trace(&self) -> Option<&'static str> {
        let is = |found: bool, what| found.then_some(what);
        is(self.mended, "a fault of it was mended")
            .or_else(|| is(self.link.is_handed_over(), "the program has gone on elsewhere"))
            .or_else(|| is(self.ipc.is_used(), "other processes had its memory"))
            .or_else(|| is(self.exchange.is_busy(), "it had arrays that others handed on"))
            .or_else(|| is(!self.recordings.is_empty(), "it was capturing a graph"))
            .or_else(|| is(self.shadow.is_some(), "an image of it was being written"))
            .or_else(|| self.gpus.lasting_trace())
    }

    /// Frees everything that the program has on a device.
    pub(crate) fn reset_context(&mut self, request: ContextReset) -> Result<()> {
        let index = usize::from(request.device);
        self.bind(index)?;
        let device = self.context(index)?.device.clone();
        let mut first = device.synchronize();
        let mut note = |result: Result<()>| {
            if first.is_ok() {
                first = result;
            }
        };
        for exec in self.execs.extract(|exec| exec.device == index) {
            note(exec.handle.map_or(Ok(()), |handle| device.graph_exec_destroy(handle)));
        }
        for graph in self.graphs.extract(|graph| graph.device == index) {
            if let Some((handle, _)) = graph.built {
                note(device.graph_destroy(handle));
            }
        }
        self.functions.extract(|function| function.device == index);
        for module in self.modules.extract(|module| module.device == index) {
            match &module.body {
                Body::Whole(handle) => note(device.module_unload(*handle)),
                // Their globals go with all other memory.
                Body::Pieces(pieces) => pieces.modules().for_each(|piece| note(device.module_unload(piece))),
            }
        }
        for event in self.events.extract(|event| event.device == index) {
            note(device.event_destroy(event.handle));
        }
        for stream in self.streams.extract(|stream| stream.device == index) {
            note(device.stream_destroy(stream.handle));
            if stream.part.is_none() {
                self.former_streams.push(StreamObject { busy: false, ..stream });
            }
        }
        for part in self.parts.extract(|part| part.device == index) {
            note(part.meeting.stream.map_or(Ok(()), |stream| device.stream_destroy(stream)));
            note(device.part_destroy(part.handle));
        }
        if let Some(stream) = std::mem::take(&mut self.context_mut(index)?.meeting).stream {
            note(device.stream_destroy(stream));
        }
        note(self.reset_arrays(index));
        for pinned in self.pinned.extract_if(.., |pinned| pinned.device == index) {
            note(device.host_unregister(pinned.address));
        }
        note(self.virtual_memory.clear(index, &*device));
        note(self.forget_shared(index));
        self.forget_backlogs(index);
        let context = self.context_mut(index)?;
        for event in context.freed.drain(..).filter_map(|freed| Some(freed.pending?.1)) {
            context.scratch.push(event);
        }
        context.printing.clear();
        context.limits.clear();
        note(context.heap.clear());
        self.forget_all_data(index);
        self.forget_unmapped_arrays();
        first
    }
}
