//! Edges and nodes that come and go, and copies of graphs.

use rekindle_cuda::types::GraphEdgeData;
use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
use rekindle_protocol::operation::{GraphClone, GraphEdges, GraphRemove};

use crate::abi::{Handle, In, Out, Result};
use crate::export::exports;
use crate::{arena, lane};

use super::add::check_edges;
use super::parameters::{ALLOCATE, FREE};
use super::{Entry, Graph, Node, Origin, insert_as, new_id, numbers};

/// Adds or takes away the edges from each node of the one list to that in its place in the other.
fn edges(handle: Handle, from: In<Handle>, to: In<Handle>, count: usize, add: bool) -> Result<()> {
    let graph = arena::get::<Graph>(handle)?;
    graph.refresh(handle)?;
    if count == 0 {
        return Ok(());
    }
    let (from, to) = (numbers(handle, from.slice(count)?)?, numbers(handle, to.slice(count)?)?);
    let edges: Vec<(u32, u32)> = from.into_iter().zip(to).collect();
    lane::ask(&GraphEdges { graph: graph.id, edges: edges.clone(), add })?;
    let mut state = graph.state();
    for (from, to) in edges {
        let entry = state.nodes.get_mut(to as usize).and_then(Option::as_mut);
        let after = &mut entry.ok_or(CUDA_ERROR_INVALID_VALUE)?.after;
        match add {
            true => after.push(from),
            false => after.retain(|before| *before != from),
        }
    }
    Ok(())
}

fn destroy_node(handle: Handle) -> Result<()> {
    let node = arena::get::<Node>(handle)?;
    let graph = arena::get::<Graph>(node.graph)?;
    graph.refresh(node.graph)?;
    let takes_memory = matches!(graph.state().entry(node.number)?.kind, ALLOCATE | FREE);
    if takes_memory || graph.inside(Some(node.number)).iter().any(|inside| !inside.all_memory().is_empty()) {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    lane::ask(&GraphRemove { graph: graph.id, node: node.number })?;
    let (inside, replaced) = {
        let mut state = graph.state();
        if let Some(site) = state.nodes.get_mut(node.number as usize) {
            *site = None;
        }
        for entry in state.nodes.iter_mut().flatten() {
            entry.after.retain(|before| *before != node.number);
        }
        let inside: Vec<Handle> =
            state.inside.extract_if(|(of, _), _| *of == node.number).map(|(_, graph)| graph).collect();
        (inside, state.held.keep(node.number, None))
    };
    for inside in inside {
        // Instances may have what it held.
        let held = arena::remove::<Graph>(inside)?.end_handles()?;
        graph.state().held.extend(held);
    }
    arena::remove::<Node>(handle)?;
    replaced.let_go(graph.device);
    Ok(())
}

fn clone(out: Out<Handle>, original: Handle) -> Result<()> {
    out.check()?;
    let graph = arena::get::<Graph>(original)?;
    graph.refresh(original)?;
    if graph.has_one_instance() {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    let id = new_id();
    lane::ask(&GraphClone { graph: graph.id, clone: id })?;
    let copy = insert_as(id, graph.device, Origin::Program, None, Some(original))?;
    let found = arena::get::<Graph>(copy)?;
    let (held, known) = (graph.all_held(), graph.state().nodes.clone());
    let mut nodes = Vec::with_capacity(known.len());
    for (number, entry) in known.into_iter().enumerate() {
        nodes.push(match entry {
            Some(Entry { kind, after, .. }) => Some(found.entry(copy, number as u32, kind, after)?),
            None => None,
        });
    }
    let mut state = found.state();
    (state.nodes, state.held) = (nodes, held);
    drop(state);
    out.put(copy)
}

fn find_in_clone(out: Out<Handle>, node: Handle, copy: Handle) -> Result<()> {
    let (node, graph) = (arena::get::<Node>(node)?, arena::get::<Graph>(copy)?);
    if graph.original != Some(node.graph) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let found = graph.state().entry(node.number)?.handle;
    out.put(found)
}

exports! {
    call fn cuGraphAddDependencies(graph: Handle, from: In<Handle>, to: In<Handle>, count: usize) {
        edges(graph, from, to, count, true)
    }
    call fn cuGraphAddDependencies_v2(graph: Handle, from: In<Handle>, to: In<Handle>, data: In<GraphEdgeData>, count: usize) {
        check_edges(data, count)?;
        edges(graph, from, to, count, true)
    }
    call fn cuGraphRemoveDependencies(graph: Handle, from: In<Handle>, to: In<Handle>, count: usize) {
        edges(graph, from, to, count, false)
    }
    call fn cuGraphRemoveDependencies_v2(graph: Handle, from: In<Handle>, to: In<Handle>, data: In<GraphEdgeData>, count: usize) {
        check_edges(data, count)?;
        edges(graph, from, to, count, false)
    }
    call fn cuGraphDestroyNode(node: Handle) { destroy_node(node) }
    call fn cuGraphClone(out: Out<Handle>, original: Handle) { clone(out, original) }
    call fn cuGraphNodeFindInClone(out: Out<Handle>, node: Handle, copy: Handle) { find_in_clone(out, node, copy) }
}
