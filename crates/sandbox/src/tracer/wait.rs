//! What becomes of threads that are traced.

use std::io;
use std::time::Duration;

use super::TracerState;
use super::calls::{Answer, Call, Memory};
use super::seize::Ahead;
use super::tracee::Stop;
use crate::process::{is_zombie, parent, status_field};

/// A wait is looked at again so often where no signal tells of its end.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

impl TracerState {
    pub(super) fn wait(&mut self, call: &Call) -> Option<Answer> {
        let [thread, status_at, options, usage_at, ..] = call.words;
        let (thread, options) = (thread as i32, options as i32);
        let is_any = thread == -1;
        let known = self.tracees.iter().filter(|(_, tracee)| tracee.ahead != Ahead::Seized);
        let chosen: Vec<i32> =
            known.map(|(known, _)| *known).filter(|&known| is_any || known == thread).collect();
        // Of any, it means children of its own if it leaves out threads.
        if chosen.is_empty() || (is_any && options & libc::__WALL == 0) {
            return Some(Answer::Kernel);
        }
        let told = |status: i32| {
            let memory = Memory(call.pid);
            let status = (status_at != 0).then(|| memory.write(status_at, &status.to_ne_bytes()));
            let usage = (usage_at != 0).then(|| memory.write(usage_at, &[0; size_of::<libc::rusage>()]));
            [status, usage].into_iter().flatten().collect::<io::Result<()>>()
        };
        loop {
            for &thread in &chosen {
                let ended = self.tracees.get(&thread).and_then(|tracee| tracee.ended);
                match ended.map_or_else(|| look(thread), |status| Ok(Some(status))) {
                    Ok(None) => {}
                    Ok(Some(status)) => {
                        self.note(thread, status);
                        return Some(
                            told(status).map_or_else(Answer::from, |()| Answer::Value(thread.into())),
                        );
                    }
                    Err(error) if is_any => {
                        self.tracees.remove(&thread);
                        log::debug!("waiting for thread {thread}: {error}");
                    }
                    Err(error) => return Some(error.into()),
                }
            }
            if options & libc::WNOHANG != 0 {
                return Some(Answer::Value(0));
            }
            if !self.listener.waits(call) {
                return None;
            }
            if !until_told() {
                self.note_ends();
                if is_signalled(call.pid) {
                    return Some(Answer::Error(libc::EINTR));
                }
            }
        }
    }

    /// Takes note of the ends of all that are traced. The kernel shows the end of a process once those of its threads were
    /// taken note of, and that of the first of a pid namespace once those of all others in it were.
    fn note_ends(&mut self) {
        for (&thread, tracee) in &mut self.tracees {
            tracee.ended = tracee.ended.or_else(|| ended(thread));
        }
    }
}

/// Whether a process has a signal to take by a handler of its own.
fn is_signalled(pid: i32) -> bool {
    let set = |name| status_field(pid, name).and_then(|set| u64::from_str_radix(&set, 16).ok()).unwrap_or(0);
    (set("SigPnd") | set("ShdPnd")) & set("SigCgt") & !set("SigBlk") != 0
}

/// What is known of a thread now, without waiting: the status that `wait4` gives. The end of a child of ours stays to be
/// taken note of by whoever has started it.
pub fn look(thread: i32) -> io::Result<Option<i32>> {
    let any = libc::WEXITED | libc::WSTOPPED | libc::WNOHANG;
    let Some(status) = wait(thread, any | libc::WNOWAIT)? else { return Ok(None) };
    if !libc::WIFSTOPPED(status) && is_child(thread) {
        return Ok(Some(status));
    }
    wait(thread, any)
}

/// Threads of a child beside its first are nobody's but the tracer's to take note of.
fn is_child(thread: i32) -> bool {
    let is_first = status_field(thread, "Tgid").is_some_and(|process| process == thread.to_string());
    is_first && parent(thread) == Some(std::process::id() as i32)
}

/// The status of a thread that has ended, which is taken note of by this but for a child of ours. Stops, of which the kernel
/// tells whatever is asked for, stay to be told of.
pub fn ended(thread: i32) -> Option<i32> {
    let known = wait(thread, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT).ok().flatten();
    let status = known.filter(|status| !libc::WIFSTOPPED(*status))?;
    if !is_child(thread) {
        let _ = wait(thread, libc::WEXITED | libc::WNOHANG);
    }
    Some(status)
}

