//! Stream capture.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rekindle_cuda::types::GraphEdgeData;
use rekindle_cuda::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
};
use rekindle_protocol::operation::{CaptureBegin, CaptureEnd};

use crate::abi::{Handle, In, Out, Result};
use crate::export::exports;
use crate::graph;
use crate::stream::{self, Place, resolve};
use crate::{lane, thread};

/// Streams on which a capture was begun and not ended.
static BEGUN: Mutex<Option<HashSet<Place>>> = Mutex::new(None);
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn begun() -> MutexGuard<'static, Option<HashSet<Place>>> {
    BEGUN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn change(change: impl FnOnce(&mut HashSet<Place>)) {
    let mut begun = begun();
    let begun = begun.get_or_insert_default();
    change(begun);
    COUNT.store(begun.len(), Ordering::Release);
}

/// Whether any stream is being captured.
pub fn any() -> bool {
    COUNT.load(Ordering::Acquire) != 0
}

pub fn forget_device(device: u8) {
    change(|begun| begun.retain(|place| place.device != device));
}

fn begin(stream: Handle, mode: u32) -> Result<()> {
    if mode > 2 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let place = resolve(stream)?;
    lane::ask(&CaptureBegin { device: place.device, stream: place.id, mode })?;
    change(|begun| {
        begun.insert(place);
    });
    Ok(())
}

/// Begins a capture whose nodes go into a graph that the program has made.
fn begin_into(stream: Handle, graph: Handle, after: usize, mode: u32) -> Result<()> {
    graph::empty(graph)?;
    if after != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    begin(stream, mode)?;
    let place = resolve(stream)?;
    let began = stream::capture(place).and_then(|capture| {
        graph::capture_into(graph, place.device)?;
        unfinished().get_or_insert_default().insert(capture.id, Unfinished { graph, is_program_s: true });
        Ok(())
    });
    if began.is_err() {
        // What it has begun is nobody's.
        let _ = lane::ask(&CaptureEnd { device: place.device, stream: place.id, graph: graph::new_id() });
        change(|begun| {
            begun.remove(&place);
        });
    }
    began
}

/// The graph that a capture under way will make.
#[derive(Clone, Copy)]
struct Unfinished {
    graph: Handle,
    /// Whether it was the program's before the capture; else the program has asked for it since.
    is_program_s: bool,
}

/// By the capture's id.
static UNFINISHED: Mutex<Option<HashMap<u64, Unfinished>>> = Mutex::new(None);

fn unfinished() -> MutexGuard<'static, Option<HashMap<u64, Unfinished>>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The graph of an active capture has a handle, with which nothing can be done before the capture ends; what the next
/// node will depend on is known to the worker only.
fn info(stream: Handle, status: Out<u32>, id: Out<u64>, graph: Out<Handle>, count: Out<usize>) -> Result<()> {
    const ACTIVE: u32 = 1;
    status.check()?;
    let place = resolve(stream)?;
    let capture = stream::capture(place)?;
    if capture.status == ACTIVE {
        id.offer(capture.id);
        if !graph.is_null() {
            let mut unfinished = unfinished();
            let unfinished = unfinished.get_or_insert_default();
            let made = match unfinished.get(&capture.id) {
                Some(made) => *made,
                None => Unfinished { graph: graph::unfinished(place.device)?, is_program_s: false },
            };
            unfinished.insert(capture.id, made);
            graph.offer(made.graph);
        }
        count.offer(0);
    }
    status.put(capture.status)
}

fn end(stream: Handle) -> Result<Handle> {
    let place = resolve(stream)?;
    let given_out = unfinished().as_ref().is_some_and(|unfinished| !unfinished.is_empty());
    let capture = if given_out { stream::capture(place)?.id } else { 0 };
    let known = unfinished().get_or_insert_default().get(&capture).copied();
    let graph = known.map_or_else(|| Ok(graph::new_id()), |known| graph::id(known.graph))?;
    let ended = lane::ask(&CaptureEnd { device: place.device, stream: place.id, graph });
    if !matches!(ended, Err(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED | CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)) {
        change(|begun| {
            begun.remove(&place);
        });
        unfinished().get_or_insert_default().remove(&capture);
        if let (Err(_), Some(Unfinished { graph, is_program_s: true })) = (&ended, known) {
            graph::not_captured(graph)?;
        }
    }
    ended?;
    graph::captured(graph, place.device, known.map(|known| known.graph))
}

exports! {
    call fn cuStreamBeginCapture | cuStreamBeginCapture_ptsz [stream] (stream: Handle) { begin(stream, 0) }
    call fn cuStreamBeginCapture_v2 | cuStreamBeginCapture_v2_ptsz [stream] (stream: Handle, mode: u32) { begin(stream, mode) }
    call fn cuStreamBeginCaptureToGraph | cuStreamBeginCaptureToGraph_ptsz [stream] (stream: Handle, graph: Handle, _after: In<Handle>, _edges: In<GraphEdgeData>, count: usize, mode: u32) {
        begin_into(stream, graph, count, mode)
    }
    call fn cuStreamEndCapture | cuStreamEndCapture_ptsz [stream] (stream: Handle, out: Out<Handle>) {
        out.put(Handle::NULL)?;
        out.put(end(stream)?)
    }
    call fn cuStreamIsCapturing | cuStreamIsCapturing_ptsz [stream] (stream: Handle, out: Out<u32>) {
        out.put(stream::capture(resolve(stream)?)?.status)
    }
    call fn cuStreamGetCaptureInfo | cuStreamGetCaptureInfo_ptsz [stream] (stream: Handle, status: Out<u32>, id: Out<u64>) {
        info(stream, status, id, Out(std::ptr::null_mut()), Out(std::ptr::null_mut()))
    }
    call fn cuStreamGetCaptureInfo_v2 | cuStreamGetCaptureInfo_v2_ptsz [stream] (stream: Handle, status: Out<u32>, id: Out<u64>, graph: Out<Handle>, nodes: Out<*const Handle>, count: Out<usize>) {
        nodes.offer(std::ptr::null());
        info(stream, status, id, graph, count)
    }
    call fn cuStreamGetCaptureInfo_v3 | cuStreamGetCaptureInfo_v3_ptsz [stream] (stream: Handle, status: Out<u32>, id: Out<u64>, graph: Out<Handle>, nodes: Out<*const Handle>, edges: Out<*const GraphEdgeData>, count: Out<usize>) {
        nodes.offer(std::ptr::null());
        edges.offer(std::ptr::null());
        info(stream, status, id, graph, count)
    }
    ready fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        let wanted = mode.current()?;
        if wanted > 2 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        mode.put(thread::current().capture_mode.replace(wanted))
    }
}
