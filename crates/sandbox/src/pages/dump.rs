//! A dump as it is read: its processes, its files, and whether a process may be given page files.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rekindle_code::elf::{Elf, ReadCache};

use super::area::Area;
use super::backing::BackingFile;
use super::contents::Base;
use super::files::Files;
use super::image::Entries;
use super::page_files::PageFiles;
use super::process::Process;
use super::{mark, page_file_name};

/// What the client's file is called.
const CLIENT: &str = "libcuda.so";

pub struct Dump<'a> {
    pub processes: Vec<Process>,
    pub files: Files,
    /// Files that are not under their names any more.
    pub remapped: Vec<u64>,
    pub page_files: &'a PageFiles,
    /// Other files that memory is mapped from.
    opened: HashMap<PathBuf, Arc<BackingFile>>,
    /// Whether a file's code makes system calls that nobody sees.
    direct: HashMap<PathBuf, bool>,
}

impl<'a> Dump<'a> {
    pub fn read(images: &Path, page_files: &'a PageFiles) -> Result<Dump<'a>, String> {
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
            page_files,
            opened: HashMap::new(),
            direct: HashMap::new(),
        })
    }

    pub fn refers_to_page_files(&self) -> bool {
        let mut areas = self.processes.iter().flat_map(|process| &process.areas);
        areas.any(|area| self.page_file(area).is_some())
    }

    pub fn path_of(&self, area: &Area) -> Option<&Path> {
        area.is_private_mapping().then(|| self.files.path(area.file))?
    }

    /// The name of the page file that an area maps.
    pub fn page_file(&self, area: &Area) -> Option<&str> {
        page_file_name(self.path_of(area)?)
    }

    /// What lies behind an area that maps an earlier image's page file of this name.
    pub fn open_base(&mut self, path: &Path, offset: u64) -> io::Result<Base> {
        let file = match self.opened.get(path) {
            Some(file) => file.clone(),
            None => {
                let file = Arc::new(BackingFile::open(path)?);
                self.opened.insert(path.to_path_buf(), file.clone());
                file
            }
        };
        Ok(Base { file, offset })
    }

    /// Where the client's mark is, and what it says.
    pub fn find_mark(&self, index: usize, pages: &File) -> io::Result<Option<(u64, u32)>> {
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

    pub fn is_clients(&self, area: &Area) -> bool {
        let name = self.path_of(area).and_then(Path::file_name);
        name.is_some_and(|name| name.to_string_lossy().starts_with(CLIENT))
    }

    /// Why a process cannot be given page files.
    pub fn distrust(&mut self, index: usize, mark: Option<&(u64, u32)>) -> Option<String> {
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
            *known.or_insert_with(|| File::open(path).is_ok_and(is_written_in_go))
        });
        direct.map(|path| {
            format!("{} is written in Go and asks the kernel itself, past the client", path.display())
        })
    }
}

fn is_written_in_go(file: File) -> bool {
    Elf::read(&ReadCache::new(file)).is_some_and(|elf| elf.has_note(b"Go"))
}
