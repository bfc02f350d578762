//! What CRIU cannot take is not given to a program in the first place: the kernel answers as one that has none of it,
//! and programs do without.
//!
//! A seccomp filter does it, which a program's threads and children have too, and which CRIU brings back with them. Its
//! cost at a restore was measured: less than half a millisecond with 36 threads. A library in the program would not do:
//! what asks for an `io_uring` makes the system call itself.

use std::io;

/// What is withheld, by the name that allows it.
struct Withheld {
    name: &'static str,
    what: WithheldKind,
}

#[derive(Clone, Copy)]
enum WithheldKind {
    Call(libc::c_long),
    /// Sockets of a family.
    Family(libc::c_int),
    /// Sockets of a protocol of the internet.
    Protocol(libc::c_int),
}

const fn call(name: &'static str, number: libc::c_long) -> Withheld {
    Withheld { name, what: WithheldKind::Call(number) }
}

const fn family(name: &'static str, number: libc::c_int) -> Withheld {
    Withheld { name, what: WithheldKind::Family(number) }
}

const fn protocol(name: &'static str, number: libc::c_int) -> Withheld {
    Withheld { name, what: WithheldKind::Protocol(number) }
}

const AF_SMC: libc::c_int = 43;

const ALL: [Withheld; 14] = [
    call("io_uring", libc::SYS_io_uring_setup),
    call("userfaultfd", libc::SYS_userfaultfd),
    call("perf", libc::SYS_perf_event_open),
    call("bpf", libc::SYS_bpf),
    call("memfd_secret", libc::SYS_memfd_secret),
    call("landlock", libc::SYS_landlock_create_ruleset),
    family("vsock", libc::AF_VSOCK),
    family("alg", libc::AF_ALG),
    family("xdp", libc::AF_XDP),
    family("rds", libc::AF_RDS),
    family("tipc", libc::AF_TIPC),
    family("smc", AF_SMC),
    protocol("mptcp", libc::IPPROTO_MPTCP),
    protocol("sctp", libc::IPPROTO_SCTP),
];

/// The names of all that is withheld.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|withheld| withheld.name)
}

const ARCHITECTURE: u32 = 0xc000_003e;
/// Where the kernel shows a filter the call's number, architecture and arguments.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const FIRST_AT: u32 = 16;
const THIRD_AT: u32 = 32;

const fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

const fn load(at: u32) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at)
}

/// Goes on so many statements further if what was loaded is `k`, or is not.
const fn skip(k: u32, if_equal: u8, if_not: u8) -> libc::sock_filter {
    let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    libc::sock_filter { code, jt: if_equal, jf: if_not, k }
}

const fn answer(code: u32) -> libc::sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, code)
}

const ALLOW: libc::sock_filter = answer(libc::SECCOMP_RET_ALLOW);

/// The filter; a program of another architecture, which has other numbers, is let alone.
fn filter(allowed: &[String]) -> Vec<libc::sock_filter> {
    let of = |choose: fn(WithheldKind) -> Option<u32>, error: i32| {
        let withheld = ALL.iter().filter(|withheld| allowed.iter().all(|name| name != withheld.name));
        let chosen = withheld.filter_map(move |withheld| choose(withheld.what));
        chosen.flat_map(move |k| [skip(k, 0, 1), answer(libc::SECCOMP_RET_ERRNO | error as u32)])
    };
    let calls = of(
        |what| if let WithheldKind::Call(number) = what { Some(number as u32) } else { None },
        libc::ENOSYS,
    );
    let families = of(
        |what| if let WithheldKind::Family(number) = what { Some(number as u32) } else { None },
        libc::EAFNOSUPPORT,
    );
    let protocols = of(
        |what| if let WithheldKind::Protocol(number) = what { Some(number as u32) } else { None },
        libc::EPROTONOSUPPORT,
    );
    let mut out = vec![load(ARCHITECTURE_AT), skip(ARCHITECTURE, 1, 0), ALLOW, load(NUMBER_AT)];
    out.extend(calls);
    out.extend([skip(libc::SYS_socket as u32, 1, 0), ALLOW, load(FIRST_AT)]);
    out.extend(families);
    out.extend([skip(libc::AF_INET as u32, 2, 0), skip(libc::AF_INET6 as u32, 1, 0), ALLOW, load(THIRD_AT)]);
    out.extend(protocols);
    out.push(ALLOW);
    out
}

/// Withholds all but what is `allowed` from this thread, and whatever it becomes and starts.
pub fn withhold(allowed: &[String]) -> io::Result<()> {
    let mut filter = filter(allowed);
    let length = u16::try_from(filter.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len: length, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its statements are read during the call, and live across it.
    let done =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error that each call gives in a thread from which all but `allowed` is withheld.
    fn errors(allowed: &'static [&'static str]) -> Vec<(&'static str, i32)> {
        let thread = std::thread::spawn(move || {
            let allowed: Vec<_> = allowed.iter().map(|name| name.to_string()).collect();
            withhold(&allowed).unwrap();
            let tried = ALL.iter().map(|withheld| {
                let (number, first, third) = match withheld.what {
                    WithheldKind::Call(number) => (number, -1, -1),
                    WithheldKind::Family(family) => (libc::SYS_socket, family, 0),
                    WithheldKind::Protocol(protocol) => (libc::SYS_socket, libc::AF_INET, protocol),
                };
                // SAFETY: what the calls would read or write lies at an address that nothing is at.
                let done = unsafe {
                    libc::syscall(number, first, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, third, -1, -1)
                };
                let error = if done < 0 { io::Error::last_os_error().raw_os_error().unwrap() } else { 0 };
                if done >= 0 {
                    // SAFETY: the call has just made this descriptor, and nobody else knows it.
                    unsafe { libc::close(done as i32) };
                }
                (withheld.name, error)
            });
            let tried = tried.collect();
            drop(std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
            drop(std::net::TcpListener::bind("127.0.0.1:0").unwrap());
            drop(std::os::unix::net::UnixStream::pair().unwrap());
            tried
        });
        thread.join().unwrap()
    }

    #[test]
    fn what_is_withheld_is_answered_as_if_the_kernel_had_none_and_all_else_works() {
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("skipped: a filter needs root");
            return;
        }
        let refused = [libc::ENOSYS, libc::EAFNOSUPPORT, libc::EPROTONOSUPPORT];
        for (name, error) in errors(&[]) {
            assert!(refused.contains(&error), "{name}: {error}");
        }
        let some = errors(&["io_uring", "alg"]);
        let error = |name| some.iter().find(|(found, _)| *found == name).unwrap().1;
        assert_ne!(error("io_uring"), libc::ENOSYS, "the kernel looked at the parameters");
        assert_eq!(error("perf"), libc::ENOSYS);
    }
}
