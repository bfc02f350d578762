//! Stream capture.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rekindle_cuda::types::GraphEdgeData;
use rekindle_cuda::{
    CUDA_ERROR_ILLEGAL_STATE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
};
use rekindle_protocol::operation::{
    CaptureAdd, CaptureAddBehind, CaptureBegin, CaptureBeginInto, CaptureDepend, CaptureEnd, CaptureEndInto,
    CaptureEndsOf, CaptureStatus, CaptureTopology, NodeAction, NodeFound,
};

use crate::abi::{Handle, In, Out, Result};
use crate::export::exports;
use crate::graph::memory::MemoryNode;
use crate::graph::{self, GraphResources, NodeResource};
use crate::stream::{self, StreamTarget, resolve};
use crate::{lane, thread};

/// Streams on which a capture was begun and not ended, and its id: one that has become invalid does not say it any more.
static BEGUN: Mutex<Option<HashMap<StreamTarget, u64>>> = Mutex::new(None);
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn begun() -> MutexGuard<'static, Option<HashMap<StreamTarget, u64>>> {
    BEGUN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn change(change: impl FnOnce(&mut HashMap<StreamTarget, u64>)) {
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
    change(|begun| begun.retain(|target, _| target.device != device));
}

fn begin(stream: Handle, mode: u32) -> Result<()> {
    if mode > 2 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let target = resolve(stream)?;
    lane::ask(&CaptureBegin { device: target.device, stream: target.id, mode })?;
    note_begun(target).map(drop)
}

/// Notes a capture that the worker has begun: its id.
fn note_begun(target: StreamTarget) -> Result<u64> {
    let capture = lane::ask(&CaptureStatus { device: target.device, stream: target.id })?.id;
    change(|begun| {
        begun.insert(target, capture);
    });
    Ok(capture)
}

/// Begins a capture whose nodes go into a graph that the program has made, behind these nodes of it.
fn begin_into(stream: Handle, graph: Handle, after: &[Handle], mode: u32) -> Result<()> {
    if mode > 2 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let StreamTarget { device, id } = resolve(stream)?;
    let after = graph::before_capture(graph, device, after)?;
    let into = graph::id(graph)?;
    lane::ask(&CaptureBeginInto { device, stream: id, mode, graph: into, after })?;
    let capture = note_begun(StreamTarget { device, id })?;
    graph::capture_into(graph)?;
    let target = StreamTarget { device, id };
    let made = Unfinished { graph, target, is_program_s: true, given: Vec::new() };
    unfinished().get_or_insert_default().insert(capture, made);
    Ok(())
}

/// Nodes and as many edges, as a program was given them.
struct ReturnedNodes {
    _nodes: Box<[Handle]>,
    _edges: Box<[GraphEdgeData]>,
}

/// The graph that a capture under way will make.
struct Unfinished {
    graph: Handle,
    /// A stream of the capture.
    target: StreamTarget,
    /// Whether it was the program's before the capture; else the program has asked for it since.
    is_program_s: bool,
    /// Lists of nodes and of their edges that the program was given, which it may look at until the capture ends.
    given: Vec<ReturnedNodes>,
}

/// By the capture's id.
static UNFINISHED: Mutex<Option<HashMap<u64, Unfinished>>> = Mutex::new(None);

fn unfinished() -> MutexGuard<'static, Option<HashMap<u64, Unfinished>>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the graph of a capture under way is to hold.
#[derive(Default)]
struct CaptureContents {
    held: GraphResources,
    memory: Vec<MemoryNode>,
}

/// By the capture's id.
static GATHERED: Mutex<Option<HashMap<u64, CaptureContents>>> = Mutex::new(None);

fn gather(capture: u64, gather: impl FnOnce(&mut CaptureContents)) {
    let mut gathered = GATHERED.lock().unwrap_or_else(PoisonError::into_inner);
    gather(gathered.get_or_insert_default().entry(capture).or_default());
}

fn gathered(capture: u64) -> CaptureContents {
    let mut gathered = GATHERED.lock().unwrap_or_else(PoisonError::into_inner);
    gathered.get_or_insert_default().remove(&capture).unwrap_or_default()
}

/// Adds a node to a capture on a stream of it; the graph then holds what the node uses.
pub fn add(target: StreamTarget, capture: u64, action: NodeAction, kept: Option<NodeResource>) -> Result<()> {
    lane::ask(&CaptureAdd { device: target.device, stream: target.id, action })?;
    gather(capture, |gathered| gathered.held.keep_captured(kept));
    Ok(())
}

/// The graph of a capture is to hold what is in it.
pub fn hold(capture: u64, held: GraphResources) {
    gather(capture, |gathered| gathered.held.extend(held));
}

pub fn note_memory(capture: u64, node: MemoryNode) {
    gather(capture, |gathered| gathered.memory.push(node));
}

