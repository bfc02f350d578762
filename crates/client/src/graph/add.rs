//! Adding nodes to a graph.

use rekindle_cuda::types::{GraphEdgeData, KernelNodeParams, KernelNodeParamsV1, Memcpy3D, MemsetNodeParams};
use rekindle_cuda::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
use rekindle_device::{Launch, MemorySet};
use rekindle_protocol::operation::{
    GraphAddChild, GraphAddCopy, GraphAddEmpty, GraphAddKernel, GraphAddSet, Id,
};

use crate::abi::{Handle, In, Out, Result};
use crate::copy::{set, strided};
use crate::export::exports;
use crate::launch::{self, Pointers};
use crate::module::Kernel;
use crate::{arena, lane};

use super::{Graph, numbers};

/// `CUgraphNodeType`.
const KERNEL: u32 = 0;
const MEMCPY: u32 = 1;
const MEMSET: u32 = 2;
const CHILD: u32 = 4;
const EMPTY: u32 = 5;

/// Where a node goes: place for its handle, graph, the nodes that it comes after.
struct Where(Out<Handle>, Handle, In<Handle>, usize);

fn add(place: Where, kind: u32, ask: impl FnOnce(Id, Vec<u32>, &Graph) -> Result<u32>) -> Result<()> {
    let Where(out, handle, after, count) = place;
    out.check()?;
    let graph = arena::get::<Graph>(handle)?;
    // A captured graph's own nodes are numbered first.
    graph.entries(handle)?;
    let after = numbers(handle, after.slice(count)?)?;
    let number = ask(graph.id, after.clone(), graph)?;
    out.put(graph.added(handle, number, kind, after)?)
}

fn add_kernel(place: Where, p: KernelNodeParamsV1) -> Result<()> {
    add(place, KERNEL, |graph, after, of| {
        with_kernel(&p, of.device, |function, launch, packed| {
            lane::ask_with(&GraphAddKernel { graph, after, function, launch }, packed)
        })
    })
}

