//! Host memory that devices copy to and from at full speed, in blocks.
//!
//! The blocks of one save or restore are one mapping, which is made beside other work. The driver holds its lock while it
//! registers memory, and brings the pages under it that are not there: so pages are brought and registered piece by piece.
//! On an H200, 256 MB held up others' calls for 2 ms so, and for 56 to 75 ms at once.
//!
//! Copies go through the context's own streams ([`Gpu::streams`]); an event behind each tells when its block is free again.
//!
//! Behind the blocks lies room for the chaining values that the device computes of what is copied
//! ([`Hasher`]): the bytes are hashed in device memory, after they came there or before they leave it.

use std::sync::Arc;
use std::thread::JoinHandle;

use memmap2::{Advice, MmapOptions, MmapRaw};
use rekindle_cuda::{CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN};
use rekindle_device::{Access, Device, Event, Result, Stream};
use rekindle_store::ContentHash;

use super::block_pool::BlockPool;
use crate::gpu_link::GpuLink;
use crate::hashing::{Hasher, SUBTREE, VALUE};
use crate::host_memory::Registration;

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;

/// A device, and its streams for copies.
#[derive(Clone)]
pub(super) struct Gpu {
    pub device: Arc<dyn Device>,
    pub streams: Vec<Stream>,
    /// Where the device hashes what is copied.
    pub hasher: Option<Arc<Hasher>>,
    /// Where copies give way to what programs copy.
    pub link: Option<Arc<GpuLink>>,
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
    /// Where it goes when it is needed no more.
    block_pool: Option<Arc<BlockPool>>,
}

/// Host memory that is registered with a device, for all contexts of the process.
pub(crate) struct Registered {
    /// What was registered by one call each. No block lies in two of them.
    pieces: Vec<Registration>,
    // Behind the pieces, so that the device has forgotten them when it goes.
    mapping: MmapRaw,
    block: usize,
    count: usize,
}

/// So much is registered at once, or a block if that is larger.
const PIECE: usize = 8 << 20;
const PAGE: usize = 4096;

impl Registered {
    pub(crate) fn new(device: Arc<dyn Device>, block: usize, count: usize) -> Result<Registered> {
        device.bind()?;
        let bytes = count * (block + values_of(block));
        let mapped = MmapOptions::new().len(bytes).map_anon().map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        // Huge pages are filled and registered faster.
        let _ = mapped.advise(Advice::HugePage);
        let mut memory = Registered { pieces: Vec::new(), mapping: mapped.into(), block, count };
        for (offset, bytes) in pieces(block, count) {
            // It brings pages. A kernel that cannot leaves that to the driver.
            let _ = memory.mapping.advise_range(Advice::PopulateWrite, offset, bytes);
            let address = memory.address(0) + offset as u64;
            let piece = Registration::new(&device, address, bytes as u64, Access::ReadWrite)?;
            memory.pieces.push(piece);
        }
        Ok(memory)
    }

    pub(super) fn is_like(&self, block: usize, count: usize) -> bool {
        (self.block, self.count) == (block, count)
    }

    pub(super) fn has_the_size_of(&self, other: &Registered) -> bool {
        other.is_like(self.block, self.count)
    }

    /// Has the device forget a piece; whether it knows more of them.
    pub(super) fn unpin_some(&mut self) -> bool {
        drop(self.pieces.pop());
        !self.pieces.is_empty()
    }

    /// Where a block begins.
    pub(crate) fn address(&self, number: usize) -> u64 {
        self.mapping.as_ptr() as u64 + (number * self.block) as u64
    }
}

/// What is registered by one call each, of so many blocks with the room for their values behind them. No page lies in two.
fn pieces(block: usize, count: usize) -> Vec<(usize, usize)> {
    let end = count * (block + values_of(block));
    let each = if block.is_multiple_of(PAGE) { (PIECE / block.max(1)).max(1) * block } else { end };
    let starts: Vec<_> = (0..block * count).step_by(each.max(1)).collect();
    let ends = starts.iter().skip(1).copied().chain([end]);
    starts.iter().zip(ends).map(|(&start, end)| (start, end - start)).collect()
}

impl Blocks {
    /// Registers the memory with the device, for all contexts of the process.
    pub(super) fn new(device: Arc<dyn Device>, block: usize, count: usize) -> Result<Blocks> {
        Ok(Blocks { memory: Some(Registered::new(device, block, count)?), block_pool: None })
    }

    /// They go to the pool when they are needed no more.
    pub(super) fn of(memory: Registered, block_pool: Arc<BlockPool>) -> Blocks {
        Blocks { memory: Some(memory), block_pool: Some(block_pool) }
    }

    pub(super) fn block_bytes(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.block)
    }

    pub(super) fn count(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.count)
    }

    /// Each block, for one user.
    pub(super) fn split(&mut self) -> Vec<Block<'_>> {
        let Some(memory) = &mut self.memory else { return Vec::new() };
        // SAFETY: the mapping is so long and lives as long as `self`, which stays borrowed.
        let all =
            unsafe { std::slice::from_raw_parts_mut(memory.mapping.as_mut_ptr(), memory.mapping.len()) };
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
        if let (Some(memory), Some(block_pool)) = (self.memory.take(), &self.block_pool) {
            drop(block_pool.put(memory));
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

    /// The stream by which its copies go: what is enqueued there is done before its next copy is.
    pub(super) fn stream(&self, gpu: &Gpu) -> Stream {
        gpu.streams.get(self.number % gpu.streams.len().max(1)).copied().unwrap_or(Stream::LEGACY)
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
        let stream = self.stream(gpu);
        let Gpu { device, hasher, link, .. } = gpu;
        let hashed = hasher.as_ref().zip(on_device).filter(|_| Hasher::takes(count));
        self.hashed = hashed.as_ref().map_or(0, |_| values_of(count as usize));
        let values = self.values.as_mut_ptr() as u64;
        device.bind()?;
        let event = device.event_create(DISABLE_TIMING)?;
        let copied = copy.map_or(Ok(()), |(to, from)| {
            GpuLink::copy_by(link.as_deref(), &**device, (to, from, count), stream)
        });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_all_and_cut_no_block() {
        for (block, count) in [(2 << 20, 48), (8 << 20, 32), (32 << 20, 3), (3 << 20, 7), (4096, 1), (100, 3)]
        {
            let pieces = pieces(block, count);
            let mut end = 0;
            for &(at, bytes) in &pieces {
                assert_eq!(at, end, "{block} times {count}");
                assert!(at == 0 || at.is_multiple_of(block) && at.is_multiple_of(PAGE));
                end = at + bytes;
            }
            assert_eq!(end, count * (block + values_of(block)));
        }
    }
}
