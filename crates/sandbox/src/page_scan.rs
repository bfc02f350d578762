//! What the kernel knows of the pages of a process (`PAGEMAP_SCAN`), also what was written since it was
//! [protected](crate::protection).

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;

use crate::pages::PAGE;

/// The request's number: that of the kernel's `ioctl`.
pub const PAGEMAP_SCAN: u64 = 0xc060_6610;

/// What is known of a page.
pub const PROTECTABLE: u64 = 1;
pub const WRITTEN: u64 = 1 << 1;
pub const OF_FILE: u64 = 1 << 2;
pub const PRESENT: u64 = 1 << 3;
pub const SWAPPED: u64 = 1 << 4;
pub const ZERO_PAGE: u64 = 1 << 5;
/// Nobody may touch it (`MADV_GUARD_INSTALL`), and nothing is there.
pub const GUARD: u64 = 1 << 8;

/// Protects what is found.
const PROTECT: u64 = 1;

/// Where the addresses of processes end.
const END: u64 = 0x7fff_ffff_f000;
/// So many stretches are asked for at once.
const AT_ONCE: usize = 4096;

/// The kernel's `pm_scan_arg`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Scan {
    pub size: u64,
    pub flags: u64,
    pub start: u64,
    pub end: u64,
    pub walk_end: u64,
    pub vec: u64,
    pub vec_len: u64,
    pub max_pages: u64,
    pub category_inverted: u64,
    pub category_mask: u64,
    pub category_anyof_mask: u64,
    pub return_mask: u64,
}

/// The kernel's `page_region`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Region {
    pub start: u64,
    pub end: u64,
    pub categories: u64,
}

impl Region {
    /// As they lie in memory, one after the other.
    pub fn to_bytes(all: &[Region]) -> Vec<u8> {
        let words = all.iter().flat_map(|region| [region.start, region.end, region.categories]);
        words.flat_map(u64::to_ne_bytes).collect()
    }

    /// Whether it was protected and nothing has been written to it since.
    pub fn is_unwritten(&self) -> bool {
        self.categories & (PROTECTABLE | WRITTEN) == PROTECTABLE
    }
}

impl Scan {
    /// As it lies in memory.
    pub fn from_bytes(bytes: &[u8]) -> Scan {
        let mut words = bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_ne_bytes));
        let mut next = || words.next().unwrap_or(0);
        Scan {
            size: next(),
            flags: next(),
            start: next(),
            end: next(),
            walk_end: next(),
            vec: next(),
            vec_len: next(),
            max_pages: next(),
            category_inverted: next(),
            category_mask: next(),
            category_anyof_mask: next(),
            return_mask: next(),
        }
    }

    pub fn to_bytes(self) -> Vec<u8> {
        let words = [
            self.size,
            self.flags,
            self.start,
            self.end,
            self.walk_end,
            self.vec,
            self.vec_len,
            self.max_pages,
            self.category_inverted,
            self.category_mask,
            self.category_anyof_mask,
            self.return_mask,
        ];
        words.into_iter().flat_map(u64::to_ne_bytes).collect()
    }

    /// Pages that only the process has, whatever was written: what CRIU asks for too.
    fn own(span: &Range<u64>) -> Scan {
        Scan { category_anyof_mask: PRESENT | SWAPPED, ..Scan::without(OF_FILE | ZERO_PAGE | guard(), span) }
    }

    /// Pages of none of these categories.
    fn without(categories: u64, span: &Range<u64>) -> Scan {
        Scan {
            size: size_of::<Scan>() as u64,
            start: span.start,
            end: span.end,
            category_inverted: categories,
            category_mask: categories,
            ..Scan::default()
        }
    }

    /// Whether this asks for the pages of a process that are to be dumped.
    pub fn asks_for_pages(&self) -> bool {
        self.flags == 0 && self.category_anyof_mask == PRESENT | SWAPPED
    }

    /// Asks the kernel; as many stretches as there is room for, up to `walk_end`.
    pub fn ask(&mut self, pagemap: &impl AsFd, room: &mut [Region]) -> io::Result<usize> {
        (self.vec, self.vec_len) = (room.as_mut_ptr() as u64, room.len() as u64);
        // SAFETY: the structure is the one of this request, and points to as much room as it says.
        let found =
            unsafe { libc::ioctl(pagemap.as_fd().as_raw_fd(), PAGEMAP_SCAN as _, std::ptr::from_mut(self)) };
        usize::try_from(found).map_err(|_| io::Error::last_os_error())
    }

    /// All that is found, whatever room it takes.
    fn all(mut self, pagemap: &File) -> io::Result<Vec<Range<u64>>> {
        // Most that is asked about is an area of few pages.
        let pages = (self.end - self.start) / PAGE + 1;
        let most = usize::try_from(pages).map_or(AT_ONCE, |pages| pages.min(AT_ONCE));
        let (mut room, mut out) = (vec![Region::default(); most], Vec::<Range<u64>>::new());
        while self.start < self.end {
            let found = match self.ask(pagemap, &mut room) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                found => found?,
            };
            for region in &room[..found] {
                match out.last_mut() {
                    // After more than 512 stretches the kernel may say that it has looked less far than it has, and tells of
                    // some once more.
                    Some(last) if region.start <= last.end => last.end = last.end.max(region.end),
                    _ => out.push(region.start..region.end),
                }
            }
            if self.walk_end <= self.start {
                return Err(io::Error::other("the kernel looked at no page"));
            }
            self.start = self.walk_end;
        }
        Ok(out)
    }
}

