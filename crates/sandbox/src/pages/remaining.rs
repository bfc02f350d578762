//! The pages that CRIU still reads, in a new file: what its own had, without what went to page files.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::contents::{Run, append};

/// So much is written at once: what comes is often a single page.
const BUFFER: usize = 1 << 20;

/// Pages come area by area, and go into the file as they come.
pub struct RemainingPages {
    file: File,
    /// What has come and is not in the file yet.
    pending: Vec<u8>,
    runs: Vec<Run>,
    end: u64,
    path: PathBuf,
}

impl RemainingPages {
    pub fn create(path: &Path) -> io::Result<RemainingPages> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
        let (pending, runs) = Default::default();
        Ok(RemainingPages { file, pending, runs, end: 0, path: path.to_path_buf() })
    }

    pub fn add(&mut self, memory: u64, bytes: &[u8]) -> io::Result<()> {
        self.pending.extend_from_slice(bytes);
        append(&mut self.runs, memory, bytes.len() as u64, self.end);
        self.end += bytes.len() as u64;
        if self.pending.len() >= BUFFER { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.pending, self.end - self.pending.len() as u64)?;
        self.pending.clear();
        Ok(())
    }

    /// Changes bytes within a page that is kept.
    pub fn patch(&mut self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.flush()?;
        let run = self.runs.iter().find(|run| run.memory.contains(&address));
        let run = run.ok_or_else(|| io::Error::other("the page with the client's mark is not kept"))?;
        self.file.write_all_at(bytes, run.at + (address - run.memory.start))
    }

    /// Brings the pages into the order of their addresses, as CRIU reads them.
    pub fn finish(mut self, out: &Path) -> io::Result<Vec<Run>> {
        self.flush()?;
        if self.runs.is_sorted_by_key(|run| run.memory.start) {
            return Ok(self.runs);
        }
        self.runs.sort_by_key(|run| run.memory.start);
        let beside = out.join("read-sorted");
        let mut sorted = RemainingPages::create(&beside)?;
        for run in &self.runs {
            each_block(&self.file, run, |memory, bytes| sorted.add(memory, bytes))?;
        }
        sorted.flush()?;
        fs::rename(&beside, &self.path)?;
        Ok(sorted.runs)
    }
}

/// The runs with the ordered `spans` cut out.
pub fn without(runs: &[Run], spans: &[Range<u64>]) -> Vec<Run> {
    let mut out = Vec::new();
    for run in runs {
        let mut from = run.memory.start;
        let first = spans.partition_point(|span| span.end <= run.memory.start);
        for span in spans[first..].iter().take_while(|span| span.start < run.memory.end) {
            out.extend(run.within(&(from..span.start)));
            from = span.end;
        }
        out.extend(run.within(&(from..run.memory.end)));
    }
    out
}

/// Reads a run in pieces.
pub fn each_block(
    pages: &File,
    run: &Run,
    mut take: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    const BLOCK: u64 = 1 << 20;
    let mut memory = run.memory.start;
    while memory < run.memory.end {
        let mut block = vec![0; BLOCK.min(run.memory.end - memory) as usize];
        pages.read_exact_at(&mut block, run.at + (memory - run.memory.start))?;
        take(memory, &block)?;
        memory += block.len() as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::area::PAGE;

    #[test]
    fn spans_are_cut_out_of_runs() {
        let run = |start: u64, end: u64, at: u64| Run { memory: start..end, at };
        let runs = [run(0x1000, 0x5000, 0), run(0x8000, 0x9000, 0x4000)];
        let spans = [0x2000..0x3000, 0x8000..0xa000];
        assert_eq!(without(&runs, &spans), [run(0x1000, 0x2000, 0), run(0x3000, 0x5000, 0x2000)]);
        assert_eq!(without(&runs, &[]), runs);
    }

    #[test]
    fn kept_pages_are_put_in_order() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept");
        let mut kept = RemainingPages::create(&path).unwrap();
        kept.add(3 * PAGE, &[3; PAGE as usize]).unwrap();
        kept.add(PAGE, &[1; PAGE as usize]).unwrap();
        kept.patch(3 * PAGE + 1, b"x").unwrap();
        kept.add(4 * PAGE, &vec![4; BUFFER]).unwrap();
        let runs = kept.finish(directory.path()).unwrap();
        assert_eq!(
            runs.iter().map(|run| (run.memory.start, run.at)).collect::<Vec<_>>(),
            [(PAGE, 0), (3 * PAGE, PAGE)]
        );
        let written = fs::read(&path).unwrap();
        assert_eq!((written[0], written[4096], written[4097]), (1, 3, b'x'));
        assert_eq!((written.len(), written[8192], written[8192 + BUFFER - 1]), (8192 + BUFFER, 4, 4));
    }
}
