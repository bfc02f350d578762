//! Worker, daemon ↔ memory daemon: objects of stores, which lie in memory of the host once for all who want them; and what
//! functions [hand on](crate::exchange).
//!
//! ```text
//!   asker   Want { Object } ────────────────────────────────────▶ memory daemon ── HEAD, ranges ──▶ store
//!           ◀── Object { bytes } + memory ─ Ready ─ Ready ─ … ─ Whole
//!                                        └───────────── Failed at any place
//! ```
//!
//! Programs of one owner have an object once on each GPU. Who wants it for that is given the memory that another one has
//! filled, or fills some and gives that to those who come after:
//!
//! ```text
//!   first     Want { Object, sharer } ─▶   ◀── Object, Ready, …, Whole      Filled + memory of the GPU ─▶   ┄ open
//!   further   Want { Object, sharer } ─▶   ◀── OnGpu + memory of the GPU    ┄ open for as long as it is mapped
//!   restored  Want { Join } ─────────▶     ◀── OnGpu + memory, or Fill      Filled + memory ─▶              ┄ open
//! ```
//!
//! What a program has written goes back into the store, from memory of the host that its worker has filled:
//!
//! ```text
//!   dumper    Want { Dump } ─▶  Contents + memory ─▶     ◀── Dumped { version }, or Failed
//! ```
//!
//! One connection for each object that is wanted; it is kept in memory at least for as long as that is open. With its memory
//! comes a socket that the asker closes when it has the memory mapped no more: until then it counts.

use serde::{Deserialize, Serialize};

use crate::exchange;

/// Of all that is said here. Raised with every change.
pub const VERSION: u32 = 8;

/// By this variable workers are told where the memory daemon listens.
pub const SOCKET_VARIABLE: &str = "REKINDLE_DATA_SOCKET";

/// What an asker says first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataRequestHead {
    pub version: u32,
    #[serde(rename = "wish")]
    pub request: DataRequest,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataRequest {
    /// An object of a store.
    Object {
        /// `s3://BUCKET/KEY`, `gs://…`, `az://…`, `http://…`, `https://…` or `file:///…`.
        url: String,
        /// How many bytes it is to have, if the asker knows.
        bytes: Option<u64>,
        /// Who would have it in memory of a GPU that others have too.
        sharer: Option<Sharer>,
        /// It is to be written to and dumped.
        write: Option<Write>,
    },
    /// Bytes of an object, from its store.
    Read { url: String, offset: u64, bytes: u64 },
    /// To write this many bytes in place of what is expected.
    Dump { url: String, bytes: u64, expected: Expected },
    /// Memory of a GPU that holds this version of an object, or to be the one who gives it to others.
    Join { url: String, version: Version, sharer: Sharer },
    /// How much there was, and is, of objects.
    Count {},
    /// Something about what functions hand on.
    Exchange(exchange::ExchangeRequest),
    /// The version of an object that its store has now. Nothing is fetched.
    Look { url: String },
}

/// Whose programs have memory of a GPU together, and which GPU that is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Sharer {
    pub owner: String,
    /// Its UUID.
    pub gpu: String,
}

/// What tells versions of an object apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Version {
    pub bytes: u64,
    /// The store's own mark.
    pub tag: Option<String>,
    /// When it was written, nanoseconds, for stores without marks.
    pub written: i64,
}

/// How an object is wanted that is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// It need not be there.
    pub create: bool,
}

/// What an object has to be for it to be replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Expected {
    /// There is none.
    Missing {},
    Is(Version),
}

/// What a dumper says, with a descriptor of memory that is sealed at its size: this is what is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contents {}

/// What a sharer says in the middle, with a descriptor: this memory of the GPU, of so many bytes, holds the object, and nobody
/// writes to it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filled {
    pub room: u64,
}

impl DataRequestHead {
    pub fn new(request: DataRequest) -> DataRequestHead {
        DataRequestHead { version: VERSION, request }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// With a descriptor of the memory, which can only be read, and a socket that is closed when that is not mapped any more.
    /// Nothing in it means anything until it is `Ready`.
    Object {
        version: Version,
    },
    /// With a descriptor of memory of the sharer's GPU, of `room` bytes, that holds it and can only be read.
    OnGpu {
        version: Version,
        room: u64,
    },
    /// It is not there, which the asker allows for.
    Missing {},
    /// These bytes, of so many that it has.
    Bytes {
        total: u64,
        bytes: Vec<u8>,
    },
    /// It is written, and of this version now.
    Dumped {
        version: Version,
    },
    /// Nobody has it on that GPU; the asker gives it to those who come after.
    Fill {},
    /// These bytes are there.
    Ready {
        offset: u64,
        bytes: u64,
    },
    /// All are.
    Whole {},
    Count(Count),
    Failed(Problem),
}

/// What the memory daemon has done since it began, and has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// How often an object was asked for that was in memory already, or on its way there.
    pub hits: u64,
    /// How often one had to be fetched, and how often that failed.
    pub fetches: u64,
    pub failures: u64,
    /// Bytes that came from stores.
    pub fetched_bytes: u64,
    /// Bytes of memory that objects have, and may have.
    pub held_bytes: u64,
    pub limit_bytes: u64,
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
    /// Another node, which has it, is not known, cannot be reached or refuses.
    Node = 9,
}

impl Problem {
    pub fn new(kind: ProblemKind, sentence: impl Into<String>) -> Problem {
        Problem { kind, sentence: sentence.into() }
    }
}
