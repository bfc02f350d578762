//! Graphs: nodes with what they wait for, built by hand or by capture, and their launchable form.

use std::collections::HashMap;
use std::sync::Arc;

use rekindle_cuda::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
use rekindle_device::{Event, Graph, GraphCall, GraphExec, GraphNode, Result};

use crate::scheduler::{NO_TASK, TaskId};
use crate::work::Op;

// `CUgraphNodeType`.
const KERNEL: u32 = 0;
const COPY: u32 = 1;
const SET: u32 = 2;
const CALL: u32 = 3;
const CHILD: u32 = 4;
const EMPTY: u32 = 5;
const WAIT_EVENT: u32 = 6;
const RECORD_EVENT: u32 = 7;
const MEMORY_OPERATION: u32 = 12;
const CONDITIONAL: u32 = 13;

// `CUgraphExecUpdateResult`.
const TOPOLOGY_CHANGED: u32 = 2;
const KIND_CHANGED: u32 = 3;

/// What a node does.
#[derive(Clone)]
pub(crate) enum Action {
    Op(Op),
    /// One after the other.
    Ops(Arc<[Op]>),
    Call(GraphCall),
    Empty,
    Child(Arc<[Node]>),
    /// The bodies are graphs of their own until an instance is made, which has their nodes.
    Conditional {
        handle: u64,
        /// What a launch begins with, if it does not go on with what there was.
        default: Option<u32>,
        kind: u32,
        graphs: Vec<Graph>,
        bodies: Arc<[Arc<[Node]>]>,
    },
    Record(Event),
    Wait(Event),
}

impl Action {
    pub fn kind(&self) -> u32 {
        match self {
            Action::Op(Op::Kernel { .. }) => KERNEL,
            Action::Op(Op::Copy { .. }) => COPY,
            Action::Op(Op::Set(_)) => SET,
            Action::Op(Op::WaitValue { .. } | Op::WriteValue { .. }) => MEMORY_OPERATION,
            Action::Ops(_) => MEMORY_OPERATION,
            Action::Call(_) => CALL,
            Action::Child(_) => CHILD,
            Action::Conditional { .. } => CONDITIONAL,
            Action::Empty => EMPTY,
            Action::Wait(_) => WAIT_EVENT,
            Action::Record(_) => RECORD_EVENT,
        }
    }
}

/// A node; `after` are indices of earlier nodes, so that a graph has no cycle and its order is one that works.
#[derive(Clone)]
pub(crate) struct Node {
    pub action: Action,
    pub after: Vec<usize>,
}

struct GraphState {
    nodes: Vec<Node>,
    handles: Vec<u64>,
}

pub(crate) struct ExecState {
    pub nodes: Arc<[Node]>,
    /// Values of conditions at the start of a launch.
    pub defaults: Arc<[(u64, u32)]>,
    /// The end of its last launch: a graph does not run beside itself.
    pub last: TaskId,
}

/// `CUgraphExecUpdateResult` for what stands in the way of the one becoming the other.
fn difference(from: &[Node], to: &[Node]) -> u32 {
    if from.len() != to.len() || from.iter().zip(to).any(|(one, other)| one.after != other.after) {
        return TOPOLOGY_CHANGED;
    }
    let of_both = |(one, other): (&Node, &Node)| match (&one.action, &other.action) {
        (Action::Child(one), Action::Child(other)) => difference(one, other),
        (one, other) if one.kind() == other.kind() => 0,
        _ => KIND_CHANGED,
    };
    from.iter().zip(to).map(of_both).find(|result| *result != 0).unwrap_or(0)
}

#[derive(Default)]
pub(crate) struct Graphs {
    graphs: HashMap<u64, GraphState>,
    /// The graph of a node, and its index there.
    nodes: HashMap<u64, (u64, usize)>,
    execs: HashMap<u64, ExecState>,
    /// Handles of conditions, and what launches begin with.
    conditions: HashMap<u64, Option<u32>>,
    next: u64,
}

/// Whether a conditional node's body may have it.
fn is_for_bodies(node: &Node) -> bool {
    match &node.action {
        Action::Op(Op::Kernel { .. } | Op::Copy { .. } | Op::Set(_)) | Action::Empty => true,
        Action::Child(nodes) => nodes.iter().all(is_for_bodies),
        Action::Conditional { .. } => true,
        _ => false,
    }
}

fn defaults(nodes: &[Node], all: &mut Vec<(u64, u32)>) {
    for node in nodes {
        if let Action::Conditional { handle, default, bodies, .. } = &node.action {
            all.extend(default.map(|value| (*handle, value)));
            bodies.iter().for_each(|body| defaults(body, all));
        }
    }
}

impl Graphs {
    pub fn create(&mut self) -> Graph {
        self.next += 1;
        self.graphs.insert(self.next, GraphState { nodes: Vec::new(), handles: Vec::new() });
        Graph(self.next)
    }

    pub fn add_captured(&mut self, nodes: Vec<Node>) -> Graph {
        let graph = self.create();
        for node in nodes {
            self.push(graph, node);
        }
        graph
    }

