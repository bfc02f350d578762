//! Where the contents of a chunk come from when a buffer is loaded.
//!
//! A chunk is brought in three steps, which whoever orders the chunks need not tell apart: what the device can make by
//! itself is [filled in](Sources::fill); all else is [brought](Sources::bring) by a [`Block`], whose copy is then under
//! way; and a chunk is there once that was [settled](Sources::settle), its hash compared.

use std::ops::Range;

use rekindle_device::{MemorySet, Stream};
use rekindle_store::{Checked, ContentHash, Encoding, Image, Part};

use super::block::{Block, Gpu};
use super::error::{Result, device as device_error};
use crate::hashing::Hasher;

/// One chunk of a part, and where it is to go.
pub(super) struct Chunk<'i> {
    pub part: &'i Part,
    /// Within the part.
    pub range: Range<u64>,
    /// Of the chunk's first byte, on the device.
    pub address: u64,
}

impl Chunk<'_> {
    fn count(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }

    fn is_zero(&self) -> bool {
        let number = (self.range.start / self.part.chunk_bytes.max(1)) as usize;
        let chunk = self.part.chunks.get(number);
        self.part.file.is_none() && chunk.is_some_and(|chunk| chunk.encoding == Encoding::Zero)
    }
}

/// A chunk on its way to the device, which is to hash to this.
#[must_use]
pub(super) struct Unproved<'i> {
    chunk: Chunk<'i>,
    expected: ContentHash,
}

/// All places that the chunks of one image may come from.
pub(super) struct Sources<'i> {
    image: &'i Image,
}

impl<'i> Sources<'i> {
    pub(super) fn of(image: &'i Image) -> Sources<'i> {
        Sources { image }
    }

    /// Enqueues what the device makes by itself; false if the chunk has to be brought.
    pub(super) fn fill(&self, gpu: &Gpu, chunk: &Chunk<'i>) -> Result<bool> {
        if !chunk.is_zero() {
            return Ok(false);
        }
        gpu.device.bind().map_err(failed)?;
        let (address, bytes) = (chunk.address, chunk.count() as u64);
        let stream = gpu.streams.first().copied().unwrap_or(Stream::LEGACY);
        let set = MemorySet { address, pitch: bytes, value: 0, element: 1, width: bytes, height: 1 };
        gpu.device.set(&set, stream).map_err(failed)?;
        Ok(true)
    }

    /// Begins the chunk's copy to the device, once the block's former one is done. That one is to be settled already.
    pub(super) fn bring(
        &self,
        gpu: &Gpu,
        chunk: Chunk<'i>,
        block: &mut Block<'_>,
    ) -> Result<Option<Unproved<'i>>> {
        let (part, offset, count) = (chunk.part, chunk.range.start, chunk.count());
        let bytes = block.bytes(count).map_err(failed)?;
        let checked = if gpu.hasher.is_some() && Hasher::takes(count as u64) {
            self.image.read_chunk_to_check(part, offset, bytes)?
        } else {
            self.image.read_part(part, offset, bytes)?;
            Checked::Here
        };
        block.put(gpu, chunk.address, count).map_err(failed)?;
        Ok(match checked {
            Checked::Here => None,
            Checked::ByCaller(expected) => Some(Unproved { chunk, expected }),
        })
    }

    /// Waits for the block's copy, and compares what the device has found with what it was to find.
    pub(super) fn settle(&self, block: &mut Block<'_>, open: Option<Unproved<'i>>) -> Result<()> {
        let found = block.hash().map_err(failed)?;
        match open {
            Some(Unproved { chunk, expected }) if found != Some(expected) => {
                let found = found.unwrap_or_else(|| ContentHash::of(&[]));
                Err(self.image.damaged(chunk.part, chunk.range.start, found).into())
            }
            _ => Ok(()),
        }
    }
}

fn failed(code: rekindle_cuda::CuResult) -> super::Error {
    device_error("copy a buffer in")(code)
}
