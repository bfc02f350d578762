//! Where things lie in a store.
//!
//! ```text
//! ROOT/
//!   format                     which kind of store this is
//!   collect.lock               held shared to publish an image, alone to collect
//!   chunks/ab/abcd...          a chunk as it is; `.zst` after it: compressed; `.damaged`: set aside
//!   images/NAME/manifest.json  and the files that the image keeps whole: `cpu/`, ...
//!   staging/ID/                an image in the making: `chunks/`, `cpu/`, ...
//!   staging/ID.lock            held by its maker; says the image's name
//! ```

use std::path::{Path, PathBuf};

use crate::manifest::ChunkRef;

pub(crate) const MANIFEST: &str = "manifest.json";
/// In an image in the making: the chunks that it refers to.
pub(crate) const CHUNKS: &str = "chunks";
/// Marks a chunk that was found damaged and is used no more.
pub(crate) const DAMAGED: &str = "damaged";

#[derive(Clone, Debug)]
pub(crate) struct Layout {
    root: PathBuf,
}

impl Layout {
    pub fn new(root: &Path) -> Layout {
        Layout { root: root.to_path_buf() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The store of an image or an image in the making: its directory's directory's directory.
    pub fn around(directory: &Path) -> Option<Layout> {
        let root = directory.parent()?.parent()?;
        crate::bounded::look(&root.join("format")).is_ok().then(|| Layout::new(root))
    }

    pub fn format(&self) -> PathBuf {
        self.root.join("format")
    }

    pub fn collect_lock(&self) -> PathBuf {
        self.root.join("collect.lock")
    }

    pub fn chunks(&self) -> PathBuf {
        self.root.join(CHUNKS)
    }

    /// The directory of the chunks whose hash begins with this byte.
    pub fn shelf(&self, first: u8) -> PathBuf {
        self.chunks().join(format!("{first:02x}"))
    }

    /// Where a chunk lies; nowhere if it is all zero.
    pub fn chunk(&self, chunk: &ChunkRef) -> Option<PathBuf> {
        Some(self.shelf(chunk.hash.bytes()[0]).join(chunk.file_name()?))
    }

    pub fn images(&self) -> PathBuf {
        self.root.join("images")
    }

    pub fn image(&self, name: &str) -> PathBuf {
        self.images().join(crate::names::encode(name))
    }

    pub fn staging(&self) -> PathBuf {
        self.root.join("staging")
    }
}
