//! Parameters of nodes that are read back.

use std::ffi::c_void;
use std::ptr;
use std::sync::PoisonError;

use rekindle_cuda::types::{
    BatchMemOpNodeParams, BatchMemOpWords, HostNodeParams, KernelNodeParams, KernelNodeParamsV1,
    LOCATION_DEVICE, MemAllocNodeParams, MemLocation, MemPoolProps, Memcpy3D, MemsetNodeParams, memory_type,
};
use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
use rekindle_device::{Copy3D, ValueOperation};
use rekindle_protocol::operation::{GraphNode, NodeAction};

use crate::abi::{Handle, Out, Result};
use crate::event::Event;
use crate::export::exports;
use crate::host_call::{self, Function};
use crate::module::Kernel;
use crate::{arena, lane, memory, stream_value};

use super::{Graph, Node};

/// What the program was given pointers to.
pub struct ReturnedParameters {
    /// Of a kernel: its packed parameters, aligned as the driver's are, and where each of them lies.
    _packed: Vec<u128>,
    places: Vec<usize>,
    operations: Vec<BatchMemOpWords>,
    /// The bodies of a conditional node.
    graphs: Vec<Handle>,
}

impl ReturnedParameters {
    pub fn graphs(graphs: Vec<Handle>) -> ReturnedParameters {
        ReturnedParameters { _packed: Vec::new(), places: Vec::new(), operations: Vec::new(), graphs }
    }

    pub fn first_graph(&self) -> *const Handle {
        self.graphs.as_ptr()
    }
}

/// What a node does.
pub(super) fn action(handle: Handle) -> Result<NodeAction> {
    let node = arena::get::<Node>(handle)?;
    let graph = arena::get::<Graph>(node.graph)?;
    graph.refresh(node.graph)?;
    lane::ask(&GraphNode { graph: graph.id, node: node.number })
}

fn give(handle: Handle, given: ReturnedParameters) -> Result<(usize, usize)> {
    let node = arena::get::<Node>(handle)?;
    let mut read = node.read.lock().unwrap_or_else(PoisonError::into_inner);
    let given = read.insert(given);
    Ok((given.places.as_ptr() as usize, given.operations.as_ptr() as usize))
}

/// The name of the kernel that a node launches.
pub(super) fn kernel_name(node: Handle) -> Result<&'static str> {
    let NodeAction::Kernel { function, .. } = action(node)? else { return Err(CUDA_ERROR_INVALID_VALUE) };
    let kernel = arena::search::<Kernel>(|kernel| kernel.has(function)).ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
    Ok(arena::get::<Kernel>(kernel)?.name())
}

fn kernel(handle: Handle) -> Result<KernelNodeParams> {
    let NodeAction::Kernel { function, launch, parameters } = action(handle)? else {
        return Err(CUDA_ERROR_INVALID_VALUE);
    };
    let kernel = arena::search::<Kernel>(|kernel| kernel.has(function)).ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
    let found = arena::get::<Kernel>(kernel)?.found(function).ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
    let mut packed = vec![0u128; parameters.len().div_ceil(size_of::<u128>())];
    for (word, bytes) in packed.iter_mut().zip(parameters.chunks(size_of::<u128>())) {
        let mut whole = [0; size_of::<u128>()];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u128::from_ne_bytes(whole);
    }
    let first = packed.as_ptr() as usize;
    let places = found.parameters.iter().map(|parameter| first + parameter.offset as usize).collect();
    let is_empty = found.parameters.is_empty();
    let (places, _) = give(
        handle,
        ReturnedParameters { _packed: packed, places, operations: Vec::new(), graphs: Vec::new() },
    )?;
    Ok(KernelNodeParams {
        function: kernel.0 as *mut c_void,
        grid: launch.grid,
        block: launch.block,
        shared: launch.shared,
        parameters: if is_empty { ptr::null() } else { places as *const *const c_void },
        extra: ptr::null(),
        kernel: ptr::null_mut(),
        context: ptr::null_mut(),
    })
}

/// One side of a copy as the structures describe it: kind, host address, device address, pitch, rows of a slice.
fn side(address: u64, pitch: u64, slice: u64, copy: &Copy3D) -> (u32, usize, u64, usize, usize) {
    let rows = if copy.depth > 1 && pitch > 0 { slice / pitch } else { copy.height };
    let on_host = memory::is_pinned(address, copy.width) || memory::find(address).is_none();
    match on_host {
        true => (memory_type::HOST, address as usize, 0, pitch as usize, rows as usize),
        false => (memory_type::DEVICE, 0, address, pitch as usize, rows as usize),
    }
}

fn described(copy: &Copy3D) -> Memcpy3D {
    let (src_type, src_host, src_device, src_pitch, src_height) =
        side(copy.from, copy.from_pitch, copy.from_slice, copy);
    let (dst_type, dst_host, dst_device, dst_pitch, dst_height) =
        side(copy.to, copy.to_pitch, copy.to_slice, copy);
    Memcpy3D {
        src_x: 0,
        src_y: 0,
        src_z: 0,
        src_lod: 0,
        src_type,
        src_host: src_host as *const c_void,
        src_device,
        src_array: ptr::null_mut(),
        src_context: ptr::null_mut(),
        src_pitch,
        src_height,
        dst_x: 0,
        dst_y: 0,
        dst_z: 0,
        dst_lod: 0,
        dst_type,
        dst_host: dst_host as *mut c_void,
        dst_device,
        dst_array: ptr::null_mut(),
        dst_context: ptr::null_mut(),
        dst_pitch,
        dst_height,
        width: copy.width as usize,
        height: copy.height as usize,
        depth: copy.depth as usize,
    }
}

