//! A log with a limit, which takes whatever is written to it.
//!
//! ```text
//! offset 0                    begin                    size
//!   │ given back: a hole        │ what is kept            │◀── appended
//! ```
//!
//! The file system gets the beginning back as a hole. Nothing moves by that: who reads or appends meanwhile goes on where
//! it was, and the size goes on growing while the space taken does not. Where the file system knows no holes, the file is
//! cut and begins anew with its last part. What a full disk does not take is counted, and the count is written where it
//! is missing once there is room.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::unistd::{Whence, lseek};

/// Holes are made of whole pieces of this size.
const PIECE: u64 = 4096;

/// What is known of a log while it is written.
#[derive(Debug)]
pub struct Log {
    /// The most bytes that are kept; 0: all.
    limit: u64,
    /// Bytes that were not taken, and nobody was told of.
    lost: u64,
    cause: String,
}

/// What became of bytes that were to be appended.
#[derive(Debug, Default)]
pub struct Appended {
    /// Words about what was lost before, which stand first.
    pub told: usize,
    pub written: usize,
    /// Where they ended, if that is known.
    pub end: Option<u64>,
    /// How much nearer to the file's beginning all is now.
    pub moved: u64,
}

impl Log {
    pub fn new(limit: u64) -> Log {
        Log { limit, lost: 0, cause: String::new() }
    }

    /// Appends what it can to the log, which is open to be read and appended to.
    pub fn append(&mut self, file: &File, bytes: &[u8]) -> Appended {
        let mut appended = Appended::default();
        if self.lost > 0 {
            let told = format!("\nrekindle: {} bytes of output are lost here: {}\n", self.lost, self.cause);
            match write(file, told.as_bytes()) {
                Ok(()) => (self.lost, appended.told) = (0, told.len()),
                Err((_, error)) => {
                    self.lose(bytes.len(), &error);
                    return appended;
                }
            }
        }
        appended.written = bytes.len();
        if let Err((left, error)) = write(file, bytes) {
            appended.written -= left;
            self.lose(left, &error);
        }
        // Others may append too: where these bytes are is told by where this descriptor is, until it is used to look.
        appended.end = lseek(file, 0, Whence::SeekCur).ok().map(|end| end as u64);
        match self.cut(file) {
            Ok(moved) => appended.moved = moved,
            Err(error) => self.cause = error.to_string(),
        }
        appended
    }

    /// Appends things of `size` bytes to a file of such, all or none, and tells nobody if it does not take them.
    pub fn append_whole(&mut self, file: &File, size: u64, bytes: &[u8]) {
        let whole = |length: u64| length / size * size;
        let Ok(before) = file.metadata().map(|found| found.len()) else { return };
        // One that was written in part has made no room for itself.
        let aligned = whole(before) == before || file.set_len(whole(before)).is_ok();
        if aligned && write(file, bytes).is_err() {
            let _ = file.set_len(whole(before));
        }
        let _ = self.cut(file);
    }

    /// Bytes that could not be written at all.
    pub fn lose(&mut self, bytes: usize, error: &io::Error) {
        self.lost += bytes as u64;
        self.cause = error.to_string();
    }

    /// Gives the beginning back if more is there than may be. How much nearer to it all the rest is then.
    fn cut(&self, mut file: &File) -> io::Result<u64> {
        let size = file.metadata()?.len();
        if self.limit == 0 || size <= self.limit {
            return Ok(0);
        }
        let begin = begin(file, 0)?.unwrap_or(size);
        // Not at every line.
        let keep = self.limit - self.limit / 8;
        let end = (size - keep) / PIECE * PIECE;
        if size - begin <= self.limit || end <= begin {
            return Ok(0);
        }
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        match fallocate(file, hole, 0, end as i64) {
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => {}
            other => return other.map(|()| 0).map_err(Into::into),
        }
        let mut last = Vec::new();
        let from = (size - self.limit / 2) / PIECE * PIECE;
        file.seek(SeekFrom::Start(from))?;
        file.read_to_end(&mut last)?;
        file.set_len(0)?;
        write(file, &last).map_err(|(_, error)| error)?;
        Ok(from)
    }
}

/// Where what is kept begins, from an offset on; none if there is nothing more.
pub fn begin(file: &File, from: u64) -> io::Result<Option<u64>> {
    match lseek(file, from as i64, Whence::SeekData) {
        Ok(at) => Ok(Some(at as u64)),
        Err(Errno::ENXIO) => Ok(None),
        // Without that question there are no holes.
        Err(Errno::EINVAL) => Ok((from < file.metadata()?.len()).then_some(from)),
        Err(error) => Err(error.into()),
    }
}

