//! What nodes of graphs and of their instances do is changed; their shape stays.
//!
//! A change goes into the recipe at once, and into the device's graph or instance when that is used next: from then on
//! nothing tells it from one that was made so. Programs change many nodes between two launches.

use std::sync::Arc;

use rekindle_cuda::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE};
use rekindle_device::Result;
use rekindle_protocol::operation::{
    GraphEnable, GraphExecUpdate, GraphSet, GraphSetChild, GraphSetChildInside, GraphSetCopy, GraphSetKernel,
    GraphSetSet, Id, NodesOf,
};

use super::{Client, GraphStep, Recipe};

/// The steps of a graph that is in a node, and so on.
fn descend<'s>(mut steps: &'s mut Vec<GraphStep>, path: &[(u32, u32)]) -> Result<&'s mut Vec<GraphStep>> {
    for (node, body) in path {
        let inside = steps.get_mut(*node as usize).and_then(|step| step.inside(*body));
        let recipe = inside.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        recipe.unfold();
        steps = &mut recipe.steps;
    }
    Ok(steps)
}

impl Client {
    pub(super) fn set_kernel(&mut self, request: GraphSetKernel, parameters: &[u8]) -> Result<()> {
        let GraphSetKernel { of, node, function, launch } = request;
        self.bind(self.device_with(of)?)?;
        self.kernel(function)?;
        let parameters = parameters.to_vec();
        self.set_step(of, &[], node, GraphStep::Kernel { after: Vec::new(), function, launch, parameters })
    }

    pub(super) fn set_copy(&mut self, request: GraphSetCopy) -> Result<()> {
        let GraphSetCopy { of, node, copy } = request;
        self.set_step(of, &[], node, GraphStep::Copy { after: Vec::new(), copy })
    }

    pub(super) fn set_set(&mut self, request: GraphSetSet) -> Result<()> {
        let GraphSetSet { of, node, set } = request;
        self.set_step(of, &[], node, GraphStep::Set { after: Vec::new(), set })
    }

    pub(super) fn set_child(&mut self, request: GraphSetChild) -> Result<()> {
        let GraphSetChild { of, node, child } = request;
        self.set_child_at(of, &[], node, child)
    }

    pub(super) fn set_child_inside(&mut self, request: GraphSetChildInside) -> Result<()> {
        let GraphSetChildInside { exec, path, node, child } = request;
        self.set_child_at(NodesOf::Exec(exec), &path, node, child)
    }

