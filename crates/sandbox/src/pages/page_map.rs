//! The page map of one process, or of memory that processes share, while CRIU tells of its pages.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::area::PAGE;
use super::baseline::{Placement, without};
use super::contents::Run;
use super::copier::{From, Job, Jobs, Pieces, Source};
use super::image;
use super::populate;
use super::process::PLACE;
use super::remaining;
use super::server::{Placed, Served};
use super::word::PRESENT;
use super::writers::Writers;
use crate::proto::Encoder;

/// What a page map begins with, behind the word of every image.
const PAGEMAP_MAGIC: u32 = 0x5608_4025;

pub struct Map {
    pub id: u64,
    pub image: PathBuf,
    /// None for memory that is shared: its pages are taken as they come.
    pub source: Option<Arc<Source>>,
    pub number: u32,
    /// What lies in page files of the program's last image.
    pub based: Vec<Placement>,
    /// What CRIU reads.
    pub read: PageSequence,
    pub populated: Option<Populated>,
    pub writers: Option<Writers>,
    /// In the order of their addresses, none over another.
    pub placed: Vec<(Placed, Arc<File>)>,
    /// Where CRIU may have an instruction of its own for a moment, in order.
    pub code: Vec<Range<u64>>,
    /// What is copied of that when CRIU has left the process.
    pub late: Vec<Job>,
}

/// Memory that is [written into](populate) the restored process.
pub struct Populated {
    pub pid: u32,
    /// In order, none over another. What is placed goes before.
    pub spans: Vec<Range<u64>>,
    pub sequence: PageSequence,
}

/// Pages that follow each other in a file.
pub struct PageSequence {
    pub file: Arc<File>,
    pub end: u64,
    /// Addresses, counts and flags, in the order of the contents.
    pub entries: Vec<(u64, u64, u32)>,
    /// What was there before them, of which `known` is still right.
    pub begin: u64,
    pub known: Vec<Run>,
    /// Whether contents are in another order than that of addresses.
    pub is_scattered: bool,
}

impl PageSequence {
    pub fn new(file: File) -> PageSequence {
        PageSequence::behind(file, 0)
    }

    /// One whose pages come behind what is there.
    pub fn behind(file: File, end: u64) -> PageSequence {
        let (entries, known, is_scattered) = (Vec::new(), Vec::new(), end > 0);
        PageSequence { file: Arc::new(file), end, entries, begin: end, known, is_scattered }
    }

    /// Addresses, counts, flags and, where they are needed, places, in the order of the map.
    fn all_entries(&self) -> Vec<(u64, u64, u32, Option<u64>)> {
        let mut at = self.begin;
        let mut all: Vec<_> = Vec::with_capacity(self.entries.len() + self.known.len());
        for (address, pages, flags) in &self.entries {
            all.push((*address, *pages, *flags, self.is_scattered.then_some(at)));
            // What CRIU has no pages of takes no room.
            at += if flags & PRESENT == 0 { 0 } else { pages * PAGE };
        }
        if self.is_scattered {
            // What CRIU has sent is what it is.
            all.extend(remaining::without(&self.known, &self.spans()).into_iter().map(|run| {
                (run.memory.start, (run.memory.end - run.memory.start) / PAGE, PRESENT, Some(run.at))
            }));
            all.sort_by_key(|entry| entry.0);
            // A page that the kernel itself has written to meanwhile may have been copied by us and sent by CRIU.
            let mut end = 0u64;
            all.retain_mut(|(address, pages, _, place)| {
                let twice = end.saturating_sub(*address).min(*pages * PAGE);
                (*address, *pages, *place) =
                    (*address + twice, *pages - twice / PAGE, place.map(|at| at + twice));
                end = end.max(*address + *pages * PAGE);
                *pages > 0
            });
        }
        all
    }

    /// What CRIU has sent, in order.
    fn spans(&self) -> Vec<Range<u64>> {
        let span = |(address, pages, _): &(u64, u64, u32)| *address..*address + pages * PAGE;
        let mut spans: Vec<_> = self.entries.iter().map(span).collect();
        spans.sort_unstable_by_key(|span| span.start);
        let mut merged: Vec<Range<u64>> = Vec::with_capacity(spans.len());
        for span in spans {
            match merged.last_mut() {
                Some(last) if span.start <= last.end => last.end = last.end.max(span.end),
                _ => merged.push(span),
            }
        }
        merged
    }

