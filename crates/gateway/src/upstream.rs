//! Connections to one instance, kept and used again.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Either, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::header::HOST;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::access::CountedBody;
use crate::limits;
use crate::maker::Instance;
use crate::message_version;
use crate::plan::Source;
use crate::workflow::Pieces;

/// How often a program that does not listen yet is asked.
const EVERY: Duration = Duration::from_millis(2);
/// How often one is that has to answer a request.
const EVERY_PATH: Duration = Duration::from_millis(20);

/// What goes to a program: a client's body, or one of the gateway's own.
pub type Body = Either<CountedBody, Pieces>;
pub type Connection = SendRequest<Body>;

pub struct Upstream {
    pub instance: Arc<dyn Instance>,
    /// Of its sandbox.
    pub name: String,
    /// The latest version of calls' messages that its program understands.
    pub message: u32,
    port: u16,
    idle: Mutex<Vec<Connection>>,
    /// Whether connections that are done with are kept.
    keeps: AtomicBool,
}

/// Why there is no answer.
pub enum Failure {
    /// Nobody listens, and nobody was sent anything.
    Refused {
        error: io::Error,
        request: Box<Request<Body>>,
    },
    Unreachable(io::Error),
    /// The connection ended before anything of an answer came.
    Lost(hyper::Error),
}

/// A socket that is closed while somebody connects resets them; once it is closed they are refused.
fn listens_no_more(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset)
}

impl Upstream {
    pub fn new(instance: Arc<dyn Instance>, name: String, source: &Source) -> Arc<Upstream> {
        let (idle, keeps) = (Mutex::default(), AtomicBool::new(true));
        let message = source.message.unwrap_or(message_version::UNTOLD);
        Arc::new(Upstream { instance, name, message, port: source.to, idle, keeps })
    }

    /// Returns when the program listens, and answers this path with success if one is given. Keeps the connection that shows
    /// it.
    pub async fn ready(&self, path: Option<&str>) {
        loop {
            if let Ok(mut connection) = self.connect().await
                && self.succeeds(&mut connection, path).await
            {
                return self.keep(connection);
            }
            sleep(if path.is_none() { EVERY } else { EVERY_PATH }).await;
        }
    }

    async fn succeeds(&self, connection: &mut Connection, path: Option<&str>) -> bool {
        let Some(path) = path else { return true };
        let request = Request::get(path).header(HOST, "localhost").body(Either::Right(Pieces::default()));
        let Ok(request) = request else { return false };
        match connection.send_request(request).await {
            // What it says with it is of no interest; without it the connection can be used again.
            Ok(answer) => {
                answer.status().is_success()
                    && BodyExt::collect(Limited::new(answer, limits::BUFFER)).await.is_ok()
            }
            Err(_) => false,
        }
    }

    /// Sends a request, on a connection that there is if one is good. One that a connection did not take any more, for it
    /// was being closed, goes on another.
    pub async fn send(
        &self,
        mut request: Request<Body>,
    ) -> Result<(Response<Incoming>, Connection), Failure> {
        loop {
            let kept = self.kept();
            let is_new = kept.is_none();
            let mut connection = match kept {
                Some(connection) => connection,
                None => match self.connect().await {
                    Ok(connection) => connection,
                    Err(error) if listens_no_more(&error) => {
                        return Err(Failure::Refused { error, request: Box::new(request) });
                    }
                    Err(error) => return Err(Failure::Unreachable(error)),
                },
            };
            match connection.try_send_request(request).await {
                Ok(response) => return Ok((response, connection)),
                Err(mut error) => match error.take_message().filter(|_| !is_new) {
                    Some(unsent) => request = unsent,
                    None => return Err(Failure::Lost(error.into_error())),
                },
            }
        }
    }

    /// Takes a connection back whose answer is complete.
    pub fn keep(&self, connection: Connection) {
        if self.keeps.load(Ordering::Acquire) && !connection.is_closed() {
            self.lock().push(connection);
        }
    }

    /// Closes the connections that nobody uses, and keeps none until it is told to.
    pub fn keep_none(&self) {
        self.keeps.store(false, Ordering::Release);
        self.lock().clear();
    }

    pub fn keep_again(&self) {
        self.keeps.store(true, Ordering::Release);
    }

    /// The one that was used last: the others may have been closed by the program.
    fn kept(&self) -> Option<Connection> {
        let mut idle = self.lock();
        std::iter::from_fn(|| idle.pop()).find(|connection| connection.is_ready())
    }

    async fn connect(&self) -> io::Result<Connection> {
        let stream = self.stream().await?;
        // Whoever sends small pieces does not want them to wait for more.
        stream.set_nodelay(true)?;
        let mut builder = Builder::new();
        builder.max_buf_size(limits::BUFFER).max_headers(limits::HEADERS);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                log::debug!("a connection to an instance ended: {error}");
            }
        });
        Ok(sender)
    }

    async fn stream(&self) -> io::Result<TcpStream> {
        let connect = async |address: IpAddr| {
            let socket = self.instance.socket(address.is_ipv6())?;
            let connected = socket.connect(SocketAddr::new(address, self.port));
            timeout(limits::CONNECT_TIME, connected)
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        };
        match connect(Ipv4Addr::LOCALHOST.into()).await {
            Ok(stream) => Ok(stream),
            Err(refused) => connect(Ipv6Addr::LOCALHOST.into()).await.map_err(|_| refused),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
