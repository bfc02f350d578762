//! The page map of one process, or of memory that processes share, while CRIU tells of its pages.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::area::PAGE;
use super::copier::{From, Job, Jobs, Pieces, Source};
use super::populate;
use super::server::{Placed, Served};
use super::writers::Writers;
use crate::proto::Encoder;

/// The first words of every image, and of a page map.
const COMMON_MAGIC: u32 = 0x5456_4319;
const PAGEMAP_MAGIC: u32 = 0x5608_4025;

pub struct Map {
    pub id: u64,
    pub image: PathBuf,
    /// None for memory that is shared: its pages are taken as they come.
    pub source: Option<Arc<Source>>,
    pub number: u32,
    /// What CRIU reads.
    pub read: Book,
    pub populated: Option<Populated>,
    pub writers: Option<Writers>,
    /// In the order of their addresses, none over another.
    pub placed: Vec<(Placed, Arc<File>)>,
}

/// Memory that is [written into](populate) the restored process.
pub struct Populated {
    pub pid: u32,
    /// In order, none over another. What is placed goes before.
    pub spans: Vec<Range<u64>>,
    pub book: Book,
}

/// Pages that follow each other in a file.
pub struct Book {
    pub file: Arc<File>,
    pub end: u64,
    /// Addresses, counts and flags, in the order of the contents.
    pub entries: Vec<(u64, u64, u32)>,
}

impl Book {
    pub fn new(file: File) -> Book {
        Book { file: Arc::new(file), end: 0, entries: Vec::new() }
    }

    /// Has memory copied behind what is there.
    fn add(&mut self, source: &Arc<Source>, memory: &Range<u64>, flags: u32, jobs: &Jobs) {
        let bytes = memory.end - memory.start;
        let from = From::Process(source.clone(), memory.start);
        jobs.add(Job { from, bytes, file: self.file.clone(), offset: self.end });
        self.entries.push((memory.start, bytes / PAGE, flags));
        self.end += bytes;
    }

    /// Gives the file its length and writes the map of it.
    fn finish(&self, number: u32, image: &Path) -> io::Result<()> {
        self.file.set_len(self.end)?;
        let mut out = [COMMON_MAGIC.to_le_bytes(), PAGEMAP_MAGIC.to_le_bytes()].concat();
        let mut entry = |message: &Encoder| {
            out.extend_from_slice(&(message.0.len() as u32).to_le_bytes());
            out.extend_from_slice(&message.0);
        };
        let mut head = Encoder::default();
        head.number(1, number.into());
        entry(&head);
        for (address, pages, flags) in &self.entries {
            let mut one = Encoder::default();
            one.number(1, *address).number(2, *pages).number(4, (*flags).into()).number(5, *pages);
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
            let Some(populated) = &mut self.populated else {
                self.read.add(source, &piece, flags, jobs);
                continue;
            };
            for (piece, is_ours) in cut(&piece, &populated.spans, |span| span) {
                let book = if is_ours { &mut populated.book } else { &mut self.read };
                book.add(source, &piece, flags, jobs);
            }
        }
    }

    /// Writes the image of the map and gives all files their lengths.
    pub fn finish(self, pieces: &Pieces, served: &mut Served) -> io::Result<()> {
        self.read.finish(self.number, &self.image)?;
        served.contents.push((format!("pages-{}.img", self.number), pieces.of(&self.read.file)));
        if let Some(Populated { pid, book, .. }) = self.populated {
            book.finish(pid, &self.image.with_file_name(populate::map_name(pid)))?;
            served.contents.push((populate::pages_name(pid), pieces.of(&book.file)));
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
    use super::*;

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
