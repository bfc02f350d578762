//! Process A: makes the namespaces, starts init in them, waits for it and passes signals on.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::exit;

use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, setsid};

use super::findings::Cache;
use super::mounts::HostPaths;
use super::{INIT_LOG, commands};
use crate::log_index;
use crate::message::{Reply, Setup};
use crate::wire::Channel;

pub fn main(setup: RawFd) -> ! {
    let (setup, control, network) = match take_setup(setup) {
        Ok(taken) => taken,
        Err(error) => {
            eprintln!("sandbox-init: the set-up on descriptor {setup} cannot be read: {error}");
            exit(1)
        }
    };
    match start(&setup, &control, network) {
        Ok(init) => {
            drop(control);
            wait(init)
        }
        Err(cause) => {
            // The daemon may be gone by now; the exit status says it too.
            let _ = control.send(&Reply::Failed(cause), &[]);
            exit(1)
        }
    }
}

fn take_setup(fd: RawFd) -> io::Result<(Setup, Channel, Option<OwnedFd>)> {
    // SAFETY: the daemon made this descriptor for us and nothing else in this process knows it.
    let mut file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    drop(file);
    let setup: Setup = serde_json::from_str(&text)?;
    // SAFETY: as above: named in the set-up, and taken once.
    let control = unsafe { OwnedFd::from_raw_fd(setup.control) };
    // SAFETY: as above.
    let network = setup.network.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    close_all_but([Some(setup.control), setup.network].into_iter().flatten())?;
    nix::fcntl::fcntl(&control, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC))?;
    Ok((setup, Channel::new(UnixStream::from(control)), network))
}

/// Closes what this process was given by accident: it would end up in the program and in its dumps.
fn close_all_but(kept: impl Iterator<Item = RawFd>) -> io::Result<()> {
    let mut kept: Vec<u32> = kept.map(RawFd::cast_unsigned).collect();
    kept.sort_unstable();
    let mut first = 3;
    for end in kept.into_iter().map(Some).chain([None]) {
        let last = end.map_or(u32::MAX, |end| end.saturating_sub(1));
        // SAFETY: no descriptor in this range has an owner in this process, which has only just begun.
        if first <= last && unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
        first = end.map_or(u32::MAX, |end| end.saturating_add(1));
    }
    Ok(())
}

fn start(setup: &Setup, control: &Channel, network: Option<OwnedFd>) -> Result<Pid, String> {
    let run_dir = PathBuf::from(&setup.run_dir);
    let say = |what: &str| {
        let what = what.to_owned();
        move |error: io::Error| format!("{what}: {error}")
    };
    // Signals meant for the daemon's terminal or group are not meant for the sandbox.
    setsid().map_err(|error| format!("setsid: {error}"))?;
    signals().thread_block().map_err(|error| format!("blocking signals: {error}"))?;
    let append = |path: PathBuf, what: &str| {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&path);
        file.map_err(say(&format!("opening the {what} {}", path.display())))
    };
    let words = append(run_dir.join(INIT_LOG), "init's log")?;
    let null = File::open("/dev/null").map_err(say("opening /dev/null"))?;
    for (from, to) in [(null.as_raw_fd(), 0), (words.as_raw_fd(), 1), (words.as_raw_fd(), 2)] {
        // SAFETY: dup2 on descriptors that we hold; 0, 1 and 2 have no Rust owner.
        if unsafe { libc::dup2(from, to) } < 0 {
            return Err(format!("replacing descriptor {to}: {}", io::Error::last_os_error()));
        }
    }
    unshare(CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS)
        .map_err(|error| format!("making namespaces: {error}; this needs CAP_SYS_ADMIN"))?;
    for group in &setup.groups {
        let group = Path::new(group);
        fs::write(group, "0").map_err(say(&format!("coming into {}", group.display())))?;
    }
    if let Some(network) = network {
        setns(network, CloneFlags::CLONE_NEWNET)
            .map_err(|error| format!("entering its network: {error}; this needs CAP_SYS_ADMIN"))?;
    }
    // Opened from here on, so that they belong to the new namespace and can be mounted in it.
    let directory = |path: &Path, what: &str| {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(path);
        file.map_err(say(&format!("opening the {what} {}", path.display())))
    };
    let run = directory(&run_dir, "run directory")?;
    let pages = setup.pages.as_ref().map(|path| directory(path.as_ref(), "page files' directory"));
    let pages = pages.transpose()?;
    let log = setup.log.as_ref().map(|path| append(path.into(), "log")).transpose()?;
    let index = setup.log.as_ref().map(|path| append(log_index::beside(path.as_ref()), "log's index"));
    let index = index.transpose()?;
    // SAFETY: this process has one thread.
    match unsafe { fork() }.map_err(|error| format!("starting init: {error}"))? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            let cache = setup.criu_cache.as_ref().and_then(|path| Cache::open(path.as_ref()));
            let places = HostPaths {
                run: run.as_fd(),
                log: log.as_ref().map(File::as_fd),
                index: index.as_ref().map(File::as_fd),
                cache: cache.as_ref(),
                pages: pages.as_ref().map(File::as_fd),
                mounts: &setup.mounts,
                log_max: setup.log_max,
            };
            commands::main(&places, control)
        }
    }
}

/// The signals that both processes take up with `sigwait`, never by a handler.
pub fn signals() -> SigSet {
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGCHLD].into_iter().collect()
}

fn wait(init: Pid) -> ! {
    // A directory or file held here would keep a file system of the daemon's busy.
    let _ = nix::unistd::chdir("/");
    loop {
        match signals().wait() {
            Ok(Signal::SIGCHLD) => match waitpid(init, Some(nix::sys::wait::WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(_, code)) => exit(code),
                Ok(WaitStatus::Signaled(_, signal, _)) => exit(128 + signal as i32),
                Ok(_) | Err(nix::Error::EINTR) => {}
                Err(_) => exit(1),
            },
            Ok(signal) => {
                // Init may just have ended; SIGCHLD tells next.
                let _ = kill(init, signal);
            }
            Err(_) => {}
        }
    }
}
