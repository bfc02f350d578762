//! A process's areas of memory: in order, apart, and each of a kind that can be made again.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use super::Result;
use super::files::{Files, MEMFD, REGULAR};
use super::image::{Entry, entries};
use super::source::Source;
use crate::pages::page_file_name;
use crate::proto::Value;

pub const PAGE: u64 = 4096;

const MAP_TYPE: u64 = 0xf;
const MAP_PRIVATE: u64 = 0x2;
const MAP_ANONYMOUS: u64 = 0x20;

/// CRIU's marks of areas.
const PLAIN: u64 = 1 << 0;
const VSYSCALL: u64 = 1 << 2;
const FILE_PRIVATE: u64 = 1 << 6;
const FILE_SHARED: u64 = 1 << 7;
const ANON_SHARED: u64 = 1 << 8;
const ANON_PRIVATE: u64 = 1 << 9;
const AIO_RING: u64 = 1 << 13;
const IN_MEMFD: u64 = 1 << 14;
const GUARD: u64 = 1 << 16;
const BY_PLUGIN: u64 = 1 << 27;
const UNSUPPORTED: u64 = 1 << 31;
const KINDS: u64 = FILE_PRIVATE | FILE_SHARED | ANON_SHARED | ANON_PRIVATE;
/// The kernel's own areas, segments of System V, sockets, rings, stacks that the processor guards, probes.
const SPECIAL: u64 = VSYSCALL | 1 << 3 | 1 << 10 | 1 << 11 | 1 << 12 | AIO_RING | 1 << 15 | 1 << 17;

pub struct Area {
    pub span: Range<u64>,
    offset: u64,
    /// The number of its file, or of memory that is shared.
    object: u64,
    flags: u64,
    status: u64,
}

/// How far memory that processes share is mapped, by its number.
pub type Shared = HashMap<u64, u64>;

pub struct Areas {
    /// Those that there are, without guards.
    pub all: Vec<Area>,
    guards: Vec<Area>,
    /// The number of the program's file.
    program: u64,
}

impl Areas {
    pub fn read(source: &dyn Source, pid: u32) -> Result<Areas> {
        const PROGRAM: u64 = 12;
        const AREAS: u64 = 14;
        let name = format!("mm-{pid}.img");
        let text = source.read(&name)?;
        let entry = entries(&name, &text)?.next().transpose()?.ok_or_else(|| format!("{name} is empty"))?;
        entry.needed([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])?;
        let [program] = entry.needed([PROGRAM])?;
        let mut areas = Areas { all: Vec::new(), guards: Vec::new(), program };
        entry.each(|number, value| {
            if let (AREAS, Value::Bytes(text)) = (number, value) {
                let area = Area::read(pid, &entry.within(text))?;
                match area.status & GUARD {
                    0 if areas.guards.is_empty() => areas.all.push(area),
                    0 => return Err(format!("an area of process {pid} comes after a guard in {name}")),
                    _ => areas.guards.push(area),
                }
            }
            Ok(())
        })?;
        match areas.all.is_empty() {
            false => Ok(areas),
            true => Err(format!("process {pid} has no memory in {name}")),
        }
    }

    pub fn check(&self, pid: u32, files: &Files, source: &dyn Source) -> Result<()> {
        files.resolve(&format!("the program of process {pid}"), self.program, REGULAR)?;
        let mut end = 0;
        for area in &self.all {
            if area.span.start < end {
                return Err(format!(
                    "the areas of process {pid} are not in order or lie over each other at {:#x}",
                    area.span.start
                ));
            }
            end = area.span.end;
            area.check(pid, files, source)?;
        }
        match self.guards.iter().find(|guard| !self.covers(&guard.span, |_| true)) {
            None => Ok(()),
            Some(guard) => {
                Err(format!("a guard of process {pid} at {:#x} lies in no area", guard.span.start))
            }
        }
    }

