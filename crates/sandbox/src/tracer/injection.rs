//! System calls that a program makes for us: a userfaultfd belongs to the memory of whoever asks for it, and the kernel tells a
//! process alone which registers it may use, and which protection keys it has.
//!
//! One thread of the process is interrupted, as CRIU interrupts all of them, makes the call, which its filters do not see,
//! gives what it got back, and goes on with what it was about to do. It stands still for less than a millisecond.
//! Whoever traces ends with the program: the kernel would let a thread go wherever it is.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::calls::Memory;
use super::general::General;
use super::mend::call_instruction;
use super::request::{ptrace, set_mask};
use super::tracee::{Before, Stop};
use super::wait::{look, until_told};
use crate::process::{Handle, can_stand, is_zombie, maps, threads};
use crate::protection::FLAGS;

/// `PTRACE_O_SUSPEND_SECCOMP`: what is withheld from the program is not withheld from us.
const UNFILTERED: u64 = 1 << 21;
/// A thread that does not come to a stand for so long is left alone: it waits for a disk, or for a child that has its memory.
pub const PATIENCE: Duration = Duration::from_secs(5);
const NO_SIGNALS: u64 = u64::MAX;
/// Of `arch_prctl`.
const GET_PARTS: u64 = 0x1022;
const BELOW_STACK: u64 = 256;
/// So many protection keys there are, with that of all memory.
const KEYS: u64 = 16;
const PAGE: u64 = 4096;
/// The last page of what programs have of addresses, which nobody can map.
const NO_MEMORY: u64 = (1 << 47) - PAGE;

/// A userfaultfd of the memory of `process`, which keeps nothing of it; an error if none of its threads stands by
/// `deadline`. SIGCHLD is to be blocked in this thread; what it traces is let go of when it ends, at the latest.
pub fn userfaultfd(process: i32, deadline: Instant) -> io::Result<OwnedFd> {
    visit(process, deadline, |guest, handle| {
        let number = guest.call(libc::SYS_userfaultfd, [FLAGS, 0, 0, 0])?;
        let ours = handle.descriptor(number as i32);
        guest.call(libc::SYS_close, [number, 0, 0, 0]).and(ours)
    })
}

/// Which parts of the processor's vector registers `process` may use, as the kernel counts them, and which protection keys it
/// has, a bit for each, as far as they are wanted. The rest is as for [`userfaultfd`].
pub fn of_processor(
    process: i32,
    deadline: Instant,
    wants_parts: bool,
    wants_keys: bool,
) -> io::Result<(Option<u64>, Option<u64>)> {
    visit(process, deadline, |guest, _| {
        let parts = wants_parts.then(|| guest.vector_parts()).transpose()?;
        Ok((parts, wants_keys.then(|| guest.keys()).transpose()?))
    })
}

/// Has one thread of a process do something for us, which goes on with what it was about to do.
fn visit<T>(
    process: i32,
    deadline: Instant,
    ask: impl FnOnce(&mut Guest, &Handle) -> io::Result<T>,
) -> io::Result<T> {
    let thread = threads(process).into_iter().find(|thread| can_stand(*thread));
    let thread = thread.ok_or_else(|| io::Error::other("none of its threads can be interrupted"))?;
    let instruction = call_instruction(process, &maps::of(process)?)?;
    let handle = Handle::open(process)?;
    ptrace(libc::PTRACE_SEIZE, thread, 0, libc::PTRACE_O_TRACESYSGOOD as u64 | UNFILTERED)?;
    let mut guest = Guest { thread, instruction, taken: Vec::new() };
    guest.interrupt(Some(deadline))?;
    let before = Before::take(thread);
    let made = before.and_then(|before| {
        let made = set_mask(thread, NO_SIGNALS).and_then(|()| ask(&mut guest, &handle));
        guest.interrupt(None).and_then(|()| before.put_back(thread)).and(made)
    });
    let let_go = ptrace(libc::PTRACE_DETACH, thread, 0, 0);
    // It had them coming whatever we did.
    guest.taken.iter().for_each(|signal| {
        let _ = handle.signal(*signal);
    });
    let_go.and(made)
}

/// A thread that is ours for a moment.
struct Guest {
    thread: i32,
    /// Where it has the instruction of a system call.
    instruction: u64,
    /// Signals that no mask keeps off, which came meanwhile.
    taken: Vec<i32>,
}

impl Guest {
    fn vector_parts(&mut self) -> io::Result<u64> {
        // Nobody has anything there: below what code keeps beyond the end of its stack.
        let at = (General::of(self.thread)?.stack() - BELOW_STACK) & !7;
        let before = Memory(self.thread).word(at)?;
        let asked = self.call(libc::SYS_arch_prctl, [GET_PARTS, at, 0, 0]);
        let parts = Memory(self.thread).word(at);
        Memory(self.thread).write(at, &before.to_ne_bytes())?;
        asked.and(parts)
    }

