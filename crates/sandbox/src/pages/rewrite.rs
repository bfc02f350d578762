//! Rewriting a dump: deciding for each area, writing the page files, then the images.
//!
//! Nothing of the dump is changed before all that takes room is written, so a refusal leaves it as it was.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::area::Area;
use super::contents::{Base, Run, Source, stretches};
use super::copier::{From, Job, Jobs, threads};
use super::files::Files;
use super::image::Entries;
use super::kept::{Kept, each_block, without};
use super::process::Process;
use super::writers::Writers;
use super::{ANONYMOUS, PRIVATE, Refusal, Rewritten, mark, page_file_name};
use crate::elf;
use crate::inventory::is_elsewhere;

/// Areas with less than this of contents are read: a mapping costs more.
const LEAST: u64 = 64 << 10;
/// A private mapping of a file goes to a page file, with its clean pages, if it is at most this many times as long as
/// what was written to it: an image does not take a file of weights in for a few pages of it.
const MOST_CLEAN: u64 = 8;
/// What the client's file is called.
const CLIENT: &str = "libcuda.so";

/// Rewrites the dump in `images`. Page files are made in `out`; those of the image that the program was restored from,
/// if it was from one, are in `earlier`. With `map` false, all is read again.
pub fn rewrite(images: &Path, out: &Path, earlier: &Path, map: bool) -> Result<Rewritten, Refusal> {
    let mut dump =
        Dump::read(images, earlier).map_err(|what| Refusal { what, harmless: !earlier.is_dir() })?;
    let harmless = !dump.refers_to_page_files();
    let refused = |what: String| Refusal { what, harmless };
    dump.map = map;
    let mut rewritten = Rewritten::default();
    let mut changed = Vec::new();
    let (converted, copied) = Jobs::with_workers(threads(), |jobs| {
        for index in 0..dump.processes.len() {
            if let Some(change) = dump.convert(index, out, jobs, &mut rewritten)? {
                changed.push((index, change));
            }
        }
        Ok(())
    });
    converted.map_err(refused)?;
    copied.map_err(|error| refused(unwritten(error)))?;
    dump.write(images, changed).map_err(|error| Refusal {
        what: format!("the images could not be written again: {error}"),
        harmless: false,
    })?;
    Ok(rewritten)
}

struct Dump {
    processes: Vec<Process>,
    files: Files,
    /// Files that are not under their names any more.
    remapped: Vec<u64>,
    earlier: PathBuf,
    /// Whether a file's code makes system calls that nobody sees.
    direct: HashMap<PathBuf, bool>,
    map: bool,
}

/// What is to become of an area.
enum Target {
    Stay,
    /// A page file whose name begins so.
    Map(&'static str, Option<Base>),
    /// Memory that is read again: the process cannot be trusted with a page file any more.
    Read(Option<Base>),
}

/// The pages that are still read of a process, in a new file.
struct Change {
    pages: PathBuf,
    runs: Vec<Run>,
}

impl Dump {
    fn read(images: &Path, earlier: &Path) -> Result<Dump, String> {
        let remaps = images.join("remap-fpath.img");
        let remapped = if remaps.exists() {
            Entries::read(&remaps)?.entries.iter().filter_map(|entry| entry.number(1)).collect()
        } else {
            Vec::new()
        };
        Ok(Dump {
            processes: Process::all(images)?,
            files: Files::read(&images.join("files.img"))?,
            remapped,
            earlier: earlier.to_path_buf(),
            direct: HashMap::new(),
            map: true,
        })
    }

    fn refers_to_page_files(&self) -> bool {
        let mut areas = self.processes.iter().flat_map(|process| &process.areas);
        areas.any(|area| self.page_file(area).is_some())
    }

    fn path_of(&self, area: &Area) -> Option<&Path> {
        area.is_private_mapping().then(|| self.files.path(area.file))?
    }

    fn page_file(&self, area: &Area) -> Option<&str> {
        page_file_name(self.path_of(area)?)
    }

