//! Where kernels print: the program's standard output, as it is at that moment.
//!
//! The client sends a descriptor of its process (a pidfd) when it connects, and through that the worker borrows
//! descriptor 1 for each write. So redirections hold as they would for a driver inside the process: those of a child
//! whose output its parent reads, those made later, and those of a restored program. Without such a descriptor, or
//! where the kernel forbids it, the worker's own standard output takes the text, which is the sandbox's log.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// The standard output of a worker's program.
#[derive(Clone, Default)]
pub struct ProgramOutput(Arc<Mutex<Option<OwnedFd>>>);

impl ProgramOutput {
    /// Says which process the program is.
    pub(crate) fn of(&self, process: OwnedFd) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(process);
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

    fn borrow(&self) -> Option<File> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let process = held.as_ref()?.as_raw_fd();
        // SAFETY: pidfd_getfd takes three integers and touches no memory of ours.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process, libc::STDOUT_FILENO, 0) };
        // SAFETY: the descriptor is new and nobody else's.
        (descriptor >= 0).then(|| unsafe { File::from_raw_fd(descriptor as i32) })
    }
}

impl Write for ProgramOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
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
    let mut poll = libc::pollfd { fd: output.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one valid pollfd.
    match unsafe { libc::poll(&mut poll, 1, -1) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
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
