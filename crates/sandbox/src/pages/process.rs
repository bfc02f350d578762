//! One process of a dump: its areas and the pages that CRIU has written of them.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::area::{Area, PAGE};
use super::contents::Run;
use super::image::Entries;
use super::remaining::{RemainingPages, each_block};
use crate::proto::Message;

/// Of `mm_entry`.
const AREAS: u64 = 14;
/// Of `pagemap_entry`.
const ADDRESS: u64 = 1;
const COMPATIBLE_COUNT: u64 = 2;
const IN_PARENT: u64 = 3;
const ENTRY_FLAGS: u64 = 4;
const COUNT: u64 = 5;
/// Ours: where the pages lie, if not behind those of the entry before.
pub const PLACE: u32 = 100;
const PRESENT: u64 = 1 << 2;
/// It could also be brought later, by a server of pages.
const LAZY: u64 = 1 << 1;

pub struct Process {
    /// As it sees itself.
    pub pid: u32,
    pub areas: Vec<Area>,
    /// In order, none over another.
    pub runs: Vec<Run>,
    /// CRIU's file of their contents.
    pub pages: PathBuf,
    /// Whether they lie there in an order that CRIU does not know.
    pub is_scattered: bool,
    /// Where nothing may be touched.
    guards: Vec<Range<u64>>,
    mm_path: PathBuf,
    mm: Entries,
    map_path: PathBuf,
    map: Entries,
    /// What an entry of the page map looks like here.
    template: Message,
}

impl Process {
    /// The processes of a dump that have memory of their own.
    pub fn all(images: &Path) -> Result<Vec<Process>, String> {
        let failed = |error| format!("{}: {error}", images.display());
        let mut pids = Vec::new();
        for entry in fs::read_dir(images).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let name = name.to_str().and_then(|name| name.strip_prefix("mm-")?.strip_suffix(".img"));
            pids.extend(name.and_then(|pid| pid.parse::<u32>().ok()));
        }
        pids.sort_unstable();
        pids.into_iter().map(|pid| Process::read(images, pid)).collect()
    }

    fn read(images: &Path, pid: u32) -> Result<Process, String> {
        let strange = |what: &str| format!("process {pid}: {what}");
        let mm_path = images.join(format!("mm-{pid}.img"));
        let mm = Entries::read(&mm_path)?;
        let [memory] = &mm.entries[..] else { return Err(strange("its memory is described twice")) };
        let areas: Option<Vec<_>> = memory.all_bytes(AREAS).map(Area::read).collect();
        let areas = areas.ok_or_else(|| strange("an area of its memory cannot be understood"))?;
        let map_path = images.join(format!("pagemap-{pid}.img"));
        let map = Entries::read(&map_path)?;
        let (head, entries) = map.entries.split_first().ok_or_else(|| strange("it has no page map"))?;
        let number = head.number(1).ok_or_else(|| strange("its pages have no file"))?;
        let pages = images.join(format!("pages-{number}.img"));
        let (runs, written) =
            runs(entries).ok_or_else(|| strange("its page map has entries of an unknown kind"))?;
        let is_scattered = entries.iter().any(|entry| entry.number(PLACE.into()).is_some());
        let found = fs::metadata(&pages).map_or(0, |meta| meta.len());
        if found < written || (found > written && !is_scattered) {
            return Err(strange(&format!("its pages take {found} bytes, its page map says {written}")));
        }
        let mut template = entries.first().cloned().unwrap_or_default();
        template.remove(PLACE.into());
        let guards = guards(&areas);
        Ok(Process { pid, areas, runs, pages, is_scattered, guards, mm_path, mm, map_path, map, template })
    }

    /// One that no dump has.
    #[cfg(test)]
    pub fn made(areas: Vec<Area>, runs: Vec<Run>) -> Process {
        let nowhere = PathBuf::new();
        let none = Entries::default();
        Process {
            pid: 1,
            guards: guards(&areas),
            areas,
            runs,
            pages: nowhere.clone(),
            is_scattered: false,
            mm_path: nowhere.clone(),
            mm: none.clone(),
            map_path: nowhere,
            map: none,
            template: Message::default(),
        }
    }

    /// The runs within an area.
    pub fn runs_of(&self, area: &Area) -> Vec<Run> {
        within(&self.runs, &area.span)
    }

    /// Whether a guard lies within the area.
    pub fn is_guarded(&self, area: &Area) -> bool {
        self.guards.iter().any(|guard| guard.start < area.span.end && area.span.start < guard.end)
    }

    /// Describes the memory as `self.areas` have it now, with `runs` as the pages to be read.
    pub fn describe(&mut self, runs: &[Run]) {
        self.describe_areas();
        self.map.entries.truncate(1);
        for run in runs {
            let mut entry = self.template.clone();
            let count = (run.memory.end - run.memory.start) / PAGE;
            entry.set(ADDRESS, run.memory.start).set(COMPATIBLE_COUNT, count).set(ENTRY_FLAGS, PRESENT);
            if entry.number(COUNT).is_some() {
                entry.set(COUNT, count);
            }
            self.map.entries.push(entry);
        }
    }

    fn describe_areas(&mut self) {
        if let [memory] = &mut self.mm.entries[..] {
            memory.set_all_bytes(AREAS, self.areas.iter().map(|area| area.message.write()));
        }
    }

    /// Puts the pages into a file that has them in order, by way of `path`.
    fn settle(&mut self, images: &Path, path: &Path) -> io::Result<()> {
        let (mut kept, from) = (RemainingPages::create(path)?, File::open(&self.pages)?);
        for run in &self.runs {
            each_block(&from, run, |memory, bytes| kept.add(memory, bytes))?;
        }
        self.describe(&kept.finish(images)?);
        self.write(path)
    }

    /// Writes the areas alone.
    pub fn write_areas(&mut self) -> std::io::Result<()> {
        self.describe_areas();
        self.mm.write(&self.mm_path)
    }

    /// Writes the descriptions and puts `pages` in the place of CRIU's.
    pub fn write(&self, pages: &Path) -> std::io::Result<()> {
        self.mm.write(&self.mm_path)?;
        self.map.write(&self.map_path)?;
        fs::rename(pages, &self.pages)
    }
}

