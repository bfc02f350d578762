//! Starting the program: a session leader with a high pid, its output in the log.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::unistd::{ForkResult, Pid, execve, fork, setsid};

use super::mounts::LOG_PATH;
use crate::message::Program;
use crate::withheld::withhold;

/// CRIU takes the first pids of a fresh namespace for itself; those to be restored lie above.
pub const FIRST_PID: i32 = 1000;

/// Makes the next process get the first free pid above `last`.
pub fn set_last_pid(last: i32) -> io::Result<()> {
    OpenOptions::new()
        .write(true)
        .open("/proc/sys/kernel/ns_last_pid")?
        .write_all(last.to_string().as_bytes())
}

/// The sandbox's log, as the program gets it.
pub fn open_log() -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(LOG_PATH)
}

pub fn start(program: &Program) -> Result<Pid, String> {
    let name = program.args.first().ok_or("its command is empty")?;
    let path = find(name, &program.env, Path::new(&program.cwd))
        .ok_or_else(|| format!("{} is not an executable file, nor in PATH", name.display()))?;
    let text = |bytes: &[u8]| {
        CString::new(bytes).map_err(|_| "an argument or variable holds a zero byte".to_owned())
    };
    let path = text(path.as_os_str().as_bytes())?;
    let args = program.args.iter().map(|arg| text(arg.as_bytes())).collect::<Result<Vec<_>, _>>()?;
    let env = program.env.iter().map(|(key, value)| text(&[key.as_bytes(), b"=", value.as_bytes()].concat()));
    let env = env.collect::<Result<Vec<_>, _>>()?;
    let log = open_log().map_err(|error| format!("opening {LOG_PATH}: {error}"))?;
    let (mut failed, told) = io::pipe().map_err(|error| format!("making a pipe: {error}"))?;
    set_last_pid(FIRST_PID - 1).map_err(|error| format!("choosing its pid: {error}"))?;
    // SAFETY: this process has one thread.
    match unsafe { fork() }.map_err(|error| format!("fork: {error}"))? {
        ForkResult::Child => {
            let cause = become_program(&path, &args, &env, program, &log);
            // Nobody else can be told.
            let _ = (&told).write_all(cause.as_bytes());
            // SAFETY: _exit ends this process and returns to nothing.
            unsafe { libc::_exit(127) }
        }
        ForkResult::Parent { child } => {
            drop(told);
            let mut cause = String::new();
            failed.read_to_string(&mut cause).map_err(|error| format!("waiting for it: {error}"))?;
            if cause.is_empty() { Ok(child) } else { Err(cause) }
        }
    }
}

/// Only returns with the reason why it could not.
fn become_program(
    path: &CString,
    args: &[CString],
    env: &[CString],
    program: &Program,
    log: &File,
) -> String {
    let steps = || -> Result<(), String> {
        setsid().map_err(|error| format!("setsid: {error}"))?;
        // Apart from init's and CRIU's, or CRIU would take what is in it for somebody else's.
        unshare(CloneFlags::CLONE_NEWIPC)
            .map_err(|error| format!("making a namespace for System V objects: {error}"))?;
        // Opened here: CRIU cannot name a file of the mount namespace that init came from.
        let null = File::open("/dev/null").map_err(|error| format!("opening /dev/null: {error}"))?;
        for (fd, to) in [(null.as_raw_fd(), 0), (log.as_raw_fd(), 1), (log.as_raw_fd(), 2)] {
            // SAFETY: dup2 on descriptors that this process holds.
            if unsafe { libc::dup2(fd, to) } < 0 {
                return Err(format!("opening descriptor {to}: {}", io::Error::last_os_error()));
            }
        }
        let cwd = &program.cwd;
        nix::unistd::chdir(&**cwd).map_err(|error| format!("its directory {}: {error}", cwd.display()))?;
        for signal in 1..=64 {
            // SAFETY: resetting a disposition touches no memory; those that cannot be reset refuse.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        let none = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&none), None)
            .map_err(|error| format!("signals: {error}"))?;
        withhold(&program.allowed)
            .map_err(|error| format!("withholding what cannot be checkpointed: {error}"))
    };
    if let Err(cause) = steps() {
        return cause;
    }
    match execve(path, args, env) {
        Err(error) => format!("{}: {error}", path.to_string_lossy()),
        Ok(never) => match never {},
    }
}

fn find(name: &OsStr, env: &[(OsString, OsString)], cwd: &Path) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(name.into());
    }
    let path = env.iter().find(|(key, _)| key == "PATH").map(|(_, value)| value.as_os_str());
    std::env::split_paths(path.unwrap_or("/usr/local/bin:/usr/bin:/bin".as_ref()))
        .map(|dir| cwd.join(dir).join(name))
        .find(|file| {
            fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_looked_for_in_the_given_path_only() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tool");
        fs::write(&file, "").unwrap();
        let env = [("PATH".into(), dir.path().as_os_str().to_owned())];
        assert_eq!(find("tool".as_ref(), &env, "/".as_ref()), None, "it is not executable");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find("tool".as_ref(), &env, "/".as_ref()), Some(file.clone()));
        assert_eq!(find("sh".as_ref(), &env, "/".as_ref()), None);
        assert!(find("sh".as_ref(), &[], "/".as_ref()).is_some());
        assert_eq!(find("./tool".as_ref(), &env, "/".as_ref()), Some("./tool".into()));
    }
}
