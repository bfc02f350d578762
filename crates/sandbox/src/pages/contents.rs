//! What an area holds: pages of the dump over what the file behind it has.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::area::PAGE;
use super::backing::BackingFile;

/// Pages of the dump: so many bytes of memory from an address on, and where they lie in the pages' file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub memory: Range<u64>,
    pub at: u64,
}

impl Run {
    /// The part of it within `span`.
    pub fn within(&self, span: &Range<u64>) -> Option<Run> {
        let memory = self.memory.start.max(span.start)..self.memory.end.min(span.end);
        let at = self.at + memory.start.saturating_sub(self.memory.start);
        (memory.start < memory.end).then_some(Run { memory, at })
    }
}

/// Adds pages that lie behind all others in their file: the last run goes on where they follow it in memory too.
pub fn append(runs: &mut Vec<Run>, memory: u64, bytes: u64, at: u64) {
    match runs.last_mut() {
        Some(last) if last.memory.end == memory => last.memory.end += bytes,
        _ => runs.push(Run { memory: memory..memory + bytes, at }),
    }
}

/// The file behind an area.
#[derive(Debug, Clone)]
pub struct Base {
    pub file: Arc<BackingFile>,
    /// Where in it the area begins.
    pub offset: u64,
}

impl Base {
    /// What is behind the memory so many bytes further on.
    pub fn after(&self, bytes: u64) -> Base {
        Base { file: self.file.clone(), offset: self.offset + bytes }
    }
}

/// Where a stretch of memory comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Dump(u64),
    Base(u64),
}

/// The stretches that an area consists of, in order. What is in none of them is zero.
pub fn stretches(span: &Range<u64>, runs: &[Run], base: Option<&Base>) -> Vec<(Range<u64>, Source)> {
    let mut out = Vec::new();
    let mut from = span.start;
    for run in runs {
        out.extend(base.iter().flat_map(|base| from_base(span, from..run.memory.start, base)));
        out.push((run.memory.clone(), Source::Dump(run.at)));
        from = run.memory.end;
    }
    out.extend(base.iter().flat_map(|base| from_base(span, from..span.end, base)));
    out
}

fn from_base(span: &Range<u64>, gap: Range<u64>, base: &Base) -> impl Iterator<Item = (Range<u64>, Source)> {
    let in_file = |address: u64| base.offset + (address - span.start);
    let (begin, end) = (in_file(gap.start), in_file(gap.end));
    base.file.filled(begin..end).map(move |found| {
        let memory = gap.start + (found.start - begin)..gap.start + (found.end - begin);
        (memory, Source::Base(found.start))
    })
}

/// Calls `take` with the parts of a block, by their places in it, that are not all zero. Zeros between two parts are
/// taken along if they are fewer than `least`.
pub fn filled(
    block: &[u8],
    least: u64,
    mut take: impl FnMut(usize, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut part = 0..0;
    for (number, page) in block.chunks(PAGE as usize).enumerate() {
        let at = number * PAGE as usize;
        if is_zero(page) {
            continue;
        }
        if part.is_empty() {
            part.start = at;
        } else if (at - part.end) as u64 >= least {
            take(part.start, &block[part])?;
            part = at..at;
        }
        part.end = at + page.len();
    }
    if part.is_empty() { Ok(()) } else { take(part.start, &block[part]) }
}

/// The last page of a file is zero beyond the file's end, as it is in memory.
pub fn read_zero_filled(file: &File, mut block: &mut [u8], mut at: u64) -> io::Result<()> {
    while !block.is_empty() {
        match file.read_at(block, at) {
            Ok(0) => {
                block.fill(0);
                return Ok(());
            }
            Ok(got) => {
                block = &mut block[got..];
                at += got as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

pub fn is_zero(page: &[u8]) -> bool {
    page.chunks(64).all(|line| line.iter().fold(0, |all, byte| all | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dump_lies_over_the_file() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[1; 3 * 4096], 8 * 4096).unwrap();
        file.write_all_at(b"x", 20 * 4096).unwrap();
        file.set_len(1 << 30).unwrap();
        let base = Base { file: Arc::new(BackingFile::of(file).unwrap()), offset: 4 * 4096 };
        let span = 0x10_0000..0x10_0000 + 32 * 4096;
        let page = |number: u64| span.start + number * 4096;
        let runs = [Run { memory: page(5)..page(6), at: 0 }, Run { memory: page(30)..page(32), at: 4096 }];
        let found = stretches(&span, &runs, Some(&base));
        let expected = [
            (page(4)..page(5), Source::Base(8 * 4096)),
            (page(5)..page(6), Source::Dump(0)),
            (page(6)..page(7), Source::Base(10 * 4096)),
            (page(16)..page(17), Source::Base(20 * 4096)),
            (page(30)..page(32), Source::Dump(4096)),
        ];
        assert_eq!(found, expected);
        assert_eq!(stretches(&span, &runs, None).len(), 2);
    }

    #[test]
    fn only_what_is_not_zero_is_taken() {
        let mut block = vec![0; 6 * 4096];
        block[4096..2 * 4096].fill(7);
        block[3 * 4096..][..10].fill(8);
        let taken = |least| {
            let mut taken = Vec::new();
            filled(&block, least, |at, bytes| {
                taken.push((at, bytes.len(), bytes[0]));
                Ok(())
            })
            .unwrap();
            taken
        };
        assert_eq!(taken(PAGE), [(4096, 4096, 7), (3 * 4096, 4096, 8)]);
        assert_eq!(taken(2 * PAGE), [(4096, 3 * 4096, 7)]);
    }
}
