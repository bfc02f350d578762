//! Changing what nodes do: in a graph, for whatever is made of it later, or in an instance.

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_cuda::types::{KernelNodeParams, KernelNodeParamsV1, Memcpy3D, MemsetNodeParams};
use rekindle_protocol::operation::{GraphSetChild, GraphSetCopy, GraphSetKernel, GraphSetSet, NodesOf};

use crate::abi::{Handle, In, Result};
use crate::arena;
use crate::copy::strided;
use crate::export::exports;
use crate::lane;

use super::add::{Parameters, fill_of, first_version, read, with_kernel};
use super::{Graph, Node, exec};

/// The node, of its graph or of the instance that is given.
fn place(instance: Option<Handle>, node: Handle) -> Result<(NodesOf, u32, u8)> {
    let node = arena::get::<Node>(node)?;
    let (of, device) = match instance {
        Some(instance) => {
            let (id, device) = exec::having(instance, node)?;
            (NodesOf::Exec(id), device)
        }
        None => (NodesOf::Graph(arena::get::<Graph>(node.graph)?.id), node.device),
    };
    Ok((of, node.number, device))
}

fn set_kernel(instance: Option<Handle>, node: Handle, p: KernelNodeParamsV1) -> Result<()> {
    let (of, node, device) = place(instance, node)?;
    with_kernel(&p, device, |function, launch, packed| {
        lane::ask_with(&GraphSetKernel { of, node, function, launch }, packed)
    })
}

fn set_copy(instance: Option<Handle>, node: Handle, copy: &Memcpy3D) -> Result<()> {
    let (of, node, _) = place(instance, node)?;
    lane::ask(&GraphSetCopy { of, node, copy: strided::for_graph(copy)? })
}

fn set_fill(instance: Option<Handle>, node: Handle, p: MemsetNodeParams) -> Result<()> {
    let (of, node, _) = place(instance, node)?;
    lane::ask(&GraphSetSet { of, node, set: fill_of(p)? })
}

fn set_child(instance: Option<Handle>, node: Handle, child: Handle) -> Result<()> {
    let (of, number, _) = place(instance, node)?;
    let found = arena::get::<Graph>(child)?;
    // One that is being captured has no end yet.
    found.entries(child)?;
    lane::ask(&GraphSetChild { of, node: number, child: found.id })?;
    match instance {
        Some(instance) => exec::hold(instance, found),
        None => {
            let held = found.state().held.clone();
            let parent = arena::get::<Node>(node)?.graph;
            arena::get::<Graph>(parent)?.state().held.extend(held);
            Ok(())
        }
    }
}

fn set_any(instance: Option<Handle>, node: Handle, parameters: In<u32>) -> Result<()> {
    match read(parameters)? {
        Parameters::Kernel(kernel) => set_kernel(instance, node, kernel),
        Parameters::Copy(copy) => set_copy(instance, node, &copy),
        Parameters::Set(set) => set_fill(instance, node, set),
        Parameters::Child(child) => set_child(instance, node, child),
        Parameters::Empty => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

exports! {
    call fn cuGraphKernelNodeSetParams(node: Handle, parameters: In<KernelNodeParamsV1>) {
        set_kernel(None, node, parameters.get()?)
    }
    call fn cuGraphKernelNodeSetParams_v2(node: Handle, parameters: In<KernelNodeParams>) {
        set_kernel(None, node, first_version(parameters.get()?))
    }
    call fn cuGraphMemcpyNodeSetParams(node: Handle, copy: In<Memcpy3D>) { set_copy(None, node, &copy.get()?) }
    call fn cuGraphMemsetNodeSetParams(node: Handle, parameters: In<MemsetNodeParams>) {
        set_fill(None, node, parameters.get()?)
    }
    call fn cuGraphNodeSetParams(node: Handle, parameters: In<u32>) { set_any(None, node, parameters) }
    call fn cuGraphExecKernelNodeSetParams(exec: Handle, node: Handle, parameters: In<KernelNodeParamsV1>) {
        set_kernel(Some(exec), node, parameters.get()?)
    }
    call fn cuGraphExecKernelNodeSetParams_v2(exec: Handle, node: Handle, parameters: In<KernelNodeParams>) {
        set_kernel(Some(exec), node, first_version(parameters.get()?))
    }
    call fn cuGraphExecMemcpyNodeSetParams(exec: Handle, node: Handle, copy: In<Memcpy3D>, _context: Handle) {
        set_copy(Some(exec), node, &copy.get()?)
    }
    call fn cuGraphExecMemsetNodeSetParams(exec: Handle, node: Handle, parameters: In<MemsetNodeParams>, _context: Handle) {
        set_fill(Some(exec), node, parameters.get()?)
    }
    call fn cuGraphExecChildGraphNodeSetParams(exec: Handle, node: Handle, child: Handle) {
        set_child(Some(exec), node, child)
    }
    call fn cuGraphExecNodeSetParams(exec: Handle, node: Handle, parameters: In<u32>) {
        set_any(Some(exec), node, parameters)
    }
}
