//! Pages that are copied while the program runs, so that few are left when it stands still.
//!
//! ```text
//!  program   ──runs, writes─────────────────────────┬ stands still ┬──runs──▶
//!  memory    protected ┬ copied ┬ what was written, │ what was     │ not protected
//!                      │        │ protected, copied │ written since│
//!  ahead/PID           └────────┴───────────────────┘ → pages-N.img
//! ```
//!
//! A page is [protected](crate::protection) before it is copied. So one of which the kernel says, while the program stands
//! still, that nothing was written to it since is in the copy as it is. All others are copied then: what was written, what
//! is new, what was moved, and all memory of processes that came since.
//!
//! What devices write past the kernel's page tables would not be noted: processes with files that are open for direct
//! input and output, or with queues for asynchronous, are not copied ahead.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ScopedJoinHandle;

use super::area::PAGE;
use super::contents::{Run, filled};
use super::copier::{From, Source};
use super::kept::without;
use crate::error::Result;
use crate::page_scan;
use crate::process::{self, maps};
use crate::protection::Protection;
use crate::sandbox::Sandbox;

/// Pages are copied again for as long as that leaves less than half of what there was, so often at most.
const MOST_ROUNDS: usize = 4;
/// So little is as well copied while the program stands still.
const LITTLE: u64 = 1 << 20;
/// The largest of a program's processes, so many at most.
const MOST_PROCESSES: usize = 16;
/// A process with less memory of its own gains nothing by it.
const LEAST: u64 = 1 << 20;
/// Threads that copy.
const MOST_THREADS: usize = 4;
/// How much each reads at once.
const PIECE: u64 = 2 << 20;
/// A hole costs a system call: as much time as copying so much.
const LEAST_HOLE: u64 = 64 << 10;

/// What was copied of the processes of a program, by our pids of them.
pub struct Ahead {
    processes: BTreeMap<i32, Watched>,
    /// Whether each page is compared with the program's before it is taken for the same.
    is_checked: bool,
}

/// A process, whose memory is protected for as long as this is there.
struct Watched {
    copied: Mutex<Option<Copied>>,
    _protection: Protection,
}

/// What was copied of a process.
pub struct Copied {
    path: PathBuf,
    pub file: File,
    pub end: u64,
    /// Where pages lie in the file; in order, none over another.
    pub have: Vec<Run>,
    source: Arc<Source>,
    pagemap: File,
    spans: Vec<Range<u64>>,
}

/// What is copied at once, and where it goes in the file.
struct Piece {
    memory: Range<u64>,
    at: u64,
    /// There was no copy of it before.
    is_new: bool,
}

impl Ahead {
    /// Protects the memory of a program's processes, where that can be done. Copies are to go to `out`.
    pub fn begin(sandbox: &Sandbox, out: &Path, is_checked: bool) -> Result<Ahead> {
        let mut ahead = Ahead { processes: BTreeMap::new(), is_checked };
        if !Ahead::is_possible() {
            return Ok(ahead);
        }
        let mut all: Vec<_> = sandbox.pids().into_iter().collect();
        all.retain(|(_, host_pid)| own_bytes(*host_pid) >= LEAST);
        all.sort_by_key(|(_, host_pid)| std::cmp::Reverse(own_bytes(*host_pid)));
        all.truncate(MOST_PROCESSES);
        for (pid, descriptor) in sandbox.watch(all.iter().map(|(pid, _)| *pid).collect())? {
            let host_pid = all.iter().find(|(inside, _)| *inside == pid).map(|(_, host_pid)| *host_pid);
            let Some(host_pid) = host_pid else { continue };
            if let Err(error) = ahead.watch(host_pid, descriptor, out) {
                log::debug!("process {host_pid} is copied while it stands still: {error}");
            }
        }
        Ok(ahead)
    }

