//! `madvise`: memory that is given back is zero when it is next touched, also where it came from a page file.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::direct::{call, finish};
use super::mark;
use super::vma::{self, Areas};

const PAGE: usize = 4096;
/// `MADV_DONTNEED_LOCKED`, which the libc crate does not know.
const DONTNEED_LOCKED: c_int = 24;

/// Whether the program has memory that its children do not get. That goes with an area, which may be replaced here.
static KEPT_FROM_CHILDREN: AtomicBool = AtomicBool::new(false);

/// # Safety
/// As of the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(address: *mut c_void, length: usize, advice: c_int) -> c_int {
    let start = address as usize;
    // SAFETY: passed on as the caller gave it.
    let plainly = || unsafe { advise(start, length, advice) };
    if advice == libc::MADV_DONTFORK {
        KEPT_FROM_CHILDREN.store(true, Ordering::Relaxed);
    }
    let gives_back = matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE | DONTNEED_LOCKED);
    if !gives_back || !mark::is_converted() {
        return finish(plainly()) as c_int;
    }
    let end = start.checked_add(length).and_then(|end| end.checked_next_multiple_of(PAGE));
    match end {
        Some(end) if start.is_multiple_of(PAGE) && end > start => {
            finish(give_back(start..end, advice)) as c_int
        }
        // The kernel's answer to nonsense.
        _ => finish(plainly()) as c_int,
    }
}

unsafe fn advise(start: usize, length: usize, advice: c_int) -> isize {
    // SAFETY: the caller's.
    unsafe { call(libc::SYS_madvise, [start, length, advice as usize, 0, 0, 0]) }
}

/// Has the kernel map these pages now, to be written to or to be read. Their contents stay what they are.
pub fn populate(start: usize, length: usize, write: bool) {
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: it changes no contents; where there is no such memory the kernel says so.
    unsafe { advise(start, length, advice) };
}

/// Whether children do not get what lies at `address`.
pub fn is_kept_from_children(address: usize) -> bool {
    KEPT_FROM_CHILDREN.load(Ordering::Relaxed) && vma::is_kept_from_children(address)
}

/// Keeps memory from children, as that in whose place it is was.
pub fn keep_from_children(span: &Range<usize>) {
    // SAFETY: it changes no contents.
    unsafe { advise(span.start, span.len(), libc::MADV_DONTFORK) };
}

/// Each area in its own way; like the kernel, goes on over gaps and tells of them in the end.
fn give_back(span: Range<usize>, advice: c_int) -> isize {
    // To say that it could not be done now is right whatever the memory is.
    let Some(mut areas) = Areas::open() else { return -(libc::EAGAIN as isize) };
    let (mut at, mut problem) = (span.start, 0);
    while at < span.end {
        let area = match areas.at_or_after(at) {
            Ok(Some(area)) if area.span.start < span.end => area,
            Ok(_) => return -(libc::ENOMEM as isize),
            Err(()) => return -(libc::EAGAIN as isize),
        };
        if area.span.start > at {
            problem = -(libc::ENOMEM as isize);
        }
        let piece = area.span.start.max(at)..area.span.end.min(span.end);
        let result = if area.is_converted {
            // SAFETY: the program gives up what is there.
            unsafe { empty(&piece, area.protection) }
        } else {
            // SAFETY: what the program asks for.
            unsafe { advise(piece.start, piece.len(), advice) }
        };
        if result < 0 {
            return result;
        }
        at = piece.end;
    }
    problem
}

/// Makes memory zero, by the way that gives it back where that can be had. 0, or a negated error number.
unsafe fn empty(piece: &Range<usize>, protection: i32) -> isize {
    let is_kept = is_kept_from_children(piece.start);
    // SAFETY: the caller's.
    let result = unsafe { replace(piece, protection) };
    if result == 0 && is_kept {
        keep_from_children(piece);
    }
    if result == -(libc::ENOMEM as isize) && protection & libc::PROT_WRITE != 0 {
        // Most likely a process may have no more areas. Allocators take it for granted that this works.
        // SAFETY: the range is mapped and writable, and the program gives up what is there.
        unsafe { std::ptr::write_bytes(piece.start as *mut u8, 0, piece.len()) };
        return 0;
    }
    result
}

/// Puts anonymous memory of that protection in the place of what is there. 0, or a negated error number.
///
/// # Safety
/// Nothing of the old contents may be needed.
pub unsafe fn replace(piece: &Range<usize>, protection: i32) -> isize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let arguments = [piece.start, piece.len(), protection as usize, flags as usize, usize::MAX, 0];
    // SAFETY: the caller's.
    let result = unsafe { call(libc::SYS_mmap, arguments) };
    result.min(0)
}

/// What lies at a range of the program's, which may be several areas where it was one before: parts of it may map other
/// page files, or were given back.
pub struct MappedSpan {
    pub protection: i32,
    /// Whether any of it maps a page file.
    pub is_converted: bool,
    pub is_one: bool,
}

/// `None` where a part is not mapped, or is protected otherwise than the first: then it never was one area.
pub fn stretch_at(span: &Range<usize>) -> Option<MappedSpan> {
    let mut areas = Areas::open()?;
    let first = areas.at_or_after(span.start).ok()??;
    let mut stretch = MappedSpan { protection: first.protection, is_converted: false, is_one: true };
    let (mut area, mut at) = (first, span.start);
    loop {
        if area.span.start > at || area.protection != stretch.protection {
            return None;
        }
        stretch.is_converted |= area.is_converted;
        at = area.span.end;
        if at >= span.end {
            return Some(stretch);
        }
        stretch.is_one = false;
        area = areas.at_or_after(at).ok()??;
    }
}
