//! The helper, which enters the sandbox, and the warden, which lives in it.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, BufWriter, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::exit;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, execve, fork, setsid};

use super::{Ended, GuestTask, Setup, Signal, copy, take};
use crate::init::program::{check_directory, find, not_executed, reset_signals};
use crate::message::NotStarted;
use crate::process::{self, Handle};
use crate::wire::Channel;

/// Ends itself with all that the guest has become; what a signal does that ends it.
const KILLED: i32 = 128 + libc::SIGKILL;

/// What the helper sends the warden when nobody wants the guest any more.
fn end_all() -> i32 {
    libc::SIGRTMIN() + 1
}

/// Becomes a guest's helper; `setup` is a descriptor that [`crate::Sandbox::exec`] passed to this program.
///
/// To be called before the program starts any thread.
pub fn exec_main(setup: RawFd) -> ! {
    let taken = io::read_to_string(File::from(take(setup))).and_then(|text| Ok(serde_json::from_str(&text)?));
    let setup: Setup = match taken {
        Ok(setup) => setup,
        Err(error) => {
            eprintln!("sandbox-exec: the set-up on descriptor {setup} cannot be read: {error}");
            exit(1)
        }
    };
    let control = Channel::new(UnixStream::from(take(setup.control)));
    let ended = enter(setup, &control).unwrap_or_else(|cause| Ended::Failed(cause.into()));
    // A daemon that is gone need not be told.
    let _ = control.send(&ended, &[]);
    exit(0)
}

fn enter(setup: Setup, control: &Channel) -> Result<Ended, String> {
    let Setup { program, pid, stdio, work, .. } = setup;
    let program = take(program);
    let stdio = stdio.map(take);
    // SAFETY: marks descriptors; none of them is closed.
    if unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) } < 0 {
        return Err(format!("keeping descriptors back: {}", io::Error::last_os_error()));
    }
    let spaces = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWNET;
    setns(program.as_fd(), spaces).map_err(|error| match error {
        nix::Error::ESRCH => "the program has ended".to_owned(),
        error => format!("entering the sandbox: {error}"),
    })?;
    let (mut failed, told) = io::pipe().map_err(|error| format!("making a pipe: {error}"))?;
    // SAFETY: this process has one thread.
    let warden = match unsafe { fork() }.map_err(|error| format!("fork: {error}"))? {
        ForkResult::Child => {
            drop(failed);
            exit(watch_over(pid, &stdio, &work, told.into()))
        }
        ForkResult::Parent { child } => child,
    };
    drop((told, stdio));
    let code = attend(warden, control)?;
    let mut why = String::new();
    failed.read_to_string(&mut why).map_err(|error| format!("hearing of the guest: {error}"))?;
    Ok(match serde_json::from_str(&why) {
        Ok(why) => Ended::Failed(why),
        Err(_) => Ended::Code(code),
    })
}

/// Passes signals on until the warden has ended; its code.
fn attend(warden: Pid, control: &Channel) -> Result<i32, String> {
    let handle = Handle::open(warden.as_raw()).map_err(|error| format!("holding the guest: {error}"))?;
    let mut is_wanted = true;
    loop {
        let mut polled = vec![PollFd::new(handle.as_fd(), PollFlags::POLLIN)];
        if is_wanted {
            polled.push(PollFd::new(control.socket().as_fd(), PollFlags::POLLIN));
        }
        // One that was interrupted is made again.
        if poll(&mut polled, PollTimeout::NONE).is_err() {
            continue;
        }
        let is_ready = |at: usize| polled.get(at).and_then(PollFd::any).unwrap_or(false);
        if is_ready(0) {
            return match waitpid(warden, None) {
                Ok(WaitStatus::Exited(_, code)) => Ok(code),
                // The sandbox has ended with all that was in it.
                Ok(WaitStatus::Signaled(_, signal, _)) => Ok(128 + signal as i32),
                other => Err(format!("waiting for the guest: {other:?}")),
            };
        }
        if is_ready(1) {
            let signal = match control.recv::<Signal>() {
                Ok(Some((Signal(signal), _))) => signal,
                _ => {
                    is_wanted = false;
                    end_all()
                }
            };
            // One that has just ended needs none.
            let _ = handle.signal(signal);
        }
    }
}

/// The warden: starts what the guest is there for, and ends with it and with all that it has left behind.
fn watch_over(pid: i32, stdio: &[OwnedFd; 3], work: &GuestTask, told: OwnedFd) -> i32 {
    let told = File::from(told);
    let begun = adopt_orphans().and_then(|()| {
        SigSet::all().thread_block()?;
        // SAFETY: this process has one thread.
        Ok(unsafe { fork() }?)
    });
    let guest = match begun {
        Ok(ForkResult::Parent { child }) => child,
        Ok(ForkResult::Child) => {
            let why = be(pid, stdio, work);
            if let Some(why) = &why {
                // Nobody else can be told.
                let _ = serde_json::to_writer(&told, why);
            }
            exit(i32::from(why.is_some()))
        }
        Err(error) => {
            let _ = serde_json::to_writer(&told, &NotStarted::from(format!("starting it: {error}")));
            return 1;
        }
    };
    drop(told);
    let code = until_it_ends(guest);
    end_the_rest();
    code
}

