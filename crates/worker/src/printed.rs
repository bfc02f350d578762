//! Where kernels print: the program's standard output, as it is at that moment.
//!
//! The client sends a descriptor of its process (a pidfd) when it connects, and through that the worker borrows
//! descriptor 1 for each write. So redirections hold as they would for a driver inside the process: those of a child
//! whose output its parent reads, those made later, and those of a restored program. Without such a descriptor, or
//! where the kernel forbids it, the worker's own standard output takes the text, which is the sandbox's log.
//!
//! Text of kernels that might have to run once more is kept back, also what a driver writes to the worker's standard
//! output by itself.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::dup2_stdout;

/// The standard output of a worker's program.
#[derive(Clone, Default)]
pub struct ProgramOutput(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    process: Option<OwnedFd>,
    kept: Option<CapturedOutput>,
}

/// What is kept back.
struct CapturedOutput {
    text: Vec<u8>,
    /// In place of the worker's standard output, and that.
    file: File,
    stdout: OwnedFd,
}

impl CapturedOutput {
    fn new() -> io::Result<CapturedOutput> {
        let file = File::from(memfd_create(c"rekindle-output", MFdFlags::MFD_CLOEXEC)?);
        let stdout = io::stdout().as_fd().try_clone_to_owned()?;
        dup2_stdout(&file)?;
        Ok(CapturedOutput { text: Vec::new(), file, stdout })
    }
}

impl ProgramOutput {
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
        match CapturedOutput::new() {
            Ok(kept) => {
                self.state().kept = Some(kept);
                true
            }
            Err(error) => {
                log::warn!("what kernels print cannot be kept back: {error}");
                false
            }
        }
    }

    /// Passes on what was kept back.
    pub(crate) fn let_go(&mut self) {
        let Some(mut kept) = self.take_kept() else { return };
        let mut printed = Vec::new();
        let read = kept.file.rewind().and_then(|()| kept.file.read_to_end(&mut printed));
        let written = read.and_then(|_| self.write_all(&kept.text)).and_then(|()| {
            let mut stdout = File::from(kept.stdout);
            stdout.write_all(&printed)
        });
        if let Err(error) = written {
            log::error!("text that kernels printed is lost: {error}");
        }
    }

    /// Passes on what was kept back so far, and keeps back what is still to come.
    pub(crate) fn pass_on(&mut self) {
        if self.has_text() {
            self.let_go();
            self.keep_back();
        }
    }

    /// Whether text is kept back.
    pub(crate) fn has_text(&self) -> bool {
        let written = |kept: &CapturedOutput| kept.file.metadata().is_ok_and(|file| file.len() > 0);
        self.state().kept.as_ref().is_some_and(|kept| !kept.text.is_empty() || written(kept))
    }

    /// Forgets what was kept back: it will be printed once more.
    pub(crate) fn forget(&self) {
        self.take_kept();
    }

    fn take_kept(&self) -> Option<CapturedOutput> {
        let kept = self.state().kept.take()?;
        if let Err(error) = dup2_stdout(&kept.stdout) {
            log::error!("the worker's standard output cannot be put in its place again: {error}");
        }
        Some(kept)
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
}

impl Write for ProgramOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(kept) = &mut self.state().kept {
            return kept.text.write(bytes);
        }
        let Some(mut output) = self.borrow() else {
            return io::stdout().write(bytes);
        };
        loop {
            match output.write(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => wait_for_room(&output)?,
                done => return done,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
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
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn text_goes_where_the_process_prints() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = ProgramOutput::default();
        output.of_pid(child.id() as i32);
        let text = "printed by a kernel\n".repeat(2000);
        let mut from_child = child.stdout.take().unwrap();
        let reader = std::thread::spawn(move || {
            let mut read = String::new();
            from_child.read_to_string(&mut read).map(|_| read)
        });
        output.write_all(text.as_bytes()).unwrap();
        output.flush().unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(reader.join().unwrap().unwrap(), text);
        // The process is gone: the text is not lost, and nothing fails.
        assert!(output.borrow().is_none());
        output.write_all(b"").unwrap();
    }
}
