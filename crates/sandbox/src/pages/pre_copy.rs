//! Pages that are copied while the program runs, so that few are left when it stands still.
//!
//! ```text
//!  program   ──runs, writes─────────────────────────┬ stands still ┬──runs──▶
//!  memory    protected ┬ copied ┬ what was written, │ what was     │ protected until
//!                      │        │ protected, copied │ written since│ the next image
//!  ahead/PID           └────────┴───────────────────┘ → pages-N.img
//! ```
//!
//! A page is [protected](crate::protection) before it is copied. So one of which the kernel says, while the program stands
//! still, that nothing was written to it since is in the copy as it is. All others are copied then: what was written, what
//! is new, what was moved, and all memory of processes that came since.
//!
//! What the page files of the program's [last image](super::baseline) have, and what was not written to since, is not copied
//! again.
//!
//! What devices write past the kernel's page tables would not be noted: processes with files that are open for direct
//! input and output, or with queues for asynchronous, are not copied ahead.

mod copied;
mod devices;
mod followed;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::baseline::{Baseline, BaselineProcess, Layout, Opened, Placement, bytes, within};
use super::contents::{Run, read_zero_filled};
use super::copier::{From, Source};
use super::remaining::without;
use crate::error::Result;
use crate::page_scan;
use crate::process::{own_bytes, tracer};
use crate::protection::Protection;
use crate::sandbox::Sandbox;
pub use copied::Copied;
use copied::parts;
pub use followed::FollowedMemory;

/// The largest of a program's processes, so many at most.
const MOST_PROCESSES: usize = 16;
/// A process with less memory of its own gains nothing by it.
const LEAST: u64 = 1 << 20;
/// How much is compared at once.
const PIECE: u64 = 2 << 20;

/// What was copied of the processes of a program, by our pids of them.
pub struct PreCopy {
    processes: BTreeMap<i32, WatchedProcess>,
    /// Where the page files of the program's last image lie, if its protection has lasted.
    last: Option<PathBuf>,
    /// Whether each page is compared with the program's before it is taken for the same.
    is_checked: bool,
}

/// A process, whose memory is protected for as long as this is there.
struct WatchedProcess {
    /// As it sees itself.
    pid: i32,
    copied: Mutex<Option<Copied>>,
    /// Once it stands still.
    known: Mutex<Option<UnchangedPages>>,
    /// Memory that is protected and that is not its own, in order.
    followed: Mutex<Vec<Range<u64>>>,
    protection: Protection,
}

/// Where the pages lie of a process that stands still, and that were not written to since they were copied.
#[derive(Debug, Default)]
pub(super) struct UnchangedPages {
    /// In its copy.
    pub copied: Vec<Run>,
    /// In the page files of the last image.
    pub based: Vec<Placement>,
    /// Nowhere.
    pub missing: Vec<Range<u64>>,
}

impl PreCopy {
    /// Protects the memory of a program's processes, where that can be done, or has it be what it is under that of its last
    /// image. Copies are to go to `out`.
    pub fn begin(sandbox: &Sandbox, out: &Path, is_checked: bool, last: Option<Baseline>) -> Result<PreCopy> {
        let mut pre_copy = PreCopy { processes: BTreeMap::new(), last: None, is_checked };
        if !PreCopy::is_possible() {
            return Ok(pre_copy);
        }
        let mut all: Vec<_> = sandbox.pids().into_iter().collect();
        all.retain(|(_, host_pid)| own_bytes(*host_pid) >= LEAST);
        all.sort_by_key(|(_, host_pid)| std::cmp::Reverse(own_bytes(*host_pid)));
        all.truncate(MOST_PROCESSES);
        if let Some(Baseline { directory, mut processes }) = last {
            pre_copy.last = Some(directory);
            for (pid, host_pid) in &all {
                if let Some(based) = processes.remove(host_pid).filter(|based| based.pid == *pid) {
                    pre_copy.try_to_watch(*host_pid, *pid, Ok(based.protection), based.memory, out);
                }
            }
        }
        all.retain(|(_, host_pid)| !pre_copy.processes.contains_key(host_pid));
        if all.is_empty() {
            return Ok(pre_copy);
        }
        for (pid, descriptor) in sandbox.watch(all.iter().map(|(pid, _)| *pid).collect())? {
            if let Some((_, host_pid)) = all.iter().find(|(inside, _)| *inside == pid) {
                pre_copy.try_to_watch(*host_pid, pid, Protection::begin(descriptor), Vec::new(), out);
            }
        }
        Ok(pre_copy)
    }