    pub fn add(&mut self, graph: Graph, after: &[GraphNode], action: Action) -> Result<GraphNode> {
        if !self.graphs.contains_key(&graph.0) {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        let index = |node: &GraphNode| match self.nodes.get(&node.0) {
            Some((of, index)) if *of == graph.0 => Ok(*index),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        };
        let after = after.iter().map(index).collect::<Result<Vec<_>>>()?;
        self.push(graph, Node { action, after }).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    fn push(&mut self, graph: Graph, node: Node) -> Option<GraphNode> {
        let state = self.graphs.get_mut(&graph.0)?;
        self.next += 1;
        self.nodes.insert(self.next, (graph.0, state.nodes.len()));
        state.nodes.push(node);
        state.handles.push(self.next);
        Some(GraphNode(self.next))
    }

    pub fn nodes(&self, graph: Graph) -> Result<Vec<GraphNode>> {
        let state = self.graphs.get(&graph.0).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        Ok(state.handles.iter().map(|handle| GraphNode(*handle)).collect())
    }

    pub fn contents(&self, graph: Graph) -> Result<Vec<Node>> {
        self.graphs.get(&graph.0).map(|state| state.nodes.clone()).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    pub fn node(&self, node: GraphNode) -> Result<&Node> {
        let (graph, index) = self.nodes.get(&node.0).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        self.graphs.get(graph).map(|state| &state.nodes[*index]).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    /// A handle for a conditional node of the graph.
    pub fn condition(&mut self, graph: Graph, default: Option<u32>) -> Result<u64> {
        if !self.graphs.contains_key(&graph.0) {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        self.next += 1;
        self.conditions.insert(self.next, default);
        Ok(self.next)
    }

    /// The node, and the graphs that are its bodies.
    pub fn add_conditional(
        &mut self,
        graph: Graph,
        after: &[GraphNode],
        handle: u64,
        kind: u32,
        bodies: u32,
    ) -> Result<(GraphNode, Vec<Graph>)> {
        let fits = match kind {
            0 => (1..=2).contains(&bodies),
            1 => bodies == 1,
            2 => bodies > 0,
            _ => false,
        };
        let default = *self.conditions.get(&handle).filter(|_| fits).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let graphs: Vec<Graph> = (0..bodies).map(|_| self.create()).collect();
        let action =
            Action::Conditional { handle, default, kind, graphs: graphs.clone(), bodies: Arc::new([]) };
        Ok((self.add(graph, after, action)?, graphs))
    }

    /// What a graph has now, with what the bodies of its conditional nodes have.
    fn whole(&self, graph: Graph) -> Result<Vec<Node>> {
        let mut nodes = self.contents(graph)?;
        for node in &mut nodes {
            if let Action::Conditional { graphs, bodies, .. } = &mut node.action {
                let all = graphs.iter().map(|body| {
                    let nodes = self.whole(*body)?;
                    match nodes.iter().all(is_for_bodies) {
                        true => Ok(nodes.into()),
                        false => Err(CUDA_ERROR_NOT_SUPPORTED),
                    }
                });
                *bodies = all.collect::<Result<Vec<Arc<[Node]>>>>()?.into();
            }
        }
        Ok(nodes)
    }

    /// The nodes of a graph that becomes a node of another.
    pub fn child(&self, graph: Graph) -> Result<Arc<[Node]>> {
        let nodes = self.contents(graph)?;
        match nodes.iter().any(|node| node.action.kind() == CONDITIONAL) {
            true => Err(CUDA_ERROR_NOT_SUPPORTED),
            false => Ok(nodes.into()),
        }
    }

    pub fn destroy(&mut self, graph: Graph) -> Result<()> {
        let state = self.graphs.remove(&graph.0).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        for node in &state.nodes {
            if let Action::Conditional { handle, graphs, .. } = &node.action {
                self.conditions.remove(handle);
                graphs.iter().try_for_each(|body| self.destroy(*body))?;
            }
        }
        for handle in state.handles {
            self.nodes.remove(&handle);
        }
        Ok(())
    }

    pub fn instantiate(&mut self, graph: Graph) -> Result<GraphExec> {
        let nodes: Arc<[Node]> = self.whole(graph)?.into();
        let mut values = Vec::new();
        defaults(&nodes, &mut values);
        self.next += 1;
        self.execs.insert(self.next, ExecState { nodes, defaults: values.into(), last: NO_TASK });
        Ok(GraphExec(self.next))
    }

    /// `CUgraphExecUpdateResult`. Launches that are under way go on as they were.
    pub fn update(&mut self, exec: GraphExec, graph: Graph) -> Result<u32> {
        let nodes: Arc<[Node]> = self.whole(graph)?.into();
        let exec = self.exec(exec)?;
        let result = difference(&exec.nodes, &nodes);
        if result == 0 {
            exec.nodes = nodes;
        }
        Ok(result)
    }

    pub fn exec(&mut self, exec: GraphExec) -> Result<&mut ExecState> {
        self.execs.get_mut(&exec.0).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    /// Work that was launched goes on.
    pub fn destroy_exec(&mut self, exec: GraphExec) -> Result<()> {
        self.execs.remove(&exec.0).map(drop).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }
}
