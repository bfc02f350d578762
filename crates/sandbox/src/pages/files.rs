//! `files.img`: which file has which id, and adding page files to it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::area::READ_LARGE;
use super::image::Entries;
use super::{page_file_name, seen_path};
use crate::descriptors::{self, Described, Regular};

pub struct Files {
    entries: Entries,
    paths: HashMap<u64, PathBuf>,
    /// The ids of page files by their names.
    ids: HashMap<String, u64>,
    next: u64,
    /// As the regular files of the dump have it.
    mount: Option<u64>,
}

impl Files {
    pub fn read(path: &Path) -> Result<Files, String> {
        let entries = Entries::read(path)?;
        let mut files = Files { entries, paths: HashMap::new(), ids: HashMap::new(), next: 1, mount: None };
        for entry in &files.entries.entries {
            let Some(id) = descriptors::id(entry) else { continue };
            files.next = files.next.max(id + 1);
            let Some(regular) = Regular::of(entry) else { continue };
            files.mount = regular.mount().or(files.mount);
            files.paths.insert(id, regular.path().to_path_buf());
        }
        let named =
            files.paths.iter().filter_map(|(id, path)| Some((page_file_name(path)?.to_string(), *id)));
        files.ids = named.collect();
        Ok(files)
    }

    pub fn path(&self, id: u64) -> Option<&Path> {
        self.paths.get(&id).map(PathBuf::as_path)
    }

    /// The names of those that are page files.
    pub fn page_files(&self) -> Vec<String> {
        let mut names: Vec<_> = self.paths.values().filter_map(|path| page_file_name(path)).collect();
        names.sort_unstable();
        names.dedup();
        names.into_iter().map(str::to_string).collect()
    }

    /// The id of a page file of this name, which is added if there is none.
    pub fn page_file_id(&mut self, name: &str) -> u64 {
        self.ids.get(name).copied().unwrap_or_else(|| self.add(name))
    }

    /// Adds a page file; its id.
    pub fn add(&mut self, name: &str) -> u64 {
        let id = self.next;
        self.next += 1;
        let path = seen_path(name);
        let regular = Regular::new(id, READ_LARGE, &path, self.mount);
        self.entries.entries.push(regular.entry(id));
        self.paths.insert(id, path);
        self.ids.insert(name.to_string(), id);
        id
    }

    /// Leaves out page files that nothing maps any more.
    pub fn keep(&mut self, is_used: impl Fn(u64, &Path) -> bool) {
        let paths = &self.paths;
        self.entries.entries.retain(|entry| {
            let id = descriptors::id(entry).unwrap_or(0);
            paths.get(&id).is_none_or(|path| is_used(id, path))
        });
    }

    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        self.entries.write(path)
    }
}
