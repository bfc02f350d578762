//! Which spans of a file hold data, so that holes are neither read nor hashed.

use std::fs::File;
use std::io;
use std::ops::Range;

use nix::unistd::{Whence, lseek};

/// The spans of a file of `bytes` bytes that may hold data, in order.
pub(crate) fn data_spans(file: &File, bytes: u64) -> io::Result<Vec<Range<u64>>> {
    let mut spans = Vec::new();
    let mut at = 0;
    while at < bytes {
        let start = match lseek(file, at as i64, Whence::SeekData) {
            Ok(start) => start as u64,
            Err(nix::Error::ENXIO) => break,
            Err(errno) => return Err(errno.into()),
        };
        let end = lseek(file, start as i64, Whence::SeekHole)? as u64;
        spans.push(start..end);
        at = end;
    }
    Ok(spans)
}

/// Whether there is anything but a hole from `at` on. A block that the file's contents end in may reach beyond them.
pub(crate) fn has_data_from(file: &File, at: u64) -> io::Result<bool> {
    const LARGEST_BLOCK: u64 = 64 << 10;
    match lseek(file, at.next_multiple_of(LARGEST_BLOCK) as i64, Whence::SeekData) {
        Ok(_) => Ok(true),
        Err(nix::Error::ENXIO) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether any of the ordered `spans` meets `range`.
pub(crate) fn overlaps(spans: &[Range<u64>], range: Range<u64>) -> bool {
    let at = spans.partition_point(|span| span.end <= range.start);
    spans.get(at).is_some_and(|span| span.start < range.end)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn holes_are_found() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(10 << 20).unwrap();
        assert!(data_spans(&file, 10 << 20).unwrap().is_empty());
        file.write_all_at(b"x", 5 << 20).unwrap();
        let spans = data_spans(&file, 10 << 20).unwrap();
        assert!(overlaps(&spans, 5 << 20..6 << 20));
        assert!(!overlaps(&spans, 0..1 << 20));
        assert!(!overlaps(&spans, 9 << 20..10 << 20));
    }
}
