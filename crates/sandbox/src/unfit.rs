//! What CRIU cannot take and what no image keeps, found before anything stands still: it is refused with the process and
//! the descriptor that have it, and with what to do.
//!
//! What can only be seen while the program stands still CRIU itself refuses.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::connections::option;
use crate::error::{Error, Result};
use crate::lost_names::LostNames;
use crate::peers::{self, Unix};
use crate::process::{self, Handle};
use crate::{ending, system_v};

/// What a descriptor is called in `/proc`, what that is, and the way out.
const DESCRIPTORS: [(&str, &str, &str); 9] = [
    (
        "anon_inode:[io_uring]",
        "an io_uring",
        "start the program with `rekindle run` and without `--allow io_uring`: it then finds none, and most do without",
    ),
    ("anon_inode:[userfaultfd]", "a userfaultfd", "have the program do without"),
    ("anon_inode:[perf_event]", "a performance counter", "stop the profiler that opened it"),
    ("anon_inode:bpf-map", "a BPF map", "have another process hold it"),
    ("anon_inode:bpf-prog", "a BPF program", "have another process hold it"),
    ("anon_inode:bpf_link", "a BPF link", "have another process hold it"),
    ("anon_inode:[landlock-ruleset]", "a Landlock ruleset", "have the program close it once it is in force"),
    ("anon_inode:seccomp notify", "a seccomp listener", "have another process hold it"),
    ("anon_inode:kvm", "a virtual machine", "checkpoint it by its own monitor"),
];

/// Refuses the processes of a program for what they have. `external` are its ends of Unix sockets that are known to lead
/// outside.
pub fn refuse_contents(pids: &[i32], external: &[u32]) -> Result<()> {
    std::thread::scope(|scope| {
        let unkept = scope.spawn(|| refuse_unkept(pids));
        let descriptors = refuse_descriptors(pids, external);
        unkept.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).and(descriptors)
    })
}

/// CRIU traces what it dumps, and a process has one tracer.
pub fn refuse_traced(pids: &[i32]) -> Result<()> {
    let Some((pid, tracer)) = pids.iter().find_map(|pid| Some((*pid, process::tracer(*pid)?))) else {
        return Ok(());
    };
    let name = process::name(tracer);
    Err(refused(format!(
        "process {tracer} ({name}) traces its process {pid}; detach that debugger or tracer first"
    )))
}

/// CRIU would not know what such a process holds.
pub fn refuse_headless(pids: impl IntoIterator<Item = i32>) -> Result<()> {
    match pids.into_iter().find(|pid| ending::lacks_first_thread(*pid)) {
        None => Ok(()),
        Some(pid) => Err(refused(format!(
            "the first thread of process {pid} has ended and others of it go on, which CRIU cannot take; \
             have that thread wait for them"
        ))),
    }
}

/// What no image can keep, as far as it is seen while the program runs.
pub fn refuse_unkept(pids: &[i32]) -> Result<()> {
    let cause = LostNames::find(pids).refusal().or_else(|| system_v::refusal(pids));
    cause.map_or(Ok(()), |cause| Err(refused(cause)))
}

/// How often threads that wait uninterruptibly are looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Waits until none of the threads that wait uninterruptibly now is still in that wait, and refuses the program after
/// `limit`. CRIU would wait for them too, holding all others: among them the child that a thread in vfork waits for.
pub fn refuse_uninterruptible(pids: impl Fn() -> Vec<i32>, limit: Duration) -> Result<()> {
    let began = Instant::now();
    let mut waiting: Option<BTreeSet<(i32, i32)>> = None;
    loop {
        let found = pids().into_iter().flat_map(process::uninterruptible);
        let still = match waiting.take() {
            None => found.collect(),
            Some(before) => found.filter(|thread| before.contains(thread)).collect::<BTreeSet<_>>(),
        };
        let Some(&(pid, thread)) = still.first() else { return Ok(()) };
        if began.elapsed() > limit {
            let place = std::fs::read_to_string(format!("/proc/{thread}/wchan")).unwrap_or_default();
            let place = Some(place.trim()).filter(|place| !place.is_empty() && *place != "0");
            return Err(refused(format!(
                "thread {thread} of process {pid} ({}) is in uninterruptible sleep{}; wait for its I/O, or for the child that \
                 it has made by vfork, to end",
                process::name(pid),
                place.map(|place| format!(" in the kernel's {place}")).unwrap_or_default()
            )));
        }
        waiting = Some(still);
        std::thread::sleep(LOOK_AGAIN);
    }
}