/// Waits until a thread stands, beside all that are traced; none once it has ended.
pub fn stopped(thread: i32, all: &[i32]) -> Option<Stop> {
    loop {
        match look(thread) {
            Ok(Some(status)) if libc::WIFSTOPPED(status) => return Some(Stop::read(status)),
            // The kernel tells of the first thread's end after that of the others.
            Ok(None) if !is_zombie(thread) => {
                // The first process of a pid namespace ends after all others of it, once their ends were taken note of.
                if !until_told() {
                    all.iter().for_each(|&other| {
                        ended(other);
                    });
                }
            }
            _ => return None,
        };
    }
}

/// Until a child or a thread that is traced has something to tell, or a moment has passed: false then.
pub fn until_told() -> bool {
    let moment = libc::timespec { tv_sec: 0, tv_nsec: LOOK_AGAIN.as_nanos() as libc::c_long };
    let mut told = nix::sys::signal::SigSet::empty();
    told.add(nix::sys::signal::Signal::SIGCHLD);
    // SAFETY: both structures are ours and are only read; nothing is asked back.
    unsafe { libc::sigtimedwait(told.as_ref(), std::ptr::null_mut(), &raw const moment) > 0 }
}

fn wait(thread: i32, flags: i32) -> io::Result<Option<i32>> {
    // SAFETY: zero is a value of it, and the kernel fills it in.
    let mut told: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::__WALL | flags;
    // SAFETY: what is filled in is ours.
    if unsafe { libc::waitid(libc::P_PID, thread as libc::id_t, &raw mut told, flags) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: waitid has filled in what belongs to SIGCHLD, or nothing, which reads as zeros.
    let (pid, value) = unsafe { (told.si_pid(), told.si_status()) };
    Ok((pid != 0).then_some(match told.si_code {
        libc::CLD_EXITED => (value & 0xff) << 8,
        libc::CLD_KILLED => value & 0x7f,
        libc::CLD_DUMPED => (value & 0x7f) | 0x80,
        _ => (value << 8) | 0x7f,
    }))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::sync::mpsc;

    use super::*;
    use crate::process::{Handle, children};
    use crate::tracer::request::ptrace;

    #[test]
    fn a_stop_is_no_end_and_stays_to_be_told_of() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id() as i32;
        std::thread::spawn(move || {
            ptrace(libc::PTRACE_SEIZE, pid, 0, 0).unwrap();
            ptrace(libc::PTRACE_INTERRUPT, pid, 0, 0).unwrap();
            while wait(pid, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT).unwrap().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(ended(pid), None);
            assert_eq!(look(pid).unwrap().map(Stop::read), Some(Stop::Event));
        })
        .join()
        .unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_end_of_the_first_process_of_a_pid_namespace_is_seen_though_another_of_it_is_traced() {
        let code = "import ctypes, os, time\n\
            ctypes.CDLL(None).unshare(0x20000000)\n\
            first = os.fork()\n\
            if first: print(first, flush=True)\n\
            elif os.fork(): pass\n\
            time.sleep(1000)\n";
        let mut above = Command::new("python3").args(["-c", code]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(above.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let first: i32 = line.trim().parse().unwrap();
        let mut below = Vec::new();
        while below.is_empty() {
            below = children(first);
        }
        let all = [first, below[0]];
        let (told, tell) = mpsc::channel();
        std::thread::spawn(move || {
            let mut signals = nix::sys::signal::SigSet::empty();
            signals.add(nix::sys::signal::Signal::SIGCHLD);
            signals.thread_block().unwrap();
            for pid in all {
                ptrace(libc::PTRACE_SEIZE, pid, 0, 0).unwrap();
            }
            Handle::open(first).unwrap().signal(libc::SIGKILL).unwrap();
            told.send(stopped(first, &all)).unwrap();
        });
        assert_eq!(tell.recv_timeout(Duration::from_secs(60)), Ok(None));
        above.kill().unwrap();
        above.wait().unwrap();
    }
}
