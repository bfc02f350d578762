//! Memory that others map.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use memmap2::{Advice, MmapOptions, MmapRaw};
use rekindle_protocol::memory_file;

/// So much gets its pages at once.
pub const STEP: usize = 2 << 20;

/// Written here, read by whoever has the descriptor that [`Shared::reader`] gives. Its size never changes: nobody is given one
/// by which it can be written.
///
/// It is mapped here: of those who write to a file by system calls the kernel lets in one at a time.
pub struct Shared {
    file: File,
    /// None of nothing.
    memory: Option<MmapRaw>,
    /// Which steps have their pages.
    populated: Box<[AtomicBool]>,
}

impl Shared {
    pub fn new(bytes: u64) -> io::Result<Shared> {
        let file = memory_file::new(bytes)?;
        let length = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let memory = (length > 0).then(|| MmapOptions::new().len(length).map_raw(&file)).transpose()?;
        let populated = (0..length.div_ceil(STEP)).map(|_| AtomicBool::new(false)).collect();
        Ok(Shared { file, memory, populated })
    }

    /// A descriptor by which it can be mapped and read, and not be written.
    pub fn reader(&self) -> io::Result<OwnedFd> {
        Ok(File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))?.into())
    }

    /// Puts bytes there, unless they are what lies there; an error if they go beyond its end, or if there is no memory for them.
    /// Whoever writes at the same time writes elsewhere.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let to = self.place(offset, bytes.len())?;
        if !bytes.is_empty() && to.cast_const() != bytes.as_ptr() {
            // SAFETY: so many bytes from there on lie inside of the mapping, which nobody else unmaps, and its file never becomes
            // shorter. What is copied is not of that range, which nobody has a reference to before it is written.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        }
        Ok(())
    }

    /// Has the first of so many bytes there be written by `read`, which says how many they are. As with [`write`](Self::write),
    /// nobody else writes them, and nobody has a reference to them.
    pub fn read_into(
        &self,
        offset: u64,
        bytes: usize,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let to = self.place(offset, bytes)?;
        // SAFETY: as above; memory of a file is never without a value.
        read(unsafe { std::slice::from_raw_parts_mut(to, bytes) })
    }

    /// Bytes there that are written and stay as they are.
    pub fn written(&self, offset: u64, bytes: usize) -> &[u8] {
        match self.place(offset, bytes) {
            // SAFETY: as above, for as long as this is there; who has written them is done.
            Ok(from) => unsafe { std::slice::from_raw_parts(from, bytes) },
            Err(_) => &[],
        }
    }

    /// Where so many bytes from there on lie, with their pages.
    fn place(&self, offset: u64, bytes: usize) -> io::Result<*mut u8> {
        let length = self.memory.as_ref().map_or(0, MmapRaw::len);
        let start = usize::try_from(offset).ok().filter(|start| *start <= length);
        let start = start.filter(|start| bytes <= length - start).ok_or(io::ErrorKind::UnexpectedEof)?;
        let Some(memory) = self.memory.as_ref().filter(|_| bytes > 0) else {
            return Ok(std::ptr::NonNull::dangling().as_ptr());
        };
        for step in start / STEP..=(start + bytes - 1) / STEP {
            self.populate(memory, step)?;
        }
        Ok(memory.as_mut_ptr().wrapping_add(start))
    }

    /// Has all pages of a step made by one call, and learns where there is no memory for them by an error, in place of a
    /// signal.
    fn populate(&self, memory: &MmapRaw, step: usize) -> io::Result<()> {
        let start = step * STEP;
        if self.populated[step].load(Ordering::Acquire) {
            return Ok(());
        }
        match memory.advise_range(Advice::PopulateWrite, start, STEP.min(memory.len() - start)) {
            // A kernel that does not know it makes them when they are written to.
            Err(error) if error.raw_os_error() != Some(libc::EINVAL) => return Err(error),
            _ => self.populated[step].store(true, Ordering::Release),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn nothing_is_shared_of_nothing() {
        let shared = Shared::new(0).unwrap();
        shared.write(0, b"").unwrap();
        assert!(shared.write(0, b"0").is_err());
    }

    #[test]
    fn readers_see_what_is_written_and_can_change_nothing() {
        let shared = Shared::new(10_000).unwrap();
        let reader = File::from(shared.reader().unwrap());
        shared.write(9_990, b"0123456789").unwrap();
        assert!(shared.write(9_991, b"0123456789").is_err() && shared.write(u64::MAX, b"0").is_err());
        let mut seen = [0; 10];
        reader.read_exact_at(&mut seen, 9_990).unwrap();
        assert_eq!(&seen, b"0123456789");
        assert!(reader.write_at(b"x", 0).is_err() && reader.set_len(0).is_err());
    }
}
