//! Parts of a program's memory that its GPU hashes, or copies and hashes, while it runs.

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

    /// How much can be hashed where it lies, with the values in the slot.
    pub(super) fn hashed(&self) -> u64 {
        (HASHED * values_of(INPUT)).min(self.bytes) / values_of(INPUT) * INPUT
    }
}

/// So many chunks are hashed at once where they lie: 2 GB, for which the program's kernels wait a millisecond or two.
const HASHED: u64 = 1024;

/// Parts of buffers that are copied as one, each from where a chunk begins.
pub(super) struct Wave(pub Vec<PartLocation>);

/// All of a device, in waves of so many bytes at most, whole chunks.
pub(super) fn waves(places: &[PartLocation], device: usize, most: u64) -> Vec<Wave> {
    let mut waves = Vec::new();
    let (mut wave, mut left) = (Vec::new(), most);
    for location in places.iter().filter(|location| location.device == device) {
        let mut at = 0;
        while at < location.bytes {
            let bytes = left.min(location.bytes - at);
            let some = PartLocation { address: location.address + at, bytes, ..*location };
            left -= taken_by(&some);
            at += bytes;
            wave.push(some);
            if left == 0 {
                waves.push(Wave(std::mem::take(&mut wave)));
                left = most;
            }
        }
    }
    if !wave.is_empty() {
        waves.push(Wave(wave));
    }
    waves
}

/// A wave that is hashed.
pub(super) struct Hashed {
    device: usize,
    /// Where its values come to lie.
    values: u64,
    /// What was there, and what is hashed: itself or its copy.
    places: Vec<(PartLocation, PartLocation)>,
}

/// What is hashed of a wave.
#[derive(Clone, Copy)]
pub(super) enum Subject {
    /// A copy in the slot.
    Copy,
    /// What the program has, which it may change meanwhile: the hash is then of nothing.
    Itself,
}

/// Has what is there of a wave hashed. On the dispatch thread, which frees memory, too.
pub(super) fn hash(
    dispatcher: &mut Dispatcher,
    Wave(wave): Wave,
    slot: Slot,
    subject: Subject,
) -> Result<Hashed> {
    let is_running = matches!(dispatcher.activity, Activity::Running) && dispatcher.client.data.is_settled();
    let client = &mut dispatcher.client;
    // Who needs memory may have taken the slot's.
    if !is_running || client.shadow.as_ref().is_none_or(|shadow| shadow.bytes_of(slot.device) == 0) {
        return Err(Error::Cancelled);
    }
    let there = wave.into_iter().filter(|location| is_there(client, location));
    let mut to = slot.address;
    let (values, places) = match subject {
        Subject::Itself => (slot.address, there.map(|location| (location, location)).collect()),
        Subject::Copy => {
            let copy = |location: PartLocation| {
                let at = to;
                to += taken_by(&location);
                (location, PartLocation { address: at, ..location })
            };
            (slot.address + slot.bytes, there.map(copy).collect())
        }
    };
    let hashed = Hashed { device: slot.device, values, places };
    hashed.enqueue(client).map_err(device("hash its memory"))?;
    Ok(hashed)
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

impl Hashed {
    fn enqueue(&self, client: &mut Client) -> rekindle_device::Result<()> {
        let index = self.device;
        client.bind(index)?;
        let context = client.context(index)?;
        let (gpu, stream) = (context.device.clone(), stream(&context.gpu.copies));
        let hasher = context.gpu.hasher.clone();
        let event = gpu.event_create(DISABLE_TIMING)?;
        let mut copies = self.places.iter().filter(|(from, to)| from.address != to.address);
        let copied = copies.try_for_each(|(from, to)| gpu.copy(to.address, from.address, from.bytes, stream));
        let hashed =
            copied.and_then(|()| hasher.map_or(Ok(()), |hasher| self.hashing().enqueue(&hasher, stream)));
        let recorded = gpu.event_record(event, stream, 0);
        client.heap(index)?.note_copy(event);
        hashed.and(recorded)
    }

    pub(super) fn hashing(&self) -> Hashing {
        Hashing::of(self.device, self.subjects(), self.values)
    }

    /// What is hashed.
    pub(super) fn subjects(&self) -> impl Iterator<Item = &PartLocation> {
        self.places.iter().map(|(_, to)| to)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.subjects().map(|location| location.bytes).sum()
    }

    /// Each chunk where it was, and its hash.
    pub(super) fn chunks(&self, hashes: &Hashes) -> impl Iterator<Item = (PartLocation, ContentHash)> {
        let chunks = self.places.iter().flat_map(move |place| chunks(place, hashes));
        chunks.filter_map(|(chunk, hash)| Some((chunk, hash?)))
    }

    /// Rows of chunks that nobody knows, none of which reaches beyond a place. What the device does not hash, at the end of
    /// a place, nobody knows.
    pub(super) fn unknown(
        &self,
        hashes: &Hashes,
        mut is_known: impl FnMut(PartLocation, ContentHash) -> Result<bool>,
    ) -> Result<Vec<PartLocation>> {
        let mut rows: Vec<PartLocation> = Vec::new();
        for place in &self.places {
            let mut row: Option<PartLocation> = None;
            for (chunk, hash) in chunks(place, hashes) {
                match (hash.map_or(Ok(false), |hash| is_known(chunk, hash))?, &mut row) {
                    (true, _) => rows.extend(row.take()),
                    (false, Some(row)) => row.bytes += chunk.bytes,
                    (false, none) => *none = Some(chunk),
                }
            }
            rows.extend(row);
        }
        Ok(rows)
    }
}

/// Of a place, by where it was.
fn chunks(
    (from, to): &(PartLocation, PartLocation),
    hashes: &Hashes,
) -> impl Iterator<Item = (PartLocation, Option<ContentHash>)> {
    (0..from.bytes).step_by(INPUT as usize).map(move |start| {
        let piece = start..(start + INPUT).min(from.bytes);
        let bytes = piece.end - piece.start;
        let location = PartLocation { address: from.address + start, bytes, ..*from };
        (location, hashes.of(to, piece))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waves_fit_and_hold_all_of_their_device_once() {
        let location = |device, address, bytes| PartLocation { device, address, bytes };
        let places = [location(0, 0, 5 * INPUT), location(1, 7, INPUT), location(0, 99 * INPUT, INPUT / 2)];
        let waves: Vec<Vec<_>> = waves(&places, 0, 4 * INPUT)
            .into_iter()
            .map(|Wave(wave)| wave.into_iter().map(|one| (one.address / INPUT, one.bytes)).collect())
            .collect();
        assert_eq!(waves, [vec![(0, 4 * INPUT)], vec![(4, INPUT), (99, INPUT / 2)]]);
    }

    #[test]
    fn values_of_what_is_hashed_where_it_lies_fit_into_a_slot() {
        let hashed = |bytes| Slot { device: 0, address: 0, bytes }.hashed();
        assert_eq!(hashed(64 * INPUT), HASHED * INPUT);
        let small = hashed(INPUT / 8);
        assert!(small.is_multiple_of(INPUT) && small > 0 && values_of(small) <= INPUT / 8);
    }
}
