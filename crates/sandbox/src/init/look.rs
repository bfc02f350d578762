//! Whether a program is still the one that CRIU was told of, looked at while CRIU brings it to a stand.

use std::thread::JoinHandle;

use nix::unistd::Pid;

use super::dump::{Descriptors, request};
use crate::lost_names::LostNames;
use crate::message::Dump;
use crate::process;
use crate::severed::ConnectionPolicy;

/// What CRIU was told of.
pub struct Told {
    pub dump: Dump,
    pub descriptors: Descriptors,
    pub connections: ConnectionPolicy,
    pub request: Vec<u8>,
    pub criu: Option<Pid>,
}

/// What was seen.
struct Seen {
    is_same: bool,
    /// What is said of a process that has left the program's tree: it would be missing from the dump.
    stray: Option<String>,
    has_lost_names: bool,
}

/// A look that is under way, or has been taken.
pub struct Look {
    thread: Option<JoinHandle<Seen>>,
    seen: Option<Seen>,
}

/// Why the program cannot be dumped as CRIU was told.
#[derive(Debug, PartialEq, Eq)]
pub enum Unfit {
    Another,
    Stray(String),
}

impl std::fmt::Display for Unfit {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Another => out.write_str("the program is another than CRIU was told of"),
            Self::Stray(sentence) => out.write_str(sentence),
        }
    }
}

impl Look {
    /// Begins to look, beside CRIU.
    pub fn begin(program: Pid, told: Told) -> Self {
        let look = move || {
            let tree = process::tree(program.as_raw());
            let lost_names = LostNames::find(&tree);
            let connections = ConnectionPolicy::of(&tree);
            let now = || request(&told.dump, told.descriptors, &tree, connections, &lost_names);
            Seen {
                is_same: connections == told.connections && now() == told.request,
                stray: stray(&tree, told.criu),
                has_lost_names: !lost_names.is_empty(),
            }
        };
        Self { thread: Some(std::thread::spawn(look)), seen: None }
    }

    /// Waits for what is seen.
    pub fn verdict(&mut self) -> Result<(), Unfit> {
        if let Some(thread) = self.thread.take() {
            self.seen = thread.join().ok();
        }
        match &self.seen {
            Some(Seen { stray: Some(sentence), .. }) => Err(Unfit::Stray(sentence.clone())),
            Some(Seen { is_same: true, .. }) => Ok(()),
            _ => Err(Unfit::Another),
        }
    }

    /// Whether it had files by names that are gone, as far as is known.
    pub fn has_lost_names(&self) -> bool {
        self.seen.as_ref().is_none_or(|seen| seen.has_lost_names)
    }
}

/// A process that is no descendant of the program's any more.
fn stray(tree: &[i32], criu: Option<Pid>) -> Option<String> {
    let is_criu = |pid: i32| criu.is_some_and(|criu| criu.as_raw() == pid);
    let is_stray =
        |pid: &i32| *pid != 1 && !is_criu(*pid) && !tree.contains(pid) && !process::is_zombie(*pid);
    // A parent of 0 is outside: somebody looks into the sandbox from there.
    let pid = process::all().into_iter().find(|pid| is_stray(pid) && process::parent(*pid) == Some(1))?;
    Some(format!(
        "process {pid} ({}) has outlived its parent and is no longer a descendant of the program",
        process::name(pid)
    ))
}
