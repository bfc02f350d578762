//! The relay itself: between a runtime and CRIU for the time of one request.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, Shutdown, SockFlag, SockType, getsockopt,
    recv, recvmsg, send, sendmsg, shutdown, socketpair, sockopt,
};

use super::{Plan, Reached};
use crate::message::Verdict;
use crate::process::Handle;
use crate::proto::{Encoder, Message};
use crate::rpc::{self, Response};
use crate::wire::Channel;

const PACKET: usize = 1 << 16;
const MOST_DESCRIPTORS: usize = 16;
/// Of a request: its kind, and the kinds that we have a word in; its options.
const KIND: u64 = 1;
const DUMP: u64 = 1;
const RESTORE: u64 = 2;
const OPTIONS: u64 = 2;
/// Of the options: directories as descriptors of whoever asks, what replaces what, and what is outside.
const IMAGES_DIR: u64 = 1;
const WORK_DIR: u64 = 17;
const INHERIT: u64 = 27;
const EXTERNAL: u64 = 37;

/// `criu-relay SOCKET CRIU... ARGUMENTS...`: does as CRIU would with these arguments.
pub fn relay_main(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let socket = words.next().unwrap_or_default();
    let words: Vec<_> = words.collect();
    let failed = |error: io::Error| {
        eprintln!("{}: {error}", super::RELAY_ARGUMENT);
        ExitCode::FAILURE
    };
    let Some((program, arguments)) = words.split_first() else {
        return failed(io::ErrorKind::InvalidInput.into());
    };
    let service = match arguments {
        [.., verb, number] if verb == "swrk" => number.to_str().and_then(|number| number.parse().ok()),
        _ => None,
    };
    match service.and_then(|number| asked(number).then(|| relay(socket, &words, number))) {
        // CRIU has nothing to do here that is ours.
        None => failed(Command::new(program).args(arguments).exec()),
        Some(Ok(code)) => code,
        Some(Err(error)) => failed(error),
    }
}

/// Whether what the runtime is about to ask is a dump or a restore.
fn asked(service: RawFd) -> bool {
    let mut packet = vec![0; PACKET];
    let length = recv(service, &mut packet, MsgFlags::MSG_PEEK).unwrap_or(0);
    let kind = Message::read(&packet[..length]).and_then(|request| request.number(KIND));
    matches!(kind, Some(DUMP | RESTORE))
}

fn relay(socket: OsString, words: &[OsString], service: RawFd) -> io::Result<ExitCode> {
    // SAFETY: the runtime has passed this descriptor on for CRIU, in whose place we are.
    let runtime = unsafe { OwnedFd::from_raw_fd(service) };
    let daemon = Channel::new(UnixStream::connect(socket)?);
    let (plan, passed) = daemon.recv::<Plan>()?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let mut packet = vec![0; PACKET];
    let length = recv(service, &mut packet, MsgFlags::empty())?;
    let asker = getsockopt(&runtime, sockopt::PeerCredentials)?.pid();
    let (request, _directories) = amend(&packet[..length], &plan, &passed, asker)?;

    let kind = (AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC);
    let (ours, theirs) = socketpair(kind.0, kind.1, None, kind.2)?;
    let mut criu = spawn(words, theirs, service, &passed)?;
    send(ours.as_raw_fd(), &request, MsgFlags::MSG_NOSIGNAL)?;
    let carried = carry(&runtime, &ours, &criu, &daemon, &plan.step);
    drop(ours);
    let status = criu.wait()?;
    carried?;
    Ok(match (status.code(), status.signal()) {
        (Some(code), _) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        (None, signal) => ExitCode::from(128 + u8::try_from(signal.unwrap_or(0)).unwrap_or(0)),
    })
}

/// Starts CRIU with our end in the place of the runtime's. It finds the asker's descriptors by the process that has
/// made its socket, which are we.
fn spawn(words: &[OsString], theirs: OwnedFd, service: RawFd, passed: &[OwnedFd]) -> io::Result<Child> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    let keep: Vec<_> = passed.iter().map(AsRawFd::as_raw_fd).collect();
    // SAFETY: the closure only makes system calls that are safe between fork and exec.
    unsafe {
        command.pre_exec(move || {
            if libc::dup2(theirs.as_raw_fd(), service) < 0 {
                return Err(io::Error::last_os_error());
            }
            for &fd in &keep {
                if libc::fcntl(fd, libc::F_SETFD, 0) < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        })
    };
    command.spawn()
}

/// The request with what is planned, and the directories that it names, which are open here now.
fn amend(packet: &[u8], plan: &Plan, passed: &[OwnedFd], asker: i32) -> io::Result<(Vec<u8>, Vec<File>)> {
    let odd =
        || io::Error::new(io::ErrorKind::InvalidData, "the runtime's request is not in CRIU's protocol");
    let mut request = Message::read(packet).ok_or_else(odd)?;
    let mut options = request.all_bytes(OPTIONS).next().and_then(Message::read).ok_or_else(odd)?;
    let mut directories = Vec::new();
    for field in [IMAGES_DIR, WORK_DIR] {
        let Some(number) = options.number(field).and_then(|number| i32::try_from(number as i64).ok()) else {
            continue;
        };
        if number >= 0 {
            let directory = File::open(format!("/proc/{asker}/fd/{number}"))?;
            options.set(field, directory.as_raw_fd() as u64);
            directories.push(directory);
        }
    }
    for inode in &plan.sockets {
        options.add_bytes(EXTERNAL, format!("unix[{inode}]").into_bytes());
    }
    if plan.replaced {
        for (inode, socket) in plan.sockets.iter().zip(passed) {
            let mut one = Encoder::default();
            one.bytes(1, format!("socket:[{inode}]").as_bytes()).number(2, socket.as_raw_fd() as u64);
            options.add_bytes(INHERIT, one.0);
        }
    }
    request.set_bytes(OPTIONS, options.write());
    Ok((request.write(), directories))
}

