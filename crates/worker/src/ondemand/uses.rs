//! The order in which requests first named parts of memory: the order in which a later restore best loads them.

use std::ops::Range;

use super::needs::{Needs, Touched, needs};
use crate::engine::Engine;

/// Addresses of the program, and which part has their contents.
#[derive(Default)]
pub(crate) struct Spans {
    /// By their starts; none overlaps another.
    spans: Vec<(Range<u64>, usize)>,
    pub names: Vec<String>,
}

impl Spans {
    pub(crate) fn new(names: Vec<String>, mut spans: Vec<(Range<u64>, usize)>) -> Spans {
        spans.sort_by_key(|(range, _)| range.start);
        Spans { spans, names }
    }

    fn at(&self, address: u64) -> Option<usize> {
        let after = self.spans.partition_point(|(range, _)| range.start <= address);
        let (range, part) = self.spans.get(after.checked_sub(1)?)?;
        range.contains(&address).then_some(*part)
    }

    /// The parts that a range meets.
    fn within(&self, wanted: &Range<u64>) -> impl Iterator<Item = usize> {
        let first = self.spans.partition_point(|(range, _)| range.end <= wanted.start);
        let end = wanted.end;
        self.spans[first..].iter().take_while(move |(range, _)| range.start < end).map(|(_, part)| *part)
    }

    /// The parts that a request names, each once.
    pub(super) fn parts(&self, touched: &Touched) -> Vec<usize> {
        let mut parts = Vec::new();
        let named = touched.words.iter().filter_map(|word| self.at(*word));
        for part in touched.ranges.iter().flat_map(|range| self.within(range)).chain(named) {
            if !parts.contains(&part) {
                parts.push(part);
            }
        }
        parts
    }
}

/// The record of first uses.
pub(crate) struct Uses {
    spans: Spans,
    seen: Vec<bool>,
    order: Vec<usize>,
}

impl Uses {
    pub(crate) fn new(spans: Spans) -> Uses {
        Uses { seen: vec![false; spans.names.len()], order: Vec::new(), spans }
    }

    pub(crate) fn note(&mut self, engine: &Engine, opcode: u32, body: &[u8], trailer: &[u8]) {
        if let Needs::Memory(touched) = needs(engine, opcode, body, trailer) {
            for part in self.spans.parts(&touched) {
                if !std::mem::replace(&mut self.seen[part], true) {
                    self.order.push(part);
                }
            }
        }
    }

    /// These were named before all others.
    pub(crate) fn go_on_after(&mut self, names: &[String]) {
        for name in names {
            if let Some(part) = self.spans.names.iter().position(|known| known == name)
                && !std::mem::replace(&mut self.seen[part], true)
            {
                self.order.push(part);
            }
        }
    }

    /// Names of parts, the one used first first.
    pub(crate) fn names(&self) -> Vec<String> {
        self.order.iter().map(|part| self.spans.names[*part].clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_inside_and_ranges_across_find_their_parts() {
        let names = ["a", "b", "c"].map(str::to_string).to_vec();
        let spans = Spans::new(names, vec![(300..400, 2), (100..200, 0), (200..250, 1)]);
        let touched = |start: u64, end: u64, words: &[u64]| {
            spans.parts(&Touched { ranges: std::iter::once(start..end).collect(), words: words.to_vec() })
        };
        assert_eq!(touched(0, 0, &[399, 150, 199, 400, 99, 250]), [2, 0]);
        assert_eq!(touched(180, 301, &[]), [0, 1, 2]);
        assert_eq!(touched(250, 300, &[]), [] as [usize; 0]);
        assert_eq!(touched(0, 100, &[]), [] as [usize; 0]);
    }
}