/// What loses its parent here comes to this process, which ends when its parent does.
fn adopt_orphans() -> io::Result<()> {
    end_with_parent()?;
    // SAFETY: takes integers.
    nix::Error::result(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) })?;
    Ok(())
}

fn end_with_parent() -> io::Result<()> {
    // SAFETY: takes integers.
    nix::Error::result(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) })?;
    Ok(())
}

/// The code of the guest, to whose group signals are passed on.
fn until_it_ends(guest: Pid) -> i32 {
    loop {
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) if pid == guest => return code,
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == guest => return 128 + signal as i32,
                Ok(WaitStatus::StillAlive) => break,
                Err(nix::Error::ECHILD) => return KILLED,
                _ => {}
            }
        }
        let all = SigSet::all();
        // SAFETY: a whole set, borrowed for the call; nothing is asked of who has sent it.
        let signal = unsafe { libc::sigwaitinfo(all.as_ref(), std::ptr::null_mut()) };
        match signal {
            libc::SIGCHLD => {}
            signal if signal == end_all() => return KILLED,
            signal if signal > 0 => {
                // SAFETY: takes integers. A guest that has no group yet is no more than begun: it is asked itself.
                unsafe {
                    if libc::kill(-guest.as_raw(), signal) < 0 {
                        libc::kill(guest.as_raw(), signal);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Ends all that the guest has left, and the guest if it is there.
fn end_the_rest() {
    let own = std::process::id() as i32;
    loop {
        for pid in process::tree(own).into_iter().filter(|pid| *pid != own) {
            // SAFETY: takes integers. What has ended since is not reaped by anybody else: the number is still its own.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        match waitpid(None, None) {
            Err(nix::Error::ECHILD) => return,
            _ => continue,
        }
    }
}

/// Does the work, or becomes it; why it could not.
fn be(pid: i32, stdio: &[OwnedFd; 3], work: &GuestTask) -> Option<NotStarted> {
    begin(pid, stdio, work).err()
}

fn begin(pid: i32, stdio: &[OwnedFd; 3], work: &GuestTask) -> Result<(), NotStarted> {
    let told = |what: &str| {
        let what = what.to_owned();
        move |error: io::Error| NotStarted::from(format!("{what}: {error}"))
    };
    end_with_parent().map_err(told("binding it to its parent"))?;
    setsid().map_err(|error| told("setsid")(error.into()))?;
    for (to, from) in stdio.iter().enumerate() {
        // SAFETY: dup2 on descriptors that this process holds.
        if unsafe { libc::dup2(from.as_raw_fd(), to as RawFd) } < 0 {
            return Err(told("passing on its input and output")(io::Error::last_os_error()));
        }
    }
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)
        .map_err(|error| told("signals")(error.into()))?;
    match work {
        GuestTask::Command { args, env, cwd } => become_command(pid, args, env, cwd.as_deref()),
        GuestTask::Pack(path) => stdio[1]
            .try_clone()
            .and_then(|output| copy::pack(path, &mut BufWriter::new(File::from(output))))
            .map_err(|cause| NotStarted::from(cause.to_string())),
        GuestTask::Unpack(path) => stdio[0]
            .try_clone()
            .and_then(|input| copy::unpack(File::from(input), path))
            .map_err(|cause| NotStarted::from(cause.to_string())),
    }
}

/// Only returns with the reason why it could not.
fn become_command(
    pid: i32,
    args: &[OsString],
    env: &[(OsString, OsString)],
    cwd: Option<&OsStr>,
) -> Result<(), NotStarted> {
    let name = args.first().ok_or_else(|| NotStarted::from("its command is empty".to_owned()))?;
    let mut all = environment(pid).map_err(|error| format!("reading the program's environment: {error}"))?;
    all.retain(|(name, _)| !env.iter().any(|(other, _)| other == name));
    all.extend(env.iter().cloned());
    let cwd = match cwd {
        Some(cwd) => PathBuf::from(cwd),
        None => fs::read_link(format!("/proc/{pid}/cwd"))
            .map_err(|error| format!("looking for the program's working directory: {error}"))?,
    };
    check_directory(&cwd)?;
    nix::unistd::chdir(&cwd).map_err(|error| format!("its directory {}: {error}", cwd.display()))?;
    let path = find(name, &all, &cwd)?;
    let text = |bytes: &[u8]| {
        CString::new(bytes).map_err(|_| "an argument or variable holds a zero byte".to_owned())
    };
    let path = text(path.as_os_str().as_bytes())?;
    let args = args.iter().map(|arg| text(arg.as_bytes())).collect::<Result<Vec<_>, _>>()?;
    let env = all.iter().map(|(name, value)| text(&[name.as_bytes(), b"=", value.as_bytes()].concat()));
    let env = env.collect::<Result<Vec<_>, _>>()?;
    reset_signals();
    match execve(&path, &args, &env) {
        Err(error) => Err(not_executed(Path::new(OsStr::from_bytes(path.as_bytes())), error.into())),
        Ok(never) => match never {},
    }
}

/// What the program was started with.
fn environment(pid: i32) -> io::Result<Vec<(OsString, OsString)>> {
    let all = fs::read(format!("/proc/{pid}/environ"))?;
    let pair = |word: &[u8]| {
        let at = word.iter().position(|byte| *byte == b'=')?;
        let own = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        Some((own(&word[..at]), own(&word[at + 1..])))
    };
    Ok(all.split(|byte| *byte == 0).filter_map(pair).collect())
}
