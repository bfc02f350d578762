//! Makes a graph again from its recipe.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use rekindle_cuda::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE};
use rekindle_device::{Device, Event, Graph, GraphCall, GraphExec, GraphNode, NodeWork, Result, Stream};
use rekindle_protocol::operation::{Id, NodeAction};

use super::events::DISABLE_TIMING;
use super::recipe::Recording;
use super::{Bank, Built, Client, GraphStep, Recipe, Step};

/// `CU_EVENT_RECORD_EXTERNAL`, `CU_EVENT_WAIT_EXTERNAL`.
const EXTERNAL: u32 = 1;

/// Stands for a node that was taken out. Nothing comes after it.
const GONE: GraphNode = GraphNode(0);

/// What there is to know while a graph is made.
#[derive(Default)]
pub(super) struct Making {
    /// The device's handles of conditions, by those that the program has.
    conditions: HashMap<u64, u64>,
    /// Kernels read constants that the graph writes.
    fills: bool,
}

impl Making {
    /// Parameters of a kernel with the device's handles in the places of the program's, which are like no other values.
    fn in_parameters<'p>(&self, parameters: &'p [u8]) -> Cow<'p, [u8]> {
        let mut parameters = Cow::Borrowed(parameters);
        if self.conditions.is_empty() {
            return parameters;
        }
        for at in (0..parameters.len().saturating_sub(7)).step_by(size_of::<u32>()) {
            let word = parameters[at..at + 8].try_into().map(u64::from_le_bytes);
            if let Some(own) = word.ok().and_then(|word| self.conditions.get(&word)) {
                parameters.to_mut()[at..at + 8].copy_from_slice(&own.to_le_bytes());
            }
        }
        parameters
    }
}

/// What stands for the streams and events of one recording while it is played, and is destroyed afterwards.
struct Stage<'d> {
    index: usize,
    device: &'d dyn Device,
    streams: HashMap<u64, Stream>,
    events: HashMap<u64, Event>,
    execs: Vec<GraphExec>,
    graphs: Vec<Graph>,
}

impl Stage<'_> {
    fn event(&mut self, number: u64) -> Result<Event> {
        if let Some(event) = self.events.get(&number) {
            return Ok(*event);
        }
        let event = self.device.event_create(DISABLE_TIMING)?;
        self.events.insert(number, event);
        Ok(event)
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        for exec in self.execs.drain(..) {
            let _ = self.device.graph_exec_destroy(exec);
        }
        for graph in self.graphs.drain(..) {
            let _ = self.device.graph_destroy(graph);
        }
        for event in self.events.values() {
            let _ = self.device.event_destroy(*event);
        }
        for stream in self.streams.values() {
            let _ = self.device.stream_destroy(*stream);
        }
    }
}

impl Client {
    /// The graph that a recipe describes, and its nodes by their numbers.
    pub(crate) fn build(&mut self, index: usize, recipe: &Recipe) -> Result<Built> {
        let fills = self.writes_constants(recipe)?;
        self.build_as(index, recipe, fills)
    }

    /// With `fills`, kernels of the graph read constants that it writes, or that a graph does in which it is.
    fn build_as(&mut self, index: usize, recipe: &Recipe, fills: bool) -> Result<Built> {
        self.bind(index)?;
        let device = self.context(index)?.device.clone();
        let unfolded = if fills { Some(recipe.unfolded()) } else { None };
        let steps = unfolded.as_deref().unwrap_or(&recipe.steps);
        let (graph, captured, rest) = match steps.split_first() {
            Some((GraphStep::Captured(recording), rest)) => {
                let graph = self.play(index, &*device, recording)?;
                (graph, device.graph_nodes(graph)?, rest)
            }
            _ => (device.graph_create()?, Vec::new(), steps),
        };
        let built = self.add_steps(index, graph, captured, rest, &mut Making { fills, ..Making::default() });
        match built {
            Ok(nodes) => Ok((graph, nodes)),
            Err(code) => {
                device.graph_destroy(graph)?;
                Err(code)
            }
        }
    }

