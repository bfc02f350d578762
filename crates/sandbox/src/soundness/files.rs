//! Files by number, and whoever refers to one: descriptors, programs, directories, deleted files.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;

use super::Result;
use super::image::entries;
use super::source::Source;
use super::tree::Task;
use crate::descriptors::{self, Described, FILES, Regular};
use crate::pages::image::take_entry;
use crate::proto::Message;

pub use crate::descriptors::{MEMFD, REGULAR};

const REMAPS: &str = "remap-fpath.img";

struct OpenFileEntry {
    kind: u64,
    /// Of a regular file.
    path: Vec<u8>,
}

pub struct Files(HashMap<u64, OpenFileEntry>);

impl Files {
    pub fn read(source: &dyn Source) -> Result<Files> {
        let text = source.read(FILES)?;
        let mut files = HashMap::new();
        for entry in entries(FILES, &text)? {
            let entry = entry?;
            let [kind, id] = entry.needed([1, 2])?;
            let is_told = |entry: &Message| descriptors::about(entry).is_some();
            let entry = Message::read(entry.text).filter(is_told);
            let entry = entry.ok_or_else(|| format!("{FILES} does not say what file {id:#x} is"))?;
            let mut path = Vec::new();
            if kind == REGULAR {
                let regular = Regular::of(&entry).filter(Regular::is_whole);
                let regular =
                    regular.ok_or_else(|| format!("file {id:#x} in {FILES} lacks what CRIU needs of it"))?;
                path = regular.name().to_vec();
                if path.is_empty() {
                    return Err(format!("file {id:#x} in {FILES} has no name"));
                }
            }
            match files.entry(id) {
                Slot::Vacant(slot) => slot.insert(OpenFileEntry { kind, path }),
                Slot::Occupied(_) => return Err(format!("{FILES} has two files with the number {id:#x}")),
            };
        }
        Ok(Files(files))
    }

    fn is(&self, id: u64, kind: u64) -> bool {
        self.0.get(&id).is_some_and(|file| file.kind == kind)
    }

    /// Whether something may refer to this number as to a file of that kind.
    pub fn resolve(&self, who: &str, id: u64, kind: u64) -> Result<()> {
        match self.is(id, kind) {
            true => Ok(()),
            false => Err(format!("{who} refers to file {id:#x}, which {FILES} does not have")),
        }
    }

    /// The name of a regular file.
    pub fn path(&self, id: u64) -> Option<&[u8]> {
        self.0.get(&id).filter(|file| file.kind == REGULAR).map(|file| &*file.path)
    }

    /// What a process refers to beside its memory.
    pub fn check_task(&self, source: &dyn Source, task: &Task) -> Result<()> {
        let name = format!("fdinfo-{}.img", task.files_id);
        let text = source.read(&name)?;
        for entry in entries(&name, &text)? {
            let [id, _, kind, descriptor] = entry?.needed([1, 2, 3, 4])?;
            self.resolve(&format!("descriptor {descriptor} of process {}", task.pid), id, kind)?;
        }
        let name = format!("fs-{}.img", task.pid);
        let text = source.read(&name)?;
        let entry = entries(&name, &text)?.next().transpose()?.ok_or_else(|| format!("{name} is empty"))?;
        let [directory, root] = entry.needed([1, 2])?;
        self.resolve(&format!("the working directory of process {}", task.pid), directory, REGULAR)?;
        self.resolve(&format!("the root directory of process {}", task.pid), root, REGULAR)
    }

    /// Files that are not under their names any more: each is kept, or is another one that is.
    pub fn check_remaps(&self, source: &dyn Source) -> Result<()> {
        const LINKED: u64 = 0;
        const GHOST: u64 = 1;
        /// How older images say that it is a ghost.
        const GHOST_BIT: u64 = 1 << 31;
        if source.length(REMAPS).is_none() {
            return Ok(());
        }
        let text = source.read(REMAPS)?;
        for entry in entries(REMAPS, &text)? {
            let entry = entry?;
            let ([id, other], kind) = (entry.needed([1, 2])?, entry.number(3)?);
            self.resolve("a deleted file", id, REGULAR)?;
            let (kind, other) = match kind {
                None if other & GHOST_BIT != 0 => (GHOST, other & !GHOST_BIT),
                None => (LINKED, other),
                Some(kind) => (kind, other),
            };
            match kind {
                GHOST => check_ghost(source, other)?,
                LINKED => self.resolve("a file that has another name", other, REGULAR)?,
                _ => {}
            }
        }
        Ok(())
    }
}

/// A deleted file's contents, behind its entry.
fn check_ghost(source: &dyn Source, id: u64) -> Result<()> {
    const KIND_OF_FILE: u64 = 0o170_000;
    const REGULAR_FILE: u64 = 0o100_000;
    let name = format!("ghost-file-{id:x}.img");
    let text = source.read(&name)?;
    let mut all = entries(&name, &text)?;
    let entry = all.next().transpose()?.ok_or_else(|| format!("{name} is empty"))?;
    let [_, _, mode] = entry.needed([1, 2, 3])?;
    let [chunks, size] = entry.numbers([9, 10])?;
    if mode & KIND_OF_FILE != REGULAR_FILE || chunks != Some(1) {
        return Ok(());
    }
    let size = size.unwrap_or(u64::MAX);
    let mut rest = all.rest();
    while !rest.is_empty() {
        let cut = || format!("{name} ends in the middle of the file's contents");
        let text = take_entry(&mut rest).ok_or_else(cut)?;
        let [bytes, at] = entry.within(text).needed([1, 2])?;
        if at.checked_add(bytes).is_none_or(|end| end > size) {
            return Err(format!("{name} has contents behind its end"));
        }
        rest = usize::try_from(bytes).ok().and_then(|bytes| rest.get(bytes..)).ok_or_else(cut)?;
    }
    Ok(())
}
