//! Every allocation by its address.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_protocol::operation::{IpcMemoryClose, MemoryFree, PhysicalUnmap};

use crate::abi::{Handle, Result};
use crate::{context, lane};

use super::{host_memory, pinned};

/// What an address range is, and how it is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Device,
    /// From a memory pool.
    Pooled {
        pool: Handle,
    },
    /// `cuMemHostAlloc`, with its flags.
    Pinned {
        flags: u32,
    },
    /// A graph's.
    Graph,
    Managed,
    /// `cuMemHostRegister`, with its flags; `shared` when its pages are now a shared file's.
    Registered {
        flags: u32,
        shared: bool,
    },
    /// A physical allocation mapped by the program.
    Mapped {
        handle: Handle,
    },
    /// One whose memory is the host's.
    MappedHost {
        handle: Handle,
    },
    /// Another process's, opened by `cuIpcOpenMemHandle`.
    Imported,
    /// Another process's, from a pool of it.
    PoolImport {
        pool: Handle,
    },
    /// A variable of a module.
    Global,
}

impl Purpose {
    /// The handle of a mapping of the program's.
    pub fn handle(&self) -> Option<Handle> {
        match self {
            Purpose::Mapped { handle } | Purpose::MappedHost { handle } => Some(*handle),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Allocation {
    pub address: u64,
    pub bytes: u64,
    pub device: u8,
    /// The context's id and handle.
    pub context: u64,
    pub context_handle: Handle,
    pub purpose: Purpose,
    /// `CU_POINTER_ATTRIBUTE_BUFFER_ID`: no other allocation ever has it.
    pub id: u64,
}

static MAP: RwLock<BTreeMap<u64, Allocation>> = RwLock::new(BTreeMap::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

fn read() -> RwLockReadGuard<'static, BTreeMap<u64, Allocation>> {
    MAP.read().unwrap_or_else(PoisonError::into_inner)
}

fn write() -> RwLockWriteGuard<'static, BTreeMap<u64, Allocation>> {
    MAP.write().unwrap_or_else(PoisonError::into_inner)
}

/// Notes an allocation of the current context's.
pub fn note(address: u64, bytes: u64, purpose: Purpose) -> Result<()> {
    let context = context::current_if_any().map(|context| context.owner());
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let allocation = Allocation {
        address,
        bytes,
        device: context.map_or(0, |c| c.device),
        context: context.map_or(0, |c| c.id),
        context_handle: context.map_or(Handle::NULL, |c| c.handle),
        purpose,
        id,
    };
    write().insert(address, allocation);
    Ok(())
}

/// Notes a mapping of a physical allocation, which lies on a device whatever context is current.
pub fn note_on(device: u8, address: u64, bytes: u64, purpose: Purpose) {
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let allocation =
        Allocation { address, bytes, device, context: 0, context_handle: Handle::NULL, purpose, id };
    write().insert(address, allocation);
}

/// Notes a module's variable; it may be asked for many times.
pub fn note_global(device: u8, address: u64, bytes: u64) {
    if find(address).is_none() {
        note_on(device, address, bytes, Purpose::Global);
    }
}

/// The allocation that holds an address.
pub fn find(address: u64) -> Option<Allocation> {
    let map = read();
    let (_, allocation) = map.range(..=address).next_back()?;
    (address - allocation.address < allocation.bytes.max(1)).then_some(*allocation)
}

/// The allocation that begins at an address.
pub fn at(address: u64) -> Option<Allocation> {
    read().get(&address).copied()
}

/// Takes out the allocation that begins at `address` if `which` says so.
pub fn take(address: u64, which: impl Fn(&Allocation) -> bool) -> Result<Allocation> {
    let mut map = write();
    match map.get(&address) {
        Some(allocation) if which(allocation) => map.remove(&address).ok_or(CUDA_ERROR_INVALID_VALUE),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// Changes what is noted of an allocation.
pub fn update(address: u64, change: impl FnOnce(&mut Allocation)) {
    if let Some(allocation) = write().get_mut(&address) {
        change(allocation);
    }
}

/// Everything that lies within a range.
pub fn within(address: u64, bytes: u64) -> Vec<Allocation> {
    read().range(address..address.saturating_add(bytes)).map(|(_, a)| *a).collect()
}

/// Gives back what `which` says.
pub fn forget(which: impl Fn(&Allocation) -> bool) -> Result<()> {
    let taken: Vec<Allocation> = {
        let mut map = write();
        let taken = map.values().filter(|a| which(a)).copied().collect();
        map.retain(|_, a| !which(a));
        taken
    };
    for allocation in taken {
        let Allocation { address, bytes, device, .. } = allocation;
        // The device may have failed: what cannot be given back is gone with it.
        let _ = match allocation.purpose {
            Purpose::Device | Purpose::Pooled { .. } => lane::ask(&MemoryFree { device, address }),
            Purpose::Mapped { .. } => lane::ask(&PhysicalUnmap { address, bytes }),
            Purpose::MappedHost { .. } => host_memory::unmap(address, bytes, false).map(drop),
            Purpose::Imported | Purpose::PoolImport { .. } => {
                lane::ask(&IpcMemoryClose { device, address, all: true }).map(drop)
            }
            Purpose::Pinned { .. } | Purpose::Managed => pinned::release(allocation),
            Purpose::Registered { .. } | Purpose::Global | Purpose::Graph => Ok(()),
        };
    }
    Ok(())
}
