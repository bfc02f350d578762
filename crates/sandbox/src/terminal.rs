//! A program's terminal, whose other side init holds: what the program prints goes to the log and to all who use the
//! terminal, what those type goes to the program.
//!
//! ```text
//!  program ◀──▶ slave ▯ master ◀──▶ init ──▶ log
//!                                    ▲ ▼
//!                              users, by sockets
//! ```
//!
//! Invariants:
//! - Nobody need use it: what is printed is in the log.
//! - Init waits for no user. One who takes nothing holds up the program at its next output, as a terminal that stands
//!   still does, and nothing else; a dump takes what is there all the same.
//! - It lasts as long as the sandbox, whatever the program closes: init has the program's side open too.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::fchown;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::PollFlags;
use nix::sys::socket::{MsgFlags, recv, send, setsockopt, sockopt::SendTimeout};
use nix::sys::time::TimeVal;
use rekindle_protocol::terminal::{PACKET, TerminalInput, WindowSize};

/// How much waits for a user before the program does, and for the program before its users do.
const MOST_WAITING: usize = 64 << 10;
/// How much is moved between two looks at all else.
const MOST_AT_ONCE: usize = 1 << 20;
/// How long a user has for the rest when the program has ended.
const PARTING: Duration = Duration::from_secs(2);
/// Whom terminals are written to by, besides their owner; of every distribution.
const GROUP: u32 = 5;

#[derive(Debug)]
pub struct Terminal {
    master: OwnedFd,
    slave: OwnedFd,
    /// What was typed and the terminal has not taken.
    typed: VecDeque<u8>,
    users: Vec<User>,
}

#[derive(Debug)]
struct User {
    socket: OwnedFd,
    /// What they have not taken.
    behind: VecDeque<u8>,
}

