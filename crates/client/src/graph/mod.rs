//! Graphs. The worker has the graphs themselves; here is what the program may ask of their nodes.

mod add;
mod exec;
mod inspect;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_UNKNOWN};
use rekindle_protocol::operation::{GraphCreate, GraphDestroy, GraphNodes, Id};

use crate::abi::{Handle, Out, Result};
use crate::arena::{self, Kind, Object};
use crate::export::exports;
use crate::{context, lane};

pub struct Graph {
    id: Id,
    device: u8,
    state: Mutex<State>,
}

struct State {
    /// Of the nodes that the program has handles of, or may ask for; the index is the node's number.
    nodes: Vec<Entry>,
    /// Nodes that a capture made, whose handles were not asked for yet.
    captured: bool,
}

#[derive(Clone)]
struct Entry {
    handle: Handle,
    kind: u32,
    /// Numbers of the nodes that it comes after; unknown for captured nodes.
    after: Option<Vec<u32>>,
}

pub struct Node {
    graph: Handle,
    number: u32,
    device: u8,
}

impl Object for Graph {
    const KIND: Kind = Kind::Graph;
    fn device(&self) -> Option<u8> {
        Some(self.device)
    }
}

impl Object for Node {
    const KIND: Kind = Kind::Node;
    fn device(&self) -> Option<u8> {
        Some(self.device)
    }
}

/// A number for the next graph.
pub fn new_id() -> Id {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The handle of a graph that a capture has made.
pub fn captured(id: Id, device: u8, _nodes: u32) -> Result<Handle> {
    arena::insert(Graph { id, device, state: Mutex::new(State { nodes: Vec::new(), captured: true }) })
}

impl Graph {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The nodes, with handles for all of them.
    fn entries(&self, own: Handle) -> Result<Vec<Entry>> {
        let mut state = self.state();
        if state.captured {
            for kind in lane::ask(&GraphNodes { graph: self.id })? {
                let number = state.nodes.len() as u32;
                let handle = arena::insert(Node { graph: own, number, device: self.device })?;
                state.nodes.push(Entry { handle, kind, after: None });
            }
            state.captured = false;
        }
        Ok(state.nodes.clone())
    }

    /// Notes a node that the worker has added.
    fn added(&self, own: Handle, number: u32, kind: u32, after: Vec<u32>) -> Result<Handle> {
        let mut state = self.state();
        if state.nodes.len() != number as usize {
            return Err(CUDA_ERROR_UNKNOWN);
        }
        let handle = arena::insert(Node { graph: own, number, device: self.device })?;
        state.nodes.push(Entry { handle, kind, after: Some(after) });
        Ok(handle)
    }
}

/// Numbers of nodes, all of one graph.
fn numbers(graph: Handle, nodes: &[Handle]) -> Result<Vec<u32>> {
    let number = |node: &Handle| {
        let node = arena::get::<Node>(*node)?;
        if node.graph == graph { Ok(node.number) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    };
    nodes.iter().map(number).collect()
}

exports! {
    call fn cuGraphCreate(out: Out<Handle>, flags: u32) {
        out.check()?;
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // Graphs need no context in the driver; ours live on a device.
        let device = context::current_if_any().map_or(0, |context| context.device);
        let graph = new_id();
        lane::ask(&GraphCreate { device, graph })?;
        let state = State { nodes: Vec::new(), captured: false };
        out.put(arena::insert(Graph { id: graph, device, state: Mutex::new(state) })?)
    }
    call fn cuGraphDestroy(handle: Handle) {
        let graph = arena::remove::<Graph>(handle)?;
        for entry in &graph.state().nodes {
            arena::remove::<Node>(entry.handle)?;
        }
        lane::ask(&GraphDestroy { graph: graph.id })
    }
}
