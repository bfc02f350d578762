//! Makes a graph again from its recipe.

use std::collections::HashMap;

use rekindle_cuda::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE};
use rekindle_device::{Device, Event, Graph, GraphExec, GraphNode, Result, Stream};

use super::events::DISABLE_TIMING;
use super::graphs::add_node;
use super::recipe::Recording;
use super::{Client, GraphStep, Recipe, Step};

/// `CU_EVENT_RECORD_EXTERNAL`, `CU_EVENT_WAIT_EXTERNAL`.
const EXTERNAL: u32 = 1;

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
    /// The graph that a recipe describes, and its nodes in their order.
    pub(crate) fn build(&mut self, index: usize, recipe: &Recipe) -> Result<(Graph, Vec<GraphNode>)> {
        self.bind(index)?;
        let device = self.context(index)?.device.clone();
        let (graph, mut nodes, rest) = match recipe.steps.split_first() {
            Some((GraphStep::Captured(recording), rest)) => {
                let graph = self.play(index, &*device, recording)?;
                (graph, device.graph_nodes(graph)?, rest)
            }
            _ => (device.graph_create()?, Vec::new(), &recipe.steps[..]),
        };
        for step in rest {
            let function = match step {
                GraphStep::Kernel { function, .. } => Some(self.kernel(*function)?.1),
                _ => None,
            };
            let child = match step {
                GraphStep::Child { recipe, .. } => Some(self.build(index, recipe)?.0),
                _ => None,
            };
            let added = add_node(&*device, graph, &nodes, step, function, child);
            // The node has a copy.
            child.map_or(Ok(()), |child| device.graph_destroy(child))?;
            nodes.push(added?);
        }
        Ok((graph, nodes))
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
            Step::Graph { .. } => device.graph_launch(children.next().ok_or(CUDA_ERROR_INVALID_HANDLE)?, on),
        }
    }
}