    fn watch(&mut self, host_pid: i32, descriptor: OwnedFd, out: &Path) -> io::Result<()> {
        let protection = Protection::begin(descriptor)?;
        if let Some(copied) = Copied::begin(host_pid, &protection, &out.join(host_pid.to_string()))? {
            let copied = Mutex::new(Some(copied));
            self.processes.insert(host_pid, Watched { copied, _protection: protection });
        }
        Ok(())
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
        let mut bytes = 0;
        for (host_pid, watched) in &self.processes {
            let mut slot = watched.copied.lock().unwrap_or_else(PoisonError::into_inner);
            match slot.as_mut().map(|copied| copied.copy(goes_on)) {
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

    /// Where the pages of a process that stands still and were not written to since lie in its copy, and those of which
    /// there is no copy.
    pub(super) fn known(
        &self,
        source: &Arc<Source>,
        copied: Option<&Copied>,
    ) -> io::Result<(Vec<Run>, Vec<Range<u64>>)> {
        let pagemap = File::open(format!("/proc/{}/pagemap", source.host_pid))?;
        let have = copied.map_or(&[][..], |copied| &copied.have);
        let (mut known, mut missing) = (Vec::new(), Vec::new());
        for span in page_scan::unwritten(&pagemap)? {
            for (part, at) in parts(&span, have) {
                match at {
                    Some(at) => known.push(Run { memory: part, at }),
                    None => missing.push(part),
                }
            }
        }
        if let Some(copied) = copied.filter(|_| self.is_checked) {
            known.iter().try_for_each(|run| compare(run, source, &copied.file))?;
        }
        Ok((known, missing))
    }
}

impl Copied {
    /// Protects the memory of a process that only it has; none if it is not to be copied.
    fn begin(host_pid: i32, protection: &Protection, path: &Path) -> io::Result<Option<Copied>> {
        if is_written_by_devices(host_pid) || process::has_shadow_stack(host_pid) {
            return Ok(None);
        }
        let is_covered = |span: &Range<u64>| protection.cover(span).is_ok();
        let spans: Vec<_> =
            process::own_memory(&maps::of(host_pid)?).into_iter().filter(is_covered).collect();
        let mut options = OpenOptions::new();
        let copied = Copied {
            file: options.read(true).write(true).create_new(true).mode(0o600).open(path)?,
            path: path.to_path_buf(),
            end: 0,
            have: Vec::new(),
            source: Arc::new(Source { host_pid, memory: File::open(format!("/proc/{host_pid}/mem"))? }),
            pagemap: File::open(format!("/proc/{host_pid}/pagemap"))?,
            spans,
        };
        Ok(Some(copied))
    }

    fn copy(&mut self, goes_on: &dyn Fn() -> bool) -> io::Result<u64> {
        let (mut written, mut last) = (false, u64::MAX);
        for _ in 0..MOST_ROUNDS {
            let found = self.protect(written)?;
            let bytes = found.iter().map(|span| span.end - span.start).sum::<u64>();
            self.take(&found, goes_on)?;
            // A device may have been told of its memory before that was protected.
            if is_written_by_devices(self.source.host_pid) {
                return Err(io::Error::other("it has begun to use direct input and output"));
            }
            if bytes <= LITTLE || bytes > last / 2 {
                break;
            }
            (written, last) = (true, bytes);
        }
        Ok(self.have.iter().map(|run| run.memory.end - run.memory.start).sum())
    }

    /// What is to be copied, protected. Memory that is gone is not found.
    fn protect(&self, written: bool) -> io::Result<Vec<Range<u64>>> {
        let mut found = Vec::new();
        for span in &self.spans {
            // Memory that took its place is none that can be protected.
            match page_scan::protect(&self.pagemap, span, written) {
                Ok(more) => found.extend(more),
                Err(error) if error.raw_os_error() == Some(libc::EPERM) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Copies pages; those that are gone when they are to be read are left out, also if there is an older copy.
    fn take(&mut self, found: &[Range<u64>], goes_on: &dyn Fn() -> bool) -> io::Result<()> {
        let pieces = self.plan(found);
        let next = AtomicUsize::new(0);
        let work = |goes_on: &dyn Fn() -> bool| {
            let (mut block, mut gone) = (vec![0; PIECE as usize], Vec::new());
            while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                let copied = match goes_on() {
                    true => self.copy_piece(piece, &mut block, &mut gone),
                    false => Err(io::ErrorKind::Interrupted.into()),
                };
                copied.inspect_err(|_| next.store(pieces.len(), Ordering::Relaxed))?;
            }
            Ok(gone)
        };
        let gone = std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads()).map(|_| scope.spawn(|| work(&|| true))).collect();
            let own = work(goes_on);
            let join = |thread: ScopedJoinHandle<'_, io::Result<_>>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            others.into_iter().map(join).chain([own]).collect::<io::Result<Vec<_>>>()
        })?;
        let new = pieces.into_iter().filter(|piece| piece.is_new);
        self.have.extend(new.map(|piece| Run { memory: piece.memory, at: piece.at }));
        self.have.sort_unstable_by_key(|run| run.memory.start);
        let mut gone = gone.concat();
        if !gone.is_empty() {
            gone.sort_unstable_by_key(|span| span.start);
            self.have = without(&self.have, &gone);
        }
        Ok(())
    }

    /// Where each piece of what is to be copied goes: where it was, or behind all.
    fn plan(&mut self, found: &[Range<u64>]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for (part, at) in found.iter().flat_map(|span| parts(span, &self.have)) {
            let mut start = part.start;
            while start < part.end {
                let memory = start..part.end.min(start + PIECE);
                start = memory.end;
                let bytes = memory.end - memory.start;
                let place = at.map_or(self.end, |at| at + (memory.start - part.start));
                self.end += if at.is_none() { bytes } else { 0 };
                pieces.push(Piece { memory, at: place, is_new: at.is_none() });
            }
        }
        pieces
    }

    fn copy_piece(&self, piece: &Piece, block: &mut [u8], gone: &mut Vec<Range<u64>>) -> io::Result<()> {
        let block = &mut block[..(piece.memory.end - piece.memory.start) as usize];
        self.read(&piece.memory, block, gone);
        match piece.is_new {
            true => {
                filled(block, LEAST_HOLE, |at, bytes| self.file.write_all_at(bytes, piece.at + at as u64))
            }
            false => self.file.write_all_at(block, piece.at),
        }
    }

    fn read(&self, memory: &Range<u64>, block: &mut [u8], gone: &mut Vec<Range<u64>>) {
        let from = From::Process(self.source.clone(), memory.start);
        if from.read(block).is_ok() {
            return;
        }
        for (number, page) in block.chunks_mut(PAGE as usize).enumerate() {
            let address = memory.start + number as u64 * PAGE;
            if From::Process(self.source.clone(), address).read(page).is_err() {
                page.fill(0);
                gone.push(address..address + PAGE);
            }
        }
    }
}

/// So many copy at once: the program has need of the processors too.
fn threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
    (processors / 4).clamp(1, MOST_THREADS)
}

/// The bytes of its own that a process has in memory.
fn own_bytes(host_pid: i32) -> u64 {
    let text = process::status_field(host_pid, "RssAnon");
    text.and_then(|text| text.trim_end_matches(" kB").parse::<u64>().ok())
        .map_or(0, |kilobytes| kilobytes << 10)
}

/// The parts of `span`, and where each lies in a file that has some runs.
fn parts(span: &Range<u64>, have: &[Run]) -> Vec<(Range<u64>, Option<u64>)> {
    let (mut out, mut from) = (Vec::new(), span.start);
    let first = have.partition_point(|run| run.memory.end <= span.start);
    let met = have[first..].iter().take_while(|run| run.memory.start < span.end);
    for run in met.filter_map(|run| run.within(span)) {
        if from < run.memory.start {
            out.push((from..run.memory.start, None));
        }
        from = run.memory.end;
        out.push((run.memory, Some(run.at)));
    }
    if from < span.end {
        out.push((from..span.end, None));
    }
    out
}

/// Whether something other than the program's own threads may write to its memory.
fn is_written_by_devices(host_pid: i32) -> bool {
    let entries = fs::read_dir(format!("/proc/{host_pid}/fdinfo")).into_iter().flatten().flatten();
    let mut texts = entries.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    let is_direct = |text: String| {
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
        flags.is_some_and(|flags| flags & libc::O_DIRECT != 0 && flags & libc::O_PATH == 0)
    };
    let has_queue = || maps::if_there(host_pid).iter().any(|area| area.name.starts_with(b"/[aio]"));
    texts.any(is_direct) || has_queue()
}

fn compare(run: &Run, source: &Arc<Source>, file: &File) -> io::Result<()> {
    let length = run.memory.end - run.memory.start;
    let mut blocks = [vec![0; PIECE.min(length) as usize], vec![0; PIECE.min(length) as usize]];
    let mut done = 0;
    while done < length {
        let [ours, theirs] = blocks.each_mut().map(|block| &mut block[..PIECE.min(length - done) as usize]);
        super::contents::read_zero_filled(file, ours, run.at + done)?;
        From::Process(source.clone(), run.memory.start + done).read(theirs)?;
        if ours != theirs {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_copy_is_told_from_what_is_not() {
        let have =
            [Run { memory: 10..20, at: 100 }, Run { memory: 20..30, at: 300 }, Run { memory: 40..50, at: 0 }];
        assert_eq!(parts(&(0..5), &have), [(0..5, None)]);
        assert_eq!(parts(&(12..18), &have), [(12..18, Some(102))]);
        let all = [
            (5..10, None),
            (10..20, Some(100)),
            (20..30, Some(300)),
            (30..40, None),
            (40..50, Some(0)),
            (50..60, None),
        ];
        assert_eq!(parts(&(5..60), &have), all);
    }

    #[test]
    fn files_for_direct_input_and_output_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let ours = std::process::id() as i32;
        assert!(!is_written_by_devices(ours));
        let opened = OpenOptions::new().write(true).create(true).custom_flags(libc::O_DIRECT).open(path);
        // A file system without it has none to be found.
        if opened.is_ok() {
            assert!(is_written_by_devices(ours));
        }
    }
}
