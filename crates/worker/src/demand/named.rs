//! Which buffers each launch of a request names: how much memory it would take if a buffer had some only from its first use to its
//! last one (StreamBox, section 5.1: eager recycling).

use std::collections::BTreeMap;

/// A buffer as a request uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    bytes: u64,
    /// Launches of the request up to then, the one that names it included.
    first: u32,
    last: u32,
}

/// The buffers that a request has used and that had no memory before.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamedBuffers {
    /// By where they begin.
    there: BTreeMap<u64, Span>,
    freed: Vec<Span>,
    /// The most bytes that were allocated at once, with memory or without.
    pub allocated: u64,
}

impl NamedBuffers {
    pub(super) fn come(&mut self, at: u64, bytes: u64, launch: u32) {
        self.there.insert(at, Span { bytes, first: launch, last: launch });
    }

    pub(super) fn go(&mut self, at: u64) {
        self.freed.extend(self.there.remove(&at));
    }

    /// A request names an address: the buffer that it lies in is used.
    pub(super) fn name(&mut self, address: u64, launch: u32) {
        if let Some((at, span)) = self.there.range_mut(..=address).next_back()
            && address - at < span.bytes
        {
            span.last = launch;
        }
    }

    /// How many bytes are between their first and their last use, by launches: whenever that changes.
    pub(crate) fn used(&self) -> Vec<(u32, u64)> {
        let mut changes: BTreeMap<u32, i64> = BTreeMap::new();
        for span in self.there.values().chain(&self.freed) {
            *changes.entry(span.first).or_default() += span.bytes as i64;
            *changes.entry(span.last.saturating_add(1)).or_default() -= span.bytes as i64;
        }
        let levels = changes.into_iter().scan(0i64, |level, (launch, change)| {
            *level += change;
            Some((launch, *level as u64))
        });
        levels.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_counts_from_its_first_use_to_its_last() {
        let mut named = NamedBuffers::default();
        named.come(100, 50, 1);
        named.come(200, 30, 2);
        named.name(149, 3);
        named.name(150, 9);
        named.name(230, 9);
        named.go(100);
        // The same place, another buffer.
        named.come(100, 20, 5);
        assert_eq!(named.used(), [(1, 50), (2, 80), (3, 50), (4, 0), (5, 20), (6, 0)]);
    }
}
