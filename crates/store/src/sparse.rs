//! Which spans of a file hold data, so that holes are neither read nor hashed.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

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

/// Whether nothing is kept there.
pub(crate) fn is_hole(file: &File, range: Range<u64>) -> io::Result<bool> {
    match lseek(file, range.start as i64, Whence::SeekData) {
        Ok(start) => Ok(start as u64 >= range.end),
        Err(nix::Error::ENXIO) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether there is anything but zeros from `at` on. What is no hole is read: a block that contents end in reaches beyond
/// them, and blocks may be as large as a huge page.
pub(crate) fn has_data_from(file: &File, at: u64) -> io::Result<bool> {
    let mut bytes = vec![0; 64 << 10];
    let mut at = at;
    loop {
        at = match lseek(file, at as i64, Whence::SeekData) {
            Ok(start) => start as u64,
            Err(nix::Error::ENXIO) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        };
        let count = file.read_at(&mut bytes, at)?;
        if !crate::chunk::is_zero(&bytes[..count]) {
            return Ok(true);
        }
        at += count.max(1) as u64;
    }
}

/// Whether any of the ordered `spans` meets `range`.
pub(crate) fn overlaps(spans: &[Range<u64>], range: Range<u64>) -> bool {
    let at = spans.partition_point(|span| span.end <= range.start);
    spans.get(at).is_some_and(|span| span.start < range.end)
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn zeros_that_are_no_hole_are_nothing() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(10 << 20).unwrap();
        file.write_all_at(&[0; 300_000], 4 << 20).unwrap();
        assert!(!has_data_from(&file, 1 << 20).unwrap());
        file.write_all_at(&[1], (4 << 20) + 299_999).unwrap();
        assert!(has_data_from(&file, 1 << 20).unwrap());
        assert!(!has_data_from(&file, (4 << 20) + 300_000).unwrap());
    }
}
