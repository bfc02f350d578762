//! Memory that others have too: other programs' images, declared data, arrays that are handed on, other processes.

use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_device::{Access, Memory, Result, Stream};

use super::{Buffer, Content, Heap, Hold};
use crate::ipc::Export;

impl Heap {
    /// Bytes of those that are shared.
    pub(crate) fn shared_bytes(&self) -> u64 {
        self.buffers.values().filter(|buffer| buffer.shared).map(|buffer| buffer.bytes).sum()
    }

    /// Bytes of declared data whose memory other programs have made.
    pub(crate) fn others_bytes(&self) -> u64 {
        let others = self.buffers.values().filter(|buffer| buffer.declared == Some(Hold::Others));
        others.map(|buffer| buffer.bytes).sum()
    }

    /// Where shared buffers lie that one of these ranges meets.
    pub(crate) fn shared_in(&self, ranges: &[Range<u64>]) -> Vec<u64> {
        let meets =
            |at: u64, bytes: u64| ranges.iter().any(|range| range.start < at + bytes && at < range.end);
        let shared = self.buffers.iter().filter(|(at, buffer)| buffer.shared && meets(**at, buffer.bytes));
        shared.map(|(at, _)| *at).collect()
    }

    /// Makes a buffer of declared data, at addresses that were taken for it, on another program's memory.
    pub(crate) fn show_declared(
        &mut self,
        at: u64,
        (bytes, room): (u64, u64),
        from: BorrowedFd<'_>,
    ) -> Result<()> {
        let memory = self.back(at, room, Some(from), Access::Read)?;
        self.hold(at, room, memory, Content::Large { bytes, freed: false });
        self.note_declared(at, Some(Hold::Others));
        Ok(())
    }

    /// As [`Heap::place`], of declared data on memory that holds it.
    pub(crate) fn place_declared(&mut self, at: u64, sizes: (u64, u64), from: BorrowedFd<'_>) -> Result<()> {
        if !self.take_addresses_at(at, sizes.1) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.show_declared(at, sizes, from).inspect_err(|_| self.give_addresses(at, sizes.1))
    }

    /// A buffer that is filled is declared data from now on.
    pub(crate) fn declare(&mut self, at: u64) -> Result<()> {
        let buffer = self.buffers.get(&at).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        self.device.protect(at, buffer.bytes, Access::Read)?;
        self.note_declared(at, Some(Hold::Own));
        Ok(())
    }

    pub(crate) fn note_declared(&mut self, at: u64, hold: Option<Hold>) {
        if let Some(buffer) = self.buffers.get_mut(&at) {
            buffer.declared = hold;
        }
    }

    /// A descriptor of the memory of a buffer, and its bytes.
    pub(crate) fn descriptor(&self, at: u64) -> Result<(OwnedFd, u64)> {
        let buffer = self.buffers.get(&at).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let memory = buffer.memory.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        Ok((self.device.memory_export(memory)?, buffer.bytes))
    }

    /// Puts a buffer where an image has it, on memory that others have mapped too: it can only be read.
    pub(crate) fn place_shared(
        &mut self,
        at: u64,
        bytes: u64,
        content: Content,
        from: BorrowedFd<'_>,
    ) -> Result<()> {
        if !self.take_addresses_at(at, bytes) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.fill_shared(at, bytes, content, from)
    }

    fn fill_shared(&mut self, at: u64, bytes: u64, content: Content, from: BorrowedFd<'_>) -> Result<()> {
        match self.back(at, bytes, Some(from), Access::Read) {
            Ok(memory) => {
                self.hold(at, bytes, memory, content);
                if let Some(buffer) = self.buffers.get_mut(&at) {
                    buffer.shared = true;
                }
                Ok(())
            }
            Err(code) => {
                self.give_addresses(at, bytes);
                Err(code)
            }
        }
    }

    /// Makes a buffer on memory that others have too: it can only be read.
    pub(crate) fn add_shared(&mut self, bytes: u64, room: u64, from: BorrowedFd<'_>) -> Result<u64> {
        let at = self.take_addresses(room, self.granularity(), 0)?;
        self.fill_shared(at, room, Content::Large { bytes, freed: false }, from)?;
        Ok(at)
    }

