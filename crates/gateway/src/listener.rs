//! A port at which clients come to a service: HTTP/1.1, and HTTP/2 for who begins with that, with TLS or without.

use std::convert::Infallible;
use std::net::TcpListener as StdListener;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::access::Access;
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
                    log::error!("the port of the service {:?} cannot be served: {error}", service.name)
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
    ListenerOptions { room, tls, access }: ListenerOptions,
) {
    let graceful = GracefulShutdown::new();
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
                let (service, watcher) = (service.clone(), graceful.watcher());
                let tls = tls.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let access = access.clone();
                tokio::spawn(async move {
                    if let Err(error) = welcome(stream, (service, access), tls, watcher).await {
                        log::debug!("a client's connection ended: {error}");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                log::warn!("the next client of the service {:?} waits: {error}", service.name);
                sleep(limits::PAUSE).await;
            }
        }
    }
    drop(open);
    graceful.shutdown().await;
}

/// The service that clients come to, and who is told of their requests.
type ClientTarget = (Arc<Service>, Option<Access>);
type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn welcome(
    stream: TcpStream,
    asked: ClientTarget,
    tls: Option<Arc<Tls>>,
    watcher: Watcher,
) -> Result<(), Failure> {
    stream.set_nodelay(true)?;
    let ip = stream.peer_addr()?.ip();
    let client = Client { ip, is_secure: tls.is_some() };
    let Some(tls) = tls else { return converse(stream, asked, client, watcher).await };
    let accepted = timeout(limits::HEAD_TIME, TlsAcceptor::from(tls.config()).accept(stream)).await;
    let stream = accepted.map_err(|_| "it did not come to speak TLS")??;
    converse(stream, asked, client, watcher).await
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    (service, access): ClientTarget,
    client: Client,
    watcher: Watcher,
) -> Result<(), Failure> {
    let begun = Arc::new(Notify::new());
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEAD_TIME)
        .max_buf_size(limits::BUFFER)
        .max_headers(limits::HEADERS);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits::STREAMS)
        .max_header_list_size(limits::BUFFER as u32);
    let request = service_fn({
        let begun = begun.clone();
        move |request| {
            begun.notify_one();
            let (service, access) = (service.clone(), access.clone());
            async move { Ok::<_, Infallible>(answer(service, client, access, request).await) }
        }
    });
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), request).into_owned();
    let mut connection = std::pin::pin!(watcher.watch(connection));
    // Before it is known which protocol is spoken, no limit of one holds.
    tokio::select! {
        ended = &mut connection => return ended,
        () = begun.notified() => {}
        () = sleep(limits::HEAD_TIME + Duration::from_secs(1)) => return Err("nothing was asked for".into()),
    }
    connection.await
}
