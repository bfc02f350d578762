//! Addresses for the globals and constants of modules, and the device-side heap.
//!
//! Each device has one slot of [`MODULE_RANGE`]. Modules take pages of it in the order they load, and no page is ever
//! taken twice: the same loads in the same order give the same addresses, in any process. A restore that loads only
//! the modules that were still loaded names the place itself ([`OPTION_MODULE_ADDRESS`]).
//!
//! ```text
//!  slot: | module | module | hole of an unloaded one | module | ... free ... | workspace | heap (4 GiB) |
//! ```

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};
use rekindle_device::{DEVICE_RANGE, Result};

use crate::Error;
use crate::physical::{Budget, Share};
use crate::space::Space;

/// Where module memory lies: the last TiB of the range of device memory. Buffers cannot be reserved in the slots.
pub const MODULE_RANGE: Range<u64> = DEVICE_RANGE.end - (1 << 40)..DEVICE_RANGE.end;

/// An option of [`rekindle_device::Device::module_load`]: the address at which this module's memory must start, as
/// another load found it. Its value is an address; no driver has an option of this number.
pub const OPTION_MODULE_ADDRESS: i32 = 0x0052_4b01;

/// Another: the module's variables lie at this address, in memory that somebody else has put there and filled.
pub(crate) const OPTION_GLOBALS_ADDRESS: i32 = 0x0052_4b02;

const SLOT: u64 = 16 << 30;
const HEAP: u64 = 4 << 30;
const PAGE: u64 = 4096;
/// Slots of a platform: one a device. A further platform of the same process takes the next free group.
const GROUP: u64 = 8;

pub(crate) struct Arena {
    slot: Range<u64>,
    taken: Mutex<UsedBlocks>,
    heap: Mutex<Heap>,
    space: Arc<Space>,
    budget: Arc<Budget>,
}

#[derive(Default)]
struct UsedBlocks {
    /// Blocks in use: start to end.
    live: BTreeMap<u64, u64>,
    top: u64,
}

/// Memory of one module; given back when dropped.
pub(crate) struct Block {
    arena: Arc<Arena>,
    pub range: Range<u64>,
    _share: Share,
}

impl Arena {
    pub fn new(index: u32, space: Arc<Space>, budget: Arc<Budget>) -> std::result::Result<Arc<Arena>, Error> {
        let mut cause = std::io::Error::from_raw_os_error(libc::EEXIST);
        let mut start = MODULE_RANGE.start + u64::from(index) * SLOT;
        while start < MODULE_RANGE.end {
            // SAFETY: with MAP_FIXED_NOREPLACE nothing that exists is touched.
            let found = unsafe {
                libc::mmap(
                    start as *mut libc::c_void,
                    SLOT as usize,
                    libc::PROT_NONE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE,
                    -1,
                    0,
                )
            };
            if found as u64 == start {
                let slot = start..start + SLOT;
                let workspace = slot.end - HEAP - PAGE;
                set_access(workspace, PAGE, libc::PROT_READ | libc::PROT_WRITE).map_err(|_| {
                    Error::Arena { index, range: slot.clone(), cause: std::io::Error::last_os_error() }
                })?;
                let taken = Mutex::new(UsedBlocks { live: BTreeMap::new(), top: start });
                return Ok(Arc::new(Arena { slot, taken, heap: Mutex::default(), space, budget }));
            }
            cause = std::io::Error::last_os_error();
            start += GROUP * SLOT;
        }
        Err(Error::Arena { index, range: MODULE_RANGE, cause })
    }

