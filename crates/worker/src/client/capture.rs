//! Stream capture: the device captures, and beside it every captured request is recorded.

use std::sync::Arc;

use rekindle_cuda::{
    CUDA_ERROR_ILLEGAL_STATE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
};
use rekindle_device::{Capture, GpuKind, Graph, Result, Stream};
use rekindle_protocol::operation::{
    CaptureAdd, CaptureAddBehind, CaptureBegin, CaptureBeginInto, CaptureDepend, CaptureEnd, CaptureEndInto,
    CaptureEnds, CaptureEndsOf, CaptureStatus, Id, NodeAction, Origin,
};

use super::recipe::{RecordedStream, Recording};
use super::{Built, Client, GraphObject, GraphStep, Recipe, Step};

/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
const ACTIVE: u32 = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: u32 = 2;

impl Client {
    pub(super) fn begin_capture(&mut self, origin: Origin, request: CaptureBegin) -> Result<()> {
        let CaptureBegin { device, stream, mode } = request;
        let (device, stream) = self.stream(origin, device, stream)?;
        self.finish_assumed()?;
        let gpu = &self.context(device)?.device;
        // The stricter modes forbid calls by thread, and here one thread makes the calls of all, its own polling too.
        let mode = if gpu.info().kind == GpuKind::Nvidia { RELAXED } else { mode };
        gpu.capture_begin(stream, mode)?;
        let id = gpu.capture(stream)?.id;
        let recording = Recording { origin: stream.0, mode, streams: Vec::new(), steps: Vec::new() };
        self.recordings.insert(id, recording);
        Ok(())
    }

    pub(super) fn begin_capture_into(&mut self, origin: Origin, request: CaptureBeginInto) -> Result<()> {
        let CaptureBeginInto { device, stream, mode, graph, after } = request;
        let found = self.graphs.get(graph)?;
        let nodes = found.recipe.nodes() as u32;
        if found.device != usize::from(device) || after.iter().any(|number| *number >= nodes) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.begin_capture(origin, CaptureBegin { device, stream, mode })?;
        let (device, stream) = self.stream(origin, device, stream)?;
        self.note(device, stream, |stream| Step::Into { stream, nodes, after })
    }

    pub(super) fn end_capture(&mut self, origin: Origin, request: CaptureEnd) -> Result<u32> {
        let CaptureEnd { device, stream, graph } = request;
        if !self.graphs.is_free(graph) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (device, recording, handle) = self.captured(origin, device, stream)?;
        let (built, recipe) = self.made_of(device, recording, handle)?;
        let count = recipe.nodes() as u32;
        let recipe = Arc::new(recipe);
        self.graphs.insert(graph, GraphObject { device, built, recipe, within: None })?;
        Ok(count)
    }

    /// What was captured becomes part of a graph. If it came to nothing, that stays as it was.
    pub(super) fn end_capture_into(&mut self, origin: Origin, request: CaptureEndInto) -> Result<u32> {
        let CaptureEndInto { device, stream, graph } = request;
        let (device, recording, handle) = self.captured(origin, device, stream)?;
        let is_new = self.graphs.get(graph).is_ok_and(|graph| graph.recipe.steps.is_empty());
        let (built, recipe) = self.made_of(device, recording, handle)?;
        if let Some((handle, _)) = &built
            && !is_new
        {
            self.on(device)?.graph_destroy(*handle)?;
        }
        if is_new {
            self.unbuild(graph)?;
            let found = self.graphs.get_mut(graph)?;
            (found.built, found.recipe) = (built, Arc::new(recipe));
            self.spread(graph)?;
        } else {
            let steps = recipe.unfolded().into_owned();
            self.edit(graph, |all| {
                all.extend(steps);
                Ok(())
            })?;
        }
        Ok(self.graphs.get(graph)?.recipe.nodes() as u32)
    }

    /// Ends a capture: what was recorded of it, and the device's graph.
    fn captured(&mut self, origin: Origin, device: u8, stream: Id) -> Result<(usize, Recording, Graph)> {
        let (device, stream) = self.stream(origin, device, stream)?;
        let gpu = self.context(device)?.device.clone();
        let recording = gpu.capture(stream).ok().and_then(|capture| self.recordings.remove(&capture.id));
        let handle = gpu.capture_end(stream).inspect_err(|_| {
            // An invalidated capture may no longer say its number.
            self.recordings.retain(|_, recording| recording.origin != stream.0);
        })?;
        let mut recording = recording.ok_or(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED)?;
        self.describe_streams(&mut recording);
        Ok((device, recording, handle))
    }

    /// The recipe of what was captured, and the device's graph if that is the same.
    fn made_of(
        &mut self,
        device: usize,
        mut recording: Recording,
        handle: Graph,
    ) -> Result<(Option<Built>, Recipe)> {
        let is_the_device_s = recording.is_the_device_s();
        recording.steps.retain(|step| !is_the_device_s || !matches!(step, Step::Into { .. }));
        let recipe = match is_the_device_s {
            true => Recipe { steps: vec![GraphStep::Captured(recording)] },
            false => Recipe { steps: recording.unfold() },
        };
        let is_whole = is_the_device_s && !self.writes_constants(&recipe)?;
        let gpu = self.on(device)?;
        if !is_whole {
            gpu.graph_destroy(handle)?;
            return Ok((None, recipe));
        }
        Ok((Some((handle, gpu.graph_nodes(handle)?)), recipe))
    }

