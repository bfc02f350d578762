//! Bytes that lie in staging areas, for threads that gave way to a checkpoint while they waited for them.

use rekindle_protocol::client::Uncollected;
use rekindle_ring::{Ring, STAGING_BYTES};

use super::error::{Error, Result};
use super::state::UncollectedState;
use crate::client::Client;

/// All of them. Nothing is under way.
pub(super) fn save(client: &Client) -> Vec<UncollectedState> {
    let content = |piece: &Uncollected| {
        let thread = client.threads.iter().find(|thread| thread.index == piece.ring)?;
        let content = area(thread.ring, piece.offset, piece.bytes)?;
        // SAFETY: the range lies inside the ring's staging area, and neither the GPU nor the program writes there now.
        let content = unsafe { std::slice::from_raw_parts(content, piece.bytes as usize) }.to_vec();
        Some(UncollectedState { ring: piece.ring, offset: piece.offset, end: piece.end, content })
    };
    client.uncollected.iter().filter_map(content).collect()
}

/// Where they lie once they are [put back](put_back), for a save before the program goes on.
pub(super) fn of(pieces: &[UncollectedState]) -> Vec<Uncollected> {
    let place = |piece: &UncollectedState| Uncollected {
        ring: piece.ring,
        offset: piece.offset,
        bytes: piece.content.len() as u64,
        end: piece.end,
    };
    pieces.iter().map(place).collect()
}

/// Puts a thread's into its ring. One that has them already, since its program was never away, is left alone.
pub(super) fn put_back(ring: Ring, index: u32, pieces: &[UncollectedState]) -> Result<()> {
    let mine = || pieces.iter().filter(|piece| piece.ring == index);
    let Some(end) = mine().map(|piece| piece.end).max().filter(|end| !ring.is_staged_to(*end)) else {
        return Ok(());
    };
    for piece in mine() {
        let location = area(ring, piece.offset, piece.content.len() as u64).ok_or_else(|| {
            Error::State(format!("it names bytes outside the staging area of ring {index}"))
        })?;
        // SAFETY: the range lies inside the ring's staging area, whose program does not run yet.
        unsafe { location.copy_from_nonoverlapping(piece.content.as_ptr(), piece.content.len()) };
    }
    ring.staged(end);
    Ok(())
}

/// Where a range of the staging area lies; none if it does not lie inside.
fn area(ring: Ring, offset: u64, bytes: u64) -> Option<*mut u8> {
    let inside = offset.checked_add(bytes).is_some_and(|end| end <= STAGING_BYTES as u64);
    // SAFETY: the offset lies inside the area.
    inside.then(|| unsafe { ring.staging_area().add(offset as usize) })
}
