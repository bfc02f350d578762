//! Host memory that devices copy to and from at full speed, in blocks.
//!
//! The blocks of one save or restore are one mapping, registered once: that costs less than block by block, and can be
//! done beside other work. Copies go through the context's own streams ([`Gpu::streams`]); an event behind each tells
//! when its block is free again.
//!
//! Behind the blocks lies room for the chaining values that the device computes of what is copied
//! ([`Hasher`]): the bytes are hashed in device memory, after they came there or before they leave it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rekindle_cuda::{CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN};
use rekindle_device::{Device, Event, Result, Stream};
use rekindle_store::ContentHash;

use crate::hashing::{Hasher, SUBTREE, VALUE};

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;

/// A device, and its streams for copies.
#[derive(Clone)]
pub(super) struct Gpu {
    pub device: Arc<dyn Device>,
    pub streams: Vec<Stream>,
    /// Where the device hashes what is copied.
    pub hasher: Option<Arc<Hasher>>,
}

impl Gpu {
    /// Waits for all that was enqueued on its streams.
    pub(super) fn wait(&self) -> Result<()> {
        self.device.bind()?;
        self.streams.iter().try_for_each(|stream| self.device.stream_synchronize(*stream))
    }
}

/// Registered memory, in blocks.
pub(crate) struct Blocks {
    /// None when it was put back.
    memory: Option<Registered>,
    shelf: Option<Arc<Shelf>>,
}

/// Host memory that is registered with a device, for all contexts of the process.
struct Registered {
    device: Arc<dyn Device>,
    base: *mut u8,
    block: usize,
    count: usize,
}

// SAFETY: the memory belongs to this value alone, from whatever thread it is used.
unsafe impl Send for Registered {}

/// Where memory goes that is needed no more, for who needs such memory next: to register it holds up all clients of a
/// context.
pub(crate) struct Shelf {
    device: Arc<dyn Device>,
    kept: Mutex<Vec<Registered>>,
}

/// How much is kept for the next.
const KEPT: usize = 1;

impl Shelf {
    pub(crate) fn new(device: Arc<dyn Device>) -> Arc<Shelf> {
        Arc::new(Shelf { device, kept: Mutex::default() })
    }

    /// What is there, or is begun to be made on a thread of its own.
    fn take(self: &Arc<Shelf>, block: usize, count: usize) -> Preparing {
        let fits = |memory: &Registered| (memory.block, memory.count) == (block, count);
        let kept = {
            let mut kept = self.kept();
            kept.iter().position(fits).map(|at| kept.remove(at))
        };
        let shelf = self.clone();
        match kept {
            Some(memory) => Preparing::Ready(Blocks { memory: Some(memory), shelf: Some(shelf) }),
            None => Preparing::Begun(std::thread::spawn(move || {
                let memory = Registered::new(shelf.device.clone(), block, count)?;
                Ok(Blocks { memory: Some(memory), shelf: Some(shelf) })
            })),
        }
    }

    /// Begins to make what is to be there for the next, on a thread of its own.
    pub(super) fn stock(self: &Arc<Shelf>, block: usize, count: usize) {
        let shelf = self.clone();
        std::thread::spawn(move || match shelf.take(block, count).wait() {
            Ok(blocks) => drop(blocks),
            Err(code) => log::warn!("no memory to copy through is kept ready: {code}"),
        });
    }

