//! The manifest: all that an image says about itself, as plain data.
//!
//! It is a JSON file that a person can read. [`format`] holds how it is written, checksummed and
//! checked on reading. A later version may add fields, which this one ignores; what changes the
//! meaning of a field raises [`FORMAT`].

mod chunk_ref;
mod format;
mod part;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use chunk_ref::{ChunkRef, Encoding};
pub(crate) use format::LONGEST_MANIFEST;
pub use part::{Origin, Part, PartKind};

/// The newest image format that this version reads. It writes the oldest that says all of an image.
pub const FORMAT: u32 = 4;

/// What is in an image, whence it came and how it is laid out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub name: String,
    /// Random, so that two images of one name, one after the other, are told apart.
    pub id: String,
    /// RFC 3339, in UTC.
    pub created: String,
    pub mode: Mode,
    pub program: Program,
    pub machine: Machine,
    pub gpus: Vec<Gpu>,
    pub sizes: Sizes,
    /// The processes that each have a GPU half in the image, as the program knows them, if there are several; names of a
    /// half's parts begin with its process and a `/`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub halves: Vec<u32>,
    /// The files that the program had mapped and must find again.
    pub files: Vec<MappedFile>,
    /// The order in which parts are best loaded; empty where none was learnt.
    #[serde(default)]
    pub load_order: Vec<Value>,
    /// Room for what later features keep with an image.
    #[serde(default)]
    pub extra: Value,
    pub parts: Vec<Part>,
}

/// How the image was taken, and so how it is restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Through the client and a worker.
    #[default]
    Sandbox,
    /// By the driver's own checkpoint.
    Driver,
}

/// The program that the image continues.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Arguments that are not UTF-8 have their odd bytes replaced: they are here to be read.
    pub argv: Vec<String>,
    pub cwd: PathBuf,
    pub exe: PathBuf,
    /// As the program itself sees it.
    pub pid: u32,
}

/// The machine that the image was taken on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub host: String,
    pub kernel: String,
}

/// A GPU that the program used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    pub kind: GpuKind,
    pub model: String,
    pub uuid: String,
    pub memory_bytes: u64,
    pub driver_version: String,
    /// As the program counts its GPUs.
    pub index: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuKind {
    Emulated,
    Nvidia,
}

/// Sizes in bytes. Filled in when the image is committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// All parts as the program sees them.
    pub logical: u64,
    /// What the image takes in the store, shared chunks counted in full but once each.
    pub stored: u64,
    pub cpu: u64,
    pub gpu: u64,
    pub pinned: u64,
    /// Zeros, which are not stored.
    pub zero: u64,
}

/// A file that the program had mapped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedFile {
    pub path: PathBuf,
    /// The build id of an ELF file, else what identifies its contents.
    pub content_id: String,
    pub bytes: u64,
    /// Seconds since 1970.
    pub modified: i64,
}

impl Manifest {
    /// The part of this kind and name.
    pub fn part(&self, kind: &PartKind, name: &str) -> Option<&Part> {
        self.parts.iter().find(|part| part.kind == *kind && part.name == name)
    }

    /// The directories within the image's that its parts' own files are in, and what was learned of halves.
    pub(crate) fn directories(&self) -> std::collections::BTreeSet<String> {
        let kept = self.parts.iter().filter(|part| part.file.is_some());
        let halves = self.halves.iter().map(|process| crate::half::directory(*process));
        kept.map(|part| part.kind.directory()).chain(halves).collect()
    }

    /// The chunks that lie among the store's, by file name and length there; one that is used twice comes twice.
    pub(crate) fn shelved(&self) -> impl Iterator<Item = (String, u64)> {
        let shared = self.parts.iter().filter(|part| part.file.is_none());
        shared.flat_map(|part| &part.chunks).filter_map(|chunk| Some((chunk.file_name()?, chunk.stored)))
    }

    /// Where this image's page files came from, for another image that is to have them too.
    pub fn origin(&self) -> Origin {
        Origin { image: self.name.clone(), id: self.id.clone() }
    }

    /// Sums up the parts.
    pub(crate) fn measure(&mut self) {
        let mut sizes = Sizes::default();
        let mut seen = std::collections::HashSet::new();
        for part in &self.parts {
            sizes.logical += part.bytes;
            match part.kind {
                PartKind::CpuFile | PartKind::CpuPages => sizes.cpu += part.bytes,
                PartKind::GpuBuffer => sizes.gpu += part.bytes,
                PartKind::Pinned => sizes.pinned += part.bytes,
                _ => {}
            }
            if let Some(filled) = part.filled {
                sizes.stored += filled;
                sizes.zero += part.bytes.saturating_sub(filled);
                continue;
            }
            for chunk in &part.chunks {
                if chunk.encoding == Encoding::Zero {
                    sizes.zero += chunk.bytes;
                } else if part.file.is_some() || seen.insert(chunk.hash) {
                    sizes.stored += chunk.stored;
                }
            }
        }
        self.sizes = sizes;
    }
}
