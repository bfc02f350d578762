//! What two nodes say to each other. Who connects says what for; then one asks and the other answers.

use rekindle_protocol::daemon::User;
use rekindle_protocol::data::Problem;
use rekindle_protocol::exchange::ArrayKind;
use rekindle_protocol::network::Port;
use rekindle_protocol::terminal::WindowSize;
use serde::{Deserialize, Serialize};

use crate::sandboxes::recovery::Recovery;

/// What a connection is for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "for", rename_all = "kebab-case")]
pub enum Hello {
    /// A program is to move here. Then there are any number of [`Ask`]s.
    Migrate(Box<Offer>),
    /// Whether a program that was to move here has run, or never will.
    Settle { id: String },
    /// Who has asked that knows the answer.
    Forget { id: String },
    /// An array of this owner's is wanted. If it is to be had, an [`ArrayAsk`] follows.
    Array { owner: String, id: String },
    /// An array is not needed any more. With `use_only`: by one of those that it was put for.
    DropArray { owner: String, id: String, use_only: bool },
}

/// A program that is to move.
#[derive(Debug, Serialize, Deserialize)]
pub struct Offer {
    /// The migration's.
    pub id: String,
    pub name: String,
    /// None: the usual one there.
    pub gpu: Option<String>,
    /// None: those that the program has.
    pub publish: Vec<Port>,
    /// Where in its log this run of it begins.
    pub log_start: u64,
    pub recovery: Option<Recovery>,
    pub user: Option<User>,
    pub terminal: Option<WindowSize>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum Ask {
    /// An image of it comes: first its manifest, so many bytes. The answer says which chunks are to follow.
    Image { bytes: u64 },
    /// Whether the image that came last can be restored there.
    Check,
    /// What it has printed, from a place in its log or in the log's index, comes: so many bytes.
    Log { index: bool, at: u64, bytes: u64 },
    /// It stands still: it is to be brought to where it could run.
    Restore,
    /// It is given away, and is to run.
    Run,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Answer {
    Done,
    /// The GPU that it is to have.
    Willing {
        gpu: String,
    },
    Wanted {
        chunks: Vec<u32>,
    },
    /// Nothing comes of it, for this reason.
    Refused {
        reason: String,
    },
    /// It could run.
    Ready,
    /// It has run, or does; the ports that lead to it.
    Runs {
        ports: Vec<Port>,
    },
    /// It has not, and never will.
    Never {
        reason: String,
    },
    /// That is not known yet.
    Open,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum ArrayAsk {
    /// There is room for the array: it is to be sent.
    Send,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", content = "what", rename_all = "kebab-case")]
pub enum ArrayAnswer {
    /// It is there.
    Here(ArrayKind),
    /// Its bytes follow.
    Ready,
    /// That was all, and this is its BLAKE3 hash.
    Sent {
        hash: String,
    },
    Done,
    Failed(Problem),
}
