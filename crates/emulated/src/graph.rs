//! Graphs: nodes with what they wait for, built by hand or by capture, and their launchable form.

use std::collections::HashMap;
use std::sync::Arc;

use rekindle_cuda::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE};
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
    next: u64,
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

    pub fn destroy(&mut self, graph: Graph) -> Result<()> {
        let state = self.graphs.remove(&graph.0).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        for handle in state.handles {
            self.nodes.remove(&handle);
        }
        Ok(())
    }

    pub fn instantiate(&mut self, graph: Graph) -> Result<GraphExec> {
        let nodes = self.contents(graph)?.into();
        self.next += 1;
        self.execs.insert(self.next, ExecState { nodes, last: NO_TASK });
        Ok(GraphExec(self.next))
    }

    /// `CUgraphExecUpdateResult`. Launches that are under way go on as they were.
    pub fn update(&mut self, exec: GraphExec, graph: Graph) -> Result<u32> {
        let nodes: Arc<[Node]> = self.contents(graph)?.into();
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
