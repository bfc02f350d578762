//! Reaping, and the record of how the program ended.

use std::fs;
use std::path::Path;
use std::process::exit;

use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::mounts::RUN_PATH;
use super::{EXIT_FILE, PID_FILE};
use crate::message::Exit;

/// Reaps whatever has ended; how the program has, if it is among it.
pub fn reap(program: Option<Pid>) -> Option<Exit> {
    loop {
        let status = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(status) => status,
            Err(nix::Error::EINTR) => continue,
            Err(_) => return None,
        };
        let ended = match status {
            WaitStatus::Exited(pid, code) => (pid, Exit::Code(code)),
            WaitStatus::Signaled(pid, signal, _) => (pid, Exit::Signal(signal as i32)),
            WaitStatus::StillAlive => return None,
            _ => continue,
        };
        if Some(ended.0) == program {
            return Some(ended.1);
        }
    }
}

/// Records how the program ended and ends the sandbox, all processes in it included.
pub fn end(how: Exit) -> ! {
    if let Err(error) = serde_json::to_vec(&how).map_err(Into::into).and_then(|text| record(EXIT_FILE, &text))
    {
        eprintln!("sandbox-init: the program's end ({how:?}) cannot be recorded: {error}");
    }
    exit(how.shell_code())
}

pub fn record_pid(program: Pid) -> std::io::Result<()> {
    record(PID_FILE, program.to_string().as_bytes())
}

fn record(name: &str, text: &[u8]) -> std::io::Result<()> {
    let path = Path::new(RUN_PATH).join(name);
    let beside = path.with_extension("new");
    fs::write(&beside, text)?;
    fs::rename(beside, path)
}
