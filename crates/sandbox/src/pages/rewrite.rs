//! Rewriting a dump: deciding for each area, writing the page files, then the images.
//!
//! Nothing of the dump is changed before all that takes room is written, so a refusal leaves it as it was.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rekindle_code::elf::is_elf;

use super::baseline::{Layout, Placement, without};
use super::contents::{Base, Run};
use super::convert::{Conversion, Converted};
use super::copier::Jobs;
use super::dump::Dump;
use super::page_files::PageFiles;
use super::shared::{self, Dumped, Group, Inherited};
use super::{ANONYMOUS, PRIVATE, Refusal, Rewritten, page_file_name};
use crate::inventory::is_elsewhere;

/// Areas with less than this of contents are read: a mapping costs more.
const LEAST: u64 = 64 << 10;
/// A private mapping of a file goes to a page file, with its clean pages, if it is at most this many times as long as
/// what was written to it: an image does not take a file of weights in for a few pages of it.
const MOST_CLEAN: u64 = 8;

/// What is wanted of a rewriting.
#[derive(Debug, Clone, Copy)]
pub struct RewriteOptions<'a> {
    /// The directory of the page files that the program was restored from, if it was from some.
    pub earlier: &'a Path,
    /// Those files, and the page files of its last image.
    pub files: &'a PageFiles,
    /// The memory that lies in those of its last image and that CRIU has not written, if there is any.
    pub last: Option<&'a Layout>,
    /// With `false`, all is read again.
    pub map: bool,
    /// What each of those page files holds, bytes by their names, if the new image may map them too.
    pub share: Option<&'a HashMap<String, u64>>,
}

/// Rewrites the dump in `images`. Page files are made in `out`.
pub fn rewrite(images: &Path, out: &Path, options: &RewriteOptions<'_>) -> Result<Rewritten, Refusal> {
    let last = options.last.filter(|layout| !layout.is_empty());
    let harmless = !options.earlier.is_dir() && last.is_none();
    let mut dump = Dump::read(images, options.files).map_err(|what| Refusal { what, harmless })?;
    if let Some(layout) = last {
        dump.lay(layout).map_err(|what| Refusal { what, harmless: false })?;
    }
    let harmless = last.is_none() && !dump.refers_to_page_files();
    let refused = |what: String| Refusal { what, harmless };
    let mut rewritten = Rewritten::default();
    let intents = (0..dump.processes.len()).map(|index| dump.intend(index, options, &mut rewritten));
    let intents = intents.collect::<Result<Vec<_>, _>>().map_err(refused)?;
    let dumped: Vec<_> =
        intents.iter().enumerate().map(|(index, intent)| dump.dumped(index, intent)).collect();
    let plan = shared::plan(&dumped, options.share.unwrap_or(&HashMap::new()))
        .map_err(|error| refused(unwritten(error)))?;
    let mut changed = Vec::new();
    let (converted, copied) = Jobs::with_workers(None, |jobs| {
        for (index, (intent, groups)) in intents.iter().zip(&plan).enumerate() {
            match dump.convert(index, intent, groups, out, jobs)? {
                Some(mut converted) => {
                    rewritten.files.append(&mut converted.files);
                    rewritten.read_bytes += bytes_of(&converted.runs);
                    changed.push((index, converted));
                }
                None => rewritten.read_bytes += bytes_of(&dump.processes[index].runs),
            }
        }
        Ok(())
    });
    converted.and(copied).map_err(|error| refused(unwritten(error)))?;
    let (shared, layout) = dump.write(images, changed, &rewritten).map_err(|error| Refusal {
        what: format!("the images could not be written again: {error}"),
        harmless: false,
    })?;
    Ok(Rewritten { shared, layout, ..rewritten })
}

/// What is to become of an area.
#[derive(Debug)]
enum Target {
    Stay,
    /// A page file whose name begins so.
    Map(&'static str, Option<Base>),
    /// Memory that is read again: the process cannot be trusted with a page file any more.
    Read(Base),
    /// What it was restored from, but for what has changed.
    Share,
}

/// What is to become of a process.
struct Intent {
    pages: Arc<File>,
    mark: Option<u64>,
    targets: Vec<Target>,
    inherited: HashMap<usize, Inherited>,
}

impl Dump<'_> {
    fn intend(
        &mut self,
        index: usize,
        options: &RewriteOptions<'_>,
        rewritten: &mut Rewritten,
    ) -> Result<Intent, String> {
        let pid = self.processes[index].pid;
        let pages = Arc::new(File::open(&self.processes[index].pages).map_err(unwritten)?);
        let mark = self.find_mark(index, &pages).map_err(unwritten)?;
        let distrust = if options.map { self.distrust(index, mark.as_ref()) } else { None };
        if let Some(why) = &distrust
            && bytes_of(&self.processes[index].runs) >= LEAST
        {
            rewritten.warnings.push(format!("process {pid}: {why}; its memory is read whole"));
        }
        let trusted = options.map && distrust.is_none();
        let (mut targets, mut inherited) = (Vec::new(), HashMap::new());
        for at in 0..self.processes[index].areas.len() {
            targets.push(match self.inherited(index, at)? {
                None => self.target(index, at, trusted),
                Some(from) if !trusted => Target::Read(from.base),
                // A guard would come to lie over several areas.
                Some(from) if options.share.is_none() || self.is_guarded(index, at) => {
                    Target::Map(from.kind, Some(from.base))
                }
                Some(from) => {
                    inherited.insert(at, from);
                    Target::Share
                }
            });
        }
        Ok(Intent { pages, mark: mark.map(|(address, _)| address), targets, inherited })
    }

