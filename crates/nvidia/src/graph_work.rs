//! Nodes of graphs beside kernels, copies and fills: calls of the host, events, and operations on values.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_device::{Event, Graph, GraphCall, GraphNode, Result, ValueOperation};

use crate::device::NvidiaDevice;
use crate::driver::{Driver, call};
use crate::graph::{add_empty, handles};
use crate::sys;

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`, which must be given.
const NO_DESTRUCTOR_SYNC: u32 = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`.
const MOVE: u32 = 1;

/// The driver keeps the call as a user object of the graph: whatever is made of the graph holds it too.
pub fn add_call(driver: &Driver, graph: Graph, after: &[GraphNode], call: GraphCall) -> Result<GraphNode> {
    let data: *mut c_void = Box::into_raw(Box::new(call)).cast();
    let mut object = 0;
    // SAFETY: `drop_call` takes the box back, once nothing holds the object.
    let created =
        unsafe { call!(driver, cuUserObjectCreate(&mut object, data, drop_call, 1, NO_DESTRUCTOR_SYNC)) };
    if let Err(code) = created {
        // SAFETY: the driver did not take it.
        unsafe { drop_call(data) };
        return Err(code);
    }
    // SAFETY: live handles by the crate's contract; the reference that was just made becomes the graph's.
    if let Err(code) = unsafe { call!(driver, cuGraphRetainUserObject(graph.0, object, 1, MOVE)) } {
        // SAFETY: the reference is still ours.
        unsafe { call!(driver, cuUserObjectRelease(object, 1)) }?;
        return Err(code);
    }
    let after = handles(after);
    let host = sys::HostNode { function: run_call, data };
    let mut node = 0;
    // SAFETY: live handles by the crate's contract; the graph holds what `run_call` is given.
    unsafe { call!(driver, cuGraphAddHostNode(&mut node, graph.0, after.as_ptr(), after.len(), &host)) }?;
    Ok(GraphNode(node))
}

unsafe extern "C" fn run_call(data: *mut c_void) {
    // SAFETY: the box of `add_call`, which lives as long as anything that has the node.
    let call = unsafe { &*data.cast::<GraphCall>() };
    if catch_unwind(AssertUnwindSafe(|| call())).is_err() {
        log::error!("a host call of a graph panicked; the graph goes on");
    }
}

unsafe extern "C" fn drop_call(data: *mut c_void) {
    // SAFETY: the box of `add_call`; the driver calls this once.
    drop(unsafe { Box::from_raw(data.cast::<GraphCall>()) });
}

pub fn add_record(driver: &Driver, graph: Graph, after: &[GraphNode], event: Event) -> Result<GraphNode> {
    let after = handles(after);
    let mut node = 0;
    // SAFETY: live handles by the crate's contract.
    unsafe {
        call!(driver, cuGraphAddEventRecordNode(&mut node, graph.0, after.as_ptr(), after.len(), event.0))
    }?;
    Ok(GraphNode(node))
}

pub fn add_wait(driver: &Driver, graph: Graph, after: &[GraphNode], event: Event) -> Result<GraphNode> {
    let after = handles(after);
    let mut node = 0;
    // SAFETY: live handles by the crate's contract.
    unsafe {
        call!(driver, cuGraphAddEventWaitNode(&mut node, graph.0, after.as_ptr(), after.len(), event.0))
    }?;
    Ok(GraphNode(node))
}

pub fn add_values(
    device: &NvidiaDevice,
    graph: Graph,
    after: &[GraphNode],
    operations: &[ValueOperation],
) -> Result<GraphNode> {
    if operations.is_empty() {
        return add_empty(&device.driver, graph, after);
    }
    let operations = operations.iter().map(|one| batch_operation(*one)).collect::<Result<Vec<_>>>()?;
    let after = handles(after);
    let batch = sys::BatchNode {
        context: device.context,
        count: operations.len() as u32,
        operations: operations.as_ptr(),
        flags: 0,
    };
    let mut node = 0;
    // SAFETY: live handles by the crate's contract; the driver copies the operations during the call.
    unsafe {
        call!(
            device.driver,
            cuGraphAddBatchMemOpNode(&mut node, graph.0, after.as_ptr(), after.len(), &batch)
        )
    }?;
    Ok(GraphNode(node))
}

