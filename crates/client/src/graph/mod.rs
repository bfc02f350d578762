//! Graphs. The worker has the graphs themselves; here is what the program may ask of their nodes.

mod add;
mod attributes;
mod change;
mod condition;
mod dot;
mod edit;
mod exec;
mod inside;
mod inspect;
pub mod memory;
mod parameters;
mod read;
mod resources;
mod user_object;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_UNKNOWN};
use rekindle_protocol::operation::{GraphCreate, GraphDestroy, GraphTopology, Id, NodeFound};

use crate::abi::{Handle, Out, Result};
use crate::arena::{self, Kind, Object};
use crate::export::exports;
use crate::{capture, context, lane, session};

pub use add::check_edges;
use memory::MemoryNode;
pub use resources::{GraphResources, NodeResource};

pub struct Graph {
    id: Id,
    device: u8,
    state: Mutex<State>,
    /// The graph that it is a copy of.
    original: Option<Handle>,
}

struct State {
    /// The graph of whose node it is a part, if it is no graph by itself: that, the node's number, and which body of it.
    owner: Option<(Handle, u32, u32)>,
    /// Of the nodes that the program has handles of, or may ask for; the index is the node's number.
    nodes: Vec<Option<Entry>>,
    origin: Origin,
    held: GraphResources,
    /// Nodes that take memory, or give it back.
    memory: Vec<MemoryNode>,
    /// Graphs in nodes that the program has asked for, by node and body.
    inside: HashMap<(u32, u32), Handle>,
    /// Handles of conditions that were made for it, each with what launches begin with, until a node has it.
    conditions: HashMap<u64, Option<u32>>,
    /// Of a graph that has one instance at a time: what that holds.
    instance: Weak<()>,
    /// How many requests there had been of the program when the nodes of a capture under way were last looked at.
    looked_at: Option<u64>,
}

/// Where a graph's nodes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// They are all in the list.
    Program,
    /// The worker knows of more, or more of those from this number on.
    Worker(usize),
    /// A capture into it is under way, and it had so many before: nodes can be added, and looked at.
    Unfinished(usize),
}

#[derive(Clone)]
struct Entry {
    handle: Handle,
    kind: u32,
    /// Numbers of the nodes that it comes after.
    after: Vec<u32>,
}

pub struct Node {
    graph: Handle,
    number: u32,
    device: u8,
    /// What was given out of its parameters is there as long as the node.
    read: Mutex<Option<read::ReturnedParameters>>,
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
    insert_as(id, device, origin, None, None)
}

fn insert_as(
    id: Id,
    device: u8,
    origin: Origin,
    owner: Option<(Handle, u32, u32)>,
    original: Option<Handle>,
) -> Result<Handle> {
    let state = State {
        owner,
        nodes: Vec::new(),
        origin,
        held: GraphResources::default(),
        memory: Vec::new(),
        inside: HashMap::new(),
        conditions: HashMap::new(),
        instance: Weak::new(),
        looked_at: None,
    };
    arena::insert(Graph { id, device, state: Mutex::new(state), original })
}

/// The graph of a capture under way, for a program that asks for it.
pub fn unfinished(device: u8) -> Result<Handle> {
    insert(new_id(), device, Origin::Unfinished(0))
}

/// The number of a graph.
pub fn id(handle: Handle) -> Result<Id> {
    arena::get::<Graph>(handle).map(|graph| graph.id)
}

