//! Images of programs, and the store that keeps them.
//!
//! An image is a directory: a [`Manifest`] that a person can read, and files that are kept whole.
//! All other contents are chunks, named by the hash of what is in them and shared by all images of
//! the store. `docs/image-format.md` specifies both to the byte.
//!
//! - [`Store`] opens a store, lists, verifies and removes images, and collects unused chunks.
//! - [`Draft`] writes an image; [`Staging`] lets another process write parts of it.
//! - [`Image`] reads one.
//!
//! ```
//! use rekindle_store::{PartKind, Store};
//! # let root = tempfile::tempdir()?;
//! let store = Store::open(root.path())?;
//! let draft = store.begin("trained")?;
//! draft.put(PartKind::GpuBuffer, "weights", serde_json::json!({ "address": 4096 }), &[7; 9000])?;
//! let image = draft.commit()?;
//! let part = image.part(PartKind::GpuBuffer, "weights").expect("just written");
//! let mut read = [0; 9000];
//! image.read_part(part, 0, &mut read)?;
//! assert_eq!(read, [7; 9000]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What holds, whatever happens:
//! - An image is whole and durable from the moment that its name shows it, or it is not there.
//! - No byte is returned that does not match the hash it was stored under.
//! - Several processes may use a store at once, and any of them may be killed at any moment.

mod advice;
mod archive;
pub mod bounded;
mod chunk;
mod collect;
mod commit;
mod disk;
mod draft;
mod error;
mod extent;
mod faults;
mod first_pages;
mod half;
mod hash;
mod id;
mod image;
mod layout;
mod lease;
mod load_order;
mod manifest;
mod memory_demand;
mod names;
mod part_writer;
mod raw_chunk;
mod sparse;
mod staging;
mod store;
mod transfer;
mod unwritten;
mod verify;

pub use archive::Progress;
pub use chunk::{chunk_bytes_for, decode as decode_chunk};
pub use collect::Collected;
pub use disk::modified_ns;
pub use draft::Draft;
pub use error::{Error, Result};
pub use faults::Faults;
pub use first_pages::{FirstPages, PageRun};
pub use hash::ContentHash;
pub use image::Image;
pub use load_order::LoadOrder;
pub use manifest::{
    ChunkRef, Encoding, FORMAT, Gpu, GpuKind, Machine, Manifest, MappedFile, Mode, Origin, Part, PartKind,
    Program, Sizes,
};
pub use memory_demand::{MemoryChange, MemoryDemand, RequestKinds, RequestMemory};
pub use names::LONGEST_NAME;
pub use part_writer::PartWriter;
pub use raw_chunk::RawChunk;
pub use staging::{HashedChunk, HashedChunks, Staging};
pub use store::{Outline, Store, Summary};
pub use transfer::{Incoming, LONGEST_SENT};
pub use verify::Report;
