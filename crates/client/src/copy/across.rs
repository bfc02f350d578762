//! Copies in a device's legacy stream that reach memory of another device.
//!
//! Such a copy begins when all that both devices have been given is done, and what they are given afterwards begins when
//! it is done (CUDA C++ Programming Guide, "Peer-to-Peer Memory Copy"). Events between the legacy streams of both say so;
//! the calling thread waits for nothing.

use rekindle_protocol::operation::{EventCreate, EventDestroy, EventRecord, LEGACY_STREAM, StreamWaitEvent};

use crate::abi::Result;
use crate::stream::StreamTarget;
use crate::{event, lane, memory, session};

use super::Side;

/// Runs `copy`, which gives `target` a copy between these places, in the order of all devices that it reaches.
pub fn in_order(target: StreamTarget, to: Side, from: Side, copy: impl FnOnce() -> Result<()>) -> Result<()> {
    if target.id != LEGACY_STREAM || session::get()?.welcome.devices.len() < 2 {
        return copy();
    }
    let others = [device_of(to), device_of(from)].map(|device| device.filter(|d| *d != target.device));
    let others = || {
        let [to, from] = others;
        to.into_iter().chain(from.filter(|device| to != Some(*device)))
    };
    let legacy = |device| StreamTarget { device, id: LEGACY_STREAM };
    others().try_for_each(|device| wait_for(target, legacy(device)))?;
    copy()?;
    others().try_for_each(|device| wait_for(legacy(device), target))
}

/// The device whose memory it is; none for memory of the host.
fn device_of(side: Side) -> Option<u8> {
    match side {
        Side::Shared(address) if !memory::is_pinned(address, 1) => {
            memory::find(address).map(|allocation| allocation.device)
        }
        Side::Shared(_) | Side::Pageable(_) => None,
    }
}

/// Has what `waiting` is given from now on wait for what `first` has.
fn wait_for(waiting: StreamTarget, first: StreamTarget) -> Result<()> {
    let id = event::new_id();
    lane::post(&EventCreate { device: first.device, id, flags: event::NO_TIMING }, &[])?;
    lane::post(&EventRecord { device: first.device, stream: first.id, event: id, flags: 0 }, &[])?;
    lane::post(&StreamWaitEvent { device: waiting.device, stream: waiting.id, event: id, flags: 0 }, &[])?;
    lane::post(&EventDestroy { id }, &[])
}