/// The numbers of nodes that a capture into the program's graph begins after.
pub fn before_capture(handle: Handle, device: u8, after: &[Handle]) -> Result<Vec<u32>> {
    let graph = arena::get::<Graph>(handle)?;
    graph.refresh(handle)?;
    if graph.device != device {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    numbers(handle, after)
}

/// What a capture on the device makes goes into this graph of the program's.
pub fn capture_into(handle: Handle) -> Result<()> {
    let mut state = arena::get::<Graph>(handle)?.state();
    state.origin = Origin::Unfinished(state.nodes.len());
    Ok(())
}

/// The capture into a graph came to nothing: one that the program has made is as it was, another one is not there.
pub fn not_captured(handle: Handle, is_program_s: bool) -> Result<()> {
    let graph = arena::get::<Graph>(handle)?;
    let mut state = graph.state();
    if let Origin::Unfinished(before) = state.origin {
        for entry in state.nodes.drain(before..).flatten() {
            arena::remove::<Node>(entry.handle)?;
        }
        drop(state);
        graph.drop_inside(before)?;
        state = graph.state();
    }
    state.origin = Origin::Program;
    drop(state);
    if !is_program_s {
        arena::remove::<Graph>(handle)?;
    }
    Ok(())
}

/// The handle of a graph that a capture has made, or added to: the one that was given out before, or a new one.
pub fn captured(
    id: Id,
    device: u8,
    known: Option<Handle>,
    held: GraphResources,
    memory: Vec<MemoryNode>,
) -> Result<Handle> {
    let handle = match known {
        Some(handle) => handle,
        None => insert(id, device, Origin::Unfinished(0))?,
    };
    let graph = arena::get::<Graph>(handle)?;
    let mut state = graph.state();
    if let Origin::Unfinished(before) = state.origin {
        drop(state);
        graph.put_inside(before)?;
        state = graph.state();
        state.origin = Origin::Worker(before);
    }
    state.held.join(held);
    state.memory.extend(memory);
    Ok(handle)
}

/// Handles of nodes of a capture under way; `kinds` are those of nodes that have none yet.
pub fn captured_nodes(handle: Handle, kinds: &[u32], wanted: &[u32]) -> Result<Vec<Handle>> {
    let graph = arena::get::<Graph>(handle)?;
    let mut state = graph.state();
    for kind in kinds {
        let entry = graph.entry(handle, state.nodes.len() as u32, *kind, Vec::new())?;
        state.nodes.push(Some(entry));
    }
    wanted.iter().map(|number| state.entry(*number).map(|entry| entry.handle)).collect()
}

/// How many nodes have handles, or may get one.
pub fn known_nodes(handle: Handle) -> Result<u32> {
    Ok(arena::get::<Graph>(handle)?.state().nodes.len() as u32)
}

impl State {
    fn entry(&self, number: u32) -> Result<&Entry> {
        self.nodes.get(number as usize).and_then(Option::as_ref).ok_or(CUDA_ERROR_INVALID_VALUE)
    }
}

impl Graph {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self, own: Handle, number: u32, kind: u32, after: Vec<u32>) -> Result<Entry> {
        let node = Node { graph: own, number, device: self.device, read: Mutex::default() };
        Ok(Entry { handle: arena::insert(node)?, kind, after })
    }

    /// Whether a capture into it is under way.
    fn is_captured_now(&self) -> bool {
        matches!(self.state().origin, Origin::Unfinished(_))
    }

    /// Has the list of nodes be whole. Fails for a graph of a capture under way.
    fn refresh(&self, own: Handle) -> Result<()> {
        let mut state = self.state();
        let mut next = match state.origin {
            Origin::Program => return Ok(()),
            Origin::Unfinished(_) => return Err(CUDA_ERROR_NOT_SUPPORTED),
            Origin::Worker(known) => known,
        };
        loop {
            let found = lane::ask(&GraphTopology { graph: self.id, from: next as u32 })?;
            if found.is_empty() {
                break;
            }
            for node in found {
                self.found(own, &mut state, next, node)?;
                next += 1;
            }
        }
        state.origin = Origin::Program;
        Ok(())
    }

    /// Notes what the worker says of the node of this number, or that there is none any more. One that has a handle keeps it.
    fn found(&self, own: Handle, state: &mut State, number: usize, node: Option<NodeFound>) -> Result<()> {
        let known = state.nodes.get(number).and_then(Option::as_ref).map(|entry| entry.handle);
        let entry = match (node, known) {
            (None, _) => None,
            (Some(node), Some(handle)) => Some(Entry { handle, kind: node.kind, after: node.after }),
            (Some(node), None) => Some(self.entry(own, number as u32, node.kind, node.after)?),
        };
        match state.nodes.get_mut(number) {
            Some(place) => *place = entry,
            None => state.nodes.push(entry),
        }
        Ok(())
    }

    /// Has the list of nodes be whole for who looks at it: that of a capture under way as it is by now.
    fn look(&self, own: Handle) -> Result<()> {
        let Origin::Unfinished(before) = self.state().origin else { return self.refresh(own) };
        let requests = || session::get().map(|session| session.board.tickets());
        if self.state().looked_at == Some(requests()?) {
            return Ok(());
        }
        let nodes = capture::nodes_of(own, before as u32)?;
        let mut state = self.state();
        for (number, node) in (before..).zip(nodes) {
            self.found(own, &mut state, number, node)?;
        }
        state.looked_at = Some(requests()?);
        Ok(())
    }

    /// The nodes that there are, with their numbers.
    fn entries(&self, own: Handle) -> Result<Vec<(u32, Entry)>> {
        self.look(own)?;
        let state = self.state();
        let entries = state.nodes.iter().enumerate();
        Ok(entries.filter_map(|(number, entry)| Some((number as u32, entry.clone()?))).collect())
    }

    /// Notes a node that the worker has added.
    fn added(&self, own: Handle, number: u32, kind: u32, after: Vec<u32>) -> Result<Handle> {
        let mut state = self.state();
        if state.nodes.len() != number as usize {
            return Err(CUDA_ERROR_UNKNOWN);
        }
        let entry = self.entry(own, number, kind, after)?;
        let handle = entry.handle;
        state.nodes.push(Some(entry));
        Ok(handle)
    }

    /// The graphs in its nodes, of one node or of all.
    fn inside(&self, node: Option<u32>) -> Vec<&'static Graph> {
        let state = self.state();
        let wanted = state.inside.iter().filter(|((number, _), _)| node.is_none_or(|node| node == *number));
        wanted.filter_map(|(_, handle)| arena::get::<Graph>(*handle).ok()).collect()
    }

    /// All that it holds, with the graphs in its nodes.
    fn all_held(&self) -> GraphResources {
        let mut held = self.state().held.clone();
        self.inside(None).into_iter().for_each(|graph| held.extend(graph.all_held()));
        held
    }

    /// Its nodes with memory, and those of the graphs in its nodes.
    fn all_memory(&self) -> Vec<MemoryNode> {
        let mut memory = self.state().memory.clone();
        self.inside(None).into_iter().for_each(|graph| memory.extend(graph.all_memory()));
        memory
    }

    fn has_conditions(&self) -> bool {
        self.state().nodes.iter().flatten().any(|entry| entry.kind == parameters::CONDITIONAL)
    }

    /// Whether it has one instance at a time and no copies: it takes memory, or has conditions.
    fn has_one_instance(&self) -> bool {
        self.has_conditions() || !self.all_memory().is_empty()
    }

    /// Ends the handles of its nodes, and of the graphs in them.
    fn end_handles(&self) -> Result<GraphResources> {
        let (entries, inside, mut held) = {
            let mut state = self.state();
            let State { nodes, inside, held, memory, .. } = &mut *state;
            memory.clear();
            (std::mem::take(nodes), std::mem::take(inside), std::mem::take(held))
        };
        for entry in entries.into_iter().flatten() {
            arena::remove::<Node>(entry.handle)?;
        }
        for handle in inside.into_values() {
            held.extend(arena::remove::<Graph>(handle)?.end_handles()?);
        }
        Ok(held)
    }
}

/// Numbers of nodes, all of one graph.
pub fn numbers(graph: Handle, nodes: &[Handle]) -> Result<Vec<u32>> {
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
        let found = arena::get::<Graph>(handle)?;
        {
            let state = found.state();
            if matches!(state.origin, Origin::Unfinished(_)) || state.owner.is_some() {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
        }
        let graph = arena::remove::<Graph>(handle)?;
        let held = graph.end_handles()?;
        let destroyed = lane::ask(&GraphDestroy { graph: graph.id });
        held.let_go(graph.device);
        destroyed
    }
}
