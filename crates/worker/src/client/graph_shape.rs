//! The shape of graphs: edges and nodes that come and go, copies of graphs, and graphs in nodes.
//!
//! A graph that is in a node of another has an object of its own once the program asks for it. Both have its recipe;
//! what is changed of it goes into the other's too.

use std::sync::Arc;

use rekindle_cuda::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
use rekindle_device::Result;
use rekindle_protocol::operation::{
    CaptureTopology, GraphClone, GraphEdges, GraphInside, GraphNode, GraphPut, GraphRemove, GraphTopology,
    Id, NodeAction, NodeFound, Origin,
};

use super::{Client, GraphObject, GraphStep};

/// Numbers in one answer about a graph's shape: five bytes each, they fill half of the place for an answer.
const ANSWERED: usize = 6000;

/// A change of a graph's steps.
type Change = Box<dyn FnOnce(&mut Vec<GraphStep>) -> Result<()>>;

/// Steps from this one on, as many as an answer has place for.
fn answered(steps: &[GraphStep], from: usize) -> Vec<Option<NodeFound>> {
    let mut numbers = 0;
    let found = steps.iter().skip(from).map_while(|step| {
        numbers += 2 + step.before().len();
        let is_first = numbers == 2 + step.before().len();
        (is_first || numbers <= ANSWERED).then(|| match step {
            GraphStep::Gone => None,
            step => Some(NodeFound { kind: step.action().kind(), after: step.before().to_vec() }),
        })
    });
    found.collect()
}

impl Client {
    pub(super) fn topology(&mut self, request: GraphTopology) -> Result<Vec<Option<NodeFound>>> {
        let recipe = &self.graphs.get(request.graph)?.recipe;
        Ok(answered(&recipe.unfolded(), request.from as usize))
    }

    pub(super) fn topology_of_capture(
        &mut self,
        origin: Origin,
        request: CaptureTopology,
    ) -> Result<Vec<Option<NodeFound>>> {
        let CaptureTopology { device, stream, from } = request;
        let (recording, _) = self.recording(origin, device, stream)?;
        let before = recording.next_number() - recording.nodes() as u32;
        Ok(answered(&recording.unfold(), from.saturating_sub(before) as usize))
    }

    /// Asking for it makes a captured node one of its own.
    pub(super) fn node_action(&mut self, request: GraphNode) -> Result<NodeAction> {
        self.unfold_graph(request.graph)?;
        let steps = &self.graphs.get(request.graph)?.recipe.steps;
        match steps.get(request.node as usize) {
            None | Some(GraphStep::Gone) => Err(CUDA_ERROR_INVALID_VALUE),
            Some(step) => Ok(step.action()),
        }
    }

    /// Has each step of a graph's recipe be a node.
    pub(super) fn unfold_graph(&mut self, id: Id) -> Result<()> {
        let graph = self.graphs.get_mut(id)?;
        if matches!(graph.recipe.steps.first(), Some(GraphStep::Captured(_))) {
            Arc::make_mut(&mut graph.recipe).unfold();
            // The device may have numbered its nodes in another order.
            self.unbuild(id)?;
        }
        Ok(())
    }

    /// The device's graph is not what the recipe says any more.
    pub(super) fn unbuild(&mut self, id: Id) -> Result<()> {
        let graph = self.graphs.get_mut(id)?;
        let device = graph.device;
        match graph.built.take() {
            Some((handle, _)) => self.on(device)?.graph_destroy(handle),
            None => Ok(()),
        }
    }

    /// Changes a graph's steps, each of which is a node.
    pub(super) fn edit(
        &mut self,
        id: Id,
        change: impl FnOnce(&mut Vec<GraphStep>) -> Result<()>,
    ) -> Result<()> {
        self.unfold_graph(id)?;
        change(&mut Arc::make_mut(&mut self.graphs.get_mut(id)?.recipe).steps)?;
        self.unbuild(id)?;
        self.spread(id)
    }

    /// A graph that is in a node of another has changed.
    pub(super) fn spread(&mut self, id: Id) -> Result<()> {
        let graph = self.graphs.get(id)?;
        let Some((of, node, body)) = graph.within else { return Ok(()) };
        let inside = graph.recipe.clone();
        let put = move |steps: &mut Vec<GraphStep>| {
            let place = steps.get_mut(node as usize).and_then(|step| step.inside(body));
            *place.ok_or(CUDA_ERROR_INVALID_HANDLE)? = (*inside).clone();
            Ok(())
        };
        // What is changed in a graph's graph is changed in all that have it in them.
        let change: Change = Box::new(put);
        self.edit(of, change)
    }

