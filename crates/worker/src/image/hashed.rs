//! Hashes of what lies in a device's memory, computed there all at once: chunk by chunk they would wait for the program's
//! kernels.

use std::collections::BTreeMap;
use std::ops::Range;

use rekindle_device::Stream;
use rekindle_store::ContentHash;

use super::block::{Blocks, Gpu};
use super::contents::{self, PartLocation};
use super::copy_out;
use super::error::{Result, device};
use crate::hashing::{Hasher, SUBTREE, VALUE};

/// So much is hashed as one, or less at the end of a row.
pub(super) const INPUT: u64 = contents::BLOCK as u64;

/// What is hashed of one device.
pub(super) struct Hashing {
    pub index: usize,
    pub rows: Vec<Range<u64>>,
    /// Where their values come to lie, one behind the other.
    pub values: u64,
}

impl Hashing {
    /// What cannot be hashed at the end of a place is left out.
    pub(super) fn of<'p>(
        index: usize,
        places: impl Iterator<Item = &'p PartLocation>,
        values: u64,
    ) -> Hashing {
        let row =
            |location: &PartLocation| location.address..location.address + location.bytes / SUBTREE * SUBTREE;
        let rows = places.filter(|location| location.device == index).map(row);
        Hashing { index, rows: rows.filter(|row| !row.is_empty()).collect(), values }
    }

    pub(super) fn enqueue(&self, hasher: &Hasher, stream: Stream) -> rekindle_device::Result<()> {
        let mut values = self.values;
        for row in &self.rows {
            let bytes = row.end - row.start;
            hasher.enqueue_all(row.start, bytes, INPUT, values, stream)?;
            values += values_of(bytes);
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.rows.iter().map(|row| values_of(row.end - row.start)).sum()
    }
}

/// What devices have computed.
pub(super) struct Hashes {
    /// By device and where a row begins: the values from there on.
    rows: BTreeMap<(usize, u64), Vec<u8>>,
}

impl Hashes {
    /// Waits until they are there.
    pub(super) fn fetch(gpus: &[Option<Gpu>], blocks: &mut Blocks, all: &[Hashing]) -> Result<Hashes> {
        let mut rows = BTreeMap::new();
        for hashing in all {
            let gpu = gpus.get(hashing.index).and_then(Option::as_ref).filter(|gpu| gpu.hasher.is_some());
            let Some(gpu) = gpu else { continue };
            let fetched =
                gpu.wait().and_then(|()| copy_out::fetch(gpu, blocks, hashing.values, hashing.bytes()));
            let mut values = fetched.map_err(device("hash its memory"))?;
            for row in hashing.rows.iter().rev() {
                let bytes = values_of(row.end - row.start);
                rows.insert((hashing.index, row.start), values.split_off(values.len() - bytes as usize));
            }
        }
        Ok(Hashes { rows })
    }

    /// No device hashes.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Of a piece of what lies there; none if it was not hashed as an input.
    pub(super) fn of(&self, location: &PartLocation, piece: Range<u64>) -> Option<ContentHash> {
        let begins = location.address + piece.start;
        let (&(index, begin), values) = self.rows.range(..=(location.device, begins)).next_back()?;
        let (bytes, from) = (piece.end - piece.start, begins - begin);
        if index != location.device || !Hasher::takes(bytes) || bytes > INPUT || !from.is_multiple_of(INPUT) {
            return None;
        }
        values.get(values_of(from) as usize..values_of(from + bytes) as usize).map(Hasher::finish)
    }
}

/// Bytes of values of so many bytes.
pub(super) fn values_of(bytes: u64) -> u64 {
    bytes / SUBTREE * VALUE as u64
}

/// What a place takes where others lie behind it: each of its chunks begins where an input does.
pub(super) fn taken_by(location: &PartLocation) -> u64 {
    location.bytes.next_multiple_of(INPUT)
}
