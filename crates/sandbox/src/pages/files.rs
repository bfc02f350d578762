//! `files.img`: which file has which id, and adding page files to it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::area::READ_LARGE;
use super::image::Entries;
use super::{page_file_name, seen_path};
use crate::proto::Message;

const TYPE: u64 = 1;
const ID: u64 = 2;
const REGULAR: u64 = 3;
/// `fd_types.REG`.
const IS_REGULAR: u64 = 1;
/// Of a regular file's entry.
const NAME: u64 = 6;
const MOUNT: u64 = 7;

pub struct Files {
    entries: Entries,
    paths: HashMap<u64, PathBuf>,
    next: u64,
    /// As the regular files of the dump have it.
    mount: Option<u64>,
}

impl Files {
    pub fn read(path: &Path) -> Result<Files, String> {
        let entries = Entries::read(path)?;
        let mut files = Files { entries, paths: HashMap::new(), next: 1, mount: None };
        for entry in &files.entries.entries {
            let Some(id) = entry.number(ID) else { continue };
            files.next = files.next.max(id + 1);
            let Some(regular) = entry.all_bytes(REGULAR).next() else { continue };
            let regular = Message::read(regular).ok_or_else(|| format!("file {id} cannot be read"))?;
            files.mount = regular.number(MOUNT).or(files.mount);
            if let Some(name) = regular.all_bytes(NAME).next() {
                files.paths.insert(id, PathBuf::from(OsStr::from_bytes(name)));
            }
        }
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

    /// Adds a page file; its id.
    pub fn add(&mut self, name: &str) -> u64 {
        let id = self.next;
        self.next += 1;
        let path = seen_path(name);
        let mut nobody = Message::default();
        for field in 1..=5 {
            nobody.set(field, 0);
        }
        let mut regular = Message::default();
        regular.set(1, id).set(2, READ_LARGE).set(3, 0).set_bytes(5, nobody.write());
        regular.set_bytes(NAME, path.as_os_str().as_bytes().to_vec());
        if let Some(mount) = self.mount {
            regular.set(MOUNT, mount);
        }
        let mut entry = Message::default();
        entry.set(TYPE, IS_REGULAR).set(ID, id).set_bytes(REGULAR, regular.write());
        self.entries.entries.push(entry);
        self.paths.insert(id, path);
        id
    }

    /// Leaves out page files that nothing maps any more.
    pub fn keep(&mut self, is_used: impl Fn(u64, &Path) -> bool) {
        let paths = &self.paths;
        self.entries.entries.retain(|entry| {
            let id = entry.number(ID).unwrap_or(0);
            paths.get(&id).is_none_or(|path| is_used(id, path))
        });
    }

    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        self.entries.write(path)
    }
}