/// `CUstreamBatchMemOpType`.
fn batch_operation(operation: ValueOperation) -> Result<sys::BatchOperation> {
    let with_value = |kind: u64, address: u64, value: u64, flags: u32| {
        sys::BatchOperation([kind, address, value, u64::from(flags), 0, 0])
    };
    Ok(match operation {
        ValueOperation::Wait { address, value, width: 4, flags } => with_value(1, address, value, flags),
        ValueOperation::Write { address, value, width: 4, flags } => with_value(2, address, value, flags),
        ValueOperation::Flush { flags } => sys::BatchOperation([3 | u64::from(flags) << 32, 0, 0, 0, 0, 0]),
        ValueOperation::Wait { address, value, width: 8, flags } => with_value(4, address, value, flags),
        ValueOperation::Write { address, value, width: 8, flags } => with_value(5, address, value, flags),
        ValueOperation::Barrier { flags } => sys::BatchOperation([6 | u64::from(flags) << 32, 0, 0, 0, 0, 0]),
        ValueOperation::Wait { .. } | ValueOperation::Write { .. } => return Err(CUDA_ERROR_INVALID_VALUE),
    })
}

/// `CU_GRAPH_COND_ASSIGN_DEFAULT`.
const ASSIGN_DEFAULT: u32 = 1;

pub fn condition(device: &NvidiaDevice, graph: Graph, default: Option<u32>) -> Result<u64> {
    let (value, flags) = default.map_or((0, 0), |value| (value, ASSIGN_DEFAULT));
    let mut handle = 0;
    // SAFETY: live handles by the crate's contract; writes one value.
    unsafe {
        call!(
            device.driver,
            cuGraphConditionalHandleCreate(&mut handle, graph.0, device.context, value, flags)
        )
    }?;
    Ok(handle)
}

pub fn add_conditional(
    device: &NvidiaDevice,
    graph: Graph,
    after: &[GraphNode],
    handle: u64,
    kind: u32,
    bodies: u32,
) -> Result<(GraphNode, Vec<Graph>)> {
    let after = handles(after);
    let inner = sys::NodeUnion {
        handle,
        kind,
        size: bodies,
        bodies: std::ptr::null(),
        context: device.context,
        rest: [0; 25],
    };
    let mut wanted = sys::AnyNode { kind: sys::NODE_CONDITIONAL, reserved: [0; 3], inner, last_reserved: 0 };
    let mut node = 0;
    // SAFETY: live handles by the crate's contract; the driver reads and writes the description during the call.
    unsafe {
        call!(device.driver, cuGraphAddNode(&mut node, graph.0, after.as_ptr(), after.len(), &mut wanted))
    }?;
    if wanted.inner.bodies.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the driver's array has as many graphs as the node has bodies, and lives as long as the node.
    let graphs = unsafe { std::slice::from_raw_parts(wanted.inner.bodies, bodies as usize) };
    Ok((GraphNode(node), graphs.iter().map(|graph| Graph(*graph)).collect()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_call_runs_at_each_launch_and_is_freed() {
        let count = Arc::new(AtomicU32::new(0));
        let own = count.clone();
        let call: GraphCall = Arc::new(move || {
            own.fetch_add(1, Ordering::Relaxed);
        });
        let data: *mut c_void = Box::into_raw(Box::new(call)).cast();
        // SAFETY: a box as `add_call` makes it, which is dropped once and not used then.
        unsafe {
            run_call(data);
            run_call(data);
            drop_call(data);
        }
        assert_eq!((count.load(Ordering::Relaxed), Arc::strong_count(&count)), (2, 1));
    }

    #[test]
    fn operations_have_the_driver_s_layout() {
        let wait = ValueOperation::Wait { address: 0x100, value: 7, width: 8, flags: 1 };
        assert_eq!(batch_operation(wait).unwrap().0, [4, 0x100, 7, 1, 0, 0]);
        assert_eq!(batch_operation(ValueOperation::Barrier { flags: 1 }).unwrap().0[0], 6 | 1 << 32);
        let odd = ValueOperation::Write { address: 0x100, value: 7, width: 2, flags: 0 };
        assert_eq!(batch_operation(odd), Err(CUDA_ERROR_INVALID_VALUE));
    }
}
