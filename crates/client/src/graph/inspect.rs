//! Looking at a graph's nodes and edges.

use std::collections::HashMap;

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_cuda::types::GraphEdgeData;

use crate::abi::{Handle, Out, Result};
use crate::arena;
use crate::export::exports;

use super::{Entry, Graph, Node};

/// Answers a call that wants a list: its length where there is no array, else as much as fits; what is left over of
/// the array is null.
fn list(nodes: Out<Handle>, count: Out<usize>, found: &[Handle]) -> Result<()> {
    let room = count.current()?;
    if !nodes.is_null() {
        let padding = std::iter::repeat(Handle::NULL);
        nodes.fill(room, found.iter().copied().chain(padding));
    }
    count.put(if nodes.is_null() { found.len() } else { room.min(found.len()) })
}

fn entries(graph: Handle) -> Result<Vec<(u32, Entry)>> {
    arena::get::<Graph>(graph)?.entries(graph)
}

fn edges(
    graph: Handle,
    from: Out<Handle>,
    to: Out<Handle>,
    data: Out<GraphEdgeData>,
    count: Out<usize>,
) -> Result<()> {
    let entries = entries(graph)?;
    let handles: HashMap<u32, Handle> =
        entries.iter().map(|(number, entry)| (*number, entry.handle)).collect();
    let mut found = Vec::new();
    for (_, entry) in &entries {
        let before = entry.after.iter().filter_map(|number| handles.get(number));
        found.extend(before.map(|before| (*before, entry.handle)));
    }
    let room = count.current()?;
    if from.is_null() != to.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if from.is_null() {
        return count.put(found.len());
    }
    from.fill(room, found.iter().map(|edge| edge.0));
    to.fill(room, found.iter().map(|edge| edge.1));
    if !data.is_null() {
        data.fill(room.min(found.len()), std::iter::repeat(GraphEdgeData::default()));
    }
    count.put(room.min(found.len()))
}

fn before(node: Handle, nodes: Out<Handle>, data: Out<GraphEdgeData>, count: Out<usize>) -> Result<()> {
    let node = arena::get::<Node>(node)?;
    let graph = arena::get::<Graph>(node.graph)?;
    graph.look(node.graph)?;
    let found = {
        let state = graph.state();
        let after = &state.entry(node.number)?.after;
        after
            .iter()
            .map(|number| state.entry(*number).map(|entry| entry.handle))
            .collect::<Result<Vec<_>>>()?
    };
    full_edges(data, count, found.len())?;
    list(nodes, count, &found)
}

fn behind(node: Handle, nodes: Out<Handle>, data: Out<GraphEdgeData>, count: Out<usize>) -> Result<()> {
    let node = arena::get::<Node>(node)?;
    let entries = entries(node.graph)?;
    let behind = entries.iter().filter(|(_, entry)| entry.after.contains(&node.number));
    let found: Vec<Handle> = behind.map(|(_, entry)| entry.handle).collect();
    full_edges(data, count, found.len())?;
    list(nodes, count, &found)
}

/// `CUgraphNodeType`.
pub(super) fn kind(node: Handle) -> Result<u32> {
    let node = arena::get::<Node>(node)?;
    let graph = arena::get::<Graph>(node.graph)?;
    graph.look(node.graph)?;
    let state = graph.state();
    state.entry(node.number).map(|entry| entry.kind)
}

fn full_edges(data: Out<GraphEdgeData>, count: Out<usize>, found: usize) -> Result<()> {
    if !data.is_null() {
        data.fill(count.current()?.min(found), std::iter::repeat(GraphEdgeData::default()));
    }
    Ok(())
}

exports! {
    call fn cuGraphGetNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) {
        let handles: Vec<Handle> = entries(graph)?.iter().map(|(_, entry)| entry.handle).collect();
        list(nodes, count, &handles)
    }
    call fn cuGraphGetRootNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) {
        let entries = entries(graph)?;
        let roots = entries.iter().filter(|(_, entry)| entry.after.is_empty());
        let roots: Vec<Handle> = roots.map(|(_, entry)| entry.handle).collect();
        list(nodes, count, &roots)
    }
    call fn cuGraphGetEdges(graph: Handle, from: Out<Handle>, to: Out<Handle>, count: Out<usize>) {
        edges(graph, from, to, Out(std::ptr::null_mut()), count)
    }
    call fn cuGraphGetEdges_v2(graph: Handle, from: Out<Handle>, to: Out<Handle>, data: Out<GraphEdgeData>, count: Out<usize>) {
        edges(graph, from, to, data, count)
    }
    call fn cuGraphNodeGetDependencies(node: Handle, nodes: Out<Handle>, count: Out<usize>) {
        before(node, nodes, Out(std::ptr::null_mut()), count)
    }
    call fn cuGraphNodeGetDependencies_v2(node: Handle, nodes: Out<Handle>, data: Out<GraphEdgeData>, count: Out<usize>) {
        before(node, nodes, data, count)
    }
    call fn cuGraphNodeGetDependentNodes(node: Handle, nodes: Out<Handle>, count: Out<usize>) {
        behind(node, nodes, Out(std::ptr::null_mut()), count)
    }
    call fn cuGraphNodeGetDependentNodes_v2(node: Handle, nodes: Out<Handle>, data: Out<GraphEdgeData>, count: Out<usize>) {
        behind(node, nodes, data, count)
    }
    call fn cuGraphNodeGetType(node: Handle, out: Out<u32>) {
        out.put(kind(node)?)
    }
}
