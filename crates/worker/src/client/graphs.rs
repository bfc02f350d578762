//! Graphs: explicit nodes, instances and launches. Each change also goes into the graph's recipe.

use std::sync::Arc;

use rekindle_cuda::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE};
use rekindle_device::{Graph, Result};
use rekindle_protocol::operation::{
    GraphAdd, GraphAddChild, GraphAddCopy, GraphAddEmpty, GraphAddKernel, GraphAddSet, GraphCreate,
    GraphInstantiate, GraphLaunch, Id, Origin,
};

use super::rebuild::Making;
use super::{Client, ExecObject, GraphObject, GraphStep, Recipe, Step, Table};

impl Client {
    pub(super) fn create_graph(&mut self, request: GraphCreate) -> Result<()> {
        let device = usize::from(request.device);
        if !self.graphs.is_free(request.graph) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let built = Some((self.on(device)?.graph_create()?, Vec::new()));
        self.graphs.insert(request.graph, GraphObject { device, built, recipe: Arc::default(), within: None })
    }

    pub(super) fn add_kernel(&mut self, request: GraphAddKernel, parameters: &[u8]) -> Result<u32> {
        let GraphAddKernel { graph, after, function, launch } = request;
        let parameters = parameters.to_vec();
        self.add(graph, GraphStep::Kernel { after, function, launch, parameters }, None)
    }

    pub(super) fn add_copy(&mut self, request: GraphAddCopy) -> Result<u32> {
        self.add(request.graph, GraphStep::Copy { after: request.after, copy: request.copy }, None)
    }

    pub(super) fn add_set(&mut self, request: GraphAddSet) -> Result<u32> {
        self.add(request.graph, GraphStep::Set { after: request.after, set: request.set }, None)
    }

    pub(super) fn add_empty(&mut self, request: GraphAddEmpty) -> Result<u32> {
        self.add(request.graph, GraphStep::Empty { after: request.after }, None)
    }

    pub(super) fn add_action(&mut self, request: GraphAdd) -> Result<u32> {
        let GraphAdd { graph, after, action } = request;
        let step = GraphStep::of(after, action).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        self.add(graph, step, None)
    }

