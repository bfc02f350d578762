//! A part: one file, buffer or state of an image, and the chunks that it is made of.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::manifest::chunk_ref::{ChunkRef, Encoding, LARGEST_CHUNK};

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(tail: &u64) -> bool {
    *tail == 0
}

/// The attribute that says where a page file came from.
const ORIGIN: &str = "from";

/// The image that a page file was made for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub image: String,
    pub id: String,
}

/// What a part is. Kinds that this version does not know are kept by their name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", from = "String")]
pub enum PartKind {
    /// A file of the CPU half.
    CpuFile,
    /// Memory of the CPU half that the restored program maps in place.
    CpuPages,
    /// The contents of one GPU buffer.
    GpuBuffer,
    /// The contents of one range of pinned host memory.
    Pinned,
    /// What a worker needs to build its GPU state anew.
    WorkerState,
    /// The code of one GPU module.
    Module,
    Other(String),
}

impl PartKind {
    const KNOWN: [PartKind; 6] = [
        PartKind::CpuFile,
        PartKind::CpuPages,
        PartKind::GpuBuffer,
        PartKind::Pinned,
        PartKind::WorkerState,
        PartKind::Module,
    ];

    pub fn as_str(&self) -> &str {
        match self {
            PartKind::CpuFile => "cpu-file",
            PartKind::CpuPages => "cpu-pages",
            PartKind::GpuBuffer => "gpu-buffer",
            PartKind::Pinned => "pinned",
            PartKind::WorkerState => "worker-state",
            PartKind::Module => "module",
            PartKind::Other(name) => name,
        }
    }

    /// The directory within an image that files of this kind are kept in.
    pub(crate) fn directory(&self) -> String {
        match self {
            PartKind::CpuFile => "cpu".to_string(),
            PartKind::CpuPages => "pages".to_string(),
            other => format!("part-{}", crate::names::encode(other.as_str())),
        }
    }
}

impl fmt::Display for PartKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<String> for PartKind {
    fn from(name: String) -> PartKind {
        PartKind::KNOWN.into_iter().find(|kind| kind.as_str() == name).unwrap_or(PartKind::Other(name))
    }
}

impl From<PartKind> for String {
    fn from(kind: PartKind) -> String {
        kind.as_str().to_string()
    }
}

/// One part of an image. Plain data: a worker that wrote it sends it to the daemon as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    pub kind: PartKind,
    /// Unique among the parts of its kind.
    pub name: String,
    pub bytes: u64,
    /// What its writer wants to know when it reads the part again.
    #[serde(default)]
    pub attributes: Value,
    /// Where the part lies whole within the image's directory, if it does; its chunks are then
    /// that file's extents, and none of them is in the store's `chunks/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// How much longer than the part that file is: a hole, for mappings of the file that grow.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tail: u64,
    /// When that file was last written, where it is only looked at before it is mapped in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_ns: Option<i64>,
    /// Of a page file, the bytes in pages that are not all zero: what it takes where a file system has holes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filled: Option<u64>,
    /// What every chunk but the last holds.
    pub chunk_bytes: u64,
    pub chunks: Vec<ChunkRef>,
}

impl Part {
    /// Whether the part agrees with itself; if not, why.
    pub fn check(&self) -> Result<(), String> {
        let name = &self.name;
        crate::names::check(name).map_err(|error| error.to_string())?;
        if self.chunk_bytes == 0 || self.chunk_bytes > LARGEST_CHUNK {
            return Err(format!("part {name:?} has chunks of {} bytes", self.chunk_bytes));
        }
        if self.chunks.len() as u64 != self.bytes.div_ceil(self.chunk_bytes) {
            return Err(format!(
                "part {name:?} has {} chunks, and its {} bytes take {}",
                self.chunks.len(),
                self.bytes,
                self.bytes.div_ceil(self.chunk_bytes)
            ));
        }
        for (at, chunk) in self.chunks.iter().enumerate() {
            let start = at as u64 * self.chunk_bytes;
            if chunk.bytes != self.chunk_bytes.min(self.bytes - start) {
                return Err(format!("part {name:?} has a chunk of {} bytes at {start}", chunk.bytes));
            }
        }
        if let Some(file) = &self.file {
            if *file != self.kept_as() {
                return Err(format!("part {name:?} is kept as {file:?} in place of {:?}", self.kept_as()));
            }
            if self.chunks.iter().any(|chunk| chunk.encoding == Encoding::Zstd) {
                return Err(format!("part {name:?} is kept whole and says that it is compressed"));
            }
        } else if self.tail > 0 {
            return Err(format!("part {name:?} has a file's tail and no file"));
        }
        if let Some(filled) = self.filled
            && (self.file.is_none() || filled > self.in_chunks())
        {
            return Err(format!("part {name:?} says that {filled} bytes of it are filled, more than it has"));
        }
        match self.bytes.checked_add(self.tail) {
            Some(length) if i64::try_from(length).is_ok() => Ok(()),
            _ => Err(format!("part {name:?} is longer than a file can be")),
        }
    }

