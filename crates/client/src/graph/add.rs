//! Adding nodes to a graph.

use rekindle_cuda::types::{
    BatchMemOpNodeParams, GraphEdgeData, HostNodeParams, KernelNodeParams, KernelNodeParamsV1,
    MemAllocNodeParams, Memcpy3D, MemsetNodeParams,
};
use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
use rekindle_protocol::operation::{GraphAdd, GraphAddChild, GraphClone, GraphPut, NodeAction};

use crate::abi::{Handle, In, Out, Result};
use crate::export::exports;
use crate::{arena, capture, lane};

use super::parameters::{CHILD, Child, NodeRequest, Parameters, first_version, read, told};
use super::{Graph, Origin, condition, memory, new_id, numbers};

/// Where a node goes: place for its handle, graph, the nodes that it comes after.
pub(super) struct NodeSite(pub Out<Handle>, pub Handle, pub In<Handle>, pub usize);

impl NodeSite {
    /// The graph, with a list of its nodes that is whole, and the numbers of those. A capture into it may be under way.
    pub(super) fn find(&self) -> Result<(&'static Graph, Vec<u32>)> {
        let NodeSite(out, handle, after, count) = self;
        out.check()?;
        let graph = arena::get::<Graph>(*handle)?;
        if graph.is_captured_now() {
            capture::know_nodes(*handle)?;
        } else {
            graph.refresh(*handle)?;
        }
        Ok((graph, numbers(*handle, after.slice(*count)?)?))
    }
}

/// Adds a node, and gives its number.
pub(super) fn add_told(site: &NodeSite, graph: &Graph, after: Vec<u32>, told: NodeRequest) -> Result<u32> {
    let NodeRequest { action, kept } = told;
    let kind = action.kind();
    let number = match graph.is_captured_now() {
        true => capture::add_to_graph(site.1, &after, action, kept)?,
        false => {
            let number = lane::ask(&GraphAdd { graph: graph.id, after: after.clone(), action })?;
            let replaced = graph.state().held.keep(number, kept);
            replaced.let_go(graph.device);
            number
        }
    };
    site.0.put(graph.added(site.1, number, kind, after)?)?;
    Ok(number)
}

fn add(site: NodeSite, parameters: Parameters) -> Result<()> {
    match parameters {
        Parameters::Child(Child::Copied(child)) => add_child(&site, child),
        Parameters::Child(Child::Moved(child)) => move_child(&site, child),
        Parameters::Allocate(parameters) => memory::add_allocation(&site, parameters),
        Parameters::Free(address) => memory::add_free(&site, address),
        Parameters::Conditional(parameters) => condition::add(&site, parameters),
        other => {
            let (graph, after) = site.find()?;
            add_told(&site, graph, after, told(other, graph.device)?).map(drop)
        }
    }
}

/// A graph that can be in a node of another one.
fn child_of(site: &NodeSite, child: Handle) -> Result<&'static Graph> {
    let found = arena::get::<Graph>(child)?;
    if child == site.1 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // One that is being captured has no end yet.
    found.refresh(child)?;
    if found.has_conditions() { Err(CUDA_ERROR_NOT_SUPPORTED) } else { Ok(found) }
}