fn refused(cause: String) -> Error {
    Error::Refused { cause }
}

/// What CRIU does not know of what they have open.
pub fn refuse_descriptors(pids: &[i32], external: &[u32]) -> Result<()> {
    let unix = peers::unix().unwrap_or_else(|error| {
        // CRIU sees them too, and has fewer words for it.
        log::debug!("the kernel does not list Unix sockets: {error}");
        BTreeMap::new()
    });
    let own: BTreeSet<u32> =
        pids.iter().flat_map(|pid| process::sockets(*pid)).map(|inode| inode as u32).collect();
    for &pid in pids {
        for (number, link) in process::descriptors(pid) {
            let found = DESCRIPTORS
                .iter()
                .find(|(name, ..)| link.starts_with(name))
                .map(|(_, what, way_out)| (what.to_string(), way_out.to_string()))
                .or_else(|| foreign_socket(pid, number, &link))
                .or_else(|| outside(&unix, &own, external, &link));
            if let Some((what, way_out)) = found {
                let name = process::name(pid);
                return Err(refused(format!(
                    "process {pid} ({name}) has {what} as descriptor {number}, which CRIU cannot take; {way_out}"
                )));
            }
        }
    }
    Ok(())
}

/// Families of sockets that CRIU knows, and protocols of those of the internet.
const FAMILIES: [i32; 5] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_PACKET];
const FOREIGN: [(i32, &str); 8] = [
    (libc::AF_VSOCK, "a socket to a virtual machine's host (AF_VSOCK)"),
    (libc::AF_ALG, "a socket to the kernel's cryptography (AF_ALG)"),
    (libc::AF_XDP, "a socket for raw frames (AF_XDP)"),
    (libc::AF_BLUETOOTH, "a Bluetooth socket"),
    (libc::AF_CAN, "a CAN socket"),
    (libc::AF_TIPC, "a TIPC socket"),
    (libc::AF_RDS, "an RDS socket"),
    (43, "an SMC socket"),
];

fn foreign_socket(pid: i32, number: i32, link: &str) -> Option<(String, String)> {
    if !link.starts_with("socket:[") {
        return None;
    }
    // One that is closed meanwhile is none.
    let socket = Handle::open(pid).and_then(|process| process.descriptor(number)).ok()?;
    let family: i32 = option(&socket, libc::SO_DOMAIN)?;
    let protocol = option(&socket, libc::SO_PROTOCOL).unwrap_or(0);
    let close = || "have the program close it".to_string();
    if !FAMILIES.contains(&family) {
        let known = FOREIGN.iter().find(|(number, _)| *number == family).map(|(_, name)| name.to_string());
        return Some((known.unwrap_or_else(|| format!("a socket of family {family}")), close()));
    }
    let internet = [libc::AF_INET, libc::AF_INET6].contains(&family);
    match protocol {
        libc::IPPROTO_MPTCP if internet => {
            let way_out =
                "start the program with `rekindle run` and without `--allow mptcp`: it then finds TCP alone";
            Some(("a multipath TCP socket".into(), way_out.into()))
        }
        libc::IPPROTO_SCTP | libc::IPPROTO_DCCP if internet => {
            Some((format!("a socket of protocol {protocol}"), close()))
        }
        _ => None,
    }
}

/// A connection by a Unix socket to somebody else. Datagrams to a name are sent to that name again after a restore.
fn outside(
    sockets: &BTreeMap<u32, Unix>,
    own: &BTreeSet<u32>,
    external: &[u32],
    link: &str,
) -> Option<(String, String)> {
    let inode: u32 = link.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok()? as u32;
    let socket = sockets.get(&inode)?;
    let peer = match socket.peer? {
        // Nobody has accepted it yet: whoever listens is its other end.
        0 => *sockets.iter().find(|(_, other)| other.waiting.contains(&inode))?.0,
        peer => peer,
    };
    if own.contains(&peer) {
        return None;
    }
    let name = sockets.get(&peer).and_then(|peer| peer.name.clone());
    if external.contains(&inode) || (socket.is_datagram && name.is_some()) {
        return None;
    }
    let what = match &name {
        Some(name) => format!("a connection by Unix socket to {name}, of a process outside of the program,"),
        None => "a connection by Unix socket to a process outside of the program".into(),
    };
    Some((what, "have the program close it, or have the other process in the program's tree".into()))
}