    /// Whether areas of that kind lie over all of the span, one after the other.
    fn covers(&self, span: &Range<u64>, is_of_kind: impl Fn(&Area) -> bool) -> bool {
        let mut at = span.start;
        let first = self.all.partition_point(|area| area.span.end <= span.start);
        for area in &self.all[first..] {
            if at >= span.end || area.span.start > at || !is_of_kind(area) {
                break;
            }
            at = area.span.end;
        }
        at >= span.end
    }

    /// Whether CRIU would put pages there.
    pub fn take_pages(&self, span: &Range<u64>) -> bool {
        self.covers(span, Area::is_private)
    }

    pub fn note_shared(&self, shared: &mut Shared) {
        for area in
            self.all.iter().filter(|area| area.status & ANON_SHARED != 0 && area.status & SPECIAL == 0)
        {
            let end = area.offset.saturating_add(area.span.end - area.span.start);
            let known = shared.entry(area.object).or_default();
            *known = (*known).max(end);
        }
    }
}

impl Area {
    fn read(pid: u32, entry: &Entry<'_>) -> Result<Area> {
        let [start, end, offset, object, _, flags, status, _] = entry.needed([1, 2, 3, 4, 5, 6, 7, 8])?;
        let is_whole = start < end && start.is_multiple_of(PAGE) && end.is_multiple_of(PAGE);
        match is_whole {
            true => Ok(Area { span: start..end, offset, object, flags, status }),
            false => Err(format!("an area of process {pid} goes from {start:#x} to {end:#x}")),
        }
    }

    fn is_private(&self) -> bool {
        self.status & PLAIN != 0 && self.status & (ANON_PRIVATE | FILE_PRIVATE) != 0
            || self.status & AIO_RING != 0
    }

    fn check(&self, pid: u32, files: &Files, source: &dyn Source) -> Result<()> {
        let who = || format!("the area of process {pid} at {:#x}", self.span.start);
        if self.status & UNSUPPORTED != 0 {
            return Err(format!("{} is of a kind that CRIU cannot make", who()));
        }
        if self.status & PLAIN == 0 || self.status & SPECIAL != 0 {
            return Ok(());
        }
        let (is_private, is_anonymous) = match self.status & KINDS {
            FILE_PRIVATE => (true, false),
            FILE_SHARED => (false, false),
            ANON_PRIVATE => (true, true),
            // Of a file that nobody else can open.
            ANON_SHARED => (false, self.flags & MAP_ANONYMOUS != 0),
            _ => return Err(format!("{} is of several kinds or of none ({:#x})", who(), self.status)),
        };
        let fits = (self.flags & MAP_TYPE == MAP_PRIVATE) == is_private
            && (self.flags & MAP_ANONYMOUS != 0) == is_anonymous;
        if !fits {
            return Err(format!(
                "{} has flags {:#x} that its kind {:#x} cannot have",
                who(),
                self.flags,
                self.status
            ));
        }
        if self.status & (FILE_PRIVATE | FILE_SHARED) == 0 || self.status & BY_PLUGIN != 0 {
            return Ok(());
        }
        if !self.offset.is_multiple_of(PAGE) {
            return Err(format!("{} begins within a page of its file", who()));
        }
        let kind = if self.status & IN_MEMFD != 0 { MEMFD } else { REGULAR };
        files.resolve(&who(), self.object, kind)?;
        self.check_page_file(&who, files, source)
    }

    /// An area that maps a page file finds it there, as long as itself.
    fn check_page_file(&self, who: &dyn Fn() -> String, files: &Files, source: &dyn Source) -> Result<()> {
        let path = files.path(self.object).and_then(|path| std::str::from_utf8(path).ok());
        let Some(name) = path.and_then(|path| page_file_name(Path::new(path))) else { return Ok(()) };
        let length = source.page_file(name).ok_or_else(|| format!("the page file {name} is missing"))?;
        match self.offset.checked_add(self.span.end - self.span.start) {
            Some(end) if end <= length => Ok(()),
            _ => Err(format!("{} reaches beyond the end of the page file {name} ({length} bytes)", who())),
        }
    }
}
