//! Descriptors of memory that was imported.
//!
//! The driver exports memory only from the process that created it: exporting an imported handle fails with
//! `CUDA_ERROR_INVALID_VALUE`. The descriptor that it was imported from stands for the same memory, so a copy of that
//! is kept for as long as the handle is held, and is what an export gives.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rekindle_cuda::CUDA_ERROR_OPERATING_SYSTEM;
use rekindle_device::{Memory, Result};

#[derive(Default)]
pub struct Imported(Mutex<HashMap<u64, Import>>);

struct Import {
    descriptor: OwnedFd,
    /// The driver may give one handle for several imports of one memory; each is released by itself.
    holders: u32,
}

impl Imported {
    pub fn keep(&self, memory: Memory, descriptor: OwnedFd) {
        self.lock().entry(memory.0).or_insert(Import { descriptor, holders: 0 }).holders += 1;
    }

    /// A further descriptor of this memory; none if it was created here.
    pub fn export(&self, memory: Memory) -> Result<Option<OwnedFd>> {
        self.lock().get(&memory.0).map(|import| copy(import.descriptor.as_fd())).transpose()
    }

    pub fn release(&self, memory: Memory) {
        let mut imports = self.lock();
        if let Some(import) = imports.get_mut(&memory.0) {
            import.holders -= 1;
            if import.holders == 0 {
                imports.remove(&memory.0);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Import>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A further descriptor of what this one stands for, closed by `exec`.
pub fn copy(descriptor: BorrowedFd<'_>) -> Result<OwnedFd> {
    descriptor.try_clone_to_owned().map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn memory_that_was_imported_is_exported_until_its_last_handle_is_released() {
        let (imported, memory) = (Imported::default(), Memory(7));
        assert!(imported.export(memory).unwrap().is_none());
        let file = tempfile::tempfile().unwrap();
        for _ in 0..2 {
            imported.keep(memory, copy(file.as_fd()).unwrap());
        }
        imported.release(memory);
        let exported = File::from(imported.export(memory).unwrap().unwrap());
        assert_eq!(exported.metadata().unwrap().ino(), file.metadata().unwrap().ino());
        imported.release(memory);
        assert!(imported.export(memory).unwrap().is_none());
    }
}