    /// A bit for each protection key that it has, but that of all memory. The kernel looks at the key before it looks for memory.
    fn keys(&mut self) -> io::Result<u64> {
        let mut keys = 0;
        for key in 1..KEYS {
            let asked = self.call(libc::SYS_pkey_mprotect, [NO_MEMORY, PAGE, 0, key]);
            match asked.err().and_then(|error| error.raw_os_error()) {
                Some(libc::ENOMEM) => keys |= 1 << key,
                Some(libc::EINVAL) => {}
                other => return Err(io::Error::from_raw_os_error(other.unwrap_or(libc::EIO))),
            }
        }
        Ok(keys)
    }

    /// Brings it to a stand at which what it does next can be said: by a time before it was touched, and from the end of a
    /// call, whatever time it takes, afterwards. It would go on with what it was made to do.
    fn interrupt(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        let has_called = deadline.is_none();
        ptrace(libc::PTRACE_INTERRUPT, self.thread, 0, 0)?;
        if has_called {
            ptrace(libc::PTRACE_CONT, self.thread, 0, 0)?;
        }
        loop {
            let signal = match self.stopped(deadline)? {
                Stop::Event => return Ok(()),
                Stop::Signal(signal) if has_called => {
                    self.taken.push(signal);
                    0
                }
                Stop::Signal(signal) => signal,
                Stop::Call => 0,
            };
            ptrace(libc::PTRACE_CONT, self.thread, 0, signal as u64)?;
        }
    }

    fn call(&mut self, number: i64, arguments: [u64; 4]) -> io::Result<u64> {
        let mut general = General::of(self.thread)?;
        general.enter(self.instruction, number, arguments);
        general.set(self.thread)?;
        for _ in ["its beginning", "its end"] {
            loop {
                ptrace(libc::PTRACE_SYSCALL, self.thread, 0, 0)?;
                match self.stopped(None)? {
                    Stop::Call => break,
                    Stop::Signal(signal) => self.taken.push(signal),
                    Stop::Event => {}
                }
            }
        }
        General::of(self.thread)?.result()
    }

    fn stopped(&self, deadline: Option<Instant>) -> io::Result<Stop> {
        loop {
            match look(self.thread)? {
                Some(status) if libc::WIFSTOPPED(status) => return Ok(Stop::read(status)),
                None if deadline.is_some_and(|deadline| Instant::now() > deadline) => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                // The kernel tells of the first thread's end after that of the others.
                None if !is_zombie(self.thread) => {
                    until_told();
                }
                _ => return Err(io::Error::from_raw_os_error(libc::ESRCH)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    use super::*;
    use crate::process::status_field;
    use crate::protection::Protection;

    /// Says what is held of it, and what it is told.
    const PROGRAM: &str = "import os, sys, threading\n\
        for _ in range(3): threading.Thread(target=threading.Event().wait, daemon=True).start()\n\
        print('ready', flush=True)\n\
        for line in sys.stdin: print(line.strip(), sorted(os.listdir('/proc/self/fd')), flush=True)\n";

    #[test]
    fn a_program_has_a_userfaultfd_made_and_keeps_nothing_of_it() {
        if !Protection::is_there() {
            eprintln!("skipped: this kernel has no asynchronous write protection");
            return;
        }
        let mut child = Command::new("python3")
            .args(["-c", PROGRAM])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut to = child.stdin.take().unwrap();
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let mut ask = |word: &str| {
            to.write_all(format!("{word}\n").as_bytes()).unwrap();
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            line
        };
        let before = ask("one");
        let make = || {
            let made = std::thread::spawn(move || {
                let mut signals = nix::sys::signal::SigSet::empty();
                signals.add(nix::sys::signal::Signal::SIGCHLD);
                signals.thread_block().unwrap();
                userfaultfd(pid, Instant::now() + PATIENCE)
            });
            Protection::begin(made.join().unwrap().unwrap()).unwrap()
        };
        for _ in 0..10 {
            let made = make();
            let heap = maps::of(pid).unwrap().into_iter().find(|area| area.name == b"[heap]").unwrap();
            made.cover(&heap.span).unwrap();
            assert_eq!(ask("one"), before);
        }
        // One that is stopped stays so.
        let handle = Handle::open(pid).unwrap();
        let is_stopped = || status_field(pid, "State").unwrap().starts_with('T');
        handle.signal(libc::SIGSTOP).unwrap();
        while !is_stopped() {
            std::thread::yield_now();
        }
        drop(make());
        while !is_stopped() {
            std::thread::yield_now();
        }
        handle.signal(libc::SIGCONT).unwrap();
        assert_eq!(ask("one"), before);
        drop(to);
        assert!(child.wait().unwrap().success());
    }
}