    /// Zeroed memory at the next free address, or at exactly `at`.
    pub fn take(self: &Arc<Arena>, bytes: u64, at: Option<u64>) -> Result<Block> {
        let bytes = bytes.max(1).checked_next_multiple_of(PAGE).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let share = self.budget.take(bytes)?;
        let mut taken = self.taken.lock();
        let start = at.unwrap_or(taken.top);
        let end = start.checked_add(bytes).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        if start < self.slot.start
            || !start.is_multiple_of(PAGE)
            || taken.live.range(..end).next_back().is_some_and(|b| *b.1 > start)
        {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if end > self.workspace() {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        set_access(start, bytes, libc::PROT_READ | libc::PROT_WRITE)?;
        taken.live.insert(start, end);
        taken.top = taken.top.max(end);
        self.space.add_module(start..end);
        Ok(Block { arena: Arc::clone(self), range: start..end, _share: share })
    }

    /// Where the blocks of a cooperative grid meet. What meets there leaves it as it was, for the next grid.
    pub fn workspace(&self) -> u64 {
        self.slot.end - HEAP - PAGE
    }

    /// `malloc` of a kernel, in a heap of `limit` bytes; zero when it is full.
    pub fn heap_take(&self, bytes: u64, limit: u64) -> u64 {
        let base = self.slot.end - HEAP;
        let mut heap = self.heap.lock();
        if heap.size == 0 {
            let size = limit.clamp(1, HEAP).next_multiple_of(PAGE);
            let Ok(share) = self.budget.take(size) else { return 0 };
            if set_access(base, size, libc::PROT_READ | libc::PROT_WRITE).is_err() {
                return 0;
            }
            heap.size = size;
            heap.share = Some(share);
            heap.free.insert(base, base + size);
            self.space.add_module(base..base + size);
        }
        heap.take(bytes)
    }

    /// `free` of a kernel; what was not taken is ignored.
    pub fn heap_give(&self, address: u64) {
        self.heap.lock().give(address);
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.space.remove_module(self.slot.end - HEAP);
        // SAFETY: the slot is this arena's own mapping, and every block that lay in it is gone.
        unsafe { libc::munmap(self.slot.start as *mut libc::c_void, SLOT as usize) };
    }
}

impl Block {
    /// Writes initial contents.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let size = self.range.end - self.range.start;
        assert!(
            offset.checked_add(bytes.len() as u64).is_some_and(|end| end <= size),
            "a global lies in its block"
        );
        // SAFETY: the range was checked; the block is mapped read-write and not yet known to any kernel.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                (self.range.start + offset) as *mut u8,
                bytes.len(),
            );
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.arena.space.remove_module(self.range.start);
        self.arena.taken.lock().live.remove(&self.range.start);
        let bytes = (self.range.end - self.range.start) as usize;
        // SAFETY: pages of this block alone; a kernel that still uses them must fault, which PROT_NONE makes it do.
        unsafe { libc::madvise(self.range.start as *mut libc::c_void, bytes, libc::MADV_DONTNEED) };
        if set_access(self.range.start, bytes as u64, libc::PROT_NONE).is_err() {
            log::warn!("memory of an unloaded module at {:#x} stays accessible", self.range.start);
        }
    }
}

fn set_access(address: u64, bytes: u64, protection: i32) -> Result<()> {
    // SAFETY: callers pass pages of their own slot; no Rust reference points into it.
    match unsafe { libc::mprotect(address as *mut libc::c_void, bytes as usize, protection) } {
        0 => Ok(()),
        _ => Err(CUDA_ERROR_OUT_OF_MEMORY),
    }
}

/// First fit over free ranges.
#[derive(Default)]
struct Heap {
    size: u64,
    free: BTreeMap<u64, u64>,
    taken: BTreeMap<u64, u64>,
    share: Option<Share>,
}

impl Heap {
    fn take(&mut self, bytes: u64) -> u64 {
        let Some(bytes) = bytes.max(1).checked_next_multiple_of(16) else { return 0 };
        let fit =
            self.free.iter().find(|(start, end)| **end - **start >= bytes).map(|(start, end)| (*start, *end));
        let Some((start, end)) = fit else { return 0 };
        self.free.remove(&start);
        if start + bytes < end {
            self.free.insert(start + bytes, end);
        }
        self.taken.insert(start, start + bytes);
        start
    }

    fn give(&mut self, address: u64) {
        let Some(mut end) = self.taken.remove(&address) else { return };
        let mut start = address;
        if let Some(last) = self.free.remove(&end) {
            end = last;
        }
        if let Some((before, _)) = self.free.range(..start).next_back().filter(|(_, last)| **last == start) {
            start = *before;
        }
        self.free.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heap_joins_what_is_given_back() {
        let mut heap = Heap { free: BTreeMap::from([(0x1000, 0x1100)]), ..Heap::default() };
        let blocks: Vec<u64> = (0..4).map(|_| heap.take(64)).collect();
        assert_eq!(blocks, [0x1000, 0x1040, 0x1080, 0x10c0]);
        assert_eq!(heap.take(1), 0);
        for block in [blocks[1], blocks[0], blocks[3], blocks[2]] {
            heap.give(block);
        }
        heap.give(0x1234);
        assert_eq!(heap.free, BTreeMap::from([(0x1000, 0x1100)]));
    }
}
