//! Executable graphs.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rekindle_cuda::types::{GraphExecUpdateResultInfo, GraphInstantiateParams};
use rekindle_cuda::{
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED,
};
use rekindle_protocol::operation::{GraphExecDestroy, GraphExecUpdate, GraphInstantiate, GraphLaunch, Id};

use crate::abi::{Handle, Out, Result};
use crate::arena::{self, Kind, Object};
use crate::export::exports;
use crate::stream::{self, enter, resolve};
use crate::{capture, lane};

use super::condition;
use super::memory::{self, MemoryNode};
use super::{Graph, GraphResources, Node, NodeResource};

struct Exec {
    id: Id,
    device: u8,
    flags: u64,
    /// The graph that it was made of.
    of: Handle,
    /// What the graph held when this was made of it.
    held: Mutex<GraphResources>,
    taken: Mutex<ExecMemory>,
    /// Nodes that do nothing.
    resting: Mutex<HashSet<Handle>>,
}

/// What an instance has until it is destroyed.
struct ExecMemory {
    /// Nodes that take memory, or give it back.
    memory: Vec<MemoryNode>,
    /// A graph that takes memory has no other instance while this is there.
    _only: Option<Arc<()>>,
}

impl Object for Exec {
    const KIND: Kind = Kind::Exec;
    fn device(&self) -> Option<u8> {
        Some(self.device)
    }
}