/// The node has the child's nodes as they are now, and holds what the child holds.
fn add_child(site: &NodeSite, child: Handle) -> Result<()> {
    let found = child_of(site, child)?;
    if found.has_one_instance() {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    let (graph, after) = site.find()?;
    if graph.is_captured_now() {
        return add_child_to_capture(site, graph, after, found);
    }
    add_node_of(site, graph, after, found)?;
    let held = found.all_held();
    graph.state().held.extend(held);
    Ok(())
}

/// Gives the node's number.
fn add_node_of(site: &NodeSite, graph: &Graph, after: Vec<u32>, child: &Graph) -> Result<u32> {
    let number = lane::ask(&GraphAddChild { graph: graph.id, after: after.clone(), child: child.id })?;
    site.0.put(graph.added(site.1, number, CHILD, after)?)?;
    Ok(number)
}

/// The child becomes the graph in the node: what is changed of it from now on is changed there.
fn move_child(site: &NodeSite, child: Handle) -> Result<()> {
    let found = child_of(site, child)?;
    let (graph, after) = site.find()?;
    if found.state().owner.is_some() || found.device != graph.device {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // A graph in another one takes no more memory than it has.
    if graph.state().owner.is_some() && !found.all_memory().is_empty() {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    let number = match graph.is_captured_now() {
        // It comes into the node when the capture ends.
        true => add_told(site, graph, after, NodeAction::Child.into())?,
        false => {
            let number = add_node_of(site, graph, after, found)?;
            lane::ask(&GraphPut { graph: graph.id, node: number, body: 0, inside: found.id })?;
            number
        }
    };
    found.state().owner = Some((site.1, number, 0));
    graph.state().inside.insert((number, 0), child);
    Ok(())
}

/// A copy of the child comes into the node when the capture ends.
fn add_child_to_capture(site: &NodeSite, graph: &Graph, after: Vec<u32>, child: &Graph) -> Result<()> {
    if child.device != graph.device {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let copy = new_id();
    lane::ask(&GraphClone { graph: child.id, clone: copy })?;
    let number = add_told(site, graph, after, NodeAction::Child.into())?;
    graph.put_later(site.1, (number, 0), copy, Origin::Worker(0))?;
    capture::hold_in(site.1, child.all_held())
}

/// Full and programmatic dependencies. The latter let a kernel begin before the one that it comes after has ended, if
/// that says so; here it begins when that has ended, which is all that it may rely on.
pub(super) fn is_known_edge(edge: &GraphEdgeData) -> bool {
    const PROGRAMMATIC: u8 = 1;
    const LAUNCH_ORDER: u8 = 2;
    let [from, to, kind, ..] = edge.0;
    to == 0 && (kind == 0 && from == 0 || kind == PROGRAMMATIC && (1..=LAUNCH_ORDER).contains(&from))
}

pub fn check_edges(edges: In<GraphEdgeData>, count: usize) -> Result<()> {
    if !edges.is_null() && !edges.slice(count)?.iter().all(is_known_edge) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(())
}

exports! {
    call fn cuGraphAddKernelNode(out: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, parameters: In<KernelNodeParamsV1>) {
        add(NodeSite(out, graph, after, count), Parameters::Kernel(parameters.get()?))
    }
    call fn cuGraphAddKernelNode_v2(out: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, parameters: In<KernelNodeParams>) {
        add(NodeSite(out, graph, after, count), Parameters::Kernel(first_version(parameters.get()?)))
    }
    call fn cuGraphAddMemcpyNode(out: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, copy: In<Memcpy3D>, _context: Handle) {
        add(NodeSite(out, graph, after, count), Parameters::Copy(copy.get()?))
    }
    call fn cuGraphAddMemsetNode(out: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, parameters: In<MemsetNodeParams>, _context: Handle) {
        add(NodeSite(out, graph, after, count), Parameters::Set(parameters.get()?))
    }
    call fn cuGraphAddHostNode(out: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, parameters: In<HostNodeParams>) {
        add(NodeSite(out, graph, after, count), Parameters::Host(parameters.get()?))
    }
    call fn cuGraphAddEmptyNode(out: Out<Handle>, graph: Handle, after: In<Handle>, count: usize) {
        add(NodeSite(out, graph, after, count), Parameters::Empty)
    }
    call fn cuGraphAddChildGraphNode(out: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, child: Handle) {
        add(NodeSite(out, graph, after, count), Parameters::Child(Child::Copied(child)))
    }
    call fn cuGraphAddEventRecordNode(out: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, event: Handle) {
        add(NodeSite(out, graph, after, count), Parameters::Record(event))
    }
    call fn cuGraphAddEventWaitNode(out: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, event: Handle) {
        add(NodeSite(out, graph, after, count), Parameters::Wait(event))
    }
    call fn cuGraphAddBatchMemOpNode(out: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, parameters: In<BatchMemOpNodeParams>) {
        add(NodeSite(out, graph, after, count), Parameters::Values(parameters.get()?))
    }
    call fn cuGraphAddMemAllocNode(out: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, parameters: Out<MemAllocNodeParams>) {
        add(NodeSite(out, graph, after, count), Parameters::Allocate(parameters))
    }
    call fn cuGraphAddMemFreeNode(out: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, address: u64) {
        add(NodeSite(out, graph, after, count), Parameters::Free(address))
    }
    call fn cuGraphAddNode(out: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, parameters: In<u32>) {
        add(NodeSite(out, graph, after, count), read(parameters)?)
    }
    call fn cuGraphAddNode_v2(out: Out<Handle>, graph: Handle, after: In<Handle>, edges: In<GraphEdgeData>, count: usize, parameters: In<u32>) {
        check_edges(edges, count)?;
        add(NodeSite(out, graph, after, count), read(parameters)?)
    }
}
