//! The nodes that this one knows, by the names that the user has given them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rekindle_store::bounded;
use serde::{Deserialize, Serialize};

use super::key::PublicKey;
use crate::error::{Error, Result};
use crate::host::replace::{Outlasting, PRIVATE, replace};
use crate::peers::PeerError;

const FILE: &str = "known.json";
/// The longest list that is read.
const LONGEST: u64 = 1 << 20;
const LONGEST_NAME: usize = 100;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    pub name: String,
    /// Host and port.
    pub address: String,
    pub key: PublicKey,
    /// Functions there and here have each other's arrays.
    #[serde(default)]
    pub arrays: bool,
}

pub struct KnownNodes {
    path: PathBuf,
    peers: Mutex<Vec<Peer>>,
}

impl KnownNodes {
    pub fn load(directory: &Path) -> Result<KnownNodes> {
        let path = directory.join(FILE);
        let peers = match path.exists() {
            false => Vec::new(),
            true => {
                let failed = |reason: String| Error::io("read", &path, std::io::Error::other(reason));
                let text = bounded::read(&path, LONGEST).map_err(|error| failed(error.to_string()))?;
                serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))?
            }
        };
        Ok(KnownNodes { path, peers: Mutex::new(peers) })
    }

    pub fn all(&self) -> Vec<Peer> {
        self.lock().clone()
    }

    pub fn get(&self, name: &str) -> Result<Peer> {
        let found = self.lock().iter().find(|peer| peer.name == name).cloned();
        found.ok_or_else(|| PeerError::Unknown { name: name.to_string() }.into())
    }

    pub fn with_key(&self, key: &PublicKey) -> Option<Peer> {
        self.lock().iter().find(|peer| peer.key == *key).cloned()
    }

    /// The node whose key begins with these digits; if several do, one that arrays are handed on with.
    pub fn with_digits(&self, digits: &str) -> Option<Peer> {
        let peers = self.lock();
        let fit = peers.iter().filter(|peer| peer.key.to_string().starts_with(digits));
        fit.max_by_key(|peer| peer.arrays).cloned()
    }

    /// Adds a node; one of this name or with this key gives way.
    pub fn add(&self, peer: Peer) -> Result<()> {
        let refused = |reason: &str| Err(PeerError::Bad { reason: reason.to_string() }.into());
        if peer.name.is_empty() || peer.name.len() > LONGEST_NAME || peer.name.chars().any(char::is_control) {
            return refused("its name has from 1 to 100 characters, none of which is a control character");
        }
        let has_port = peer
            .address
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0));
        if !has_port {
            return refused(
                "its address is HOST:PORT, with the port that its daemon was given by --node-port",
            );
        }
        self.change(|peers| {
            peers.retain(|other| other.name != peer.name && other.key != peer.key);
            peers.push(peer);
            peers.sort_by(|a, b| a.name.cmp(&b.name));
        })
    }

    pub fn remove(&self, name: &str) -> Result<()> {
        self.get(name)?;
        self.change(|peers| peers.retain(|peer| peer.name != name))
    }

    /// On disk first: what is told to the user is there after a crash too.
    fn change(&self, change: impl FnOnce(&mut Vec<Peer>)) -> Result<()> {
        let mut peers = self.lock();
        let mut next = peers.clone();
        change(&mut next);
        serde_json::to_vec_pretty(&next)
            .map_err(io::Error::from)
            .and_then(|text| replace(&self.path, &text, PRIVATE, Outlasting::Name))
            .map_err(|source| Error::io("write", &self.path, source))?;
        *peers = next;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Peer>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str, digit: &str) -> Peer {
        Peer {
            name: name.into(),
            address: "host:7420".into(),
            key: digit.repeat(64).parse().unwrap(),
            arrays: false,
        }
    }

    #[test]
    fn nodes_are_kept_and_a_name_and_a_key_stand_once() {
        let directory = tempfile::tempdir().unwrap();
        let known = KnownNodes::load(directory.path()).unwrap();
        for one in [peer("b", "1"), peer("a", "2"), peer("a", "3"), peer("c", "1")] {
            known.add(one).unwrap();
        }
        assert_eq!(known.all(), [peer("a", "3"), peer("c", "1")]);
        assert_eq!(KnownNodes::load(directory.path()).unwrap().all(), known.all());
        assert_eq!(known.with_key(&peer("", "1").key), Some(peer("c", "1")));
        assert_eq!(known.with_digits("33333333"), Some(peer("a", "3")));
        assert_eq!(known.with_digits("31"), None);
        known.remove("a").unwrap();
        assert!(known.get("a").is_err() && known.remove("a").is_err());
        for address in ["", "host", "host:", ":1", "host:0", "host:x"] {
            assert!(known.add(Peer { address: address.into(), ..peer("d", "4") }).is_err(), "{address}");
        }
    }
}