    /// Has a buffer only be read from now on; its memory, for others.
    pub(crate) fn share(&mut self, at: u64) -> Result<OwnedFd> {
        let buffer = self.buffers.get_mut(&at).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let memory = buffer.memory.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        self.device.protect(at, buffer.bytes, Access::Read)?;
        buffer.shared = true;
        self.device.memory_export(memory)
    }

    /// Gives a shared buffer memory of its own with the same contents. The device is idle, and its context current.
    pub(crate) fn make_private(&mut self, at: u64) -> Result<()> {
        let Some(buffer) = self.buffers.get(&at).filter(|buffer| buffer.shared) else { return Ok(()) };
        let (bytes, Some(shared)) = (buffer.bytes, buffer.memory) else { return Ok(()) };
        self.await_copies()?;
        let window = self.take_addresses(bytes, self.granularity(), 0)?;
        let copied = self.back(window, bytes, None, Access::ReadWrite).and_then(|memory| {
            let filled = self
                .device
                .copy(window, at, bytes, Stream::LEGACY)
                .and_then(|()| self.device.stream_synchronize(Stream::LEGACY));
            let closed = self.device.unmap(window, bytes);
            filled.and(closed).map(|()| memory).inspect_err(|_| {
                let _ = self.device.memory_release(memory);
            })
        });
        self.give_addresses(window, bytes);
        let memory = copied?;
        self.device.unmap(at, bytes)?;
        self.device.map(at, bytes, memory)?;
        self.device.protect(at, bytes, Access::ReadWrite)?;
        if let Some(buffer) = self.buffers.get_mut(&at) {
            (buffer.memory, buffer.shared) = (Some(memory), false);
        }
        self.device.memory_release(shared)
    }

    /// Has the memory of the buffer that holds an address be had by others, in this way unless it is already: where the
    /// buffer starts, and how it is had. Memory that is a cache's, or another program's, is not.
    pub(crate) fn offer(
        &mut self,
        address: u64,
        way: impl FnOnce(OwnedFd, u64) -> Arc<Export>,
    ) -> Result<(u64, Arc<Export>)> {
        let (at, buffer) = self.holding(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let export = match &buffer.export {
            Some(export) => export.clone(),
            None if buffer.shared || buffer.declared.is_some() => return Err(CUDA_ERROR_INVALID_VALUE),
            None => {
                let memory = buffer.memory.ok_or(CUDA_ERROR_INVALID_VALUE)?;
                way(self.device.memory_export(memory)?, buffer.bytes)
            }
        };
        if let Some(buffer) = self.buffers.get_mut(&at) {
            buffer.export = Some(export.clone());
        }
        Ok((at, export))
    }

    /// Maps another process's memory, which is no buffer here: at addresses that were taken for it, or at new ones.
    pub(crate) fn map_other(
        &mut self,
        at: Option<u64>,
        bytes: u64,
        from: BorrowedFd<'_>,
    ) -> Result<(u64, Memory)> {
        let address = match at {
            Some(at) => at,
            None => self.take_addresses(bytes, self.granularity(), 0)?,
        };
        let mapped = self.back(address, bytes, Some(from), Access::ReadWrite);
        let memory = mapped.inspect_err(|_| {
            if at.is_none() {
                self.give_addresses(address, bytes);
            }
        })?;
        Ok((address, memory))
    }

    /// Gives back what [`Heap::map_other`] has mapped. No work may use it any more.
    pub(crate) fn unmap_other(&mut self, at: u64, bytes: u64, memory: Memory) -> Result<()> {
        self.device.unmap(at, bytes)?;
        self.give_addresses(at, bytes);
        self.device.memory_release(memory)
    }

    /// Makes a buffer of what [`Heap::map_other`] has mapped, on memory of its own with the same contents. The device is
    /// idle, and its context current.
    pub(crate) fn adopt(&mut self, at: u64, bytes: u64, memory: Memory) -> Result<()> {
        let content = Content::Large { bytes, freed: false };
        self.buffers.insert(
            at,
            Buffer {
                bytes,
                memory: Some(memory),
                content,
                shared: true,
                declared: None,
                export: None,
                is_passed_on: false,
            },
        );
        self.make_private(at).inspect_err(|_| {
            if self.buffers.get(&at).is_some_and(|buffer| buffer.memory == Some(memory)) {
                self.buffers.remove(&at);
            }
        })
    }
}
