//! Stream capture: the device captures, and beside it every captured request is recorded.

use std::sync::Arc;

use rekindle_device::{Capture, GpuKind, Result, Stream};
use rekindle_protocol::operation::{CaptureBegin, CaptureEnd, CaptureStatus, Origin};

use super::recipe::{RecordedStream, Recording};
use super::{Client, GraphObject, GraphStep, Recipe, Step};

/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
const ACTIVE: u32 = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: u32 = 2;

impl Client {
    pub(super) fn begin_capture(&mut self, origin: Origin, request: CaptureBegin) -> Result<()> {
        let CaptureBegin { device, stream, mode } = request;
        let (device, stream) = self.stream(origin, device, stream)?;
        let gpu = &self.context(device)?.device;
        // The stricter modes forbid calls by thread, and here one thread makes the calls of all, its own polling too.
        let mode = if gpu.info().kind == GpuKind::Nvidia { RELAXED } else { mode };
        gpu.capture_begin(stream, mode)?;
        let id = gpu.capture(stream)?.id;
        let recording = Recording { origin: stream.0, mode, streams: Vec::new(), steps: Vec::new() };
        self.recordings.insert(id, recording);
        Ok(())
    }

    pub(super) fn end_capture(&mut self, origin: Origin, request: CaptureEnd) -> Result<u32> {
        let CaptureEnd { device, stream, graph } = request;
        if !self.graphs.is_free(graph) {
            return Err(rekindle_cuda::CUDA_ERROR_INVALID_VALUE);
        }
        let (device, stream) = self.stream(origin, device, stream)?;
        let gpu = self.context(device)?.device.clone();
        let recording = gpu.capture(stream).ok().and_then(|capture| self.recordings.remove(&capture.id));
        let handle = gpu.capture_end(stream).inspect_err(|_| {
            // An invalidated capture may no longer say its number.
            self.recordings.retain(|_, recording| recording.origin != stream.0);
        })?;
        let nodes = gpu.graph_nodes(handle)?;
        let count = nodes.len() as u32;
        let mut recording = recording.ok_or(rekindle_cuda::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED)?;
        self.describe_streams(&mut recording);
        let recipe = Arc::new(Recipe { steps: vec![GraphStep::Captured(recording)] });
        self.graphs.insert(graph, GraphObject { device, handle, nodes, recipe, is_stale: false })?;
        Ok(count)
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
            | Step::CopyArray { stream, .. } => *stream,
        }
    }
}