impl Terminal {
    /// A new one with the kernel's settings.
    pub fn make(size: WindowSize) -> io::Result<Terminal> {
        let (mut ours, mut theirs) = (-1, -1);
        let size = to_kernel(size);
        // SAFETY: writes two integers and reads a size; no name and no settings are asked for.
        let made = unsafe {
            libc::openpty(&mut ours, &mut theirs, std::ptr::null_mut(), std::ptr::null_mut(), &raw const size)
        };
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: openpty has just made both for us.
        let (master, slave) = unsafe { (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
        for fd in [&master, &slave] {
            fcntl(fd, FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC))?;
        }
        let flags = OFlag::from_bits_retain(fcntl(&master, FcntlArg::F_GETFL)?);
        fcntl(&master, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        Ok(Terminal { master, slave, typed: VecDeque::new(), users: Vec::new() })
    }

    /// The program's side.
    pub fn slave(&self) -> &OwnedFd {
        &self.slave
    }

    /// Has a user of the machine own it, so that they can open it by its name.
    pub fn give_to(&self, uid: u32) -> io::Result<()> {
        fchown(&self.slave, Some(uid), Some(GROUP))
    }

    /// Somebody uses it from now on, too.
    pub fn join(&mut self, socket: OwnedFd) {
        self.users.push(User { socket, behind: VecDeque::new() });
    }

    /// What [`Terminal::serve`] waits for.
    pub fn awaited(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let when = |wanted: bool, flag| if wanted { flag } else { PollFlags::empty() };
        let (reads, writes) = (!self.is_held_up(), !self.typed.is_empty());
        let hears = self.typed.len() < MOST_WAITING;
        let master = when(reads, PollFlags::POLLIN) | when(writes, PollFlags::POLLOUT);
        let users = self.users.iter().map(move |user| {
            let flags = when(hears, PollFlags::POLLIN) | when(!user.behind.is_empty(), PollFlags::POLLOUT);
            (user.socket.as_fd(), flags)
        });
        std::iter::once((self.master.as_fd(), master)).chain(users)
    }

    /// Moves what can be moved; what the program has printed goes to `log` too.
    pub fn serve(&mut self, log: impl FnMut(&[u8])) {
        self.hear();
        self.pass_on();
        if !self.is_held_up() {
            self.drain(log);
        }
        self.users.retain_mut(User::show);
    }

    /// Takes what the program has printed, at most what was there when this began, whoever is behind.
    pub fn drain(&mut self, mut log: impl FnMut(&[u8])) {
        let mut piece = vec![0; PACKET];
        let mut left = MOST_AT_ONCE;
        while left > 0 {
            match nix::unistd::read(&self.master, &mut piece) {
                Ok(0) => return,
                Ok(got) => {
                    log(&piece[..got]);
                    self.users.iter_mut().for_each(|user| user.behind.extend(&piece[..got]));
                    left = left.saturating_sub(got);
                }
                Err(Errno::EINTR) => {}
                Err(_) => return,
            }
        }
    }

    /// The program has ended: users get what they have not taken.
    pub fn part(&mut self) {
        let patience = TimeVal::new(PARTING.as_secs() as i64, 0);
        for user in &mut self.users {
            let _ = setsockopt(&user.socket, SendTimeout, &patience);
            while !user.behind.is_empty() && user.send(MsgFlags::empty()).is_ok() {}
        }
    }

    fn is_held_up(&self) -> bool {
        self.users.iter().any(|user| user.behind.len() >= MOST_WAITING)
    }

    fn hear(&mut self) {
        let Terminal { master, typed, users, .. } = self;
        let mut packet = vec![0; PACKET];
        users.retain(|user| {
            while typed.len() < MOST_WAITING {
                match recv(user.socket.as_raw_fd(), &mut packet, MsgFlags::MSG_DONTWAIT) {
                    Err(Errno::EINTR) => {}
                    Err(error) => return error == Errno::EAGAIN,
                    Ok(got) => match TerminalInput::read(&packet[..got]) {
                        Some(TerminalInput::Typed(bytes)) => typed.extend(bytes),
                        Some(TerminalInput::Resized(size)) => resize(master, size),
                        None => return false,
                    },
                }
            }
            true
        });
    }

    fn pass_on(&mut self) {
        while !self.typed.is_empty() {
            match nix::unistd::write(&self.master, self.typed.as_slices().0) {
                Ok(written) => drop(self.typed.drain(..written)),
                Err(Errno::EINTR) => {}
                Err(_) => return,
            }
        }
    }
}

impl User {
    /// Sends what they take at once; whether they are still there.
    fn show(&mut self) -> bool {
        while !self.behind.is_empty() {
            match self.send(MsgFlags::MSG_DONTWAIT) {
                Ok(()) | Err(Errno::EINTR) => {}
                Err(error) => return error == Errno::EAGAIN,
            }
        }
        true
    }

    fn send(&mut self, how: MsgFlags) -> nix::Result<()> {
        let first = self.behind.as_slices().0;
        let first = &first[..first.len().min(PACKET)];
        let sent = send(self.socket.as_raw_fd(), first, how | MsgFlags::MSG_NOSIGNAL)?;
        self.behind.drain(..sent);
        Ok(())
    }
}

fn to_kernel(size: WindowSize) -> libc::winsize {
    libc::winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// The program is told by the kernel.
fn resize(master: &OwnedFd, size: WindowSize) {
    let size = to_kernel(size);
    // SAFETY: reads a size that lives as long as the call.
    unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
}

/// Makes a terminal the one that controls the session which this process leads.
pub fn take_control(slave: &OwnedFd) -> io::Result<()> {
    // SAFETY: takes integers.
    match unsafe { libc::ioctl(slave.as_raw_fd(), libc::TIOCSCTTY, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether a descriptor is a socket that keeps packets apart.
pub fn is_packet_socket(descriptor: BorrowedFd<'_>) -> bool {
    use nix::sys::socket::{SockType, getsockopt, sockopt};
    getsockopt(&descriptor, sockopt::SockType) == Ok(SockType::SeqPacket)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::*;

    fn user(terminal: &mut Terminal) -> OwnedFd {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        assert!(is_packet_socket(ours.as_fd()));
        terminal.join(theirs);
        ours
    }

    fn shown(user: &OwnedFd) -> Vec<u8> {
        let (mut all, mut packet) = (Vec::new(), vec![0; PACKET]);
        while let Ok(got @ 1..) = recv(user.as_raw_fd(), &mut packet, MsgFlags::empty()) {
            all.extend(&packet[..got]);
        }
        all
    }

    fn say(user: &OwnedFd, said: &TerminalInput<'_>) {
        send(user.as_raw_fd(), &said.packet(), MsgFlags::empty()).unwrap();
    }

    #[test]
    fn all_see_what_is_printed_and_each_can_type() {
        let mut terminal = Terminal::make(WindowSize::default()).unwrap();
        let mut program = File::from(terminal.slave().try_clone().unwrap());
        let mut log = Vec::new();
        program.write_all(b"before\n").unwrap();
        terminal.serve(|bytes| log.extend_from_slice(bytes));
        let (one, two) = (user(&mut terminal), user(&mut terminal));
        program.write_all(b"after\n").unwrap();
        terminal.serve(|bytes| log.extend_from_slice(bytes));
        assert_eq!(shown(&one), b"after\r\n");
        assert_eq!(shown(&two), b"after\r\n");
        assert_eq!(log, b"before\r\nafter\r\n");

        say(&one, &TerminalInput::Resized(WindowSize { rows: 7, columns: 9 }));
        say(&two, &TerminalInput::Typed(b"typed\r"));
        terminal.serve(|bytes| log.extend_from_slice(bytes));
        let mut line = [0; 100];
        let got = program.read(&mut line).unwrap();
        assert_eq!(&line[..got], b"typed\n");
        let mut size = to_kernel(WindowSize::default());
        // SAFETY: writes a size that lives as long as the call.
        assert_eq!(unsafe { libc::ioctl(program.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) }, 0);
        assert_eq!((size.ws_row, size.ws_col), (7, 9));

        drop(one);
        program.write_all(b"on\n").unwrap();
        terminal.serve(|_| {});
        assert_eq!(terminal.users.len(), 1, "one has left");
        assert!(shown(&two).ends_with(b"on\r\n"));
        let odd = user(&mut terminal);
        send(odd.as_raw_fd(), &[9], MsgFlags::empty()).unwrap();
        terminal.serve(|_| {});
        assert_eq!(terminal.users.len(), 1, "one has said nothing that is known");
    }

    #[test]
    fn a_user_who_takes_nothing_holds_up_the_program_and_no_dump() {
        let mut terminal = Terminal::make(WindowSize::default()).unwrap();
        let slow = user(&mut terminal);
        let program = File::from(terminal.slave().try_clone().unwrap());
        let flags = OFlag::from_bits_retain(fcntl(&program, FcntlArg::F_GETFL).unwrap());
        fcntl(&program, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).unwrap();
        let mut log = 0;
        let mut print = |terminal: &mut Terminal| {
            let mut printed = 0;
            while let Ok(got) = (&program).write(&[b'x'; 1000]) {
                printed += got;
                terminal.serve(|bytes| log += bytes.len());
            }
            (printed, log)
        };
        let (printed, logged) = print(&mut terminal);
        assert!(terminal.is_held_up() && logged < printed, "{logged} of {printed}");
        let mut rest = 0;
        terminal.drain(|bytes| rest += bytes.len());
        assert_eq!(logged + rest, printed);
        let mut seen = 0;
        while seen < printed {
            seen += shown(&slow).len();
            terminal.serve(|_| {});
        }
        assert!(!terminal.is_held_up());
    }
}
