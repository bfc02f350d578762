//! Connections to others, which a restore cannot bring back: the program finds them reset, as after a failure of the
//! network, and never waits for an answer that cannot come.
//!
//! At a dump their entries in CRIU's images become those of sockets that were never connected, and a note says which
//! descriptors they were. At a restore, when the program is complete and does not run yet, each is connected to a
//! socket of ours that resets the connection: the kernel then tells the program what it tells of any such end, in
//! whatever way the program looks. A program that goes on after its dump has its connections as they were.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Shutdown, SockaddrIn, SockaddrIn6, connect, setsockopt, shutdown, sockopt};
use serde::{Deserialize, Serialize};

use crate::connections;
use crate::descriptors::{Described, FILES, Internet};
use crate::pages::image::{Entries, take_entry, with_length};
use crate::process::{self, Handle};
use crate::proto::Message;

/// The note, among the images and named as they are.
const NAME: &str = "severed.img";
const INVENTORY: &str = "inventory.img";
/// In `inventory.proto`: that connections were left alone.
const CONNECTIONS_CLOSED: u64 = 10;
/// The kernel does this at once, within one machine.
const PATIENCE: Duration = Duration::from_secs(1);

/// A descriptor of the program's, by its own numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct DescriptorKey {
    pid: i32,
    descriptor: i32,
}

/// How CRIU takes the connections of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionPolicy {
    /// Those with itself come along: CRIU reads all out of the kernel.
    Read,
    /// There are none with itself: CRIU leaves all alone.
    LeftAlone,
}

impl ConnectionPolicy {
    pub fn of(pids: &[i32]) -> Self {
        if connections::inside(pids).is_empty() { Self::LeftAlone } else { Self::Read }
    }
}

/// Severs the connections to others in the dump in `images`, while the program `pids` stands still; `inside` are those with
/// [itself](connections::inside), `stays` is whether it goes on.
pub fn sever(
    images: &Path,
    pids: &[i32],
    inside: &BTreeSet<u64>,
    taken: ConnectionPolicy,
    stays: bool,
) -> Result<(), String> {
    if taken == ConnectionPolicy::LeftAlone && !inside.is_empty() {
        return Err("the program connected to itself in this very moment; take it again".into());
    }
    let failed = |error: io::Error| format!("severing the program's connections to others: {error}");
    if taken == ConnectionPolicy::LeftAlone {
        take_back_word(&images.join(INVENTORY)).map_err(failed)?;
    }
    let path = images.join(FILES);
    let mut files = Entries::read(&path)?;
    let severed = cut(&mut files, inside);
    if severed.is_empty() {
        return Ok(());
    }
    files.write(&path).map_err(failed)?;
    let places = places(pids, &severed);
    if taken == ConnectionPolicy::Read && !stays {
        // CRIU would have the kernel forget them without a word, and those at the other ends would wait for ever.
        for place in &places {
            place.socket().and_then(|socket| end_repair(&socket)).map_err(failed)?;
        }
    }
    let note = serde_json::to_vec(&places).map_err(io::Error::from).map_err(failed)?;
    fs::write(images.join(NAME), note).map_err(failed)
}

/// CRIU wants to be told at a restore, too, that it leaves connections alone, and would do so with those that an image has
/// of a program with itself, whenever that was taken. None are left in this one.
fn take_back_word(inventory: &Path) -> io::Result<()> {
    let text = fs::read(inventory)?;
    // One word, as no other image has, then the entry's length and the entry.
    let parts = text
        .split_at_checked(4)
        .and_then(|(word, mut rest)| Some((word, Message::read(take_entry(&mut rest)?)?)));
    let Some((word, mut entry)) = parts else {
        return Err(io::Error::other(format!("{INVENTORY} is not in the format of CRIU's images")));
    };
    let entry = entry.remove(CONNECTIONS_CLOSED).write();
    fs::write(inventory, [word, &with_length(&entry)].concat())
}

/// Makes sockets without connections of those that are not `inside`; their inodes, as the images have them.
fn cut(files: &mut Entries, inside: &BTreeSet<u64>) -> BTreeSet<u32> {
    let inside: BTreeSet<u32> = inside.iter().map(|inode| *inode as u32).collect();
    let mut severed = BTreeSet::new();
    for file in &mut files.entries {
        let Some(mut socket) = Internet::of(file) else { continue };
        let inode = socket.inode();
        let is_connected = socket.is_tcp() && socket.destination_port().unwrap_or(0) != 0;
        if is_connected && !inside.contains(&inode) {
            socket.sever();
            socket.put(file);
            severed.insert(inode);
        }
    }
    severed
}

/// One descriptor of each of the sockets.
fn places(pids: &[i32], sockets: &BTreeSet<u32>) -> Vec<DescriptorKey> {
    let mut left = sockets.clone();
    let mut out = Vec::new();
    for &pid in pids {
        for (descriptor, inode) in process::socket_descriptors(pid) {
            if left.remove(&(inode as u32)) {
                out.push(DescriptorKey { pid, descriptor });
            }
        }
    }
    out
}

impl DescriptorKey {
    fn socket(&self) -> io::Result<OwnedFd> {
        Handle::open(self.pid)?.descriptor(self.descriptor)
    }
}

