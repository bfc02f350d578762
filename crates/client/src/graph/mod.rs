//! Graphs. The worker has the graphs themselves; here is what the program may ask of their nodes.

mod add;
mod change;
mod exec;
mod inspect;
mod user_object;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_UNKNOWN};
use rekindle_protocol::operation::{GraphCreate, GraphDestroy, GraphNodes, Id};

use crate::abi::{Handle, Out, Result};
use crate::arena::{self, Kind, Object};
use crate::export::exports;
use crate::{context, lane};

use user_object::Held;

pub struct Graph {
    id: Id,
    device: u8,
    state: Mutex<State>,
}

struct State {
    /// Of the nodes that the program has handles of, or may ask for; the index is the node's number.
    nodes: Vec<Entry>,
    origin: Origin,
    held: Held,
}

/// Where a graph's nodes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// They are all in the list.
    Program,
    /// A capture made them, and nobody has asked for their handles yet.
    Capture,
    /// The capture is under way: nothing can be done with the graph.
    Unfinished,
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

fn insert(id: Id, device: u8, origin: Origin) -> Result<Handle> {
    arena::insert(Graph {
        id,
        device,
        state: Mutex::new(State { nodes: Vec::new(), origin, held: Held::default() }),
    })
}

/// The graph of a capture under way, for a program that asks for it.
pub fn unfinished(device: u8) -> Result<Handle> {
    insert(new_id(), device, Origin::Unfinished)
}

/// Has an empty graph of the program's wait for what a capture on the device puts into it; the worker makes it anew when
/// that ends.
pub fn capture_into(handle: Handle, device: u8) -> Result<()> {
    let graph = empty(handle)?;
    if graph.device != device {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    lane::ask(&GraphDestroy { graph: graph.id })?;
    graph.state().origin = Origin::Unfinished;
    Ok(())
}

/// A graph without nodes; a capture can only begin one.
pub fn empty(handle: Handle) -> Result<&'static Graph> {
    let graph = arena::get::<Graph>(handle)?;
    if graph.entries(handle)?.is_empty() { Ok(graph) } else { Err(CUDA_ERROR_NOT_SUPPORTED) }
}

/// The capture into the program's graph came to nothing: it is empty again.
pub fn not_captured(handle: Handle) -> Result<()> {
    let graph = arena::get::<Graph>(handle)?;
    lane::ask(&GraphCreate { device: graph.device, graph: graph.id })?;
    graph.state().origin = Origin::Program;
    Ok(())
}

/// The number of a graph.
pub fn id(handle: Handle) -> Result<Id> {
    arena::get::<Graph>(handle).map(|graph| graph.id)
}

/// The handle of a graph that a capture has made: the one that was given out before, or a new one.
pub fn captured(id: Id, device: u8, known: Option<Handle>) -> Result<Handle> {
    match known {
        Some(handle) => {
            arena::get::<Graph>(handle)?.state().origin = Origin::Capture;
            Ok(handle)
        }
        None => insert(id, device, Origin::Capture),
    }
}

impl Graph {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The nodes, with handles for all of them.
    fn entries(&self, own: Handle) -> Result<Vec<Entry>> {
        let mut state = self.state();
        if state.origin == Origin::Unfinished {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        if state.origin == Origin::Capture {
            for kind in lane::ask(&GraphNodes { graph: self.id })? {
                let number = state.nodes.len() as u32;
                let handle = arena::insert(Node { graph: own, number, device: self.device })?;
                state.nodes.push(Entry { handle, kind, after: None });
            }
            state.origin = Origin::Program;
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
        out.put(insert(graph, device, Origin::Program)?)
    }
    call fn cuGraphDestroy(handle: Handle) {
        if arena::get::<Graph>(handle)?.state().origin == Origin::Unfinished {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let graph = arena::remove::<Graph>(handle)?;
        for entry in &graph.state().nodes {
            arena::remove::<Node>(entry.handle)?;
        }
        let held = std::mem::take(&mut graph.state().held);
        let destroyed = lane::ask(&GraphDestroy { graph: graph.id });
        held.let_go(graph.device);
        destroyed
    }
}
