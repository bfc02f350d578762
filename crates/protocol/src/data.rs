//! Worker, daemon ↔ memory daemon: objects of stores, which lie in memory of the host once for all who want them.
//!
//! ```text
//!   asker   Want { url } ───────────────────────────────────────▶ memory daemon ── HEAD, ranges ──▶ store
//!           ◀── Object { bytes } + memory ─ Ready ─ Ready ─ … ─ Whole
//!                                        └───────────── Failed at any place
//! ```
//!
//! One connection for each object that is wanted; it is kept in memory at least for as long as that is open.

use serde::{Deserialize, Serialize};

/// Of all that is said here. Raised with every change.
pub const VERSION: u32 = 1;

/// By this variable workers are told where the memory daemon listens.
pub const SOCKET_VARIABLE: &str = "REKINDLE_DATA_SOCKET";

/// What an asker says, once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Want {
    pub version: u32,
    /// `s3://BUCKET/KEY`, `http://…`, `https://…` or `file:///…`.
    pub url: String,
    /// How many bytes it is to have, if the asker knows.
    pub bytes: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// With a descriptor of the memory, which can only be read. Nothing in it means anything until it is `Ready`.
    Object {
        bytes: u64,
    },
    /// These bytes are there.
    Ready {
        offset: u64,
        bytes: u64,
    },
    /// All are.
    Whole {},
    Failed(Problem),
}

/// Why an object cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    pub kind: ProblemKind,
    /// What was found, what was expected and what to do.
    pub sentence: String,
}

/// Numbers are those that programs see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u32)]
pub enum ProblemKind {
    /// There is no such object.
    NotFound = 1,
    /// It became another one while it was read.
    Changed = 2,
    /// It has another size than was declared.
    Size = 3,
    /// Credentials are missing, or do not suffice.
    Access = 4,
    /// The store cannot be reached, or fails.
    Unavailable = 5,
    /// There is no memory for it.
    Memory = 6,
    /// Its name means nothing.
    Name = 7,
    /// The GPU failed while it was loaded.
    Gpu = 8,
}

impl Problem {
    pub fn new(kind: ProblemKind, sentence: impl Into<String>) -> Problem {
        Problem { kind, sentence: sentence.into() }
    }
}
