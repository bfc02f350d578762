//! Physical device memory: an anonymous file (memfd), counted against its device's size.
//!
//! The file outlives every mapping and, through an exported descriptor, this process. Importing a descriptor of
//! memory that this process already has finds the same [`Physical`], so it is counted once.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OPERATING_SYSTEM, CUDA_ERROR_OUT_OF_MEMORY};
use rekindle_device::Result;

use crate::common::Common;

/// How much memory a device has, and how much of it is taken.
pub(crate) struct Budget {
    total: u64,
    used: Mutex<u64>,
    /// Other processes have the memory, too.
    common: Option<Common>,
}

impl Budget {
    pub fn new(total: u64, common: Option<Common>) -> Arc<Budget> {
        Arc::new(Budget { total, used: Mutex::new(0), common })
    }

    pub fn free(&self) -> u64 {
        let others = self.common.as_ref().map_or(0, Common::others);
        self.total.saturating_sub(*self.used.lock()).saturating_sub(others)
    }

    /// Whether other processes take from it too.
    pub fn is_common(&self) -> bool {
        self.common.is_some()
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    /// Takes `bytes` until the answer is dropped.
    pub fn take(self: &Arc<Budget>, bytes: u64) -> Result<Share> {
        let mut used = self.used.lock();
        let wanted = used.checked_add(bytes).filter(|wanted| *wanted <= self.total);
        let wanted = wanted.ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        if let Some(common) = &self.common
            && !common.note(wanted, self.total).map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?
        {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        *used = wanted;
        Ok(Share { budget: Arc::clone(self), bytes })
    }
}

/// A part of a [`Budget`].
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut used = self.budget.used.lock();
        *used -= self.bytes;
        if let Some(Err(error)) = self.budget.common.as_ref().map(|common| common.give_back(*used)) {
            log::error!("what was given back of the GPU's memory is not noted: {error}");
        }
    }
}

pub(crate) struct Physical {
    file: File,
    bytes: u64,
    /// The file's number: what tells whether two descriptors are one memory.
    inode: u64,
    _share: Share,
}

impl Physical {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub fn export(&self) -> Result<OwnedFd> {
        self.file.try_clone().map(OwnedFd::from).map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)
    }
}

/// Every physical memory of this process that still lives.
#[derive(Default)]
pub(crate) struct Memories {
    live: Mutex<Vec<Weak<Physical>>>,
}

impl Memories {
    pub fn create(&self, bytes: u64, budget: &Arc<Budget>) -> Result<Arc<Physical>> {
        let share = budget.take(bytes)?;
        // SAFETY: the name is a NUL-terminated constant.
        let fd = unsafe { libc::memfd_create(c"rekindle-device-memory".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(CUDA_ERROR_OPERATING_SYSTEM);
        }
        // SAFETY: the call above made this descriptor, and nothing else owns it.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(bytes).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        self.keep(file, bytes, share)
    }

    pub fn import(
        &self,
        descriptor: BorrowedFd<'_>,
        bytes: u64,
        budget: &Arc<Budget>,
    ) -> Result<Arc<Physical>> {
        let file = File::from(descriptor.try_clone_to_owned().map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?);
        let metadata = file.metadata().map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        if metadata.len() != bytes || !is_memory(&file) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let known =
            self.live.lock().iter().filter_map(Weak::upgrade).find(|known| known.inode == metadata.ino());
        match known {
            Some(known) => Ok(known),
            None => self.keep(file, bytes, budget.take(bytes)?),
        }
    }

    fn keep(&self, file: File, bytes: u64, share: Share) -> Result<Arc<Physical>> {
        let inode = file.metadata().map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?.ino();
        let physical = Arc::new(Physical { file, bytes, inode, _share: share });
        let mut live = self.live.lock();
        live.retain(|weak| weak.strong_count() > 0);
        live.push(Arc::downgrade(&physical));
        Ok(physical)
    }
}

/// Only a memfd can be imported: its inode numbers are those of one kernel-internal file system.
fn is_memory(file: &File) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    link.is_ok_and(|link| link.to_string_lossy().starts_with("/memfd:"))
}
