//! What an instance has of a GPU's memory. Declared data that several instances have lies there once.

use std::collections::HashMap;

use rekindle_protocol::data::Version;
use serde::{Deserialize, Serialize};

/// Bytes that are the instance's alone, and declared data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    pub own: u64,
    pub data: Vec<Datum>,
}

/// An object of a store, in memory of a GPU that nobody writes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Datum {
    /// Whose programs have it together.
    pub owner: String,
    pub url: String,
    /// None of what is yet to be loaded: it will be the version that there is.
    pub version: Option<Version>,
    pub bytes: u64,
    /// The instance has made the memory, and not mapped another one's.
    pub is_maker: bool,
}

impl Datum {
    /// As one who is yet to load it has it.
    pub fn to_come(&self) -> Datum {
        Datum { version: None, is_maker: false, ..self.clone() }
    }

    fn name(&self) -> (&str, &str) {
        (&self.owner, &self.url)
    }
}

impl Holding {
    /// What it takes if nobody else has any of it.
    pub fn alone(&self) -> u64 {
        together([self])
    }

    /// What it has that no other one had before.
    pub fn made(&self) -> u64 {
        let made = self.data.iter().filter(|datum| datum.is_maker);
        self.own + made.map(|datum| datum.bytes).sum::<u64>()
    }

    pub fn is_none(&self) -> bool {
        self.own == 0 && self.data.is_empty()
    }

    /// Has it have this too, unless it does already.
    pub fn add(&mut self, datum: Datum) {
        if !self.data.iter().any(|own| own.name() == datum.name()) {
            self.data.push(datum);
        }
    }
}

impl From<u64> for Holding {
    fn from(own: u64) -> Holding {
        Holding { own, data: Vec::new() }
    }
}

/// The memory of one version of an object.
#[derive(Default)]
struct Copies {
    bytes: u64,
    makers: u64,
}

/// Bytes that these take together. Each version of an object is there once, or as often as somebody has made memory for it.
pub fn together<'h>(all: impl IntoIterator<Item = &'h Holding>) -> u64 {
    let mut objects: HashMap<(&str, &str), HashMap<Option<&Version>, Copies>> = HashMap::new();
    let mut bytes = 0;
    for holding in all {
        bytes += holding.own;
        for datum in &holding.data {
            let copies = objects.entry(datum.name()).or_default().entry(datum.version.as_ref()).or_default();
            copies.bytes = copies.bytes.max(datum.bytes);
            copies.makers += u64::from(datum.is_maker);
        }
    }
    let of_object = |versions: &HashMap<Option<&Version>, Copies>| {
        let is_known = versions.keys().any(Option::is_some);
        let counted = versions.iter().filter(|(version, _)| version.is_some() || !is_known);
        counted.map(|(_, copies)| copies.bytes * copies.makers.max(1)).sum::<u64>()
    };
    bytes + objects.values().map(of_object).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(own: u64, version: Option<i64>, is_maker: bool) -> Holding {
        let version = version.map(|written| Version { bytes: 8, tag: None, written });
        let (owner, url) = ("app:a".to_string(), "s3://b/k".to_string());
        Holding { own, data: vec![Datum { owner, url, version, bytes: 8, is_maker }] }
    }

    #[test]
    fn what_several_have_is_there_once() {
        let (first, second, coming) = (with(1, Some(1), true), with(2, Some(1), false), with(4, None, false));
        assert_eq!(first.alone(), 9);
        assert_eq!(together([&first, &second, &coming]), 15);
        assert_eq!(together([&second, &coming]), 14, "whoever has made it has gone");
        assert_eq!(together([&coming, &coming]), 16, "nobody has it yet");
    }

    #[test]
    fn other_versions_other_owners_and_further_copies_are_other_memory() {
        let first = with(0, Some(1), true);
        assert_eq!(together([&first, &with(0, Some(2), true)]), 16);
        assert_eq!(together([&first, &with(0, Some(1), true)]), 16, "each has made its own");
        let mut other = with(0, Some(1), false);
        other.data[0].owner = "app:b".to_string();
        assert_eq!(together([&first, &other]), 16);
    }
}
