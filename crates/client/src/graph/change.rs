//! Changing what nodes do: in a graph, for whatever is made of it later, or in an instance.

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_cuda::types::{
    BatchMemOpNodeParams, HostNodeParams, KernelNodeParams, KernelNodeParamsV1, Memcpy3D, MemsetNodeParams,
};
use rekindle_protocol::operation::{GraphEnable, GraphSet, GraphSetChild, GraphSetChildInside, NodesOf};

use crate::abi::{Handle, In, Out, Result};
use crate::export::exports;
use crate::{arena, lane};

use super::exec::{self, ExecNode};
use super::parameters::{Child, KERNEL, MEMCPY, MEMSET, NodeRequest, Parameters, first_version, read, told};
use super::{Graph, Node};

/// A node of its graph, or of the instance that is given.
struct NodeLocation {
    of: NodesOf,
    path: Vec<(u32, u32)>,
    number: u32,
    device: u8,
}

fn place(instance: Option<Handle>, node: Handle) -> Result<NodeLocation> {
    let node = arena::get::<Node>(node)?;
    let number = node.number;
    match instance {
        Some(instance) => {
            let ExecNode { id, device, path } = exec::having(instance, node)?;
            Ok(NodeLocation { of: NodesOf::Exec(id), path, number, device })
        }
        None => {
            let graph = arena::get::<Graph>(node.graph)?;
            graph.refresh(node.graph)?;
            Ok(NodeLocation { of: NodesOf::Graph(graph.id), path: Vec::new(), number, device: node.device })
        }
    }
}

/// A node becomes what was told; what it used before is let go of in time.
pub(super) fn set_told(instance: Option<Handle>, node: Handle, told: NodeRequest) -> Result<()> {
    let NodeLocation { of, path, number, device } = place(instance, node)?;
    let NodeRequest { action, kept } = told;
    let is_inside = !path.is_empty();
    lane::ask(&GraphSet { of, path, node: number, action })?;
    let replaced = match instance {
        Some(instance) => exec::keep(instance, (!is_inside).then_some(number), kept)?,
        None => {
            let graph = arena::get::<Graph>(arena::get::<Node>(node)?.graph)?;
            graph.state().held.keep(number, kept)
        }
    };
    replaced.let_go(device);
    Ok(())
}

fn set_child(instance: Option<Handle>, node: Handle, child: Handle) -> Result<()> {
    let NodeLocation { of, path, number, .. } = place(instance, node)?;
    let found = arena::get::<Graph>(child)?;
    // One that is being captured has no end yet.
    found.refresh(child)?;
    match of {
        NodesOf::Exec(exec) if !path.is_empty() => {
            lane::ask(&GraphSetChildInside { exec, path, node: number, child: found.id })?;
        }
        of => lane::ask(&GraphSetChild { of, node: number, child: found.id })?,
    }
    let held = found.all_held();
    match instance {
        Some(instance) => exec::hold(instance, held),
        None => {
            let parent = arena::get::<Graph>(arena::get::<Node>(node)?.graph)?;
            parent.state().held.extend(held);
            let inside = parent.state().inside.get(&(number, 0)).copied();
            inside.map_or(Ok(()), |inside| arena::get::<Graph>(inside)?.begin_anew())
        }
    }
}

fn set(instance: Option<Handle>, node: Handle, parameters: Parameters) -> Result<()> {
    match parameters {
        Parameters::Child(Child::Copied(child)) => set_child(instance, node, child),
        Parameters::Child(Child::Moved(_)) | Parameters::Empty => Err(CUDA_ERROR_INVALID_VALUE),
        other => {
            let device = place(instance, node)?.device;
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
        set(Some(exec), node, Parameters::Child(Child::Copied(child)))
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
        let ExecNode { id, path, .. } = exec::having(exec, found)?;
        lane::ask(&GraphEnable { exec: id, path, node: found.number, enabled: enabled != 0 })?;
        exec::set_enabled(exec, node, enabled != 0)
    }
    call fn cuGraphNodeGetEnabled(exec: Handle, node: Handle, out: Out<u32>) {
        check_can_rest(node)?;
        let found = arena::get::<Node>(node)?;
        exec::having(exec, found)?;
        out.put(exec::is_enabled(exec, node)?.into())
    }
}
