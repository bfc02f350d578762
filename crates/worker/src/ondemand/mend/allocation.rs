//! Allocations that are made once more: where they were, whatever the heap would have chosen.

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_device::Result;
use rekindle_protocol::operation::{
    MemoryAllocate, MemoryAllocateAsync, ReplyHead, Synchronous, decode_reply,
};

use crate::client::Client;
use crate::ondemand::journal::Entry;

/// Where an allocation lies, and the buffer that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlacedAllocation {
    pub address: u64,
    pub buffer: u64,
    pub buffer_bytes: u64,
}

impl PlacedAllocation {
    pub(super) const BYTES: usize = 24;

    /// What a request has made, by its answer.
    pub(super) fn of(client: &Client, body: &[u8], answer: Option<&[u8]>) -> Option<PlacedAllocation> {
        let (head, value) = answer?.split_at_checked(ReplyHead::BYTES)?;
        if ReplyHead::decode(head.try_into().ok()?).status != 0 {
            return None;
        }
        let address: u64 = decode_reply(value).ok()?;
        let heap = &client.context(device_of(body)?).ok()?.heap;
        let (buffer, found) = heap.buffers().range(..=address).next_back()?;
        Some(PlacedAllocation { address, buffer: *buffer, buffer_bytes: found.bytes })
    }

    pub(super) fn encode(&self) -> [u8; PlacedAllocation::BYTES] {
        let mut bytes = [0; PlacedAllocation::BYTES];
        for (word, place) in
            [self.address, self.buffer, self.buffer_bytes].into_iter().zip(bytes.chunks_exact_mut(8))
        {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<PlacedAllocation> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(PlacedAllocation { address: word(0)?, buffer: word(8)?, buffer_bytes: word(16)? })
    }
}

/// Both kinds of requests begin with the device.
fn device_of(body: &[u8]) -> Option<usize> {
    body.first().map(|device| usize::from(*device))
}

/// Makes the allocation of a request where it was.
pub(super) fn again(client: &mut Client, entry: &Entry<'_>) -> Result<()> {
    let invalid = |_| CUDA_ERROR_INVALID_VALUE;
    let given = PlacedAllocation::decode(entry.trailer).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let (device, bytes) = match entry.opcode {
        MemoryAllocate::OPCODE => postcard::from_bytes::<MemoryAllocate>(entry.body)
            .map(|one| (one.device, one.bytes))
            .map_err(invalid)?,
        _ => postcard::from_bytes::<MemoryAllocateAsync>(entry.body)
            .map(|one| (one.device, one.bytes))
            .map_err(invalid)?,
    };
    let device = usize::from(device);
    client.bind(device)?;
    if client.take_freed(device, given.address, bytes)? {
        return Ok(());
    }
    client.heap(device)?.allocate_at(given.address, bytes, (given.buffer, given.buffer_bytes))
}

/// Whether a request makes an allocation.
pub(super) fn makes(opcode: u32) -> bool {
    [MemoryAllocate::OPCODE, MemoryAllocateAsync::OPCODE].contains(&opcode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_comes_back() {
        let given = PlacedAllocation { address: 1, buffer: 2, buffer_bytes: 3 };
        assert_eq!(PlacedAllocation::decode(&given.encode()), Some(given));
        assert_eq!(PlacedAllocation::decode(&[0; 8]), None);
        let body = postcard::to_allocvec(&MemoryAllocate { device: 3, bytes: 1 << 40 }).unwrap();
        assert_eq!(device_of(&body), Some(3));
    }
}
