//! Converting the memory of one process: its contents into page files or into what is still read, its areas into mappings
//! of those.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::PageFile;
use super::area::Area;
use super::contents::{Base, Run, Source, stretches};
use super::copier::{From, Job, Jobs, Pieces};
use super::files::Files;
use super::mark;
use super::process::within;
use super::remaining::{RemainingPages, each_block, without};
use super::shared::{Dumped, Group, Piece};
use super::writers::Writers;

/// A process under conversion: areas are handed to it in their order.
pub struct Conversion<'a> {
    from: Dumped<'a>,
    files: &'a mut Files,
    /// The ids of page files by their names.
    ids: HashMap<String, u64>,
    jobs: &'a Jobs,
    writers: Writers,
    kept: RemainingPages,
    kept_path: PathBuf,
    out: &'a Path,
    areas: Vec<Area>,
    /// What is not for CRIU to read any more, or is in `kept` already.
    cut: Vec<Range<u64>>,
    /// Whether it maps page files.
    maps: bool,
}

/// What a process is to be described by.
pub struct Converted {
    pub areas: Vec<Area>,
    pub files: Vec<PageFile>,
    /// The pages that are still read, and the file that they are in.
    pub runs: Vec<Run>,
    pub pages: PathBuf,
}

impl<'a> Conversion<'a> {
    pub fn begin(
        from: Dumped<'a>,
        files: &'a mut Files,
        jobs: &'a Jobs,
        out: &'a Path,
        taken: &Arc<HashSet<String>>,
    ) -> io::Result<Conversion<'a>> {
        let pid = from.process.pid;
        let kept_path = out.join(format!("read-{pid}"));
        let kept = RemainingPages::create(&kept_path)?;
        let writers = Writers::beside(taken, out, pid);
        let (ids, areas, cut) = Default::default();
        Ok(Conversion { from, files, ids, jobs, writers, kept, kept_path, out, areas, cut, maps: false })
    }

    /// An area that stays as it is.
    pub fn leave(&mut self, area: &Area) {
        self.areas.push(area.clone());
    }

    /// An area that is to map a page file of this kind.
    pub fn map(&mut self, area: &Area, kind: &'static str, base: Option<&Base>) -> io::Result<()> {
        let span = &area.span;
        let (writer, offset) = self.writers.place(kind, span)?;
        let (name, file) = (writer.name.clone(), writer.file.clone());
        self.maps = true;
        self.copy(area, span, base, &file, span.start, offset);
        let id = self.id(&name);
        let mut mapped = area.clone();
        mapped.map(id, offset);
        self.areas.push(mapped);
        self.cut.push(span.clone());
        Ok(())
    }

    /// An area that is to be read again.
    pub fn read(&mut self, area: &Area, base: &Base) -> io::Result<()> {
        for (memory, from) in self.contents(area, &area.span, Some(base)) {
            from.each_filled(&memory, |at, bytes| self.kept.add(at, bytes))?;
        }
        let mut anonymous = area.clone();
        anonymous.unmap();
        self.areas.push(anonymous);
        self.cut.push(area.span.clone());
        Ok(())
    }

    /// Areas that go on to map what they were restored from, but for what has changed.
    pub fn share(&mut self, group: &Group) -> io::Result<()> {
        let all = &self.from.process.areas;
        let first = &all[group.areas.start];
        self.maps = true;
        for (number, piece) in group.pieces.iter().enumerate() {
            let mapped = match piece {
                Piece::Base { area, span } => {
                    let whole = &all[*area];
                    let mut part = whole.part(span.clone());
                    part.map(whole.file, whole.offset + (span.start - whole.span.start));
                    part
                }
                Piece::Own { span } => {
                    let (file, offset) = self.write(group, span, number + 1 == group.pieces.len())?;
                    let mut part = first.part(span.clone());
                    part.map(file, offset);
                    part
                }
            };
            self.areas.push(mapped);
        }
        for run in group.read() {
            each_block(self.from.pages, &run, |memory, bytes| self.kept.add(memory, bytes))?;
        }
        self.cut.push(first.span.start..all[group.areas.end - 1].span.end);
        Ok(())
    }

    /// Writes a piece of a group to the image's own page file; that file's id and the place in it.
    fn write(&mut self, group: &Group, span: &Range<u64>, is_last: bool) -> io::Result<(u64, u64)> {
        let Dumped { process, inherited, .. } = self.from;
        let kind = inherited[&group.areas.start].kind;
        let (writer, offset) = self.writers.place_piece(kind, span, is_last)?;
        let (name, file) = (writer.name.clone(), writer.file.clone());
        for at in group.areas.clone() {
            let area = &process.areas[at];
            let part = span.start.max(area.span.start)..span.end.min(area.span.end);
            if !part.is_empty() {
                self.copy(area, &part, Some(&inherited[&at].base), &file, span.start, offset);
            }
        }
        Ok((self.id(&name), offset))
    }

    /// The id of a page file of the new image's own.
    fn id(&mut self, name: &str) -> u64 {
        let files = &mut self.files;
        *self.ids.entry(name.to_string()).or_insert_with(|| files.add(name))
    }

    /// Has what an area holds of `part` copied to where it belongs in a file: `start` lies at `offset`.
    fn copy(
        &self,
        area: &Area,
        part: &Range<u64>,
        base: Option<&Base>,
        file: &Arc<File>,
        start: u64,
        offset: u64,
    ) {
        for (memory, from) in self.contents(area, part, base) {
            let (bytes, offset) = (memory.end - memory.start, offset + (memory.start - start));
            self.jobs.add(Job { from, bytes, file: file.clone(), offset });
        }
    }

    /// What an area holds of `part`, by addresses in memory. What is in none of it is zero.
    fn contents(&self, area: &Area, part: &Range<u64>, base: Option<&Base>) -> Vec<(Range<u64>, From)> {
        let Dumped { process, pages, .. } = self.from;
        let base = base.map(|base| base.after(part.start - area.span.start));
        let found = stretches(part, &within(&process.runs, part), base.as_ref());
        let read = |source| match (source, &base) {
            (Source::Base(at), Some(base)) => From::File(base.file.file.clone(), at),
            (Source::Base(at) | Source::Dump(at), _) => From::File(pages.clone(), at),
        };
        found.into_iter().map(|(memory, source)| (memory, read(source))).collect()
    }

    /// `mark` is where the client's mark is in memory.
    pub fn finish(mut self, mark: Option<u64>) -> io::Result<Converted> {
        for run in without(&self.from.process.runs, &self.cut) {
            each_block(self.from.pages, &run, |memory, bytes| self.kept.add(memory, bytes))?;
        }
        if let Some(address) = mark.filter(|_| self.maps) {
            self.kept.patch(address, &mark::CONVERTED.to_le_bytes())?;
        }
        Ok(Converted {
            areas: self.areas,
            files: self.writers.finish(&Pieces::default())?,
            runs: self.kept.finish(self.out)?,
            pages: self.kept_path,
        })
    }
}