/// The parts of ordered runs that lie within `span`.
pub fn within(runs: &[Run], span: &Range<u64>) -> Vec<Run> {
    let first = runs.partition_point(|run| run.memory.end <= span.start);
    let met = runs[first..].iter().take_while(|run| run.memory.start < span.end);
    met.filter_map(|run| run.within(span)).collect()
}

/// Brings pages into the order of their addresses, where they are in another.
pub fn settle(images: &Path) -> Result<(), String> {
    for mut process in Process::all(images)?.into_iter().filter(|process| process.is_scattered) {
        let pid = process.pid;
        let settled = process.settle(images, &images.join(format!("settled-{pid}")));
        settled.map_err(|error| format!("the pages of process {pid} could not be put in order: {error}"))?;
    }
    Ok(())
}

/// The runs of a page map, and the bytes that their file has at least.
pub fn runs(entries: &[Message]) -> Option<(Vec<Run>, u64)> {
    let (mut runs, mut at, mut most) = (Vec::<Run>::new(), 0, 0);
    for entry in entries {
        let count = entry.number(COUNT).or(entry.number(COMPATIBLE_COUNT))?;
        let plain =
            entry.number(ENTRY_FLAGS)? & !LAZY == PRESENT && entry.number(IN_PARENT).unwrap_or(0) == 0;
        let start = entry.number(ADDRESS)?;
        let bytes = count.checked_mul(PAGE)?;
        let follows = runs.last().is_none_or(|last| last.memory.end <= start);
        if !plain || !follows || bytes == 0 || !start.is_multiple_of(PAGE) {
            return None;
        }
        at = entry.number(PLACE.into()).unwrap_or(at);
        runs.push(Run { memory: start..start.checked_add(bytes)?, at });
        at = at.checked_add(bytes)?;
        most = most.max(at);
    }
    Some((runs, most))
}

fn guards(areas: &[Area]) -> Vec<Range<u64>> {
    areas.iter().filter(|area| area.is_guard()).map(|area| area.span.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(address: u64, count: u64, flags: u64) -> Message {
        let mut entry = Message::default();
        entry.set(1, address).set(2, count).set(4, flags).set(5, count);
        entry
    }

    #[test]
    fn a_page_map_is_understood_or_refused() {
        let good = [entry(0x1000, 2, 4), entry(0x5000, 1, 6)];
        let (found, bytes) = runs(&good).unwrap();
        assert_eq!(bytes, 3 * 4096);
        assert_eq!(found[1], Run { memory: 0x5000..0x6000, at: 8192 });
        let mut placed = entry(0x5000, 1, 4);
        placed.set(PLACE.into(), 0x9000);
        let (found, bytes) = runs(&[entry(0x1000, 2, 4), placed]).unwrap();
        assert_eq!((found[1].at, bytes), (0x9000, 0xa000));
        for bad in [
            [entry(0x1000, 2, 4), entry(0x2000, 1, 4)],
            [entry(0x1000, 2, 4), entry(0x5000, 1, 1)],
            [entry(0x1000, 2, 4), entry(0x5000, 1, 2)],
            [entry(0x1000, 2, 4), entry(0x5001, 1, 4)],
            [entry(0x1000, 2, 4), entry(0x5000, u64::MAX / 4096, 4)],
        ] {
            assert!(runs(&bad).is_none());
        }
    }
}
