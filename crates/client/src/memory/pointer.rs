//! What a pointer is.

use rekindle_cuda::types::memory_type;
use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};

use crate::abi::{In, Out, Result};
use crate::export::exports;

use super::map::{self, Allocation, Purpose};

/// `CUpointer_attribute`.
mod attribute {
    pub const CONTEXT: u32 = 1;
    pub const MEMORY_TYPE: u32 = 2;
    pub const DEVICE_POINTER: u32 = 3;
    pub const HOST_POINTER: u32 = 4;
    pub const P2P_TOKENS: u32 = 5;
    pub const SYNC_MEMOPS: u32 = 6;
    pub const BUFFER_ID: u32 = 7;
    pub const IS_MANAGED: u32 = 8;
    pub const DEVICE_ORDINAL: u32 = 9;
    pub const IS_LEGACY_IPC_CAPABLE: u32 = 10;
    pub const RANGE_START: u32 = 11;
    pub const RANGE_SIZE: u32 = 12;
    pub const MAPPED: u32 = 13;
    pub const ALLOWED_HANDLE_TYPES: u32 = 14;
    pub const IS_RDMA_CAPABLE: u32 = 15;
    pub const ACCESS_FLAGS: u32 = 16;
    pub const POOL: u32 = 17;
    pub const MAPPING_SIZE: u32 = 18;
    pub const MAPPING_BASE: u32 = 19;
    pub const MEMORY_BLOCK_ID: u32 = 20;
    pub const IS_DECOMPRESS_CAPABLE: u32 = 21;
}
use attribute::*;

/// An attribute's value in its own width.
enum Value {
    Int(u32),
    Long(u64),
    /// One byte.
    Flag(bool),
}

fn is_host(allocation: &Allocation) -> bool {
    matches!(
        allocation.purpose,
        Purpose::Pinned { .. } | Purpose::Registered { .. } | Purpose::MappedHost { .. }
    )
}

fn value(which: u32, address: u64, allocation: &Allocation) -> Result<Value> {
    let Allocation { purpose, .. } = *allocation;
    let host = is_host(allocation);
    Ok(match which {
        CONTEXT if allocation.context_handle.is_null() => return Err(CUDA_ERROR_INVALID_VALUE),
        CONTEXT => Value::Long(allocation.context_handle.0 as u64),
        MEMORY_TYPE => Value::Int(if host { memory_type::HOST } else { memory_type::DEVICE }),
        DEVICE_POINTER => Value::Long(address),
        HOST_POINTER if host || purpose == Purpose::Managed => Value::Long(address),
        HOST_POINTER => return Err(CUDA_ERROR_INVALID_VALUE),
        P2P_TOKENS => return Err(CUDA_ERROR_NOT_SUPPORTED),
        SYNC_MEMOPS => Value::Int(0),
        BUFFER_ID | MEMORY_BLOCK_ID => Value::Long(allocation.id),
        IS_MANAGED => Value::Int((purpose == Purpose::Managed).into()),
        DEVICE_ORDINAL => Value::Int(allocation.device.into()),
        IS_LEGACY_IPC_CAPABLE => Value::Flag(purpose == Purpose::Device),
        IS_RDMA_CAPABLE | IS_DECOMPRESS_CAPABLE => Value::Flag(false),
        RANGE_START | MAPPING_BASE => Value::Long(allocation.address),
        RANGE_SIZE | MAPPING_SIZE => Value::Long(allocation.bytes),
        MAPPED => Value::Flag(true),
        ALLOWED_HANDLE_TYPES => Value::Long(0),
        ACCESS_FLAGS => Value::Int(3),
        POOL => match purpose {
            Purpose::Pooled { pool } | Purpose::PoolImport { pool } => Value::Long(pool.0 as u64),
            _ => Value::Long(0),
        },
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    })
}

/// What `cuPointerGetAttributes` says of memory that CUDA does not know: nothing, but for the device -2.
fn unknown(which: u32) -> Result<Value> {
    Ok(match which {
        DEVICE_ORDINAL => Value::Int(-2i32 as u32),
        MEMORY_TYPE | SYNC_MEMOPS | IS_MANAGED | ACCESS_FLAGS => Value::Int(0),
        MAPPED | IS_LEGACY_IPC_CAPABLE | IS_RDMA_CAPABLE | IS_DECOMPRESS_CAPABLE => Value::Flag(false),
        CONTEXT..=MEMORY_BLOCK_ID => Value::Long(0),
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    })
}

fn write(out: Out<u8>, value: Value) -> Result<()> {
    match value {
        Value::Int(value) => Out(out.0.cast()).put(value),
        Value::Long(value) => Out(out.0.cast()).put(value),
        Value::Flag(value) => out.put(value.into()),
    }
}

exports! {
    ready fn cuPointerGetAttribute(out: Out<u8>, which: u32, address: u64) {
        out.check()?;
        let allocation = map::find(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        write(out, value(which, address, &allocation)?)
    }
    ready fn cuPointerGetAttributes(count: u32, which: In<u32>, outs: In<*mut u8>, address: u64) {
        let allocation = map::find(address);
        let outs = outs.slice(count as usize)?;
        for (which, out) in which.slice(count as usize)?.iter().zip(outs) {
            let value = match &allocation {
                Some(allocation) => value(*which, address, allocation).or_else(|_| unknown(*which))?,
                None => unknown(*which)?,
            };
            write(Out(*out), value)?;
        }
        Ok(())
    }
    ready fn cuPointerSetAttribute(value: In<u32>, which: u32, address: u64) {
        value.get()?;
        map::find(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if which == SYNC_MEMOPS { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }
}