/// The category of guards, where the kernel has it.
fn guard() -> u64 {
    static KNOWN: OnceLock<u64> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let asked =
            File::open("/proc/self/pagemap").and_then(|own| Scan::without(GUARD, &(0..0)).ask(&own, &mut []));
        if asked.is_ok() { GUARD } else { 0 }
    })
}

/// Whether a process has guards.
pub fn has_guards(pagemap: &File) -> io::Result<bool> {
    let asked = Scan { category_mask: guard(), return_mask: guard(), ..Scan::without(0, &(0..END)) };
    Ok(guard() != 0 && !asked.all(pagemap)?.is_empty())
}

/// Where a process's pages were written to since they were protected, or cannot be protected, if there is room for all. None
/// where that is not all: a page that was not written to under another protection than ours has no note of it.
pub fn find_written(pagemap: &File, room: &mut [Region]) -> io::Result<Option<usize>> {
    let mut other = Scan {
        category_mask: PROTECTABLE | WRITTEN,
        category_inverted: PROTECTABLE | WRITTEN,
        category_anyof_mask: PRESENT | SWAPPED,
        return_mask: PRESENT | SWAPPED,
        max_pages: 1,
        ..Scan::without(0, &(0..END))
    };
    if other.ask(pagemap, &mut [Region::default()])? > 0 {
        return Ok(None);
    }
    let (mut at, mut count) = (0, 0);
    while at < END {
        // Asked for nothing else, the kernel looks at page tables alone.
        let mut quick = Scan { category_mask: WRITTEN, return_mask: WRITTEN, ..Scan::without(0, &(at..END)) };
        let free = &mut room[count..];
        if free.is_empty() {
            return Ok(None);
        }
        let found = quick.ask(pagemap, free)?;
        if quick.walk_end <= at {
            return Ok(None);
        }
        // It may have looked farther than it says.
        at = free[..found].last().map_or(quick.walk_end, |last| last.end.max(quick.walk_end));
        count += found;
    }
    Ok(Some(count))
}

/// Protects the pages of its own that a process has within `span` where that can be done, and tells which those are; with
/// `written`, only those that were written to since they were protected.
pub fn protect(pagemap: &File, span: &Range<u64>, written: bool) -> io::Result<Vec<Range<u64>>> {
    let mut scan = Scan { flags: PROTECT, ..Scan::own(span) };
    // Other memory is passed over as a whole: the kernel would set its notes there too.
    scan.category_mask |= PROTECTABLE;
    if written {
        scan.category_mask |= WRITTEN;
    }
    scan.all(pagemap)
}

/// Protects all pages within `span`, also those that are shared with others or not there yet; whether that could be done.
pub fn protect_all(pagemap: &File, span: &Range<u64>) -> io::Result<bool> {
    let scan = Scan { flags: PROTECT, category_mask: PROTECTABLE, ..Scan::without(0, span) };
    Ok(is_whole(&scan.all(pagemap)?, span))
}

/// Whether nothing has been written to `span` since all of it was protected. A page of which the kernel knows nothing any more may
/// have been.
pub fn is_unwritten(pagemap: &File, span: &Range<u64>) -> io::Result<bool> {
    let scan = Scan {
        category_mask: PROTECTABLE | WRITTEN,
        category_inverted: WRITTEN,
        category_anyof_mask: PRESENT | SWAPPED,
        ..Scan::without(0, span)
    };
    Ok(is_whole(&scan.all(pagemap)?, span))
}

