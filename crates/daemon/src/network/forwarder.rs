//! Carrying connections from ports of the machine's into sandboxes' networks: one thread for all.
//!
//! Who comes while the program is away, or does not listen yet, waits; after a while the connection is reset. So is it
//! when the program's end is: what one side sees, the other does.

use std::future::pending;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdListener};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use rekindle_sandbox::Network;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::network::dialer::NetworkDialer;

/// How often a program that does not listen yet is asked.
const EVERY: Duration = Duration::from_millis(10);
/// How long one that has ended may take to have its last bytes carried.
const PARTING: Duration = Duration::from_secs(1);
/// How long nobody is let in after that failed, as it does without descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// How much is carried at a time.
const PIECE: usize = 32 << 10;
/// A connection takes two descriptors, and all of them together at most half of what the process may have.
const SHARE: u64 = 4;
const FEWEST: u64 = 16;

/// Where a program is.
#[derive(Clone)]
pub enum Destination {
    /// In a network of its own.
    Here(Arc<Network>),
    /// At another node.
    Elsewhere(IpAddr),
}

impl Destination {
    fn is(&self, other: &Destination) -> bool {
        match (self, other) {
            (Destination::Here(own), Destination::Here(other)) => Arc::ptr_eq(own, other),
            (Destination::Elsewhere(own), Destination::Elsewhere(other)) => own == other,
            _ => false,
        }
    }

    /// Where it may listen.
    fn addresses(&self) -> Vec<IpAddr> {
        match self {
            Destination::Here(_) => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
            Destination::Elsewhere(address) => vec![*address],
        }
    }
}

/// Where a port leads.
#[derive(Clone, Default)]
pub struct Target {
    pub destination: Option<Destination>,
    /// Whether who comes is let in.
    pub open: bool,
    pub to: u16,
}

impl Target {
    fn is(&self, destination: &Destination) -> bool {
        self.destination.as_ref().is_some_and(|own| own.is(destination))
    }
}

/// A port that is served.
pub struct PortForwarding {
    task: AbortHandle,
    closed: mpsc::Receiver<()>,
}

impl PortForwarding {
    /// Returns when the port is free. Connections that there are go on.
    pub fn close(&self) {
        self.task.abort();
        // Nothing is ever sent: it ends with the task, and the thread never waits for anything else.
        let _ = self.closed.recv();
    }
}

/// The thread.
pub struct PortForwarder {
    runtime: Handle,
    shared: Shared,
}

#[derive(Clone)]
struct Shared {
    wait: Duration,
    dialer: NetworkDialer,
    room: Arc<Semaphore>,
}

/// What those who come to one port have in common.
#[derive(Clone)]
struct Line {
    target: watch::Receiver<Target>,
    /// Whoever has this asks the program whether it listens; the others wait behind.
    probe_lock: Arc<Mutex<()>>,
    shared: Shared,
}

impl PortForwarder {
    pub fn start(wait: Duration) -> io::Result<PortForwarder> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let handle = runtime.handle().clone();
        std::thread::Builder::new().name("ports".into()).spawn(move || runtime.block_on(pending::<()>()))?;
        let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
        let room = (descriptors / SHARE).clamp(FEWEST, Semaphore::MAX_PERMITS as u64);
        let shared =
            Shared { wait, dialer: NetworkDialer::here()?, room: Arc::new(Semaphore::new(room as usize)) };
        Ok(PortForwarder { runtime: handle, shared })
    }

    /// Lets in who comes to a port, until that is closed.
    pub fn serve(&self, listener: StdListener, target: watch::Receiver<Target>) -> PortForwarding {
        let line = Line { target, probe_lock: Arc::default(), shared: self.shared.clone() };
        let (closes, closed) = mpsc::channel::<()>();
        // The listener goes before what tells that it has gone.
        let open = (listener, closes);
        let task = self.runtime.spawn(async move {
            let (listener, _closes) = open;
            match TcpListener::from_std(listener) {
                Ok(listener) => line.serve(listener).await,
                Err(error) => log::error!("a port cannot be served: {error}"),
            }
        });
        PortForwarding { task: task.abort_handle(), closed }
    }
}

impl Line {
    async fn serve(self, listener: TcpListener) {
        loop {
            let Ok(place) = self.shared.room.clone().acquire_owned().await else { return };
            match listener.accept().await {
                Ok((client, _)) => {
                    let line = self.clone();
                    tokio::spawn(async move {
                        line.carry(client).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    log::warn!("the next connection to a port waits: {error}");
                    sleep(PAUSE).await;
                }
            }
        }
    }

    async fn carry(mut self, mut client: TcpStream) {
        let reached = timeout(self.shared.wait, self.reach()).await;
        let Ok(Some((mut program, destination))) = reached else { return reset(&client) };
        for stream in [&client, &program] {
            // Whoever sends small pieces does not want them to wait for more.
            let _ = stream.set_nodelay(true);
        }
        let carried = {
            let copy = copy_bidirectional_with_sizes(&mut client, &mut program, PIECE, PIECE);
            tokio::pin!(copy);
            let gone = async { self.target.wait_for(|target| !target.is(&destination)).await.is_err() };
            tokio::select! {
                carried = &mut copy => carried,
                _ = gone => timeout(PARTING, copy).await.unwrap_or(Err(io::ErrorKind::TimedOut.into())),
            }
        };
        if carried.is_err() {
            reset(&client);
            reset(&program);
        }
    }

    /// A connection to the program, and where that is; none if the port was closed.
    async fn reach(&mut self) -> Option<(TcpStream, Destination)> {
        if let Some(reached) = self.ask().await? {
            return Some(reached);
        }
        let lock = self.probe_lock.clone();
        let _probing = lock.lock().await;
        loop {
            if let Some(reached) = self.ask().await? {
                return Some(reached);
            }
            sleep(EVERY).await;
        }
    }

    /// Asks the program once, when it is there.
    async fn ask(&mut self) -> Option<Option<(TcpStream, Destination)>> {
        let is_open = |target: &Target| target.open && target.destination.is_some();
        let target = self.target.wait_for(is_open).await.ok()?.clone();
        let destination = target.destination?;
        for address in destination.addresses() {
            let socket = match &destination {
                Destination::Here(network) => self.shared.dialer.socket(network, address.is_ipv6()),
                Destination::Elsewhere(_) => self.shared.dialer.outside(address.is_ipv6()),
            };
            let Ok(socket) = socket else { continue };
            if let Ok(stream) = socket.connect(SocketAddr::new(address, target.to)).await {
                return Some(Some((stream, destination)));
            }
        }
        Some(None)
    }
}

/// Has the other side find the connection reset when it is closed.
fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}
