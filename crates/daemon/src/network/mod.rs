//! Networks of sandboxes' own, and ports of the machine's that lead into them.

mod dialer;
mod error;
mod forwarder;
mod publisher;

use std::io;
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rekindle_protocol::network::{Network as Kind, Port};
use rekindle_sandbox::{Addresses, Network};

use crate::error::Result;

pub use dialer::NetworkDialer;
pub use error::NetworkError;
pub use publisher::{Lease, Publisher, listen};

/// A sandbox's network, if it has one of its own, and the ports that lead there.
#[derive(Default)]
pub struct SandboxNetwork {
    network: OnceLock<Arc<Network>>,
    ports: Mutex<Option<Lease>>,
}

/// As long as this is there, who comes to the ports waits.
pub struct PortPause<'a>(&'a SandboxNetwork);

impl Drop for PortPause<'_> {
    fn drop(&mut self) {
        self.0.with(|lease| lease.pause(false));
    }
}

impl SandboxNetwork {
    pub fn network(&self) -> Option<&Arc<Network>> {
        self.network.get()
    }

    /// Two connected sockets as the sandbox's program can have them: CRIU finds those of its network alone.
    pub fn pair(&self) -> io::Result<(UnixStream, UnixStream)> {
        match self.network() {
            Some(network) => network.within(UnixStream::pair),
            None => UnixStream::pair(),
        }
    }

    /// Makes the network, in which the ports are nobody's yet.
    pub fn furnish(&self, addresses: Addresses) -> Result<()> {
        let network = Network::make(addresses).map_err(|source| NetworkError::NoNetwork { source })?;
        let _ = self.network.set(Arc::new(network));
        Ok(())
    }

    /// Finds the network of a process of the sandbox's again.
    pub fn find(&self, process: i32) -> io::Result<()> {
        let _ = self.network.set(Arc::new(Network::of(process)?));
        Ok(())
    }

    /// Takes ports for the sandbox of this name. Returns them with the numbers that were chosen.
    pub fn take_ports(&self, publisher: &Arc<Publisher>, name: &str, wanted: &[Port]) -> Result<Vec<Port>> {
        let (lease, ports) = publisher.take(name, wanted)?;
        *self.lock() = Some(lease);
        Ok(ports)
    }

    /// The program runs: those who have come to the ports are let in.
    pub fn open(&self) {
        if let Some(network) = self.network() {
            self.with(|lease| lease.open(network));
        }
    }

    /// Has who comes to the ports wait meanwhile.
    pub fn pause(&self) -> PortPause<'_> {
        self.with(|lease| lease.pause(true));
        PortPause(self)
    }

    /// The program has ended and may be brought back under its name: the ports stay, and who comes there waits.
    pub fn stopped(&self) {
        self.with(Lease::stopped);
    }

    /// The program is at another node: who comes to the ports is led there.
    pub fn forward(&self, node: IpAddr, there: &[Port]) {
        self.with(|lease| lease.forward(node, there));
    }

    /// Gives the ports back.
    pub fn close(&self) {
        drop(self.lock().take());
    }

    fn with(&self, work: impl FnOnce(&Lease)) {
        if let Some(lease) = &*self.lock() {
            work(lease);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Lease>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a program is to have: as asked, or else as its image has it.
pub fn choose(asked: Option<Kind>, publish: &[Port], kept: (Kind, &[Port])) -> Result<(Kind, Vec<Port>)> {
    let network = asked.unwrap_or(kept.0);
    match network {
        Kind::Host if !publish.is_empty() => Err(NetworkError::PortsOfHost.into()),
        Kind::Host => Ok((network, Vec::new())),
        Kind::Private if publish.is_empty() => Ok((network, kept.1.to_vec())),
        Kind::Private => Ok((network, publish.to_vec())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_comes_before_what_the_image_has() {
        let ports = |text: &str| vec![text.parse::<Port>().unwrap()];
        let (kept, other) = (ports("80:8000"), ports("81:8000"));
        let chosen = |asked, publish: &[Port], kind| choose(asked, publish, (kind, &kept)).ok();
        assert_eq!(chosen(None, &[], Kind::Private), Some((Kind::Private, kept.clone())));
        assert_eq!(chosen(None, &other, Kind::Private), Some((Kind::Private, other.clone())));
        assert_eq!(chosen(Some(Kind::Private), &other, Kind::Host), Some((Kind::Private, other.clone())));
        assert_eq!(chosen(Some(Kind::Host), &[], Kind::Private), Some((Kind::Host, Vec::new())));
        assert_eq!(chosen(None, &other, Kind::Host), None);
        assert_eq!(chosen(Some(Kind::Host), &other, Kind::Private), None);
    }
}
