//! Changing what nodes do: in a graph, for whatever is made of it later, or in an instance.

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_cuda::types::{
    BatchMemOpNodeParams, HostNodeParams, KernelNodeParams, KernelNodeParamsV1, Memcpy3D, MemsetNodeParams,
};
use rekindle_protocol::operation::{GraphEnable, GraphSet, GraphSetChild, NodesOf};

use crate::abi::{Handle, In, Out, Result};
use crate::export::exports;
use crate::{arena, lane};

use super::parameters::{KERNEL, MEMCPY, MEMSET, Parameters, Told, first_version, read, told};
use super::{Graph, Node, exec};

/// The node, of its graph or of the instance that is given.
fn place(instance: Option<Handle>, node: Handle) -> Result<(NodesOf, u32, u8)> {
    let node = arena::get::<Node>(node)?;
    let (of, device) = match instance {
        Some(instance) => {
            let (id, device) = exec::having(instance, node)?;
            (NodesOf::Exec(id), device)
        }
        None => {
            let graph = arena::get::<Graph>(node.graph)?;
            graph.refresh(node.graph)?;
            (NodesOf::Graph(graph.id), node.device)
        }
    };
    Ok((of, node.number, device))
}

/// A node becomes what was told; what it used before is let go of in time.
pub(super) fn set_told(instance: Option<Handle>, node: Handle, told: Told) -> Result<()> {
    let (of, number, device) = place(instance, node)?;
    let Told { action, kept } = told;
    lane::ask(&GraphSet { of, node: number, action })?;
    let replaced = match instance {
        Some(instance) => exec::keep(instance, number, kept)?,
        None => {
            let graph = arena::get::<Graph>(arena::get::<Node>(node)?.graph)?;
            graph.state().held.keep(number, kept)
        }
    };
    replaced.let_go(device);
    Ok(())
}

fn set_child(instance: Option<Handle>, node: Handle, child: Handle) -> Result<()> {
    let (of, number, _) = place(instance, node)?;
    let found = arena::get::<Graph>(child)?;
    // One that is being captured has no end yet.
    found.refresh(child)?;
    lane::ask(&GraphSetChild { of, node: number, child: found.id })?;
    let held = found.all_held();
    match instance {
        Some(instance) => exec::hold(instance, held),
        None => {
            let parent = arena::get::<Graph>(arena::get::<Node>(node)?.graph)?;
            parent.state().held.extend(held);
            let inside = parent.state().inside.get(&number).copied();
            inside.map_or(Ok(()), |inside| arena::get::<Graph>(inside)?.begin_anew())
        }
    }
}

fn set(instance: Option<Handle>, node: Handle, parameters: Parameters) -> Result<()> {
    match parameters {
        Parameters::Child(child) => set_child(instance, node, child),
        Parameters::Empty => Err(CUDA_ERROR_INVALID_VALUE),
        other => {
            let (_, _, device) = place(instance, node)?;
            set_told(instance, node, told(other, device)?)
        }
    }
}

/// Only these can do nothing for a while.
fn check_can_rest(node: Handle) -> Result<()> {
    match super::inspect::kind(node)? {
        KERNEL | MEMCPY | MEMSET => Ok(()),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

exports! {
    call fn cuGraphKernelNodeSetParams(node: Handle, parameters: In<KernelNodeParamsV1>) {
        set(None, node, Parameters::Kernel(parameters.get()?))
    }
    call fn cuGraphKernelNodeSetParams_v2(node: Handle, parameters: In<KernelNodeParams>) {
        set(None, node, Parameters::Kernel(first_version(parameters.get()?)))
    }
    call fn cuGraphMemcpyNodeSetParams(node: Handle, copy: In<Memcpy3D>) { set(None, node, Parameters::Copy(copy.get()?)) }
    call fn cuGraphMemsetNodeSetParams(node: Handle, parameters: In<MemsetNodeParams>) {
        set(None, node, Parameters::Set(parameters.get()?))
    }
    call fn cuGraphHostNodeSetParams(node: Handle, parameters: In<HostNodeParams>) {
        set(None, node, Parameters::Host(parameters.get()?))
    }
    call fn cuGraphEventRecordNodeSetEvent(node: Handle, event: Handle) { set(None, node, Parameters::Record(event)) }
    call fn cuGraphEventWaitNodeSetEvent(node: Handle, event: Handle) { set(None, node, Parameters::Wait(event)) }
    call fn cuGraphBatchMemOpNodeSetParams(node: Handle, parameters: In<BatchMemOpNodeParams>) {
        set(None, node, Parameters::Values(parameters.get()?))
    }
    call fn cuGraphNodeSetParams(node: Handle, parameters: In<u32>) { set(None, node, read(parameters)?) }
    call fn cuGraphExecKernelNodeSetParams(exec: Handle, node: Handle, parameters: In<KernelNodeParamsV1>) {
        set(Some(exec), node, Parameters::Kernel(parameters.get()?))
    }
    call fn cuGraphExecKernelNodeSetParams_v2(exec: Handle, node: Handle, parameters: In<KernelNodeParams>) {
        set(Some(exec), node, Parameters::Kernel(first_version(parameters.get()?)))
    }
    call fn cuGraphExecMemcpyNodeSetParams(exec: Handle, node: Handle, copy: In<Memcpy3D>, _context: Handle) {
        set(Some(exec), node, Parameters::Copy(copy.get()?))
    }
    call fn cuGraphExecMemsetNodeSetParams(exec: Handle, node: Handle, parameters: In<MemsetNodeParams>, _context: Handle) {
        set(Some(exec), node, Parameters::Set(parameters.get()?))
    }
    call fn cuGraphExecHostNodeSetParams(exec: Handle, node: Handle, parameters: In<HostNodeParams>) {
        set(Some(exec), node, Parameters::Host(parameters.get()?))
    }
    call fn cuGraphExecChildGraphNodeSetParams(exec: Handle, node: Handle, child: Handle) {
        set(Some(exec), node, Parameters::Child(child))
    }
    call fn cuGraphExecEventRecordNodeSetEvent(exec: Handle, node: Handle, event: Handle) {
        set(Some(exec), node, Parameters::Record(event))
    }
    call fn cuGraphExecEventWaitNodeSetEvent(exec: Handle, node: Handle, event: Handle) {
        set(Some(exec), node, Parameters::Wait(event))
    }
    call fn cuGraphExecBatchMemOpNodeSetParams(exec: Handle, node: Handle, parameters: In<BatchMemOpNodeParams>) {
        set(Some(exec), node, Parameters::Values(parameters.get()?))
    }
    call fn cuGraphExecNodeSetParams(exec: Handle, node: Handle, parameters: In<u32>) {
        set(Some(exec), node, read(parameters)?)
    }
    call fn cuGraphNodeSetEnabled(exec: Handle, node: Handle, enabled: u32) {
        check_can_rest(node)?;
        let found = arena::get::<Node>(node)?;
        let (id, _) = exec::having(exec, found)?;
        lane::ask(&GraphEnable { exec: id, node: found.number, enabled: enabled != 0 })?;
        exec::set_enabled(exec, found.number, enabled != 0)
    }
    call fn cuGraphNodeGetEnabled(exec: Handle, node: Handle, out: Out<u32>) {
        check_can_rest(node)?;
        let found = arena::get::<Node>(node)?;
        exec::having(exec, found)?;
        out.put(exec::is_enabled(exec, found.number)?.into())
    }
}
