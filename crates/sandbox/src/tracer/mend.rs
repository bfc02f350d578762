//! Gives a program back what a CRIU that has ended had put into it: its code, its memory, its descriptors, and what its
//! threads were about to do.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::general::{General, SYSCALL};
use super::request::{ptrace, set_mask};
use super::tracee::{Before, Shared, Stop, Tracee, descriptors, pending};
use super::{Mended, TracerState, wait};
use crate::ending::is_dying;
use crate::process::maps::{self, Area};

/// The names of the memory that holds CRIU's code.
const CODE: [&str; 2] = ["/memfd:CRIUMFD", "/dev/zero (deleted)"];
/// The signals that CRIU's code brings on itself.
const OWN: u64 = bit(libc::SIGTRAP) | bit(libc::SIGPIPE);
const ALL: u64 = u64::MAX;
/// `PTRACE_GET_SYSCALL_INFO`, and what it says of a thread that is about to enter one.
const GET_SYSCALL_INFO: u32 = 0x420e;
const ENTRY: u8 = 1;

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

impl TracerState {
    /// Lets go of processes in which CRIU has changed nothing. One that waits for its child to leave it its memory, as by
    /// vfork, comes to no stand before that child goes on.
    fn let_unchanged_go(&mut self) {
        let shared = &self.shared;
        self.tracees.retain(|&thread, tracee| {
            let is_changed = tracee.before.is_some() || shared.contains_key(&tracee.process);
            if !is_changed {
                // CRIU may not have been told yet of what it stands for.
                if let Ok(Some(status)) = wait::look(thread)
                    && libc::WIFSTOPPED(status)
                {
                    tracee.stop = Some(Stop::read(status));
                }
                let_go(thread, tracee);
            }
            is_changed
        });
    }

    /// Undoes what CRIU had changed in all that it held when it ended.
    pub(super) fn mend(&mut self) -> Mended {
        let mut mended = Mended::default();
        self.let_unchanged_go();
        // The first thread of a process that is ending is known to have ended once its others are.
        let mut all: Vec<i32> = self.tracees.keys().copied().collect();
        all.sort_by_key(|thread| self.tracees[thread].process == *thread);
        for &thread in &all {
            if !self.tracees.get_mut(&thread).is_some_and(|tracee| hold(thread, tracee, &all)) {
                self.tracees.remove(&thread);
            }
        }
        let mut fail = |what: &str, pid: i32, error: io::Error| {
            // One that was killed meanwhile needs nothing.
            if is_dying(pid) {
                return;
            }
            mended.failed.get_or_insert(format!(
                "{what} {pid} could not be given back what CRIU had changed: {error}"
            ));
        };
        for (&process, shared) in &self.shared {
            // The one that CRIU's code is run by first, or another if that has ended.
            let leader = self.tracees.contains_key(&process).then_some(process);
            let other =
                || self.tracees.iter().find(|(_, tracee)| tracee.process == process).map(|found| *found.0);
            let Some(thread) = leader.or_else(other) else { continue };
            mended.processes.push(process);
            if let Some(tracee) = self.tracees.get_mut(&thread) {
                if tracee.before.is_none() {
                    tracee.before = Before::take(thread).ok().map(Into::into);
                }
                if let Err(error) = mend_shared(thread, tracee, shared, &all) {
                    fail("process", process, error);
                }
            }
        }
        for (&thread, tracee) in &mut self.tracees {
            if let Err(error) = mend_thread(thread, tracee, &all) {
                fail("thread", thread, error);
            }
        }
        mended
    }
}

/// Brings a thread, one of all that are traced, to a stand at which what it does next can be said; false if it has ended.
pub fn hold(thread: i32, tracee: &mut Tracee, all: &[i32]) -> bool {
    if tracee.stop == Some(Stop::Event) {
        return true;
    }
    // One that has ended is seen below.
    let _ = ptrace(libc::PTRACE_INTERRUPT, thread, 0, 0);
    let mut stop = tracee.stop;
    loop {
        if let Some(now) = stop {
            tracee.stop = Some(now);
            let signal = match now {
                Stop::Event => return true,
                Stop::Call => {
                    let _ = skip_call(thread);
                    0
                }
                // In CRIU's code only that brings signals. Others are the program's.
                Stop::Signal(_) if tracee.before.is_some() => 0,
                Stop::Signal(signal) => signal,
            };
            let _ = ptrace(libc::PTRACE_CONT, thread, 0, signal as u64);
        }
        match wait::stopped(thread, all) {
            Some(next) => stop = Some(next),
            None => return false,
        }
    }
}

/// A system call that has not begun is not made.
fn skip_call(thread: i32) -> io::Result<()> {
    let mut about = [0u8; 88];
    let known = ptrace(GET_SYSCALL_INFO, thread, about.len() as u64, about.as_mut_ptr() as u64);
    if known.is_err() || about[0] != ENTRY {
        return Ok(());
    }
    let mut general = General::of(thread)?;
    general.leave_call();
    general.set(thread)
}