/// The kernel ends the connection of a socket in repair without telling the other side. When repair ends it has forgotten
/// whether others may have the port too, which what remains of the connection keeps for a minute.
fn end_repair(socket: &OwnedFd) -> io::Result<()> {
    let off: libc::c_int = 0;
    // SAFETY: the value is an integer that lives across the call.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_REPAIR,
            (&raw const off).cast(),
            size_of_val(&off) as libc::socklen_t,
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(setsockopt(socket, sockopt::ReuseAddr, &true)?)
}

/// Has the restored program, which does not run yet, find the connections reset that the dump in `images` severed.
pub fn reset(images: &Path) -> Result<(), String> {
    let Ok(note) = fs::read(images.join(NAME)) else { return Ok(()) };
    let places: Vec<DescriptorKey> =
        serde_json::from_slice(&note).map_err(|error| format!("reading the image's {NAME}: {error}"))?;
    for place in &places {
        let DescriptorKey { pid, descriptor } = place;
        let named =
            |error| format!("resetting the connection of descriptor {descriptor} of process {pid}: {error}");
        let socket = place.socket().map_err(named)?;
        if reset_one(&socket).is_err() {
            // One bound to a device, say, cannot be connected to us: the program finds its end instead.
            match shutdown(socket.as_raw_fd(), Shutdown::Both) {
                Ok(()) | Err(nix::Error::ENOTCONN) => {}
                Err(error) => return Err(named(error.into())),
            }
        }
    }
    Ok(())
}

fn reset_one(socket: &OwnedFd) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(socket, FcntlArg::F_GETFL)?);
    fcntl(socket, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    let done = match TcpListener::from(socket.try_clone()?).local_addr()? {
        SocketAddr::V4(_) => be_reset(socket, Ipv4Addr::LOCALHOST.into()),
        // One that takes no addresses of IPv4 refuses the first.
        SocketAddr::V6(_) => be_reset(socket, Ipv4Addr::LOCALHOST.to_ipv6_mapped().into())
            .or_else(|_| be_reset(socket, Ipv6Addr::LOCALHOST.into())),
    };
    fcntl(socket, FcntlArg::F_SETFL(flags))?;
    done
}

/// Connects the socket to one of ours at this address of the machine, which resets the connection.
fn be_reset(socket: &OwnedFd, address: IpAddr) -> io::Result<()> {
    let listener = TcpListener::bind((address, 0))?;
    let connected = match listener.local_addr()? {
        SocketAddr::V4(address) => connect(socket.as_raw_fd(), &SockaddrIn::from(address)),
        SocketAddr::V6(address) => connect(socket.as_raw_fd(), &SockaddrIn6::from(address)),
    };
    match connected {
        Ok(()) | Err(nix::Error::EINPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    wait(&listener, PollFlags::POLLIN)?;
    let (accepted, _) = listener.accept()?;
    setsockopt(&accepted, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
    drop(accepted);
    wait(socket, PollFlags::empty())
}

/// Until there is one of `events`, or the connection's end.
fn wait(socket: &impl AsFd, events: PollFlags) -> io::Result<()> {
    let patience = PollTimeout::try_from(PATIENCE).unwrap_or(PollTimeout::MAX);
    match poll(&mut [PollFd::new(socket.as_fd(), events)], patience)? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

    use super::*;
    use crate::proto::Encoder;

    #[test]
    fn a_socket_is_found_reset_whatever_its_family() {
        for (family, only) in
            [(AddressFamily::Inet, false), (AddressFamily::Inet6, false), (AddressFamily::Inet6, true)]
        {
            if only && TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
                continue;
            }
            let made = socket(family, SockType::Stream, SockFlag::empty(), None).unwrap();
            if only {
                let yes: libc::c_int = 1;
                // SAFETY: the value is an integer that lives across the call.
                let done = unsafe {
                    let value = (&raw const yes).cast();
                    libc::setsockopt(made.as_raw_fd(), libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, value, 4)
                };
                assert_eq!(done, 0);
            }
            reset_one(&made).unwrap();
            let mut stream = TcpStream::from(made);
            let error = stream.read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{family:?}");
            assert_eq!(stream.read(&mut [0]).unwrap(), 0);
            assert_eq!(stream.write(&[0]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        }
    }

    #[test]
    fn connections_to_others_alone_are_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILES);
        let entry = |inode: u64, protocol: i32, port: u64| {
            let mut socket = Encoder::default();
            socket.number(1, 9).number(2, inode).number(5, protocol as u64).number(6, 1);
            socket.number(7, 80).number(8, port).number(19, 1).bytes(13, b"kept");
            let mut file = Encoder::default();
            file.number(1, 4).bytes(4, &socket.0);
            file.0
        };
        let mut text = b"headhead".to_vec();
        for entry in [entry(5, 6, 1234), entry(6, 6, 1234), entry(7, 17, 53), entry(8, 6, 0)] {
            text.extend(with_length(&entry));
        }
        fs::write(&path, text).unwrap();
        let mut files = Entries::read(&path).unwrap();
        assert_eq!(cut(&mut files, &BTreeSet::from([6, 1 << 32])), BTreeSet::from([5]));
        let states = files.entries.iter().map(|file| {
            let socket = Internet::of(file).unwrap();
            assert_eq!(socket.message().all_bytes(13).next(), Some(b"kept".as_slice()));
            let ports = [socket.source_port(), socket.destination_port()];
            [socket.state(), ports[0].map(u64::from), ports[1].map(u64::from)].map(Option::unwrap)
        });
        assert_eq!(states.collect::<Vec<_>>(), [[7, 0, 0], [1, 80, 1234], [1, 80, 53], [1, 80, 0]]);
    }
}
