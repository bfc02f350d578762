//! A log as lines, each of one stream and with its time.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rekindle_protocol::daemon::{LogLine, Stream as Shown};
use rekindle_sandbox::log;
use rekindle_sandbox::log_index::{Reader, Stream};

use crate::host::clock;

/// A line that is longer is shown in pieces.
const LONGEST: usize = 64 << 10;
const PIECE: usize = 64 << 10;

/// The lines of a log from an offset on, as far as they are whole.
pub struct Lines {
    index: Option<Reader>,
    /// What has no end yet, of each stream.
    begun: Vec<PartialLine>,
    done: Vec<LogLine>,
}

struct PartialLine {
    stream: Stream,
    time_us: Option<u64>,
    text: Vec<u8>,
}

impl Lines {
    pub fn new(index: Option<Reader>) -> Lines {
        Lines { index, begun: Vec::new(), done: Vec::new() }
    }

    /// Has what the index has got since.
    pub fn read_index(&mut self) -> io::Result<()> {
        self.index.as_mut().map_or(Ok(()), Reader::read_on)
    }

    /// Takes in what stands at `offset` of the log.
    pub fn add(&mut self, mut offset: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let found = self.index.as_ref().map_or(Err(None), |index| index.find(offset));
            let (stream, time_us, length) = match found {
                Ok(entry) => (entry.stream, Some(entry.time_us), entry.end() - offset),
                // Nobody has said whose it is: a worker's words, or those that a full disk has no entry for.
                Err(until) => (Stream::Stdout, None, until.unwrap_or(u64::MAX)),
            };
            let (now, later) = bytes.split_at(bytes.len().min(usize::try_from(length).unwrap_or(usize::MAX)));
            self.add_of(stream, time_us, now);
            offset += now.len() as u64;
            bytes = later;
        }
    }

    fn add_of(&mut self, stream: Stream, time_us: Option<u64>, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let at = self.begun.iter().position(|begun| begun.stream == stream).unwrap_or_else(|| {
                self.begun.push(PartialLine { stream, time_us, text: Vec::new() });
                self.begun.len() - 1
            });
            self.begun[at].text.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.begun[at].text.len() >= LONGEST {
                let whole = self.begun.remove(at);
                self.done.push(whole.line());
            }
        }
    }

    /// The lines that have their end by now.
    pub fn take(&mut self) -> Vec<LogLine> {
        std::mem::take(&mut self.done)
    }

    /// No more comes: what has no end is a line too.
    pub fn end(&mut self) {
        self.done.extend(std::mem::take(&mut self.begun).into_iter().map(PartialLine::line));
    }
}

impl PartialLine {
    fn line(self) -> LogLine {
        let text = self.text.strip_suffix(b"\n").unwrap_or(&self.text);
        LogLine {
            time: self.time_us.map(clock::microseconds),
            stream: match self.stream {
                Stream::Stdout => Shown::Stdout,
                Stream::Stderr => Shown::Stderr,
                Stream::Rekindle => Shown::Rekindle,
            },
            text: String::from_utf8_lossy(text).into_owned(),
        }
    }
}

/// Where what was printed then or later begins: with a line. None where nobody knows when anything was printed.
pub fn since(log: &File, index: &Reader, time_us: u64) -> io::Result<u64> {
    match index.since(time_us) {
        // All that is known came before.
        None => Ok(index.end()),
        Some(offset) => next_line(log, offset),
    }
}

/// Where the first line begins at an offset or behind it.
fn next_line(log: &File, offset: u64) -> io::Result<u64> {
    let Some(mut at) = offset.checked_sub(1) else { return Ok(0) };
    let mut piece = vec![0; PIECE];
    loop {
        match log.read_at(&mut piece, at)? {
            0 => return Ok(at.max(offset)),
            got => match piece[..got].iter().position(|byte| *byte == b'\n') {
                Some(end) => return Ok(at + end as u64 + 1),
                None => at += got as u64,
            },
        }
    }
}

