//! Page files being written: where in them each area goes.
//!
//! A kernel lets one thread at a time write to a file, so what is large is spread over several.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rekindle_parallel::threads;

use super::copier::Pieces;
use super::{PageFile, TAIL};

/// Areas lie at the same place within one of these in memory and in the file, as large pages want it.
const ALIGNMENT: u64 = 2 << 20;
/// A process has no second file of a kind before each of the others has so much.
const SPREAD: u64 = 32 << 20;
/// More do not make it faster.
const MOST_FILES: usize = 8;
/// How many stripes an area has at most: each is a mapping of its own on a restore.
const MOST_STRIPES: u64 = 64;

/// The parts of an area that may lie in different files, for memory that may be mapped in parts.
pub fn stripes(span: &Range<u64>) -> Vec<Range<u64>> {
    let stripe = ((span.end - span.start) / MOST_STRIPES).max(SPREAD).next_multiple_of(ALIGNMENT);
    let mut out = Vec::new();
    let mut from = span.start;
    while from < span.end {
        let to = (from / ALIGNMENT * ALIGNMENT + stripe).min(span.end);
        out.push(from..to);
        from = to;
    }
    out
}

/// What the files of a kind that were made together are called: a file's name without its number among them.
pub fn set_of(name: &str) -> &str {
    name.split_once('.').map_or(name, |(set, _)| set)
}

/// The page files of one process, each made when it is first needed.
pub struct Writers {
    out: PathBuf,
    pid: u32,
    taken: Arc<HashSet<String>>,
    most: usize,
    all: Vec<Writer>,
}

pub struct Writer {
    kind: &'static str,
    pub name: String,
    pub file: Arc<File>,
    /// The bytes of its areas.
    bytes: u64,
    /// Where its last area ends.
    end: u64,
    /// Where its next area may begin: beyond the last one's hole.
    next: u64,
}

impl Writers {
    /// `taken` are names of page files that the program maps already.
    pub fn beside(taken: &Arc<HashSet<String>>, out: &Path, pid: u32) -> Writers {
        Writers { taken: taken.clone(), ..Writers::new(out, pid) }
    }

    pub fn new(out: &Path, pid: u32) -> Writers {
        let taken = Arc::default();
        Writers { out: out.to_path_buf(), pid, taken, most: threads().min(MOST_FILES), all: Vec::new() }
    }

    /// A file of that kind and the place in it for an area.
    pub fn place(&mut self, kind: &'static str, span: &Range<u64>) -> io::Result<(&Writer, u64)> {
        let index = self.choose(kind)?;
        let writer = &mut self.all[index];
        let length = span.end - span.start;
        let offset = place_after(writer.next, span);
        writer.bytes += length;
        writer.end = offset + length;
        writer.next = writer.end + length;
        Ok((writer, offset))
    }

    /// As [`Writers::place`] for a piece of an area. One that no large page fits in lies right behind the one before it,
    /// and none but the area's last can grow.
    pub fn place_piece(
        &mut self,
        kind: &'static str,
        span: &Range<u64>,
        is_last: bool,
    ) -> io::Result<(&Writer, u64)> {
        let index = self.choose(kind)?;
        let writer = &mut self.all[index];
        let length = span.end - span.start;
        let offset = if length < ALIGNMENT { writer.next } else { place_after(writer.next, span) };
        writer.bytes += length;
        writer.end = offset + length;
        writer.next = writer.end + if is_last { length } else { 0 };
        Ok((writer, offset))
    }

    /// The file of a kind that is to have the next area.
    fn choose(&mut self, kind: &'static str) -> io::Result<usize> {
        let known = || self.all.iter().enumerate().filter(|(_, writer)| writer.kind == kind);
        let number = known().count();
        let least = known().min_by_key(|(_, writer)| writer.bytes);
        match least {
            Some((index, writer)) if writer.bytes < SPREAD || number >= self.most => Ok(index),
            _ => self.create(kind, number),
        }
    }

    fn create(&mut self, kind: &'static str, number: usize) -> io::Result<usize> {
        let set = self.unused(kind);
        let name = if number == 0 { set } else { format!("{set}.{number}") };
        let mut options = OpenOptions::new();
        let file = Arc::new(options.write(true).create_new(true).mode(0o400).open(self.out.join(&name))?);
        self.all.push(Writer { kind, name, file, bytes: 0, end: 0, next: 0 });
        Ok(self.all.len() - 1)
    }

