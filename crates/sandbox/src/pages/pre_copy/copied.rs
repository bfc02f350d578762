//! The copy of one process's memory, made while it runs.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;

use super::devices::{has_direct_files, has_queue, is_written_by_devices};
use crate::page_scan;
use crate::pages::area::PAGE;
use crate::pages::baseline::{Placement, within as placements_within, without as placements_without};
use crate::pages::contents::{Run, filled};
use crate::pages::copier::{From, Source};
use crate::pages::page_file_name;
use crate::pages::remaining::without;
use crate::process::{self, maps};
use crate::protection::Protection;

/// Pages are copied again for as long as that leaves less than half of what there was, so often at most.
const MOST_ROUNDS: usize = 4;
/// So little is as well copied while the program stands still.
const LITTLE: u64 = 1 << 20;
/// Threads that copy.
const MOST_THREADS: usize = 4;
/// How much each reads at once.
const PIECE: u64 = 2 << 20;
/// Stretches of page files' mappings that are protected, the longest of a process: each becomes an area of its own.
const LEAST_STRETCH: u64 = 1 << 20;
const MOST_STRETCHES: usize = 128;
/// A hole costs a system call: as much time as copying so much.
const LEAST_HOLE: u64 = 64 << 10;

/// What was copied of a process.
pub struct Copied {
    pub(super) path: PathBuf,
    pub file: File,
    pub end: u64,
    /// Where pages lie in the file; in order, none over another.
    pub have: Vec<Run>,
    /// Where pages that were not written to since the last image lie in its page files; in order.
    pub based: Vec<Placement>,
    source: Arc<Source>,
    pagemap: File,
    /// In order, none touching the next.
    spans: Vec<Range<u64>>,
}

/// What is copied at once, and where it goes in the file.
struct Piece {
    memory: Range<u64>,
    at: u64,
    /// There was no copy of it before.
    is_new: bool,
}

impl Copied {
    /// Has the memory of a process that only it has be protectable; none if it is not to be copied, or if the protection is
    /// that of a program which the process was before. `based` is what the last image has of what is protected.
    pub(super) fn begin(
        host_pid: i32,
        protection: &Protection,
        based: Vec<Placement>,
        path: &Path,
    ) -> io::Result<Option<Copied>> {
        let areas = maps::of(host_pid)?;
        if has_direct_files(host_pid) || has_queue(&areas) || process::has_shadow_stack(host_pid) {
            return Ok(None);
        }
        let pagemap = File::open(format!("/proc/{host_pid}/pagemap"))?;
        let mut spans = process::own_memory(&areas);
        spans.extend(written_mappings(&areas, &pagemap)?);
        spans.sort_unstable_by_key(|span| span.start);
        let spans = covered(protection, &spans);
        if spans.is_empty() {
            return Ok(None);
        }
        let mut options = OpenOptions::new();
        let copied = Copied {
            file: options.read(true).write(true).create_new(true).mode(0o600).open(path)?,
            path: path.to_path_buf(),
            end: 0,
            have: Vec::new(),
            based: spans.iter().flat_map(|span| placements_within(&based, span)).collect(),
            source: Arc::new(Source { host_pid, memory: File::open(format!("/proc/{host_pid}/mem"))? }),
            pagemap,
            spans,
        };
        Ok(Some(copied))
    }

    pub(super) fn copy(&mut self, goes_on: &dyn Fn() -> bool) -> io::Result<u64> {
        let (mut written, mut last) = (false, u64::MAX);
        for _ in 0..MOST_ROUNDS {
            let found = match (written, self.based.is_empty()) {
                (false, false) => self.differing()?,
                _ => self.protect(written)?,
            };
            let bytes = self.copy_found(&found, goes_on)?;
            if bytes <= LITTLE || bytes > last / 2 {
                break;
            }
            (written, last) = (true, bytes);
        }
        Ok(self.have.iter().map(|run| run.memory.end - run.memory.start).sum())
    }

    /// Copies what was written since it was copied last; how many bytes.
    pub(super) fn copy_written(&mut self, goes_on: &dyn Fn() -> bool) -> io::Result<u64> {
        let found = self.protect(true)?;
        self.copy_found(&found, goes_on)
    }

    fn copy_found(&mut self, found: &[Range<u64>], goes_on: &dyn Fn() -> bool) -> io::Result<u64> {
        self.take(found, goes_on)?;
        // A device may have been told of its memory before that was protected.
        if is_written_by_devices(self.source.host_pid) {
            return Err(io::Error::other("it has begun to use direct input and output"));
        }
        Ok(found.iter().map(|span| span.end - span.start).sum())
    }

    /// What is to be copied, protected. Memory that is gone is not found.
    fn protect(&mut self, written: bool) -> io::Result<Vec<Range<u64>>> {
        // Memory that took the place of a part cannot be protected, and what the copy has of it counts for nothing: the
        // kernel does not call it unwritten.
        let mut found = Vec::new();
        for span in &self.spans {
            found.extend(page_scan::protect(&self.pagemap, span, written)?);
        }
        // What has been written to is not what the last image has.
        self.based = placements_without(&self.based, &found);
        Ok(found)
    }