/// Carries packets, with the descriptors in them, until CRIU has ended.
fn carry(runtime: &OwnedFd, criu: &OwnedFd, process: &Child, daemon: &Channel, step: &str) -> io::Result<()> {
    let ended = Handle::open(process.id() as i32)?;
    let mut listens = true;
    loop {
        let waited_for = [criu.as_fd(), ended.as_fd()].into_iter().chain(listens.then(|| runtime.as_fd()));
        let mut polled: Vec<_> = waited_for.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(&mut polled, PollTimeout::NONE) {
            Err(nix::Error::EINTR) => continue,
            other => other?,
        };
        let has = |index: usize| {
            polled.get(index).and_then(PollFd::revents).is_some_and(|events| !events.is_empty())
        };
        if has(0) {
            let Some((packet, descriptors)) = take(criu)? else { return Ok(()) };
            let is_step =
                |response: &Response| matches!(response, Response::Notify { step: at } if at == step);
            match rpc::response(&packet).filter(is_step).map(|_| leave(daemon)) {
                None | Some(true) => pass(runtime, &packet, &descriptors)?,
                Some(false) => pass(criu, &rpc::notify_answer(false), &[])?,
            }
        } else if has(1) {
            return Ok(());
        }
        if has(2) {
            match take(runtime)? {
                Some((packet, descriptors)) => pass(criu, &packet, &descriptors)?,
                None => {
                    listens = false;
                    // One that has ended hears nothing.
                    let _ = shutdown(criu.as_raw_fd(), Shutdown::Write);
                }
            }
        }
    }
}

/// Whether the daemon lets CRIU go on.
fn leave(daemon: &Channel) -> bool {
    let answer = daemon.send(&Reached, &[]).and_then(|()| daemon.recv::<Verdict>());
    matches!(answer, Ok(Some((Verdict::Commit, _))))
}

/// The next packet; none where the other side has closed.
fn take(from: &OwnedFd) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut packet = vec![0; PACKET];
    let mut control = nix::cmsg_space!([RawFd; MOST_DESCRIPTORS]);
    let (bytes, descriptors) = {
        let mut parts = [IoSliceMut::new(&mut packet)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = match recvmsg::<()>(from.as_raw_fd(), &mut parts, Some(&mut control), flags) {
            Err(nix::Error::ECONNRESET) => return Ok(None),
            other => other?,
        };
        let mut descriptors = Vec::new();
        for part in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(raw) = part {
                // SAFETY: the kernel has just installed these descriptors for this call; nothing else owns them.
                descriptors.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        (message.bytes, descriptors)
    };
    packet.truncate(bytes);
    Ok((bytes > 0).then_some((packet, descriptors)))
}

fn pass(to: &OwnedFd, packet: &[u8], descriptors: &[OwnedFd]) -> io::Result<()> {
    let raw: Vec<_> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let control = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &[][..] } else { &control[..] };
    match sendmsg::<()>(to.as_raw_fd(), &[IoSlice::new(packet)], control, MsgFlags::MSG_NOSIGNAL, None) {
        // A side that has gone needs no answer; the other one ends by itself.
        Ok(_) | Err(nix::Error::EPIPE) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_keeps_what_it_has_and_gets_what_is_planned() {
        let here = File::open("/proc").unwrap();
        let mut inner = Encoder::default();
        inner.number(1, here.as_raw_fd() as u64).bytes(EXTERNAL as u32, b"mnt[/x]:/y").number(200, 7);
        let mut packet = Encoder::default();
        packet.number(1, DUMP).bytes(2, &inner.0);
        let plan = Plan { sockets: vec![5], replaced: true, step: String::new() };
        let socket = [OwnedFd::from(File::open("/dev/null").unwrap())];
        let (request, directories) = amend(&packet.0, &plan, &socket, std::process::id() as i32).unwrap();
        let request = Message::read(&request).unwrap();
        assert_eq!(request.number(KIND), Some(DUMP));
        let options = Message::read(request.all_bytes(OPTIONS).next().unwrap()).unwrap();
        assert_eq!(options.number(IMAGES_DIR), Some(directories[0].as_raw_fd() as u64));
        assert_eq!(options.number(200), Some(7));
        assert_eq!(options.all_bytes(EXTERNAL).collect::<Vec<_>>(), [&b"mnt[/x]:/y"[..], b"unix[5]"]);
        let inherited = Message::read(options.all_bytes(INHERIT).next().unwrap()).unwrap();
        assert_eq!(inherited.all_bytes(1).next(), Some(&b"socket:[5]"[..]));
        assert_eq!(inherited.number(2), Some(socket[0].as_raw_fd() as u64));
        assert!(amend(b"\xff", &plan, &socket, 1).is_err());
    }
}
