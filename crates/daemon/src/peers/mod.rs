//! Other nodes: their keys and addresses, connections to them that both sides know each other on, and which programs have come
//! from them.

mod arrivals;
mod error;
mod key;
mod known_nodes;
mod link;
mod trust;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use rekindle_protocol::elsewhere::NODE_DIGITS;

use crate::error::{Error, Result};
use crate::host::paths::private_directory;

pub use arrivals::{ArrivalFate, Arrivals};
pub use error::PeerError;
use key::Key;
use known_nodes::KnownNodes;
pub use known_nodes::Peer;
use link::Ends;
pub use link::{Link, MESSAGE_LIMIT};

/// What is known of other nodes.
pub struct Peers {
    directory: PathBuf,
    /// Made by the first daemon.
    key: OnceLock<Arc<Key>>,
    pub known: Arc<KnownNodes>,
    pub arrivals: Arrivals,
    /// Where nodes are heard.
    pub listens: OnceLock<std::net::SocketAddr>,
}

impl Peers {
    pub fn open(directory: PathBuf) -> Result<Peers> {
        let arrivals = directory.join("arrivals");
        private_directory(&directory, true)?;
        private_directory(&arrivals, true)?;
        let known = Arc::new(KnownNodes::load(&directory)?);
        let arrivals = Arrivals::load(arrivals);
        Ok(Peers { directory, key: OnceLock::new(), known, arrivals, listens: OnceLock::new() })
    }

    pub fn key(&self) -> Result<&Arc<Key>> {
        if self.key.get().is_none() {
            let _ = self.key.set(Arc::new(Key::load(&self.directory)?));
        }
        self.key.get().ok_or_else(|| Error::system("have a key", std::io::ErrorKind::NotFound))
    }

    /// How names begin of what is put here: with the first digits of this node's key.
    pub fn name(&self) -> Result<String> {
        Ok(self.key()?.public.to_string()[..NODE_DIGITS].to_string())
    }

    pub fn ends(&self) -> Result<Ends> {
        Ok(Ends::new(self.key()?.clone(), self.known.clone()))
    }
}