    /// How memory is copied behind what is there.
    fn add(&mut self, source: &Arc<Source>, memory: &Range<u64>, flags: u32) -> Job {
        let (bytes, offset) = (memory.end - memory.start, self.end);
        self.entries.push((memory.start, bytes / PAGE, flags));
        self.end += bytes;
        Job { from: From::Process(source.clone(), memory.start), bytes, file: self.file.clone(), offset }
    }

    /// Gives the file its length and writes the map of it.
    fn finish(&self, number: u32, image: &Path) -> io::Result<()> {
        self.file.set_len(self.end)?;
        let mut out = image::head(PAGEMAP_MAGIC);
        let mut entry = |message: &Encoder| out.extend(image::with_length(&message.0));
        let mut head = Encoder::default();
        head.number(1, number.into());
        entry(&head);
        for (address, pages, flags, place) in self.all_entries() {
            let mut one = Encoder::default();
            one.number(1, address).number(2, pages).number(4, flags.into()).number(5, pages);
            if let Some(place) = place {
                one.number(PLACE, place);
            }
            entry(&one);
        }
        fs::write(image, out)
    }
}

impl Map {
    /// Has the placed areas copied.
    pub fn copy_placed(&self, source: &Arc<Source>, jobs: &Jobs) {
        for (placed, file) in &self.placed {
            jobs.add(Job {
                from: From::Process(source.clone(), placed.span.start),
                bytes: placed.span.end - placed.span.start,
                file: file.clone(),
                offset: placed.offset,
            });
        }
    }

    /// Has memory copied that is in no placed area.
    pub fn add(&mut self, source: &Arc<Source>, memory: Range<u64>, flags: u32, jobs: &Jobs) {
        for (piece, is_placed) in cut(&memory, &self.placed, |(placed, _)| &placed.span) {
            if is_placed {
                continue;
            }
            for (piece, is_code) in cut(&piece, &self.code, |span| span) {
                if is_code {
                    self.late.push(self.read.add(source, &piece, flags));
                    continue;
                }
                let Some(populated) = &mut self.populated else {
                    jobs.add(self.read.add(source, &piece, flags));
                    continue;
                };
                for (piece, is_ours) in cut(&piece, &populated.spans, |span| span) {
                    let sequence = if is_ours { &mut populated.sequence } else { &mut self.read };
                    jobs.add(sequence.add(source, &piece, flags));
                }
            }
        }
    }

    /// Has what waited for CRIU to leave copied.
    pub fn add_late(&mut self, jobs: &Jobs) {
        self.late.drain(..).for_each(|job| jobs.add(job));
    }

    /// Writes the image of the map and gives all files their lengths.
    pub fn finish(self, pieces: &Pieces, served: &mut Served) -> io::Result<()> {
        self.read.finish(self.number, &self.image)?;
        if !self.based.is_empty() {
            // What CRIU has sent is what it is.
            served.based.0.insert((self.id >> 8) as u32, without(&self.based, &self.read.spans()));
        }
        served.contents.push((format!("pages-{}.img", self.number), pieces.of(&self.read.file)));
        if let Some(Populated { pid, sequence, .. }) = self.populated {
            sequence.finish(pid, &self.image.with_file_name(populate::map_name(pid)))?;
            served.contents.push((populate::pages_name(pid), pieces.of(&sequence.file)));
        }
        if let Some(writers) = self.writers {
            served.files.extend(writers.finish(pieces)?);
        }
        served.placed.extend(self.placed.into_iter().map(|(placed, _)| placed));
        Ok(())
    }
}

