//! Memory of the host that is mapped here, and that a GPU may know.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};
use rekindle_device::{Access, Device, Result};

const PAGE: u64 = 4096;

/// Memory that a GPU knows, which forgets it when this is dropped: no copy from or to it is under way by then.
pub(crate) struct Registration {
    gpu: Arc<dyn Device>,
    address: u64,
}

impl Registration {
    pub(crate) fn new(
        gpu: &Arc<dyn Device>,
        address: u64,
        bytes: u64,
        access: Access,
    ) -> Result<Registration> {
        gpu.bind()?;
        match access {
            Access::ReadWrite => gpu.host_register(address, bytes)?,
            _ => gpu.host_register_read_only(address, bytes)?,
        }
        Ok(Registration { gpu: gpu.clone(), address })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Err(code) = self.gpu.bind().and_then(|()| self.gpu.host_unregister(self.address)) {
            log::info!("memory of the host stays pinned: {code}");
        }
    }
}

/// Memory that GPUs are to forget, a little at a time: a driver lets nobody give a GPU work meanwhile.
pub(crate) trait Pinned: Send {
    /// Has the GPUs, which have nothing to do, forget some of it; false if they know nothing of it any more.
    fn unpin_some(&mut self) -> bool;
}

impl Pinned for HostMemory {
    fn unpin_some(&mut self) -> bool {
        self.registration.take().is_some()
    }
}

/// Nothing in this process refers to it but copies, which its owner waits for before it is dropped.
pub(crate) struct HostMemory {
    // Before the mapping, so that the GPU has forgotten it when that goes.
    registration: Option<Registration>,
    mapping: MmapRaw,
    access: Access,
}

impl HostMemory {
    /// Maps a file whose size does not change.
    pub(crate) fn map(file: &OwnedFd, bytes: u64, access: Access) -> io::Result<HostMemory> {
        let mut options = MmapOptions::new();
        options.len(bytes as usize);
        let mapping = match access {
            Access::ReadWrite => options.map_raw(file)?,
            _ => options.map_raw_read_only(file)?,
        };
        Ok(HostMemory { registration: None, mapping, access })
    }

    /// Memory of this process's own.
    pub(crate) fn anonymous(bytes: u64) -> io::Result<HostMemory> {
        let mapping = MmapOptions::new().len(bytes as usize).map_anon()?.into();
        Ok(HostMemory { registration: None, mapping, access: Access::ReadWrite })
    }

    /// As [`map`](Self::map), known to a GPU if that takes it.
    pub(crate) fn map_for(
        file: &OwnedFd,
        bytes: u64,
        access: Access,
        gpu: &Arc<dyn Device>,
    ) -> io::Result<HostMemory> {
        let mut memory = HostMemory::map(file, bytes, access)?;
        if let Err(code) = memory.register(gpu) {
            log::info!("an array or data is copied by memory that the GPU does not know: {code}");
        }
        Ok(memory)
    }

    /// Has a GPU know it, so that it can use it where it is.
    pub(crate) fn register(&mut self, gpu: &Arc<dyn Device>) -> Result<()> {
        let whole = self.bytes().next_multiple_of(PAGE);
        self.registration = Some(Registration::new(gpu, self.address(), whole, self.access)?);
        Ok(())
    }

    pub(crate) fn address(&self) -> u64 {
        self.mapping.as_ptr() as u64
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.mapping.len() as u64
    }

    pub(crate) fn is_registered(&self) -> bool {
        self.registration.is_some()
    }
}