fn is_whole(found: &[Range<u64>], span: &Range<u64>) -> bool {
    matches!(found, [one] if one.start <= span.start && span.end <= one.end)
}

/// The pages of its own that a process has.
pub fn own(pagemap: &File) -> io::Result<Vec<Range<u64>>> {
    Scan::own(&(0..END)).all(pagemap)
}

/// The pages of its own that were protected and have not been written to since.
pub fn unwritten(pagemap: &File) -> io::Result<Vec<Range<u64>>> {
    let mut scan = Scan::own(&(0..END));
    scan.category_mask |= PROTECTABLE | WRITTEN;
    scan.category_inverted |= WRITTEN;
    scan.all(pagemap)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protection::Protection;

    const PAGES: usize = 64;

    struct Memory(*mut u8, usize);

    impl Memory {
        fn map(pages: usize) -> Memory {
            let length = pages * PAGE as usize;
            // SAFETY: a new mapping, at an address of the kernel's choice.
            let at = unsafe {
                let (protection, flags) =
                    (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
                libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0)
            };
            assert_ne!(at, libc::MAP_FAILED);
            Memory(at.cast(), length)
        }

        fn page(&self, page: usize) -> u64 {
            self.0 as u64 + page as u64 * PAGE
        }

        fn span(&self) -> Range<u64> {
            self.page(0)..self.0 as u64 + self.1 as u64
        }

        fn write(&self, page: usize) {
            // SAFETY: within the mapping, which nothing else uses.
            unsafe { self.0.add(page * PAGE as usize).write_volatile(7) };
        }

        fn give_back(&self, page: usize) {
            // SAFETY: a page of the mapping.
            let done =
                unsafe { libc::madvise(self.page(page) as *mut _, PAGE as usize, libc::MADV_DONTNEED) };
            assert_eq!(done, 0);
        }
    }

    impl Memory {
        /// Maps new memory in the place of these pages.
        fn replace(&self, pages: Range<usize>) {
            let (at, length) = (self.page(pages.start), pages.len() * PAGE as usize);
            // SAFETY: within the mapping, which nothing else uses.
            let made = unsafe {
                let protection = libc::PROT_READ | libc::PROT_WRITE;
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                libc::mmap(at as *mut _, length, protection, flags, -1, 0)
            };
            assert_eq!(made as u64, at);
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: unmaps what was mapped, wherever it is now.
            unsafe { libc::munmap(self.0.cast(), self.1) };
        }
    }

    fn protection() -> Option<Protection> {
        Protection::of_own_memory().ok()
    }

    fn within(memory: &Memory, found: Vec<Range<u64>>) -> Vec<usize> {
        let inside = (0..PAGES).filter(|&page| found.iter().any(|span| span.contains(&memory.page(page))));
        inside.collect()
    }

    #[test]
    fn what_is_written_given_back_or_moved_is_not_unwritten() {
        let Some(protection) = protection() else {
            eprintln!("skipped: this kernel has no asynchronous write protection");
            return;
        };
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let mut memory = Memory::map(PAGES);
        (0..PAGES).filter(|page| *page != 20).for_each(|page| memory.write(page));
        protection.cover(&memory.span()).unwrap();
        let protected = protect(&pagemap, &memory.span(), false).unwrap();
        assert_eq!(within(&memory, protected).len(), PAGES - 1, "a page that is not there");
        memory.write(3);
        memory.give_back(5);
        memory.give_back(6);
        memory.write(6);
        memory.write(20);
        let left = within(&memory, unwritten(&pagemap).unwrap());
        let expected: Vec<_> = (0..PAGES).filter(|page| ![3, 5, 6, 20].contains(page)).collect();
        assert_eq!(left, expected);
        let again = protect(&pagemap, &memory.span(), true).unwrap();
        assert_eq!(within(&memory, again), [3, 6, 20]);
        // The pages are the same ones elsewhere, and nobody knows whether they are written there.
        // SAFETY: moves the mapping to where the kernel chooses; only `memory` knows of it.
        let moved = unsafe {
            let elsewhere = Memory::map(PAGES);
            let to = elsewhere.0;
            std::mem::forget(elsewhere);
            let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            libc::mremap(memory.0.cast(), memory.1, memory.1, how, to)
        };
        assert_ne!(moved, libc::MAP_FAILED);
        memory.0 = moved.cast();
        assert!(within(&memory, unwritten(&pagemap).unwrap()).is_empty());
        memory.write(9);
    }

    #[test]
    fn of_shared_memory_it_is_noted_what_is_written_here_and_not_what_is_written_elsewhere() {
        let Some(protection) = protection() else { return };
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        // SAFETY: a new file, and no name of it is kept.
        let file = unsafe { libc::memfd_create(c"shared".as_ptr(), libc::MFD_CLOEXEC) };
        let length = PAGES * PAGE as usize;
        // SAFETY: the file that was just made.
        assert_eq!(unsafe { libc::ftruncate(file, length as i64) }, 0);
        let map = || {
            // SAFETY: a new mapping, at an address of the kernel's choice.
            let at = unsafe {
                let protection = libc::PROT_READ | libc::PROT_WRITE;
                libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, file, 0)
            };
            assert_ne!(at, libc::MAP_FAILED);
            Memory(at.cast(), length)
        };
        let (here, elsewhere) = (map(), map());
        here.write(3);
        assert!(!protect_all(&pagemap, &here.span()).unwrap(), "nothing is covered yet");
        protection.cover(&here.span()).unwrap();
        assert!(!is_unwritten(&pagemap, &here.span()).unwrap(), "nothing is protected yet");
        assert!(protect_all(&pagemap, &here.span()).unwrap());
        assert!(is_unwritten(&pagemap, &here.span()).unwrap());
        (0..PAGES).for_each(|page| elsewhere.write(page));
        assert!(is_unwritten(&pagemap, &here.span()).unwrap());
        for page in [3, 9] {
            here.write(page);
            assert!(!is_unwritten(&pagemap, &here.span()).unwrap(), "page {page}");
            assert!(protect_all(&pagemap, &here.span()).unwrap());
            assert!(is_unwritten(&pagemap, &here.span()).unwrap());
        }
        // What was written can be gone from the kernel's tables.
        here.write(5);
        here.give_back(5);
        assert!(!is_unwritten(&pagemap, &here.span()).unwrap());
        // SAFETY: nobody uses it any more.
        unsafe { libc::close(file) };
    }

    #[test]
    fn memory_that_cannot_be_protected_is_passed_over() {
        let Some(protection) = protection() else { return };
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let memory = Memory::map(PAGES);
        (0..PAGES).for_each(|page| memory.write(page));
        protection.cover(&memory.span()).unwrap();
        protect(&pagemap, &memory.span(), false).unwrap();
        memory.write(3);
        memory.write(40);
        // Something new comes to lie in the middle of it.
        memory.replace(20..30);
        memory.write(25);
        let again = protect(&pagemap, &memory.span(), true).unwrap();
        assert_eq!(within(&memory, again), [3, 40], "of what is left nothing is lost");
        let left = within(&memory, unwritten(&pagemap).unwrap());
        assert_eq!(left, (0..PAGES).filter(|page| !(20..30).contains(page)).collect::<Vec<_>>());
        memory.write(25);
        assert!(within(&memory, protect(&pagemap, &memory.span(), true).unwrap()).is_empty());
    }

    #[test]
    fn of_many_stretches_each_is_told_of_once() {
        const MANY: usize = 3000;
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let memory = Memory::map(2 * MANY);
        (0..MANY).for_each(|number| memory.write(2 * number));
        let found = Scan::own(&memory.span()).all(&pagemap).unwrap();
        let expected: Vec<_> =
            (0..MANY).map(|number| memory.page(2 * number)..memory.page(2 * number + 1)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn nothing_is_protected_once_it_is_closed() {
        let Some(protection) = protection() else { return };
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let memory = Memory::map(PAGES);
        (0..PAGES).for_each(|page| memory.write(page));
        assert_eq!(protect(&pagemap, &memory.span(), false).unwrap(), [], "it is not covered yet");
        protection.cover(&memory.span()).unwrap();
        protect(&pagemap, &memory.span(), false).unwrap();
        assert_eq!(within(&memory, unwritten(&pagemap).unwrap()).len(), PAGES);
        drop(protection);
        assert!(within(&memory, unwritten(&pagemap).unwrap()).is_empty());
    }
}
