//! Other nodes: their keys and addresses, connections to them that both sides know each other on, and which programs have come
//! from them.

mod arrivals;
mod key;
mod known;
mod link;
mod trust;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use crate::error::{Error, Result};
use crate::host::places::private_directory;

pub use arrivals::{Arrivals, Certain};
use key::Key;
use known::Known;
pub use known::Peer;
use link::Ends;
pub use link::{Link, MESSAGE_LIMIT};

/// What is known of other nodes.
pub struct Peers {
    directory: PathBuf,
    /// Made when it is first needed.
    key: OnceLock<Arc<Key>>,
    pub known: Arc<Known>,
    pub arrivals: Arrivals,
    /// Where nodes are heard.
    pub listens: OnceLock<std::net::SocketAddr>,
}

impl Peers {
    pub fn open(directory: PathBuf) -> Result<Peers> {
        let arrivals = directory.join("arrivals");
        private_directory(&directory, true)?;
        private_directory(&arrivals, true)?;
        let known = Arc::new(Known::load(&directory)?);
        let arrivals = Arrivals::load(arrivals);
        Ok(Peers { directory, key: OnceLock::new(), known, arrivals, listens: OnceLock::new() })
    }

    pub fn key(&self) -> Result<&Arc<Key>> {
        if self.key.get().is_none() {
            let _ = self.key.set(Arc::new(Key::load(&self.directory)?));
        }
        self.key.get().ok_or_else(|| Error::system("have a key", std::io::ErrorKind::NotFound))
    }

    pub fn ends(&self) -> Result<Ends> {
        Ok(Ends::new(self.key()?.clone(), self.known.clone()))
    }
}
