//! Starting a process from one with many threads and much memory.
//!
//! `fork` copies the tables of all memory, under a lock that every thread of the process needs that touches memory for the
//! first time or starts another thread, and leaves each page to be copied when it is next written to. `posix_spawn`
//! lends the memory to the child until that has become another program: only the thread that asks waits.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;

use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

/// A process that this one has started. Until it is waited for, nobody else has its pid.
#[derive(Debug)]
pub struct Spawned(Pid);

impl Spawned {
    /// Starts a program, by its path, with nothing on standard input. The descriptors are passed on under their numbers.
    pub fn start(command: &[OsString], passed: &[RawFd]) -> io::Result<Spawned> {
        Spawned::start_at(command.first().ok_or(io::ErrorKind::InvalidInput)?, command, passed)
    }

    /// As [`Spawned::start`], of a program whose path is another one than its first word.
    pub fn start_at(program: &OsStr, command: &[OsString], passed: &[RawFd]) -> io::Result<Spawned> {
        let text = |bytes: &[u8]| CString::new(bytes).map_err(io::Error::from);
        let arguments =
            command.iter().map(|word| text(word.as_bytes())).collect::<io::Result<Vec<CString>>>()?;
        let program = text(program.as_bytes())?;
        let environment = std::env::vars_os()
            .map(|(name, value)| text(&[name.as_bytes(), b"=", value.as_bytes()].concat()))
            .collect::<io::Result<Vec<CString>>>()?;
        let mut actions = PosixSpawnFileActions::init()?;
        let nothing = File::open("/dev/null")?;
        actions.add_dup2(nothing.as_raw_fd(), libc::STDIN_FILENO)?;
        for descriptor in passed {
            // Onto itself: it is then not closed when the program begins.
            actions.add_dup2(*descriptor, *descriptor)?;
        }
        // As every program expects them, whatever this thread has of its own.
        let mut attributes = PosixSpawnAttr::init()?;
        let mut usual = SigSet::empty();
        usual.add(Signal::SIGPIPE);
        attributes.set_sigdefault(&usual)?;
        attributes.set_sigmask(&SigSet::empty())?;
        attributes
            .set_flags(PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF | PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK)?;
        let pid = posix_spawn(program.as_c_str(), &actions, &attributes, &arguments, &environment)?;
        Ok(Spawned(pid))
    }

    pub fn pid(&self) -> i32 {
        self.0.as_raw()
    }

    /// Ends it, if it has not ended.
    pub fn kill(&self) {
        let _ = kill(self.0, Signal::SIGKILL);
    }

    /// Waits for its end, and frees its entry in the process table.
    pub fn wait(self) {
        while waitpid(self.0, None) == Err(nix::errno::Errno::EINTR) {}
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn shell(script: &str) -> Vec<OsString> {
        ["/bin/sh", "-c", script].map(Into::into).to_vec()
    }

    #[test]
    fn it_gets_what_is_passed_and_nothing_else() {
        let (mut said, other) = (tempfile::tempfile().unwrap(), File::open("/dev/null").unwrap());
        let (passed, kept) = (said.as_raw_fd(), other.as_raw_fd());
        let script = format!(
            "exec > /proc/self/fd/{passed}; test -e /proc/self/fd/{kept} && echo more; \
             readlink /proc/self/fd/0; grep -E 'SigBlk|SigIgn' /proc/self/status"
        );
        Spawned::start(&shell(&script), &[passed]).unwrap().wait();
        let mut text = String::new();
        said.read_to_string(&mut text).unwrap();
        let words: Vec<_> = text.split_whitespace().collect();
        assert_eq!(words[..4], ["/dev/null", "SigBlk:", "0000000000000000", "SigIgn:"], "{text}");
        // The C library has those ignored that it uses itself.
        let ignored = u64::from_str_radix(words[4], 16).unwrap();
        assert_eq!(ignored & (1 << (Signal::SIGPIPE as u32 - 1)), 0, "{text}");
    }

    #[test]
    fn one_that_is_killed_ends_and_one_that_is_not_there_is_an_error() {
        let spawned = Spawned::start(&shell("sleep 60"), &[]).unwrap();
        spawned.kill();
        spawned.wait();
        let missing = Spawned::start(&["/no/such/program".into()], &[]).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
