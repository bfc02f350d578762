//! Our terminal for a program's: what is typed goes to the program as it is, what it prints comes here.
//!
//! ```text
//!  keyboard ──raw──▶ keys ──Said──▶ the sandbox's init ──▶ the program's terminal
//!  screen ◀─────────────────────────────┘
//! ```
//!
//! Our terminal is raw meanwhile, so that Ctrl-C and all else is the program's, and as it was before at the end. Ctrl-P
//! Ctrl-Q lets go of the program, and so does the end of our terminal: the program goes on.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::ExitCode;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use nix::sys::termios::{self, SetArg, Termios};
use rekindle_daemon::Paths;
use rekindle_protocol::daemon::{Request, Sandbox};
use rekindle_protocol::terminal::{PACKET, TerminalInput, WindowSize};
use serde_json::json;

use crate::commands::{Printer, code_of};
use crate::connection::{ask_with, simply_ask};
use crate::error::{Error, Result};
use crate::foreground::Output;

/// Ctrl-P, and Ctrl-Q behind it.
const LETTING_GO: [u8; 2] = [0x10, 0x11];
const KIND: &str = "TERM";
const USUAL_KIND: &str = "xterm";
/// At whose coming we leave; the program does not hear of them.
const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// Our terminal, before it is the program's.
pub struct Terminal {
    signals: SignalFd,
}

/// Why we do not use the program's terminal any more.
enum End {
    /// The program has ended, or is brought back.
    Closed,
    LetGo,
    /// Our terminal has gone, or a signal has come.
    Gone(Option<Signal>),
}

/// The size of the terminal that is our standard input, if it is one.
pub fn size() -> Option<WindowSize> {
    let mut size = nix::libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: writes a size that lives as long as the call.
    let done = unsafe { nix::libc::ioctl(io::stdin().as_raw_fd(), nix::libc::TIOCGWINSZ, &raw mut size) };
    let found = WindowSize { rows: size.ws_row, columns: size.ws_col };
    // One that does not know has none.
    (done == 0).then_some(if found.rows == 0 || found.columns == 0 { WindowSize::default() } else { found })
}

impl Terminal {
    /// Takes signals from now on. To be called before any thread is started.
    pub fn take() -> Result<Terminal> {
        if termios::tcgetattr(io::stdin()).is_err() {
            return Err(Error::NoTerminal);
        }
        let mut signals: SigSet = ENDING.into_iter().collect();
        signals.add(Signal::SIGWINCH);
        signals.add(Signal::SIGCONT);
        let failed = |errno| Error::system("take signals", errno);
        signals.thread_block().map_err(failed)?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Terminal { signals: SignalFd::with_flags(&signals, flags).map_err(failed)? })
    }

    /// Uses the program's terminal by our end of a [`pair`], until the program has ended or we let go of it.
    pub fn use_by(
        &self,
        paths: &Paths,
        printer: &Printer,
        name: &str,
        mut program: OwnedFd,
    ) -> Result<ExitCode> {
        let raw = RawMode::make()?;
        let end = loop {
            match self.converse(&raw, &program, printer.output())? {
                End::Closed => {}
                end => break end,
            }
            let (ours, theirs) = pair()?;
            let request = Request::Attach { name: name.to_string(), again: true };
            // One that has been removed meanwhile has ended too.
            let answer = ask_with(paths, &request, Some(theirs.as_fd())).unwrap_or_default();
            if answer["attached"] != true {
                break End::Closed;
            }
            program = ours;
        };
        drop((raw, program));
        let signal = match end {
            End::Closed => {
                let ended = simply_ask(paths, &Request::Wait { name: name.to_string() })?;
                let ended: Sandbox = serde_json::from_value(ended)?;
                printer.print_json(&json!(ended));
                return Ok(code_of(&ended));
            }
            End::LetGo => None,
            End::Gone(signal) => Some(signal.unwrap_or(Signal::SIGHUP)),
        };
        // The terminal may have gone.
        Output::Stderr
            .write(format!("rekindle: {name:?} goes on; `rekindle attach` comes back to it\n").as_bytes());
        printer.print_json(&json!({ "name": name, "detached": true }));
        Ok(signal.map_or(ExitCode::SUCCESS, |signal| ExitCode::from(128 + signal as u8)))
    }

    fn converse(&self, raw: &RawMode, program: &OwnedFd, output: Output) -> Result<End> {
        let (mut keys, stdin) = (Keys::default(), io::stdin());
        say_size(program);
        loop {
            let fds = [self.signals.as_fd(), program.as_fd(), stdin.as_fd()];
            let mut polled = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            // One that was interrupted is made again.
            if poll(&mut polled, PollTimeout::NONE).is_err() {
                continue;
            }
            let [signals, shown, typed] = polled.map(|fd| fd.any().unwrap_or(false));
            if shown {
                let mut packet = [0; PACKET];
                match recv(program.as_raw_fd(), &mut packet, MsgFlags::empty()) {
                    Err(Errno::EINTR) => {}
                    Ok(0) | Err(_) => return Ok(End::Closed),
                    Ok(got) => output.write(&packet[..got]),
                }
            }
            if signals && let Ok(Some(info)) = self.signals.read_signal() {
                match Signal::try_from(info.ssi_signo as i32) {
                    Ok(Signal::SIGWINCH) => say_size(program),
                    // Whoever had the terminal meanwhile has set it as they like.
                    Ok(Signal::SIGCONT) => {
                        raw.set();
                        say_size(program);
                    }
                    Ok(signal) => return Ok(End::Gone(Some(signal))),
                    Err(_) => {}
                }
            }
            if typed {
                let mut bytes = [0; PACKET / 2];
                match nix::unistd::read(stdin.as_fd(), &mut bytes) {
                    Err(Errno::EINTR) => {}
                    Ok(0) | Err(_) => return Ok(End::Gone(None)),
                    Ok(got) => {
                        let (meant, lets_go) = keys.hear(&bytes[..got]);
                        // An init that has ended is noticed by what it does not show.
                        let _ = say(program, &TerminalInput::Typed(&meant));
                        if lets_go {
                            return Ok(End::LetGo);
                        }
                    }
                }
            }
        }
    }
}

