//! Graphs: nodes added one by one, and what a graph consists of.

use std::ffi::c_void;
use std::ptr;

use rekindle_cuda::types::GraphExecUpdateResultInfo;
use rekindle_cuda::{
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED,
};
use rekindle_device::{Copy3D, Function, Graph, GraphExec, GraphNode, Launch, MemorySet, Result};

use crate::device::NvidiaDevice;
use crate::driver::{Driver, call};
use crate::sys;
use crate::work::{Attributes, copies};

/// Nodes in the driver's form: a node is the driver's pointer.
pub fn handles(nodes: &[GraphNode]) -> Vec<u64> {
    nodes.iter().map(|node| node.0).collect()
}

pub fn add_kernel(
    driver: &Driver,
    graph: Graph,
    after: &[GraphNode],
    function: Function,
    launch: &Launch,
    parameters: &[u8],
) -> Result<GraphNode> {
    let after = handles(after);
    let attributes = Attributes::new(launch)?;
    // A node that was given its parameters in one piece takes no attributes.
    let mut places = parameter_places(driver, function, parameters)?;
    let kernel = sys::KernelNode {
        function: function.0,
        grid: launch.grid,
        block: launch.block,
        shared: launch.shared,
        parameters: places.as_mut_ptr(),
        extra: ptr::null(),
        kernel: 0,
        context: 0,
    };
    let mut node = 0;
    // SAFETY: live handles by the crate's contract; the driver copies description and parameters during the call.
    unsafe {
        call!(driver, cuGraphAddKernelNode_v2(&mut node, graph.0, after.as_ptr(), after.len(), &kernel))
    }?;
    for row in attributes.rows() {
        // SAFETY: reads the value during the call.
        let set = unsafe { call!(driver, cuGraphKernelNodeSetAttribute(node, row.id, &row.value)) };
        if let Err(code) = set {
            // SAFETY: the node was just added and nothing depends on it.
            unsafe { call!(driver, cuGraphDestroyNode(node)) }?;
            return Err(code);
        }
    }
    Ok(GraphNode(node))
}

/// Where in its buffer each parameter of a kernel lies.
fn parameter_places(driver: &Driver, function: Function, parameters: &[u8]) -> Result<Vec<*mut c_void>> {
    let mut places = Vec::new();
    loop {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: a live function by the crate's contract; writes two values, and refuses an index past the last.
        let code = unsafe {
            (driver.functions.cuFuncGetParamInfo)(function.0, places.len(), &mut offset, &mut size)
        };
        match code {
            CUDA_ERROR_INVALID_VALUE => return Ok(places),
            _ => driver.check("cuFuncGetParamInfo", code)?,
        }
        let end = offset.checked_add(size).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let place = parameters.get(offset..end).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        places.push(place.as_ptr().cast_mut().cast());
    }
}

/// A node that does nothing where the copy is empty; `NOT_SUPPORTED` where no single driver copy can do it.
pub fn add_copy(
    device: &NvidiaDevice,
    graph: Graph,
    after: &[GraphNode],
    copy: &Copy3D,
) -> Result<GraphNode> {
    let mut all = copies(copy);
    let Some(one) = all.next() else { return add_empty(&device.driver, graph, after) };
    if all.next().is_some() {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    let after = handles(after);
    let mut node = 0;
    // SAFETY: live handles by the crate's contract; the description is read during the call.
    unsafe {
        call!(
            device.driver,
            cuGraphAddMemcpyNode(&mut node, graph.0, after.as_ptr(), after.len(), &one, device.context)
        )
    }?;
    Ok(GraphNode(node))
}

pub fn add_set(
    device: &NvidiaDevice,
    graph: Graph,
    after: &[GraphNode],
    set: &MemorySet,
) -> Result<GraphNode> {
    let after = handles(after);
    let fill = sys::MemsetNode {
        address: set.address,
        pitch: set.pitch as usize,
        value: set.value,
        element: u32::from(set.element),
        width: set.width as usize,
        height: set.height as usize,
    };
    let mut node = 0;
    // SAFETY: as for a copy.
    unsafe {
        call!(
            device.driver,
            cuGraphAddMemsetNode(&mut node, graph.0, after.as_ptr(), after.len(), &fill, device.context)
        )
    }?;
    Ok(GraphNode(node))
}

pub fn add_empty(driver: &Driver, graph: Graph, after: &[GraphNode]) -> Result<GraphNode> {
    let after = handles(after);
    let mut node = 0;
    // SAFETY: live handles by the crate's contract.
    unsafe { call!(driver, cuGraphAddEmptyNode(&mut node, graph.0, after.as_ptr(), after.len())) }?;
    Ok(GraphNode(node))
}

pub fn add_child(driver: &Driver, graph: Graph, after: &[GraphNode], child: Graph) -> Result<GraphNode> {
    let after = handles(after);
    let mut node = 0;
    // SAFETY: live handles by the crate's contract; the driver clones the child during the call.
    unsafe {
        call!(driver, cuGraphAddChildGraphNode(&mut node, graph.0, after.as_ptr(), after.len(), child.0))
    }?;
    Ok(GraphNode(node))
}

/// `CUgraphExecUpdateResult`: a graph of another shape is no error.
pub fn update(driver: &Driver, exec: GraphExec, graph: Graph) -> Result<u32> {
    let null = ptr::null_mut();
    let mut info = GraphExecUpdateResultInfo { result: 0, error_node: null, error_from_node: null };
    // SAFETY: live handles by the crate's contract; the driver writes into `info` during the call.
    match unsafe { call!(driver, cuGraphExecUpdate_v2(exec.0, graph.0, &mut info)) } {
        Err(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE) => Ok(info.result.max(1)),
        result => result.map(|()| 0),
    }
}

pub fn nodes(driver: &Driver, graph: Graph) -> Result<Vec<GraphNode>> {
    let mut count = 0;
    // SAFETY: without room the driver writes the count alone.
    unsafe { call!(driver, cuGraphGetNodes(graph.0, ptr::null_mut(), &mut count)) }?;
    let mut handles = vec![0u64; count];
    if count > 0 {
        // SAFETY: room for `count` handles, which the driver respects and updates.
        unsafe { call!(driver, cuGraphGetNodes(graph.0, handles.as_mut_ptr(), &mut count)) }?;
        handles.truncate(count);
    }
    Ok(handles.into_iter().map(GraphNode).collect())
}