#[cfg(test)]
mod tests {
    use std::os::fd::{FromRawFd, OwnedFd};
    use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A process that has these as its standard input and output, and nothing else.
    struct Holder(Child);

    impl Holder {
        fn of(input: impl Into<OwnedFd>, output: Option<OwnedFd>) -> Self {
            let output = output.map_or(Stdio::null(), Stdio::from);
            let mut command = Command::new("sleep");
            command.arg("600").stdin(Stdio::from(input.into())).stdout(output).stderr(Stdio::null());
            Self(command.spawn().unwrap())
        }

        fn pid(&self) -> i32 {
            self.0.id() as i32
        }
    }

    impl Drop for Holder {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn said(holders: &[&Holder], external: &[u32]) -> String {
        let pids: Vec<_> = holders.iter().map(|holder| holder.pid()).collect();
        refuse_descriptors(&pids, external).map_or_else(|error| error.to_string(), |()| "nothing".into())
    }

    fn made(descriptor: i64) -> Option<OwnedFd> {
        // SAFETY: the kernel has just made this descriptor for us.
        (descriptor >= 0).then(|| unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
    }

    #[test]
    fn what_criu_does_not_know_is_named_with_its_process_and_descriptor() {
        let mut parameters = [0u8; 120];
        // SAFETY: the parameters have the kernel's size, and are written during the call.
        let ring = made(unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) });
        let socket = |family, kind: i32, protocol| {
            // SAFETY: takes three integers and touches no memory of ours.
            made(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) }.into())
        };
        for (made, what) in [
            (ring, "an io_uring"),
            (socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0), "AF_ALG"),
            (socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0), "AF_VSOCK"),
            (socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP), "multipath TCP"),
        ] {
            let Some(made) = made else {
                eprintln!("skipped: this kernel gives no {what}");
                continue;
            };
            let holder = Holder::of(made, None);
            let words = said(&[&holder], &[]);
            let own = format!("process {} (", holder.pid());
            assert!(words.contains(&own) && words.contains("as descriptor 0,"), "{words}");
            assert!(words.contains(what), "{words}");
        }
        let plain = socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        assert_eq!(said(&[&Holder::of(plain, None)], &[]), "nothing");
    }

    #[test]
    fn unix_connections_to_others_are_told_from_the_program_s_own() {
        let (near, far) = UnixStream::pair().unwrap();
        let inode = nix::sys::stat::fstat(&near).unwrap().st_ino as u32;
        let (one, other) = (Holder::of(near, None), Holder::of(far, None));
        let words = said(&[&one], &[]);
        assert!(words.contains("outside of the program as descriptor 0,"), "{words}");
        assert_eq!(said(&[&one], &[inode]), "nothing", "it is known");
        assert_eq!(said(&[&one, &other], &[]), "nothing", "the other process is in the tree");

        let dir = tempfile::tempdir().unwrap();
        let (path, log) = (dir.path().join("service"), dir.path().join("log"));
        let _log = UnixDatagram::bind(&log).unwrap();
        let datagrams = UnixDatagram::unbound().unwrap();
        datagrams.connect(&log).unwrap();
        assert_eq!(said(&[&Holder::of(datagrams, None)], &[]), "nothing", "it has a name to send to again");

        let service = UnixListener::bind(&path).unwrap();
        let caller = Holder::of(UnixStream::connect(&path).unwrap(), None);
        let named = |words: &str| words.contains(path.to_str().unwrap());
        assert!(named(&said(&[&caller], &[])), "nobody has accepted it yet");
        let own = Holder::of(service.try_clone().unwrap(), None);
        assert_eq!(said(&[&caller, &own], &[]), "nothing", "it will accept it itself");
        let accepted = service.accept().unwrap();
        assert!(named(&said(&[&caller], &[])), "{}", said(&[&caller], &[]));
        drop(accepted);
    }
}
