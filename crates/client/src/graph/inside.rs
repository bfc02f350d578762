//! Graphs that are in nodes. What is changed of one is changed in its node.

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_protocol::operation::GraphInside;

use crate::abi::{Handle, Out, Result};
use crate::export::exports;
use crate::{arena, lane};

use super::parameters::CHILD;
use super::{Graph, Node, Origin, insert_as, new_id};

/// The handle of the graph in a node, made when it is first asked for.
pub(super) fn graph_in(handle: Handle) -> Result<Handle> {
    let node = arena::get::<Node>(handle)?;
    let graph = arena::get::<Graph>(node.graph)?;
    graph.refresh(node.graph)?;
    if graph.state().entry(node.number)?.kind != CHILD {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    body_of(node.graph, node.number, 0)
}

/// The handle of a graph in a node.
pub(super) fn body_of(of: Handle, node: u32, body: u32) -> Result<Handle> {
    let graph = arena::get::<Graph>(of)?;
    let mut state = graph.state();
    if let Some(inside) = state.inside.get(&(node, body)) {
        return Ok(*inside);
    }
    let id = new_id();
    lane::ask(&GraphInside { graph: graph.id, node, body, inside: id })?;
    let inside = insert_as(id, graph.device, Origin::Worker(0), Some((of, node, body)), None)?;
    state.inside.insert((node, body), inside);
    Ok(inside)
}

impl Graph {
    /// Another graph is in its node now: its nodes are that one's.
    pub(super) fn begin_anew(&self) -> Result<()> {
        // What it held, instances may have.
        let held = self.end_handles()?;
        let mut state = self.state();
        state.origin = Origin::Worker(0);
        state.held.extend(held);
        Ok(())
    }
}

exports! {
    call fn cuGraphChildGraphNodeGetGraph(node: Handle, out: Out<Handle>) {
        out.check()?;
        out.put(graph_in(node)?)
    }
}
