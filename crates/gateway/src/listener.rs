//! A port at which clients come to a service, with TLS or without.

use std::net::TcpListener as StdListener;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use ipnet::IpNet;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::access::Access;
use crate::connection::{Failure, converse};
use crate::limits;
use crate::proxy::{Client, answer};
use crate::service::Service;
use crate::tls::Tls;

/// What those who come speak TLS with; none: they do not.
pub type Security = Arc<Mutex<Option<Arc<Tls>>>>;

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
    pub fn begin(
        runtime: &Handle,
        listener: StdListener,
        service: Arc<Service>,
        needs: ListenerOptions,
    ) -> Listener {
        let (stop, stopped) = oneshot::channel();
        let (closes, closed) = channel();
        runtime.spawn(async move {
            match TcpListener::from_std(listener) {
                Ok(listener) => serve((listener, closes), stopped, service, needs).await,
                Err(error) => {
                    log::error!("the port of the service {} cannot be served: {error}", service.name)
                }
            }
        });
        Listener { stop: Some(stop), closed }
    }
}

async fn serve(
    open: (TcpListener, Sender<()>),
    mut stopped: oneshot::Receiver<()>,
    service: Arc<Service>,
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
            Ok((stream, _)) => {
                let (service, stopping) = (service.clone(), stopping.clone());
                let tls = tls.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let target = ClientTarget { service, access: access.clone(), proxies: proxies.clone() };
                tokio::spawn(async move {
                    if let Err(error) = welcome(stream, target, tls, stopping).await {
                        log::debug!("a client's connection ended: {error}");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                log::warn!("the next client of the service {} waits: {error}", service.name);
                sleep(limits::PAUSE).await;
            }
        }
    }
    drop((open, open_to_more));
}

/// The service that clients come to, who is told of their requests, and which of them are known proxies.
struct ClientTarget {
    service: Arc<Service>,
    access: Option<Access>,
    proxies: Arc<[IpNet]>,
}

async fn welcome(
    stream: TcpStream,
    ClientTarget { service, access, proxies }: ClientTarget,
    tls: Option<Arc<Tls>>,
    stopping: watch::Receiver<()>,
) -> Result<(), Failure> {
    stream.set_nodelay(true)?;
    let ip = stream.peer_addr()?.ip();
    let is_proxy = proxies.iter().any(|known| known.contains(&ip.to_canonical()));
    let client = Client { ip, is_secure: tls.is_some(), is_proxy };
    let ask = move |request| answer(service.clone(), client, access.clone(), request);
    let Some(tls) = tls else { return converse(stream, ask, stopping, limits::REST_TIME).await };
    let accepted = timeout(limits::HEAD_TIME, TlsAcceptor::from(tls.config()).accept(stream)).await;
    let stream = accepted.map_err(|_| "it did not come to speak TLS")??;
    converse(stream, ask, stopping, limits::REST_TIME).await
}