    /// Adds the nodes of steps, each when those are there that it comes after. Fails where they go round in a circle.
    fn add_steps(
        &mut self,
        index: usize,
        graph: Graph,
        captured: Vec<GraphNode>,
        steps: &[GraphStep],
        making: &mut Making,
    ) -> Result<Vec<GraphNode>> {
        for step in steps {
            if let GraphStep::Conditional { handle, default, .. } = step {
                let own = self.context(index)?.device.graph_condition(graph, *default)?;
                making.conditions.insert(*handle, own);
            }
        }
        let first = captured.len();
        let mut nodes: Vec<Option<GraphNode>> = captured.into_iter().map(Some).collect();
        nodes.resize(first + steps.len(), None);
        let mut left: Vec<usize> = (0..steps.len()).collect();
        while !left.is_empty() {
            let mut waiting = Vec::new();
            let before = left.len();
            for at in left {
                let step = &steps[at];
                let after = step.before().iter().map(|number| nodes.get(*number as usize).copied().flatten());
                match after.collect::<Option<Vec<_>>>() {
                    Some(after) => {
                        nodes[first + at] = Some(self.add_node(index, graph, &after, step, None, making)?)
                    }
                    None => waiting.push(at),
                }
            }
            if waiting.len() == before {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            left = waiting;
        }
        Ok(nodes.into_iter().flatten().collect())
    }

    /// Adds the node that a step describes; `child` is the graph that it has in it, if the device has that.
    pub(super) fn add_node(
        &mut self,
        index: usize,
        graph: Graph,
        after: &[GraphNode],
        step: &GraphStep,
        child: Option<Graph>,
        making: &mut Making,
    ) -> Result<GraphNode> {
        let device = self.context(index)?.device.clone();
        match step {
            GraphStep::Kernel { function, launch, parameters, .. } => {
                let handle = self.kernel(*function)?.1;
                let parameters = making.in_parameters(parameters);
                let bank = self.functions.get(*function)?.bank.filter(|_| making.fills);
                let fill = |bank: Bank| device.graph_add(graph, after, NodeWork::Copy(&bank.copy()));
                let filled = bank.map(fill).transpose()?;
                let after = filled.as_ref().map_or(after, std::slice::from_ref);
                let kernel = NodeWork::Kernel { function: handle, launch, parameters: &parameters };
                device.graph_add(graph, after, kernel)
            }
            GraphStep::Copy { copy, .. } => device.graph_add(graph, after, NodeWork::Copy(copy)),
            GraphStep::Set { set, .. } => device.graph_add(graph, after, NodeWork::Set(set)),
            GraphStep::Empty { .. } | GraphStep::Disabled(_) => {
                device.graph_add(graph, after, NodeWork::Empty)
            }
            GraphStep::Child { recipe, .. } => {
                if let Some(child) = child.filter(|_| !making.fills) {
                    return device.graph_add(graph, after, NodeWork::Child(child));
                }
                let (child, _) = self.build_as(index, recipe, making.fills)?;
                let added = device.graph_add(graph, after, NodeWork::Child(child));
                // The node has a copy.
                device.graph_destroy(child)?;
                added
            }
            GraphStep::Conditional { handle, kind, bodies, .. } => {
                let own = *making.conditions.get(handle).ok_or(CUDA_ERROR_INVALID_VALUE)?;
                let count = bodies.len() as u32;
                let (node, graphs) = device.graph_add_conditional(graph, after, own, *kind, count)?;
                for (graph, body) in graphs.into_iter().zip(bodies) {
                    self.add_steps(index, graph, Vec::new(), &body.unfolded(), making)?;
                }
                Ok(node)
            }
            GraphStep::Action { action, .. } => {
                self.calls_in_graphs |= matches!(action, NodeAction::Call { .. } | NodeAction::Staged { .. });
                self.add_action_node(index, graph, after, action)
            }
            GraphStep::Gone => Ok(GONE),
            GraphStep::Captured(_) => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn add_action_node(
        &self,
        index: usize,
        graph: Graph,
        after: &[GraphNode],
        action: &NodeAction,
    ) -> Result<GraphNode> {
        let device = &self.context(index)?.device;
        let call = |token: u64| -> GraphCall {
            let link = self.link.clone();
            Arc::new(move || link.host_call(token)())
        };
        // Of an event that the program has destroyed meanwhile, nobody can be told.
        let event = |event: Id| self.events.get(event).map(|event| event.handle);
        let array;
        let work = match action {
            NodeAction::Call { token } => NodeWork::Call(call(*token)),
            NodeAction::Record { event: id } => event(*id).map_or(NodeWork::Empty, NodeWork::Record),
            NodeAction::Wait { event: id } => event(*id).map_or(NodeWork::Empty, NodeWork::Wait),
            NodeAction::Values(operations) => NodeWork::Values(operations),
            NodeAction::Staged { copy, token, up: true } => {
                let staged = device.graph_add(graph, after, NodeWork::Call(call(*token)))?;
                return device.graph_add(graph, &[staged], NodeWork::Copy(copy));
            }
            NodeAction::Staged { copy, token, up: false } => {
                let copied = device.graph_add(graph, after, NodeWork::Copy(copy))?;
                return device.graph_add(graph, &[copied], NodeWork::Call(call(*token)));
            }
            NodeAction::CopyArray(copy) => {
                array = self.array_copy(index, *copy)?;
                NodeWork::CopyArray(&array)
            }
            NodeAction::Allocate { .. } | NodeAction::Free { .. } | NodeAction::Empty => NodeWork::Empty,
            NodeAction::Kernel { .. }
            | NodeAction::Copy(_)
            | NodeAction::Set(_)
            | NodeAction::Child
            | NodeAction::Conditional { .. } => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        device.graph_add(graph, after, work)
    }

    /// Captures once more what a recording holds.
    fn play(&mut self, index: usize, device: &dyn Device, recording: &Recording) -> Result<Graph> {
        let mut stage = Stage {
            index,
            device,
            streams: HashMap::new(),
            events: HashMap::new(),
            execs: Vec::new(),
            graphs: Vec::new(),
        };
        for stream in &recording.streams {
            stage.streams.insert(stream.stream, device.stream_create(stream.flags, stream.priority)?);
        }
        // Nothing is loaded while a capture is under way.
        for step in &recording.steps {
            if let Step::Launch { function, .. } = step {
                self.kernel(*function)?;
            }
        }
        // A child graph cannot be made while a capture is under way in the usual mode, so all come first.
        let mut children = Vec::new();
        for step in &recording.steps {
            if let Step::Graph { recipe, flags, .. } = step {
                let (graph, _) = self.build(index, recipe)?;
                stage.graphs.push(graph);
                let exec = device.graph_instantiate(graph, *flags)?;
                stage.execs.push(exec);
                children.push(exec);
            }
        }
        let origin = *stage.streams.get(&recording.origin).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        device.capture_begin(origin, recording.mode)?;
        let mut children = children.into_iter();
        let played =
            recording.steps.iter().try_for_each(|step| self.play_step(&mut stage, step, &mut children));
        let ended = device.capture_end(origin);
        played?;
        ended
    }

    fn play_step(
        &self,
        stage: &mut Stage<'_>,
        step: &Step,
        children: &mut impl Iterator<Item = GraphExec>,
    ) -> Result<()> {
        let on = *stage.streams.get(&step.stream()).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let device = stage.device;
        match step {
            Step::Launch { function, launch, parameters, .. } => {
                let handle = self.functions.get(*function)?.handle.ok_or(CUDA_ERROR_INVALID_HANDLE)?;
                device.launch(handle, launch, on, parameters)
            }
            Step::Copy { to, from, bytes, .. } => device.copy(*to, *from, *bytes, on),
            Step::CopyStrided { copy, .. } => device.copy_3d(copy, on),
            Step::CopyArray { copy, .. } => device.copy_array(&self.array_copy(stage.index, *copy)?, on),
            Step::Set { set, .. } => device.set(set, on),
            Step::WaitValue { address, value, width, flags, .. } => {
                device.wait_value(on, *address, *value, *width, *flags)
            }
            Step::WriteValue { address, value, width, flags, .. } => {
                device.write_value(on, *address, *value, *width, *flags)
            }
            Step::HostCall { token, .. } => device.host_call(on, self.link.host_call(*token)),
            Step::Record { event, id, flags, .. } => {
                let event =
                    if flags & EXTERNAL != 0 { self.events.get(*id)?.handle } else { stage.event(*event)? };
                device.event_record(event, on, *flags)
            }
            Step::Wait { event, id, flags, .. } => {
                let event =
                    if flags & EXTERNAL != 0 { self.events.get(*id)?.handle } else { stage.event(*event)? };
                device.stream_wait_event(on, event, *flags)
            }
            // Where there are any, the recipe has nodes in the recording's place.
            Step::Node { .. } | Step::Added { .. } | Step::Depend { .. } | Step::Into { .. } => {
                Err(CUDA_ERROR_INVALID_VALUE)
            }
            Step::Graph { .. } => device.graph_launch(children.next().ok_or(CUDA_ERROR_INVALID_HANDLE)?, on),
        }
    }
}