    /// Converts a process as far as it can be; `None` if there is nothing to do.
    fn convert(
        &mut self,
        index: usize,
        out: &Path,
        jobs: &Jobs,
        rewritten: &mut Rewritten,
    ) -> Result<Option<Change>, String> {
        let pid = self.processes[index].pid;
        let failed = unwritten;
        let pages = Arc::new(File::open(&self.processes[index].pages).map_err(failed)?);
        let mark = self.find_mark(index, &pages).map_err(failed)?;
        let distrust = self.distrust(index, mark.as_ref());
        let targets = self.targets(index, distrust.is_none())?;
        let all_read = bytes_of(&self.processes[index].runs);
        if let Some(why) = &distrust
            && all_read >= LEAST
            && self.map
        {
            rewritten.warnings.push(format!("process {pid}: {why}; its memory is read whole"));
        }
        if targets.iter().all(|target| matches!(target, Target::Stay)) {
            rewritten.read_bytes += all_read;
            return Ok(None);
        }
        let mut writers = Writers::new(out, pid);
        let kept_path = out.join(format!("read-{pid}"));
        let mut kept = Kept::create(&kept_path).map_err(failed)?;
        let (mut taken, mut ids) = (Vec::new(), HashMap::new());
        for (at, target) in targets.iter().enumerate() {
            let process = &mut self.processes[index];
            let span = process.areas[at].span.clone();
            match target {
                Target::Stay => continue,
                Target::Map(kind, base) => {
                    let (writer, offset) = writers.place(kind, &span).map_err(failed)?;
                    for (memory, from) in pieces(process, at, base.as_ref(), &pages).map_err(failed)? {
                        jobs.add(Job {
                            from,
                            bytes: memory.end - memory.start,
                            file: writer.file.clone(),
                            offset: offset + (memory.start - span.start),
                        });
                    }
                    let files = &mut self.files;
                    let id = *ids.entry(writer.name.clone()).or_insert_with(|| files.add(&writer.name));
                    process.areas[at].map(id, offset);
                }
                Target::Read(base) => {
                    for (memory, from) in pieces(process, at, base.as_ref(), &pages).map_err(failed)? {
                        from.each_filled(&memory, |at, bytes| kept.add(at, bytes)).map_err(failed)?;
                    }
                    process.areas[at].unmap();
                }
            }
            taken.push(span);
        }
        for run in without(&self.processes[index].runs, &taken) {
            each_block(&pages, &run, |memory, bytes| kept.add(memory, bytes)).map_err(failed)?;
        }
        if let Some((address, _)) = mark.filter(|_| !writers.is_empty()) {
            kept.patch(address, &mark::CONVERTED.to_le_bytes()).map_err(failed)?;
        }
        rewritten.files.extend(writers.finish().map_err(failed)?);
        let runs = kept.finish(out).map_err(failed)?;
        rewritten.read_bytes += bytes_of(&runs);
        Ok(Some(Change { pages: kept_path, runs }))
    }

    /// Where the client's mark is, and what it says.
    fn find_mark(&self, index: usize, pages: &File) -> io::Result<Option<(u64, u32)>> {
        let process = &self.processes[index];
        for area in process.areas.iter().filter(|area| self.is_clients(area)) {
            for run in process.runs_of(area) {
                let mut bytes = vec![0; (run.memory.end - run.memory.start) as usize];
                pages.read_exact_at(&mut bytes, run.at)?;
                if let Some((at, word)) = mark::find(&bytes) {
                    return Ok(Some((run.memory.start + at as u64, word)));
                }
            }
        }
        Ok(None)
    }

    fn is_clients(&self, area: &Area) -> bool {
        let name = self.path_of(area).and_then(Path::file_name);
        name.is_some_and(|name| name.to_string_lossy().starts_with(CLIENT))
    }