    pub(super) fn add_child(&mut self, request: GraphAddChild) -> Result<u32> {
        let GraphAddChild { graph, after, child } = request;
        if child == graph || self.graphs.get(child)?.device != self.graphs.get(graph)?.device {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.renew_graph(child)?;
        let found = self.graphs.get(child)?;
        let (handle, recipe) = (found.built.as_ref().map(|built| built.0), Recipe::clone(&found.recipe));
        self.add(graph, GraphStep::Child { after, recipe }, handle)
    }

    /// Adds a node, and gives its number within the graph; `child` is the graph that it has in it, if the device has it.
    fn add(&mut self, id: Id, step: GraphStep, child: Option<Graph>) -> Result<u32> {
        self.unfold_graph(id)?;
        let device = self.graphs.get(id)?.device;
        self.bind(device)?;
        if let GraphStep::Kernel { function, .. } = &step {
            self.kernel(*function)?;
        }
        let one = Recipe { steps: vec![step] };
        // Kernels are told of conditions, and of constants that it writes, when the whole graph is made.
        let recipe = self.graphs.get(id)?.recipe.clone();
        if one.has_conditions() || self.writes_constants(&one)? || self.writes_constants(&recipe)? {
            self.unbuild(id)?;
        }
        let Some(step) = one.steps.into_iter().next() else { return Err(CUDA_ERROR_INVALID_VALUE) };
        let graph = self.graphs.get(id)?;
        let is_there = |number: &u32| {
            graph.recipe.steps.get(*number as usize).is_some_and(|step| !matches!(step, GraphStep::Gone))
        };
        if !step.before().iter().all(is_there) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // Where the graph has to be made again anyway, the node is made then.
        if let Some((handle, nodes)) = &graph.built {
            let after = step.before().iter().map(|number| nodes.get(*number as usize).copied());
            let after = after.collect::<Option<Vec<_>>>().ok_or(CUDA_ERROR_INVALID_VALUE)?;
            let mut making = Making::default();
            let node = self.add_node(device, *handle, &after, &step, child, &mut making)?;
            if let Some((_, nodes)) = &mut self.graphs.get_mut(id)?.built {
                nodes.push(node);
            }
        }
        let graph = self.graphs.get_mut(id)?;
        let recipe = Arc::make_mut(&mut graph.recipe);
        recipe.steps.push(step);
        let number = recipe.steps.len() as u32 - 1;
        self.spread(id)?;
        Ok(number)
    }

    /// `CUgraphNodeType` of each node.
    pub(super) fn node_kinds(&mut self, id: Id) -> Result<Vec<u32>> {
        let recipe = &self.graphs.get(id)?.recipe;
        Ok(recipe.unfolded().iter().map(|step| step.action().kind()).collect())
    }

    /// Graphs in its nodes go with it.
    pub(super) fn destroy_graph(&mut self, id: Id) -> Result<()> {
        let graph = self.graphs.remove(id)?;
        self.destroy_inside(id, None)?;
        match graph.built {
            Some((handle, _)) => self.on(graph.device)?.graph_destroy(handle),
            None => Ok(()),
        }
    }

    pub(super) fn instantiate(&mut self, request: GraphInstantiate) -> Result<()> {
        let GraphInstantiate { graph, exec, flags } = request;
        if !self.execs.is_free(exec) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.renew_graph(graph)?;
        let GraphObject { device, ref built, ref recipe, .. } = *self.graphs.get(graph)?;
        let handle = built.as_ref().ok_or(CUDA_ERROR_INVALID_HANDLE)?.0;
        let recipe = recipe.clone();
        let instance = self.on(device)?.graph_instantiate(handle, flags)?;
        self.execs.insert(
            exec,
            ExecObject { device, handle: Some(instance), flags, recipe, is_stale: false, used: 0 },
        )
    }

    pub(super) fn launch_graph(&mut self, origin: Origin, request: GraphLaunch) -> Result<()> {
        self.renew_exec(request.exec)?;
        let (device, stream) = self.enter(origin, request.device, request.stream)?;
        self.note_kernels(device, stream)?;
        if self.constants_told {
            let recipe = self.execs.get(request.exec)?.recipe.clone();
            self.fill_banks(device, &recipe, stream)?;
        }
        self.graph_launches += 1;
        self.execs.get_mut(request.exec)?.used = self.graph_launches;
        let exec = self.execs.get(request.exec)?;
        let handle = exec.handle.ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        self.context(device)?.device.graph_launch(handle, stream)?;
        if self.recordings.is_empty() {
            return Ok(());
        }
        let (recipe, flags) = (exec.recipe.clone(), exec.flags);
        self.note(device, stream, |stream| Step::Graph { stream, recipe: Recipe::clone(&recipe), flags })
    }

    /// Makes one of the instances that nobody has launched since a restore. One that cannot be made, for it copies or fills
    /// memory that is not there any more, is tried again when it is launched.
    pub(crate) fn make_ahead(&mut self) {
        let is_due = |execs: &Table<ExecObject>, id| execs.get(id).is_ok_and(|exec| exec.handle.is_none());
        while let Some(id) = self.unmade.pop_front() {
            if is_due(&self.execs, id) {
                if let Err(code) = self.renew_exec(id) {
                    log::debug!("instance {id} of a graph is not made before it is launched: {code}");
                }
                return;
            }
        }
    }

    pub(super) fn destroy_exec(&mut self, id: Id) -> Result<()> {
        let exec = self.execs.remove(id)?;
        let gpu = self.on(exec.device)?;
        exec.handle.map_or(Ok(()), |handle| gpu.graph_exec_destroy(handle))
    }
}
