//! Where a program writes that is outside of its tree: the pipes and terminals that somebody else reads.
//!
//! A program's standard output and standard error are such from the beginning: two pipes, whose contents init moves to
//! the log, so that the program never meets a full disk there. A restore cannot bring readers back. It gives the program new ones in their
//! places, and what it writes there goes to its log too. Each is known by CRIU's own name for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::linux::fs::MetadataExt;
use std::path::Path;

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::log_index::Stream;

const PIECE: usize = 1 << 16;
/// As much as an unprivileged program may ask for.
const PIPE_BYTES: i32 = 1 << 20;

/// What the tree does with a pipe.
#[derive(Default)]
struct Ends {
    read: bool,
    written: bool,
    /// Whether it is the standard output of a process, and the standard error of one.
    stdout: bool,
    stderr: bool,
}

/// What the tree's descriptors say of pipes and terminals.
#[derive(Default)]
pub struct Pipes {
    /// Pipes by CRIU's name.
    pipes: BTreeMap<String, Ends>,
    /// Pseudo-terminals by their number, with CRIU's name.
    terminals: BTreeMap<u32, String>,
    /// Terminals whose other side is in the tree.
    own: BTreeSet<u32>,
}

/// CRIU's names for all that the processes `pids` write to and nobody among them reads.
pub fn outside(pids: &[i32]) -> Vec<String> {
    let seen = Pipes::of(pids);
    let pipes = seen.pipes.into_iter().filter(|(_, ends)| ends.written && !ends.read).map(|(key, _)| key);
    let terminals = seen.terminals.into_iter().filter(|(number, _)| !seen.own.contains(number));
    pipes.chain(terminals.map(|(_, key)| key)).collect()
}

/// Those of [`outside`] that are the processes' standard error, and the standard output of none.
pub fn errors(pids: &[i32]) -> Vec<String> {
    let seen = Pipes::of(pids).pipes.into_iter();
    seen.filter(|(_, ends)| ends.written && !ends.read && ends.stderr && !ends.stdout)
        .map(|(key, _)| key)
        .collect()
}

impl Pipes {
    /// Of the processes `pids`.
    pub fn of(pids: &[i32]) -> Self {
        let mut seen = Self::default();
        for pid in pids {
            let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
            for entry in entries.flatten() {
                let (Ok(link), number) = (fs::read_link(entry.path()), entry.file_name()) else { continue };
                let info = Path::new("/proc").join(pid.to_string()).join("fdinfo").join(number);
                seen.note(&link, &entry.path(), &fs::read_to_string(info).unwrap_or_default());
            }
        }
        seen
    }

    /// Whether they read the pipe that CRIU calls `key`, and none of them writes to it.
    pub fn is_only_read(&self, key: &str) -> bool {
        self.pipes.get(key).is_some_and(|ends| ends.read && !ends.written)
    }

    fn note(&mut self, link: &Path, descriptor: &Path, info: &str) {
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let Some(text) = link.to_str() else { return };
        if text.starts_with("pipe:[") {
            let flags = field("flags:").and_then(|text| i32::from_str_radix(text, 8).ok()).unwrap_or(0);
            let ends = self.pipes.entry(text.to_owned()).or_default();
            ends.read |= flags & libc::O_ACCMODE != libc::O_WRONLY;
            ends.written |= flags & libc::O_ACCMODE != libc::O_RDONLY;
            ends.stdout |= descriptor.ends_with("1");
            ends.stderr |= descriptor.ends_with("2");
        } else if let Some(number) = text.strip_prefix("/dev/pts/").and_then(|number| number.parse().ok()) {
            if let Ok(meta) = fs::metadata(descriptor) {
                self.terminals.insert(number, format!("tty[{:x}:{:x}]", meta.st_rdev(), meta.st_dev()));
            }
        } else if text.ends_with("/ptmx") {
            self.own.extend(field("tty-index:").and_then(|number| number.parse::<u32>().ok()));
        }
    }
}

/// Those of `keys` that CRIU must be told of at a dump.
pub fn external(keys: &[String]) -> impl Iterator<Item = String> {
    keys.iter().filter(|key| key.starts_with("tty[")).cloned()
}

