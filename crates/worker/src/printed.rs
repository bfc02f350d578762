//! Where kernels print: the program's standard output, as it is at that moment.
//!
//! ```text
//!   driver ─▶ the worker's standard output: a file in memory ── once somebody has waited ─▶ descriptor 1 of the program
//! ```
//!
//! A driver writes to the standard output of its process, here the worker's, when the program waits for what has printed.
//! The client sends a descriptor of its process (a pidfd) when it connects, and through that the worker borrows
//! descriptor 1 for each write. So redirections hold as they would for a driver inside the process: those of a child
//! whose output its parent reads, those made later, and those of a restored program. Without such a descriptor, or
//! where the kernel forbids it, the text goes where the worker's own standard output went, which is the sandbox's log.
//!
//! Text of kernels that might have to run once more is kept back. Where several programs have one driver, nobody knows
//! whose text it is: it stays in the process's log.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::fcntl::{FallocateFlags, fallocate};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::dup2_stdout;

/// Memory of text that was passed on is given back when it is so much, bytes.
const MUCH: u64 = 1 << 20;

/// The standard output of a worker's program.
#[derive(Clone, Default)]
pub(crate) struct ProgramOutput(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    process: Option<OwnedFd>,
    captured: Option<CapturedOutput>,
}

/// What a driver writes to the worker's standard output.
struct CapturedOutput {
    /// In place of that, and where it went.
    file: File,
    stdout: OwnedFd,
    /// Bytes that were passed on, and from where on their memory is still there.
    passed: u64,
    given_back: u64,
    /// Nothing is passed on for now.
    is_kept: bool,
    /// It goes on when nothing is to be kept back any more.
    goes_on: bool,
}

impl CapturedOutput {
    fn new(goes_on: bool) -> io::Result<CapturedOutput> {
        let file = File::from(memfd_create(c"rekindle-output", MFdFlags::MFD_CLOEXEC)?);
        let stdout = io::stdout().as_fd().try_clone_to_owned()?;
        dup2_stdout(&file)?;
        Ok(CapturedOutput { file, stdout, passed: 0, given_back: 0, is_kept: false, goes_on })
    }

    fn has_text(&self) -> bool {
        self.file.metadata().is_ok_and(|file| file.len() > self.passed)
    }

    /// What was written since the last time.
    fn next_text(&mut self) -> io::Result<Vec<u8>> {
        let mut text = vec![0; (self.file.metadata()?.len() - self.passed) as usize];
        self.file.read_exact_at(&mut text, self.passed)?;
        self.passed += text.len() as u64;
        if self.passed - self.given_back > MUCH {
            let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            let (from, bytes) = (self.given_back as i64, (self.passed - self.given_back) as i64);
            match fallocate(&self.file, hole, from, bytes) {
                Ok(()) => self.given_back = self.passed,
                Err(error) => log::warn!("memory of text that kernels printed stays: {error}"),
            }
        }
        Ok(text)
    }

    fn end(self) {
        if let Err(error) = dup2_stdout(&self.stdout) {
            log::error!("the worker's standard output cannot be put in its place again: {error}");
        }
    }
}

impl ProgramOutput {
    /// What a driver writes to this process's standard output is the program's from now on.
    pub(crate) fn followed() -> ProgramOutput {
        let captured = CapturedOutput::new(true);
        let captured =
            captured.inspect_err(|error| log::warn!("what kernels print goes to the log: {error}"));
        ProgramOutput(Arc::new(Mutex::new(State { process: None, captured: captured.ok() })))
    }

    /// What the program cannot be given goes there from now on, and not where it went.
    pub(crate) fn fall_back_to(&self, output: OwnedFd) -> io::Result<()> {
        match &mut self.state().captured {
            Some(captured) => captured.stdout = output,
            None => dup2_stdout(&output)?,
        }
        Ok(())
    }

    /// Says which process the program is.
    pub(crate) fn of(&self, process: OwnedFd) {
        self.state().process = Some(process);
    }

