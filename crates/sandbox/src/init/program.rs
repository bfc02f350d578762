//! Starting the program: a session leader with a high pid, its outputs in pipes that init empties into the log, or all of
//! its standard files a terminal that controls it.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::unistd::{ForkResult, Gid, Pid, Uid, execve, fork, setgroups, setresgid, setresuid, setsid};

use rekindle_protocol::terminal::WindowSize;

use super::mounts::{INDEX_PATH, LOG_PATH};
use crate::log_index::Stream;
use crate::message::{NotStarted, Program, User};
use crate::outputs::Output;
use crate::terminal::{self, Terminal};
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

/// The sandbox's log.
pub fn open_log() -> io::Result<File> {
    OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(LOG_PATH)
}

/// What says when it was written, and from which output; none where that cannot be.
pub fn open_index() -> Option<File> {
    OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(INDEX_PATH).ok()
}

/// A program that runs, and our ends of what it reads and writes.
pub struct Started {
    pub program: Pid,
    pub outputs: Vec<Output>,
    pub terminal: Option<Terminal>,
}

/// What a program has for its standard input, output and error.
enum Standard<'a> {
    Files { input: Option<&'a OwnedFd>, outputs: [OwnedFd; 2] },
    Terminal(&'a Terminal),
}

/// Starts it. What comes along is the socket of who uses its terminal, or a pipe for its input.
pub fn start(
    program: &Program,
    terminal: Option<WindowSize>,
    comes: Option<OwnedFd>,
) -> Result<Started, NotStarted> {
    let name = program.args.first().ok_or("its command is empty".to_owned())?;
    check_directory(Path::new(&program.cwd))?;
    let path = find(name, &program.env, Path::new(&program.cwd))?;
    let text = |bytes: &[u8]| {
        CString::new(bytes).map_err(|_| "an argument or variable holds a zero byte".to_owned())
    };
    let path = text(path.as_os_str().as_bytes())?;
    let args = program.args.iter().map(|arg| text(arg.as_bytes())).collect::<Result<Vec<_>, _>>()?;
    let env = program.env.iter().map(|(key, value)| text(&[key.as_bytes(), b"=", value.as_bytes()].concat()));
    let env = env.collect::<Result<Vec<_>, _>>()?;
    let mut outputs = Vec::new();
    let mut terminal = terminal
        .map(Terminal::make)
        .transpose()
        .map_err(|error| format!("making a terminal for it: {error}"))?;
    let standard = match &terminal {
        Some(terminal) => {
            if let Some(user) = &program.user {
                terminal.give_to(user.uid).map_err(|error| format!("giving it its terminal: {error}"))?;
            }
            Standard::Terminal(terminal)
        }
        None => {
            let mut make = |stream| {
                let (ours, theirs) = Output::make(stream)?;
                outputs.push(ours);
                Ok(theirs)
            };
            let made = make(Stream::Stdout).and_then(|stdout| Ok([stdout, make(Stream::Stderr)?]));
            let made = made.map_err(|error: io::Error| format!("making a pipe for its output: {error}"))?;
            Standard::Files { input: comes.as_ref(), outputs: made }
        }
    };
    let (mut failed, told) = io::pipe().map_err(|error| format!("making a pipe: {error}"))?;
    set_last_pid(FIRST_PID - 1).map_err(|error| format!("choosing its pid: {error}"))?;
    // SAFETY: this process has one thread.
    match unsafe { fork() }.map_err(|error| format!("fork: {error}"))? {
        ForkResult::Child => {
            let why = become_program(&path, &args, &env, program, &standard);
            // Nobody else can be told.
            let _ = serde_json::to_writer(&told, &why);
            // SAFETY: _exit ends this process and returns to nothing.
            unsafe { libc::_exit(127) }
        }
        ForkResult::Parent { child } => {
            drop((told, standard));
            let mut why = String::new();
            failed.read_to_string(&mut why).map_err(|error| format!("waiting for it: {error}"))?;
            match serde_json::from_str(&why) {
                _ if why.is_empty() => {
                    if let Some(terminal) = &mut terminal {
                        comes.into_iter().for_each(|user| terminal.join(user));
                    }
                    Ok(Started { program: child, outputs, terminal })
                }
                Ok(why) => Err(why),
                Err(_) => Err(why.into()),
            }
        }
    }
}

/// Only returns with the reason why it could not.
fn become_program(
    path: &CString,
    args: &[CString],
    env: &[CString],
    program: &Program,
    standard: &Standard<'_>,
) -> NotStarted {
    let steps = || -> Result<(), String> {
        setsid().map_err(|error| format!("setsid: {error}"))?;
        // Apart from init's and CRIU's, or CRIU would take what is in it for somebody else's.
        unshare(CloneFlags::CLONE_NEWIPC)
            .map_err(|error| format!("making a namespace for System V objects: {error}"))?;
        // Opened here: CRIU cannot name a file of the mount namespace that init came from.
        let null = File::open("/dev/null").map_err(|error| format!("opening /dev/null: {error}"))?;
        let files = match standard {
            Standard::Files { input, outputs: [stdout, stderr] } => {
                [input.map_or(null.as_raw_fd(), AsRawFd::as_raw_fd), stdout.as_raw_fd(), stderr.as_raw_fd()]
            }
            Standard::Terminal(terminal) => {
                let slave = terminal.slave();
                terminal::take_control(slave)
                    .map_err(|error| format!("making the terminal its own: {error}"))?;
                [slave.as_raw_fd(); 3]
            }
        };
        for (fd, to) in files.into_iter().zip(0..) {
            // SAFETY: dup2 on descriptors that this process holds.
            if unsafe { libc::dup2(fd, to) } < 0 {
                return Err(format!("opening descriptor {to}: {}", io::Error::last_os_error()));
            }
        }
        let cwd = &program.cwd;
        nix::unistd::chdir(&**cwd).map_err(|error| format!("its directory {}: {error}", cwd.display()))?;
        reset_signals();
        let none = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&none), None)
            .map_err(|error| format!("signals: {error}"))?;
        withhold(&program.allowed)
            .map_err(|error| format!("withholding what cannot be checkpointed: {error}"))?;
        program.user.as_ref().map_or(Ok(()), become_user)
    };
    if let Err(cause) = steps() {
        return cause.into();
    }
    match execve(path, args, env) {
        Err(error) => not_executed(Path::new(OsStr::from_bytes(path.as_bytes())), error.into()),
        Ok(never) => match never {},
    }
}

