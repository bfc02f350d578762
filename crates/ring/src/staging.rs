//! The staging area of a ring: a circular buffer through which bytes go between pageable memory and the GPU.
//!
//! The client allocates pieces in order and tells the worker their offsets in requests; the worker copies, and
//! publishes how far it has come. A piece never wraps. An upload's piece is free once it is complete; a download's
//! once the client has also copied it out.

use crate::atomic::Ordering;
use crate::shared::{Ring, STAGING_BYTES};
use crate::signal::Wait;
use crate::spin::Spin;

/// The client's side: the only allocator of its ring's staging area.
pub struct Staging {
    ring: Ring,
    next: u64,
    /// A position up to which all is complete, as far as is known.
    complete: u64,
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
        let next = ring.header().staged.load(Ordering::Acquire);
        Staging { next, complete: next, ring }
    }

    /// The largest piece: half of the area, so that one can be filled while the other is on its way.
    pub const LARGEST: u64 = STAGING_BYTES as u64 / 2;

    /// Takes a piece, waiting until the worker has finished with what lies there, or until `give_way`; none then. `bytes`
    /// is at most `LARGEST`. If nobody `holds` bytes of the area and the worker is done with all of it, the piece is the
    /// area's first: those who wait for each copy use memory that is in the caches.
    pub fn allocate(
        &mut self,
        bytes: u64,
        holds: bool,
        spin: Spin,
        alive: impl Fn() -> bool,
        give_way: impl Fn() -> bool,
    ) -> Result<Option<Transfer>, Wait> {
        let bytes_rounded = (bytes + 63) & !63;
        let area = STAGING_BYTES as u64;
        let at = self.next % area;
        let is_free = !holds && self.ring.is_staged_to(self.next);
        let skip = if at != 0 && (is_free || area - at < bytes_rounded) { area - at } else { 0 };
        let end = self.next + skip + bytes_rounded;
        if is_free {
            self.complete = self.next + skip;
        }
        let before = end.saturating_sub(area);
        if before > self.complete && !self.wait(before, spin, alive, give_way)? {
            return Ok(None);
        }
        let offset = (self.next + skip) % area;
        self.next = end;
        Ok(Some(Transfer { offset, bytes, end }))
    }

    /// Waits until the worker has completed everything up to `position`, or until `give_way`, which becomes true before
    /// some [`Ring::look_again`]; false then.
    pub fn wait(
        &self,
        position: u64,
        spin: Spin,
        alive: impl Fn() -> bool,
        give_way: impl Fn() -> bool,
    ) -> Result<bool, Wait> {
        let header = self.ring.header();
        let is_complete = || header.staged.load(Ordering::Acquire) >= position;
        match header.staged_signal.wait(spin, alive, || is_complete() || give_way()) {
            Wait::Ready => Ok(is_complete()),
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
    /// Whoever waits for pieces of this ring looks whether it is to give way.
    pub fn look_again(&self) {
        self.header().staged_signal.raise();
    }

    /// How far the worker has come.
    pub fn is_staged_to(&self, position: u64) -> bool {
        self.header().staged.load(Ordering::Acquire) >= position
    }

    /// The worker's side: everything up to `position` is complete.
    pub fn staged(&self, position: u64) {
        let header = self.header();
        header.staged.store(position, Ordering::Release);
        header.staged_signal.raise();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// A piece of so many bytes; whether it is a download, which is held until it is collected.
        Allocate(u64, bool),
        /// The worker completes the oldest piece.
        Complete,
        /// The oldest download is copied out, if it is complete.
        Collect,
    }

    fn step() -> impl Strategy<Value = Step> {
        let bytes = prop_oneof![1u64..200, 1u64..=1 << 20, Just(Staging::LARGEST)];
        prop_oneof![
            3 => (bytes, any::<bool>()).prop_map(|(bytes, down)| Step::Allocate(bytes, down)),
            3 => Just(Step::Complete),
            2 => Just(Step::Collect),
        ]
    }

    fn overlap(a: Transfer, b: Transfer) -> bool {
        a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes
    }

    proptest! {
        #[test]
        fn a_piece_lies_where_nothing_is_under_way_or_held(steps in proptest::collection::vec(step(), 1..300)) {
            let directory = tempfile::tempdir().unwrap();
            let ring = Ring::create(&directory.path().join("ring")).unwrap();
            // SAFETY: the only allocator.
            let mut staging = unsafe { ring.staging() };
            let (mut under_way, mut held): (Vec<Transfer>, Vec<Transfer>) = (Vec::new(), Vec::new());
            for step in steps {
                match step {
                    // As a client does, which collects before it has half of the area under way, or does anything else.
                    Step::Allocate(bytes, down) => {
                        let holds = held.iter().map(|piece| piece.bytes).sum::<u64>();
                        if holds + bytes > Staging::LARGEST && holds != 0 {
                            continue;
                        }
                        let all_done = under_way.is_empty();
                        let piece = staging.allocate(bytes, holds != 0, Spin(0), || true, || true).unwrap();
                        prop_assert!(piece.is_some() || !all_done);
                        let Some(piece) = piece else { continue };
                        prop_assert!(!all_done || holds != 0 || piece.offset == 0);
                        prop_assert!(piece.offset + piece.bytes <= STAGING_BYTES as u64);
                        prop_assert!(under_way.iter().chain(&held).all(|other| !overlap(*other, piece)));
                        under_way.push(piece);
                        if down || holds != 0 {
                            held.push(piece);
                        }
                    }
                    Step::Complete if !under_way.is_empty() => ring.staged(under_way.remove(0).end),
                    Step::Collect if held.first().is_some_and(|piece| ring.is_staged_to(piece.end)) => {
                        held.remove(0);
                    }
                    Step::Complete | Step::Collect => {}
                }
            }
            // SAFETY: nothing of it is used any more.
            unsafe { ring.unmap() };
        }
    }
}