    /// `KIND-PID`, or that with a number behind it.
    fn unused(&self, kind: &str) -> String {
        let plain = format!("{kind}{}", self.pid);
        let numbered = (2u32..).map(|number| format!("{plain}-{number}"));
        let mut sets = std::iter::once(plain.clone()).chain(numbered);
        sets.find(|set| !self.taken.iter().any(|name| set_of(name) == set)).unwrap_or(plain)
    }

    pub fn finish(self, pieces: &Pieces) -> io::Result<Vec<PageFile>> {
        let mut out = Vec::new();
        for writer in self.all {
            writer.file.set_len(writer.end + TAIL)?;
            let path = self.out.join(&writer.name);
            let pieces = pieces.of(&writer.file);
            out.push(PageFile { name: writer.name, path, bytes: writer.end, pieces });
        }
        Ok(out)
    }
}

/// The first place from `next` on that an area may have.
fn place_after(next: u64, span: &Range<u64>) -> u64 {
    let offset = next / ALIGNMENT * ALIGNMENT + span.start % ALIGNMENT;
    if offset < next { offset + ALIGNMENT } else { offset }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::pages::ANONYMOUS;

    #[test]
    fn pieces_lie_close_under_a_name_that_is_free() {
        let directory = tempfile::tempdir().unwrap();
        let taken = Arc::new(["anon-7", "anon-7-2"].map(String::from).into());
        let mut writers = Writers::beside(&taken, directory.path(), 7);
        let mut place = |span: Range<u64>, is_last| writers.place_piece(ANONYMOUS, &span, is_last).unwrap().1;
        assert_eq!(place(0x7f00_0001_0000..0x7f00_0002_0000, false), 0);
        assert_eq!(place(0x7f00_0005_0000..0x7f00_0006_0000, true), 0x1_0000);
        // Behind the hole; and where large pages fit, at its place in memory within one.
        assert_eq!(place(0x7f00_0009_0000..0x7f00_000a_0000, false), 0x3_0000);
        assert_eq!(place(0x7f00_0101_0000..0x7f00_0201_0000, false), 0x21_0000);
        assert_eq!(writers.finish(&Pieces::default()).unwrap()[0].name, "anon-7-3");
    }

    #[test]
    fn areas_keep_their_place_within_large_pages_and_a_hole_after_them() {
        let directory = tempfile::tempdir().unwrap();
        let mut writers = Writers::new(directory.path(), 7);
        let spans = [0x7f00_0001_0000..0x7f00_0101_0000, 0x7f80_0000_3000..0x7f80_0001_3000];
        let mut last: u64 = 0;
        for span in &spans {
            let (_, offset) = writers.place(ANONYMOUS, span).unwrap();
            assert_eq!(offset % ALIGNMENT, span.start % ALIGNMENT);
            assert!(offset >= last);
            last = offset + 2 * (span.end - span.start);
        }
        let made = writers.finish(&Pieces::default()).unwrap();
        assert_eq!((made.len(), made[0].name.as_str()), (1, "anon-7"));
        assert_eq!(fs::metadata(&made[0].path).unwrap().len(), made[0].bytes + TAIL);
    }

    #[test]
    fn what_is_large_is_spread() {
        let directory = tempfile::tempdir().unwrap();
        let taken = Arc::new(["anon-7.1".to_string()].into());
        let mut writers = Writers { most: 3, ..Writers::beside(&taken, directory.path(), 7) };
        let whole = 0x7f00_0012_3000..0x7f10_0000_0000;
        let parts = stripes(&whole);
        assert!(parts.len() as u64 <= MOST_STRIPES + 1 && parts.len() > 32);
        assert_eq!((parts[0].start, parts.last().unwrap().end), (whole.start, whole.end));
        assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
        for part in &parts {
            let (writer, offset) = writers.place(ANONYMOUS, part).unwrap();
            assert!(offset + part.end - part.start == writer.end);
        }
        let made = writers.finish(&Pieces::default()).unwrap();
        let names: Vec<_> = made.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["anon-7-2", "anon-7-2.1", "anon-7-2.2"]);
        let small = stripes(&(0x1000..0x5000));
        assert_eq!((small.len(), &small[0]), (1, &(0x1000..0x5000)));
    }
}
