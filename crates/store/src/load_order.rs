//! The order in which parts of an image are best loaded: a file beside the manifest, for it is learned after the image
//! was made. It is advice: what it does not name is loaded too, and what is not there is passed over.
//!
//! It is recorded on purpose, or learned from the image's first restores. What was recorded on purpose is never replaced
//! by what was learned.

use serde::{Deserialize, Serialize};

use crate::advice::{self, LOAD_ORDER};
use crate::error::Result;
use crate::image::Image;

/// From so many restores an order is learned.
const LEARNING_RESTORES: u32 = 3;

/// In which order parts are best loaded.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadOrder {
    /// Names of parts of GPU memory, the first to load first.
    pub parts: Vec<String>,
    /// From how many restores it was learned; none if it was recorded on purpose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restores: Option<u32>,
}

impl LoadOrder {
    /// Whether restores have something to add.
    pub fn is_to_be_learned(&self) -> bool {
        match self.restores {
            Some(restores) => restores < LEARNING_RESTORES,
            None => self.parts.is_empty(),
        }
    }

    /// With what a restore has seen, `another` or the last one. The longer sequence is the better sample of a request, and
    /// comes first.
    fn with(self, seen: &[String], another: bool) -> LoadOrder {
        let (first, second) = match seen.len() >= self.parts.len() {
            true => (seen.to_vec(), self.parts),
            false => (self.parts, seen.to_vec()),
        };
        let known: std::collections::HashSet<String> = first.iter().cloned().collect();
        let more = second.into_iter().filter(|name| !known.contains(name));
        let restores = Some(self.restores.unwrap_or(0) + u32::from(another));
        LoadOrder { parts: first.into_iter().chain(more).collect(), restores }
    }
}

impl Image {
    /// The order that was recorded or learned; empty if none was.
    pub fn load_order(&self) -> Result<LoadOrder> {
        Ok(advice::read(self, LOAD_ORDER)?.unwrap_or_default())
    }

    /// Keeps an order that was recorded on purpose, in place of any other.
    pub fn set_load_order(&self, parts: &[String]) -> Result<()> {
        let _turn = advice::lock(self)?;
        advice::write(self, LOAD_ORDER, &LoadOrder { parts: parts.to_vec(), restores: None })
    }

    /// Adds what a restore's requests have named, in that order, unless the order is settled. Says whether it did.
    /// `another`: nothing of this restore was added before.
    pub fn learn_load_order(&self, seen: &[String], another: bool) -> Result<bool> {
        let _turn = advice::lock(self)?;
        // One that is damaged is as good as none.
        let order = self.load_order().unwrap_or_default();
        let open = order.is_to_be_learned() || !another && order.restores.is_some();
        let learns = open && !seen.is_empty();
        if learns {
            advice::write(self, LOAD_ORDER, &order.with(seen, another))?;
        }
        Ok(learns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_sequence_comes_first_and_learning_ends() {
        let names = |text: &str| text.chars().map(String::from).collect::<Vec<_>>();
        let order = LoadOrder::default().with(&names("ab"), true).with(&names("cba"), true);
        assert_eq!((order.parts.concat().as_str(), order.restores), ("cba", Some(2)));
        // The same restore has seen more.
        let order = order.with(&names("ca"), false);
        assert_eq!((order.parts.concat().as_str(), order.restores), ("cba", Some(2)));
        assert!(order.is_to_be_learned());
        let order = order.with(&names("bd"), true);
        assert_eq!((order.parts.concat().as_str(), order.restores), ("cbad", Some(3)));
        assert!(!order.is_to_be_learned());
        assert!(!LoadOrder { parts: names("a"), restores: None }.is_to_be_learned());
    }
}