    pub(super) fn recording(
        &mut self,
        origin: Origin,
        device: u8,
        stream: Id,
    ) -> Result<(&mut Recording, u64)> {
        let (device, stream) = self.stream(origin, device, stream)?;
        let capture = self.context(device)?.device.capture(stream)?;
        let recording = self.recordings.get_mut(&capture.id).filter(|_| capture.status == ACTIVE);
        Ok((recording.ok_or(CUDA_ERROR_ILLEGAL_STATE)?, stream.0))
    }

    pub(super) fn capture_ends_of(&mut self, origin: Origin, request: CaptureEndsOf) -> Result<CaptureEnds> {
        let CaptureEndsOf { device, stream, from } = request;
        let (recording, stream) = self.recording(origin, device, stream)?;
        Ok(recording.ends(stream, from))
    }

    pub(super) fn depend_in_capture(&mut self, origin: Origin, request: CaptureDepend) -> Result<()> {
        let CaptureDepend { device, stream, after, alone } = request;
        let (recording, stream) = self.recording(origin, device, stream)?;
        recording.steps.push(Step::Depend { stream, after, alone });
        Ok(())
    }

    pub(super) fn add_behind_in_capture(&mut self, origin: Origin, request: CaptureAddBehind) -> Result<u32> {
        let CaptureAddBehind { device, stream, after, action } = request;
        if let NodeAction::Kernel { function, .. } = &action {
            self.bind(device.into())?;
            self.functions.get(*function)?;
        }
        let (recording, stream) = self.recording(origin, device, stream)?;
        let number = recording.next_number();
        if after.iter().any(|before| *before >= number) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        recording.steps.push(Step::Added { stream, after, action });
        Ok(number)
    }

    pub(super) fn add_in_capture(&mut self, origin: Origin, request: CaptureAdd) -> Result<()> {
        let CaptureAdd { device, stream, action } = request;
        let (recording, stream) = self.recording(origin, device, stream)?;
        recording.steps.push(Step::Node { stream, action });
        Ok(())
    }

    pub(super) fn capture_of(&mut self, origin: Origin, request: CaptureStatus) -> Result<Capture> {
        let (device, stream) = self.stream(origin, request.device, request.stream)?;
        self.context(device)?.device.capture(stream)
    }

    pub(super) fn is_capturing(&self, device: usize, stream: Stream) -> Result<bool> {
        Ok(self.context(device)?.device.capture(stream)?.status != 0)
    }

    /// Records a step that was issued, if its stream is under capture.
    #[inline]
    pub(super) fn note(
        &mut self,
        device: usize,
        stream: Stream,
        step: impl FnOnce(u64) -> Step,
    ) -> Result<()> {
        if self.recordings.is_empty() { Ok(()) } else { self.note_captured(device, stream, step(stream.0)) }
    }

    fn note_captured(&mut self, device: usize, stream: Stream, step: Step) -> Result<()> {
        if stream == Stream::LEGACY {
            return Ok(());
        }
        let capture = self.context(device)?.device.capture(stream)?;
        if capture.status == ACTIVE
            && let Some(recording) = self.recordings.get_mut(&capture.id)
        {
            recording.steps.push(step);
        }
        Ok(())
    }

    /// Fills in what the streams of a recording are like; those destroyed since are taken for ordinary ones.
    fn describe_streams(&self, recording: &mut Recording) {
        let named = recording.steps.iter().map(Step::stream).chain([recording.origin]);
        let mut named: Vec<u64> = named.collect();
        named.sort_unstable();
        named.dedup();
        let own = self.threads.iter().flat_map(|thread| thread.streams.iter().flatten());
        let known: Vec<_> = self.streams.iter().map(|(_, stream)| stream).chain(own).collect();
        recording.streams = named
            .into_iter()
            .map(|stream| match known.iter().find(|known| known.handle.0 == stream) {
                Some(known) => RecordedStream { stream, flags: known.flags, priority: known.priority },
                None => RecordedStream { stream, flags: 1, priority: 0 },
            })
            .collect();
    }
}

impl Step {
    pub(super) fn stream(&self) -> u64 {
        match self {
            Step::Launch { stream, .. }
            | Step::Copy { stream, .. }
            | Step::CopyStrided { stream, .. }
            | Step::Set { stream, .. }
            | Step::WaitValue { stream, .. }
            | Step::WriteValue { stream, .. }
            | Step::HostCall { stream, .. }
            | Step::Record { stream, .. }
            | Step::Wait { stream, .. }
            | Step::Graph { stream, .. }
            | Step::CopyArray { stream, .. }
            | Step::Node { stream, .. }
            | Step::Depend { stream, .. }
            | Step::Added { stream, .. }
            | Step::Into { stream, .. } => *stream,
        }
    }
}