    fn try_to_watch(
        &mut self,
        host_pid: i32,
        pid: i32,
        protection: io::Result<Protection>,
        based: Vec<Placement>,
        out: &Path,
    ) {
        let watched = protection.and_then(|protection| {
            let copied = Copied::begin(host_pid, &protection, based, &out.join(host_pid.to_string()))?;
            Ok(copied.map(|copied| WatchedProcess {
                pid,
                copied: Mutex::new(Some(copied)),
                known: Mutex::default(),
                followed: Mutex::default(),
                protection,
            }))
        });
        match watched {
            Ok(Some(watched)) => {
                self.processes.insert(host_pid, watched);
            }
            Ok(None) => {}
            Err(error) => log::debug!("process {host_pid} is copied while it stands still: {error}"),
        }
    }

    /// Keeps the protection for the next image, of the processes whose memory lies in page files now, which lie in
    /// `directory`.
    pub fn keep(self, layout: Layout, directory: &Path) -> Baseline {
        let (mut baseline, mut layout) = (Baseline::new(directory), layout.0);
        for (host_pid, WatchedProcess { pid, protection, .. }) in self.processes {
            let memory = u32::try_from(pid).ok().and_then(|pid| layout.remove(&pid)).unwrap_or_default();
            if !memory.is_empty() {
                baseline.processes.insert(host_pid, BaselineProcess { pid, protection, memory });
            }
        }
        baseline
    }

    /// The bytes that the last image has and that were not written to since.
    pub fn based_bytes(&self) -> u64 {
        let of = |watched: &WatchedProcess| {
            let copied = watched.copied.lock().unwrap_or_else(PoisonError::into_inner);
            copied.as_ref().map_or(0, |copied| bytes(&copied.based))
        };
        self.processes.values().map(of).sum()
    }

    /// Whether nothing is copied.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// Whether this kernel can say what is written.
    pub fn is_possible() -> bool {
        Protection::is_there()
    }

    /// Copies all that is watched for as long as it `goes_on`; how many bytes there were. Of a process that cannot be copied,
    /// because it ends, or because there is no room, nothing is kept.
    pub fn copy(&self, goes_on: &dyn Fn() -> bool) -> u64 {
        self.each(&mut |copied| copied.copy(goes_on))
    }

    fn each(&self, copy: &mut dyn FnMut(&mut Copied) -> io::Result<u64>) -> u64 {
        let mut bytes = 0;
        for (host_pid, watched) in &self.processes {
            let mut slot = watched.copied.lock().unwrap_or_else(PoisonError::into_inner);
            match slot.as_mut().map(&mut *copy) {
                Some(Ok(more)) => bytes += more,
                Some(Err(error)) => {
                    log::debug!("process {host_pid} is copied while it stands still: {error}");
                    if let Some(copied) = slot.take() {
                        // It lies among the images, which go as a whole.
                        let _ = fs::remove_file(&copied.path);
                    }
                }
                None => {}
            }
        }
        bytes
    }

    /// Copies what was written meanwhile, once; how many bytes.
    pub fn copy_again(&self, goes_on: &dyn Fn() -> bool) -> u64 {
        self.each(&mut |copied| copied.copy_written(goes_on))
    }