/// The handle of the graph of a capture under way: until that ends, nodes are added to it and looked at.
fn graph_of(capture: u64, target: StreamTarget) -> Result<Handle> {
    let mut unfinished = unfinished();
    let unfinished = unfinished.get_or_insert_default();
    if let Some(made) = unfinished.get(&capture) {
        return Ok(made.graph);
    }
    let graph = graph::unfinished(target.device)?;
    unfinished.insert(capture, Unfinished { graph, target, is_program_s: false, given: Vec::new() });
    Ok(graph)
}

/// The capture under way that a graph is of, and a stream of it.
fn capture_into(graph: Handle) -> Result<(u64, StreamTarget)> {
    let unfinished = unfinished();
    let mut all = unfinished.iter().flatten();
    let found = all.find(|(_, made)| made.graph == graph).map(|(id, made)| (*id, made.target));
    found.ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// Has all nodes that a capture under way has by now have handles.
pub fn know_nodes(graph: Handle) -> Result<()> {
    let (capture, target) = capture_into(graph)?;
    next_after(target, capture).map(drop)
}

/// The nodes that a capture under way into a graph has made by now, from this number on.
pub fn nodes_of(graph: Handle, from: u32) -> Result<Vec<Option<NodeFound>>> {
    let (_, StreamTarget { device, id: stream }) = capture_into(graph)?;
    let mut nodes = Vec::new();
    loop {
        let found = lane::ask(&CaptureTopology { device, stream, from: from + nodes.len() as u32 })?;
        if found.is_empty() {
            return Ok(nodes);
        }
        nodes.extend(found);
    }
}

/// Adds a node to the graph of a capture under way, all of whose nodes have handles, behind nodes of it: its number.
pub fn add_to_graph(
    graph: Handle,
    after: &[u32],
    action: NodeAction,
    kept: Option<NodeResource>,
) -> Result<u32> {
    let (capture, StreamTarget { device, id: stream }) = capture_into(graph)?;
    let number = lane::ask(&CaptureAddBehind { device, stream, after: after.to_vec(), action })?;
    gather(capture, |gathered| gathered.held.keep_captured(kept));
    Ok(number)
}

/// The graph of a capture under way is to hold what is in it.
pub fn hold_in(graph: Handle, held: GraphResources) -> Result<()> {
    capture_into(graph).map(|(capture, _)| hold(capture, held))
}

pub fn note_memory_in(graph: Handle, node: MemoryNode) -> Result<()> {
    capture_into(graph).map(|(capture, _)| note_memory(capture, node))
}

/// Whether the graph is of a capture under way that has such a node.
pub fn has_memory(graph: Handle, which: impl Fn(&MemoryNode) -> bool) -> bool {
    let Ok((capture, _)) = capture_into(graph) else { return false };
    let gathered = GATHERED.lock().unwrap_or_else(PoisonError::into_inner);
    gathered.iter().flatten().any(|(id, gathered)| *id == capture && gathered.memory.iter().any(&which))
}

/// Where a program wants to be told of a capture.
struct CaptureOutputs {
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<Handle>,
    nodes: Out<*const Handle>,
    edges: Out<*const GraphEdgeData>,
    count: Out<usize>,
}

fn info(stream: Handle, asked: CaptureOutputs) -> Result<()> {
    const ACTIVE: u32 = 1;
    asked.status.check()?;
    asked.nodes.offer(std::ptr::null());
    asked.edges.offer(std::ptr::null());
    let target = resolve(stream)?;
    let capture = stream::capture(target)?;
    if capture.status == ACTIVE {
        asked.id.offer(capture.id);
        if !asked.graph.is_null() {
            asked.graph.offer(graph_of(capture.id, target)?);
        }
        if !asked.nodes.is_null() || !asked.count.is_null() {
            let nodes = next_after(target, capture.id)?;
            // Bindings read as many edges as there are nodes.
            let edges = vec![GraphEdgeData::default(); nodes.len()].into_boxed_slice();
            asked.count.offer(nodes.len());
            if !nodes.is_empty() {
                asked.nodes.offer(nodes.as_ptr());
                asked.edges.offer(edges.as_ptr());
            }
            let given = ReturnedNodes { _nodes: nodes, _edges: edges };
            let mut unfinished = unfinished();
            if let Some(made) = unfinished.get_or_insert_default().get_mut(&capture.id) {
                made.given.push(given);
            }
        }
    }
    asked.status.put(capture.status)
}

/// The nodes that the next one on a captured stream will come after.
fn next_after(target: StreamTarget, capture: u64) -> Result<Box<[Handle]>> {
    let graph = graph_of(capture, target)?;
    let from = graph::known_nodes(graph)?;
    let ends = lane::ask(&CaptureEndsOf { device: target.device, stream: target.id, from })?;
    graph::captured_nodes(graph, &ends.kinds, &ends.after).map(Vec::into_boxed_slice)
}

/// The next node on a captured stream comes after these nodes too, or after them alone.
fn depend(stream: Handle, nodes: &[Handle], flags: u32) -> Result<()> {
    /// `CU_STREAM_SET_CAPTURE_DEPENDENCIES`.
    const ALONE: u32 = 1;
    if flags > ALONE {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let target = resolve(stream)?;
    let capture = stream::capture(target)?;
    if capture.status == 0 {
        return Err(CUDA_ERROR_ILLEGAL_STATE);
    }
    let after = graph::numbers(graph_of(capture.id, target)?, nodes)?;
    lane::ask(&CaptureDepend { device: target.device, stream: target.id, after, alone: flags == ALONE })
}

fn end(stream: Handle) -> Result<Handle> {
    let target = resolve(stream)?;
    let StreamTarget { device, id } = target;
    let noted = begun().get_or_insert_default().get(&target).copied();
    let capture = noted.map_or_else(|| stream::capture(target).map(|capture| capture.id), Ok)?;
    let known =
        unfinished().get_or_insert_default().get(&capture).map(|made| (made.graph, made.is_program_s));
    let graph = known.map_or_else(|| Ok(graph::new_id()), |(graph, _)| graph::id(graph))?;
    let ended = match known {
        Some((_, true)) => lane::ask(&CaptureEndInto { device, stream: id, graph }),
        _ => lane::ask(&CaptureEnd { device, stream: id, graph }),
    };
    if matches!(ended, Err(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED | CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)) {
        return ended.map(|_| Handle::NULL);
    }
    change(|begun| {
        begun.remove(&target);
    });
    unfinished().get_or_insert_default().remove(&capture);
    let CaptureContents { held, memory } = gathered(capture);
    if let (Err(_), Some((graph, is_program_s))) = (&ended, known) {
        graph::not_captured(graph, is_program_s)?;
    }
    ended?;
    graph::captured(graph, device, known.map(|(graph, _)| graph), held, memory)
}

fn none<T>() -> Out<T> {
    Out(std::ptr::null_mut())
}

exports! {
    call fn cuStreamBeginCapture | cuStreamBeginCapture_ptsz [stream] (stream: Handle) { begin(stream, 0) }
    call fn cuStreamBeginCapture_v2 | cuStreamBeginCapture_v2_ptsz [stream] (stream: Handle, mode: u32) { begin(stream, mode) }
    call fn cuStreamBeginCaptureToGraph | cuStreamBeginCaptureToGraph_ptsz [stream] (stream: Handle, graph: Handle, after: In<Handle>, _edges: In<GraphEdgeData>, count: usize, mode: u32) {
        begin_into(stream, graph, after.slice(count)?, mode)
    }
    call fn cuStreamEndCapture | cuStreamEndCapture_ptsz [stream] (stream: Handle, out: Out<Handle>) {
        out.put(Handle::NULL)?;
        out.put(end(stream)?)
    }
    call fn cuStreamIsCapturing | cuStreamIsCapturing_ptsz [stream] (stream: Handle, out: Out<u32>) {
        out.put(stream::capture(resolve(stream)?)?.status)
    }
    call fn cuStreamGetCaptureInfo | cuStreamGetCaptureInfo_ptsz [stream] (stream: Handle, status: Out<u32>, id: Out<u64>) {
        let (graph, nodes, edges, count) = (none(), none(), none(), none());
        info(stream, CaptureOutputs { status, id, graph, nodes, edges, count })
    }
    call fn cuStreamGetCaptureInfo_v2 | cuStreamGetCaptureInfo_v2_ptsz [stream] (stream: Handle, status: Out<u32>, id: Out<u64>, graph: Out<Handle>, nodes: Out<*const Handle>, count: Out<usize>) {
        info(stream, CaptureOutputs { status, id, graph, nodes, edges: none(), count })
    }
    call fn cuStreamGetCaptureInfo_v3 | cuStreamGetCaptureInfo_v3_ptsz [stream] (stream: Handle, status: Out<u32>, id: Out<u64>, graph: Out<Handle>, nodes: Out<*const Handle>, edges: Out<*const GraphEdgeData>, count: Out<usize>) {
        info(stream, CaptureOutputs { status, id, graph, nodes, edges, count })
    }
    call fn cuStreamUpdateCaptureDependencies | cuStreamUpdateCaptureDependencies_ptsz [stream] (stream: Handle, nodes: In<Handle>, count: usize, flags: u32) {
        depend(stream, nodes.slice(count)?, flags)
    }
    call fn cuStreamUpdateCaptureDependencies_v2 | cuStreamUpdateCaptureDependencies_v2_ptsz [stream] (stream: Handle, nodes: In<Handle>, edges: In<GraphEdgeData>, count: usize, flags: u32) {
        graph::check_edges(edges, count)?;
        depend(stream, nodes.slice(count)?, flags)
    }
    ready fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        let wanted = mode.current()?;
        if wanted > 2 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        mode.put(thread::current().capture_mode.replace(wanted))
    }
}
