//! Which way GPU memory of a program that goes on comes to its image.
//!
//! | way | when |
//! | --- | --- |
//! | shadow | the GPU has room for a copy of all of it ([`super::shadow`]) |
//! | ahead | it has not: it is written while the program runs ([`super::pre_copy`]), and of what is new when it stands still there is a copy as far as there is room ([`super::partial`]); the rest is written right after the stop ([`super::guard`]) |
//! | still | neither: the GPU does not hash, there is no room to copy through, or the program writes to nearly all of its memory |

use rekindle_device::Result;

use super::contents::PartLocation;
use super::hashed::{INPUT, taken_by, values_of};
use super::{pinned, save_memory};
use crate::client::Client;

/// This part of a GPU's memory is left to others by a copy.
const LEFT: u64 = 16;
/// At most so much of a GPU is taken to copy through while the program runs, and at most this part of what is free.
const THROUGH: u64 = 256 << 20;
const THROUGH_PART: u64 = 2;
/// At most so many chunks are looked at to see whether they have changed: once all is written, and before.
pub(super) const LOOKED_AT: usize = 64;
pub(super) const GLANCED_AT: usize = 8;
/// At most so often all is written while the program runs.
pub(super) const ROUNDS: u32 = 2;

/// What a copy takes, with its hashes behind it.
pub(super) fn needed<'p>(places: impl Iterator<Item = &'p PartLocation>, index: usize) -> (u64, u64) {
    let bytes = places.filter(|location| location.device == index).map(taken_by).sum();
    (bytes, values_of(bytes))
}

/// Bytes of a device that a copy may take.
pub(super) fn room(client: &mut Client, index: usize) -> Result<u64> {
    let (free, total) = client.memory_space(index)?;
    Ok(free.saturating_sub(total / LEFT))
}

/// Why there is no room for a copy of all of this; none if there is.
pub(super) fn lack(client: &mut Client, places: &[PartLocation]) -> Result<Option<String>> {
    for index in 0..client.contexts.len() {
        let (bytes, values) = needed(places.iter(), index);
        if bytes == 0 {
            continue;
        }
        let room = room(client, index)?;
        if room < bytes + values && client.copy_room(index) < bytes + values {
            let (needed, room) = ((bytes + values) >> 20, room >> 20);
            return Ok(Some(format!("a copy takes {needed} MB of the GPU, and it has {room} MB for it")));
        }
    }
    Ok(None)
}

/// Whether there is room for a copy of all that the client has, of pinned memory too.
pub(crate) fn has_room(client: &mut Client) -> Result<bool> {
    let own = client.unused.without(save_memory::places(client), INPUT);
    let places = [own, pinned::places(client)].concat();
    Ok(lack(client, &places)?.is_none())
}

/// How long each of two slots is that memory is copied through; none if there is no room for them.
pub(super) fn slot(client: &mut Client, index: usize) -> Result<Option<u64>> {
    let (free, _) = client.memory_space(index)?;
    let half = THROUGH.min(free / THROUGH_PART) / 2;
    let slot = half.saturating_sub(values_of(half)) / INPUT * INPUT;
    Ok((slot > 0).then_some(slot))
}

/// What a look at some of what was written has found.
#[derive(Clone, Copy, Default)]
pub(super) struct ProbeResult {
    pub bytes: u64,
    pub changed: u64,
}

impl ProbeResult {
    /// Whether what is written now is new again when the program stands still.
    pub(super) fn is_hopeless(self) -> bool {
        self.changed * 8 > self.bytes * 7
    }

    /// Whether to write what has changed, too: it is less than half, and there is no room for a copy of it.
    pub(super) fn is_worth_more(self, all: u64, room: u64) -> bool {
        let share = self.changed as f64 / self.bytes.max(1) as f64;
        share < 0.5 && share * all as f64 > room as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_all_the_time_is_given_up_and_what_changes_little_is_written_again() {
        let looked = |changed| ProbeResult { bytes: 64, changed };
        assert!(
            looked(57).is_hopeless() && !looked(56).is_hopeless() && !ProbeResult::default().is_hopeless()
        );
        assert!(looked(16).is_worth_more(100, 20), "a quarter of it does not fit");
        assert!(!looked(16).is_worth_more(100, 25), "it fits");
        assert!(!looked(32).is_worth_more(100, 0), "as much would be new again");
        assert!(!ProbeResult::default().is_worth_more(100, 0), "nothing is new");
    }
}
