//! A dump in which memory lies in the page files of the program's last image, described as if the program had been restored
//! from that: such memory as mappings of those files, and all that differs from them as pages of the dump.
//!
//! ```text
//! memory      [ ······w·····0···· ]   one area; w was written since that image, 0 given back
//! page file     ······a·····b····     what the last image has of it
//! laid        [ ······▪·····▪···· ]   a mapping of the page file, with two pages of the dump over it
//! ```
//!
//! What a page file has of memory that is not known to be unwritten does not count: it is compared with what is there.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::area::{Area, PAGE};
use super::baseline::{Layout, Placement, bytes, within};
use super::contents::{Base, Run, append, is_zero, read_zero_filled};
use super::dump::Dump;
use super::few_threads;
use super::process::within as runs_within;
use super::remaining::without;

const BLOCK: u64 = 1 << 20;

/// Memory that becomes a mapping of a page file.
struct Part {
    span: Range<u64>,
    /// From where it begins in the page file.
    base: Base,
    /// What is behind it in the program.
    behind: Option<Base>,
}

/// Pages that come to a dump behind those that it has.
struct Added {
    file: File,
    end: u64,
    runs: Vec<Run>,
}

impl Added {
    fn to(pages: &Path) -> io::Result<Added> {
        let file = OpenOptions::new().read(true).write(true).open(pages)?;
        let end = file.metadata()?.len();
        Ok(Added { file, end, runs: Vec::new() })
    }

    fn add(&mut self, memory: u64, bytes: &[u8]) -> io::Result<()> {
        if !is_zero(bytes) {
            self.file.write_all_at(bytes, self.end)?;
        }
        self.note(memory, bytes.len() as u64);
        Ok(())
    }

    /// What is not written is zero.
    fn note(&mut self, memory: u64, bytes: u64) {
        append(&mut self.runs, memory, bytes, self.end);
        self.end += bytes;
    }

    /// Adds what a file has of `memory`.
    fn take_in(&mut self, base: &Base, memory: &Range<u64>) -> io::Result<()> {
        let mut block = vec![0; BLOCK.min(memory.end - memory.start) as usize];
        let mut at = memory.start;
        while at < memory.end {
            let block = &mut block[..BLOCK.min(memory.end - at) as usize];
            read_zero_filled(&base.file.file, block, base.offset + (at - memory.start))?;
            self.add(at, block)?;
            at += block.len() as u64;
        }
        Ok(())
    }
}

impl Dump<'_> {
    /// Lays the memory of all processes out so.
    pub fn lay(&mut self, layout: &Layout) -> Result<(), String> {
        for (pid, placements) in layout.0.iter().filter(|(_, placements)| !placements.is_empty()) {
            let Some(index) = self.processes.iter().position(|process| process.pid == *pid) else {
                return Err(format!("process {pid} has memory in the last image and is not in the dump"));
            };
            self.lay_process(index, placements).map_err(|error| {
                format!("the memory of process {pid} in the last image's page files: {error}")
            })?;
        }
        Ok(())
    }

    fn lay_process(&mut self, index: usize, placements: &[Placement]) -> io::Result<()> {
        let mut added = Added::to(&self.processes[index].pages)?;
        let (mut areas, mut parts, mut laid) = (Vec::new(), Vec::new(), 0);
        for area in std::mem::take(&mut self.processes[index].areas) {
            let ours = within(placements, &area.span);
            laid += bytes(&ours);
            let found = match ours.is_empty() {
                true => None,
                false => self.parts(index, &area, &ours)?,
            };
            match found {
                Some(found) => {
                    for (area, part) in found {
                        areas.push(area);
                        parts.push(part);
                    }
                }
                None => {
                    for Placement { file, run } in &ours {
                        added.take_in(&self.based(file, run.at)?, &run.memory)?;
                    }
                    areas.push(area);
                }
            }
        }
        if laid != bytes(placements) {
            return Err(io::Error::other("CRIU describes it otherwise than the kernel does"));
        }
        let process = &mut self.processes[index];
        let blocks = || [vec![0; BLOCK as usize], vec![0; BLOCK as usize]];
        let differing = rekindle_parallel::map(few_threads(), parts.len(), blocks, |blocks, at| {
            let part: &Part = &parts[at];
            part.differing(&part.unknown(placements, &process.runs), blocks)
        })?;
        for (part, spans) in parts.iter().zip(differing) {
            for span in spans {
                match &part.behind {
                    Some(behind) => added.take_in(&behind.after(span.start - part.span.start), &span)?,
                    None => added.note(span.start, span.end - span.start),
                }
            }
        }
        added.file.set_len(added.end)?;
        process.areas = areas;
        process.is_scattered |= !added.runs.is_empty();
        process.runs.extend(added.runs);
        process.runs.sort_unstable_by_key(|run| run.memory.start);
        Ok(())
    }

    /// An area as mappings of page files; none if it cannot be such mappings.
    fn parts(
        &mut self,
        index: usize,
        area: &Area,
        ours: &[Placement],
    ) -> io::Result<Option<Vec<(Area, Part)>>> {
        let is_plain = area.is_anonymous() || area.is_private_mapping();
        if !is_plain || area.is_executable() || self.processes[index].is_guarded(area) {
            return Ok(None);
        }
        let behind = match (area.is_anonymous(), self.path_of(area).map(Path::to_path_buf)) {
            (true, _) => None,
            (false, Some(path)) => match self.open_behind(&path, area.offset) {
                Ok(base) => Some(base),
                // What cannot be read here is left to CRIU.
                Err(_) => return Ok(None),
            },
            (false, None) => return Ok(None),
        };
        let Some(spans) = stretched(&area.span, ours) else { return Ok(None) };
        let mut parts = Vec::with_capacity(spans.len());
        for Placement { file, run } in spans {
            let id = self.files.page_file_id(&file);
            let mut mapped = area.part(run.memory.clone());
            mapped.map(id, run.at);
            let behind = behind.as_ref().map(|base| base.after(run.memory.start - area.span.start));
            parts.push((mapped, Part { base: self.based(&file, run.at)?, behind, span: run.memory }));
        }
        Ok(Some(parts))
    }

    fn open_behind(&mut self, path: &Path, offset: u64) -> io::Result<Base> {
        match super::page_file_name(path).map(str::to_string) {
            Some(name) => self.based(&name, offset),
            None => self.open_base(path, offset),
        }
    }

    fn based(&self, name: &str, offset: u64) -> io::Result<Base> {
        self.page_files.base(name, offset).map_err(io::Error::other)
    }
}

