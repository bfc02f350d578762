//! The calls of CRIU's that the tracer answers in the kernel's place: a seccomp filter that tells of them.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, socketpair,
};

use crate::page_scan::PAGEMAP_SCAN;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
/// Where the number of a call and the machine's kind stand in what a filter is shown.
const NUMBER: u32 = 0;
const MACHINE: u32 = 4;
const X86_64: u32 = 0xc000_003e;
const TOLD_OF: [i64; 6] = [
    libc::SYS_ptrace,
    libc::SYS_wait4,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_prlimit64,
];
/// Where the halves of a call's second argument stand.
const SECOND: u32 = 24;
const SECOND_HIGH: u32 = 28;
/// The comparisons, with three words before them and two behind, and five for requests of one kind.
const LENGTH: usize = TOLD_OF.len() + 10;
const NEW_LISTENER: libc::c_ulong = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
/// Once the tracer has taken up a call, only a signal that ends CRIU interrupts it.
const UNINTERRUPTED: libc::c_ulong = libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;

const fn word(code: u16, value: u32, if_so: u8, if_not: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt: if_so, jf: if_not, k: value }
}

/// What a filter tells of beside the rest.
#[derive(Debug, Clone, Copy)]
pub struct Told {
    /// Looks for pages, but for those of [our library](crate::assist) in CRIU, which sets a bit of the request that the
    /// kernel does not look at.
    pub scans: bool,
    /// Questions for [limits](super::limits).
    pub limits: bool,
}

/// The filter itself: calls of one kind after the other are compared, and the rest is allowed.
const fn program(told: Told) -> [libc::sock_filter; LENGTH] {
    let mut out = [word(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0); LENGTH];
    out[0] = word(LOAD, MACHINE, 0, 0);
    out[1] = word(EQUAL, X86_64, 0, LENGTH as u8 - 4);
    out[2] = word(LOAD, NUMBER, 0, 0);
    let mut index = 0;
    while index < TOLD_OF.len() {
        let left = (TOLD_OF.len() - index) as u8;
        let is_left_out = TOLD_OF[index] == libc::SYS_prlimit64 && !told.limits;
        out[3 + index] = word(EQUAL, TOLD_OF[index] as u32, if is_left_out { 0 } else { left + 5 }, 0);
        index += 1;
    }
    out[3 + index] = word(EQUAL, libc::SYS_ioctl as u32, if told.scans { 0 } else { 4 }, 4);
    out[4 + index] = word(LOAD, SECOND, 0, 0);
    out[5 + index] = word(EQUAL, PAGEMAP_SCAN as u32, 0, 2);
    out[6 + index] = word(LOAD, SECOND_HIGH, 0, 0);
    out[7 + index] = word(EQUAL, 0, 1, 0);
    out[LENGTH - 1] = word(RETURN, libc::SECCOMP_RET_USER_NOTIF, 0, 0);
    out
}

/// Puts this thread, and what it becomes, under the filter; the descriptor tells of the calls. Allocates nothing, so it
/// can be called between fork and exec.
fn install(told: Told) -> io::Result<OwnedFd> {
    let mut words = program(told);
    let program = libc::sock_fprog { len: LENGTH as u16, filter: words.as_mut_ptr() };
    // SAFETY: the program lies in this frame and has the length that is given.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            NEW_LISTENER | UNINTERRUPTED,
            &raw const program,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Installs the filter and sends its descriptor, with this process's pid, to whoever holds the other end of `to`. Where
/// the kernel has no such filters nothing is sent, and CRIU traces by itself. Allocates nothing.
pub fn install_and_send(to: RawFd, told: Told) -> io::Result<()> {
    let Ok(listener) = install(told) else { return Ok(()) };
    send(to, &listener)
}

#[repr(C, align(8))]
struct Control([u8; 32]);

fn send(to: RawFd, listener: &OwnedFd) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let pid = std::process::id().to_ne_bytes();
    let mut control = Control([0; 32]);
    let mut part = libc::iovec { iov_base: pid.as_ptr().cast_mut().cast(), iov_len: pid.len() };
    // SAFETY: all that the message points to lies in this frame; the control buffer has room for one descriptor, and
    // sendmsg only reads.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as usize;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(listener.as_raw_fd());
        libc::sendmsg(to, &raw const message, libc::MSG_NOSIGNAL)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The descriptor of the filter, and who is under it; none if none was sent.
pub(super) fn receive(from: &OwnedFd) -> io::Result<Option<(OwnedFd, i32)>> {
    let (mut pid, mut control) = ([0; 4], nix::cmsg_space!(i32));
    let mut parts = [IoSliceMut::new(&mut pid)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = loop {
        match recvmsg::<()>(from.as_raw_fd(), &mut parts, Some(&mut control), flags) {
            Err(nix::Error::EINTR) => {}
            other => break other?,
        }
    };
    let mut found = None;
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = part {
            // SAFETY: the kernel has just installed these descriptors for this call; nothing else owns them.
            found = fds.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).next();
        }
    }
    Ok(found.map(|listener| (listener, i32::from_ne_bytes(pid))))
}

/// A pair of ends by which the filter's descriptor travels.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?)
}