/// Two ends of a socket that keeps packets apart: ours, and that of a sandbox's init.
pub fn pair() -> Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
        .map_err(|errno| Error::system("make a socket", errno))
}

/// Starts a program and uses its terminal.
pub fn run(paths: &Paths, printer: &Printer, request: &Request) -> Result<ExitCode> {
    let terminal = Terminal::take()?;
    let (ours, theirs) = pair()?;
    let started: Sandbox = serde_json::from_value(ask_with(paths, request, Some(theirs.as_fd()))?)?;
    drop(theirs);
    terminal.use_by(paths, printer, &started.name, ours)
}

/// Tells a program what kind of terminal it has, if nobody else does.
pub fn describe(environment: &mut Vec<(String, String)>) {
    if !environment.iter().any(|(name, _)| name == KIND) {
        environment.push((KIND.to_string(), USUAL_KIND.to_string()));
    }
}

/// Comes to the terminal of a program that runs.
pub fn attach(paths: &Paths, printer: &Printer, name: &str) -> Result<ExitCode> {
    let terminal = Terminal::take()?;
    let (ours, theirs) = pair()?;
    let request = Request::Attach { name: name.to_string(), again: false };
    ask_with(paths, &request, Some(theirs.as_fd()))?;
    drop(theirs);
    terminal.use_by(paths, printer, name, ours)
}

fn say(program: &OwnedFd, said: &TerminalInput<'_>) -> nix::Result<()> {
    send(program.as_raw_fd(), &said.packet(), MsgFlags::MSG_NOSIGNAL).map(drop)
}

fn say_size(program: &OwnedFd) {
    if let Some(size) = size() {
        // As above.
        let _ = say(program, &TerminalInput::Resized(size));
    }
}

/// Our terminal, which takes nothing for itself. Dropped, it is as it was.
struct RawMode {
    before: Termios,
}

impl RawMode {
    fn make() -> Result<RawMode> {
        let before = termios::tcgetattr(io::stdin()).map_err(|_| Error::NoTerminal)?;
        let raw = RawMode { before };
        raw.set();
        Ok(raw)
    }

    fn set(&self) {
        let mut settings = self.before.clone();
        termios::cfmakeraw(&mut settings);
        // One that has gone is noticed where it is read.
        let _ = termios::tcsetattr(io::stdin(), SetArg::TCSADRAIN, &settings);
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        let _ = termios::tcsetattr(io::stdin(), SetArg::TCSADRAIN, &self.before);
    }
}

/// Tells the keys that let go from those that are meant for the program.
#[derive(Default)]
struct Keys {
    /// Whether the first of the two has come, which the program gets if the other does not.
    begun: bool,
}

impl Keys {
    /// What the program is to get, and whether the user lets go.
    fn hear(&mut self, typed: &[u8]) -> (Vec<u8>, bool) {
        let mut meant = Vec::with_capacity(typed.len() + 1);
        for &key in typed {
            if self.begun && key == LETTING_GO[1] {
                return (meant, true);
            }
            if std::mem::take(&mut self.begun) {
                meant.push(LETTING_GO[0]);
            }
            match key == LETTING_GO[0] {
                true => self.begun = true,
                false => meant.push(key),
            }
        }
        (meant, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_keys_let_go_and_all_others_are_the_programs() {
        let mut keys = Keys::default();
        assert_eq!(keys.hear(b"ab\x11\x03"), (b"ab\x11\x03".to_vec(), false));
        assert_eq!(keys.hear(b"x\x10"), (b"x".to_vec(), false));
        assert_eq!(keys.hear(b"y"), (b"\x10y".to_vec(), false));
        assert_eq!(keys.hear(b"\x10\x10"), (b"\x10".to_vec(), false));
        assert_eq!(keys.hear(b"\x11z"), (b"".to_vec(), true), "what comes behind is for nobody");
        assert_eq!(Keys::default().hear(b"1\x10\x112"), (b"1".to_vec(), true));
    }
}