    /// As [`of`](Self::of), by the pid as this worker sees it.
    pub(crate) fn of_pid(&self, pid: i32) {
        // SAFETY: pidfd_open takes two integers and touches no memory of ours.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if descriptor >= 0 {
            // SAFETY: the descriptor is new and nobody else's.
            self.of(unsafe { OwnedFd::from_raw_fd(descriptor as i32) });
        }
    }

    /// Keeps all text back from now on; false if that cannot be done.
    pub(crate) fn keep_back(&self) -> bool {
        let mut state = self.state();
        if state.captured.is_none() {
            match CapturedOutput::new(false) {
                Ok(captured) => state.captured = Some(captured),
                Err(error) => log::warn!("what kernels print cannot be kept back: {error}"),
            }
        }
        state.captured.as_mut().map(|captured| captured.is_kept = true).is_some()
    }

    /// Passes on what was kept back, and keeps nothing back any more.
    pub(crate) fn let_go(&self) {
        self.pass_on();
        let mut state = self.state();
        if let Some(captured) = &mut state.captured {
            captured.is_kept = false;
        }
        if let Some(captured) = state.captured.take_if(|captured| !captured.goes_on) {
            captured.end();
        }
    }

    /// Passes on what there is, unless that is kept back.
    #[inline]
    pub(crate) fn show(&self) {
        let is_new = |captured: &CapturedOutput| !captured.is_kept && captured.has_text();
        if self.state().captured.as_ref().is_some_and(is_new) {
            self.pass_on();
        }
    }

    /// Passes on what there is, and keeps back what is still to come if it did so before.
    pub(crate) fn pass_on(&self) {
        let text = self.state().captured.as_mut().map(CapturedOutput::next_text);
        if let Some(Err(error)) = text.map(|text| text.and_then(|text| self.write(&text))) {
            log::error!("text that kernels printed is lost: {error}");
        }
    }

    /// Whether text is kept back.
    pub(crate) fn has_text(&self) -> bool {
        self.state().captured.as_ref().is_some_and(|captured| captured.is_kept && captured.has_text())
    }

    /// Forgets what was not passed on: it will be printed once more. The standard output is as it was before.
    pub(crate) fn forget(&self) {
        if let Some(captured) = self.state().captured.take() {
            captured.end();
        }
    }

    /// Passes on what there is; the standard output is as it was before.
    pub(crate) fn end(&self) {
        self.pass_on();
        self.forget();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn borrow(&self) -> Option<File> {
        let state = self.state();
        let process = state.process.as_ref()?.as_raw_fd();
        // SAFETY: pidfd_getfd takes three integers and touches no memory of ours.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process, libc::STDOUT_FILENO, 0) };
        // SAFETY: the descriptor is new and nobody else's.
        (descriptor >= 0).then(|| unsafe { File::from_raw_fd(descriptor as i32) })
    }

    /// To the program, or to where the worker's own output went. The program may be slow to take it.
    fn write(&self, mut text: &[u8]) -> io::Result<()> {
        let own = || -> io::Result<File> {
            let state = self.state();
            let output = state.captured.as_ref().map(|captured| captured.stdout.as_fd());
            Ok(output.unwrap_or(io::stdout().as_fd()).try_clone_to_owned()?.into())
        };
        let mut output = self.borrow().map_or_else(own, Ok)?;
        while !text.is_empty() {
            match output.write(text) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => text = &text[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => wait_for_room(&output)?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A program may have made its output non-blocking, which is no reason to lose text.
fn wait_for_room(output: &File) -> io::Result<()> {
    poll(&mut [PollFd::new(output.as_fd(), PollFlags::POLLOUT)], PollTimeout::NONE)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn text_is_passed_on_once_and_takes_no_memory_after_that() {
        let file = File::from(memfd_create(c"text", MFdFlags::MFD_CLOEXEC).unwrap());
        let mut driver = file.try_clone().unwrap();
        let mut captured = CapturedOutput {
            file,
            stdout: io::stdout().as_fd().try_clone_to_owned().unwrap(),
            passed: 0,
            given_back: 0,
            is_kept: false,
            goes_on: true,
        };
        for part in 0..5u8 {
            let text = vec![b'a' + part; MUCH as usize / 2 + 1];
            driver.write_all(&text).unwrap();
            assert!(captured.has_text());
            assert_eq!(captured.next_text().unwrap(), text);
            assert!(!captured.has_text());
        }
        let memory = captured.file.metadata().unwrap().blocks() * 512;
        assert!(memory < MUCH, "{memory}");
    }

    #[test]
    fn text_goes_where_the_process_prints() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = ProgramOutput::default();
        output.of_pid(child.id() as i32);
        let text = "printed by a kernel\n".repeat(2000);
        let mut from_child = child.stdout.take().unwrap();
        let reader = std::thread::spawn(move || {
            let mut read = String::new();
            from_child.read_to_string(&mut read).map(|_| read)
        });
        output.write(text.as_bytes()).unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(reader.join().unwrap().unwrap(), text);
        // The process is gone: the text is not lost, and nothing fails.
        assert!(output.borrow().is_none());
        output.write(b"").unwrap();
    }
}
