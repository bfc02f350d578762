//! Stream capture.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rekindle_cuda::types::GraphEdgeData;
use rekindle_cuda::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
};
use rekindle_protocol::operation::{CaptureBegin, CaptureEnd};

use crate::abi::{Handle, Out, Result};
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

fn info(stream: Handle, status: Out<u32>, id: Out<u64>) -> Result<u32> {
    status.check()?;
    let capture = stream::capture(resolve(stream)?)?;
    status.put(capture.status)?;
    if capture.status == 1 {
        id.offer(capture.id);
    }
    Ok(capture.status)
}

/// The graph of a capture under way, and what its next node will depend on, are known to the worker only: an active
/// capture with a question for those is refused.
fn info_with_graph(stream: Handle, status: Out<u32>, id: Out<u64>, asked: &[bool]) -> Result<()> {
    match info(stream, status, id)? {
        1 if asked.iter().any(|asked| *asked) => Err(CUDA_ERROR_NOT_SUPPORTED),
        _ => Ok(()),
    }
}

exports! {
    call fn cuStreamBeginCapture | cuStreamBeginCapture_ptsz [stream] (stream: Handle) { begin(stream, 0) }
    call fn cuStreamBeginCapture_v2 | cuStreamBeginCapture_v2_ptsz [stream] (stream: Handle, mode: u32) { begin(stream, mode) }
    call fn cuStreamEndCapture | cuStreamEndCapture_ptsz [stream] (stream: Handle, out: Out<Handle>) {
        out.put(Handle::NULL)?;
        let place = resolve(stream)?;
        let graph = graph::new_id();
        let ended = lane::ask(&CaptureEnd { device: place.device, stream: place.id, graph });
        if !matches!(ended, Err(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED | CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)) {
            change(|begun| {
                begun.remove(&place);
            });
        }
        out.put(graph::captured(graph, place.device, ended?)?)
    }
    call fn cuStreamIsCapturing | cuStreamIsCapturing_ptsz [stream] (stream: Handle, out: Out<u32>) {
        out.put(stream::capture(resolve(stream)?)?.status)
    }
    call fn cuStreamGetCaptureInfo | cuStreamGetCaptureInfo_ptsz [stream] (stream: Handle, status: Out<u32>, id: Out<u64>) {
        info(stream, status, id).map(drop)
    }
    call fn cuStreamGetCaptureInfo_v2 | cuStreamGetCaptureInfo_v2_ptsz [stream] (stream: Handle, status: Out<u32>, id: Out<u64>, graph: Out<Handle>, nodes: Out<Handle>, count: Out<usize>) {
        info_with_graph(stream, status, id, &[!graph.is_null(), !nodes.is_null(), !count.is_null()])
    }
    call fn cuStreamGetCaptureInfo_v3 | cuStreamGetCaptureInfo_v3_ptsz [stream] (stream: Handle, status: Out<u32>, id: Out<u64>, graph: Out<Handle>, nodes: Out<Handle>, edges: Out<*const GraphEdgeData>, count: Out<usize>) {
        info_with_graph(stream, status, id, &[!graph.is_null(), !nodes.is_null(), !edges.is_null(), !count.is_null()])
    }
    ready fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        let wanted = mode.current()?;
        if wanted > 2 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        mode.put(thread::current().capture_mode.replace(wanted))
    }
}
