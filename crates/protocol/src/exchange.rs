//! Worker, daemon ↔ memory daemon: arrays that functions hand on. The memory daemon keeps descriptors of the GPU memory they lie
//! in, and no GPU; workers do what needs one.
//!
//! ```text
//!   giver   Put ─▶            ◀─ Room    Here + memory ─▶   ◀─ Kept { id }
//!   taker   Get ─▶            ◀─ OnGpu + memory             ┄ open for as long as the taker has it mapped
//!           Get ─▶            ◀─ OnHost + memory of the host    Here + memory, or Copied ─▶   ┄
//!   before an answer that needs room on the GPU, as often as needed:
//!                             ◀─ MoveOut + both memories    Moved ─▶
//!                             ◀─ MoveOut + its memory       Here + memory of the other GPU ─▶
//!   rekindled, for another node, and for who calls
//!           Lend ─▶           ◀─ Lent + memory              ┄ open until it is sent
//!           Where ─▶          ◀─ Lie
//! ```
//!
//! The memory of an array that is over may have the next one: its giver has it mapped still, and so may a taker, who knows it by
//! its name.
//!
//! One connection for each wish. A side that goes away undoes what was not finished.

use serde::{Deserialize, Serialize};

use crate::data::Problem;

/// What a connection is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExchangeRequest {
    /// Keep an array.
    Put(Put),
    /// Have an array of so many bytes on this GPU. It may be one of another node.
    Get { owner: String, gpu: Gpu, id: String, bytes: u64 },
    /// The array is not needed any more. With `use_only`: by one of those that it was put for.
    Drop { owner: String, id: String, use_only: bool },
    /// A program lacks so much memory of the GPU: move out what nobody has mapped.
    MakeRoom { gpu: String, bytes: u64 },
    /// Have an array in memory of the host, to send it to another node.
    Lend { owner: String, id: String },
    /// How much there is.
    Count {},
    /// On which GPU most bytes of these arrays lie.
    Where { ids: Vec<String> },
}

/// A GPU of this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    pub uuid: String,
    /// What workers are started with that have it: as `--gpu` names it, perhaps among others.
    pub choice: String,
    /// UUIDs of the GPUs whose memory it can have mapped.
    pub reaches: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Put {
    /// Whose it is: none else gets it.
    pub owner: String,
    /// That it lies on.
    pub gpu: Gpu,
    pub bytes: u64,
    /// Bytes of the memory that it lies in.
    pub room: u64,
    /// How long it is kept after its last use.
    pub expiry_ms: u64,
    /// After how many uses it goes; 0: never by that.
    pub uses: u32,
    /// Arrays that the giver has put before, in memory of the same room that it has still.
    pub before: Vec<String>,
}

/// What the memory daemon says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// With two descriptors: copy so many bytes from this memory of the GPU, of `room` bytes, to that of the host. With one, and
    /// another GPU's UUID: to memory of that, which is to be made.
    MoveOut {
        bytes: u64,
        room: u64,
        to: Option<String>,
    },
    /// There is room for what is put; and this one of those before is over, so that its memory may be used.
    Room {
        over: Option<String>,
    },
    Kept {
        id: String,
    },
    /// With a descriptor of memory of the GPU that has this UUID. It can only be read. What has the same name is the same
    /// memory.
    OnGpu {
        gpu: String,
        bytes: u64,
        room: u64,
        memory: Option<String>,
    },
    /// With a descriptor of memory of the host. With `keep`, the GPU's memory that it is copied into is wanted.
    OnHost {
        bytes: u64,
        room: u64,
        keep: bool,
    },
    /// With a descriptor of memory of the host that has it; or, if it lies on this GPU, with two: that GPU's memory, and memory
    /// of the host that it is to be copied to.
    Lent {
        array: ArrayKind,
        gpu: Option<Gpu>,
    },
    /// What was asked is done; so many bytes of the GPU's memory were given back.
    Done {
        freed: u64,
    },
    Counts(Vec<Count>, MoveCounts),
    Failed(Problem),
    /// None: on none, as far as is known.
    Lie {
        on: Option<Gpu>,
    },
}

/// What one node has to know of another's array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayKind {
    pub bytes: u64,
    /// Bytes of the GPU's memory that it takes.
    pub room: u64,
    pub expiry_ms: u64,
    /// It goes after some uses.
    pub counted: bool,
}

/// What a worker says in the middle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExchangeMessage {
    /// Whether all that was to be moved out is copied.
    Moved { done: bool },
    /// With a descriptor: the GPU's memory that the array lies in, and its name if it had one before. It is another GPU's if it
    /// was to be moved there.
    Here { memory: Option<String> },
    /// The array is copied, and its memory stays the taker's own.
    Copied {},
}

/// How much somebody has, as `rekindle stats --json` prints it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    pub owner: String,
    pub arrays: u64,
    /// How many of them some program has mapped.
    pub held: u64,
    pub gpu_bytes: u64,
    pub host_bytes: u64,
}

/// How many arrays were moved since the memory daemon began, as `rekindle stats --json` prints it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveCounts {
    /// For room on a GPU, to another one or to the host.
    pub to_gpus: u64,
    pub to_host: u64,
    pub from_nodes: u64,
    pub to_nodes: u64,
    /// Copied by takers on another GPU than theirs, which leaves them where they are.
    #[serde(default)]
    pub between_gpus: u64,
}
