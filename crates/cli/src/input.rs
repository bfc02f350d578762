//! Our standard input for a program in the foreground, by way of a pipe.
//!
//! ```text
//!  terminal, file, pipe ──here──▶ pipe ──▶ the program, in its sandbox
//! ```
//!
//! An image has what is in the pipe. What comes here is moved, by the kernel where it can, only as there is room, so that
//! a command that ends has nothing in its hands.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

use crate::error::{Error, Result};

/// How often a command that is in the background looks whether the terminal is its own.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// The machine's null device, 1:3.
const NULL: u64 = 0x103;

pub struct Input {
    theirs: PipeReader,
    ours: PipeWriter,
}

impl Input {
    /// None where our standard input is closed or `/dev/null`, as the program's is then. To be called before any thread
    /// is started.
    pub fn make() -> Result<Option<Input>> {
        let Ok(found) =
            io::stdin().as_fd().try_clone_to_owned().map(File::from).and_then(|input| input.metadata())
        else {
            return Ok(None);
        };
        if found.file_type().is_char_device() && found.rdev() == NULL {
            return Ok(None);
        }
        let failed = |source| Error::system("make a pipe for the program's standard input", source);
        // A read of a terminal that is another's fails then, and does not stop us.
        let background: SigSet = [Signal::SIGTTIN].into_iter().collect();
        background.thread_block().map_err(|error| failed(error.into()))?;
        let (theirs, ours) = io::pipe().map_err(failed)?;
        Ok(Some(Input { theirs, ours }))
    }

    pub fn theirs(&self) -> BorrowedFd<'_> {
        self.theirs.as_fd()
    }

    /// Passes on what comes, beside all else, until its end or until nobody reads it.
    pub fn pass_on(self) {
        let Input { theirs, ours } = self;
        drop(theirs);
        std::thread::spawn(move || {
            let Ok(from) = io::stdin().as_fd().try_clone_to_owned() else { return };
            copy(&mut File::from(from), &mut File::from(OwnedFd::from(ours)));
        });
    }
}

fn copy(from: &mut File, to: &mut File) {
    loop {
        match io::copy(from, to) {
            Err(error) if error.raw_os_error() == Some(nix::libc::EIO) && is_background(from) => {
                std::thread::sleep(LOOK_AGAIN);
            }
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return,
            Err(error) => return eprintln!("rekindle: the program has no more standard input: {error}"),
            Ok(_) => return,
        }
    }
}

fn is_background(terminal: &File) -> bool {
    // SAFETY: takes a descriptor that is open, and touches no memory of ours.
    let owner = unsafe { nix::libc::tcgetpgrp(terminal.as_raw_fd()) };
    owner >= 0 && owner != nix::unistd::getpgrp().as_raw()
}
