//! Events of several processes: counters in host memory that the GPUs of all of them write and wait for.
//!
//! ```text
//!   slot of an event   recorded │ cell 0 … cell 6
//!   the Nth record     recorded := N          the stream then writes N to cell N mod 7
//!   a wait             N := recorded          the stream waits until cell N mod 7 is at least N
//! ```
//!
//! What a wait is for is so settled when it is asked for, as CUDA's rules say. Two records may be done in either order, on two
//! streams; a cell that goes back would have its waiters wait for ever. So a record that comes round to a cell waits for
//! the one that had it before.
//!
//! A slot of zeros is an event that is done, as all are in a program that stands still.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::memfd::{MFdFlags, memfd_create};
use rekindle_cuda::{CUDA_ERROR_OPERATING_SYSTEM, CUDA_ERROR_OUT_OF_MEMORY};
use rekindle_device::{Access, Device, Result, Stream};

use super::Export;
use crate::host_memory::HostMemory;

const WORD: u64 = 8;
const CELLS: u64 = 7;
const SLOT: u64 = (1 + CELLS) * WORD;
pub(super) const PAGE_BYTES: u64 = 64 << 10;
/// How many events a page has room for.
pub(super) const SLOTS: u64 = PAGE_BYTES / SLOT;
/// `CU_STREAM_WAIT_VALUE_GEQ`.
const AT_LEAST: u32 = 0;

/// Host memory with events, which several processes have mapped.
pub(super) struct Page {
    pub device: usize,
    memory: HostMemory,
    file: OwnedFd,
    /// Slots that no event has, those first that were given up first; another process may still know one.
    free: Mutex<VecDeque<u64>>,
    /// By which others get it; none for one of another process.
    _export: Option<Arc<Export>>,
}

/// An event of several processes.
#[derive(Clone)]
pub(super) struct SharedEvent {
    pub page: Rc<Page>,
    pub slot: u64,
    /// Given back to the page with the event.
    pub is_own: bool,
}

/// What an event was recorded for.
#[derive(Clone)]
pub(crate) struct SharedRecord {
    event: SharedEvent,
    number: u64,
}

/// Memory for a page.
pub(super) fn make_file() -> io::Result<OwnedFd> {
    let file = File::from(memfd_create(c"rekindle-events", MFdFlags::MFD_CLOEXEC)?);
    file.set_len(PAGE_BYTES)?;
    Ok(file.into())
}

impl Page {
    pub(super) fn map(
        (index, gpu): (usize, Arc<dyn Device>),
        file: &OwnedFd,
        free: impl Iterator<Item = u64>,
        export: Option<Arc<Export>>,
    ) -> Result<Page> {
        let memory = HostMemory::map_for(file, PAGE_BYTES, Access::ReadWrite, &gpu).map_err(|error| {
            log::error!("memory for events cannot be mapped: {error}");
            CUDA_ERROR_OPERATING_SYSTEM
        })?;
        if !memory.is_registered() {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let file = file.try_clone().map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
        Ok(Page { device: index, memory, file, free: Mutex::new(free.collect()), _export: export })
    }

    /// A further descriptor of its memory.
    pub(super) fn file(&self) -> Result<OwnedFd> {
        self.file.try_clone().map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)
    }

    pub(super) fn take_slot(&self) -> Option<u64> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

impl SharedEvent {
    /// Gives the slot back; nobody of this process uses the event any more.
    pub(super) fn give_up(self) {
        if self.is_own {
            self.page.free.lock().unwrap_or_else(PoisonError::into_inner).push_back(self.slot);
        }
    }

    /// What it was recorded for last, by any process.
    pub(super) fn last(&self) -> SharedRecord {
        SharedRecord { number: self.word(0).load(Ordering::Acquire), event: self.clone() }
    }

    pub(super) fn record(&self, gpu: &dyn Device, stream: Stream) -> Result<()> {
        let number = self.word(0).fetch_add(1, Ordering::AcqRel) + 1;
        let record = SharedRecord { number, event: self.clone() };
        let earlier = SharedRecord { number: number.saturating_sub(CELLS), event: self.clone() };
        let written = earlier
            .wait(gpu, stream)
            .and_then(|()| gpu.write_value(stream, record.address(), number, WORD as u32, 0));
        // Nobody is to wait for what does not come.
        written.inspect_err(|_| {
            record.cell().fetch_max(number, Ordering::AcqRel);
        })
    }

    fn address_of(&self, word: u64) -> u64 {
        self.page.memory.address() + self.slot * SLOT + word * WORD
    }

    fn word(&self, word: u64) -> &AtomicU64 {
        // SAFETY: within the page, as slot and word are, aligned, mapped for as long as the page lives, and never but atomically
        // used by any process; GPUs write it whole.
        unsafe { AtomicU64::from_ptr(self.address_of(word) as *mut u64) }
    }
}

impl SharedRecord {
    pub(crate) fn is_done(&self) -> bool {
        self.number == 0 || self.cell().load(Ordering::Acquire) >= self.number
    }

    pub(super) fn wait(&self, gpu: &dyn Device, stream: Stream) -> Result<()> {
        match self.is_done() {
            true => Ok(()),
            false => gpu.wait_value(stream, self.address(), self.number, WORD as u32, AT_LEAST),
        }
    }

    fn address(&self) -> u64 {
        self.event.address_of(1 + self.number % CELLS)
    }

    fn cell(&self) -> &AtomicU64 {
        self.event.word(1 + self.number % CELLS)
    }
}