/// Undoes what CRIU did to what a process's threads share, by way of one of them, which stands interrupted and is given
/// back its own registers afterwards.
pub fn mend_shared(thread: i32, tracee: &mut Tracee, shared: &Shared, all: &[i32]) -> io::Result<()> {
    for (&at, &word) in &shared.words {
        ptrace(libc::PTRACE_POKEDATA, thread, at, word)?;
    }
    let process = tracee.process;
    let mut calls: Vec<[u64; 4]> = Vec::new();
    let code = |area: &&Area| {
        CODE.iter().any(|name| area.name.starts_with(name.as_bytes())) && !is_known(area, shared)
    };
    let now = maps::if_there(process);
    calls.extend(
        now.iter()
            .filter(code)
            .map(|area| [libc::SYS_munmap as u64, area.span.start, area.span.end - area.span.start, 0]),
    );
    calls.extend(changed(&shared.areas, &now).map(|area| {
        let length = area.span.end - area.span.start;
        [libc::SYS_mprotect as u64, area.span.start, length, area.protection as u64]
    }));
    let more = descriptors(process).difference(&shared.descriptors).copied().collect::<Vec<_>>();
    calls.extend(more.into_iter().map(|fd| [libc::SYS_close as u64, fd as u64, 0, 0]));
    if calls.is_empty() {
        return Ok(());
    }
    let instruction = call_instruction(process, &now)?;
    let _ = ptrace(libc::PTRACE_SETOPTIONS, thread, 0, tracee.options | libc::PTRACE_O_TRACESYSGOOD as u64);
    set_mask(thread, ALL)?;
    for call in calls {
        make_call(thread, instruction, call, all)?;
    }
    tracee.stop = Some(Stop::Call);
    if hold(thread, tracee, all) { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
}

fn is_known(area: &Area, shared: &Shared) -> bool {
    shared.areas.iter().any(|before| before.span == area.span && before.name == area.name)
}

/// Areas whose protection is another now.
fn changed<'a>(before: &'a [Area], now: &'a [Area]) -> impl Iterator<Item = &'a Area> {
    before.iter().filter(move |area| {
        let first = now.partition_point(|other| other.span.end <= area.span.start);
        let mut over = now[first..].iter().take_while(|other| other.span.start < area.span.end);
        over.any(|other| other.protection != area.protection)
    })
}

/// Where a process has the instruction of a system call: the kernel maps some into each.
pub fn call_instruction(process: i32, areas: &[Area]) -> io::Result<u64> {
    let missing = || io::Error::other(format!("process {process} has no vdso"));
    let vdso = areas.iter().find(|area| area.name == b"[vdso]").ok_or_else(missing)?;
    let mut bytes = vec![0; (vdso.span.end - vdso.span.start) as usize];
    File::open(format!("/proc/{process}/mem"))?.read_exact_at(&mut bytes, vdso.span.start)?;
    let at = bytes.windows(SYSCALL.len()).position(|bytes| bytes == SYSCALL).ok_or_else(missing)?;
    Ok(vdso.span.start + at as u64)
}

/// Has a thread, all signals of which are blocked, make a system call; it stands at the call's end then.
fn make_call(
    thread: i32,
    instruction: u64,
    [number, first, second, third]: [u64; 4],
    all: &[i32],
) -> io::Result<()> {
    let mut general = General::of(thread)?;
    general.enter(instruction, number as i64, [first, second, third, 0]);
    general.set(thread)?;
    for _ in ["its beginning", "its end"] {
        loop {
            ptrace(libc::PTRACE_SYSCALL, thread, 0, 0)?;
            match wait::stopped(thread, all) {
                Some(Stop::Call) => break,
                Some(_) => {}
                None => return Err(io::Error::from_raw_os_error(libc::ESRCH)),
            }
        }
    }
    General::of(thread)?.result().map(drop)
}

/// A thread that CRIU's code ran in leaves it, where it is about to do that by the return from a signal. The kernel would
/// forget the call in which it was interrupted. What else the return does is done when it is given back what it had.
pub fn stay_in_call(thread: i32) -> io::Result<()> {
    match General::of(thread)?.call() {
        Some(libc::SYS_rt_sigreturn) => skip_call(thread),
        _ => Ok(()),
    }
}

/// Gives a thread, which stands interrupted, back what it was about to do.
pub fn mend_thread(thread: i32, tracee: &mut Tracee, all: &[i32]) -> io::Result<()> {
    let Some(before) = tracee.before.clone() else { return Ok(()) };
    let left = pending(thread) & OWN & !before.pending;
    for signal in [libc::SIGTRAP, libc::SIGPIPE].into_iter().filter(|signal| left & bit(*signal) != 0) {
        set_mask(thread, ALL & !bit(signal))?;
        ptrace(libc::PTRACE_CONT, thread, 0, 0)?;
        tracee.stop = wait::stopped(thread, all);
        if tracee.stop.is_none() || !hold(thread, tracee, all) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
    }
    before.put_back(thread)
}

/// Lets go of a thread that stands.
pub fn let_go(thread: i32, tracee: &mut Tracee) {
    tracee.gets_back_processors(thread);
    let signal = match tracee.stop {
        Some(Stop::Signal(signal)) if tracee.before.is_none() => signal,
        _ => 0,
    };
    // One that has ended needs it no more.
    let _ = ptrace(libc::PTRACE_DETACH, thread, 0, signal as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(start: u64, end: u64, protection: i32) -> Area {
        Area { span: start..end, protection, is_shared: false, offset: 0, inode: 0, name: Vec::new() }
    }

    #[test]
    fn areas_whose_protection_was_changed_are_found_whatever_was_merged() {
        let before = [area(0, 10, 1), area(10, 20, 0), area(30, 40, 3)];
        assert_eq!(changed(&before, &before).count(), 0);
        let now = [area(0, 20, 1), area(30, 40, 3)];
        assert_eq!(changed(&before, &now).collect::<Vec<_>>(), [&before[1]]);
        let split = [area(0, 5, 1), area(5, 10, 1), area(10, 20, 0), area(30, 40, 3)];
        assert_eq!(changed(&before, &split).count(), 0);
    }
}
