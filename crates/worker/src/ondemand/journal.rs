//! Requests that were done before all memory was there, kept so that they can be done once more.
//!
//! The journal is a file in memory that the daemon has a descriptor of too: what is in it outlives the worker, whichever
//! way that ends. Each step of a request is in it before the program can see the next one, so that whoever goes on knows
//! what was done, and what of that the program was told.
//!
//! ```text
//!   page    next request, bytes of entries, the last answer, all is settled, where a base belongs
//!   entry   ring, opcode, body, trailer, staged, flags (u32 each: number or length), ticket (u64)
//!           body   trailer   staged bytes
//! ```

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FallocateFlags, fallocate, posix_fallocate};
use rekindle_device::Access;
use rekindle_protocol::operation::{Asynchronous, Upload};

use crate::host_memory::HostMemory;

mod entry;
mod mark;
#[cfg(test)]
mod tests;

pub(super) use entry::{Entry, Flags};
use entry::{FAILED, HEAD, Lasting, MAKING, lasting, read};
pub(super) use mark::{Mark, marked, unmarked};

/// More bytes than this are not kept: what would come then waits until all memory is there.
pub(super) const MOST_BYTES: usize = 64 << 20;
const PAGE: usize = 4096;
/// Memory is taken in steps of this.
const STEP: usize = 1 << 20;
/// So much of it stays when a journal begins anew.
const SPARE: usize = 8 << 20;
/// Stands for a ring that came; the body is its number with the client, the trailer its name.
const RING: u32 = u32::MAX;
pub(crate) struct Journal {
    file: File,
    /// This value alone uses it; who else has the file reads it when this process has let go of it.
    mapping: MmapRaw,
    /// Bytes of the file that have memory.
    reserved: usize,
    /// Where the request is that is being done, if it is here. Entries that follow one another do not move meanwhile.
    admitted: Option<usize>,
}

#[repr(C)]
struct Page {
    /// Requests before this one were done.
    next: AtomicU64,
    bytes: AtomicU64,
    /// The last answer: behind which request, on which ring, and how many answers that had before.
    answered: AtomicU64,
    ring: AtomicU64,
    count: AtomicU64,
    settled: AtomicU64,
    /// Entries before this many bytes are of what lasts, and were done before memory was what the base has.
    based: AtomicU64,
}

/// An answer that may not have been given yet.
pub(super) struct Answered {
    pub ring: usize,
    /// How many answers the ring had before.
    pub count: u32,
}

impl Journal {
    /// Takes a file for a new journal.
    pub(crate) fn new(file: OwnedFd) -> io::Result<Journal> {
        let file = File::from(file);
        file.set_len(0)?;
        file.set_len((PAGE + MOST_BYTES) as u64)?;
        let mut journal = Journal::map(file)?;
        match journal.reserve(PAGE) {
            true => Ok(journal),
            false => Err(io::ErrorKind::OutOfMemory.into()),
        }
    }

    /// Takes over what another worker has written.
    pub(super) fn inherit(file: OwnedFd) -> io::Result<Journal> {
        let file = File::from(file);
        match file.metadata()?.len() {
            bytes if bytes == (PAGE + MOST_BYTES) as u64 => Journal::map(file),
            bytes => Err(io::Error::other(format!("it has {bytes} bytes"))),
        }
    }

    fn map(file: File) -> io::Result<Journal> {
        let mapping = MmapOptions::new().len(PAGE + MOST_BYTES).map_raw(&file)?;
        Ok(Journal { file, mapping, reserved: 0, admitted: None })
    }