/// The parts of `memory`, and whether they lie within one of the ordered `spans`.
fn cut<T>(
    memory: &Range<u64>,
    spans: &[T],
    span: impl Fn(&T) -> &Range<u64>,
) -> impl Iterator<Item = (Range<u64>, bool)> {
    let mut parts = Vec::new();
    let mut from = memory.start;
    let first = spans.partition_point(|one| span(one).end <= memory.start);
    for within in spans[first..].iter().map(&span).take_while(|span| span.start < memory.end) {
        let (start, end) = (within.start.max(from), within.end.min(memory.end));
        parts.extend([(from..start, false), (start..end, true)]);
        from = end;
    }
    parts.push((from..memory.end, false));
    parts.into_iter().filter(|(part, _)| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::image::Entries;
    use super::super::process::runs;
    use super::*;

    #[test]
    fn memory_with_code_is_copied_when_criu_has_left() {
        const HALF: usize = PAGE as usize;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let at = unsafe {
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(std::ptr::null_mut(), 2 * HALF, protection, flags, -1, 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        let fill = |value: u8| {
            // SAFETY: within the mapping above, which nothing else writes to.
            unsafe { std::ptr::write_bytes(at.cast::<u8>().add(HALF), value, HALF) };
        };
        let memory = File::open("/proc/self/mem").unwrap();
        let source = Arc::new(Source { host_pid: std::process::id() as i32, memory });
        let directory = tempfile::tempdir().unwrap();
        let pages = directory.path().join("pages");
        let start = at as u64;
        let code = start + PAGE..start + 2 * PAGE;
        let mut map = Map {
            id: 1,
            image: directory.path().join("pagemap"),
            source: Some(source.clone()),
            number: 1,
            based: Vec::new(),
            read: PageSequence::new(File::create(&pages).unwrap()),
            populated: None,
            writers: None,
            placed: Vec::new(),
            code: vec![code],
            late: Vec::new(),
        };
        fill(0xcc);
        let (_, copied) = Jobs::with_workers(None, |jobs| {
            map.add(&source, start..start + 2 * PAGE, 4, jobs);
            assert_eq!(map.late.len(), 1);
            fill(7);
            map.add_late(jobs);
            Ok::<(), ()>(())
        });
        copied.unwrap();
        let entries = map.read.entries.clone();
        map.finish(&Pieces::default(), &mut Served::default()).unwrap();
        let found = fs::read(pages).unwrap();
        assert_eq!(found, [[0; HALF], [7; HALF]].concat());
        assert_eq!(entries, [(start, 1, 4), (start + PAGE, 1, 4)]);
        // SAFETY: unmaps what was mapped above.
        unsafe { libc::munmap(at, 2 * HALF) };
    }

    #[test]
    fn what_was_copied_ahead_lies_where_it_is_but_for_what_was_sent() {
        let directory = tempfile::tempdir().unwrap();
        let (pages, image) = (directory.path().join("pages"), directory.path().join("pagemap"));
        let mut sequence = PageSequence::behind(File::create(&pages).unwrap(), 4 * PAGE);
        sequence.known =
            vec![Run { memory: PAGE..4 * PAGE, at: PAGE }, Run { memory: 9 * PAGE..10 * PAGE, at: 0 }];
        // What is new, and what was written since it was copied.
        sequence.entries = vec![(20 * PAGE, 2, PRESENT), (2 * PAGE, 1, PRESENT), (21 * PAGE, 2, PRESENT)];
        sequence.end += 5 * PAGE;
        sequence.finish(1, &image).unwrap();
        let map = Entries::read(&image).unwrap();
        let (found, bytes) = runs(&map.entries[1..]).unwrap();
        let expected = [(1, 2, 1), (2, 3, 6), (3, 4, 3), (9, 10, 0), (20, 22, 4), (22, 23, 8)];
        let expected =
            expected.map(|(start, end, at)| Run { memory: start * PAGE..end * PAGE, at: at * PAGE });
        assert_eq!(found, expected);
        assert_eq!((bytes, fs::metadata(&pages).unwrap().len()), (9 * PAGE, 9 * PAGE));
    }

    #[test]
    fn memory_is_cut_where_spans_begin_and_end() {
        let parts = |memory: Range<u64>| cut(&memory, &[10..20, 30..40], |span| span).collect::<Vec<_>>();
        assert_eq!(parts(0..5), [(0..5, false)]);
        assert_eq!(parts(20..30), [(20..30, false)]);
        assert_eq!(parts(12..15), [(12..15, true)]);
        let all = [(0..10, false), (10..20, true), (20..30, false), (30..40, true), (40..50, false)];
        assert_eq!(parts(0..50), all);
        assert_eq!(parts(15..35), [(15..20, true), (20..30, false), (30..35, true)]);
    }
}
