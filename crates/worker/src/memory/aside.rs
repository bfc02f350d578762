//! Memory that stays mapped while no buffer lies there, for one that comes soon: mapping and giving to others take longer than
//! a small copy.

use std::os::fd::{AsFd, OwnedFd};

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_device::{Access, Memory, Result};

use super::{Buffer, Content, Heap};

pub(super) struct Aside {
    room: u64,
    memory: Memory,
}

impl Heap {
    /// Makes memory that can be written to where it is mapped: there, and a descriptor of it.
    pub(crate) fn make_aside(&mut self, room: u64) -> Result<(u64, OwnedFd)> {
        let (at, memory) = self.make_hidden(room)?;
        match self.device.memory_export(memory) {
            Ok(descriptor) => {
                self.aside.insert(at, Aside { room, memory });
                Ok((at, descriptor))
            }
            Err(code) => {
                self.remove_hidden(at, room, memory);
                Err(code)
            }
        }
    }

    /// As [`Heap::make_aside`], of memory of another GPU.
    pub(crate) fn make_aside_on(&mut self, gpu: &[u8; 16], room: u64) -> Result<(u64, OwnedFd)> {
        let made = self.device.memory_create_on(gpu, room)?;
        let exported = self.device.memory_export(made);
        let released = self.device.memory_release(made);
        let descriptor = exported.and_then(|descriptor| released.map(|()| descriptor))?;
        let at = self.take_addresses(room, self.granularity(), 0)?;
        let memory = self.back(at, room, Some(descriptor.as_fd()), Access::ReadWrite);
        let memory = memory.inspect_err(|_| self.give_addresses(at, room))?;
        self.aside.insert(at, Aside { room, memory });
        Ok((at, descriptor))
    }

    /// A buffer on memory that others have too is none any more, and its memory stays mapped. No work may use it.
    pub(crate) fn set_aside(&mut self, at: u64) -> Result<()> {
        self.await_copies()?;
        let shared = self.buffers.get(&at).filter(|buffer| buffer.shared);
        let (room, memory) =
            shared.and_then(|buffer| Some((buffer.bytes, buffer.memory?))).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        self.buffers.remove(&at);
        self.aside.insert(at, Aside { room, memory });
        Ok(())
    }

    /// The memory there is a buffer of so many bytes again, which can only be read.
    pub(crate) fn put_back(&mut self, at: u64, bytes: u64) -> Result<()> {
        let Aside { room, memory } = self.aside.remove(&at).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let content = Content::Large { bytes, freed: false };
        let memory = Some(memory);
        let buffer = Buffer {
            bytes: room,
            memory,
            content,
            shared: true,
            declared: None,
            export: None,
            is_passed_on: false,
        };
        self.buffers.insert(at, buffer);
        Ok(())
    }

    /// Whether there is memory that was set aside.
    pub(crate) fn has_aside(&self, at: u64) -> bool {
        self.aside.contains_key(&at)
    }

    /// Gives back the memory there.
    pub(crate) fn drop_aside(&mut self, at: u64) {
        if let Some(Aside { room, memory }) = self.aside.remove(&at) {
            self.remove_hidden(at, room, memory);
        }
    }

    pub(super) fn drop_asides(&mut self) {
        while let Some(at) = self.aside.keys().next().copied() {
            self.drop_aside(at);
        }
    }
}
