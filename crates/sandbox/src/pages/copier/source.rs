//! Where bytes to copy are read: memory of a process that stands still, or a file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::super::area::PAGE;
use super::super::contents::{filled, read_zero_filled};
use super::queue::PIECE;

/// A process that pages are read of.
pub struct Source {
    pub host_pid: i32,
    /// For what the process itself may not read.
    pub memory: File,
}

/// Where bytes are read.
#[derive(Clone)]
pub enum From {
    /// From that address on.
    Process(Arc<Source>, u64),
    /// From that place on; what is beyond its end is zero.
    File(Arc<File>, u64),
}

impl From {
    pub(super) fn after(&self, bytes: u64) -> From {
        match self {
            From::Process(source, address) => From::Process(source.clone(), address + bytes),
            From::File(file, at) => From::File(file.clone(), at + bytes),
        }
    }

    /// Fills a block.
    pub fn read(&self, block: &mut [u8]) -> io::Result<()> {
        match self {
            From::Process(source, address) => {
                let got = read(source.host_pid, *address, block);
                if got < block.len() {
                    // What the process itself may not read.
                    let got = got / PAGE as usize * PAGE as usize;
                    source.memory.read_exact_at(&mut block[got..], address + got as u64)?;
                }
                Ok(())
            }
            From::File(file, at) => read_zero_filled(file, block, *at),
        }
    }

    /// Calls `take` with the parts of `memory`, which begins here, that are not all zero, as they come.
    pub fn each_filled(
        &self,
        memory: &Range<u64>,
        mut take: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let length = memory.end - memory.start;
        let mut block = vec![0; PIECE.min(length) as usize];
        let mut done = 0;
        while done < length {
            let block = &mut block[..PIECE.min(length - done) as usize];
            self.after(done).read(block)?;
            filled(block, PAGE, |at, bytes| take(memory.start + done + at as u64, bytes))?;
            done += block.len() as u64;
        }
        Ok(())
    }
}

/// Reads as much as that process could read itself.
fn read(pid: i32, address: u64, into: &mut [u8]) -> usize {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: into.len() };
    // SAFETY: writes at most `into.len()` bytes to `into`; the other address is the other process's.
    let got = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    usize::try_from(got).unwrap_or(0)
}
