//! `mremap`: memory that grows has zeros at its new end, also where it came from a page file.

use std::ffi::{c_int, c_void};

use super::advise::{is_kept_from_children, keep_from_children, replace, stretch_at};
use super::direct::{call, finish};
use super::mark;

const PAGE: usize = 4096;

/// # Safety
/// As of the C library's function of this name, whose last argument is there with `MREMAP_FIXED` or
/// `MREMAP_DONTUNMAP` only, and is read in any case: a register.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    address: *mut c_void,
    old_length: usize,
    new_length: usize,
    flags: c_int,
    new_address: *mut c_void,
) -> *mut c_void {
    let arguments = [address as usize, old_length, new_length, flags as usize, new_address as usize, 0];
    // SAFETY: passed on as the caller gave it.
    let plainly = || unsafe { call(libc::SYS_mremap, arguments) };
    let grows = old_length > 0 && new_length > old_length || flags & libc::MREMAP_DONTUNMAP != 0;
    let moves = old_length > 0 && flags & libc::MREMAP_FIXED != 0;
    let result = match (grows || moves) && mark::is_converted() {
        true => match affected(address as usize, old_length, grows) {
            Some(protection) => {
                let is_kept = is_kept_from_children(address as usize);
                let moved = match protection & libc::PROT_READ {
                    // SAFETY: the range is the program's to move.
                    0 => unsafe { extend(plainly(), old_length, new_length, protection) },
                    // SAFETY: as above.
                    _ => unsafe { copy(arguments, protection) },
                };
                if moved > 0 && is_kept {
                    let start = moved as usize;
                    keep_from_children(&(start..start + new_length));
                    if flags & libc::MREMAP_DONTUNMAP != 0 {
                        keep_from_children(&(address as usize..address as usize + old_length));
                    }
                }
                moved
            }
            None => plainly(),
        },
        false => plainly(),
    };
    finish(result) as *mut c_void
}

/// The protection of a range that the kernel would not move or grow as it would have the area that it was.
fn affected(address: usize, length: usize, grows: bool) -> Option<c_int> {
    let end = address.checked_add(length.max(1))?;
    let stretch = stretch_at(&(address..end))?;
    let affected = stretch.is_converted && (grows || !stretch.is_one);
    affected.then_some(stretch.protection)
}

/// What cannot be read cannot be copied: it was moved as the kernel does, and what it has grown by becomes zero.
unsafe fn extend(moved: isize, old_length: usize, new_length: usize, protection: c_int) -> isize {
    if moved > 0 && new_length > old_length {
        let start = (moved as usize + old_length).next_multiple_of(PAGE);
        let end = (moved as usize + new_length).next_multiple_of(PAGE);
        if start < end {
            // SAFETY: what it has grown by, of which nobody knows yet.
            let result = unsafe { replace(&(start..end), protection) };
            return if result < 0 { result } else { moved };
        }
    }
    moved
}

/// Moves a range into anonymous memory of the new length, at the place that `mremap` would choose.
unsafe fn copy(arguments: [usize; 6], protection: c_int) -> isize {
    let [old, old_length, new_length, flags, wanted, _] = arguments;
    let flags = flags as c_int;
    let fixed = flags & libc::MREMAP_FIXED != 0;
    if flags & libc::MREMAP_MAYMOVE == 0 {
        // In its place it cannot become one area with what would be behind it.
        return -(libc::ENOMEM as isize);
    }
    let overlaps = wanted < old.saturating_add(old_length) && old < wanted.saturating_add(new_length);
    if fixed && overlaps {
        // The kernel's answer.
        return -(libc::EINVAL as isize);
    }
    let mut how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    if fixed {
        how |= libc::MAP_FIXED;
    }
    let writable = protection | libc::PROT_WRITE;
    let place = if fixed { wanted } else { 0 };
    // SAFETY: a new mapping, in a place that nobody uses or that the program gives up.
    let new =
        unsafe { call(libc::SYS_mmap, [place, new_length, writable as usize, how as usize, usize::MAX, 0]) };
    if new < 0 {
        return new;
    }
    let new = new as usize;
    // SAFETY: both ranges are mapped, the old one readable as far as it goes, and the new one is no part of it.
    unsafe {
        std::ptr::copy_nonoverlapping(old as *const u8, new as *mut u8, old_length.min(new_length));
        if protection != writable {
            call(libc::SYS_mprotect, [new, new_length, protection as usize, 0, 0, 0]);
        }
        if flags & libc::MREMAP_DONTUNMAP != 0 {
            replace(&(old..old + old_length), protection);
        } else {
            call(libc::SYS_munmap, [old, old_length, 0, 0, 0, 0]);
        }
    }
    new as isize
}
