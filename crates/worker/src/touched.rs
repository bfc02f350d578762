//! Which pages a restored process has touched, by what the kernel says of its memory.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;

use rekindle_store::PageRun;

/// Where a restored process has its memory mapped from ([`image format`]: page files); what is not of the file any more
/// was written to since.
///
/// [`image format`]: ../../../docs/image-format.md
const PAGE_FILES: &str = "/run/rekindle/pages/";
const PAGE: u64 = 4096;
/// Bits of an entry of `/proc/PID/pagemap`.
const PRESENT: u64 = 1 << 63;
const OF_FILE: u64 = 1 << 61;
/// Pages that are looked at with one call.
const STRIDE: usize = 64 << 10;

/// Pages of private mappings of files: those of page files that were written to, and all that were read.
pub(crate) fn touched(pid: i32) -> io::Result<Vec<PageRun>> {
    let maps = BufReader::new(File::open(format!("/proc/{pid}/maps"))?);
    let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
    let (mut runs, mut entries) = (Vec::new(), vec![0; STRIDE * 8]);
    for line in maps.lines() {
        let Some((start, end, converted)) = private_file(&line?) else { continue };
        let mut at = start;
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

/// A readable private mapping of a file, as a line of `/proc/PID/maps` tells of it, and whether that is a page file.
fn private_file(line: &str) -> Option<(u64, u64, bool)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let flags = words.next()?.as_bytes();
    let path = words.nth(3)?;
    if flags.first() != Some(&b'r') || flags.get(3) != Some(&b'p') || !path.starts_with('/') {
        return None;
    }
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    Some((number(start)?, number(end)?, path.starts_with(PAGE_FILES)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_files_are_told_from_others() {
        let pages = "7f00000-7f02000 rw-p 00000000 fe:00 12   /run/rekindle/pages/anon-1000";
        assert_eq!(private_file(pages), Some((0x7f0_0000, 0x7f0_2000, true)));
        let library = "7f00000-7f02000 r-xp 00000000 fe:00 12   /usr/lib/libc.so.6";
        assert_eq!(private_file(library), Some((0x7f0_0000, 0x7f0_2000, false)));
        for other in [
            "7f00000-7f02000 rw-s 00000000 fe:00 12 /run/rekindle/pages/anon-1",
            "7f00000-7f02000 rw-p 00000000 00:00 0",
            "7f00000-7f02000 rw-p 00000000 00:00 0 [heap]",
            "7f00000-7f02000 ---p 00000000 fe:00 12 /usr/lib/libc.so.6",
            "nonsense",
        ] {
            assert_eq!(private_file(other), None, "{other}");
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