    /// The image whose file this part is as well, if it came from one.
    pub fn origin(&self) -> Option<Origin> {
        Origin::deserialize(self.attributes.get(ORIGIN)?).ok()
    }

    /// As a part of an image that has it from another. What has come further already keeps where it came from first.
    pub fn passed_on(mut self, from: &Origin) -> Part {
        if self.origin().is_none() {
            self.attributes = serde_json::json!({ ORIGIN: from });
        }
        self
    }

    /// What it takes, each place of it for itself.
    pub fn stored(&self) -> u64 {
        self.filled.unwrap_or_else(|| self.in_chunks())
    }

    fn in_chunks(&self) -> u64 {
        self.chunks.iter().filter(|chunk| chunk.encoding != Encoding::Zero).map(|chunk| chunk.stored).sum()
    }

    /// How long the file is in which the part is kept whole.
    pub(crate) fn file_length(&self) -> u64 {
        self.bytes + self.tail
    }

    /// Where in the image's directory the part lies if it is kept whole.
    pub(crate) fn kept_as(&self) -> String {
        format!("{}/{}", self.kind.directory(), crate::names::encode(&self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_travel_by_name() {
        for kind in PartKind::KNOWN.into_iter().chain([PartKind::Other("kernel-graph".into())]) {
            assert_eq!(PartKind::from(String::from(kind.clone())), kind);
        }
    }

    #[test]
    fn a_part_that_is_passed_on_keeps_its_origin() {
        let part = Part {
            kind: PartKind::CpuPages,
            name: "anon-1".into(),
            bytes: 0,
            attributes: Value::Null,
            file: None,
            tail: 0,
            modified_ns: None,
            filled: None,
            chunk_bytes: 4096,
            chunks: Vec::new(),
        };
        assert_eq!(part.origin(), None);
        let origin = |image: &str| Origin { image: image.into(), id: format!("id of {image}") };
        let once = part.passed_on(&origin("first"));
        assert_eq!(once.clone().passed_on(&origin("second")), once);
        assert_eq!(once.origin(), Some(origin("first")));
    }

    #[test]
    fn a_part_that_contradicts_itself_is_refused() {
        let good = Part {
            kind: PartKind::GpuBuffer,
            name: "b".into(),
            bytes: 5000,
            attributes: Value::Null,
            file: None,
            tail: 0,
            modified_ns: None,
            filled: None,
            chunk_bytes: 4096,
            chunks: vec![ChunkRef::zero(4096), ChunkRef::zero(904)],
        };
        assert_eq!(good.check(), Ok(()));
        let bad = [
            Part { bytes: 5001, ..good.clone() },
            Part { bytes: u64::MAX, ..good.clone() },
            Part { chunk_bytes: 0, ..good.clone() },
            Part { chunks: vec![ChunkRef::zero(4096)], ..good.clone() },
            Part { chunks: vec![ChunkRef::zero(904), ChunkRef::zero(4096)], ..good.clone() },
            Part { file: Some("../../etc/passwd".into()), ..good.clone() },
            Part { name: String::new(), ..good.clone() },
            Part { tail: 1, ..good.clone() },
            Part { filled: Some(0), ..good.clone() },
        ];
        for part in bad {
            assert!(part.check().is_err(), "{part:?}");
        }
    }
}
