//! Processes that end while others hold them.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use crate::pages::image::Entries;
use crate::process::{Handle, children, is_zombie, status_field, threads, tree};
use crate::proto::Message;
use crate::stat::Stat;

/// How soon what fails because a program ends is followed by that.
const PARTING: Duration = Duration::from_millis(250);
/// How long the memory of one that was killed may take to be given back.
const DEATH: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// The kernel's mark on a process that has begun to end.
const PF_EXITING: u64 = 4;
const SIGKILL_BIT: u64 = 1 << (libc::SIGKILL - 1);

/// CRIU's step at which a program is complete and does not run yet.
pub const AFTER_RESTORE: &str = "post-restore";
/// That at which it is about to.
pub const BEFORE_RESUME: &str = "pre-resume";

/// Ends processes that stand still. CRIU would do the same next, and waits until they are gone.
pub fn end_all(pids: impl Iterator<Item = i32>) {
    let handles: Vec<_> = pids.filter_map(|pid| Handle::open(pid).ok()).collect();
    std::thread::scope(|scope| {
        for handle in &handles {
            // What has ended by itself is no less gone.
            scope.spawn(|| handle.end().ok());
        }
    });
}

/// Whether a process has ended or cannot but end: it was killed, and its memory may still be given back, or somebody
/// who traces it has not been told yet. One whose first thread alone has ended goes on.
pub fn is_dying(pid: i32) -> bool {
    threads(pid).into_iter().all(is_dying_thread)
}

/// Whether a process's first thread has ended, and others go on.
pub fn lacks_first_thread(pid: i32) -> bool {
    is_zombie(pid) && !is_dying(pid)
}

fn is_dying_thread(thread: i32) -> bool {
    let is_killed = |field: &&str| {
        let set = status_field(thread, field).and_then(|set| u64::from_str_radix(&set, 16).ok());
        set.is_some_and(|set| set & SIGKILL_BIT != 0)
    };
    let flags = || Stat::of(thread).ok()?.field::<u64>(Stat::FLAGS);
    is_zombie(thread)
        || ["SigPnd", "ShdPnd"].iter().any(is_killed)
        || flags().is_none_or(|is| is & PF_EXITING != 0)
}