/// The kernel, its launch and its packed parameters, checked for a graph of the device.
pub(super) fn with_kernel<T>(
    p: &KernelNodeParamsV1,
    device: u8,
    ask: impl FnOnce(Id, Launch, &[u8]) -> Result<T>,
) -> Result<T> {
    let found = arena::get::<Kernel>(Handle::from(p.function))?.here()?;
    launch::check(found, p.grid, p.block, p.shared)?;
    if device != found.device {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    let launch = Launch { grid: p.grid, block: p.block, shared: p.shared, ..Launch::default() };
    launch::with_parameters(found, p.parameters as Pointers, p.extra as Pointers, |packed| {
        ask(found.id, launch, packed)
    })
}

pub(super) fn first_version(p: KernelNodeParams) -> KernelNodeParamsV1 {
    let KernelNodeParams { function, grid, block, shared, parameters, extra, kernel, .. } = p;
    let function = if function.is_null() { kernel } else { function };
    KernelNodeParamsV1 { function, grid, block, shared, parameters, extra }
}

fn add_copy(place: Where, copy: &Memcpy3D) -> Result<()> {
    let copy = strided::for_graph(copy)?;
    add(place, MEMCPY, |graph, after, _| lane::ask(&GraphAddCopy { graph, after, copy }))
}

fn add_set(place: Where, p: MemsetNodeParams) -> Result<()> {
    let set = fill_of(p)?;
    add(place, MEMSET, |graph, after, _| lane::ask(&GraphAddSet { graph, after, set }))
}

pub(super) fn fill_of(p: MemsetNodeParams) -> Result<MemorySet> {
    let element = u8::try_from(p.element).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    let (width, height) = (p.width as u64, p.height as u64);
    let set = MemorySet { address: p.address, pitch: p.pitch as u64, value: p.value, element, width, height };
    set::check(set)?.ok_or(CUDA_ERROR_INVALID_VALUE)
}

fn add_empty(place: Where) -> Result<()> {
    add(place, EMPTY, |graph, after, _| lane::ask(&GraphAddEmpty { graph, after }))
}

/// The node has the child's nodes as they are now, and holds what the child holds.
fn add_child(place: Where, child: Handle) -> Result<()> {
    let found = arena::get::<Graph>(child)?;
    let parent = place.1;
    if child == parent {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // One that is being captured has no end yet.
    found.entries(child)?;
    add(place, CHILD, |graph, after, _| lane::ask(&GraphAddChild { graph, after, child: found.id }))?;
    let held = found.state().held.clone();
    arena::get::<Graph>(parent)?.state().held.extend(held);
    Ok(())
}

/// What a `CUgraphNodeParams` says.
pub(super) enum Parameters {
    Kernel(KernelNodeParamsV1),
    Copy(Memcpy3D),
    Set(MemsetNodeParams),
    Child(Handle),
    Empty,
}

/// `CUgraphNodeParams`: the type, then after 16 bytes the parameters of that type.
pub(super) fn read(parameters: In<u32>) -> Result<Parameters> {
    /// A memory copy's flags and context come before its box.
    const BEFORE_COPY: usize = 16;
    let kind = parameters.get()?;
    let inner = parameters.0.wrapping_byte_add(16);
    Ok(match kind {
        KERNEL => Parameters::Kernel(first_version(In(inner.cast()).get()?)),
        MEMCPY => Parameters::Copy(In(inner.wrapping_byte_add(BEFORE_COPY).cast()).get()?),
        MEMSET => Parameters::Set(In(inner.cast()).get()?),
        CHILD => Parameters::Child(In(inner.cast()).get()?),
        EMPTY => Parameters::Empty,
        _ => return Err(CUDA_ERROR_NOT_SUPPORTED),
    })
}

fn add_any(place: Where, parameters: In<u32>) -> Result<()> {
    match read(parameters)? {
        Parameters::Kernel(kernel) => add_kernel(place, kernel),
        Parameters::Copy(copy) => add_copy(place, &copy),
        Parameters::Set(set) => add_set(place, set),
        Parameters::Child(child) => add_child(place, child),
        Parameters::Empty => add_empty(place),
    }
}

/// Full and programmatic dependencies. The latter let a kernel begin before the one that it comes after has ended, if
/// that says so; here it begins when that has ended, which is all that it may rely on.
fn is_known_edge(edge: &GraphEdgeData) -> bool {
    const PROGRAMMATIC: u8 = 1;
    const LAUNCH_ORDER: u8 = 2;
    let [from, to, kind, ..] = edge.0;
    to == 0 && (kind == 0 && from == 0 || kind == PROGRAMMATIC && (1..=LAUNCH_ORDER).contains(&from))
}

exports! {
    call fn cuGraphAddKernelNode(out: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, parameters: In<KernelNodeParamsV1>) {
        add_kernel(Where(out, graph, after, count), parameters.get()?)
    }
    call fn cuGraphAddKernelNode_v2(out: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, parameters: In<KernelNodeParams>) {
        add_kernel(Where(out, graph, after, count), first_version(parameters.get()?))
    }
    call fn cuGraphAddMemcpyNode(out: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, copy: In<Memcpy3D>, _context: Handle) {
        add_copy(Where(out, graph, after, count), &copy.get()?)
    }
    call fn cuGraphAddMemsetNode(out: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, parameters: In<MemsetNodeParams>, _context: Handle) {
        add_set(Where(out, graph, after, count), parameters.get()?)
    }
    call fn cuGraphAddEmptyNode(out: Out<Handle>, graph: Handle, after: In<Handle>, count: usize) {
        add_empty(Where(out, graph, after, count))
    }
    call fn cuGraphAddChildGraphNode(out: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, child: Handle) {
        add_child(Where(out, graph, after, count), child)
    }
    call fn cuGraphAddNode(out: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, parameters: In<u32>) {
        add_any(Where(out, graph, after, count), parameters)
    }
    call fn cuGraphAddNode_v2(out: Out<Handle>, graph: Handle, after: In<Handle>, edges: In<GraphEdgeData>, count: usize, parameters: In<u32>) {
        if !edges.is_null() && !edges.slice(count)?.iter().all(is_known_edge) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        add_any(Where(out, graph, after, count), parameters)
    }
}