/// Where the last lines begin, so many of them, of a log of so many bytes, and not before `first`.
pub fn tail(log: &File, size: u64, first: u64, mut lines: u64) -> io::Result<u64> {
    let first = match log::begin(log, first)? {
        Some(begin) => begin.min(size),
        None => return Ok(size),
    };
    let mut piece = vec![0; PIECE];
    let mut end = size;
    while end > first {
        let begin = end.saturating_sub(PIECE as u64).max(first);
        let part = &mut piece[..(end - begin) as usize];
        log.read_exact_at(part, begin)?;
        for (at, _) in part.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            let after = begin + at as u64 + 1;
            // The end of the last line does not begin another.
            if after == size {
                continue;
            }
            if lines <= 1 {
                return Ok(if lines == 0 { size } else { after });
            }
            lines -= 1;
        }
        end = begin;
    }
    Ok(if lines == 0 { size } else { first })
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use rekindle_sandbox::log_index::Indexed;

    use super::*;

    fn written(parts: &[(Stream, &str)]) -> (tempfile::TempDir, File, Reader) {
        let directory = tempfile::tempdir().unwrap();
        let open = |name| {
            let path = directory.path().join(name);
            OpenOptions::new().read(true).append(true).create(true).open(path).unwrap()
        };
        let (log, index) = (open("log"), open("index"));
        let mut indexed = Indexed::new(0);
        for (stream, text) in parts {
            indexed.append(&log, Some(&index), *stream, text.as_bytes());
        }
        let mut reader = Reader::new(index);
        reader.read_on().unwrap();
        (directory, log, reader)
    }

    fn texts(lines: &[LogLine]) -> Vec<(Shown, &str)> {
        lines.iter().map(|line| (line.stream, line.text.as_str())).collect()
    }

    #[test]
    fn lines_that_two_streams_print_by_parts_are_whole() {
        let parts = [
            (Stream::Stdout, "o1 "),
            (Stream::Stderr, "e1 "),
            (Stream::Stdout, "o2\no3"),
            (Stream::Stderr, "e2\n"),
            (Stream::Stderr, "e3"),
        ];
        let (_directory, log, reader) = written(&parts);
        let all: String = parts.iter().map(|part| part.1).collect();
        assert_eq!(log.metadata().unwrap().len(), all.len() as u64);
        let mut lines = Lines::new(Some(reader));
        // By bytes, as a reader may meet them.
        for (at, byte) in all.bytes().enumerate() {
            lines.add(at as u64, &[byte]);
        }
        let whole = lines.take();
        assert_eq!(texts(&whole), [(Shown::Stdout, "o1 o2"), (Shown::Stderr, "e1 e2")]);
        assert!(whole.iter().all(|line| line.time.is_some()));
        lines.end();
        assert_eq!(texts(&lines.take()), [(Shown::Stdout, "o3"), (Shown::Stderr, "e3")]);
    }

    #[test]
    fn without_an_index_lines_have_no_time_and_long_ones_come_in_pieces() {
        let mut lines = Lines::new(None);
        lines.add(0, &[b"one\n".as_slice(), &vec![b'x'; LONGEST + 5], b"\n"].concat());
        let found = lines.take();
        assert!(found.iter().all(|line| line.time.is_none()));
        assert!(found.len() <= 3 && found[0].text == "one");
        let long: usize = found[1..].iter().map(|line| line.text.len()).sum();
        assert_eq!(long, LONGEST + 5);
    }

    #[test]
    fn the_last_lines_begin_where_they_should() {
        let (_directory, log, _) = written(&[(Stream::Stdout, "a\nbb\nccc\nopen")]);
        let from = |lines| tail(&log, 13, 0, lines).unwrap();
        assert_eq!([0, 1, 2, 3, 4, 5].map(from), [13, 9, 5, 2, 0, 0]);
        assert_eq!(tail(&log, 9, 0, 1).unwrap(), 5, "a whole line is the last one then");
        assert_eq!(tail(&log, 13, 3, 9).unwrap(), 3);
        let (_directory, log, _) = written(&[(Stream::Stdout, &"line\n".repeat(100_000))]);
        assert_eq!(tail(&log, 500_000, 0, 90_000).unwrap(), 50_000);
    }

    #[test]
    fn what_came_later_begins_with_a_line() {
        let (_directory, log, mut reader) = written(&[(Stream::Stdout, "old\nhalf of")]);
        let then = rekindle_sandbox::log_index::now_us();
        assert_eq!(since(&log, &reader, then + 1).unwrap(), 11);
        std::thread::sleep(std::time::Duration::from_millis(2));
        let index = File::options().append(true).read(true).open(_directory.path().join("index")).unwrap();
        let appended = File::options().append(true).read(true).open(_directory.path().join("log")).unwrap();
        let mut indexed = Indexed::new(0);
        indexed.append(&appended, Some(&index), Stream::Stdout, b" a line\nnew\n");
        reader.read_on().unwrap();
        assert_eq!(since(&log, &reader, then + 1).unwrap(), 19);
        assert_eq!(since(&log, &reader, 0).unwrap(), 0);
    }
}
