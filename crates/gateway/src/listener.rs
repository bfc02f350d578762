//! A port at which clients come to a service, with TLS or without, and a socket for programs of this machine that reach no port.

use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpListener as StdListener};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use ipnet::IpNet;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::access::Access;
use crate::connection::{Failure, converse};
use crate::directory::Served;
use crate::limits;
use crate::proxy::{self, Client};
use crate::tls::Tls;
use crate::workflow;

/// What those who come speak TLS with; none: they do not.
pub type Security = Arc<Mutex<Option<Arc<Tls>>>>;

/// Where clients come.
pub enum Door {
    Port(StdListener),
    /// In the file system. Nobody speaks TLS there: it leads to no other machine.
    Socket(StdUnixListener),
}

enum OpenDoor {
    Port(TcpListener),
    Socket(UnixListener),
}

enum Guest {
    OfPort(TcpStream),
    OfSocket(UnixStream),
}

impl OpenDoor {
    fn open(door: Door) -> io::Result<OpenDoor> {
        Ok(match door {
            Door::Port(listener) => OpenDoor::Port(TcpListener::from_std(listener)?),
            Door::Socket(listener) => OpenDoor::Socket(UnixListener::from_std(listener)?),
        })
    }

    async fn accept(&self) -> io::Result<Guest> {
        Ok(match self {
            OpenDoor::Port(listener) => Guest::OfPort(listener.accept().await?.0),
            OpenDoor::Socket(listener) => Guest::OfSocket(listener.accept().await?.0),
        })
    }
}

/// What a port needs beside its service.
pub struct ListenerOptions {
    /// How many clients all listeners have together.
    pub room: Arc<Semaphore>,
    pub tls: Security,
    pub access: Option<Access>,
    /// The clients whose word is taken on the way that requests came.
    pub proxies: Arc<[IpNet]>,
}

/// Closes the port when it goes. What came in before is answered.
pub struct Listener {
    stop: Option<oneshot::Sender<()>>,
    closed: Receiver<()>,
}

impl Drop for Listener {
    /// Returns when the port is free.
    fn drop(&mut self) {
        drop(self.stop.take());
        // Nothing is ever sent: it ends with the socket.
        let _ = self.closed.recv();
    }
}

impl Listener {
    pub fn begin(runtime: &Handle, door: Door, served: Served, needs: ListenerOptions) -> Listener {
        let (stop, stopped) = oneshot::channel();
        let (closes, closed) = channel();
        runtime.spawn(async move {
            match OpenDoor::open(door) {
                Ok(door) => serve((door, closes), stopped, served, needs).await,
                Err(error) => {
                    log::error!("the port of {} cannot be served: {error}", served.name())
                }
            }
        });
        Listener { stop: Some(stop), closed }
    }
}

async fn serve(
    open: (OpenDoor, Sender<()>),
    mut stopped: oneshot::Receiver<()>,
    served: Served,
    ListenerOptions { room, tls, access, proxies }: ListenerOptions,
) {
    let (open_to_more, stopping) = watch::channel(());
    loop {
        let come = async {
            let place = room.clone().acquire_owned().await;
            (place, open.0.accept().await)
        };
        let (place, come) = tokio::select! {
            come = come => come,
            _ = &mut stopped => break,
        };
        match come {
            Ok(guest) => {
                let (served, stopping) = (served.clone(), stopping.clone());
                let tls = tls.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let target = ClientTarget { served, access: access.clone(), proxies: proxies.clone() };
                tokio::spawn(async move {
                    if let Err(error) = welcome(guest, target, tls, stopping).await {
                        log::debug!("a client's connection ended: {error}");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                log::warn!("the next client of {} waits: {error}", served.name());
                sleep(limits::PAUSE).await;
            }
        }
    }
    drop((open, open_to_more));
}

/// What clients come to, who is told of their requests, and which of them are known proxies.
struct ClientTarget {
    served: Served,
    access: Option<Access>,
    proxies: Arc<[IpNet]>,
}

async fn welcome(
    guest: Guest,
    target: ClientTarget,
    tls: Option<Arc<Tls>>,
    stopping: watch::Receiver<()>,
) -> Result<(), Failure> {
    let stream = match guest {
        Guest::OfPort(stream) => stream,
        Guest::OfSocket(stream) => {
            let client = Client { ip: Ipv4Addr::LOCALHOST.into(), is_secure: false, is_proxy: false };
            return attend(stream, target, client, stopping).await;
        }
    };
    stream.set_nodelay(true)?;
    let ip: IpAddr = stream.peer_addr()?.ip();
    let is_proxy = target.proxies.iter().any(|known| known.contains(&ip.to_canonical()));
    let client = Client { ip, is_secure: tls.is_some(), is_proxy };
    let Some(tls) = tls else { return attend(stream, target, client, stopping).await };
    let accepted = timeout(limits::HEAD_TIME, TlsAcceptor::from(tls.config()).accept(stream)).await;
    let stream = accepted.map_err(|_| "it did not come to speak TLS")??;
    attend(stream, target, client, stopping).await
}

async fn attend(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ClientTarget { served, access, .. }: ClientTarget,
    client: Client,
    stopping: watch::Receiver<()>,
) -> Result<(), Failure> {
    let ask = move |request| {
        let (served, access) = (served.clone(), access.clone());
        async move {
            match served {
                Served::Service(service) => proxy::answer(service, client, access, request).await,
                Served::Workflow(flow) => workflow::answer(flow, client, access, request).await,
            }
        }
    };
    converse(stream, ask, stopping, limits::REST_TIME).await
}
