//! What is noted of an entry once the program is told of what it has asked for.
//!
//! ```text
//!   trailer of a copy to the host   hash, before
//!   trailer of a wait               answers its ring had had, before
//!           before: all requests from this one on may be the program's answer to what it was told; u64::MAX: it was told nothing
//! ```

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::entry::{HEAD, TOLD};

/// It was not told.
const NEVER: u64 = u64::MAX;

/// Bytes of a trailer that has room for what is noted.
const MARK_BYTES: usize = 16;

/// The trailer of an entry that nothing was noted of.
pub(in crate::ondemand) fn unmarked(first: u64) -> [u8; MARK_BYTES] {
    let mut trailer = [0; MARK_BYTES];
    trailer[..8].copy_from_slice(&first.to_le_bytes());
    trailer[8..].copy_from_slice(&NEVER.to_le_bytes());
    trailer
}

/// What a trailer says: its first word, and before which request the program was told.
pub(in crate::ondemand) fn marked(trailer: &[u8]) -> Option<(u64, Option<u64>)> {
    let (first, before) = trailer.split_first_chunk()?;
    let before = u64::from_le_bytes(*before.first_chunk()?);
    Some((u64::from_le_bytes(*first), (before != NEVER).then_some(before)))
}

/// An entry with such a trailer.
#[derive(Clone, Copy)]
pub(in crate::ondemand) struct Mark {
    entry: *mut u8,
    /// The number of the request that is done next.
    next: *const AtomicU64,
}

// SAFETY: points into the mapping of a journal, which is there as long as marks of it are.
unsafe impl Send for Mark {}

impl Mark {
    pub(super) fn new(entry: *mut u8, next: &AtomicU64) -> Mark {
        Mark { entry, next }
    }

    /// What it is where entries from `from` on were moved to `to`; none: it is none of them.
    pub(in crate::ondemand) fn moved(self, from: Mark, to: Mark) -> Option<Mark> {
        let offset = self.entry.addr().checked_sub(from.entry.addr())?;
        Some(Mark { entry: to.entry.wrapping_add(offset), next: to.next })
    }

    /// The program is told of it now.
    pub(in crate::ondemand) fn told(self) {
        // SAFETY: the journal's mapping is there, and the trailer has a second word.
        unsafe {
            let next = (*self.next).load(Ordering::Acquire);
            self.trailer().add(8).cast::<u64>().write_unaligned(next.to_le());
        }
    }

    /// What it has brought to the host is there: this is its hash.
    pub(in crate::ondemand) fn brought(self, hash: u64) {
        // SAFETY: as above; an entry's flags are its sixth word.
        unsafe {
            self.trailer().cast::<u64>().write_unaligned(hash.to_le());
            let flags = self.entry.add(20).cast::<u32>();
            fence(Ordering::Release);
            flags.write_unaligned(flags.read_unaligned() | TOLD.to_le());
        }
    }

    fn trailer(self) -> *mut u8 {
        // SAFETY: it lies behind a body as long as the entry's third word says.
        unsafe {
            let body = u32::from_le(self.entry.add(8).cast::<u32>().read_unaligned()) as usize;
            self.entry.add(HEAD + body)
        }
    }
}