/// Our end of what a restored program writes to.
#[derive(Debug)]
pub struct Output {
    ours: OwnedFd,
    /// What the log is to say of it.
    pub stream: Stream,
}

impl Output {
    /// Makes a new one for `key`: our end, and the program's.
    pub fn make(key: &str, stream: Stream) -> io::Result<(Output, OwnedFd)> {
        let (ours, theirs) = if key.starts_with("tty[") {
            terminal()?
        } else {
            let (read, write) = io::pipe()?;
            let ends = (OwnedFd::from(read), OwnedFd::from(write));
            // A smaller one does, with more waiting.
            let _ = fcntl(&ends.0, FcntlArg::F_SETPIPE_SZ(PIPE_BYTES));
            ends
        };
        let flags = OFlag::from_bits_retain(fcntl(&ours, FcntlArg::F_GETFL)?);
        fcntl(&ours, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        Ok((Output { ours, stream }, theirs))
    }

    /// Takes what is there, at most what was there when this began: a program that goes on writing must not keep init
    /// from all else. Whether more may come.
    pub fn drain(&self, mut take: impl FnMut(&[u8])) -> bool {
        let mut piece = vec![0; PIECE];
        let mut left = PIPE_BYTES as usize;
        while left > 0 {
            match nix::unistd::read(&self.ours, &mut piece) {
                Ok(0) => return false,
                Ok(got) => {
                    take(&piece[..got]);
                    left = left.saturating_sub(got);
                }
                Err(nix::Error::EINTR) => {}
                Err(error) => return error == nix::Error::EAGAIN,
            }
        }
        true
    }
}

impl AsFd for Output {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ours.as_fd()
    }
}

fn terminal() -> io::Result<(OwnedFd, OwnedFd)> {
    let (mut ours, mut theirs) = (-1, -1);
    let none = std::ptr::null_mut::<libc::c_char>();
    // SAFETY: writes two integers; no name, settings or size are asked for.
    let made = unsafe {
        libc::openpty(
            &mut ours,
            &mut theirs,
            none,
            std::ptr::null_mut(),
            std::ptr::null_mut::<libc::winsize>(),
        )
    };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: openpty has just made both for us.
    let pair = unsafe { (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
    for fd in [&pair.0, &pair.1] {
        // SAFETY: marks a descriptor that this process holds.
        if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(pair)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    #[test]
    fn a_pipe_that_another_reads_is_outside() {
        let mut child = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        let link = fs::read_link(format!("/proc/{pid}/fd/1")).unwrap();
        let link = link.to_string_lossy().into_owned();
        assert!(outside(&[pid]).contains(&link));
        assert!(!outside(&[pid, std::process::id() as i32]).contains(&link), "its reader is in the tree");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_pipe_that_is_standard_error_alone_is_told_from_one_that_is_both() {
        let start = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            // It is what it is to be once it has said so.
            io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 3]).unwrap();
            child
        };
        for (script, apart) in [("echo up; exec sleep 60", true), ("echo up; exec sleep 60 2>&1", false)] {
            let mut child = start(script);
            let pid = child.id() as i32;
            // Before the shell has become the other program its descriptors are as they were.
            while fs::read_to_string(format!("/proc/{pid}/comm")).unwrap() != "sleep\n" {
                std::thread::yield_now();
            }
            assert_eq!(errors(&[pid]).len(), usize::from(apart), "{script}");
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn what_is_written_to_either_kind_comes_to_the_log() {
        for key in ["pipe:[1]", "tty[8801:3]"] {
            let (ours, theirs) = Output::make(key, Stream::Stdout).unwrap();
            let mut log = Vec::new();
            let mut drain = || ours.drain(|bytes| log.extend_from_slice(bytes));
            assert!(drain(), "nothing yet");
            fs::File::from(theirs.try_clone().unwrap()).write_all(b"one").unwrap();
            assert!(drain());
            drop(theirs);
            assert!(!drain(), "its writer is gone");
            assert_eq!(log, b"one");
        }
    }
}
