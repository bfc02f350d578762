//! Copies of one run of bytes, and of many rows through staging.

use std::collections::VecDeque;

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED};
use rekindle_device::Copy3D;
use rekindle_protocol::operation::{Copy, Download, Upload};

use crate::abi::Result;
use crate::lane::{self, Transfer};
use crate::stream::{self, StreamTarget};
use crate::{memory, session};

use super::{Side, across, bulk, staged};

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
pub fn copy(target: StreamTarget, to: Side, from: Side, bytes: u64, when: When) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let whole = Copy3D::linear(to.address(), from.address(), bytes);
    if when == When::Enqueued && staged::captured(target, to, from, whole)? {
        return Ok(());
    }
    rows(target, to, from, bytes, std::iter::once((0, 0)))?;
    if let (When::Synchronous, Side::Shared(to), Side::Shared(from)) = (when, to, from)
        && (memory::is_pinned(to, bytes) || memory::is_pinned(from, bytes))
    {
        return stream::synchronize(target);
    }
    Ok(())
}

/// Copies rows of `width` bytes at the offsets given.
pub fn rows(
    target: StreamTarget,
    to: Side,
    from: Side,
    width: u64,
    offsets: impl Iterator<Item = (u64, u64)>,
) -> Result<()> {
    across::in_order(target, to, from, || enqueue(target, to, from, width, offsets))
}

fn enqueue(
    target: StreamTarget,
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
            let StreamTarget { device, id: stream } = target;
            offsets.try_for_each(|(t, f)| {
                lane::post(&Copy { device, stream, to: to + t, from: from + f, bytes: width }, &[])
            })
        }
        (Side::Shared(to), Side::Pageable(from)) => {
            not_captured(target)?;
            offsets.try_for_each(|(t, f)| upload(target, to + t, from + f, width))
        }
        (Side::Pageable(to), Side::Shared(from)) => {
            not_captured(target)?;
            download(target, to, from, width, offsets)
        }
        (Side::Pageable(to), Side::Pageable(from)) => {
            stream::synchronize(target)?;
            offsets.for_each(|(t, f)| {
                // SAFETY: the program says that both ranges are its own memory; they may overlap.
                unsafe { std::ptr::copy((from + f) as *const u8, (to + t) as *mut u8, width as usize) }
            });
            Ok(())
        }
    }
}

/// Staged bytes are gone when a captured copy runs.
fn not_captured(target: StreamTarget) -> Result<()> {
    match stream::capture(target)?.status {
        0 => Ok(()),
        _ => Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
    }
}

fn upload(target: StreamTarget, to: u64, from: u64, bytes: u64) -> Result<()> {
    let StreamTarget { device, id: stream } = target;
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
    target: StreamTarget,
    to: u64,
    from: u64,
    width: u64,
    offsets: impl Iterator<Item = (u64, u64)>,
) -> Result<()> {
    let StreamTarget { device, id: stream } = target;
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
    last.map_or(Ok(()), |last| lane::note_idle(target, last))
}