    fn base(&self) -> *mut u8 {
        self.mapping.as_mut_ptr()
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(super) fn has_room(&mut self, more: usize) -> bool {
        let end = self.bytes() + HEAD + more;
        end <= MOST_BYTES && self.reserve(PAGE + end)
    }

    /// Gives memory to so many bytes of the file: without it a store there would end the process.
    fn reserve(&mut self, end: usize) -> bool {
        if end <= self.reserved {
            return true;
        }
        let wanted = end.next_multiple_of(STEP).min(PAGE + MOST_BYTES);
        let reserved = posix_fallocate(&self.file, 0, wanted as libc::off_t).is_ok();
        if reserved {
            self.reserved = wanted;
        }
        reserved
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries().all(|entry| entry.opcode == RING)
    }

    /// Adds a request, for which there is room, and says where it is.
    pub(super) fn push(&mut self, entry: &Entry<'_>) -> usize {
        let at = self.bytes();
        let lengths = [entry.body.len(), entry.trailer.len(), entry.staged.len()].map(|bytes| bytes as u32);
        let [body, trailer, staged] = lengths;
        let mut head = [0; HEAD];
        for (n, word) in
            [entry.ring as u32, entry.opcode, body, trailer, staged, entry.flags.0].into_iter().enumerate()
        {
            head[n * 4..n * 4 + 4].copy_from_slice(&word.to_le_bytes());
        }
        head[24..].copy_from_slice(&entry.ticket.to_le_bytes());
        let mut end = at;
        for part in [&head, entry.body, entry.trailer, entry.staged] {
            // SAFETY: `has_room` has said that the mapping has memory up to the end of the entry.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), self.base().add(PAGE + end), part.len()) };
            end += part.len();
        }
        self.page().bytes.store(end as u64, Ordering::Release);
        at
    }

    /// Another request is looked at: what becomes of it is no matter of the one before.
    pub(super) fn next_admission(&mut self) {
        self.admitted = None;
    }

    /// Adds the request that is done next, as [`Journal::push`] does.
    pub(super) fn admit(&mut self, entry: &Entry<'_>) -> usize {
        let at = self.push(entry);
        self.admitted = Some(at);
        at
    }

    /// Whether the request that is being done is here.
    pub(crate) fn has_admitted(&self) -> bool {
        self.admitted.is_some()
    }

    /// The request that is being done has failed, and had no effect.
    pub(crate) fn fail_admitted(&mut self) {
        if let Some(at) = self.admitted.take() {
            self.fail(at);
        }
    }

    /// The request that was to be done was not done.
    pub(crate) fn put_back_admitted(&mut self) {
        if let Some(at) = self.admitted.take() {
            self.put_back(at);
        }
    }

    /// A ring has come.
    pub(crate) fn push_ring(&mut self, index: u32, name: &str) -> bool {
        let body = index.to_le_bytes();
        let room = self.has_room(body.len() + name.len());
        if room {
            self.push(&Entry {
                ring: 0,
                opcode: RING,
                body: &body,
                trailer: name.as_bytes(),
                staged: &[],
                staged_at: 0,
                ticket: 0,
                flags: Flags::default(),
            });
        }
        room
    }

    /// The request there had no effect.
    pub(super) fn fail(&mut self, at: usize) {
        self.set_flags(at, FAILED);
    }

    /// The request there, which was put aside, is done.
    pub(super) fn came_back(&mut self, at: usize) {
        self.set_flags(at, 0);
    }

    fn set_flags(&mut self, at: usize, flags: u32) {
        // SAFETY: `at` is the start of an entry, whose flags are its sixth word.
        unsafe { self.base().add(PAGE + at + 20).cast::<u32>().write_unaligned(flags.to_le()) };
    }

    fn set_staged(&mut self, at: usize, bytes: u32) {
        // SAFETY: `at` is the start of an entry, the length of whose staged bytes is its fifth word.
        unsafe { self.base().add(PAGE + at + 16).cast::<u32>().write_unaligned(bytes.to_le()) };
    }

    /// The request there.
    pub(super) fn at(&self, at: usize) -> Option<Entry<'_>> {
        read(self.written(), at).map(|(entry, _)| entry)
    }

    /// Forgets the last entry, which is there: its request is still to be taken from its ring.
    fn put_back(&mut self, at: usize) {
        self.page().bytes.store(at as u64, Ordering::Release);
    }

    /// The request of this ticket is done. `answer`: it has one, on this ring, which has had so many before; the
    /// program has not been told of it yet.
    pub(crate) fn done(&mut self, ticket: u64, answer: Option<(usize, u32)>) {
        let page = self.page();
        if let Some((ring, count)) = answer {
            page.ring.store(ring as u64, Ordering::Release);
            page.count.store(u64::from(count), Ordering::Release);
            page.answered.store(ticket + 1, Ordering::Release);
        }
        page.next.store(ticket + 1, Ordering::Release);
    }

    /// All memory is there and all that was done has ended: from now on the program is told things that no other worker
    /// could know.
    pub(crate) fn settle(&mut self) {
        self.admitted = None;
        self.page().settled.store(1, Ordering::Release);
    }

    /// Forgets what all requests so far have done to memory: it stays as it is. What else they have left is kept.
    pub(crate) fn begin_anew(&mut self) {
        self.admitted = None;
        let mut end = 0;
        for (at, bytes, flags) in self.lasting(self.bytes()) {
            // SAFETY: both lie in what was written, the later place is not behind the earlier one, and they may overlap.
            unsafe { std::ptr::copy(self.base().add(PAGE + at), self.base().add(PAGE + end), bytes) };
            self.keep_entry(end, flags);
            end += bytes;
        }
        self.page().bytes.store(end as u64, Ordering::Release);
    }

