//! Copies of parts of a program's memory within its GPU, made while it runs.

use rekindle_device::Access;
use rekindle_store::ContentHash;

use super::contents::PartLocation;
use super::error::{Error, Result, device};
use super::hashed::{Hashes, Hashing, INPUT, taken_by, values_of};
use super::shadow::stream;
use crate::client::Client;
use crate::dispatch::{Activity, Dispatcher};

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;

/// Memory that waves are copied to; behind it lie their hashes.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub device: usize,
    pub address: u64,
    pub bytes: u64,
}

impl Slot {
    /// What one of so many bytes takes.
    pub(super) fn room(bytes: u64) -> u64 {
        (bytes + values_of(bytes)).next_multiple_of(INPUT)
    }
}

/// Parts of buffers that are copied as one, each from where a chunk begins.
pub(super) struct Wave(pub Vec<PartLocation>);

/// All of a device, in waves that fit into its slots.
pub(super) fn waves(places: &[PartLocation], slot: Slot) -> Vec<Wave> {
    let mut waves = Vec::new();
    let (mut wave, mut left) = (Vec::new(), slot.bytes);
    for location in places.iter().filter(|location| location.device == slot.device) {
        let mut at = 0;
        while at < location.bytes {
            let bytes = left.min(location.bytes - at);
            let some = PartLocation { address: location.address + at, bytes, ..*location };
            left -= taken_by(&some);
            at += bytes;
            wave.push(some);
            if left == 0 {
                waves.push(Wave(std::mem::take(&mut wave)));
                left = slot.bytes;
            }
        }
    }
    if !wave.is_empty() {
        waves.push(Wave(wave));
    }
    waves
}

/// A wave in its slot.
pub(super) struct Filled {
    slot: Slot,
    /// What was there, and its copy.
    places: Vec<(PartLocation, PartLocation)>,
}

/// Enqueues the copy of a wave, of what is there of it. On the dispatch thread, which frees memory, too.
pub(super) fn fill(dispatcher: &mut Dispatcher, Wave(wave): Wave, slot: Slot) -> Result<Filled> {
    let is_running = matches!(dispatcher.activity, Activity::Running) && dispatcher.client.data.is_settled();
    let client = &mut dispatcher.client;
    // Who needs memory may have taken the slot's.
    if !is_running || client.shadow.as_ref().is_none_or(|shadow| shadow.bytes_of(slot.device) == 0) {
        return Err(Error::Cancelled);
    }
    let mut filled = Filled { slot, places: Vec::new() };
    let mut to = slot.address;
    for location in wave {
        if is_there(client, &location) {
            filled.places.push((location, PartLocation { address: to, ..location }));
            to += taken_by(&location);
        }
    }
    filled.enqueue(client).map_err(device("copy its memory"))?;
    Ok(filled)
}

/// Whether all of this is memory of the program's, whatever it is by now.
fn is_there(client: &Client, location: &PartLocation) -> bool {
    let lies_in = |begin: u64, bytes: u64| {
        begin <= location.address && location.address + location.bytes <= begin + bytes
    };
    let Ok(context) = client.context(location.device) else { return false };
    let buffer = context.heap.buffers().range(..=location.address).next_back();
    let mapping = client.virtual_memory.mappings.range(..=location.address).next_back();
    buffer.is_some_and(|(begin, buffer)| buffer.is_backed() && lies_in(*begin, buffer.bytes))
        || mapping.is_some_and(|(begin, mapping)| {
            mapping.access == Access::ReadWrite && lies_in(*begin, mapping.bytes)
        })
}

impl Filled {
    fn enqueue(&self, client: &mut Client) -> rekindle_device::Result<()> {
        let index = self.slot.device;
        client.bind(index)?;
        let context = client.context(index)?;
        let (gpu, stream) = (context.device.clone(), stream(&context.gpu.copies));
        let hasher = context.gpu.hasher.clone();
        let event = gpu.event_create(DISABLE_TIMING)?;
        let mut copies = self.places.iter();
        let copied = copies.try_for_each(|(from, to)| gpu.copy(to.address, from.address, from.bytes, stream));
        let hashed =
            copied.and_then(|()| hasher.map_or(Ok(()), |hasher| self.hashing().enqueue(&hasher, stream)));
        let recorded = gpu.event_record(event, stream, 0);
        client.heap(index)?.note_copy(event);
        hashed.and(recorded)
    }

    pub(super) fn hashing(&self) -> Hashing {
        Hashing::of(self.slot.device, self.copies(), self.slot.address + self.slot.bytes)
    }

    /// Where what was there lies now.
    pub(super) fn copies(&self) -> impl Iterator<Item = &PartLocation> {
        self.places.iter().map(|(_, to)| to)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.copies().map(|location| location.bytes).sum()
    }

    /// Each chunk where it was, and its hash.
    pub(super) fn chunks(&self, hashes: &Hashes) -> impl Iterator<Item = (PartLocation, ContentHash)> {
        self.places.iter().flat_map(move |(from, to)| {
            (0..from.bytes).step_by(INPUT as usize).filter_map(move |start| {
                let piece = start..(start + INPUT).min(from.bytes);
                let bytes = piece.end - piece.start;
                let location = PartLocation { address: from.address + start, bytes, ..*from };
                Some((location, hashes.of(to, piece)?))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waves_fit_and_hold_all_of_their_device_once() {
        let location = |device, address, bytes| PartLocation { device, address, bytes };
        let slot = Slot { device: 0, address: 0, bytes: 4 * INPUT };
        let places = [location(0, 0, 5 * INPUT), location(1, 7, INPUT), location(0, 99 * INPUT, INPUT / 2)];
        let waves: Vec<Vec<_>> = waves(&places, slot)
            .into_iter()
            .map(|Wave(wave)| wave.into_iter().map(|one| (one.address / INPUT, one.bytes)).collect())
            .collect();
        assert_eq!(waves, [vec![(0, 4 * INPUT)], vec![(4, INPUT), (99, INPUT / 2)]]);
    }
}
