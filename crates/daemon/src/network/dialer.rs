//! The way into sandboxes' networks, for sockets.

use std::io;
use std::sync::Arc;

use rekindle_sandbox::Network;
use tokio::net::TcpSocket;

/// Knows the way back.
#[derive(Clone)]
pub struct NetworkDialer {
    /// The network that the threads are in which make sockets.
    own: Arc<Network>,
}

impl NetworkDialer {
    pub fn here() -> io::Result<NetworkDialer> {
        Ok(NetworkDialer { own: Arc::new(Network::current()?) })
    }

    /// A socket in a sandbox's network, for which the thread goes there and comes back.
    pub fn socket(&self, network: &Network, is_v6: bool) -> io::Result<TcpSocket> {
        network.enter()?;
        let made = if is_v6 { TcpSocket::new_v6() } else { TcpSocket::new_v4() };
        self.own.enter()?;
        made
    }

    /// A socket in the machine's own.
    pub fn outside(&self, is_v6: bool) -> io::Result<TcpSocket> {
        if is_v6 { TcpSocket::new_v6() } else { TcpSocket::new_v4() }
    }
}
