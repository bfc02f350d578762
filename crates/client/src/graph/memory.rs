//! Memory that graphs take and give back.
//!
//! It is there from when its node is made, at the address that the node's parameters say, for as long as a graph, an
//! instance or the program has it. Launches only change whose it is: a launch that takes memory and does not give it
//! back leaves it to the program, to free or to have another graph free it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rekindle_cuda::types::{LOCATION_DEVICE, MemAllocNodeParams};
use rekindle_cuda::{
    CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OUT_OF_MEMORY,
};
use rekindle_protocol::operation::{MemoryAllocate, MemoryFree, NodeAction};

use crate::abi::{Handle, In, Out, Result};
use crate::export::exports;
use crate::memory::{self, Purpose};
use crate::module::DEVICES;
use crate::stream::StreamTarget;
use crate::{capture, device, lane, session};

use super::Graph;
use super::add::{NodeSite, add_told};
use super::parameters::NodeRequest;

/// Bytes now, and the most that there were since that was asked to be counted anew.
struct Count {
    now: AtomicU64,
    most: AtomicU64,
}

impl Count {
    const fn new() -> Count {
        Count { now: AtomicU64::new(0), most: AtomicU64::new(0) }
    }

    fn add(&self, bytes: u64) {
        let now = self.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.most.fetch_max(now, Ordering::Relaxed);
    }

    fn take(&self, bytes: u64) {
        self.now.fetch_sub(bytes, Ordering::Relaxed);
    }
}

static RESERVED: [Count; DEVICES] = [const { Count::new() }; DEVICES];
static USED: [Count; DEVICES] = [const { Count::new() }; DEVICES];
/// What the program has of graphs, by address.
static LIVE: Mutex<BTreeMap<u64, Arc<Block>>> = Mutex::new(BTreeMap::new());

fn live() -> MutexGuard<'static, BTreeMap<u64, Arc<Block>>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn count(counts: &'static [Count], device: u8) -> Result<&'static Count> {
    counts.get(usize::from(device)).ok_or(CUDA_ERROR_INVALID_DEVICE)
}

/// Memory of a node.
pub struct Block {
    address: u64,
    bytes: u64,
    device: u8,
}

impl Drop for Block {
    fn drop(&mut self) {
        if memory::take(self.address, |a| a.purpose == Purpose::Graph).is_ok() {
            // A device that has failed has no memory any more.
            let _ = lane::ask(&MemoryFree { device: self.device, address: self.address });
        }
        RESERVED[usize::from(self.device)].take(self.bytes);
    }
}

/// A node that takes memory, or gives it back.
#[derive(Clone)]
pub enum MemoryNode {
    Allocate(Arc<Block>),
    Free(u64),
}

fn block(device: u8, bytes: u64) -> Result<Arc<Block>> {
    if bytes == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if bytes > session::get()?.device(device.into())?.total_memory {
        return Err(CUDA_ERROR_OUT_OF_MEMORY);
    }
    let reserved = count(&RESERVED, device)?;
    let address = lane::ask(&MemoryAllocate { device, bytes })?;
    memory::note_on(device, address, bytes, Purpose::Graph);
    reserved.add(bytes);
    Ok(Arc::new(Block { address, bytes, device }))
}

pub fn is_graph_s(address: u64) -> bool {
    memory::at(address).is_some_and(|allocation| allocation.purpose == Purpose::Graph)
}

