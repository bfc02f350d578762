//! Where a program writes that is outside of its tree: the pipes and terminals that somebody else reads.
//!
//! A program's standard output and standard error are such from the beginning: two pipes, whose contents init moves to
//! the log, so that the program never meets a full disk there. A restore cannot bring readers back. It gives the program new ones in their
//! places, and what it writes there goes to its log too: pipes, and [terminals](crate::terminal). Each is known by CRIU's own
//! name for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::fs::MetadataExt;
use std::path::Path;

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::log_index::Stream;
use crate::process;

/// The device by which a process opens the terminal that controls it, whichever that is.
const CURRENT: u64 = 0x500;
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
    /// Pseudo-terminals by their number, with their device and CRIU's name.
    terminals: BTreeMap<u32, (u64, String)>,
    /// Terminals whose other side is in the tree.
    own: BTreeSet<u32>,
    /// CRIU's name for what is open as [`CURRENT`], and the devices that it stands for.
    current: BTreeMap<String, BTreeSet<u64>>,
}

/// CRIU's names for all that the processes `pids` write to and nobody among them reads.
pub fn outside(pids: &[i32]) -> Vec<String> {
    Pipes::of(pids).outside()
}

/// Whether CRIU's name `key` is a terminal's.
pub fn is_terminal(key: &str) -> bool {
    key.starts_with("tty[")
}

/// Whether it is that of a terminal which is open as the one that controls its process.
pub fn is_current(key: &str) -> bool {
    key.starts_with(&format!("tty[{CURRENT:x}:"))
}

impl Pipes {
    /// Of the processes `pids`.
    pub fn of(pids: &[i32]) -> Self {
        let mut seen = Self::default();
        for pid in pids {
            let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
            for entry in entries.flatten() {
                let Ok(link) = fs::read_link(entry.path()) else { continue };
                seen.note(*pid, &link, &entry.path());
            }
        }
        seen
    }

    /// CRIU's names for all that is written to and not read.
    pub fn outside(&self) -> Vec<String> {
        let pipes = self.pipes.iter().filter(|(_, ends)| ends.written && !ends.read).map(|(key, _)| key);
        let terminals = self.terminals.iter().filter(|(number, _)| !self.own.contains(number));
        let (devices, keys): (BTreeSet<u64>, Vec<&String>) =
            terminals.map(|(_, (device, key))| (*device, key)).unzip();
        // One that stands for a terminal of the tree's own is CRIU's.
        let current = self.current.iter().filter(|(_, meant)| meant.is_subset(&devices)).map(|(key, _)| key);
        pipes.chain(keys).chain(current).cloned().collect()
    }

    /// Those of [`Pipes::outside`] that are the processes' standard error, and the standard output of none.
    pub fn errors(&self) -> Vec<String> {
        let is_error = |ends: &Ends| ends.written && !ends.read && ends.stderr && !ends.stdout;
        self.pipes.iter().filter(|(_, ends)| is_error(ends)).map(|(key, _)| key.clone()).collect()
    }

    /// Whether they read the pipe that CRIU calls `key`, and none of them writes to it.
    pub fn is_only_read(&self, key: &str) -> bool {
        self.pipes.get(key).is_some_and(|ends| ends.read && !ends.written)
    }

    fn note(&mut self, pid: i32, link: &Path, descriptor: &Path) {
        // Few kinds need it, and it takes as long as all else.
        let field = |name: &str| {
            let number = descriptor.file_name()?.to_str()?;
            let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).ok()?;
            info.lines().find_map(|line| line.strip_prefix(name)).map(|text| text.trim().to_owned())
        };
        let Some(text) = link.to_str() else { return };
        if text.starts_with("pipe:[") {
            let flags = field("flags:").and_then(|text| i32::from_str_radix(&text, 8).ok()).unwrap_or(0);
            let ends = self.pipes.entry(text.to_owned()).or_default();
            ends.read |= flags & libc::O_ACCMODE != libc::O_WRONLY;
            ends.written |= flags & libc::O_ACCMODE != libc::O_RDONLY;
            ends.stdout |= descriptor.ends_with("1");
            ends.stderr |= descriptor.ends_with("2");
        } else if let Some(number) = text.strip_prefix("/dev/pts/").and_then(|number| number.parse().ok()) {
            if let Ok(meta) = fs::metadata(descriptor) {
                let device = meta.st_rdev();
                self.terminals.insert(number, (device, format!("tty[{device:x}:{:x}]", meta.st_dev())));
            }
        } else if text == "/dev/tty" {
            if let Ok(meta) = fs::metadata(descriptor)
                && meta.st_rdev() == CURRENT
            {
                let key = format!("tty[{CURRENT:x}:{:x}]", meta.st_dev());
                self.current.entry(key).or_default().extend(process::controlling_terminal(pid));
            }
        } else if text.ends_with("/ptmx") {
            self.own.extend(field("tty-index:").and_then(|number| number.parse::<u32>().ok()));
        }
    }
}

/// Those of `keys` that CRIU must be told of at a dump.
pub fn external(keys: &[String]) -> impl Iterator<Item = String> {
    keys.iter().filter(|key| is_terminal(key)).cloned()
}

/// Our end of a pipe that the program writes to.
#[derive(Debug)]
pub struct Output {
    ours: OwnedFd,
    /// What the log is to say of it.
    pub stream: Stream,
}

impl Output {
    /// Makes a new one: our end, and the program's.
    pub fn make(stream: Stream) -> io::Result<(Output, OwnedFd)> {
        let (read, write) = io::pipe()?;
        let (ours, theirs) = (OwnedFd::from(read), OwnedFd::from(write));
        // A smaller one does, with more waiting.
        let _ = fcntl(&ours, FcntlArg::F_SETPIPE_SZ(PIPE_BYTES));
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
            assert_eq!(Pipes::of(&[pid]).errors().len(), usize::from(apart), "{script}");
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn what_is_written_comes_to_the_log() {
        let (ours, theirs) = Output::make(Stream::Stdout).unwrap();
        let mut log = Vec::new();
        let mut drain = || ours.drain(|bytes| log.extend_from_slice(bytes));
        assert!(drain(), "nothing yet");
        fs::File::from(theirs.try_clone().unwrap()).write_all(b"one").unwrap();
        assert!(drain());
        drop(theirs);
        // Processes that other tests make have it too until they have become other programs.
        let began = std::time::Instant::now();
        while drain() {
            assert!(began.elapsed() < std::time::Duration::from_secs(120), "its writer is gone");
            std::thread::yield_now();
        }
        assert_eq!(log, b"one");
    }
}
