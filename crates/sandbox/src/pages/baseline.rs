//! Where memory of a program that goes on lies in the page files of its last image, and what tells whether it is still so.
//!
//! ```text
//!  program   ─┬ image ┬──runs, writes──┬ image ┬──▶
//!  memory     │       └ stays protected ┴ what was written is copied; what was not lies in the first image's page files
//! ```
//!
//! The [protection](crate::protection) under which memory was copied for an image stays until the next one. A page of which
//! the kernel says then that nothing was written to it is what it was when it was protected, and so what the image has.
//! All else is copied, as of a program without an image: what was written, what is new, moved, given back or forked, and all
//! memory of a process that has begun another program.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::contents::Run;
use super::remaining;
use crate::protection::Protection;

/// Memory that a page file has: the run's place is one in that file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Placement {
    pub file: Arc<str>,
    pub run: Run,
}

/// Where memory lies in page files, by the pids that processes have for themselves; of each in the order of addresses.
#[derive(Debug, Default, Clone)]
pub struct Layout(pub(super) BTreeMap<u32, Vec<Placement>>);

impl Layout {
    pub fn is_empty(&self) -> bool {
        self.0.values().all(Vec::is_empty)
    }

    pub fn bytes(&self) -> u64 {
        self.0.values().map(|placements| bytes(placements)).sum()
    }
}

/// What the page files of a program's last image have of it. Dropped, nothing of it is protected any more.
pub struct Baseline {
    pub(super) directory: PathBuf,
    pub(super) processes: BTreeMap<i32, BaselineProcess>,
}

/// Of one process, by our pid of it.
pub(super) struct BaselineProcess {
    /// As it sees itself.
    pub pid: i32,
    pub protection: Protection,
    pub memory: Vec<Placement>,
}

impl Baseline {
    /// Whose page files lie in `directory`.
    pub(super) fn new(directory: &Path) -> Baseline {
        Baseline { directory: directory.to_path_buf(), processes: BTreeMap::new() }
    }

    /// Whether the image has nothing of use.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

pub(super) fn bytes(placements: &[Placement]) -> u64 {
    placements.iter().map(|placement| placement.run.memory.end - placement.run.memory.start).sum()
}

/// The parts of ordered placements that lie within `span`.
pub(super) fn within(all: &[Placement], span: &Range<u64>) -> Vec<Placement> {
    let first = all.partition_point(|one| one.run.memory.end <= span.start);
    let met = all[first..].iter().take_while(|one| one.run.memory.start < span.end);
    met.filter_map(|one| Some(Placement { file: one.file.clone(), run: one.run.within(span)? })).collect()
}

/// Ordered placements with the ordered `spans` cut out.
pub(super) fn without(all: &[Placement], spans: &[Range<u64>]) -> Vec<Placement> {
    let left = |one: &Placement| {
        let file = one.file.clone();
        let runs = remaining::without(std::slice::from_ref(&one.run), spans);
        runs.into_iter().map(move |run| Placement { file: file.clone(), run })
    };
    all.iter().flat_map(left).collect()
}

/// The page files of a directory, each opened once.
pub(super) struct Opened<'a> {
    directory: &'a Path,
    files: BTreeMap<Arc<str>, File>,
}

impl<'a> Opened<'a> {
    pub fn of(directory: &'a Path) -> Opened<'a> {
        Opened { directory, files: BTreeMap::new() }
    }

    pub fn get(&mut self, name: &Arc<str>) -> io::Result<&File> {
        if !self.files.contains_key(name) {
            self.files.insert(name.clone(), File::open(self.directory.join(&**name))?);
        }
        self.files.get(name).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements_are_cut() {
        let file: Arc<str> = "anon-7".into();
        let place = |memory: Range<u64>, at| Placement { file: file.clone(), run: Run { memory, at } };
        let all = [place(10..20, 100), place(30..40, 500)];
        assert_eq!(within(&all, &(15..35)), [place(15..20, 105), place(30..35, 500)]);
        assert_eq!(without(&all, &[12..14, 30..40]), [place(10..12, 100), place(14..20, 104)]);
        assert_eq!(bytes(&all), 20);
    }
}
