//! Whether CRIU can bring back what its images describe, by CRIU's own rules, before it is asked to.
//!
//! CRIU looks at its images while it restores, when the program that they were taken of may be no more. So the rules by
//! which it then refuses, or would bring back something else, are applied to an image when it is made, when it is
//! verified, and before it is restored: nothing is mapped or started for that, and contents of memory are not read.
//!
//! | module | looks at |
//! | --- | --- |
//! | [`source`] | where images are read |
//! | [`image`] | one image: its magic numbers, its entries whole, what must be in an entry |
//! | [`tree`] | processes and threads, each with its `core`, and what a live one needs |
//! | [`files`] | `files.img`, and what refers to it: descriptors, directories, deleted files |
//! | [`areas`] | memory: areas in order and apart, with flags that fit and files that are there |
//! | [`pages`] | page maps: in order, within areas, every page there and no more |
//!
//! What is not looked at: contents, which checksums cover, and the machine, which a restore compares for itself.

mod areas;
mod files;
mod image;
mod pages;
mod source;
#[cfg(test)]
mod tests;
mod tree;

use std::path::Path;

use areas::Areas;
use files::Files;
use image::{Form, KNOWN, entries};
use tree::{Task, Tree};

pub use source::{Directory, Source};

type Result<T, E = String> = std::result::Result<T, E>;

/// So many faults of one image are told.
const MOST_FAULTS: usize = 20;

/// What is wrong with the images in a directory, a sentence each; nothing is wrong with most. `page_files` is where the
/// page files are that they speak of.
pub fn faults(images: &Path, page_files: Option<&Path>) -> Vec<String> {
    match Directory::open(images, page_files) {
        Ok(directory) => faults_of(&directory),
        Err(error) => vec![format!("{}: {error}", images.display())],
    }
}

/// As [`faults`], of images anywhere.
pub fn faults_of(source: &dyn Source) -> Vec<String> {
    let mut faults = Vec::new();
    let names = source.names();
    for name in &names {
        faults.extend(read_through(source, name).err());
    }
    faults.extend(inventory(source).err());
    match (Tree::read(source), Files::read(source)) {
        (Ok(tree), Ok(files)) => {
            faults.extend(files.check_remaps(source).err());
            let mut shared = areas::Shared::default();
            for task in tree.live() {
                faults.extend(check_task(source, task, &files, &mut shared).err());
            }
            faults.extend(pages::check_shared(source, &shared).err());
            faults.extend(pages::strays(&names, &tree));
        }
        (tree, files) => faults.extend([tree.err(), files.err()].into_iter().flatten()),
    }
    faults.dedup();
    faults.truncate(MOST_FAULTS);
    faults
}

/// Reads an image whose form is known whole.
fn read_through(source: &dyn Source, name: &str) -> Result<()> {
    let Some(known) = KNOWN.iter().find(|known| known.is(name)) else { return Ok(()) };
    // These are read with what they belong to.
    if matches!(known.form, Form::Apart) {
        return Ok(());
    }
    let text = source.read(name)?;
    entries(name, &text)?.try_for_each(|entry| entry.map(drop))
}

fn inventory(source: &dyn Source) -> Result<()> {
    const NAME: &str = "inventory.img";
    const VERSION: u64 = 1;
    /// Descriptors are listed by table, as every CRIU in use does.
    const BY_TABLE: u64 = 2;
    let text = source.read(NAME)?;
    let first = entries(NAME, &text)?.next().transpose()?;
    let entry = first.ok_or_else(|| format!("{NAME} is empty"))?;
    match (entry.number(VERSION)?, entry.number(BY_TABLE)?) {
        (Some(1 | 2), Some(1)) => Ok(()),
        (version, _) => Err(format!("{NAME} is of a version that CRIU does not restore: {version:?}")),
    }
}

fn check_task(source: &dyn Source, task: &Task, files: &Files, shared: &mut areas::Shared) -> Result<()> {
    let pid = task.pid;
    files.check_task(source, task)?;
    let areas = Areas::read(source, pid)?;
    areas.check(pid, files, source)?;
    areas.note_shared(shared);
    pages::check(source, pid, &areas)
}