    /// What there is no room for comes back.
    fn put(&self, memory: Registered) -> Option<Registered> {
        let mut kept = self.kept();
        if kept.len() >= KEPT {
            return Some(memory);
        }
        kept.push(memory);
        None
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Registered>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registered {
    fn new(device: Arc<dyn Device>, block: usize, count: usize) -> Result<Registered> {
        device.bind()?;
        let bytes = count * (block + values_of(block));
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new private mapping, and advice about it: huge pages are filled and registered faster.
        let base = unsafe {
            let base = libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0);
            if base != libc::MAP_FAILED {
                libc::madvise(base, bytes, libc::MADV_HUGEPAGE);
            }
            base
        };
        if base == libc::MAP_FAILED {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        if let Err(code) = device.host_register(base as u64, bytes as u64) {
            // SAFETY: mapped above, and known to nobody.
            unsafe { libc::munmap(base, bytes) };
            return Err(code);
        }
        Ok(Registered { device, base: base.cast(), block, count })
    }

    fn bytes(&self) -> usize {
        self.count * (self.block + values_of(self.block))
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let _ = self.device.bind();
        let _ = self.device.host_unregister(self.base as u64);
        // SAFETY: mapped by `new`; each block has waited for its copies, so the device has let go of it.
        unsafe { libc::munmap(self.base.cast(), self.bytes()) };
    }
}

impl Blocks {
    /// Registers the memory with the device, for all contexts of the process.
    pub(super) fn new(device: Arc<dyn Device>, block: usize, count: usize) -> Result<Blocks> {
        Ok(Blocks { memory: Some(Registered::new(device, block, count)?), shelf: None })
    }

    /// Begins [`Blocks::new`] on a thread of its own, or takes what the `shelf` has.
    pub(super) fn prepare(
        device: Arc<dyn Device>,
        shelf: Option<&Arc<Shelf>>,
        block: usize,
        count: usize,
    ) -> Preparing {
        match shelf {
            Some(shelf) => shelf.take(block, count),
            None => Preparing::Begun(std::thread::spawn(move || Blocks::new(device, block, count))),
        }
    }

    pub(super) fn block_bytes(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.block)
    }

    /// Each block, for one user.
    pub(super) fn split(&mut self) -> Vec<Block<'_>> {
        let Some(memory) = &mut self.memory else { return Vec::new() };
        // SAFETY: the mapping is so long and lives as long as `self`, which stays borrowed.
        let all = unsafe { std::slice::from_raw_parts_mut(memory.base, memory.bytes()) };
        let (blocks, values) = all.split_at_mut(memory.block * memory.count);
        blocks
            .chunks_exact_mut(memory.block)
            .zip(values.chunks_exact_mut(values_of(memory.block).max(1)))
            .enumerate()
            .map(|(number, (bytes, values))| Block::new(number, bytes, values))
            .collect()
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        if let (Some(memory), Some(shelf)) = (self.memory.take(), &self.shelf) {
            drop(shelf.put(memory));
        }
    }
}

/// Blocks that are being made, or are made.
pub(crate) enum Preparing {
    Begun(JoinHandle<Result<Blocks>>),
    Ready(Blocks),
}

impl Preparing {
    pub(super) fn wait(self) -> Result<Blocks> {
        match self {
            Preparing::Begun(thread) => thread.join().unwrap_or(Err(CUDA_ERROR_UNKNOWN)),
            Preparing::Ready(blocks) => Ok(blocks),
        }
    }
}

/// One block in use by one thread.
pub(super) struct Block<'b> {
    number: usize,
    bytes: &'b mut [u8],
    /// Where the device puts chaining values.
    values: &'b mut [u8],
    /// How many bytes of them the last copy has, or will have.
    hashed: usize,
    /// Behind the copy that is under way, with the device that it was made on.
    under_way: Option<(Arc<dyn Device>, Event)>,
}