    /// Why a process cannot be given page files.
    fn distrust(&mut self, index: usize, mark: Option<&(u64, u32)>) -> Option<String> {
        if !self.map {
            return Some("page files are not wanted".into());
        }
        match mark {
            None => return Some("it does not have the client, which must see what it gives back".into()),
            Some((_, mark::LIVE | mark::CONVERTED)) => {}
            Some(_) => {
                return Some("another library's madvise comes before the client's".into());
            }
        }
        let mut paths: Vec<PathBuf> = Vec::new();
        for area in self.processes[index].areas.iter().filter(|area| area.is_executable()) {
            if let Some(path) = self.path_of(area)
                && !paths.iter().any(|known| known == path)
            {
                paths.push(path.to_path_buf());
            }
        }
        let direct = paths.into_iter().find(|path| {
            let known = self.direct.entry(path.clone());
            // What cannot be opened is deleted or elsewhere, and Go's own programs are never that in practice.
            *known.or_insert_with(|| File::open(path).is_ok_and(|file| elf::has_note(&file, b"Go\0\0")))
        });
        direct.map(|path| {
            format!("{} is written in Go and asks the kernel itself, past the client", path.display())
        })
    }

    fn targets(&self, index: usize, trusted: bool) -> Result<Vec<Target>, String> {
        let process = &self.processes[index];
        process.areas.iter().map(|area| self.target(process, area, trusted)).collect()
    }

    fn target(&self, process: &Process, area: &Area, trusted: bool) -> Result<Target, String> {
        if let Some(name) = self.page_file(area) {
            let path = self.earlier.join(name);
            let base = open_base(&path, area.offset)
                .map_err(|error| format!("the page file {}: {error}", path.display()))?;
            let kind = if name.starts_with(ANONYMOUS) { ANONYMOUS } else { PRIVATE };
            return Ok(if trusted { Target::Map(kind, Some(base)) } else { Target::Read(Some(base)) });
        }
        let contents = bytes_of(&process.runs_of(area));
        if !trusted || contents < LEAST || area.is_executable() || process.is_guarded(area) {
            return Ok(Target::Stay);
        }
        if area.is_anonymous() {
            return Ok(Target::Map(ANONYMOUS, None));
        }
        let behind = self.path_of(area).filter(|path| {
            let length = area.span.end - area.span.start;
            length <= MOST_CLEAN * contents
                && !self.is_clients(area)
                && !is_elsewhere(path)
                && !self.remapped.contains(&area.file)
        });
        // A file that cannot be read here is left to CRIU, which says why.
        let base = behind.and_then(|path| open_base(path, area.offset).ok());
        Ok(base.map_or(Target::Stay, |base| Target::Map(PRIVATE, Some(base))))
    }

    fn write(mut self, images: &Path, changed: Vec<(usize, Change)>) -> io::Result<()> {
        let used: Vec<u64> = self.processes.iter().flat_map(|process| &process.areas).map(now_of).collect();
        self.files.keep(|id, path| page_file_name(path).is_none() || used.contains(&id));
        self.files.write(&images.join("files.img"))?;
        for (index, change) in changed {
            self.processes[index].describe(&change.runs);
            self.processes[index].write(&change.pages)?;
        }
        Ok(())
    }
}

/// The file that an area has now.
fn now_of(area: &Area) -> u64 {
    area.message.number(4).unwrap_or(0)
}

fn open_base(path: &Path, offset: u64) -> io::Result<Base> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    Ok(Base { file: Arc::new(file), offset, length })
}

/// What an area holds, by its addresses in memory. What is in none of it is zero.
fn pieces(
    process: &Process,
    at: usize,
    base: Option<&Base>,
    pages: &Arc<File>,
) -> io::Result<Vec<(Range<u64>, From)>> {
    let area = &process.areas[at];
    let found = stretches(&area.span, &process.runs_of(area), base)?;
    let read = |source| match (source, base) {
        (Source::Base(at), Some(base)) => From::File(base.file.clone(), at),
        (Source::Base(at) | Source::Dump(at), _) => From::File(pages.clone(), at),
    };
    Ok(found.into_iter().map(|(memory, source)| (memory, read(source))).collect())
}

fn unwritten(error: io::Error) -> String {
    format!("its page files could not be written: {error}")
}

fn bytes_of(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.memory.end - run.memory.start).sum()
}
