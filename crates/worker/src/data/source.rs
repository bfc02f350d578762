//! The memory daemon's memory, from which the GPU copies by itself: it is mapped here, and the driver knows what of it is there.
//!
//! To have the driver know memory that is not there yet would bring and clear each page on one thread. What it knows, it knows
//! until the GPU has nothing to do: to forget it takes the driver a while and lets nobody else in.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::{Advice, MmapOptions, MmapRaw};
use rekindle_cuda::CUDA_ERROR_NOT_SUPPORTED;
use rekindle_device::{Access, Device, Result};
use rekindle_protocol::fault;

use crate::host_memory::{Pinned, Registration};

const PAGE: u64 = 4096;

pub(super) struct Source {
    gpu: Arc<dyn Device>,
    // Before the mapping, so that the GPU has forgotten all when that goes.
    known: Mutex<Vec<Registration>>,
    mapping: MmapRaw,
    file: File,
    /// The driver does not take it.
    is_refused: AtomicBool,
    /// Open for as long as the memory is in use.
    _in_use: Option<OwnedFd>,
}

impl Pinned for Source {
    fn unpin_some(&mut self) -> bool {
        self.known.get_mut().unwrap_or_else(PoisonError::into_inner).pop().is_some()
    }
}

impl Source {
    /// Maps a file whose size does not change.
    pub(super) fn new(
        gpu: &Arc<dyn Device>,
        file: OwnedFd,
        bytes: u64,
        in_use: Option<OwnedFd>,
    ) -> io::Result<Source> {
        let file = File::from(file);
        let mapping = MmapOptions::new().len(bytes as usize).map_raw_read_only(&file)?;
        let (gpu, known, is_refused) = (gpu.clone(), Mutex::default(), AtomicBool::new(false));
        Ok(Source { gpu, known, mapping, file, is_refused, _in_use: in_use })
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn bytes(&self) -> u64 {
        self.mapping.len() as u64
    }

    /// Whether the driver may take what is there.
    pub(super) fn can_be_known(&self) -> bool {
        !self.is_refused.load(Ordering::Relaxed)
    }

    /// Has the driver know some that is there, from a page's start on: where the GPU can read it.
    pub(super) fn know(&self, offset: u64, bytes: u64) -> Result<u64> {
        let address = self.mapping.as_ptr() as u64 + offset;
        // What this process finds by itself, the driver need not look for while it lets nobody else in.
        let _ = self.mapping.advise_range(Advice::PopulateRead, offset as usize, bytes as usize);
        let known = fault::point("data-register")
            .map_err(|_| CUDA_ERROR_NOT_SUPPORTED)
            .and_then(|()| Registration::new(&self.gpu, address, bytes.next_multiple_of(PAGE), Access::Read));
        let known = known.inspect_err(|code| {
            if !self.is_refused.swap(true, Ordering::Relaxed) {
                log::info!("data is copied by memory that the GPU knows already: {code}");
            }
        })?;
        self.known.lock().unwrap_or_else(PoisonError::into_inner).push(known);
        Ok(address)
    }
}