/// Reads what is kept, from an offset on: whole lines where a part is gone in between.
pub fn read(file: &File, from: &mut u64, into: &mut [u8]) -> io::Result<usize> {
    loop {
        // One that was cut begins anew.
        if file.metadata()?.len() < *from {
            *from = 0;
        }
        let Some(at) = begin(file, *from)? else { return Ok(0) };
        let got = file.read_at(into, at)?;
        // What was given back while it was read has become zeros.
        if begin(file, at)? != Some(at) && got > 0 {
            continue;
        }
        let skipped = match (at > *from, into[..got].iter().position(|&byte| byte == b'\n')) {
            (false, _) => 0,
            (true, Some(end)) => end + 1,
            (true, None) => got,
        };
        *from = at + got as u64;
        into.copy_within(skipped..got, 0);
        if skipped < got || got == 0 {
            return Ok(got - skipped);
        }
    }
}

/// How many bytes were not written, and why.
fn write(mut file: &File, mut bytes: &[u8]) -> Result<(), (usize, io::Error)> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err((bytes.len(), io::ErrorKind::WriteZero.into())),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((bytes.len(), error)),
        }
    }
    Ok(())
}

/// Somebody's own words, such as a daemon's: they go to a log with a limit, and never fail.
pub struct Words {
    file: File,
    log: Log,
}

impl Words {
    pub fn new(file: File, limit: u64) -> Words {
        Words { file, log: Log::new(limit) }
    }
}

impl Write for Words {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.log.append(&self.file, bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use super::*;

    fn open(path: &Path) -> File {
        OpenOptions::new().read(true).append(true).create(true).open(path).unwrap()
    }

    fn lines(file: &File) -> Vec<u64> {
        let (mut from, mut all, mut piece) = (0, Vec::new(), [0; 1000]);
        loop {
            match read(file, &mut from, &mut piece).unwrap() {
                0 => break,
                got => all.extend_from_slice(&piece[..got]),
            }
        }
        String::from_utf8(all).unwrap().lines().map(|line| line.parse().unwrap()).collect()
    }

    #[test]
    fn the_last_lines_are_kept_and_take_no_more_than_the_limit() {
        const LIMIT: u64 = 1 << 20;
        // On a disk and in memory.
        for directory in [tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap()] {
            let file = open(&directory.path().join("log"));
            let mut log = Log::new(LIMIT);
            for number in 0..1_000_000u64 {
                log.append(&file, format!("{number}\n").as_bytes());
            }
            let found = lines(&file);
            assert_eq!(found.last(), Some(&999_999));
            assert!(found.windows(2).all(|pair| pair[1] == pair[0] + 1));
            let bytes = found.len() as u64 * 7;
            assert!(bytes > LIMIT * 3 / 4 && bytes <= LIMIT, "{bytes}");
            let taken = file.metadata().unwrap().blocks() * 512;
            assert!(taken <= LIMIT + (256 << 10), "{taken}");
        }
    }

    #[test]
    fn who_follows_sees_every_line_that_is_kept_and_no_part_of_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let (file, reader) = (open(&path), open(&path));
        let writer = std::thread::spawn(move || {
            let mut log = Log::new(256 << 10);
            for number in 1_000_000..1_400_000u64 {
                log.append(&file, format!("{number}\n").as_bytes());
            }
        });
        let (mut from, mut rest, mut last, mut piece) = (0, Vec::new(), 999_999u64, vec![0; 64 << 10]);
        loop {
            let ended = writer.is_finished();
            let got = read(&reader, &mut from, &mut piece).unwrap();
            rest.extend_from_slice(&piece[..got]);
            while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                let text = std::str::from_utf8(&line).unwrap().trim();
                match text.parse::<u64>() {
                    Ok(number) if text.len() == 7 => {
                        assert!(number > last, "{number} after {last}");
                        last = number;
                    }
                    // The first half of a line whose second one was gone when it was looked for.
                    _ => {
                        assert!(text.len() < 14 && text.bytes().all(|byte| byte.is_ascii_digit()), "{text:?}")
                    }
                }
            }
            if ended && got == 0 {
                break;
            }
        }
        assert_eq!(last, 1_399_999);
        writer.join().unwrap();
    }

    #[test]
    fn what_is_lost_is_counted_where_it_is_missing() {
        let directory = tempfile::tempdir().unwrap();
        let file = open(&directory.path().join("log"));
        let mut log = Log::new(0);
        log.append(&file, b"one\n");
        log.append(&File::open("/dev/full").unwrap(), b"two\n");
        let full = OpenOptions::new().read(true).write(true).open("/dev/full").unwrap();
        log.append(&full, b"three\n");
        log.append(&file, b"four\n");
        let text = std::fs::read_to_string(directory.path().join("log")).unwrap();
        assert!(text.starts_with("one\n\nrekindle: 10 bytes of output are lost here: "), "{text}");
        assert!(text.contains("No space left on device") && text.ends_with("\nfour\n"), "{text}");
    }
}