    /// A node has another graph in it now.
    pub(super) fn renew_inside(&mut self, of: Id, node: u32) -> Result<()> {
        let Some(inside) = self.inside(of, Some(node)).first().copied() else { return Ok(()) };
        self.unbuild(inside)?;
        self.destroy_inside(inside, None)?;
        let Some(GraphStep::Child { recipe, .. }) = self.graphs.get(of)?.recipe.steps.get(node as usize)
        else {
            return Ok(());
        };
        let recipe = Arc::new(recipe.clone());
        self.graphs.get_mut(inside)?.recipe = recipe;
        Ok(())
    }

    /// Graphs in a node of a graph, or in all of them, as far as the program has asked for them.
    fn inside(&self, of: Id, node: Option<u32>) -> Vec<Id> {
        let is_there = |graph: &GraphObject| {
            graph.within.is_some_and(|within| within.0 == of && node.is_none_or(|node| within.1 == node))
        };
        self.graphs.iter().filter(|(_, graph)| is_there(graph)).map(|(id, _)| id).collect()
    }

    pub(super) fn destroy_inside(&mut self, of: Id, node: Option<u32>) -> Result<()> {
        self.inside(of, node).into_iter().try_for_each(|id| self.destroy_graph(id))
    }

    pub(super) fn change_edges(&mut self, request: GraphEdges) -> Result<()> {
        let GraphEdges { graph, edges, add } = request;
        self.edit(graph, |steps| {
            let is_node = |number: u32| matches!(steps.get(number as usize), Some(step) if !matches!(step, GraphStep::Gone));
            if edges.iter().any(|(from, to)| from == to || !is_node(*from) || !is_node(*to)) {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            // All of them or none.
            let mut changed = steps.clone();
            for (from, to) in edges {
                let after = changed.get_mut(to as usize).and_then(GraphStep::after);
                let after = after.ok_or(CUDA_ERROR_INVALID_VALUE)?;
                match (after.iter().position(|before| *before == from), add) {
                    (None, true) => after.push(from),
                    (Some(at), false) => drop(after.remove(at)),
                    _ => return Err(CUDA_ERROR_INVALID_VALUE),
                }
            }
            *steps = changed;
            Ok(())
        })
    }

    pub(super) fn remove_node(&mut self, request: GraphRemove) -> Result<()> {
        let GraphRemove { graph, node } = request;
        self.edit(graph, |steps| {
            let step = steps.get_mut(node as usize).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            match step {
                GraphStep::Gone => return Err(CUDA_ERROR_INVALID_VALUE),
                step if step.is_memory() => return Err(CUDA_ERROR_NOT_SUPPORTED),
                step => *step = GraphStep::Gone,
            }
            for after in steps.iter_mut().filter_map(GraphStep::after) {
                after.retain(|before| *before != node);
            }
            Ok(())
        })?;
        self.destroy_inside(graph, Some(node))
    }

    pub(super) fn clone_graph(&mut self, request: GraphClone) -> Result<()> {
        let GraphClone { graph, clone } = request;
        if !self.graphs.is_free(clone) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let GraphObject { device, ref recipe, .. } = *self.graphs.get(graph)?;
        let recipe = recipe.clone();
        self.graphs.insert(clone, GraphObject { device, built: None, recipe, within: None })
    }

    /// A graph by itself is in a node from now on.
    pub(super) fn put_in_node(&mut self, request: GraphPut) -> Result<()> {
        let GraphPut { graph, node, body, inside } = request;
        let of = self.graphs.get(graph)?;
        let (device, mut outer) = (of.device, Some(graph));
        // It is not in itself.
        while let Some(id) = outer.filter(|id| *id != inside) {
            outer = self.graphs.get(id)?.within.map(|within| within.0);
        }
        let within = Some((graph, node, body));
        let found = self.graphs.get(inside)?;
        let is_other = outer.is_some() || found.within.is_some() || found.device != device;
        if is_other || self.graphs.iter().any(|(_, graph)| graph.within == within) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.unbuild(inside)?;
        self.graphs.get_mut(inside)?.within = within;
        self.spread(inside)
    }

    pub(super) fn graph_in_node(&mut self, request: GraphInside) -> Result<()> {
        let GraphInside { graph, node, body, inside } = request;
        self.unfold_graph(graph)?;
        let within = Some((graph, node, body));
        if !self.graphs.is_free(inside) || self.graphs.iter().any(|(_, graph)| graph.within == within) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let graph = self.graphs.get_mut(graph)?;
        let device = graph.device;
        let step = Arc::make_mut(&mut graph.recipe).steps.get_mut(node as usize);
        let recipe = step.and_then(|step| step.inside(body)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let recipe = Arc::new(recipe.clone());
        self.graphs.insert(inside, GraphObject { device, built: None, recipe, within })
    }
}