fn become_user(user: &User) -> Result<(), String> {
    let named = |error: nix::Error| format!("becoming user {}: {error}", user.uid);
    let groups: Vec<_> = user.groups.iter().map(|group| Gid::from_raw(*group)).collect();
    setgroups(&groups).map_err(named)?;
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    setresgid(gid, gid, gid).map_err(named)?;
    setresuid(uid, uid, uid).map_err(named)
}

/// As every program expects them.
pub fn reset_signals() {
    for signal in 1..=64 {
        // SAFETY: resetting a disposition touches no memory; those that cannot be reset refuse.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

pub fn check_directory(cwd: &Path) -> Result<(), NotStarted> {
    let found = fs::metadata(cwd);
    let why = match found {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => "is no directory".to_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => "does not exist".to_owned(),
        Err(error) => format!("cannot be entered: {error}"),
    };
    Err(format!("its working directory {} {why}; start it from one that is there", cwd.display()).into())
}

pub fn not_executed(path: &Path, error: io::Error) -> NotStarted {
    let path = path.display();
    match error.raw_os_error() {
        Some(libc::ENOENT) => not_found(format!(
            "what {path} needs to run, the interpreter in its first line or its loader, does not exist"
        )),
        Some(libc::ENOEXEC) => not_executable(format!(
            "{path} is no program for this machine; a script needs a first line such as #!/bin/sh"
        )),
        _ => not_executable(format!("{path} cannot be executed: {error}")),
    }
}

fn not_found(cause: String) -> NotStarted {
    NotStarted { cause, shell_code: Some(127) }
}

fn not_executable(cause: String) -> NotStarted {
    NotStarted { cause, shell_code: Some(126) }
}

/// The file of a program: itself if it has a slash, else the first of this name in `PATH` that can be executed.
pub fn find(name: &OsStr, env: &[(OsString, OsString)], cwd: &Path) -> Result<PathBuf, NotStarted> {
    if name.as_bytes().contains(&b'/') {
        return check_program(cwd.join(name)).map(|_| name.into());
    }
    let path = env.iter().find(|(key, _)| key == "PATH").map(|(_, value)| value.as_os_str());
    let path = path.unwrap_or("/usr/local/bin:/usr/bin:/bin".as_ref());
    let mut refused = None;
    for directory in std::env::split_paths(path) {
        match check_program(cwd.join(directory).join(name)) {
            Ok(found) => return Ok(found),
            // What is there and cannot be executed is told of if nothing else is found.
            Err(why) if why.shell_code == Some(126) => refused = refused.or(Some(why)),
            Err(_) => {}
        }
    }
    let shown = name.display();
    Err(refused
        .unwrap_or_else(|| not_found(format!("there is no program {shown} in PATH ({})", path.display()))))
}

fn check_program(file: PathBuf) -> Result<PathBuf, NotStarted> {
    let shown = file.display();
    match fs::metadata(&file) {
        Ok(found) if found.is_dir() => {
            Err(not_executable(format!("{shown} is a directory, and not a program")))
        }
        Ok(found) if found.permissions().mode() & 0o111 == 0 => {
            Err(not_executable(format!("{shown} is not executable; `chmod +x` makes it so")))
        }
        Ok(_) => Ok(file),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => {
            Err(not_found(format!("there is no program {shown}")))
        }
        Err(error) => Err(not_executable(format!("{shown} cannot be executed: {error}"))),
    }
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
        let code = |name: &str, env: &[_]| find(name.as_ref(), env, "/".as_ref()).unwrap_err().shell_code;
        assert_eq!(code("tool", &env), Some(126), "it is not executable");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find("tool".as_ref(), &env, "/".as_ref()), Ok(file.clone()));
        assert_eq!(code("sh", &env), Some(127));
        assert!(find("sh".as_ref(), &[], "/".as_ref()).is_ok());
        assert_eq!(find("./tool".as_ref(), &env, dir.path()), Ok("./tool".into()));
        assert_eq!(code("./tool", &env), Some(127));
        assert_eq!(code(dir.path().to_str().unwrap(), &env), Some(126));
    }
}
