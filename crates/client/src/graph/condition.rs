//! Conditional nodes: kernels set a value by a handle, and the node does what it says.
//!
//! The device's handle is another one each time that a graph is made, so the program has one of ours, which the worker
//! finds among parameters of kernels. It must be like no other value there.

use std::ffi::c_void;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_cuda::types::ConditionalNodeParams;
use rekindle_protocol::operation::{GraphCreate, NodeAction};

use crate::abi::{Handle, Out, Result};
use crate::export::exports;
use crate::{arena, lane};

use super::add::{NodeSite, add_told};
use super::inside::body_of;
use super::{Graph, Node, Origin, new_id, read};

/// `CU_GRAPH_COND_ASSIGN_DEFAULT`.
const ASSIGN_DEFAULT: u32 = 1;

// `CUgraphConditionalNodeType`.
const IF: u32 = 0;
const WHILE: u32 = 1;
const SWITCH: u32 = 2;

/// A number for a condition: no two are the same, and none is like a number that a program counts or computes.
fn new_handle() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut mixed = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Whether a graph has a condition that no node has.
pub(super) fn is_unused(graph: Handle) -> bool {
    arena::get::<Graph>(graph).is_ok_and(|graph| !graph.state().conditions.is_empty())
}

pub(super) fn add(site: &NodeSite, out: Out<ConditionalNodeParams>) -> Result<()> {
    let mut wanted = out.current()?;
    let (graph, after) = site.find()?;
    let fits = match wanted.kind {
        IF => (1..=2).contains(&wanted.size),
        WHILE => wanted.size == 1,
        SWITCH => wanted.size > 0,
        _ => false,
    };
    let default = graph.state().conditions.get(&wanted.handle).copied();
    let default = default.filter(|_| fits).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let (handle, kind, bodies) = (wanted.handle, wanted.kind, wanted.size);
    let action = NodeAction::Conditional { handle, default, kind, bodies };
    let number = add_told(site, graph, after, action.into())?;
    let node = graph.state().entry(number)?.handle;
    graph.state().conditions.remove(&handle);
    let body = |body| match graph.is_captured_now() {
        true => new_body(site.1, graph, (number, body)),
        false => body_of(site.1, number, body),
    };
    let graphs = (0..bodies).map(body).collect::<Result<Vec<_>>>()?;
    let node = arena::get::<Node>(node)?;
    let mut given = node.read.lock().unwrap_or_else(PoisonError::into_inner);
    let graphs = given.insert(read::ReturnedParameters::graphs(graphs)).first_graph();
    wanted.graphs = graphs.cast::<*mut c_void>();
    out.put(wanted)
}

/// A body of a node of a capture under way, into whose graph it comes when that ends.
fn new_body(of: Handle, graph: &Graph, site: (u32, u32)) -> Result<Handle> {
    let body = new_id();
    lane::ask(&GraphCreate { device: graph.device, graph: body })?;
    graph.put_later(of, site, body, Origin::Program)
}

exports! {
    call fn cuGraphConditionalHandleCreate(out: Out<u64>, graph: Handle, _context: Handle, default: u32, flags: u32) {
        out.check()?;
        if flags & !ASSIGN_DEFAULT != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let graph = arena::get::<Graph>(graph)?;
        let handle = new_handle();
        graph.state().conditions.insert(handle, (flags == ASSIGN_DEFAULT).then_some(default));
        out.put(handle)
    }
}