impl Exec {
    fn taken(&self) -> MutexGuard<'_, ExecMemory> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> MutexGuard<'_, GraphResources> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

static NEXT: AtomicU32 = AtomicU32::new(0);

/// `CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED`.
const CONDITION_UNUSED: u32 = 5;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH`.
const DEVICE_LAUNCH: u64 = 4;

fn instantiate(out: Out<Handle>, of: Handle, flags: u64) -> Result<()> {
    out.check()?;
    let graph = arena::get::<Graph>(of)?;
    if flags & !15 != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if flags & DEVICE_LAUNCH != 0 {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    // One that is being captured has no end yet.
    graph.refresh(of)?;
    if graph.has_one_instance() && graph.state().instance.strong_count() != 0 {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    if !graph.state().conditions.is_empty() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let memory = graph.all_memory();
    // Of a graph in another one that has the instance.
    if graph.state().owner.is_some() && !memory.is_empty() {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    let exec = NEXT.fetch_add(1, Ordering::Relaxed);
    lane::ask(&GraphInstantiate { graph: graph.id, exec, flags })?;
    let (held, only, resting) = (Mutex::new(graph.all_held()), Arc::new(()), Mutex::default());
    graph.state().instance = Arc::downgrade(&only);
    let taken = Mutex::new(ExecMemory { memory, _only: Some(only) });
    out.put(arena::insert(Exec { id: exec, device: graph.device, flags, of, held, taken, resting })?)
}

fn instantiate_with_log(
    out: Out<Handle>,
    graph: Handle,
    node: Out<Handle>,
    log: Out<u8>,
    bytes: usize,
) -> Result<()> {
    node.offer(Handle::NULL);
    if !log.is_null() && bytes > 0 {
        log.put(0)?;
    }
    instantiate(out, graph, 0)
}

/// A node of the graph that an instance was made of, or of a graph in that.
pub(super) struct ExecNode {
    pub id: Id,
    pub device: u8,
    /// Node and body, from the outermost graph on.
    pub path: Vec<(u32, u32)>,
}

pub(super) fn having(exec: Handle, node: &Node) -> Result<ExecNode> {
    let exec = arena::get::<Exec>(exec)?;
    let (mut graph, mut path) = (node.graph, Vec::new());
    while graph != exec.of {
        let (owner, number, body) =
            arena::get::<Graph>(graph)?.state().owner.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        path.insert(0, (number, body));
        graph = owner;
    }
    Ok(ExecNode { id: exec.id, device: exec.device, path })
}

/// Has the instance hold what a graph that is in it now holds, too.
pub(super) fn hold(exec: Handle, held: GraphResources) -> Result<()> {
    arena::get::<Exec>(exec)?.held().extend(held);
    Ok(())
}

/// What a node of the instance uses from now on; none: one of a graph in it.
pub(super) fn keep(exec: Handle, node: Option<u32>, kept: Option<NodeResource>) -> Result<GraphResources> {
    let exec = arena::get::<Exec>(exec)?;
    let mut held = exec.held();
    match node {
        Some(node) => Ok(held.keep(node, kept)),
        None => {
            held.keep_captured(kept);
            Ok(GraphResources::default())
        }
    }
}

/// What an instance holds, for a graph that it is in.
fn held(exec: Handle) -> Result<GraphResources> {
    Ok(arena::get::<Exec>(exec)?.held().clone())
}

pub(super) fn set_enabled(exec: Handle, node: Handle, enabled: bool) -> Result<()> {
    let exec = arena::get::<Exec>(exec)?;
    let mut resting = exec.resting.lock().unwrap_or_else(PoisonError::into_inner);
    if enabled {
        resting.remove(&node);
    } else {
        resting.insert(node);
    }
    Ok(())
}

pub(super) fn is_enabled(exec: Handle, node: Handle) -> Result<bool> {
    let exec = arena::get::<Exec>(exec)?;
    Ok(!exec.resting.lock().unwrap_or_else(PoisonError::into_inner).contains(&node))
}

fn launch(handle: Handle, stream: Handle) -> Result<()> {
    /// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
    const AUTO_FREE: u64 = 1;
    let (exec, site) = (arena::get::<Exec>(handle)?, enter(stream)?);
    let captured = stream::capture(site)?;
    if captured.status != 0 {
        if !exec.taken().memory.is_empty() {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        capture::hold(captured.id, held(handle)?);
    } else {
        memory::launch(&exec.taken().memory, exec.flags & AUTO_FREE != 0)?;
    }
    lane::post_work(&GraphLaunch { device: site.device, exec: exec.id, stream: site.id }, &[])
}

/// `CUgraphExecUpdateResult`.
fn update(exec: Handle, graph: Handle) -> Result<u32> {
    let (id, of) = (arena::get::<Exec>(exec)?.id, arena::get::<Graph>(graph)?);
    // One that is being captured has no end yet.
    of.refresh(graph)?;
    let result = lane::ask(&GraphExecUpdate { exec: id, graph: of.id })?;
    if result == 0 {
        let exec = arena::get::<Exec>(exec)?;
        let held = of.all_held();
        std::mem::replace(&mut *exec.held(), held).let_go(exec.device);
    }
    Ok(result)
}

fn updated(result: u32) -> Result<()> {
    if result == 0 { Ok(()) } else { Err(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE) }
}

exports! {
    call fn cuGraphInstantiate(out: Out<Handle>, graph: Handle, node: Out<Handle>, log: Out<u8>, bytes: usize) {
        instantiate_with_log(out, graph, node, log, bytes)
    }
    call fn cuGraphInstantiate_v2(out: Out<Handle>, graph: Handle, node: Out<Handle>, log: Out<u8>, bytes: usize) {
        instantiate_with_log(out, graph, node, log, bytes)
    }
    call fn cuGraphInstantiateWithFlags(out: Out<Handle>, graph: Handle, flags: u64) { instantiate(out, graph, flags) }
    call fn cuGraphInstantiateWithParams | cuGraphInstantiateWithParams_ptsz {_stream} (out: Out<Handle>, graph: Handle, parameters: Out<GraphInstantiateParams>) {
        let mut answer = parameters.current()?;
        let result = instantiate(out, graph, answer.flags);
        answer.error_node = std::ptr::null_mut();
        answer.result = match result {
            Err(_) if condition::is_unused(graph) => CONDITION_UNUSED,
            _ => result.is_err().into(),
        };
        parameters.put(answer)?;
        result
    }
    call fn cuGraphLaunch | cuGraphLaunch_ptsz [stream] (exec: Handle, stream: Handle) {
        launch(exec, stream)
    }
    call fn cuGraphUpload | cuGraphUpload_ptsz [stream] (exec: Handle, stream: Handle) {
        arena::get::<Exec>(exec)?;
        resolve(stream).map(drop)
    }
    call fn cuGraphExecDestroy(exec: Handle) {
        let exec = arena::remove::<Exec>(exec)?;
        let held = std::mem::take(&mut *exec.held());
        held.let_go(exec.device);
        let taken = std::mem::replace(&mut *exec.taken(), ExecMemory { memory: Vec::new(), _only: None });
        drop(taken);
        lane::ask(&GraphExecDestroy { exec: exec.id })
    }
    ready fn cuGraphExecGetFlags(exec: Handle, out: Out<u64>) { out.put(arena::get::<Exec>(exec)?.flags) }
    call fn cuGraphExecUpdate(exec: Handle, graph: Handle, node: Out<Handle>, result: Out<u32>) {
        let found = update(exec, graph)?;
        node.offer(Handle::NULL);
        result.offer(found);
        updated(found)
    }
    call fn cuGraphExecUpdate_v2(exec: Handle, graph: Handle, info: Out<GraphExecUpdateResultInfo>) {
        let (result, null) = (update(exec, graph)?, std::ptr::null_mut());
        info.offer(GraphExecUpdateResultInfo { result, error_node: null, error_from_node: null });
        updated(result)
    }
}