impl<'b> Block<'b> {
    fn new(number: usize, bytes: &'b mut [u8], values: &'b mut [u8]) -> Block<'b> {
        Block { number, bytes, values, hashed: 0, under_way: None }
    }

    pub(super) fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Where its bytes begin, for others to fill once no copy is under way.
    pub(super) fn room(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }

    /// Waits for the copy that is under way, if one is.
    pub(super) fn wait(&mut self) -> Result<()> {
        let Some((device, event)) = self.under_way.take() else { return Ok(()) };
        device.bind()?;
        let waited = device.event_synchronize(event);
        let _ = device.event_destroy(event);
        waited
    }

    /// The first bytes, once no copy is under way.
    pub(super) fn bytes(&mut self, count: usize) -> Result<&mut [u8]> {
        self.wait()?;
        let count = count.min(self.bytes.len());
        Ok(&mut self.bytes[..count])
    }

    /// The hash of what was copied last, once that is done; none if the device did not hash it.
    pub(super) fn hash(&mut self) -> Result<Option<ContentHash>> {
        self.wait()?;
        Ok((self.hashed > 0).then(|| Hasher::finish(&self.values[..self.hashed])))
    }

    /// Begins a copy from the device to the start of the block, hashed on the way if the device can.
    pub(super) fn fetch(&mut self, gpu: &Gpu, address: u64, count: usize) -> Result<()> {
        let base = self.bytes.as_mut_ptr() as u64;
        self.copy(gpu, base, address, count.min(self.bytes.len()) as u64, Some(address))
    }

    /// Begins to hash what lies on the device, without a copy of it, if the device can.
    pub(super) fn look(&mut self, gpu: &Gpu, address: u64, count: usize) -> Result<bool> {
        if gpu.hasher.is_none() || !Hasher::takes(count as u64) {
            return Ok(false);
        }
        self.begin(gpu, None, count as u64, Some(address))?;
        Ok(true)
    }

    /// As [`Block::fetch`], of what was hashed before.
    pub(super) fn fetch_hashed(&mut self, gpu: &Gpu, address: u64, count: usize) -> Result<()> {
        let base = self.bytes.as_mut_ptr() as u64;
        let count = count.min(self.bytes.len()) as u64;
        self.begin(gpu, Some((base, address)), count, None)
    }

    /// Begins a copy from the start of the block to the device, as [`Block::fetch`] does.
    pub(super) fn put(&mut self, gpu: &Gpu, address: u64, count: usize) -> Result<()> {
        let base = self.bytes.as_ptr() as u64;
        self.copy(gpu, address, base, count.min(self.bytes.len()) as u64, Some(address))
    }

    /// Begins a copy to the device from elsewhere, memory that the device knows and that stays as it is until the
    /// block has waited. Only with `hashed` it is, if the device can; no more than the block's own size then.
    pub(super) fn put_from(
        &mut self,
        gpu: &Gpu,
        address: u64,
        from: u64,
        count: u64,
        hashed: bool,
    ) -> Result<()> {
        self.copy(gpu, address, from, count, hashed.then_some(address))
    }

    /// What lies at `on_device` afterwards is hashed.
    fn copy(&mut self, gpu: &Gpu, to: u64, from: u64, count: u64, on_device: Option<u64>) -> Result<()> {
        self.begin(gpu, Some((to, from)), count, on_device)
    }

    /// Begins a copy, if one is to be made, and the hashing of what lies at `on_device` behind it.
    fn begin(
        &mut self,
        gpu: &Gpu,
        copy: Option<(u64, u64)>,
        count: u64,
        on_device: Option<u64>,
    ) -> Result<()> {
        self.wait()?;
        let Gpu { device, streams, hasher } = gpu;
        let hashed = hasher.as_ref().zip(on_device).filter(|_| Hasher::takes(count));
        self.hashed = hashed.as_ref().map_or(0, |_| values_of(count as usize));
        let values = self.values.as_mut_ptr() as u64;
        device.bind()?;
        let stream = streams.get(self.number % streams.len().max(1)).copied().unwrap_or(Stream::LEGACY);
        let event = device.event_create(DISABLE_TIMING)?;
        let copied = copy.map_or(Ok(()), |(to, from)| device.copy(to, from, count, stream));
        let begun = copied
            .and_then(|()| match hashed {
                Some((hasher, address)) => hasher.enqueue(address, count, values, stream),
                None => Ok(()),
            })
            .and_then(|()| device.event_record(event, stream, 0));
        match begun {
            Ok(()) => self.under_way = Some((device.clone(), event)),
            Err(_) => {
                // The copy may have begun although its event could not be recorded.
                let _ = device.stream_synchronize(stream);
                let _ = device.event_destroy(event);
            }
        }
        begun
    }
}

/// Bytes of chaining values for so many bytes.
fn values_of(bytes: usize) -> usize {
    bytes / SUBTREE as usize * VALUE
}

impl Drop for Block<'_> {
    fn drop(&mut self) {
        let _ = self.wait();
    }
}
