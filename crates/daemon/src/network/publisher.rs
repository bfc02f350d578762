//! The ports of the machine's that lead into sandboxes: who has which, and where they lead just now.
//!
//! A port stays open while the program that has it stands still, is stopped, or is brought back under its name. So it
//! knows all who have a claim to it; the last to come is whom it leads to, and it closes with the last to go. One that was
//! stopped gives way to whoever asks.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rekindle_protocol::network::Port;
use rekindle_sandbox::{Network, who_listens};
use tokio::sync::watch;

use crate::error::Result;
use crate::network::NetworkError;
use crate::network::forwarder::{Destination, PortForwarder, PortForwarding, Target};

/// An address of the machine's, or all, and a port there.
type Key = (Option<IpAddr>, u16);

pub struct Publisher {
    wait: Duration,
    /// The thread that carries connections, once there is a port.
    forwarder: OnceLock<PortForwarder>,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    ports: HashMap<Key, PublishedPort>,
    last: u64,
}

struct PublishedPort {
    /// The last is whom it leads to.
    claims: Vec<Claim>,
    target: watch::Sender<Target>,
    task: PortForwarding,
}

struct Claim {
    lease: u64,
    /// The sandbox's.
    name: String,
    to: u16,
    destination: Option<Destination>,
    paused: bool,
    stopped: bool,
}

impl PublishedPort {
    /// Has who comes find what there is now.
    fn lead(&self) {
        let last = self.claims.last();
        let to = last.map_or(0, |claim| claim.to);
        let destination = last.and_then(|claim| claim.destination.clone());
        let open = last.is_some_and(|claim| !claim.paused);
        self.target.send_replace(Target { destination, open, to });
    }
}

/// Ports that a sandbox has.
pub struct Lease {
    publisher: Arc<Publisher>,
    number: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut open = self.publisher.lock();
        open.ports.retain(|_, listening| {
            listening.claims.retain(|claim| claim.lease != self.number);
            listening.lead();
            if listening.claims.is_empty() {
                listening.task.close();
            }
            !listening.claims.is_empty()
        });
    }
}

impl Lease {
    /// The program is there.
    pub fn open(&self, network: &Arc<Network>) {
        self.change(|claim| claim.destination = Some(Destination::Here(network.clone())));
    }

    pub fn pause(&self, paused: bool) {
        self.change(|claim| claim.paused = paused);
    }

    /// The program is not there any more, and may come back.
    pub fn stopped(&self) {
        self.change(|claim| (claim.destination, claim.stopped) = (None, true));
    }

    /// The program is at another node, where these ports lead to it; those that lead to none of them are closed to it.
    pub fn forward(&self, node: IpAddr, there: &[Port]) {
        self.change(|claim| {
            if let Some(port) = there.iter().find(|port| port.to == claim.to) {
                (claim.destination, claim.stopped) = (Some(Destination::Elsewhere(node)), true);
                claim.to = port.port;
            }
        });
    }

    fn change(&self, change: impl Fn(&mut Claim)) {
        for listening in self.publisher.lock().ports.values_mut() {
            let mut own = listening.claims.iter_mut().filter(|claim| claim.lease == self.number).peekable();
            if own.peek().is_some() {
                own.for_each(&change);
                listening.lead();
            }
        }
    }
}

impl Publisher {
    pub fn new(wait: Duration) -> Arc<Publisher> {
        Arc::new(Publisher { wait, forwarder: OnceLock::new(), open: Mutex::default() })
    }

    /// Opens the ports for the sandbox of this name, all or none. Returns them with the numbers that were chosen.
    pub fn take(self: &Arc<Self>, name: &str, wanted: &[Port]) -> Result<(Lease, Vec<Port>)> {
        let number = {
            let mut open = self.lock();
            open.last += 1;
            open.last
        };
        // Gives back what was taken if the next one is not to be had.
        let lease = Lease { publisher: self.clone(), number };
        let ports = wanted.iter().map(|port| self.take_one(name, *port, number)).collect::<Result<_>>()?;
        Ok((lease, ports))
    }

    /// Whether these can be had now.
    pub fn check(self: &Arc<Self>, wanted: &[Port]) -> Result<()> {
        self.take("", wanted).map(drop)
    }

    fn take_one(&self, name: &str, wanted: Port, lease: u64) -> Result<Port> {
        let claim = Claim {
            lease,
            name: name.to_string(),
            to: wanted.to,
            destination: None,
            paused: false,
            stopped: false,
        };
        let mut open = self.lock();
        let key = (wanted.address, wanted.port);
        if let Some(listening) = open.ports.get_mut(&key)
            && listening.claims.last().is_some_and(|claim| claim.stopped)
        {
            listening.claims.push(claim);
            listening.lead();
            return Ok(wanted);
        }
        if let Some(holder) = open.holder(&key) {
            return Err(NetworkError::PortPublished { port: wanted.port, name: holder }.into());
        }
        let listener = listen(wanted).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => NetworkError::PortTaken {
                port: wanted.port,
                by: who_listens(wanted.port).unwrap_or_else(|| "another process has it".to_string()),
            },
            _ => NetworkError::CannotPublish { port: wanted, source },
        })?;
        let failed = |source| NetworkError::CannotPublish { port: wanted, source };
        let port = listener.local_addr().map_err(failed)?.port();
        listener.set_nonblocking(true).map_err(failed)?;
        let (target, leads) = watch::channel(Target::default());
        let task = self.forwarder().map_err(failed)?.serve(listener, leads);
        let listening = PublishedPort { claims: vec![claim], target, task };
        listening.lead();
        open.ports.insert((wanted.address, port), listening);
        Ok(Port { port, ..wanted })
    }

    fn forwarder(&self) -> io::Result<&PortForwarder> {
        if self.forwarder.get().is_none() {
            // Made with the ports locked: there is one.
            let _ = self.forwarder.set(PortForwarder::start(self.wait)?);
        }
        self.forwarder.get().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// Which sandbox has this port, at this address or one that includes it.
    fn holder(&self, (address, port): &Key) -> Option<String> {
        let overlaps = |(other, number): &Key| {
            *port != 0 && number == port && (other == address || other.is_none() || address.is_none())
        };
        let found = self.ports.iter().find(|(key, _)| overlaps(key));
        found.and_then(|(_, listening)| Some(listening.claims.last()?.name.clone()))
    }
}

/// Takes a port of the machine's.
pub fn listen(port: Port) -> io::Result<TcpListener> {
    match port.address {
        Some(address) => TcpListener::bind(SocketAddr::new(address, port.port)),
        // One socket for both protocols, where there are both.
        None => match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port.port)) {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, port.port))
            }
            other => other,
        },
    }
}
