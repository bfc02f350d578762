//! Copies of one run of bytes, and of many rows through staging.

use std::collections::VecDeque;

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED};
use rekindle_device::Copy3D;
use rekindle_protocol::operation::{Copy, Download, Upload};

use crate::abi::Result;
use crate::lane::{self, Transfer};
use crate::stream::{self, Place};
use crate::{memory, session};

use super::{Side, bulk, staged};

/// Bytes of a staged piece: large enough for the link's speed, small enough to overlap with the next one's filling.
const PIECE: u64 = 1 << 20;
/// Downloads under way at once: with one more piece they fill less than the staging area.
const IN_FLIGHT: usize = 6;

/// When a copy returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Enqueued,
    /// As a synchronous copy between these two kinds of memory does.
    Synchronous,
}

/// Copies `bytes` bytes.
pub fn copy(place: Place, to: Side, from: Side, bytes: u64, when: When) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    if when == When::Enqueued && staged::captured(place, to, from, row(to, from, bytes))? {
        return Ok(());
    }
    rows(place, to, from, bytes, std::iter::once((0, 0)))?;
    if let (When::Synchronous, Side::Shared(to), Side::Shared(from)) = (when, to, from)
        && (memory::is_pinned(to, bytes) || memory::is_pinned(from, bytes))
    {
        return stream::synchronize(place);
    }
    Ok(())
}

fn row(to: Side, from: Side, bytes: u64) -> Copy3D {
    Copy3D {
        to: to.address(),
        to_pitch: bytes,
        to_slice: bytes,
        from: from.address(),
        from_pitch: bytes,
        from_slice: bytes,
        width: bytes,
        height: 1,
        depth: 1,
    }
}

/// Copies rows of `width` bytes at the offsets given.
pub fn rows(
    place: Place,
    to: Side,
    from: Side,
    width: u64,
    mut offsets: impl Iterator<Item = (u64, u64)>,
) -> Result<()> {
    let null = |side: Side| matches!(side, Side::Shared(0) | Side::Pageable(0));
    if null(to) || null(from) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    match (to, from) {
        (Side::Shared(to), Side::Shared(from)) => {
            let Place { device, id: stream } = place;
            offsets.try_for_each(|(t, f)| {
                lane::post(&Copy { device, stream, to: to + t, from: from + f, bytes: width }, &[])
            })
        }
        (Side::Shared(to), Side::Pageable(from)) => {
            not_captured(place)?;
            offsets.try_for_each(|(t, f)| upload(place, to + t, from + f, width))
        }
        (Side::Pageable(to), Side::Shared(from)) => {
            not_captured(place)?;
            download(place, to, from, width, offsets)
        }
        (Side::Pageable(to), Side::Pageable(from)) => {
            stream::synchronize(place)?;
            offsets.for_each(|(t, f)| {
                // SAFETY: the program says that both ranges are its own memory; they may overlap.
                unsafe { std::ptr::copy((from + f) as *const u8, (to + t) as *mut u8, width as usize) }
            });
            Ok(())
        }
    }
}

/// Staged bytes are gone when a captured copy runs.
fn not_captured(place: Place) -> Result<()> {
    match stream::capture(place)?.status {
        0 => Ok(()),
        _ => Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
    }
}

fn upload(place: Place, to: u64, from: u64, bytes: u64) -> Result<()> {
    let Place { device, id: stream } = place;
    let mut done = 0;
    while done < bytes {
        let piece = lane::stage((bytes - done).min(PIECE), |staged| {
            // SAFETY: the program says that these bytes are its own memory.
            unsafe { bulk::fill(staged, (from + done) as *const u8, bytes >= bulk::LARGE) };
        })?;
        let Transfer { offset, bytes, end } = piece;
        lane::post(&Upload { device, stream, to: to + done, offset, bytes, end }, &[])?;
        done += bytes;
    }
    Ok(())
}

fn download(
    place: Place,
    to: u64,
    from: u64,
    width: u64,
    offsets: impl Iterator<Item = (u64, u64)>,
) -> Result<()> {
    let Place { device, id: stream } = place;
    let mut under_way: VecDeque<(Transfer, u64)> = VecDeque::new();
    let mut last = None;
    let collect = |(piece, to): (Transfer, u64)| {
        lane::collect(piece, |staged| {
            // SAFETY: the program says that these bytes are its own memory.
            unsafe { bulk::drain(staged, to as *mut u8, width >= bulk::LARGE) };
        })
    };
    for (to_offset, from_offset) in offsets {
        let mut done = 0;
        while done < width {
            if under_way.len() == IN_FLIGHT
                && let Some(oldest) = under_way.pop_front()
            {
                collect(oldest)?;
            }
            let piece = lane::expect((width - done).min(PIECE))?;
            let Transfer { offset, bytes, end } = piece;
            let from = from + from_offset + done;
            last = Some(lane::post_in_order(&Download { device, stream, from, offset, bytes, end })?);
            under_way.push_back((piece, to + to_offset + done));
            done += bytes;
        }
    }
    under_way.into_iter().try_for_each(collect)?;
    session::get()?.take_error(device)?;
    last.map_or(Ok(()), |last| lane::note_idle(place, last))
}
