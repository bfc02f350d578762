//! The staging area of a ring: a circular buffer through which bytes go between pageable memory and the GPU.
//!
//! The client allocates pieces in order and tells the worker their offsets in requests; the worker copies, and
//! publishes how far it has come. A piece never wraps. An upload's piece is free once it is complete; a download's
//! once the client has also copied it out.

use crate::atomic::Ordering;
use crate::shared::{Ring, STAGING_BYTES};
use crate::signal::{Spin, Wait};

/// The client's side: the only allocator of its ring's staging area.
pub struct Staging {
    ring: Ring,
    next: u64,
}

/// A piece of the staging area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Offset into the area, bytes.
    pub offset: u64,
    pub bytes: u64,
    /// The position that the worker publishes when this piece is complete.
    pub end: u64,
}

impl Staging {
    pub(crate) fn new(ring: Ring) -> Staging {
        Staging { next: ring.header().staged.load(Ordering::Acquire), ring }
    }

    /// The largest piece: half of the area, so that one can be filled while the other is on its way.
    pub const LARGEST: u64 = STAGING_BYTES as u64 / 2;

    /// Takes a piece, waiting until the worker has finished with what lies there. `bytes` is at most `LARGEST`.
    pub fn allocate(&mut self, bytes: u64, spin: Spin, alive: impl Fn() -> bool) -> Result<Transfer, Wait> {
        let bytes_rounded = (bytes + 63) & !63;
        let area = STAGING_BYTES as u64;
        let at = self.next % area;
        let skip = if area - at < bytes_rounded { area - at } else { 0 };
        let end = self.next + skip + bytes_rounded;
        self.wait(end.saturating_sub(area), spin, alive)?;
        let offset = (self.next + skip) % area;
        self.next = end;
        Ok(Transfer { offset, bytes, end })
    }

    /// Waits until the worker has completed everything up to `position`.
    pub fn wait(&self, position: u64, spin: Spin, alive: impl Fn() -> bool) -> Result<(), Wait> {
        let header = self.ring.header();
        match header.staged_signal.wait(spin, alive, || header.staged.load(Ordering::Acquire) >= position) {
            Wait::Ready => Ok(()),
            dead => Err(dead),
        }
    }

    /// The piece's bytes.
    ///
    /// # Safety
    /// The piece came from this staging area, and the worker is not copying to or from it now.
    pub unsafe fn bytes(&mut self, piece: Transfer) -> &mut [u8] {
        // SAFETY: pieces lie inside the area; the caller promises that nobody else uses this one.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.ring.staging_area().add(piece.offset as usize),
                piece.bytes as usize,
            )
        }
    }
}

impl Ring {
    /// The worker's side: everything up to `position` is complete.
    pub fn staged(&self, position: u64) {
        let header = self.header();
        header.staged.store(position, Ordering::Release);
        header.staged_signal.raise();
    }
}