    fn dumped<'a>(&'a self, index: usize, intent: &'a Intent) -> Dumped<'a> {
        Dumped { process: &self.processes[index], pages: &intent.pages, inherited: &intent.inherited }
    }

    fn is_guarded(&self, index: usize, at: usize) -> bool {
        let process = &self.processes[index];
        process.is_guarded(&process.areas[at])
    }

    /// What an area was restored from, if that was a page file.
    fn inherited(&mut self, index: usize, at: usize) -> Result<Option<Inherited>, String> {
        let area = &self.processes[index].areas[at];
        let offset = area.offset;
        let Some(name) = self.page_file(area).map(str::to_string) else { return Ok(None) };
        let base = self.page_files.base(&name, offset)?;
        let kind = if name.starts_with(ANONYMOUS) { ANONYMOUS } else { PRIVATE };
        Ok(Some(Inherited { kind, name, base }))
    }

    fn target(&mut self, index: usize, at: usize, trusted: bool) -> Target {
        let area = &self.processes[index].areas[at];
        let contents = bytes_of(&self.processes[index].runs_of(area));
        if !trusted || contents < LEAST || area.is_executable() || self.is_guarded(index, at) {
            return Target::Stay;
        }
        if area.is_anonymous() {
            return Target::Map(ANONYMOUS, None);
        }
        let offset = area.offset;
        let behind = self.path_of(area).filter(|path| {
            let length = area.span.end - area.span.start;
            length <= MOST_CLEAN * contents
                && !self.is_clients(area)
                && !is_elsewhere(path)
                && !self.remapped.contains(&area.file)
        });
        // A file that cannot be read here is left to CRIU, which says why.
        let behind = behind.map(Path::to_path_buf);
        let base = behind.and_then(|path| self.open_base(&path, offset).ok());
        // What a program gives back of other files it may read again, and finds the file's bytes then.
        let base = base.filter(|base| is_elf(&base.file.file));
        base.map_or(Target::Stay, |base| Target::Map(PRIVATE, Some(base)))
    }

    /// Converts a process as far as it can be; `None` if there is nothing to do.
    fn convert(
        &mut self,
        index: usize,
        intent: &Intent,
        groups: &[Group],
        out: &Path,
        jobs: &Jobs,
    ) -> io::Result<Option<Converted>> {
        let stays = intent.targets.iter().all(|target| matches!(target, Target::Stay));
        // Others are put into the order of their addresses.
        if stays && !self.processes[index].is_scattered {
            return Ok(None);
        }
        let process = &self.processes[index];
        let from = Dumped { process, pages: &intent.pages, inherited: &intent.inherited };
        let mut conversion = Conversion::begin(from, &mut self.files, jobs, out, &self.page_files.names)?;
        let mut groups = groups.iter().peekable();
        for (at, (area, target)) in process.areas.iter().zip(&intent.targets).enumerate() {
            match target {
                Target::Stay => conversion.leave(area),
                Target::Map(kind, base) => conversion.map(area, kind, base.as_ref())?,
                Target::Read(base) => conversion.read(area, base)?,
                // With the first area of a group all of it is done.
                Target::Share => {
                    if let Some(group) = groups.next_if(|group| group.areas.start == at) {
                        conversion.share(group)?;
                    }
                }
            }
        }
        conversion.finish(intent.mark).map(Some)
    }

    /// Returns the names of the earlier page files that are still mapped, and where memory lies in page files now.
    fn write(
        mut self,
        images: &Path,
        changed: Vec<(usize, Converted)>,
        rewritten: &Rewritten,
    ) -> io::Result<(Vec<String>, Layout)> {
        let (mut pages, mut layout) = (Vec::new(), Layout::default());
        for (index, converted) in changed {
            layout.0.insert(self.processes[index].pid, self.placements(&converted));
            self.processes[index].areas = converted.areas;
            self.processes[index].describe(&converted.runs);
            pages.push((index, converted.pages));
        }
        let areas = self.processes.iter().flat_map(|process| &process.areas);
        let used: HashSet<u64> = areas.map(|area| area.file).collect();
        let names = used.iter().filter_map(|id| page_file_name(self.files.path(*id)?));
        let is_new = |name: &str| rewritten.files.iter().any(|file| file.name == name);
        let mut shared: Vec<_> = names.filter(|name| !is_new(name)).map(str::to_string).collect();
        shared.sort();
        self.files.keep(|id, path| page_file_name(path).is_none() || used.contains(&id));
        self.files.write(&images.join("files.img"))?;
        for (index, pages) in pages {
            self.processes[index].write(&pages)?;
        }
        Ok((shared, layout))
    }

    /// Where the memory of a process lies in page files, but for what CRIU reads over them.
    fn placements(&self, converted: &Converted) -> Vec<Placement> {
        let mapped = converted.areas.iter().filter_map(|area| {
            let file = page_file_name(self.files.path(area.file)?)?.into();
            let run = Run { memory: area.span.clone(), at: area.offset };
            Some(Placement { file, run })
        });
        let read: Vec<_> = converted.runs.iter().map(|run| run.memory.clone()).collect();
        without(&mapped.collect::<Vec<_>>(), &read)
    }
}

fn bytes_of(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.memory.end - run.memory.start).sum()
}

fn unwritten(error: io::Error) -> String {
    format!("its page files could not be written: {error}")
}

#[cfg(test)]
mod tests;
