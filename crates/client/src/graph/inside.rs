//! Graphs that are in nodes. What is changed of one is changed in its node.

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_protocol::operation::{GraphDestroy, GraphInside, GraphPut, Id};

use crate::abi::{Handle, Out, Result};
use crate::export::exports;
use crate::{arena, lane};

use super::parameters::CHILD;
use super::{Graph, Node, Origin, insert_as, new_id};

/// The handle of the graph in a node, made when it is first asked for.
pub(super) fn graph_in(handle: Handle) -> Result<Handle> {
    let node = arena::get::<Node>(handle)?;
    let graph = arena::get::<Graph>(node.graph)?;
    if !graph.is_captured_now() {
        graph.refresh(node.graph)?;
    }
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
    /// A graph by itself is in a node of this one when the capture into this one ends.
    pub(super) fn put_later(
        &self,
        own: Handle,
        (node, body): (u32, u32),
        id: Id,
        origin: Origin,
    ) -> Result<Handle> {
        let inside = insert_as(id, self.device, origin, Some((own, node, body)), None)?;
        self.state().inside.insert((node, body), inside);
        Ok(inside)
    }

    /// The capture into it has ended, and it had so many nodes before: graphs in later ones come there.
    pub(super) fn put_inside(&self, before: usize) -> Result<()> {
        let mut inside = self.graphs_in(before);
        inside.sort_unstable_by_key(|(site, _)| *site);
        inside.into_iter().try_for_each(|((node, body), handle)| {
            let inside = arena::get::<Graph>(handle)?.id;
            lane::ask(&GraphPut { graph: self.id, node, body, inside })
        })
    }

    /// The capture into it came to nothing: graphs that were to be in nodes of it end.
    pub(super) fn drop_inside(&self, before: usize) -> Result<()> {
        for (site, handle) in self.graphs_in(before) {
            self.state().inside.remove(&site);
            let graph = arena::remove::<Graph>(handle)?;
            drop(graph.end_handles()?);
            lane::ask(&GraphDestroy { graph: graph.id })?;
        }
        Ok(())
    }

    /// Graphs in its nodes from this number on.
    fn graphs_in(&self, from: usize) -> Vec<((u32, u32), Handle)> {
        let state = self.state();
        let later = state.inside.iter().filter(|((node, _), _)| *node as usize >= from);
        later.map(|(site, handle)| (*site, *handle)).collect()
    }

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