    /// What the last image does not have as it is now, protected.
    fn differing(&mut self) -> io::Result<Vec<Range<u64>>> {
        self.protect(true)?;
        let based: Vec<_> = self.based.iter().map(|placement| placement.run.memory.clone()).collect();
        let mut differing = Vec::new();
        for memory in page_scan::unwritten(&self.pagemap)? {
            for run in without(&[Run { memory, at: 0 }], &based) {
                // Only what is covered stays protected.
                let first = self.spans.partition_point(|span| span.end <= run.memory.start);
                let met = self.spans[first..].iter().take_while(|span| span.start < run.memory.end);
                differing.extend(met.filter_map(|span| run.within(span)).map(|part| part.memory));
            }
        }
        Ok(differing)
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

/// The private mappings of files, without code, that were written to; of page files the stretches that were written whole. A
/// mapping that can be protected is brought page by page, and of page files there is much that is not there yet.
fn written_mappings(areas: &[maps::Area], pagemap: &File) -> io::Result<Vec<Range<u64>>> {
    let own = page_scan::own(pagemap)?;
    let written = |span: &Range<u64>| {
        let first = own.partition_point(|own| own.end <= span.start);
        let met: Vec<_> = own[first..].iter().take_while(|own| own.start < span.end).collect();
        met.into_iter().map(|own| own.start.max(span.start)..own.end.min(span.end)).collect::<Vec<_>>()
    };
    let is_page_file = |area: &maps::Area| area.path().is_some_and(|path| page_file_name(&path).is_some());
    let may_be = |area: &&maps::Area| !area.is_shared && area.inode != 0 && !area.may(libc::PROT_EXEC);
    let (mut whole, mut stretches) = (Vec::new(), Vec::new());
    for area in areas.iter().filter(may_be) {
        let written = written(&area.span);
        match is_page_file(area) {
            true => stretches.extend(written.into_iter().filter(|one| one.end - one.start >= LEAST_STRETCH)),
            false => whole.extend((!written.is_empty()).then(|| area.span.clone())),
        }
    }
    stretches.sort_unstable_by_key(|one| std::cmp::Reverse(one.end - one.start));
    whole.extend(stretches.into_iter().take(MOST_STRETCHES));
    Ok(whole)
}

/// The parts of `span`, and where each lies in a file that has some runs.
pub(super) fn parts(span: &Range<u64>, have: &[Run]) -> Vec<(Range<u64>, Option<u64>)> {
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

/// Those of some ordered areas that can be protected, areas that follow each other as one: to ask of each takes longer.
fn covered(protection: &Protection, areas: &[Range<u64>]) -> Vec<Range<u64>> {
    let is_covered = |span: &Range<u64>| protection.cover(span).is_ok();
    let rows = areas.chunk_by(|one, next| one.end == next.start);
    let found = rows.flat_map(|row| {
        let whole = row.first().zip(row.last()).map(|(first, last)| first.start..last.end);
        match whole.filter(is_covered) {
            Some(whole) => vec![whole],
            // One of them cannot.
            None => joined(row.iter().filter(|area| is_covered(area))),
        }
    });
    found.collect()
}

fn joined<'a>(spans: impl Iterator<Item = &'a Range<u64>>) -> Vec<Range<u64>> {
    let mut out: Vec<Range<u64>> = Vec::new();
    for span in spans {
        match out.last_mut() {
            Some(last) if last.end == span.start => last.end = span.end,
            _ => out.push(span.clone()),
        }
    }
    out
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
    fn areas_are_covered_together_or_those_that_can_be() {
        let Ok(protection) = Protection::of_own_memory() else {
            eprintln!("skipped: this kernel has no asynchronous write protection");
            return;
        };
        let map = |at: u64, pages: u64, more: i32, file: i32| {
            let (protection, flags) = (libc::PROT_READ, more | if at == 0 { 0 } else { libc::MAP_FIXED });
            // SAFETY: at an address of the kernel's choice, or within what was mapped so.
            let made =
                unsafe { libc::mmap(at as *mut _, (pages * PAGE) as usize, protection, flags, file, 0) };
            assert_ne!(made, libc::MAP_FAILED);
            made as u64
        };
        let start = map(0, 4, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
        let areas: Vec<_> = (0..4).map(|page| start + page * PAGE..start + (page + 1) * PAGE).collect();
        let whole = start..start + 4 * PAGE;
        assert_eq!(covered(&protection, &areas), [whole]);
        assert_eq!(
            covered(&protection, &[areas[0].clone(), areas[2].clone()]),
            [areas[0].clone(), areas[2].clone()]
        );
        // What nobody may ever write to cannot be protected.
        let file = File::open("/proc/self/exe").unwrap();
        map(areas[2].start, 1, libc::MAP_SHARED, std::os::fd::AsRawFd::as_raw_fd(&file));
        assert_eq!(covered(&protection, &areas), [start..start + 2 * PAGE, areas[3].clone()]);
        // SAFETY: unmaps what was mapped above.
        unsafe { libc::munmap(start as *mut _, 4 * PAGE as usize) };
    }
}
