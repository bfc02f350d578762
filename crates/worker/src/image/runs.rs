//! What of each part is to be saved: chunks of which something may be read again.
//!
//! ```text
//!  part      │ chunk │ chunk │ chunk │ chunk │ chunk │
//!  unused        ░░░░░░░░░░░░░░░░░░░░░
//!  runs      ├───────┤               ├───────────────┤     the other chunks are zeros in the image
//! ```

use std::collections::BTreeMap;
use std::ops::Range;

use rekindle_protocol::client::UnusedRange;

use super::contents::PartLocation;
use super::copy_out::Span;
use super::hashed::taken_by;
use super::shadow::SaveTask;

/// Bytes of a part that follow each other, and where they lie. The first one begins a chunk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Run {
    pub number: usize,
    pub from: u64,
    pub location: PartLocation,
}

impl Run {
    /// What it takes where others lie behind it.
    pub(super) fn taken(&self) -> u64 {
        taken_by(&self.location)
    }

    /// Its first bytes, and the others.
    pub(super) fn split(self, bytes: u64) -> (Run, Option<Run>) {
        let Run { number, from, location } = self;
        let beyond =
            PartLocation { address: location.address + bytes, bytes: location.bytes - bytes, ..location };
        let beyond = (beyond.bytes > 0).then_some(Run { number, from: from + bytes, location: beyond });
        (Run { number, from, location: PartLocation { bytes, ..location } }, beyond)
    }
}

/// GPU memory whose contents nobody will read, as the program's allocator has told when the program came to its stand.
#[derive(Default)]
pub(crate) struct Unused(BTreeMap<u64, u64>);

impl Unused {
    /// Ranges that touch are one.
    pub(crate) fn new(mut ranges: Vec<UnusedRange>) -> Unused {
        ranges.sort_unstable_by_key(|range| range.address);
        let mut merged: BTreeMap<u64, u64> = BTreeMap::new();
        for UnusedRange { address, bytes } in ranges {
            let end = address.saturating_add(bytes);
            match merged.last_entry() {
                Some(mut last) if *last.get() >= address => {
                    let end = end.max(*last.get());
                    last.insert(end);
                }
                _ => drop(merged.insert(address, end)),
            }
        }
        Unused(merged)
    }

    /// What of a place is not unused, but for whole pieces of so many bytes, as places in it; those that follow each other are one.
    fn rest(&self, location: &PartLocation, chunk: u64) -> Vec<Range<u64>> {
        let PartLocation { address, bytes, .. } = *location;
        let before = self.0.range(..=address).next_back();
        let within = self.0.range(address + 1..address + bytes.max(1));
        let (mut rest, mut from) = (Vec::new(), 0);
        for (start, end) in before.into_iter().chain(within) {
            let first = start.saturating_sub(address).next_multiple_of(chunk);
            let last = match end.saturating_sub(address) {
                beyond if beyond >= bytes => bytes,
                within => within / chunk * chunk,
            };
            if first < last {
                rest.extend((from < first).then_some(from..first));
                from = last;
            }
        }
        rest.extend((from < bytes).then_some(from..bytes));
        rest
    }

    /// Places without the pieces of them, of so many bytes, that are unused.
    pub(super) fn without(&self, places: Vec<PartLocation>, chunk: u64) -> Vec<PartLocation> {
        let rest = |location: PartLocation| {
            let rest = self.rest(&location, chunk).into_iter();
            rest.map(move |piece| part_of(location, piece))
        };
        places.into_iter().flat_map(rest).collect()
    }

    /// All that is to be saved, part by part; `whole`: of which parts all is.
    pub(super) fn runs(&self, work: &SaveTask, whole: impl Fn(usize) -> bool) -> Vec<Run> {
        let nothing = Unused::default();
        let runs = |(number, (location, writer)): (usize, &(PartLocation, rekindle_store::PartWriter))| {
            let location = *location;
            let unused = if whole(number) { &nothing } else { self };
            let rest = unused.rest(&location, writer.chunk_bytes()).into_iter();
            rest.map(move |piece| Run { number, from: piece.start, location: part_of(location, piece) })
        };
        work.iter().enumerate().flat_map(runs).collect()
    }
}

fn part_of(location: PartLocation, piece: Range<u64>) -> PartLocation {
    PartLocation { address: location.address + piece.start, bytes: piece.end - piece.start, ..location }
}

pub(super) fn bytes(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.location.bytes).sum()
}

/// What is to be written to the parts that they are of.
pub(super) fn spans<'w>(runs: &[Run], work: &'w SaveTask) -> Vec<Span<'w>> {
    runs.iter()
        .map(|run| Span { location: run.location, from: run.from, writer: &work[run.number].1 })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u64 = 2 << 20;

    /// By first and last addresses, the latter not included.
    fn unused(ranges: &[(u64, u64)]) -> Unused {
        let range = |&(address, end): &(u64, u64)| UnusedRange { address, bytes: end - address };
        Unused::new(ranges.iter().map(range).collect())
    }

    fn rest(unused: &Unused, address: u64, bytes: u64) -> Vec<(u64, u64)> {
        let rest = unused.rest(&PartLocation { device: 0, address, bytes }, CHUNK).into_iter();
        rest.map(|piece| (piece.start, piece.end)).collect()
    }

    #[test]
    fn chunks_that_are_unused_as_a_whole_are_left_out() {
        let begin = 7 * CHUNK;
        let some = unused(&[(begin + CHUNK + 1, begin + 3 * CHUNK)]);
        assert_eq!(rest(&some, begin, 5 * CHUNK), [(0, 2 * CHUNK), (3 * CHUNK, 5 * CHUNK)]);
        let all = unused(&[(begin, begin + 5 * CHUNK)]);
        assert_eq!(rest(&all, begin, 5 * CHUNK), []);
        assert_eq!(rest(&all, begin + CHUNK, 5 * CHUNK), [(4 * CHUNK, 5 * CHUNK)]);
        assert_eq!(rest(&Unused::default(), begin, 5 * CHUNK), [(0, 5 * CHUNK)]);
    }

    #[test]
    fn ranges_that_touch_make_one_and_order_is_no_matter() {
        let half = CHUNK / 2;
        let some = unused(&[(CHUNK + half, 2 * CHUNK), (CHUNK, CHUNK + half), (3 * CHUNK, 3 * CHUNK + half)]);
        assert_eq!(rest(&some, 0, 4 * CHUNK), [(0, CHUNK), (2 * CHUNK, 4 * CHUNK)]);
        let overlapping = unused(&[(0, 3 * CHUNK), (CHUNK, 2 * CHUNK)]);
        assert_eq!(rest(&overlapping, 0, 4 * CHUNK), [(3 * CHUNK, 4 * CHUNK)]);
    }

    #[test]
    fn the_end_of_a_part_is_a_chunk_though_it_is_shorter() {
        let some = unused(&[(CHUNK, CHUNK + 512)]);
        assert_eq!(rest(&some, 0, CHUNK + 512), [(0, CHUNK)]);
        assert_eq!(rest(&some, 0, CHUNK + 513), [(0, CHUNK + 513)]);
    }
}
