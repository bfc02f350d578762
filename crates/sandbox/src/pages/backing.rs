//! A file that memory is mapped from, and where it has contents.
//!
//! The kernel is asked once for all of the file: where contents end it finds by walking over them, so that to ask for each
//! of many small areas would take as long as there are areas and contents, and threads that ask of one file wait for each
//! other.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use nix::unistd::{Whence, lseek};

use super::area::PAGE;

#[derive(Debug)]
pub struct BackingFile {
    pub file: Arc<File>,
    /// Spans of whole pages, in order, none touching the next. The last may reach beyond the file's end within a page.
    filled: Vec<Range<u64>>,
}

impl BackingFile {
    pub fn open(path: &Path) -> io::Result<BackingFile> {
        BackingFile::of(File::open(path)?)
    }

    pub fn of(file: File) -> io::Result<BackingFile> {
        let filled = filled(&file)?;
        Ok(BackingFile { file: Arc::new(file), filled })
    }

    /// Where it has contents within `span`, in order.
    pub fn filled(&self, span: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = self.filled.partition_point(|one| one.end <= span.start);
        let met = self.filled[first..].iter().take_while(move |one| one.start < span.end);
        met.map(move |one| one.start.max(span.start)..one.end.min(span.end))
    }
}

fn filled(file: &File) -> io::Result<Vec<Range<u64>>> {
    let mut out: Vec<Range<u64>> = Vec::new();
    let mut at = 0;
    loop {
        let start = match lseek(file, at, Whence::SeekData) {
            Ok(start) => start,
            // Nothing but a hole is left.
            Err(nix::Error::ENXIO) => return Ok(out),
            Err(errno) => return Err(errno.into()),
        };
        at = lseek(file, start, Whence::SeekHole)?;
        let span = start as u64 / PAGE * PAGE..(at as u64).next_multiple_of(PAGE);
        match out.last_mut() {
            Some(last) if span.start <= last.end => last.end = span.end,
            _ => out.push(span),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn contents_are_found_within_any_span() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[1; 3 * PAGE as usize], 8 * PAGE).unwrap();
        file.write_all_at(b"x", 20 * PAGE).unwrap();
        let backing = BackingFile::of(file).unwrap();
        let found = |pages: Range<u64>| -> Vec<_> {
            let spans = backing.filled(pages.start * PAGE..pages.end * PAGE);
            spans.map(|span| (span.start / PAGE, span.end / PAGE)).collect()
        };
        assert_eq!(found(0..99), [(8, 11), (20, 21)]);
        assert_eq!(found(9..10), [(9, 10)]);
        assert_eq!(found(10..20), [(10, 11)]);
        assert!(found(11..20).is_empty() && found(21..99).is_empty());
        let empty = BackingFile::of(tempfile::tempfile().unwrap()).unwrap();
        assert_eq!(empty.filled(0..PAGE).count(), 0);
    }
}