/// The program frees memory that a launch has left to it. Work that uses it is done before it is given to others.
pub fn free(address: u64) -> Result<()> {
    let block = live().remove(&address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    USED[usize::from(block.device)].take(block.bytes);
    Ok(())
}

/// `cuMemAllocAsync` on a captured stream: the address.
pub fn capture_allocation(site: StreamTarget, capture: u64, bytes: u64) -> Result<u64> {
    let block = block(site.device, bytes)?;
    let address = block.address;
    capture::add(site, capture, NodeAction::Allocate { address, bytes }, None)?;
    capture::note_memory(capture, MemoryNode::Allocate(block));
    Ok(address)
}

/// `cuMemFreeAsync` of a graph's memory on a captured stream.
pub fn capture_free(site: StreamTarget, capture: u64, address: u64) -> Result<()> {
    capture::add(site, capture, NodeAction::Free { address }, None)?;
    capture::note_memory(capture, MemoryNode::Free(address));
    Ok(())
}

pub(super) fn add_allocation(site: &NodeSite, out: Out<MemAllocNodeParams>) -> Result<()> {
    let mut parameters = out.current()?;
    let (graph, after) = site.find()?;
    if parameters.pool.location.kind != LOCATION_DEVICE || parameters.pool.handle_types != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    device::info(parameters.pool.location.id)?;
    for wanted in In(parameters.access).slice(parameters.access_count)? {
        device::info(wanted.location.id)?;
    }
    if graph.state().owner.is_some() {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    let block = block(parameters.pool.location.id as u8, parameters.bytes as u64)?;
    let (address, bytes) = (block.address, block.bytes);
    add_told(site, graph, after, NodeAction::Allocate { address, bytes }.into())?;
    note(site.1, graph, MemoryNode::Allocate(block))?;
    parameters.address = address;
    out.put(parameters)
}

pub(super) fn add_free(site: &NodeSite, address: u64) -> Result<()> {
    let (graph, after) = site.find()?;
    let frees = |node: &MemoryNode| matches!(node, MemoryNode::Free(a) if *a == address);
    let is_freed = graph.state().memory.iter().any(frees) || capture::has_memory(site.1, frees);
    if !is_graph_s(address) || is_freed {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if graph.state().owner.is_some() {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    add_told(site, graph, after, NodeRequest::from(NodeAction::Free { address }))?;
    note(site.1, graph, MemoryNode::Free(address))
}

/// A graph, or the capture into it that is under way, has a node with memory.
fn note(handle: Handle, graph: &Graph, node: MemoryNode) -> Result<()> {
    if graph.is_captured_now() {
        return capture::note_memory_in(handle, node);
    }
    graph.state().memory.push(node);
    Ok(())
}

/// A launch of an instance with these nodes: what it takes is the program's afterwards, as far as it does not give it back.
/// With `frees` what an earlier launch has left is taken again.
pub fn launch(nodes: &[MemoryNode], frees: bool) -> Result<()> {
    if nodes.is_empty() {
        return Ok(());
    }
    let own = |address: u64| {
        nodes.iter().any(|node| matches!(node, MemoryNode::Allocate(block) if block.address == address))
    };
    let freed = |address: u64| nodes.iter().any(|node| matches!(node, MemoryNode::Free(a) if *a == address));
    let mut live = live();
    let possible = nodes.iter().all(|node| match node {
        MemoryNode::Allocate(block) => frees || !live.contains_key(&block.address),
        MemoryNode::Free(address) => own(*address) || live.contains_key(address),
    });
    if !possible {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mut given_back = Vec::new();
    for node in nodes {
        match node {
            MemoryNode::Allocate(block) if !freed(block.address) => {
                if live.insert(block.address, block.clone()).is_none() {
                    count(&USED, block.device)?.add(block.bytes);
                }
            }
            MemoryNode::Allocate(block) => given_back.extend(live.remove(&block.address)),
            MemoryNode::Free(address) => given_back.extend(live.remove(address)),
        }
    }
    drop(live);
    for block in &given_back {
        count(&USED, block.device)?.take(block.bytes);
    }
    Ok(())
}

// `CUgraphMem_attribute`.
const USED_NOW: u32 = 0;
const USED_MOST: u32 = 1;
const RESERVED_NOW: u32 = 2;
const RESERVED_MOST: u32 = 3;

fn counted(device: i32) -> Result<u8> {
    device::info(device)?;
    u8::try_from(device).map_err(|_| CUDA_ERROR_INVALID_DEVICE)
}

exports! {
    ready fn cuDeviceGraphMemTrim(device: i32) {
        // What no graph and nobody else has was given back at once.
        device::info(device).map(drop)
    }
    ready fn cuDeviceGetGraphMemAttribute(device: i32, attribute: u32, out: Out<u64>) {
        let device = counted(device)?;
        let value = match attribute {
            USED_NOW => &count(&USED, device)?.now,
            USED_MOST => &count(&USED, device)?.most,
            RESERVED_NOW => &count(&RESERVED, device)?.now,
            RESERVED_MOST => &count(&RESERVED, device)?.most,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        out.put(value.load(Ordering::Relaxed))
    }
    ready fn cuDeviceSetGraphMemAttribute(device: i32, attribute: u32, value: In<u64>) {
        let device = counted(device)?;
        let counts = match attribute {
            USED_MOST => count(&USED, device)?,
            RESERVED_MOST => count(&RESERVED, device)?,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        if value.get()? != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        counts.most.store(counts.now.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(())
    }
}
