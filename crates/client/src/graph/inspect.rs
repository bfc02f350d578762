//! Looking at a graph's nodes and edges.

use rekindle_cuda::types::GraphEdgeData;
use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};

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

/// For each node, the numbers of those it comes after. Known only of nodes that the program added itself.
fn dependencies(entries: &[Entry]) -> Result<Vec<&[u32]>> {
    entries.iter().map(|entry| entry.after.as_deref().ok_or(CUDA_ERROR_NOT_SUPPORTED)).collect()
}

fn entries(graph: Handle) -> Result<Vec<Entry>> {
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
    let mut found = Vec::new();
    for (number, after) in dependencies(&entries)?.into_iter().enumerate() {
        found.extend(after.iter().map(|before| (entries[*before as usize].handle, entries[number].handle)));
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
    let entries = entries(node.graph)?;
    let after = dependencies(&entries)?[node.number as usize];
    let found: Vec<Handle> = after.iter().map(|number| entries[*number as usize].handle).collect();
    full_edges(data, count, found.len())?;
    list(nodes, count, &found)
}

fn behind(node: Handle, nodes: Out<Handle>, data: Out<GraphEdgeData>, count: Out<usize>) -> Result<()> {
    let node = arena::get::<Node>(node)?;
    let entries = entries(node.graph)?;
    let dependencies = dependencies(&entries)?;
    let found: Vec<Handle> = entries
        .iter()
        .zip(dependencies)
        .filter(|(_, after)| after.contains(&node.number))
        .map(|(entry, _)| entry.handle)
        .collect();
    full_edges(data, count, found.len())?;
    list(nodes, count, &found)
}

fn full_edges(data: Out<GraphEdgeData>, count: Out<usize>, found: usize) -> Result<()> {
    if !data.is_null() {
        data.fill(count.current()?.min(found), std::iter::repeat(GraphEdgeData::default()));
    }
    Ok(())
}

exports! {
    call fn cuGraphGetNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) {
        let handles: Vec<Handle> = entries(graph)?.iter().map(|entry| entry.handle).collect();
        list(nodes, count, &handles)
    }
    call fn cuGraphGetRootNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) {
        let entries = entries(graph)?;
        let roots = entries.iter().zip(dependencies(&entries)?).filter(|(_, after)| after.is_empty());
        let roots: Vec<Handle> = roots.map(|(entry, _)| entry.handle).collect();
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
        let node = arena::get::<Node>(node)?;
        let entries = entries(node.graph)?;
        out.put(entries.get(node.number as usize).ok_or(CUDA_ERROR_INVALID_VALUE)?.kind)
    }
}
