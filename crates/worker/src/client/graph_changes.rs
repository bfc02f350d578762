//! What nodes of graphs and of their instances do is changed; their shape stays.
//!
//! A change goes into the recipe at once, and into the device's graph or instance when that is used next: from then on
//! nothing tells it from one that was made so. Programs change many nodes between two launches.

use std::sync::Arc;

use rekindle_cuda::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
use rekindle_device::Result;
use rekindle_protocol::operation::{
    GraphExecUpdate, GraphSetChild, GraphSetCopy, GraphSetKernel, GraphSetSet, Id, NodesOf,
};

use super::{Client, GraphStep, Recipe};

impl Client {
    pub(super) fn set_kernel(&mut self, request: GraphSetKernel, parameters: &[u8]) -> Result<()> {
        let GraphSetKernel { of, node, function, launch } = request;
        self.bind(self.device_with(of)?)?;
        self.kernel(function)?;
        let parameters = parameters.to_vec();
        self.set_step(of, node, GraphStep::Kernel { after: Vec::new(), function, launch, parameters })
    }

    pub(super) fn set_copy(&mut self, request: GraphSetCopy) -> Result<()> {
        let GraphSetCopy { of, node, copy } = request;
        self.set_step(of, node, GraphStep::Copy { after: Vec::new(), copy })
    }

    pub(super) fn set_set(&mut self, request: GraphSetSet) -> Result<()> {
        let GraphSetSet { of, node, set } = request;
        self.set_step(of, node, GraphStep::Set { after: Vec::new(), set })
    }

    pub(super) fn set_child(&mut self, request: GraphSetChild) -> Result<()> {
        let GraphSetChild { of, node, child } = request;
        let found = self.graphs.get(child)?;
        if matches!(of, NodesOf::Graph(id) if id == child) || found.device != self.device_with(of)? {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let recipe = Recipe::clone(&found.recipe);
        self.set_step(of, node, GraphStep::Child { after: Vec::new(), recipe })
    }

    fn device_with(&self, of: NodesOf) -> Result<usize> {
        match of {
            NodesOf::Graph(id) => self.graphs.get(id).map(|graph| graph.device),
            NodesOf::Exec(id) => self.execs.get(id).map(|exec| exec.device),
        }
    }

    fn set_step(&mut self, of: NodesOf, node: u32, step: GraphStep) -> Result<()> {
        let one = Recipe { steps: vec![step] };
        self.check_writes(&one)?;
        let (recipe, is_stale) = match of {
            NodesOf::Graph(id) => {
                let graph = self.graphs.get_mut(id)?;
                (&mut graph.recipe, &mut graph.is_stale)
            }
            NodesOf::Exec(id) => {
                let exec = self.execs.get_mut(id)?;
                (&mut exec.recipe, &mut exec.is_stale)
            }
        };
        // How its nodes are numbered is known to the device alone.
        if matches!(recipe.steps.first(), Some(GraphStep::Captured(_))) {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let place = Arc::make_mut(recipe).steps.get_mut(node as usize).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        one.steps.into_iter().try_for_each(|step| place.become_like(step))?;
        *is_stale = true;
        Ok(())
    }

    /// `CUgraphExecUpdateResult`.
    pub(super) fn update_exec(&mut self, request: GraphExecUpdate) -> Result<u32> {
        let GraphExecUpdate { exec, graph } = request;
        self.renew_graph(graph)?;
        let (device, handle, recipe) = {
            let found = self.graphs.get(graph)?;
            (found.device, found.handle, found.recipe.clone())
        };
        let instance = self.execs.get(exec)?;
        if instance.device != device {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        let instance = instance.handle;
        self.check_writes(&recipe)?;
        let result = self.on(device)?.graph_exec_update(instance, handle)?;
        if result == 0 {
            let exec = self.execs.get_mut(exec)?;
            (exec.recipe, exec.is_stale) = (recipe, false);
        }
        Ok(result)
    }

    /// Has a graph do what its recipe says.
    pub(super) fn renew_graph(&mut self, id: Id) -> Result<()> {
        let graph = self.graphs.get(id)?;
        if !graph.is_stale {
            return Ok(());
        }
        let (device, old, recipe) = (graph.device, graph.handle, graph.recipe.clone());
        let (handle, nodes) = self.build(device, &recipe)?;
        let graph = self.graphs.get_mut(id)?;
        (graph.handle, graph.nodes, graph.is_stale) = (handle, nodes, false);
        self.on(device)?.graph_destroy(old)
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
        let renewed = gpu.graph_exec_update(old, graph).and_then(|result| match result {
            0 => Ok(old),
            _ => gpu.graph_instantiate(graph, flags),
        });
        gpu.graph_destroy(graph)?;
        let handle = renewed?;
        if handle != old {
            gpu.graph_exec_destroy(old)?;
        }
        let exec = self.execs.get_mut(id)?;
        (exec.handle, exec.is_stale) = (handle, false);
        Ok(())
    }
}
