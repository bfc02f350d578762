//! Memory daemon ↔ `rekindled`: arrays that other nodes have.
//!
//! ```text
//!   Fetch ─▶   ◀─ Comes { what }    Room + memory of the host ─▶   ◀─ Whole
//!   Drop ─▶    ◀─ Done
//! ```
//!
//! One connection for each request. A side that goes away undoes what was not finished.

use serde::{Deserialize, Serialize};

use crate::data::Problem;
use crate::exchange::ArrayKind;

/// How many digits at the beginning of an array's name say which node has put it: the first ones of its key.
pub const NODE_DIGITS: usize = 8;

/// How long an array may take to come from another node.
pub const FETCH_LIMIT: std::time::Duration = std::time::Duration::from_secs(100);

/// What the memory daemon asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeRequest {
    /// Have an array sent.
    Fetch { owner: String, id: String },
    /// Say to the node that has it that it is not needed any more. With `use_only`: by one of those that it was put for.
    Drop { owner: String, id: String, use_only: bool },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeAnswer {
    /// It is to be had; memory of the host is wanted for it.
    Comes(ArrayKind),
    /// All of it is there, and is what the other node has.
    Whole {},
    Done {},
    Failed(Problem),
}

/// With a descriptor: memory of the host that the array is to be written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {}
