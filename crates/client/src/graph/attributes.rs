//! Attributes of kernel nodes: those of a launch that a node can have.

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_device::Launch;
use rekindle_protocol::operation::NodeAction;

use crate::abi::{Handle, In, Out, Result};
use crate::export::exports;

use super::change::set_told;
use super::read::action;

const COOPERATIVE: u32 = 2;
/// What a value has bytes for.
const VALUE: usize = 64;

/// `CU_LAUNCH_ATTRIBUTE_*` that are valid for nodes and hold no handles.
fn check(attribute: u32) -> Result<()> {
    match attribute {
        1 | COOPERATIVE | 4 | 5 | 8 | 9 | 10 | 11 | 14 => Ok(()),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

fn launch_of(node: Handle) -> Result<Launch> {
    match action(node)? {
        NodeAction::Kernel { launch, .. } => Ok(launch),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// Changes how a node launches its kernel.
fn change(node: Handle, change: impl FnOnce(&mut Launch)) -> Result<()> {
    let NodeAction::Kernel { function, mut launch, parameters } = action(node)? else {
        return Err(CUDA_ERROR_INVALID_VALUE);
    };
    change(&mut launch);
    set_told(None, node, NodeAction::Kernel { function, launch, parameters }.into())
}

exports! {
    call fn cuGraphKernelNodeGetAttribute(node: Handle, attribute: u32, out: Out<[u8; VALUE]>) {
        out.check()?;
        check(attribute)?;
        let launch = launch_of(node)?;
        let mut value = [0; VALUE];
        if attribute == COOPERATIVE {
            value[0] = launch.cooperative.into();
        }
        if let Some((_, known)) = launch.attributes.0.iter().find(|(id, _)| *id == attribute) {
            let length = known.len().min(VALUE);
            value[..length].copy_from_slice(&known[..length]);
        }
        out.put(value)
    }
    call fn cuGraphKernelNodeSetAttribute(node: Handle, attribute: u32, value: In<[u8; VALUE]>) {
        check(attribute)?;
        let value = value.get()?;
        change(node, |launch| {
            if attribute == COOPERATIVE {
                launch.cooperative = value[..4] != [0; 4];
                return;
            }
            launch.attributes.0.retain(|(id, _)| *id != attribute);
            launch.attributes.0.push((attribute, value.to_vec()));
        })
    }
    call fn cuGraphKernelNodeCopyAttributes(to: Handle, from: Handle) {
        let Launch { cooperative, attributes, .. } = launch_of(from)?;
        change(to, |launch| (launch.cooperative, launch.attributes) = (cooperative, attributes))
    }
}
