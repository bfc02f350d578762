//! When what is in a log came, and from where: beside the log, which stays plain text.
//!
//! ```text
//! log     ──┬─────────┬───────────┬──────┬──▶   bytes, as they were printed
//! index     │ entry 0 │  entry 1  │      │      32 bytes each: where, how long, when, which stream
//!           └─────────┴───────────┴──────┴      a stretch without an entry: another's, or the disk was full
//! ```
//!
//! An entry is written after its bytes. Whoever knows that the writer rests finds an entry for all that it has written. The
//! index has a limit as the log does, half as large, and what it has no room for has no time.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::log::{Log, begin};

/// Divides the pieces in which a file's beginning is given back.
const ENTRY: usize = 32;
const MAGIC: u32 = u32::from_le_bytes(*b"rkli");
/// Entries that are read at once.
const AT_ONCE: usize = 2048;

/// Who has written something in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stream {
    Stdout,
    Stderr,
    /// What is said about the program, and not by it.
    Rekindle,
}

const STREAMS: [Stream; 3] = [Stream::Stdout, Stream::Stderr, Stream::Rekindle];

/// A stretch of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub offset: u64,
    pub length: u64,
    /// Microseconds since 1970.
    pub time_us: u64,
    pub stream: Stream,
}

impl Entry {
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }

    fn to_bytes(self) -> [u8; ENTRY] {
        let number = STREAMS.iter().position(|stream| *stream == self.stream).unwrap_or_default() as u32;
        let mut bytes = [0; ENTRY];
        bytes[..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.length.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.time_us.to_le_bytes());
        bytes[24..28].copy_from_slice(&number.to_le_bytes());
        bytes[28..].copy_from_slice(&MAGIC.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Entry> {
        let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let short = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let stream = *STREAMS.get(short(24)? as usize)?;
        let entry = Entry { offset: long(0)?, length: long(8)?, time_us: long(16)?, stream };
        (short(28)? == MAGIC).then_some(entry)
    }
}

/// Where the index of a log lies.
pub fn beside(log: &Path) -> PathBuf {
    log.with_extension("index")
}

/// A log that is written with its index.
#[derive(Debug)]
pub struct Indexed {
    log: Log,
    index: Log,
}

impl Indexed {
    /// At most `limit` bytes of the log are kept; 0: all.
    pub fn new(limit: u64) -> Indexed {
        Indexed { log: Log::new(limit), index: Log::new(limit / 2) }
    }

    /// Appends what it can to the log, which is open to be read and appended to, as the index is. Without an index
    /// nobody learns when that was.
    pub fn append(&mut self, log: &File, index: Option<&File>, stream: Stream, bytes: &[u8]) {
        let done = self.log.append(log, bytes);
        let (Some(index), Some(end)) = (index, done.end) else { return };
        if done.moved > 0 {
            // What cannot be said of the lines before is left out.
            let _ = shift(index, done.moved);
        }
        let (end, time_us) = (end.saturating_sub(done.moved), now_us());
        let entry = |end: u64, length: usize, stream| Entry {
            offset: end.saturating_sub(length as u64),
            length: length as u64,
            time_us,
            stream,
        };
        let own = entry(end.saturating_sub(done.written as u64), done.told, Stream::Rekindle);
        let entries = [own, entry(end, done.written, stream)];
        let bytes: Vec<u8> =
            entries.into_iter().filter(|entry| entry.length > 0).flat_map(Entry::to_bytes).collect();
        self.index.append_whole(index, ENTRY as u64, &bytes);
    }

    /// Bytes that could not be written at all.
    pub fn lose(&mut self, bytes: usize, error: &io::Error) {
        self.log.lose(bytes, error);
    }
}

/// The log's beginning is gone, and all the rest is so many bytes nearer to it.
fn shift(index: &File, by: u64) -> io::Result<()> {
    let mut reader = Reader::new(index.try_clone()?);
    reader.read_on()?;
    let kept = reader.entries.into_iter().filter(|entry| entry.offset >= by);
    let moved: Vec<u8> =
        kept.flat_map(|entry| Entry { offset: entry.offset - by, ..entry }.to_bytes()).collect();
    index.set_len(0)?;
    let mut index = index;
    index.write_all(&moved)
}

pub fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// The entries of an index, read as it grows.
#[derive(Debug)]
pub struct Reader {
    file: File,
    at: u64,
    entries: Vec<Entry>,
}

impl Reader {
    pub fn new(file: File) -> Reader {
        Reader { file, at: 0, entries: Vec::new() }
    }

    /// Reads what has come since.
    pub fn read_on(&mut self) -> io::Result<()> {
        let mut piece = vec![0; AT_ONCE * ENTRY];
        if self.file.metadata()?.len() < self.at {
            // The log was cut, and begins anew.
            (self.at, self.entries) = (0, Vec::new());
        }
        while let Some(at) = begin(&self.file, self.at)? {
            let at = at.next_multiple_of(ENTRY as u64);
            let got = self.file.read_at(&mut piece, at)? / ENTRY * ENTRY;
            if got == 0 {
                break;
            }
            // What was given back meanwhile has become zeros, which are no entries.
            self.entries.extend(piece[..got].chunks_exact(ENTRY).filter_map(Entry::from_bytes));
            self.at = at + got as u64;
        }
        Ok(())
    }

    /// Where the first stretch begins that came then or later; none if none did.
    pub fn since(&self, time_us: u64) -> Option<u64> {
        self.entries.iter().find(|entry| entry.time_us >= time_us).map(|entry| entry.offset)
    }

    /// The end of the last stretch that is known.
    pub fn end(&self) -> u64 {
        self.entries.last().map_or(0, Entry::end)
    }

    /// The stretch that a byte is in, or else how far the next one is away, as far as is known.
    pub fn find(&self, offset: u64) -> Result<Entry, Option<u64>> {
        let next = self.entries.partition_point(|entry| entry.end() <= offset);
        match self.entries.get(next) {
            Some(entry) if entry.offset <= offset => Ok(*entry),
            Some(entry) => Err(Some(entry.offset - offset)),
            None => Err(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn open(path: &Path) -> File {
        OpenOptions::new().read(true).append(true).create(true).open(path).unwrap()
    }

    fn reader(path: &Path) -> Reader {
        let mut reader = Reader::new(File::open(path).unwrap());
        reader.read_on().unwrap();
        reader
    }

    #[test]
    fn each_stretch_is_found_with_its_stream_and_what_another_wrote_is_nobodys() {
        let directory = tempfile::tempdir().unwrap();
        let (log_path, index_path) = (directory.path().join("log"), directory.path().join("log.index"));
        let (log, other, index) = (open(&log_path), open(&log_path), open(&index_path));
        let mut indexed = Indexed::new(0);
        indexed.append(&log, Some(&index), Stream::Stdout, b"out\n");
        (&other).write_all(b"another's\n").unwrap();
        indexed.append(&log, Some(&index), Stream::Stderr, b"error\n");
        let reader = reader(&index_path);
        let stream = |at| reader.find(at).map(|entry| entry.stream);
        assert_eq!((stream(0), stream(3), stream(14), stream(19)), {
            (Ok(Stream::Stdout), Ok(Stream::Stdout), Ok(Stream::Stderr), Ok(Stream::Stderr))
        });
        assert_eq!((stream(4), stream(20), reader.end()), (Err(Some(10)), Err(None), 20));
        assert_eq!(reader.since(now_us() + 1_000_000), None);
        assert_eq!(reader.since(0), Some(0));
    }

    #[test]
    fn what_is_lost_is_told_by_us() {
        let directory = tempfile::tempdir().unwrap();
        let (log_path, index_path) = (directory.path().join("log"), directory.path().join("log.index"));
        let (log, index) = (open(&log_path), open(&index_path));
        let full = OpenOptions::new().read(true).write(true).open("/dev/full").unwrap();
        let mut indexed = Indexed::new(0);
        indexed.append(&full, Some(&index), Stream::Stdout, b"lost");
        indexed.append(&log, Some(&full), Stream::Stdout, b"no time\n");
        indexed.append(&log, Some(&index), Stream::Stderr, b"known\n");
        let text = std::fs::read_to_string(&log_path).unwrap();
        assert!(text.contains("4 bytes of output are lost") && text.ends_with("no time\nknown\n"), "{text}");
        let reader = reader(&index_path);
        let known = text.find("known").unwrap() as u64;
        assert_eq!(reader.find(known).unwrap().stream, Stream::Stderr);
        assert_eq!(reader.find(0), Err(Some(known)));
    }

    #[test]
    fn half_an_entry_does_not_spoil_those_behind_it() {
        let directory = tempfile::tempdir().unwrap();
        let (log_path, index_path) = (directory.path().join("log"), directory.path().join("log.index"));
        let (log, index) = (open(&log_path), open(&index_path));
        let mut indexed = Indexed::new(0);
        indexed.append(&log, Some(&index), Stream::Stdout, b"a");
        // As a disk leaves it that is full in the middle of one.
        (&index).write_all(&[1; 20]).unwrap();
        indexed.append(&log, Some(&index), Stream::Stderr, b"b");
        let reader = reader(&index_path);
        assert_eq!(reader.entries.len(), 2);
        assert_eq!(reader.find(1).unwrap().stream, Stream::Stderr);
    }

    #[test]
    fn the_index_takes_no_more_than_half_of_what_the_log_may() {
        const LIMIT: u64 = 1 << 20;
        let directory = tempfile::tempdir().unwrap();
        let (log_path, index_path) = (directory.path().join("log"), directory.path().join("log.index"));
        let (log, index) = (open(&log_path), open(&index_path));
        let mut indexed = Indexed::new(LIMIT);
        for _ in 0..200_000 {
            indexed.append(&log, Some(&index), Stream::Stdout, b"short\n");
        }
        let taken = index.metadata().unwrap().blocks() * 512;
        assert!(taken <= LIMIT / 2 + (128 << 10), "{taken}");
        let reader = reader(&index_path);
        assert_eq!(reader.end(), 200_000 * 6);
        assert!(reader.entries.windows(2).all(|pair| pair[0].end() == pair[1].offset), "where the lines are");
        assert!(reader.entries.len() > 10_000, "{}", reader.entries.len());
    }

    #[test]
    fn a_log_that_was_cut_has_its_times_where_its_lines_are() {
        let directory = tempfile::tempdir().unwrap();
        let index_path = directory.path().join("log.index");
        let index = open(&index_path);
        let entry = |offset| Entry { offset, length: 10, time_us: offset, stream: Stream::Stdout };
        for offset in [0, 10, 20, 30] {
            (&index).write_all(&entry(offset).to_bytes()).unwrap();
        }
        shift(&index, 15).unwrap();
        let reader = reader(&index_path);
        let found: Vec<_> = reader.entries.iter().map(|entry| (entry.offset, entry.time_us)).collect();
        assert_eq!(found, [(5, 20), (15, 30)]);
    }
}
