//! Programs that are started without Rekindle.

use std::fs::{self, File};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rekindle_sandbox::process;

use crate::harness::{COUNTER, Rekindle, wait};

/// A child that ends with the test, with those of its own.
pub struct Program(pub Child);

impl Program {
    /// Counts as [`COUNTER`] does, into a file.
    pub fn counter(rekindle: &Rekindle) -> Program {
        Program::start(Command::new(COUNTER[0]).args(&COUNTER[1..]), &output(rekindle))
    }

    pub fn start(command: &mut Command, output: &Path) -> Program {
        let out = File::options().append(true).create(true).open(output).unwrap();
        let errors = out.try_clone().unwrap();
        let program = Program::spawn(command.stdin(Stdio::null()).stdout(out).stderr(errors));
        wait("the program", || !numbers(output).is_empty());
        program
    }

    /// As a shell starts it: in the session of its parent, if that began where we can see it.
    pub fn spawn(command: &mut Command) -> Program {
        // SAFETY: neither has conditions.
        let of_our_own = unsafe { libc::getsid(0) != 0 || libc::setsid() > 0 };
        assert!(of_our_own, "a session");
        // A line is one write, so that a checkpoint never finds half of one written.
        Program(command.env_remove("PYTHONUNBUFFERED").spawn().unwrap())
    }

    pub fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// The one child of it.
    pub fn child(&self) -> i32 {
        let pid = self.pid();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        children.trim().parse().unwrap()
    }
}

impl Deref for Program {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Program {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The last first: a child whose parent has ended is nobody's.
        for pid in process::tree(self.0.id() as i32).into_iter().rev() {
            // What has ended by itself is no less gone.
            let _ = process::Handle::open(pid).and_then(|handle| handle.signal(libc::SIGKILL));
        }
        let _ = self.0.wait();
    }
}

/// Who traces a process; 0 for nobody.
pub fn tracer(pid: &str) -> i32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    line.map_or(0, |tracer| tracer.trim().parse().unwrap())
}

pub fn output(rekindle: &Rekindle) -> PathBuf {
    rekindle.path("output")
}

/// The whole lines of a file that are numbers.
pub fn numbers(path: &Path) -> Vec<u64> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| line.trim().parse().unwrap_or_else(|_| panic!("{text}"))).collect()
}

/// Waits until a few more numbers are there, none of them missing.
pub fn goes_on(path: &Path) {
    let before = numbers(path).len();
    wait("the program to go on", || numbers(path).len() > before + 3);
    let counted = numbers(path);
    assert!(counted.windows(2).all(|pair| pair[1] == pair[0] + 1), "{counted:?}");
}
