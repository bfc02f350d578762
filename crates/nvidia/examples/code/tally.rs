//! What was counted, with a few examples of each thing that went wrong.

use std::collections::BTreeMap;

use serde_json::{Value, json};

const EXAMPLES: usize = 8;

#[derive(Default)]
pub struct Tally {
    counts: BTreeMap<String, u64>,
    sums: BTreeMap<String, f64>,
    examples: BTreeMap<String, Vec<Value>>,
}

impl Tally {
    pub fn count(&mut self, what: &str) {
        *self.counts.entry(what.to_owned()).or_default() += 1;
    }

    pub fn sum(&mut self, what: &str, value: f64) {
        *self.sums.entry(what.to_owned()).or_default() += value;
    }

    pub fn seen(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or_default()
    }

    /// Whether an example more would be kept.
    pub fn has_room(&self, what: &str) -> bool {
        self.examples.get(what).is_none_or(|kept| kept.len() < EXAMPLES)
    }

    /// Counts it and keeps the first few.
    pub fn example(&mut self, what: &str, example: Value) {
        self.count(what);
        let kept = self.examples.entry(what.to_owned()).or_default();
        if kept.len() < EXAMPLES {
            kept.push(example);
        }
    }

    pub fn add(&mut self, other: Tally) {
        for (what, count) in other.counts {
            *self.counts.entry(what).or_default() += count;
        }
        for (what, value) in other.sums {
            *self.sums.entry(what).or_default() += value;
        }
        for (what, examples) in other.examples {
            let kept = self.examples.entry(what).or_default();
            kept.extend(examples);
            kept.truncate(EXAMPLES);
        }
    }

    pub fn json(&self) -> Value {
        json!({ "counts": self.counts, "sums": self.sums, "examples": self.examples })
    }
}
