//! Removing the chunks that no image refers to.
//!
//! Publishing an image and collecting exclude each other by a lock; images in the making have links
//! of their own to all their chunks and need no regard. Each removal stands alone, so collecting
//! can be killed at any point and run again.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::bounded::is_there;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::image::peek;
use crate::layout::Layout;
use crate::lease::Guard;
use crate::store::{Store, list};

/// What a collection did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    pub chunks: u64,
    /// The room that these chunks took.
    pub bytes: u64,
    pub kept: u64,
}

impl Store {
    /// Removes unreferenced and damaged chunks, and what dead writers left. An image that cannot
    /// be read stops it, since what that image refers to is not known.
    pub fn collect(&self) -> Result<Collected> {
        self.sweep()?;
        collect(&self.layout, &self.disk)
    }
}

pub(crate) fn collect(layout: &Layout, disk: &Disk) -> Result<Collected> {
    let _publishing_waits = Guard::alone(disk, &layout.collect_lock())?;
    let wanted = referenced(layout)?;
    let mut collected = Collected::default();
    for shelf in (0..=u8::MAX).map(|first| layout.shelf(first)).filter(|shelf| is_there(shelf)) {
        for path in list(&shelf)? {
            if path.file_name().is_some_and(|name| wanted.contains(&*name.to_string_lossy())) {
                collected.kept += 1;
                continue;
            }
            let room = fs::symlink_metadata(&path).map_or(0, |found| found.blocks() * 512);
            disk.remove_tree(&path)?;
            collected.chunks += 1;
            collected.bytes += room;
        }
    }
    Ok(collected)
}

/// The file names of all chunks that images refer to.
fn referenced(layout: &Layout) -> Result<HashSet<String>> {
    let mut wanted = HashSet::new();
    for path in list(&layout.images())? {
        let manifest = match peek(&path) {
            Ok(manifest) => manifest,
            Err(_) if !is_there(&path) => continue,
            Err(source) => {
                let image = path.file_name().unwrap_or_default().to_string_lossy();
                let image = crate::names::decode(&image).unwrap_or(image.into_owned());
                return Err(Error::Uncollectable { image, source: Box::new(source) });
            }
        };
        wanted.extend(manifest.shelved().map(|(name, _)| name));
    }
    Ok(wanted)
}