    /// Gives away what was copied of a process, its file under the name of an empty one.
    pub(super) fn take(&self, host_pid: i32, name: &Path) -> io::Result<Option<Copied>> {
        let watched = self.processes.get(&host_pid);
        let copied =
            watched.and_then(|watched| watched.copied.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(copied) = &copied {
            // In the place of another file its contents would be written to the disk first.
            fs::remove_file(name)?;
            fs::rename(&copied.path, name)?;
        }
        Ok(copied)
    }

    /// The program stands still: asks the kernel what was written, for [`PreCopy::known`].
    pub(super) fn look(&self) {
        for (host_pid, watched) in &self.processes {
            let copied = watched.copied.lock().unwrap_or_else(PoisonError::into_inner);
            // What could not be asked is asked again.
            let known = watched.find(*host_pid, copied.as_ref()).ok();
            *watched.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
        }
    }

    /// Where the pages lie of a process that stands still. Those that were written to are in none.
    pub(super) fn known(&self, source: &Arc<Source>, copied: Option<&Copied>) -> io::Result<UnchangedPages> {
        let watched = self.processes.get(&source.host_pid);
        let found =
            watched.and_then(|watched| watched.known.lock().unwrap_or_else(PoisonError::into_inner).take());
        let is_found = found.is_some();
        let find = || match watched {
            Some(watched) => watched.find(source.host_pid, copied),
            None => Ok(UnchangedPages::default()),
        };
        let known = found.map_or_else(find, Ok)?;
        if self.is_checked {
            if watched.is_some() && !is_found {
                return Err(io::Error::other(
                    "nobody told that the program stands still, and what was written was not asked then",
                ));
            }
            // What was written to since it was looked at, by the kernel for CRIU's sake, CRIU sends.
            self.check(&find()?, source, copied)?;
        }
        Ok(known)
    }

    fn check(&self, known: &UnchangedPages, source: &Arc<Source>, copied: Option<&Copied>) -> io::Result<()> {
        if let Some(copied) = copied {
            known.copied.iter().try_for_each(|run| compare(run, source, &copied.file))?;
        }
        let mut files = Opened::of(self.last.as_deref().unwrap_or(Path::new("")));
        known.based.iter().try_for_each(|Placement { file, run }| compare(run, source, files.get(file)?))
    }
}

impl WatchedProcess {
    /// Of the pages that were not written to since they were copied, where each lies.
    fn find(&self, host_pid: i32, copied: Option<&Copied>) -> io::Result<UnchangedPages> {
        let pagemap = File::open(format!("/proc/{host_pid}/pagemap"))?;
        let (have, based) = copied.map_or((&[][..], &[][..]), |copied| (&copied.have, &copied.based));
        let unwritten = page_scan::unwritten(&pagemap)?.into_iter().map(|memory| Run { memory, at: 0 });
        let followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = UnchangedPages::default();
        for run in without(&unwritten.collect::<Vec<_>>(), &followed) {
            for (part, at) in parts(&run.memory, have) {
                if let Some(at) = at {
                    known.copied.push(Run { memory: part, at });
                    continue;
                }
                let ours = within(based, &part);
                let spans: Vec<_> = ours.iter().map(|placement| placement.run.memory.clone()).collect();
                let rest = without(&[Run { memory: part, at: 0 }], &spans);
                known.missing.extend(rest.into_iter().map(|run| run.memory));
                known.based.extend(ours);
            }
        }
        Ok(known)
    }
}

fn compare(run: &Run, source: &Arc<Source>, file: &File) -> io::Result<()> {
    let length = run.memory.end - run.memory.start;
    let mut blocks = [vec![0; PIECE.min(length) as usize], vec![0; PIECE.min(length) as usize]];
    let mut done = 0;
    while done < length {
        let [ours, theirs] = blocks.each_mut().map(|block| &mut block[..PIECE.min(length - done) as usize]);
        read_zero_filled(file, ours, run.at + done)?;
        From::Process(source.clone(), run.memory.start + done).read(theirs)?;
        if ours != theirs {
            // One that CRIU has let go of runs.
            if tracer(source.host_pid).is_none() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let other = ours.iter().zip(&*theirs).position(|(one, other)| one != other).unwrap_or(0);
            return Err(io::Error::other(format!(
                "byte {:#x} of process {} was written after it was copied, and the kernel says that it was not",
                run.memory.start + done + other as u64,
                source.host_pid
            )));
        }
        done += ours.len() as u64;
    }
    Ok(())
}
