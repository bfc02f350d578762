//! What calls say of nodes, turned into what the worker is told.

use rekindle_cuda::types::{
    BatchMemOpNodeParams, ConditionalNodeParams, HostNodeParams, KernelNodeParams, KernelNodeParamsV1,
    MemAllocNodeParams, Memcpy3D, MemsetNodeParams,
};
use rekindle_cuda::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
use rekindle_device::{Launch, MemorySet, ValueOperation};
use rekindle_protocol::operation::NodeAction;

use crate::abi::{Handle, In, Out, Result};
use crate::copy::{set, strided};
use crate::event::Event;
use crate::host_call::{self, Function};
use crate::launch::{self, Pointers};
use crate::module::Kernel;
use crate::{arena, stream_value};

use super::NodeResource;

// `CUgraphNodeType`.
pub const KERNEL: u32 = 0;
pub const MEMCPY: u32 = 1;
pub const MEMSET: u32 = 2;
pub const HOST: u32 = 3;
pub const CHILD: u32 = 4;
pub const EMPTY: u32 = 5;
pub const WAIT_EVENT: u32 = 6;
pub const RECORD_EVENT: u32 = 7;
pub const ALLOCATE: u32 = 10;
pub const FREE: u32 = 11;
pub const VALUES: u32 = 12;
pub const CONDITIONAL: u32 = 13;

/// What a call says of a node.
pub enum Parameters {
    Kernel(KernelNodeParamsV1),
    Copy(Memcpy3D),
    Set(MemsetNodeParams),
    Host(HostNodeParams),
    Child(Child),
    Empty,
    Wait(Handle),
    Record(Handle),
    Values(BatchMemOpNodeParams),
    Allocate(Out<MemAllocNodeParams>),
    Free(u64),
    Conditional(Out<ConditionalNodeParams>),
}

/// The graph of a child node.
#[derive(Clone, Copy)]
pub enum Child {
    /// The node gets a copy of it.
    Copied(Handle),
    /// It becomes the graph in the node.
    Moved(Handle),
}

/// `CUDA_CHILD_GRAPH_NODE_PARAMS`: a graph and who owns it.
fn child(parameters: In<Handle>) -> Result<Child> {
    let owner = In(parameters.0.wrapping_add(1).cast::<u32>()).get()?;
    let graph = parameters.get()?;
    match owner {
        0 => Ok(Child::Copied(graph)),
        1 => Ok(Child::Moved(graph)),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// `CUgraphNodeParams`: the type, then after 16 bytes the parameters of that type.
pub fn read(parameters: In<u32>) -> Result<Parameters> {
    /// A memory copy's flags and context come before its box.
    const BEFORE_COPY: usize = 16;
    let kind = parameters.get()?;
    let inner = parameters.0.wrapping_byte_add(16);
    Ok(match kind {
        KERNEL => Parameters::Kernel(first_version(In(inner.cast()).get()?)),
        MEMCPY => Parameters::Copy(In(inner.wrapping_byte_add(BEFORE_COPY).cast()).get()?),
        MEMSET => Parameters::Set(In(inner.cast()).get()?),
        HOST => Parameters::Host(In(inner.cast()).get()?),
        CHILD => Parameters::Child(child(In(inner.cast()))?),
        EMPTY => Parameters::Empty,
        WAIT_EVENT => Parameters::Wait(In(inner.cast()).get()?),
        RECORD_EVENT => Parameters::Record(In(inner.cast()).get()?),
        ALLOCATE => Parameters::Allocate(Out(inner.cast_mut().cast())),
        FREE => Parameters::Free(In(inner.cast()).get()?),
        VALUES => Parameters::Values(In(inner.cast()).get()?),
        CONDITIONAL => Parameters::Conditional(Out(inner.cast_mut().cast())),
        _ => return Err(CUDA_ERROR_NOT_SUPPORTED),
    })
}

/// What the worker is told, and what the node uses in this process.
pub struct NodeRequest {
    pub action: NodeAction,
    pub kept: Option<NodeResource>,
}

impl From<NodeAction> for NodeRequest {
    fn from(action: NodeAction) -> NodeRequest {
        NodeRequest { action, kept: None }
    }
}

/// Checks what a call says of a node of a graph on the device; not for nodes with graphs or memory.
pub fn told(parameters: Parameters, device: u8) -> Result<NodeRequest> {
    Ok(match parameters {
        Parameters::Kernel(kernel) => kernel_action(&kernel, device)?.into(),
        Parameters::Copy(copy) => {
            let (action, kept) = strided::for_graph(&copy)?;
            NodeRequest { action, kept }
        }
        Parameters::Set(fill) => NodeAction::Set(fill_of(fill)?).into(),
        Parameters::Host(host) => {
            let function = host.function.ok_or(CUDA_ERROR_INVALID_VALUE)?;
            let kept = host_call::keep(Function::Plain(function, host.data as usize));
            NodeRequest { action: NodeAction::Call { token: kept.token }, kept: Some(kept) }
        }
        Parameters::Empty => NodeAction::Empty.into(),
        Parameters::Wait(event) => NodeAction::Wait { event: event_of(event, device)? }.into(),
        Parameters::Record(event) => {
            let number = event_of(event, device)?;
            arena::get::<Event>(event)?.note_recorded();
            NodeAction::Record { event: number }.into()
        }
        Parameters::Values(batch) => NodeAction::Values(values(&batch)?).into(),
        Parameters::Child(_) | Parameters::Allocate(_) | Parameters::Free(_) | Parameters::Conditional(_) => {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
    })
}

fn event_of(event: Handle, device: u8) -> Result<u32> {
    let event = arena::get::<Event>(event)?;
    if event.is_interprocess() {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    if event.is_on(device) { Ok(event.id) } else { Err(CUDA_ERROR_INVALID_HANDLE) }
}

/// The kernel, its launch and its packed parameters, checked for a graph of the device.
fn kernel_action(p: &KernelNodeParamsV1, device: u8) -> Result<NodeAction> {
    let found = arena::get::<Kernel>(Handle::from(p.function))?.here()?;
    launch::check(found, p.grid, p.block, p.shared)?;
    if device != found.device {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    let launch = Launch { grid: p.grid, block: p.block, shared: p.shared, ..Launch::default() };
    launch::with_parameters(found, p.parameters as Pointers, p.extra as Pointers, |packed| {
        Ok(NodeAction::Kernel { function: found.id, launch, parameters: packed.to_vec() })
    })
}

pub fn first_version(p: KernelNodeParams) -> KernelNodeParamsV1 {
    let KernelNodeParams { function, grid, block, shared, parameters, extra, kernel, .. } = p;
    let function = if function.is_null() { kernel } else { function };
    KernelNodeParamsV1 { function, grid, block, shared, parameters, extra }
}

fn fill_of(p: MemsetNodeParams) -> Result<MemorySet> {
    let element = u8::try_from(p.element).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    let (width, height) = (p.width as u64, p.height as u64);
    let set = MemorySet { address: p.address, pitch: p.pitch as u64, value: p.value, element, width, height };
    set::check(set)?.ok_or(CUDA_ERROR_INVALID_VALUE)
}

fn values(batch: &BatchMemOpNodeParams) -> Result<Vec<ValueOperation>> {
    if batch.flags != 0 || batch.count == 0 || batch.count > 256 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let words = In(batch.operations);
    words.slice(batch.count as usize)?.iter().map(stream_value::operation).collect()
}
