//! A connection between two nodes: TLS 1.3, each side known to the other by its raw public key (RFC 7250).
//!
//! Who has no key that is known here is refused in the handshake, before anything that it sends is read. Messages are
//! [frames](frame); what comes between them, such as chunks, is as long as a message before has said.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};
use rekindle_protocol::frame::{self, FrameError};
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::ServerName;
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::key::{Key, PublicKey};
use super::known_nodes::{KnownNodes, Peer};
use super::trust::{Anyone, Expected};
use crate::error::{Error, Result};
use crate::peers::PeerError;

/// What is spoken, with its version.
const PROTOCOL: &[u8] = b"rekindle-node/1";
/// What a server says first: that it knows who has come.
const WELCOME: [u8; 1] = [1];
/// The longest message.
const LONGEST: usize = 16 << 20;
/// How long a node may take to be reached, and to make itself known.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long a message may take to come that is not waited for.
pub const MESSAGE_LIMIT: Duration = Duration::from_secs(30);
/// How long what was sent may stay unacknowledged.
const SILENCE_LIMIT: Duration = Duration::from_secs(20);

/// What both ends of connections need.
pub struct Ends {
    key: Arc<Key>,
    known: Arc<KnownNodes>,
    provider: Arc<CryptoProvider>,
}

trait Duplex: Read + Write + Send {}

impl<T: Read + Write + Send> Duplex for T {}

pub struct Link {
    stream: Box<dyn Duplex>,
    socket: TcpStream,
    pub peer: Peer,
}

impl Ends {
    pub fn new(key: Arc<Key>, known: Arc<KnownNodes>) -> Ends {
        Ends { key, known, provider: Arc::new(default_provider()) }
    }

    /// Connects to a node that is known.
    pub fn connect(&self, peer: &Peer) -> Result<Link> {
        let failed = |reason: String| PeerError::Failed { name: peer.name.clone(), reason };
        let lost = |error: io::Error| failed(format!("it cannot be reached at {}: {error}", peer.address));
        let mut addresses = peer.address.to_socket_addrs().map_err(lost)?;
        let address = addresses.next().ok_or_else(|| lost(io::ErrorKind::NotFound.into()))?;
        let mut socket = TcpStream::connect_timeout(&address, CONNECT_LIMIT).map_err(lost)?;
        bound(&socket).map_err(lost)?;
        let verifier = Arc::new(Expected { key: peer.key, provider: self.provider.clone() });
        let own = Arc::new(AlwaysResolvesClientRawPublicKeys::new(self.key.certified.clone()));
        let config = ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map(|config| {
                config.dangerous().with_custom_certificate_verifier(verifier).with_client_cert_resolver(own)
            });
        let mut config = config.map_err(|error| failed(error.to_string()))?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        // Nodes are known by their keys and nothing else.
        let name = ServerName::try_from("node").map_err(|error| failed(error.to_string()))?;
        let connection = ClientConnection::new(Arc::new(config), name);
        let mut connection = connection.map_err(|error| failed(error.to_string()))?;
        while connection.is_handshaking() {
            connection.complete_io(&mut socket).map_err(|error| match tls(&error) {
                Some(rustls::Error::InvalidCertificate(_)) => failed(format!(
                    "who answers at {} has another key than the one that was added; compare it with what `rekindle node id` prints there",
                    peer.address
                )),
                _ => lost(error),
            })?;
        }
        let copy = socket.try_clone().map_err(lost)?;
        let stream = Box::new(StreamOwned::new(connection, socket));
        let mut link = Link { stream, socket: copy, peer: peer.clone() };
        let mut welcome = [0];
        link.stream.read_exact(&mut welcome).map_err(|error| match tls(&error) {
            Some(rustls::Error::AlertReceived(_)) => failed(format!(
                "it does not know this node; run `rekindle node add NAME ADDRESS {}` there",
                self.key.public
            )),
            _ => lost(error),
        })?;
        Ok(link)
    }

    /// Takes a connection of a node, if it is one that is known.
    pub fn accept(&self, mut socket: TcpStream) -> Result<Link> {
        let failed = |error: io::Error| Error::system("take a connection of a node", error);
        bound(&socket).map_err(failed)?;
        let verifier = Arc::new(Anyone { known: self.known.clone(), provider: self.provider.clone() });
        let own = Arc::new(AlwaysResolvesServerRawPublicKeys::new(self.key.certified.clone()));
        let config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map(|config| config.with_client_cert_verifier(verifier).with_cert_resolver(own));
        let mut config = config.map_err(|error| failed(io::Error::other(error)))?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        let connection = ServerConnection::new(Arc::new(config));
        let mut connection = connection.map_err(|error| failed(io::Error::other(error)))?;
        let deadline = Instant::now() + CONNECT_LIMIT;
        while connection.is_handshaking() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(failed(io::ErrorKind::TimedOut.into()));
            }
            socket.set_read_timeout(Some(left)).map_err(failed)?;
            connection.complete_io(&mut socket).map_err(failed)?;
        }
        let shown = connection.peer_certificates().and_then(|shown| shown.first());
        let key = shown.and_then(|shown| PublicKey::from_der(shown));
        let peer = key.and_then(|key| self.known.with_key(&key));
        let peer = peer.ok_or_else(|| failed(io::ErrorKind::PermissionDenied.into()))?;
        let copy = socket.try_clone().map_err(failed)?;
        bound(&copy).map_err(failed)?;
        let mut link = Link { stream: Box::new(StreamOwned::new(connection, socket)), socket: copy, peer };
        link.stream.write_all(&WELCOME).and_then(|()| link.stream.flush()).map_err(failed)?;
        Ok(link)
    }
}