    fn set_child_at(&mut self, of: NodesOf, path: &[(u32, u32)], node: u32, child: Id) -> Result<()> {
        let found = self.graphs.get(child)?;
        if matches!(of, NodesOf::Graph(id) if id == child) || found.device != self.device_with(of)? {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let recipe = Recipe::clone(&found.recipe);
        self.set_step(of, path, node, GraphStep::Child { after: Vec::new(), recipe })
    }

    fn device_with(&self, of: NodesOf) -> Result<usize> {
        match of {
            NodesOf::Graph(id) => self.graphs.get(id).map(|graph| graph.device),
            NodesOf::Exec(id) => self.execs.get(id).map(|exec| exec.device),
        }
    }

    pub(super) fn set_action(&mut self, request: GraphSet) -> Result<()> {
        let GraphSet { of, path, node, action } = request;
        let step = GraphStep::of(Vec::new(), action).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        self.set_step(of, &path, node, step)
    }

    fn set_step(&mut self, of: NodesOf, path: &[(u32, u32)], node: u32, step: GraphStep) -> Result<()> {
        let change = |steps: &mut Vec<GraphStep>| {
            let place = descend(steps, path)?.get_mut(node as usize).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            place.become_like(step)
        };
        match of {
            NodesOf::Graph(id) => {
                self.edit(id, change)?;
                self.renew_inside(id, node)
            }
            NodesOf::Exec(id) => self.edit_exec(id, change),
        }
    }

    fn edit_exec(&mut self, id: Id, change: impl FnOnce(&mut Vec<GraphStep>) -> Result<()>) -> Result<()> {
        let exec = self.execs.get_mut(id)?;
        let recipe = Arc::make_mut(&mut exec.recipe);
        recipe.unfold();
        change(&mut recipe.steps)?;
        exec.is_stale = true;
        Ok(())
    }

    pub(super) fn enable(&mut self, request: GraphEnable) -> Result<()> {
        let GraphEnable { exec, path, node, enabled } = request;
        self.edit_exec(exec, |steps| {
            let step = descend(steps, &path)?.get_mut(node as usize).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            let own = std::mem::replace(step, GraphStep::Gone);
            *step = match own {
                GraphStep::Disabled(step) if enabled => *step,
                step @ (GraphStep::Kernel { .. } | GraphStep::Copy { .. } | GraphStep::Set { .. })
                    if !enabled =>
                {
                    GraphStep::Disabled(Box::new(step))
                }
                step => step,
            };
            Ok(())
        })
    }

    /// `CUgraphExecUpdateResult`.
    pub(super) fn update_exec(&mut self, request: GraphExecUpdate) -> Result<u32> {
        let GraphExecUpdate { exec, graph } = request;
        self.renew_graph(graph)?;
        let (device, handle, recipe) = {
            let found = self.graphs.get(graph)?;
            let built = found.built.as_ref().ok_or(CUDA_ERROR_INVALID_HANDLE)?;
            (found.device, built.0, found.recipe.clone())
        };
        let instance = self.execs.get(exec)?;
        if instance.device != device {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        let is_made_anew =
            |step: &GraphStep| matches!(step, GraphStep::Disabled(_) | GraphStep::Conditional { .. });
        let own = instance.handle.filter(|_| !instance.recipe.steps.iter().any(is_made_anew));
        let Some(instance) = own.filter(|_| !recipe.has_conditions()) else {
            return self.update_recipe(exec, recipe);
        };
        let result = self.on(device)?.graph_exec_update(instance, handle)?;
        if result == 0 {
            let exec = self.execs.get_mut(exec)?;
            (exec.recipe, exec.is_stale) = (recipe, false);
        }
        Ok(result)
    }

    /// Nodes of an instance that are disabled stay so: the device has others in their places. Conditions of the device are of
    /// one instance.
    fn update_recipe(&mut self, exec: Id, mut recipe: Arc<Recipe>) -> Result<u32> {
        let exec = self.execs.get_mut(exec)?;
        let result = exec.recipe.difference(&recipe);
        if result != 0 {
            return Ok(result);
        }
        let changed = Arc::make_mut(&mut recipe);
        changed.unfold();
        for (step, own) in changed.steps.iter_mut().zip(exec.recipe.unfolded().iter()) {
            if matches!(own, GraphStep::Disabled(_)) {
                *step = GraphStep::Disabled(Box::new(std::mem::replace(step, GraphStep::Gone)));
            }
        }
        (exec.recipe, exec.is_stale) = (recipe, true);
        Ok(0)
    }

    /// Has the device have a graph as its recipe says.
    pub(super) fn renew_graph(&mut self, id: Id) -> Result<()> {
        let graph = self.graphs.get(id)?;
        if graph.built.is_some() {
            return Ok(());
        }
        let (device, recipe) = (graph.device, graph.recipe.clone());
        let built = self.build(device, &recipe)?;
        self.graphs.get_mut(id)?.built = Some(built);
        Ok(())
    }

    /// Has an instance do what its recipe says: the same instance, or a new one where the device cannot change it so.
    pub(super) fn renew_exec(&mut self, id: Id) -> Result<()> {
        let exec = self.execs.get(id)?;
        if !exec.is_stale {
            return Ok(());
        }
        let (device, old, flags, recipe) = (exec.device, exec.handle, exec.flags, exec.recipe.clone());
        let (graph, _) = self.build(device, &recipe)?;
        let gpu = self.on(device)?;
        let updated = match old.filter(|_| !recipe.has_conditions()) {
            Some(old) => gpu.graph_exec_update(old, graph).map(|result| (result == 0).then_some(old)),
            None => Ok(None),
        };
        let renewed = updated.and_then(|same| same.map_or_else(|| gpu.graph_instantiate(graph, flags), Ok));
        gpu.graph_destroy(graph)?;
        let handle = renewed?;
        if let Some(old) = old.filter(|old| *old != handle) {
            gpu.graph_exec_destroy(old)?;
        }
        let exec = self.execs.get_mut(id)?;
        (exec.handle, exec.is_stale) = (Some(handle), false);
        Ok(())
    }
}
