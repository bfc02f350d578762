//! Reading chunks that are not in memory, past the page cache: several under way at once, straight into blocks that the
//! device copies from.
//!
//! ```text
//!   in the page cache ──▶ read by the thread, a copy by the processor
//!   not there ──▶ io_uring, O_DIRECT ──▶ block ──▶ device
//! ```
//!
//! Each thread that loads has a ring of its own; together they have no more reads under way than [`DEPTH`], which
//! saturates a disk and leaves a queue short enough for the pages that the program itself waits for. Where the kernel
//! refuses rings (seccomp, `io_uring_disabled`) or the file system direct reads, all is read through the page cache.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use io_uring::{IoUring, opcode, types};
use rekindle_store::RawChunk;

/// Reads under way at once, of up to 2 MB each. A disk was measured to give most with 4, and a fifth less with 16.
const DEPTH: usize = 4;

/// What the readers of one load share.
pub(super) struct Disk {
    /// How many more reads may begin.
    free: Mutex<usize>,
    freed: Condvar,
    /// Something of it does not work here.
    refused: AtomicBool,
}

impl Disk {
    pub(super) fn new() -> Disk {
        Disk { free: Mutex::new(DEPTH), freed: Condvar::new(), refused: AtomicBool::new(false) }
    }

    /// Whether this chunk is to be read past the page cache; reads of its file do so from now on.
    pub(super) fn takes(&self, chunk: &RawChunk) -> bool {
        if self.refused.load(Ordering::Relaxed) {
            return false;
        }
        match chunk.is_in_memory() {
            Ok(true) => false,
            Ok(false) => match chunk.set_direct(true) {
                Ok(()) => true,
                Err(error) => self.refuse("the file system reads through the page cache alone", &error),
            },
            Err(error) => self.refuse("the kernel does not tell what the page cache holds", &error),
        }
    }

    fn refuse(&self, why: &str, error: &io::Error) -> bool {
        if !self.refused.swap(true, Ordering::Relaxed) {
            log::debug!("images are read through the page cache: {why} ({error})");
        }
        false
    }

    fn permits(&self) -> MutexGuard<'_, usize> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_take(&self) -> bool {
        let mut free = self.permits();
        let is_free = *free > 0;
        *free -= usize::from(is_free);
        is_free
    }

    fn wait_and_take(&self) {
        let free = self.permits();
        let mut free = self.freed.wait_while(free, |free| *free == 0).unwrap_or_else(PoisonError::into_inner);
        *free -= 1;
    }

    fn give(&self) {
        *self.permits() += 1;
        self.freed.notify_one();
    }
}

/// The reads of one thread.
pub(super) struct Reader<'d> {
    disk: &'d Disk,
    /// Made when it is first needed.
    ring: Option<IoUring>,
    /// Those that were begun and not landed, the oldest first, by number, with what the kernel has said.
    flying: VecDeque<(usize, Option<i32>)>,
}

impl<'d> Reader<'d> {
    pub(super) fn new(disk: &'d Disk) -> Reader<'d> {
        Reader { disk, ring: None, flying: VecDeque::new() }
    }

    /// Whether this thread is to read this chunk so.
    pub(super) fn takes(&mut self, chunk: &RawChunk) -> bool {
        if !self.disk.takes(chunk) {
            return false;
        }
        if self.ring.is_none() {
            match IoUring::new(DEPTH as u32) {
                Ok(ring) => self.ring = Some(ring),
                Err(error) => {
                    let _ = chunk.set_direct(false);
                    return self.disk.refuse("the kernel refuses io_uring", &error);
                }
            }
        }
        true
    }

    /// Whether a read may begin now. If not, the oldest of this thread is to be landed first.
    pub(super) fn may_begin(&mut self) -> bool {
        if self.disk.try_take() {
            return true;
        }
        if self.flying.is_empty() {
            // Others hold all; each lands its own without waiting for anybody.
            self.disk.wait_and_take();
            return true;
        }
        false
    }

    /// The oldest read that was not landed.
    pub(super) fn oldest(&self) -> Option<usize> {
        self.flying.front().map(|(number, _)| *number)
    }

    /// Begins to read a chunk that [`Reader::takes`], once [`Reader::may_begin`]. No other read under way has this number.
    ///
    /// # Safety
    /// So many bytes from `into` on, as the chunk's direct reads take, are the kernel's until the read has landed or the
    /// reader is dropped.
    pub(super) unsafe fn begin(&mut self, number: usize, chunk: &RawChunk, into: *mut u8) -> io::Result<()> {
        let file = types::Fd(chunk.file().as_raw_fd());
        let entry = opcode::Read::new(file, into, chunk.direct_bytes() as u32).build();
        let entry = entry.user_data(number as u64);
        let begun = match &mut self.ring {
            // SAFETY: the caller has left the bytes to it, and the file stays open for as long as the read goes on: the
            // kernel holds it.
            Some(ring) => unsafe { ring.submission().push(&entry) }
                .map_err(|full| io::Error::other(full.to_string()))
                .and_then(|()| again(|| ring.submit())),
            None => Err(io::Error::from(io::ErrorKind::Unsupported)),
        };
        match begun {
            Ok(_) => self.flying.push_back((number, None)),
            Err(_) => self.disk.give(),
        }
        begun.map(drop)
    }

    /// Waits for a read, and returns how many bytes are there. The caller has all of them again.
    pub(super) fn land(&mut self, number: usize) -> io::Result<usize> {
        loop {
            let at = self.flying.iter().position(|(flying, _)| *flying == number);
            let at = at.ok_or(io::ErrorKind::NotFound)?;
            if let (_, Some(result)) = self.flying[at] {
                self.flying.remove(at);
                return usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
            }
            self.hear();
        }
    }

    /// The file system cannot read past the page cache into such memory after all.
    pub(super) fn refuse(&self, error: &io::Error) {
        self.disk.refuse("the file system refuses direct reads of 4 KB sectors", error);
    }

    /// Waits until the kernel has something to say.
    fn hear(&mut self) {
        let Some(ring) = &mut self.ring else { return };
        if let Err(error) = again(|| ring.submit_and_wait(1)) {
            // Nothing else tells when the kernel is done with the bytes.
            log::error!("the end of a read cannot be waited for: {error}");
            std::process::abort();
        }
        for entry in ring.completion() {
            let known = self.flying.iter_mut().find(|(number, _)| *number as u64 == entry.user_data());
            if let Some((_, result)) = known {
                *result = Some(entry.result());
                self.disk.give();
            }
        }
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        while self.flying.iter().any(|(_, result)| result.is_none()) {
            self.hear();
        }
    }
}

/// Once more where a signal came in between.
fn again<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}