/// A peer that is gone is noticed, and none is waited for without end.
fn bound(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(CONNECT_LIMIT))?;
    socket.set_write_timeout(Some(SILENCE_LIMIT))?;
    setsockopt(socket, sockopt::KeepAlive, &true)?;
    setsockopt(socket, sockopt::TcpKeepIdle, &5)?;
    setsockopt(socket, sockopt::TcpKeepInterval, &5)?;
    setsockopt(socket, sockopt::TcpUserTimeout, &(SILENCE_LIMIT.as_millis() as u32))?;
    Ok(())
}

fn tls(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

impl Link {
    fn lost(&self, error: &io::Error) -> Error {
        let reason = match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "it does not answer".to_string(),
            io::ErrorKind::UnexpectedEof => "it has closed the connection".to_string(),
            _ => format!("the connection is lost: {error}"),
        };
        PeerError::Failed { name: self.peer.name.clone(), reason }.into()
    }

    fn failed(&self, error: FrameError) -> Error {
        match error {
            FrameError::Closed => self.lost(&io::ErrorKind::UnexpectedEof.into()),
            FrameError::Io(error) => self.lost(&error),
            other => self.lost(&io::Error::other(other)),
        }
    }

    pub fn send(&mut self, message: &impl Serialize) -> Result<()> {
        let message = frame::encode(message, LONGEST).map_err(|error| self.failed(error))?;
        let sent = self.stream.write_all(&message).and_then(|()| self.stream.flush());
        sent.map_err(|error| self.lost(&error))
    }

    /// The next message, within a time.
    pub fn receive<T: DeserializeOwned>(&mut self, within: Duration) -> Result<T> {
        let message = frame::read(&mut self.until(within), LONGEST);
        message.and_then(|message| message.ok_or(FrameError::Closed)).map_err(|error| self.failed(error))
    }

    /// So many bytes that a message has spoken of.
    pub fn receive_bytes(&mut self, length: u64, most: u64) -> Result<Vec<u8>> {
        if length > most {
            let reason = format!("it sends {length} bytes, and at most {most} may be");
            return Err(self.lost(&io::Error::other(reason)));
        }
        let bytes = frame::read_bytes(&mut self.until(MESSAGE_LIMIT), length as usize);
        bytes.map_err(|error| self.failed(error))
    }

    fn until(&mut self, within: Duration) -> Until<'_> {
        Until { link: self, deadline: Instant::now() + within }
    }

    /// Bytes that go there, or come from there, as many as messages have said. Who is answered before all was written need not
    /// go on, and finds that an error.
    pub fn stream(&mut self) -> Result<impl Read + Write + '_> {
        self.socket.set_read_timeout(Some(MESSAGE_LIMIT)).map_err(|error| self.lost(&error))?;
        Ok(BodyStream(self))
    }

    /// Reads what still comes, for nothing, until the other side has read what it was told and closes: a connection that is
    /// closed with something unread takes that with it.
    pub fn drain(&mut self) {
        let deadline = Instant::now() + CONNECT_LIMIT;
        let mut scrap = vec![0; 1 << 16];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let is_bounded = !left.is_zero() && self.socket.set_read_timeout(Some(left)).is_ok();
            if !is_bounded || !self.stream.read(&mut scrap).is_ok_and(|count| count > 0) {
                return;
            }
        }
    }
}

impl Link {
    /// Something has come, or the connection has ended, before all was sent.
    fn why_no_more(&self) -> io::Error {
        match self.socket.peek(&mut [0]) {
            Ok(0) => io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed"),
            Ok(_) => io::Error::other("it has answered before all was sent"),
            Err(error) => error,
        }
    }
}

/// What comes before a deadline.
struct Until<'a> {
    link: &'a mut Link,
    deadline: Instant,
}

impl Read for Until<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.link.socket.set_read_timeout(Some(left))?;
        self.link.stream.read(into)
    }
}

struct BodyStream<'a>(&'a mut Link);

impl Read for BodyStream<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.stream.read(into)
    }
}

impl Write for BodyStream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut polled = [PollFd::new(self.0.socket.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, PollTimeout::ZERO) {
            Ok(ready) if ready > 0 => Err(self.0.why_no_more()),
            _ => self.0.stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.stream.flush()
    }
}
