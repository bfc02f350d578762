//! The relay itself: between a runtime and CRIU for the time of one request.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode};

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, Shutdown, SockFlag, SockType, getsockopt,
    recv, recvmsg, send, sendmsg, shutdown, socketpair, sockopt,
};

use super::request::Request;
use super::{Plan, RelayRequest, StepReached};
use crate::ending::{AFTER_RESTORE, Watch};
use crate::message::Verdict;
use crate::process::Handle;
use crate::proto::Message;
use crate::rpc::{self, KIND, REQUEST_DUMP, REQUEST_RESTORE, Response};
use crate::tracer::{self, TRACER_ARGUMENT, Tracer, TracerMode};
use crate::wire::Channel;

const PACKET: usize = 1 << 16;
const MOST_DESCRIPTORS: usize = 16;
/// [`Watch::EVERY`].
const LOOK: u16 = Watch::EVERY.as_millis() as u16;

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
    let kind = Message::read(&packet[..length]).and_then(|request| request.number(KIND.into()));
    matches!(kind, Some(REQUEST_DUMP | REQUEST_RESTORE))
}

fn relay(socket: OsString, words: &[OsString], service: RawFd) -> io::Result<ExitCode> {
    // SAFETY: the runtime has passed this descriptor on for CRIU, in whose place we are.
    let runtime = unsafe { OwnedFd::from_raw_fd(service) };
    let mut packet = vec![0; PACKET];
    let length = recv(service, &mut packet, MsgFlags::empty())?;
    let asker = getsockopt(&runtime, sockopt::PeerCredentials)?.pid();
    let request = Request::read(&packet[..length], asker)?;
    let daemon = Channel::new(UnixStream::connect(socket)?);
    daemon.send(&RelayRequest, &[request.images()])?;
    let refused = || io::Error::other("the daemon has refused this; it says why");
    let (plan, passed) = daemon.recv::<Plan>()?.ok_or_else(refused)?;
    let request = request.amend(&plan, passed)?;

    let kind = (AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC);
    let (ours, theirs) = socketpair(kind.0, kind.1, None, kind.2)?;
    let (mut criu, tracer) = spawn(words, theirs, service, &request.shared, plan.step != AFTER_RESTORE)?;
    send(ours.as_raw_fd(), &request.packet, MsgFlags::MSG_NOSIGNAL)?;
    let carried = carry(&runtime, &ours, &criu, &daemon, &plan.step);
    drop(ours);
    let status = criu.wait()?;
    if let Some(cause) = tracer.and_then(|tracer| tracer.finish().failed) {
        eprintln!("{}: {cause}", super::RELAY_ARGUMENT);
    }
    carried?;
    Ok(match (status.code(), status.signal()) {
        (Some(code), _) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        (None, signal) => ExitCode::from(128 + u8::try_from(signal.unwrap_or(0)).unwrap_or(0)),
    })
}

/// Starts CRIU with our end in the place of the runtime's, and a tracer for one that is to dump. It finds the asker's
/// descriptors by the process that has made its socket, which are we.
fn spawn(
    words: &[OsString],
    theirs: OwnedFd,
    service: RawFd,
    passed: &[OwnedFd],
    dumps: bool,
) -> io::Result<(Child, Option<Tracer>)> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    let keep: Vec<_> = passed.iter().map(AsRawFd::as_raw_fd).collect();
    let filter = dumps.then(tracer::pair).transpose()?;
    let filter_to = filter.as_ref().map(|(_, to)| to.as_raw_fd());
    let told = tracer::Told { scans: false, limits: tracer::limits_are_withheld() };
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
            filter_to.map_or(Ok(()), |to| tracer::install_and_send(to, told))
        })
    };
    let mut child = command.spawn()?;
    let program = [std::env::current_exe()?.into_os_string(), TRACER_ARGUMENT.into()];
    let tracer = filter
        .map(|ends| Tracer::start(TracerMode::Process { command: &program, kept: None }, ends))
        .transpose();
    let tracer = tracer.inspect_err(|_| {
        // It has touched nothing yet.
        let _ = child.kill();
        let _ = child.wait();
    })?;
    Ok((child, tracer))
}

/// Carries packets, with the descriptors in them, until CRIU has ended.
fn carry(runtime: &OwnedFd, criu: &OwnedFd, process: &Child, daemon: &Channel, step: &str) -> io::Result<()> {
    let ended = Handle::open(process.id() as i32)?;
    let criu_pid = process.id() as i32;
    let mut watch = match step {
        AFTER_RESTORE => Watch::of_restore(criu_pid),
        _ => Watch::of_dump(criu_pid),
    };
    let mut listens = true;
    loop {
        let waited_for = [criu.as_fd(), ended.as_fd()].into_iter().chain(listens.then(|| runtime.as_fd()));
        let mut polled: Vec<_> = waited_for.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(&mut polled, LOOK) {
            Err(nix::Error::EINTR) => continue,
            Ok(0) => {
                if watch.look().is_some() {
                    ended.signal(libc::SIGKILL)?;
                }
                continue;
            }
            other => other?,
        };
        let has = |index: usize| {
            polled.get(index).and_then(PollFd::revents).is_some_and(|events| !events.is_empty())
        };
        if has(0) {
            let Some((packet, descriptors)) = take(criu)? else { return Ok(()) };
            let announced = match rpc::response(&packet) {
                Some(Response::Notify { step }) => Some(step),
                _ => None,
            };
            announced.iter().for_each(|step| watch.note(step));
            match announced.filter(|at| at == step).map(|_| leave(daemon)) {
                None | Some(true) => pass(runtime, &packet, &descriptors)?,
                Some(false) => {
                    // It ends them itself.
                    watch = Watch::of_dump(criu_pid);
                    pass(criu, &rpc::notify_answer(false), &[])?;
                }
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
    let answer = daemon.send(&StepReached, &[]).and_then(|()| daemon.recv::<Verdict>());
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
