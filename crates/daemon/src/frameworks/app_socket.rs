//! Where a program waits for its app.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::Mode;
use rekindle_sandbox::RUN_PATH;
use serde_json::json;

use crate::error::{Error, Result};
use crate::frameworks::FrameworkError;
use crate::host::client_library;
use crate::host::paths::private_directory;
use crate::sandboxes::{Sandbox, SandboxError};

/// In the run directory, and where the program finds it.
pub const DIRECTORY: &str = "framework";
const PIPE: &str = "app";
const READY: &str = "ready";
/// How long a program that was waiting may take to begin to read, and then to have read.
const LIMIT: Duration = Duration::from_secs(10);
const EVERY: Duration = Duration::from_millis(1);

/// What a program is to become.
#[derive(Debug)]
pub struct App {
    pub argv: Vec<String>,
    pub directory: String,
    environment: Vec<(String, String)>,
}

impl App {
    pub fn new(argv: Vec<String>, directory: String, environment: Vec<(String, String)>) -> Result<App> {
        if argv.first().is_none_or(String::is_empty) {
            return Err(SandboxError::NoCommand.into());
        }
        let mut environment = environment;
        // The programs that it starts find the client as it has.
        client_library::add_to(&mut environment, RUN_PATH);
        Ok(App { argv, directory, environment })
    }
}

/// Makes the place in a run directory.
pub fn open(run_directory: &Path) -> Result<()> {
    let directory = run_directory.join(DIRECTORY);
    private_directory(&directory, true)?;
    let pipe = directory.join(PIPE);
    nix::unistd::mkfifo(&pipe, Mode::S_IRUSR | Mode::S_IWUSR)
        .map_err(|errno| Error::io("make the pipe", &pipe, errno.into()))
}

/// Whether the program has said that it is ready.
pub fn is_ready(run_directory: &Path) -> bool {
    run_directory.join(DIRECTORY).join(READY).exists()
}

/// Has the program become the app; returns when it has read what that is.
pub fn hand_over(sandbox: &Sandbox, app: &App) -> Result<()> {
    let began = Instant::now();
    let refused = |reason: &str| FrameworkError::NoApp { reason: reason.to_string() }.into();
    let path = sandbox.run_directory.join(DIRECTORY).join(PIPE);
    let failed = |source| Error::io("write to", &path, source);
    let environment: serde_json::Map<_, _> =
        app.environment.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    let line = json!({ "argv": app.argv, "directory": app.directory, "environment": environment });
    let line = format!("{line}\n");
    let mut pipe = loop {
        match OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&path) {
            Ok(pipe) => break pipe,
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {}
            Err(error) => return Err(failed(error)),
        }
        if !sandbox.is_live() {
            return Err(refused("it ended first"));
        }
        if began.elapsed() > LIMIT {
            return Err(refused("it does not open the pipe"));
        }
        std::thread::sleep(EVERY);
    };
    let mut rest = line.as_bytes();
    while !rest.is_empty() {
        match pipe.write(rest) {
            Ok(written) => rest = &rest[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if began.elapsed() > LIMIT {
                    return Err(refused("it does not read what it was given"));
                }
                wait_for_room(&pipe);
            }
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                return Err(refused("it closed the pipe before it had read all"));
            }
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}

fn wait_for_room(pipe: &File) {
    let mut polled = [PollFd::new(pipe.as_fd(), PollFlags::POLLOUT)];
    // Whatever comes of it, writing tells.
    let _ = poll(&mut polled, PollTimeout::from(100u16));
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_place_is_made_once() {
        let root = tempfile::tempdir().unwrap();
        open(root.path()).unwrap();
        assert!(!is_ready(root.path()));
        assert!(open(root.path()).is_err());
        fs::write(root.path().join("framework/ready"), "").unwrap();
        assert!(is_ready(root.path()));
    }
}