    /// Begins with what lasts of another journal up to a place in it, if there is one: from a base on, at this request. False
    /// without memory for it.
    pub(super) fn begin_behind(&mut self, before: Option<(&Journal, usize)>, next: u64) -> bool {
        self.admitted = None;
        let page = self.page();
        for word in [&page.bytes, &page.answered, &page.ring, &page.count, &page.settled, &page.based] {
            word.store(0, Ordering::Release);
        }
        page.next.store(next, Ordering::Release);
        let kept = before.map(|(before, end)| before.lasting(end)).unwrap_or_default();
        if !self.reserve(PAGE + kept.iter().map(|(_, bytes, _)| bytes).sum::<usize>()) {
            return false;
        }
        let mut end = 0;
        for (at, bytes, flags) in kept {
            let Some((before, _)) = before else { break };
            // SAFETY: what was written there, and what has memory here; the mappings are two.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    before.base().add(PAGE + at),
                    self.base().add(PAGE + end),
                    bytes,
                )
            };
            self.keep_entry(end, flags);
            end += bytes;
        }
        self.page().bytes.store(end as u64, Ordering::Release);
        self.page().based.store(end as u64, Ordering::Release);
        self.give_back(PAGE + end + SPARE);
        true
    }

    /// Begins with what `lasts` of another journal up to a place in it where an entry begins, and with all entries from there on:
    /// the base belongs there. `next` is the request that is done next. False without memory for it.
    pub(super) fn begin_at(&mut self, before: &Journal, at: usize, lasts: bool, next: u64) -> bool {
        if !self.begin_behind(lasts.then_some((before, at)), next) {
            return false;
        }
        let (based, more) = (self.bytes(), before.bytes().saturating_sub(at));
        if !self.reserve(PAGE + based + more) {
            return false;
        }
        // SAFETY: what was written there, and what has memory here; the mappings are two.
        unsafe {
            std::ptr::copy_nonoverlapping(before.base().add(PAGE + at), self.base().add(PAGE + based), more)
        };
        self.page().bytes.store((based + more) as u64, Ordering::Release);
        true
    }

    /// Gives memory back that is not used behind so many bytes.
    fn give_back(&mut self, end: usize) {
        let end = end.next_multiple_of(STEP);
        if self.reserved <= end {
            return;
        }
        let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        // Nothing is written there before it is reserved again.
        if fallocate(&self.file, mode, end as libc::off_t, (self.reserved - end) as libc::off_t).is_ok() {
            self.reserved = end;
        }
    }

    /// Where a base belongs: entries before that are of what lasts.
    pub(super) fn based_at(&self) -> usize {
        self.page().based.load(Ordering::Acquire) as usize
    }

    /// How many bytes are kept of what was asked for since the base was taken.
    pub(super) fn since_base(&self) -> usize {
        self.bytes().saturating_sub(self.based_at())
    }

    /// Entries before a place that last: where each is, how many bytes of it are kept, and with which flags.
    fn lasting(&self, end: usize) -> Vec<(usize, usize, u32)> {
        let places = || self.places().take_while(|(at, _)| *at < end);
        let mut last = HashMap::new();
        for (at, entry) in places() {
            if let Some(lasting) = lasting(&entry) {
                last.insert(lasting, at);
            }
        }
        let mut kept: Vec<(usize, usize, u32)> = Vec::new();
        for (at, entry) in places() {
            let bytes = entry.staged_at + entry.staged.len() - at;
            let flags = entry.flags.0;
            match lasting(&entry) {
                Some(lasting) if last.get(&lasting) != Some(&at) => {}
                // Its bytes are where they were to go, and only how far the area was used is still to be told.
                Some(Lasting::Staged(_)) => kept.push((at, bytes - entry.staged.len(), FAILED)),
                Some(Lasting::Record(_)) => kept.push((at, bytes, flags)),
                None if entry.opcode == RING || MAKING.contains(&entry.opcode) => {
                    kept.push((at, bytes, flags))
                }
                None => {}
            }
        }
        kept
    }

    /// The entry there was moved, and has these flags.
    fn keep_entry(&mut self, at: usize, flags: u32) {
        self.set_flags(at, flags);
        if flags & FAILED != 0 {
            self.set_staged(at, 0);
        }
    }

    /// Writes the trailer of an entry, which has room for it.
    pub(super) fn set_trailer(&mut self, at: usize, trailer: &[u8]) {
        let Some(offset) = self
            .at(at)
            .filter(|entry| entry.trailer.len() == trailer.len())
            .map(|entry| HEAD + entry.body.len())
        else {
            return;
        };
        // SAFETY: the entry there has a trailer that is as long, behind its body.
        unsafe {
            std::ptr::copy_nonoverlapping(
                trailer.as_ptr(),
                self.base().add(PAGE + at + offset),
                trailer.len(),
            )
        };
    }

    /// Where the entry is that was admitted last.
    pub(super) fn admitted(&self) -> Option<usize> {
        self.admitted
    }

    /// Notes what becomes of an entry that has a trailer for it.
    pub(super) fn mark(&self, at: usize) -> Mark {
        // SAFETY: `at` is the start of an entry.
        Mark::new(unsafe { self.base().add(PAGE + at) }, &self.page().next)
    }

    pub(super) fn is_settled(&self) -> bool {
        self.page().settled.load(Ordering::Acquire) != 0
    }

    /// The number of the request that is to be done next.
    pub(super) fn next(&self) -> u64 {
        self.page().next.load(Ordering::Acquire)
    }

    /// The answer to the last request that was done, if it had one.
    pub(super) fn answered(&self) -> Option<Answered> {
        let page = self.page();
        (page.answered.load(Ordering::Acquire) == self.next() && self.next() != 0).then(|| Answered {
            ring: page.ring.load(Ordering::Acquire) as usize,
            count: page.count.load(Ordering::Acquire) as u32,
        })
    }

    /// Drops a request that was noted and not done.
    pub(super) fn cut(&mut self) {
        let next = self.next();
        let undone = |entry: &(usize, Entry<'_>)| entry.1.opcode != RING && entry.1.ticket >= next;
        let place = self.places().find(undone).map(|(at, _)| at);
        if let Some(at) = place {
            self.put_back(at);
        }
    }

    /// Requests in their order, each with where it is.
    pub(super) fn requests_at(&self) -> impl Iterator<Item = (usize, Entry<'_>)> {
        self.places().filter(|(_, entry)| entry.opcode != RING)
    }

    /// Requests in their order.
    pub(super) fn requests(&self) -> impl Iterator<Item = Entry<'_>> {
        self.entries().filter(|entry| entry.opcode != RING)
    }

    /// Rings that have come: their number with the client, and name.
    pub(super) fn rings(&self) -> impl Iterator<Item = (u32, String)> {
        self.entries().filter(|entry| entry.opcode == RING).filter_map(|entry| {
            let index = u32::from_le_bytes(entry.body.try_into().ok()?);
            Some((index, String::from_utf8(entry.trailer.to_vec()).ok()?))
        })
    }

    /// Up to where each ring's staging area was used; failed uploads have used it too.
    pub(super) fn staged(&self) -> Vec<u64> {
        let mut staged = Vec::new();
        for entry in self.requests().filter(|entry| entry.opcode == Upload::OPCODE) {
            if let Ok(upload) = postcard::from_bytes::<Upload>(entry.body) {
                staged.resize(staged.len().max(entry.ring + 1), 0);
                staged[entry.ring] = upload.end.max(staged[entry.ring]);
            }
        }
        staged
    }

    /// The entries, in memory that a GPU can be told of for longer than this journal is used.
    pub(super) fn entries_for_gpu(&self) -> io::Result<(HostMemory, u64)> {
        let file = OwnedFd::from(self.file.try_clone()?);
        let memory = HostMemory::map(&file, (PAGE + self.bytes()) as u64, Access::ReadWrite)?;
        let entries = memory.address() + PAGE as u64;
        Ok((memory, entries))
    }

    /// Where the entries lie in memory.
    pub(super) fn memory(&self) -> (u64, usize) {
        (self.base() as u64 + PAGE as u64, self.bytes())
    }

    fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.places().map(|(_, entry)| entry)
    }

    /// All entries and where each is; none after one that is cut short.
    fn places(&self) -> impl Iterator<Item = (usize, Entry<'_>)> {
        let bytes = self.written();
        let mut at = 0;
        std::iter::from_fn(move || {
            let began = at;
            let (entry, end) = read(bytes, at)?;
            at = end;
            Some((began, entry))
        })
    }

    fn written(&self) -> &[u8] {
        let (base, bytes) = self.memory();
        // SAFETY: the mapping is as long, and while it is borrowed nothing is written.
        unsafe { std::slice::from_raw_parts(base as *const u8, bytes) }
    }

    /// Bytes of entries.
    pub(super) fn bytes(&self) -> usize {
        (self.page().bytes.load(Ordering::Acquire) as usize).min(MOST_BYTES)
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping begins with a page of its own, which zero bytes are valid for.
        unsafe { &*self.base().cast::<Page>() }
    }
}