impl Part {
    /// The memory that neither the dump has nor is known to be as in the page file.
    fn unknown(&self, placements: &[Placement], runs: &[Run]) -> Vec<Range<u64>> {
        let ours = within(placements, &self.span).into_iter().map(|one| one.run.memory);
        let dumped = runs_within(runs, &self.span).into_iter().map(|run| run.memory);
        let mut known: Vec<_> = ours.chain(dumped).collect();
        known.sort_unstable_by_key(|span| span.start);
        let whole = Run { memory: self.span.clone(), at: 0 };
        without(&[whole], &known).into_iter().map(|run| run.memory).collect()
    }

    /// Of such memory the pages that differ from the page file: they are as what is behind them, or zero.
    fn differing(&self, unknown: &[Range<u64>], blocks: &mut [Vec<u8>; 2]) -> io::Result<Vec<Range<u64>>> {
        let mut differing = Vec::new();
        for stretch in unknown.iter().flat_map(|memory| self.filled(memory)) {
            self.compare(stretch, blocks, &mut differing)?;
        }
        Ok(differing)
    }

    /// Where in `memory` one of the two files has contents; in order.
    fn filled(&self, memory: &Range<u64>) -> Vec<Range<u64>> {
        let skip = memory.start - self.span.start;
        let length = memory.end - memory.start;
        let of = |base: &Base| -> Vec<_> {
            let begin = base.offset + skip;
            let spans = base.file.filled(begin..begin + length);
            spans.map(|span| memory.start + (span.start - begin)..memory.start + (span.end - begin)).collect()
        };
        let mut all = of(&self.base);
        all.extend(self.behind.iter().flat_map(of));
        all.sort_unstable_by_key(|span| span.start);
        let mut out: Vec<Range<u64>> = Vec::new();
        for span in all {
            match out.last_mut() {
                Some(last) if span.start <= last.end => last.end = last.end.max(span.end),
                _ => out.push(span),
            }
        }
        out
    }

    fn compare(
        &self,
        stretch: Range<u64>,
        [has, is]: &mut [Vec<u8>; 2],
        differing: &mut Vec<Range<u64>>,
    ) -> io::Result<()> {
        let mut at = stretch.start;
        while at < stretch.end {
            let (skip, bytes) = (at - self.span.start, BLOCK.min(stretch.end - at) as usize);
            let (has, is) = (&mut has[..bytes], &mut is[..bytes]);
            read_zero_filled(&self.base.file.file, has, self.base.offset + skip)?;
            match &self.behind {
                Some(behind) => read_zero_filled(&behind.file.file, is, behind.offset + skip)?,
                None => is.fill(0),
            }
            let pages = has.chunks(PAGE as usize).zip(is.chunks(PAGE as usize)).enumerate();
            for (number, _) in pages.filter(|(_, (has, is))| has != is) {
                let page = at + number as u64 * PAGE;
                match differing.last_mut() {
                    Some(last) if last.end == page => last.end += PAGE,
                    _ => differing.push(page..page + PAGE),
                }
            }
            at += bytes as u64;
        }
        Ok(())
    }
}

/// Placements that cover all of an area: each reaches on until the next one begins, in its file too. None if one would
/// begin before its file does.
fn stretched(area: &Range<u64>, ours: &[Placement]) -> Option<Vec<Placement>> {
    let mut out: Vec<Placement> = Vec::new();
    for one in ours {
        let goes_on = |last: &Placement| {
            last.file == one.file
                && last.run.at + (one.run.memory.start - last.run.memory.start) == one.run.at
        };
        match out.last_mut() {
            Some(last) if goes_on(last) => last.run.memory.end = one.run.memory.end,
            Some(last) => {
                last.run.memory.end = one.run.memory.start;
                out.push(one.clone());
            }
            None => out.push(one.clone()),
        }
    }
    let first = &mut out.first_mut()?.run;
    first.at = first.at.checked_sub(first.memory.start - area.start)?;
    first.memory.start = area.start;
    out.last_mut()?.run.memory.end = area.end;
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn placements_reach_to_the_next_one_and_to_the_borders_of_the_area() {
        let file: Arc<str> = "anon-7".into();
        let other: Arc<str> = "anon-7-2".into();
        let place = |file: &Arc<str>, memory: Range<u64>, at| Placement {
            file: file.clone(),
            run: Run { memory, at },
        };
        let ours = [place(&file, 20..30, 120), place(&file, 40..50, 140), place(&other, 60..70, 5)];
        let expected = [place(&file, 10..60, 110), place(&other, 60..90, 5)];
        assert_eq!(stretched(&(10..90), &ours), Some(expected.to_vec()));
        assert_eq!(stretched(&(10..90), &[place(&file, 20..30, 5)]), None);
    }
}