fn copy(node: Handle) -> Result<Memcpy3D> {
    match action(node)? {
        NodeAction::Copy(copy) => Ok(described(&copy)),
        NodeAction::Staged { copy, token, up } => {
            let Some(Function::Copy(carried)) = host_call::kept(token) else {
                return Err(CUDA_ERROR_INVALID_VALUE);
            };
            // The program's own side in place of the staging.
            let Copy3D { to, to_pitch, to_slice, from, from_pitch, from_slice, .. } = carried;
            Ok(described(&match up {
                true => Copy3D { from, from_pitch, from_slice, ..copy },
                false => Copy3D { to, to_pitch, to_slice, ..copy },
            }))
        }
        NodeAction::CopyArray(_) => Err(CUDA_ERROR_NOT_SUPPORTED),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

fn fill(node: Handle) -> Result<MemsetNodeParams> {
    let NodeAction::Set(set) = action(node)? else { return Err(CUDA_ERROR_INVALID_VALUE) };
    Ok(MemsetNodeParams {
        address: set.address,
        pitch: set.pitch as usize,
        value: set.value,
        element: set.element.into(),
        width: set.width as usize,
        height: set.height as usize,
    })
}

fn host(node: Handle) -> Result<HostNodeParams> {
    let NodeAction::Call { token } = action(node)? else { return Err(CUDA_ERROR_INVALID_VALUE) };
    match host_call::kept(token) {
        Some(Function::Plain(function, data)) => {
            Ok(HostNodeParams { function: Some(function), data: data as *mut c_void })
        }
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

fn event(number: u32) -> Result<Handle> {
    arena::search::<Event>(|event| event.id == number).ok_or(CUDA_ERROR_INVALID_VALUE)
}

fn values(node: Handle) -> Result<BatchMemOpNodeParams> {
    let NodeAction::Values(operations) = action(node)? else { return Err(CUDA_ERROR_INVALID_VALUE) };
    let count = operations.len() as u32;
    let operations = operations.iter().map(|one: &ValueOperation| stream_value::words(one)).collect();
    let (_, operations) = give(
        node,
        ReturnedParameters { _packed: Vec::new(), places: Vec::new(), operations, graphs: Vec::new() },
    )?;
    Ok(BatchMemOpNodeParams {
        context: ptr::null_mut(),
        count,
        operations: operations as *const BatchMemOpWords,
        flags: 0,
    })
}

fn allocation(node: Handle) -> Result<MemAllocNodeParams> {
    let NodeAction::Allocate { address, bytes } = action(node)? else { return Err(CUDA_ERROR_INVALID_VALUE) };
    let device = memory::at(address).map_or(0, |allocation| allocation.device);
    let pool = MemPoolProps {
        kind: 1,
        handle_types: 0,
        location: MemLocation { kind: LOCATION_DEVICE, id: device.into() },
        win32: ptr::null_mut(),
        max_size: 0,
        usage: 0,
        reserved: [0; 54],
    };
    Ok(MemAllocNodeParams { pool, access: ptr::null(), access_count: 0, bytes: bytes as usize, address })
}

exports! {
    call fn cuGraphKernelNodeGetParams(node: Handle, out: Out<KernelNodeParamsV1>) {
        out.check()?;
        let KernelNodeParams { function, grid, block, shared, parameters, extra, .. } = kernel(node)?;
        out.put(KernelNodeParamsV1 { function, grid, block, shared, parameters, extra })
    }
    call fn cuGraphKernelNodeGetParams_v2(node: Handle, out: Out<KernelNodeParams>) {
        out.check()?;
        out.put(kernel(node)?)
    }
    call fn cuGraphMemcpyNodeGetParams(node: Handle, out: Out<Memcpy3D>) {
        out.check()?;
        out.put(copy(node)?)
    }
    call fn cuGraphMemsetNodeGetParams(node: Handle, out: Out<MemsetNodeParams>) {
        out.check()?;
        out.put(fill(node)?)
    }
    call fn cuGraphHostNodeGetParams(node: Handle, out: Out<HostNodeParams>) {
        out.check()?;
        out.put(host(node)?)
    }
    call fn cuGraphEventRecordNodeGetEvent(node: Handle, out: Out<Handle>) {
        out.check()?;
        match action(node)? {
            NodeAction::Record { event: number } => out.put(event(number)?),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
    call fn cuGraphEventWaitNodeGetEvent(node: Handle, out: Out<Handle>) {
        out.check()?;
        match action(node)? {
            NodeAction::Wait { event: number } => out.put(event(number)?),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
    call fn cuGraphBatchMemOpNodeGetParams(node: Handle, out: Out<BatchMemOpNodeParams>) {
        out.check()?;
        out.put(values(node)?)
    }
    call fn cuGraphMemAllocNodeGetParams(node: Handle, out: Out<MemAllocNodeParams>) {
        out.check()?;
        out.put(allocation(node)?)
    }
    call fn cuGraphMemFreeNodeGetParams(node: Handle, out: Out<u64>) {
        out.check()?;
        match action(node)? {
            NodeAction::Free { address } => out.put(address),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
}
