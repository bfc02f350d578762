//! Which pages a restored process has touched, by what the kernel says of its memory.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use rekindle_protocol::maps::{self, Area};
use rekindle_store::PageRun;

/// Where a restored process has its memory mapped from ([`image format`]: page files); what is not of the file any more
/// was written to since.
///
/// [`image format`]: ../../../docs/image-format.md
const PAGE_FILES: &[u8] = b"/run/rekindle/pages/";
const PAGE: u64 = 4096;
/// Bits of an entry of `/proc/PID/pagemap`.
const PRESENT: u64 = 1 << 63;
const OF_FILE: u64 = 1 << 61;
/// Pages that are looked at with one call.
const STRIDE: usize = 64 << 10;

/// Pages of private mappings of files: those of page files that were written to, and all that were read.
pub(crate) fn touched(pid: i32) -> io::Result<Vec<PageRun>> {
    let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
    let (mut runs, mut entries) = (Vec::new(), vec![0; STRIDE * 8]);
    for area in maps::of(pid)? {
        let Some(converted) = private_file(&area) else { continue };
        let (mut at, end) = (area.span.start, area.span.end);
        while at < end {
            let count = ((end - at) / PAGE).min(STRIDE as u64) as usize;
            let read = pagemap.read_at(&mut entries[..count * 8], at / PAGE * 8)?;
            let known = read / 8;
            let words = entries[..known * 8].chunks_exact(8).map(|bytes| {
                let mut word = [0; 8];
                word.copy_from_slice(bytes);
                u64::from_ne_bytes(word)
            });
            for (number, entry) in words.enumerate() {
                if let Some(written) = is_touched(entry, converted) {
                    push(&mut runs, at + number as u64 * PAGE, written);
                }
            }
            if known < count {
                return Err(ended());
            }
            at += count as u64 * PAGE;
        }
    }
    // Of a process that has ended there are no more lines, as there are none after the last.
    let is_there = File::open(format!("/proc/{pid}/maps"))?.read(&mut [0])? > 0;
    if is_there { Ok(runs) } else { Err(ended()) }
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "it has ended")
}

/// Whether the page was written to, if it was touched.
fn is_touched(entry: u64, converted: bool) -> Option<bool> {
    match (entry & PRESENT != 0, entry & OF_FILE != 0) {
        (true, true) => Some(false),
        (true, false) if converted => Some(true),
        _ => None,
    }
}

fn push(runs: &mut Vec<PageRun>, start: u64, written: bool) {
    match runs.last_mut() {
        Some(last) if last.written == written && last.start + last.pages * PAGE == start => last.pages += 1,
        _ => runs.push(PageRun { start, pages: 1, written }),
    }
}

/// Of a readable private mapping of a file: whether that is a page file.
fn private_file(area: &Area) -> Option<bool> {
    let is_private_file = area.may(libc::PROT_READ) && !area.is_shared && area.name.starts_with(b"/");
    is_private_file.then(|| area.name.starts_with(PAGE_FILES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_files_are_told_from_others() {
        let told = |line: &str| maps::parse(line.as_bytes()).first().and_then(private_file);
        assert_eq!(
            told("7f00000-7f02000 rw-p 00000000 fe:00 12   /run/rekindle/pages/anon-1000"),
            Some(true)
        );
        assert_eq!(told("7f00000-7f02000 r-xp 00000000 fe:00 12   /usr/lib/libc.so.6"), Some(false));
        for other in [
            "7f00000-7f02000 rw-s 00000000 fe:00 12 /run/rekindle/pages/anon-1",
            "7f00000-7f02000 rw-p 00000000 00:00 0",
            "7f00000-7f02000 rw-p 00000000 00:00 0 [heap]",
            "7f00000-7f02000 ---p 00000000 fe:00 12 /usr/lib/libc.so.6",
            "nonsense",
        ] {
            assert_eq!(told(other), None, "{other}");
        }
    }

    #[test]
    fn what_this_process_runs_was_read() {
        let here = what_this_process_runs_was_read as *const () as u64;
        let runs = touched(std::process::id() as i32).unwrap();
        let of_here = |run: &&PageRun| run.start <= here && here < run.start + run.pages * PAGE;
        assert!(!runs.iter().find(of_here).unwrap().written);
    }
}