/// Whether a process has ended, as `has_ended` tells, or does so within a moment.
pub fn ends_soon(pid: i32, has_ended: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    loop {
        if has_ended() {
            return true;
        }
        let past = began.elapsed();
        if past >= DEATH || (past >= PARTING && !is_dying(pid)) {
            return false;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Watches whether CRIU waits for an end that it is never told of. The kernel shows a tracer the end of a process once
/// those of its other threads were asked for. CRIU traces them too, and asks for the process alone: if that is killed in
/// a moment in which CRIU waits for a word of it, CRIU waits for ever, and holds what else it traces.
///
/// Of a restore it has the program be a child of ours, beside it, and is never told of that one's end, nor of those of its
/// descendants, for each of which it waits at every stage. Once the program is complete it waits until each of them has
/// said that it can run.
#[derive(Debug)]
pub struct Watch {
    criu: i32,
    is_restore: bool,
    /// Who had ended when the image was taken, and is restored as that; without, descendants are not looked at.
    ended_before: Option<Vec<i32>>,
    /// Who lived when the program was complete, until it is about to run.
    complete: Vec<i32>,
    /// Whom it waited for in vain when it was looked at last.
    seen: Option<i32>,
}

impl Watch {
    /// How often to look.
    pub const EVERY: Duration = Duration::from_millis(200);

    pub fn of_dump(criu: i32) -> Self {
        Self { criu, is_restore: false, ended_before: None, complete: Vec::new(), seen: None }
    }

    pub fn of_restore(criu: i32) -> Self {
        Self { criu, is_restore: true, ended_before: None, complete: Vec::new(), seen: None }
    }

    /// The same with all that descend from the program, whose pids are those of the image in this directory.
    pub fn of_whole_restore(criu: i32, images: &Path) -> Self {
        Self { ended_before: Some(ended_in(images)), ..Self::of_restore(criu) }
    }

    /// CRIU has announced a step.
    pub fn note(&mut self, step: &str) {
        match step {
            AFTER_RESTORE if self.is_restore => {
                let all = self.programs().into_iter().flat_map(tree);
                self.complete = all.filter(|pid| !is_dying(*pid)).collect();
            }
            BEFORE_RESUME => self.complete.clear(),
            _ => {}
        }
    }

    /// Our children beside CRIU.
    fn programs(&self) -> Vec<i32> {
        let mut all = children(std::process::id() as i32);
        all.retain(|pid| *pid != self.criu);
        all
    }

    /// One that CRIU restores and that has ended.
    pub fn ended(&self) -> Option<i32> {
        let program = || {
            let programs = self.programs();
            let killed = programs.iter().copied().find(|pid| is_killed(*pid));
            killed.or_else(|| programs.into_iter().find_map(|program| self.killed_below(program)))
        };
        let of_complete = || self.complete.iter().copied().find(|pid| is_dying(*pid));
        self.is_restore.then(program).flatten().or_else(of_complete)
    }

    /// A descendant that was killed, and that nobody has taken note of.
    fn killed_below(&self, program: i32) -> Option<i32> {
        let before = self.ended_before.as_ref()?;
        let all = tree(program).into_iter().skip(1).filter(|pid| !before.contains(pid));
        all.into_iter().find(|pid| is_zombie(*pid) && exit_status(*pid) == Some(libc::SIGKILL))
    }

    /// The process that CRIU waits for in vain, once it has been so for a while.
    pub fn look(&mut self) -> Option<i32> {
        let call = fs::read_to_string(format!("/proc/{}/syscall", self.criu)).unwrap_or_default();
        let before = self.seen;
        let in_vain = waited_for(&call).filter(|&pid| is_zombie(pid) || waits_for_others(pid));
        // One that stands, stopped, has not looked yet.
        self.seen = in_vain.or_else(|| self.ended()).filter(|_| is_asleep(self.criu));
        self.seen.filter(|_| self.seen == before)
    }
}

/// Whether a process that ends waits for the ends of others: the first of a pid namespace does.
fn waits_for_others(pid: i32) -> bool {
    is_asleep(pid) && is_dying(pid)
}

fn is_asleep(pid: i32) -> bool {
    status_field(pid, "State").is_some_and(|state| state.starts_with('S'))
}

/// Whether a child of ours was ended by a signal, which is not taken note of by this.
fn is_killed(pid: i32) -> bool {
    let how = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
    matches!(waitid(Id::Pid(Pid::from_raw(pid)), how), Ok(WaitStatus::Signaled(..)))
}

/// How a process has ended, as `wait4` would tell it.
fn exit_status(pid: i32) -> Option<i32> {
    Stat::of(pid).ok()?.field(Stat::EXIT_CODE)
}

/// The processes of CRIU's images that had ended when those were written.
fn ended_in(images: &Path) -> Vec<i32> {
    const TASK: u64 = 3;
    const STATE: u64 = 1;
    const ENDED: [u64; 2] = [2, 6];
    let state = |path: &Path| {
        let core = Entries::read(path).ok()?;
        Message::read(core.entries.first()?.all_bytes(TASK).next()?)?.number(STATE)
    };
    let entries = fs::read_dir(images).into_iter().flatten().flatten();
    let cores = entries.filter_map(|entry| {
        let name = entry.file_name();
        let pid: i32 = name.to_str()?.strip_prefix("core-")?.strip_suffix(".img")?.parse().ok()?;
        Some((pid, state(&entry.path())?))
    });
    cores.filter(|(_, state)| ENDED.contains(state)).map(|(pid, _)| pid).collect()
}

/// Whom a process waits for that makes this system call: its number and arguments, as `/proc/PID/syscall` has them.
fn waited_for(call: &str) -> Option<i32> {
    let mut words = call.split_ascii_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    let pid = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    i32::try_from(pid).ok().filter(|pid| number == libc::SYS_wait4 && *pid > 0)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;
    use crate::pages::image::with_length;
    use crate::proto::Encoder;

    #[test]
    fn who_is_waited_for_stands_in_the_system_call() {
        assert_eq!(waited_for("61 0x336f 0x7ffdfb76f02c 0x40000000 0x0 0x0 0x0 0x7f 0x7f"), Some(0x336f));
        assert_eq!(waited_for("61 0xffffffffffffffff 0x0 0x0 0x0 0x0 0x0 0x7f 0x7f"), None);
        assert_eq!(waited_for("0 0x3 0x7ffdfb76f02c 0x40 0x0 0x0 0x0 0x7f 0x7f"), None);
        assert_eq!(waited_for("running\n"), None);
    }

    /// A waiter whose child has ended but for a thread, which nobody takes note of: as CRIU's is.
    #[test]
    fn a_wait_in_vain_is_seen_and_no_other() {
        let code = "import ctypes, os, sys, threading, time\n\
            pid = os.fork()\n\
            if not pid:\n\
            \x20   threading.Thread(target=time.sleep, args=(1000,)).start()\n\
            \x20   time.sleep(float(sys.argv[1]))\n\
            \x20   ctypes.CDLL(None).syscall(60, 0)\n\
            os.waitpid(pid, 0)\n";
        for (lives, is_stopped, is_vain) in [("0.1", false, true), ("1", true, false), ("1000", false, false)]
        {
            let mut waiter = Command::new("python3").args(["-c", code, lives]).spawn().unwrap();
            let pid = waiter.id() as i32;
            if is_stopped {
                std::thread::sleep(Duration::from_millis(500));
                Handle::open(pid).unwrap().signal(libc::SIGSTOP).unwrap();
            }
            let mut watch = Watch::of_dump(pid);
            let (began, mut seen) = (Instant::now(), None);
            let limit = Duration::from_secs(if is_vain { 120 } else { 2 });
            while seen.is_none() && began.elapsed() < limit {
                std::thread::sleep(Duration::from_millis(20));
                seen = watch.look();
            }
            assert_eq!(seen.is_some(), is_vain);
            for child in crate::process::tree(pid).into_iter().rev() {
                let _ = Handle::open(child).and_then(|handle| handle.signal(libc::SIGKILL));
            }
            waiter.wait().unwrap();
        }
    }

    #[test]
    fn a_process_of_a_complete_program_that_ends_before_it_runs_is_seen() {
        let [mut criu, mut child] = [(); 2].map(|()| Command::new("sleep").arg("1000").spawn().unwrap());
        let (asleep, pid) = (criu.id() as i32, child.id() as i32);
        while !status_field(asleep, "State").unwrap().starts_with('S') {
            std::thread::sleep(Duration::from_millis(2));
        }
        // Others of these tests have children too.
        let mut watch = Watch { complete: vec![pid], ..Watch::of_dump(asleep) };
        assert_eq!((watch.look(), watch.look(), is_killed(pid)), (None, None, false));
        child.kill().unwrap();
        while !is_zombie(pid) {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!((watch.look(), watch.look(), is_killed(pid)), (None, Some(pid), true));
        // From then on it may end by itself.
        watch.note(BEFORE_RESUME);
        assert_eq!((watch.look(), watch.look()), (None, None));
        criu.kill().unwrap();
        criu.wait().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_descendant_that_was_killed_is_seen_and_one_that_ended_by_itself_is_not() {
        let code = "import os, time\n\
            pids = [os.fork() or time.sleep(1000), os.fork() or os._exit(9)]\n\
            print(*pids, flush=True)\n\
            time.sleep(1000)\n";
        let mut program = Command::new("python3");
        let mut program = program.args(["-c", code]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let pids: Vec<i32> = line.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
        let root = program.id() as i32;
        let dir = tempfile::tempdir().unwrap();
        let watch = Watch::of_whole_restore(root, dir.path());
        while !is_zombie(pids[1]) {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!((watch.killed_below(root), exit_status(pids[1])), (None, Some(9 << 8)));
        Handle::open(pids[0]).unwrap().signal(libc::SIGKILL).unwrap();
        while !is_zombie(pids[0]) {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(watch.killed_below(root), Some(pids[0]));
        // It had ended when the image was taken.
        let before = Watch { ended_before: Some(vec![pids[0]]), ..Watch::of_restore(root) };
        assert_eq!((before.killed_below(root), Watch::of_restore(root).killed_below(root)), (None, None));
        program.kill().unwrap();
        program.wait().unwrap();
    }

    #[test]
    fn who_had_ended_before_stands_in_the_images() {
        let dir = tempfile::tempdir().unwrap();
        for (pid, state) in [(1000, 1), (1001, 2), (1002, 6), (1003, 3)] {
            let mut task = Encoder::default();
            task.number(1, state).number(2, 9);
            let mut core = Encoder::default();
            core.number(1, 1).bytes(3, &task.0);
            let mut file = vec![0; 8];
            file.extend(with_length(&core.0));
            fs::write(dir.path().join(format!("core-{pid}.img")), file).unwrap();
        }
        fs::write(dir.path().join("core-x.img"), "").unwrap();
        let mut found = ended_in(dir.path());
        found.sort_unstable();
        assert_eq!(found, [1001, 1002]);
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_goes_on() {
        let code = "import ctypes, threading, time\n\
            threading.Thread(target=time.sleep, args=(1000,)).start()\n\
            ctypes.CDLL(None).syscall(60, 0)\n";
        let mut program = Command::new("python3").args(["-c", code]).spawn().unwrap();
        let pid = program.id() as i32;
        while !is_zombie(pid) {
            assert!(!lacks_first_thread(pid));
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(lacks_first_thread(pid) && !is_dying(pid));
        program.kill().unwrap();
        assert!(is_dying(pid) && !lacks_first_thread(pid));
        program.wait().unwrap();
    }

    #[test]
    fn a_killed_process_is_dying_before_it_is_taken_note_of() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id() as i32;
        assert!(!is_dying(pid));
        child.kill().unwrap();
        assert!(is_dying(pid));
        child.wait().unwrap();
        assert!(is_dying(pid));
    }
}
