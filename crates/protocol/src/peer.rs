//! Who is at the other end of a Unix socket.

use std::os::unix::net::UnixStream;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

/// Whether the process that connected is in this one's pid namespace, and so in no sandbox: sockets in a run directory are
/// in a program's reach too.
pub fn is_beside(stream: &UnixStream) -> bool {
    let Ok(peer) = getsockopt(stream, PeerCredentials) else { return false };
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/pid"));
    let own = namespace("self").ok();
    peer.pid() > 0 && own.is_some() && namespace(&peer.pid().to_string()).ok() == own
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_process_is_beside_itself() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(super::is_beside(&one));
    }
}
