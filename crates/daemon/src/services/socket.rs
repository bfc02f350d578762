//! The sockets by which programs of this machine come to services that reach no port: those in networks of their own.
//!
//! They lie beside the daemon's socket, and are the daemon's user's alone. A service has the same one with each daemon.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use rekindle_protocol::service_name::ServiceName;

use crate::daemon::Daemon;
use crate::error::Error;
use crate::host::private_socket;

/// Digits of the hash of a service's name: names may be longer than a socket's path.
const DIGITS: usize = 16;

/// Where the socket of a service is.
pub fn place(daemon: &Daemon, name: &ServiceName) -> PathBuf {
    let hash = blake3::hash(name.word().as_bytes()).to_hex();
    daemon.paths.service_sockets().join(&hash[..DIGITS])
}

/// Has programs come there. A service without one is there for all others.
pub fn listen(daemon: &Daemon, name: &ServiceName) {
    let listening = private_socket::listen(&place(daemon, name)).and_then(|socket| {
        let listening = daemon.gateway.listen_here(name, socket);
        listening.map_err(|source| Error::system("serve a socket", source))
    });
    if let Err(error) = listening {
        log::warn!("functions cannot call {name}: {error}");
    }
}

/// The service is gone.
pub fn remove(daemon: &Daemon, name: &ServiceName) {
    let place = place(daemon, name);
    match fs::remove_file(&place) {
        Err(error) if error.kind() != ErrorKind::NotFound => log::warn!("{} stays: {error}", place.display()),
        _ => {}
    }
}
