//! Checked access to addresses that may be unmapped or read-only.
//!
//! Copies go through the kernel (`process_vm_readv` on this very process), which answers with an error where a plain
//! load or store would raise a signal. So a copy that meets such a page ends with a [`Miss`], and never ends the worker.

use std::io;

/// The first address that a copy could not reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Miss {
    pub address: u64,
    pub write: bool,
}

/// One contiguous piece of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub to: u64,
    pub from: u64,
    pub bytes: u64,
}

/// The kernel takes at most this many pieces a call.
const BATCH: usize = 512;
/// The kernel moves at most 2 GiB a call; smaller steps also let a cancelled copy end soon.
const STEP: u64 = 64 << 20;

/// Copies every piece, in order. `cancelled` is asked between steps.
pub(crate) fn copy(pieces: impl Iterator<Item = Piece>, cancelled: impl Fn() -> bool) -> Result<(), Miss> {
    let mut to = Vec::with_capacity(BATCH.min(16));
    let mut from = Vec::with_capacity(BATCH.min(16));
    let mut bytes = 0;
    for piece in pieces.flat_map(steps) {
        to.push(vector(piece.to, piece.bytes));
        from.push(vector(piece.from, piece.bytes));
        bytes += piece.bytes;
        if to.len() == BATCH || bytes >= STEP {
            batch(&to, &from, bytes)?;
            to.clear();
            from.clear();
            bytes = 0;
            if cancelled() {
                return Ok(());
            }
        }
    }
    batch(&to, &from, bytes)
}

fn steps(piece: Piece) -> impl Iterator<Item = Piece> {
    (0..piece.bytes).step_by(STEP as usize).map(move |at| Piece {
        to: piece.to.wrapping_add(at),
        from: piece.from.wrapping_add(at),
        bytes: STEP.min(piece.bytes - at),
    })
}

fn vector(address: u64, bytes: u64) -> libc::iovec {
    libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes as usize }
}

fn batch(to: &[libc::iovec], from: &[libc::iovec], bytes: u64) -> Result<(), Miss> {
    if to.is_empty() {
        return Ok(());
    }
    let done = transfer(to, from);
    if done == bytes {
        return Ok(());
    }
    // A short transfer does not say which side stopped it: go on page by page from where it stopped.
    let mut skip = done;
    for (to, from) in to.iter().zip(from) {
        let len = to.iov_len as u64;
        if skip >= len {
            skip -= len;
            continue;
        }
        let mut at = std::mem::take(&mut skip);
        while at < len {
            let (a, b) = (to.iov_base as u64 + at, from.iov_base as u64 + at);
            let page = (4096 - a % 4096).min(4096 - b % 4096).min(len - at);
            if transfer(&[vector(a, page)], &[vector(b, page)]) != page {
                return Err(if readable(b) {
                    Miss { address: a, write: true }
                } else {
                    Miss { address: b, write: false }
                });
            }
            at += page;
        }
    }
    Ok(())
}

/// Bytes that arrived; 0 where the first page already failed.
fn transfer(to: &[libc::iovec], from: &[libc::iovec]) -> u64 {
    // SAFETY: the kernel checks every address of both lists and touches nothing that is not mapped for it; what is
    // mapped in the ranges that copies are allowed in is device or pinned memory, which no Rust reference covers.
    let done = unsafe {
        libc::process_vm_readv(
            libc::getpid(),
            to.as_ptr(),
            to.len() as libc::c_ulong,
            from.as_ptr(),
            from.len() as libc::c_ulong,
            0,
        )
    };
    u64::try_from(done).unwrap_or(0)
}

fn readable(address: u64) -> bool {
    let mut byte = 0_u8;
    transfer(&[vector(&raw mut byte as u64, 1)], &[vector(address, 1)]) == 1
}

/// Whether every page of a range is mapped in this process, with whatever access.
pub(crate) fn is_mapped(address: u64, bytes: u64) -> bool {
    let start = address & !4095;
    let Some(end) = address.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(4096)) else {
        return false;
    };
    let step = 1 << 30;
    let mut pages = vec![0_u8; ((end - start).min(step) / 4096) as usize];
    (start..end).step_by(step as usize).all(|at| {
        let bytes = step.min(end - at);
        // SAFETY: `pages` has a byte for each page of the range; the call only reports on it.
        unsafe { libc::mincore(at as *mut libc::c_void, bytes as usize, pages.as_mut_ptr()) == 0 }
    })
}

/// Fails early where the kernel or a seccomp filter does not let a process copy its own memory this way.
pub(crate) fn probe() -> io::Result<()> {
    let from = 7_u8;
    let mut to = 0_u8;
    match transfer(&[vector(&raw mut to as u64, 1)], &[vector(&raw const from as u64, 1)]) {
        1 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(to: u64, from: u64, bytes: u64) -> Result<(), Miss> {
        copy(std::iter::once(Piece { to, from, bytes }), || false)
    }

    #[test]
    fn a_miss_names_the_side_and_the_page() {
        probe().unwrap();
        // SAFETY: a fresh private mapping of four pages, unmapped at the end.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4 * 4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        } as u64;
        // SAFETY: pages of the mapping just made.
        unsafe {
            libc::mprotect((base + 2 * 4096) as *mut _, 4096, libc::PROT_READ);
            libc::mprotect((base + 3 * 4096) as *mut _, 4096, libc::PROT_NONE);
        }
        let mut bytes = vec![5_u8; 4 * 4096];
        let ours = bytes.as_mut_ptr() as u64;
        assert_eq!(one(base, ours, 2 * 4096), Ok(()));
        assert_eq!(one(base, ours, 3 * 4096), Err(Miss { address: base + 2 * 4096, write: true }));
        assert_eq!(one(ours, base, 4 * 4096), Err(Miss { address: base + 3 * 4096, write: false }));
        assert_eq!(one(ours, 8, 4), Err(Miss { address: 8, write: false }));
        assert_eq!(bytes[0], 5);
        assert!(is_mapped(base, 4 * 4096));
        // SAFETY: the mapping made above; nothing refers to it any more.
        unsafe { libc::munmap(base as *mut _, 4 * 4096) };
        // The kernel keeps the lowest pages free; what was just unmapped another thread may have mapped again.
        assert!(!is_mapped(4096, 4096));
    }
}
