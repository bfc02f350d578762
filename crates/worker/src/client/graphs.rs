//! Graphs: explicit nodes, instances and launches. Each change also goes into the graph's recipe.

use std::sync::Arc;

use rekindle_cuda::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE};
use rekindle_device::{Device, Function, Graph, GraphNode, Result};
use rekindle_protocol::operation::{
    GraphAddChild, GraphAddCopy, GraphAddEmpty, GraphAddKernel, GraphAddSet, GraphCreate, GraphInstantiate,
    GraphLaunch, Id, Origin,
};

use super::{Client, ExecObject, GraphObject, GraphStep, Recipe, Step};

impl Client {
    pub(super) fn create_graph(&mut self, request: GraphCreate) -> Result<()> {
        let device = usize::from(request.device);
        if !self.graphs.is_free(request.graph) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let handle = self.on(device)?.graph_create()?;
        let graph =
            GraphObject { device, handle, nodes: Vec::new(), recipe: Arc::default(), is_stale: false };
        self.graphs.insert(request.graph, graph)
    }

    pub(super) fn add_kernel(&mut self, request: GraphAddKernel, parameters: &[u8]) -> Result<u32> {
        let GraphAddKernel { graph, after, function, launch } = request;
        let parameters = parameters.to_vec();
        self.add_step(graph, GraphStep::Kernel { after, function, launch, parameters })
    }

    pub(super) fn add_copy(&mut self, request: GraphAddCopy) -> Result<u32> {
        self.add_step(request.graph, GraphStep::Copy { after: request.after, copy: request.copy })
    }

    pub(super) fn add_set(&mut self, request: GraphAddSet) -> Result<u32> {
        self.add_step(request.graph, GraphStep::Set { after: request.after, set: request.set })
    }

    pub(super) fn add_empty(&mut self, request: GraphAddEmpty) -> Result<u32> {
        self.add_step(request.graph, GraphStep::Empty { after: request.after })
    }

    pub(super) fn add_child(&mut self, request: GraphAddChild) -> Result<u32> {
        let GraphAddChild { graph, after, child } = request;
        self.renew_graph(child)?;
        let found = self.graphs.get(child)?;
        if child == graph || found.device != self.graphs.get(graph)?.device {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (handle, recipe) = (found.handle, Recipe::clone(&found.recipe));
        self.add(graph, GraphStep::Child { after, recipe }, Some(handle))
    }

    fn add_step(&mut self, id: Id, step: GraphStep) -> Result<u32> {
        self.add(id, step, None)
    }

    /// Adds a node, and gives its number within the graph; `child` is the graph that it has in it.
    fn add(&mut self, id: Id, step: GraphStep, child: Option<Graph>) -> Result<u32> {
        self.renew_graph(id)?;
        let device = self.graphs.get(id)?.device;
        self.bind(device)?;
        let function = match &step {
            GraphStep::Kernel { function, .. } => Some(self.kernel(*function)?.1),
            _ => None,
        };
        let gpu = &*self.contexts[device].as_ref().ok_or(CUDA_ERROR_INVALID_HANDLE)?.device;
        let graph = self.graphs.get_mut(id)?;
        let node = add_node(gpu, graph.handle, &graph.nodes, &step, function, child)?;
        graph.nodes.push(node);
        Arc::make_mut(&mut graph.recipe).steps.push(step);
        Ok(graph.nodes.len() as u32 - 1)
    }

    pub(super) fn node_kinds(&mut self, id: Id) -> Result<Vec<u32>> {
        self.renew_graph(id)?;
        let device = self.graphs.get(id)?.device;
        self.bind(device)?;
        let gpu = &self.context(device)?.device;
        self.graphs.get(id)?.nodes.iter().map(|node| Ok(gpu.graph_node_kind(*node)?.0)).collect()
    }

    pub(super) fn destroy_graph(&mut self, id: Id) -> Result<()> {
        let graph = self.graphs.remove(id)?;
        self.on(graph.device)?.graph_destroy(graph.handle)
    }

    pub(super) fn instantiate(&mut self, request: GraphInstantiate) -> Result<()> {
        let GraphInstantiate { graph, exec, flags } = request;
        if !self.execs.is_free(exec) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.renew_graph(graph)?;
        let GraphObject { device, handle, ref recipe, .. } = *self.graphs.get(graph)?;
        let recipe = recipe.clone();
        self.check_writes(&recipe)?;
        let instance = self.on(device)?.graph_instantiate(handle, flags)?;
        self.execs.insert(exec, ExecObject { device, handle: instance, flags, recipe, is_stale: false })
    }

    pub(super) fn launch_graph(&mut self, origin: Origin, request: GraphLaunch) -> Result<()> {
        self.renew_exec(request.exec)?;
        let (device, stream) = self.enter(origin, request.device, request.stream)?;
        if self.constants_told {
            let recipe = self.execs.get(request.exec)?.recipe.clone();
            self.fill_banks(device, &recipe, stream)?;
        }
        let exec = self.execs.get(request.exec)?;
        self.context(device)?.device.graph_launch(exec.handle, stream)?;
        if self.recordings.is_empty() {
            return Ok(());
        }
        let (recipe, flags) = (Recipe::clone(&exec.recipe), exec.flags);
        self.note(device, stream, |stream| Step::Graph { stream, recipe, flags })
    }

    pub(super) fn destroy_exec(&mut self, id: Id) -> Result<()> {
        let exec = self.execs.remove(id)?;
        self.on(exec.device)?.graph_exec_destroy(exec.handle)
    }
}

/// Adds the node that a step describes; `function` is the kernel's handle where it is a kernel, `child` the graph where
/// it has one in it.
pub(super) fn add_node(
    device: &dyn Device,
    graph: Graph,
    nodes: &[GraphNode],
    step: &GraphStep,
    function: Option<Function>,
    child: Option<Graph>,
) -> Result<GraphNode> {
    let resolve = |after: &[u32]| -> Result<Vec<GraphNode>> {
        after.iter().map(|n| nodes.get(*n as usize).copied().ok_or(CUDA_ERROR_INVALID_VALUE)).collect()
    };
    match step {
        GraphStep::Kernel { after, launch, parameters, .. } => {
            let function = function.ok_or(CUDA_ERROR_INVALID_HANDLE)?;
            device.graph_add_kernel(graph, &resolve(after)?, function, launch, parameters)
        }
        GraphStep::Copy { after, copy } => device.graph_add_copy(graph, &resolve(after)?, copy),
        GraphStep::Set { after, set } => device.graph_add_set(graph, &resolve(after)?, set),
        GraphStep::Empty { after } => device.graph_add_empty(graph, &resolve(after)?),
        GraphStep::Child { after, .. } => {
            device.graph_add_child(graph, &resolve(after)?, child.ok_or(CUDA_ERROR_INVALID_HANDLE)?)
        }
        GraphStep::Captured(_) => Err(CUDA_ERROR_INVALID_VALUE),
    }
}
