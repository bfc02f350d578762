//! What happens, as it is told while it does.

use serde::{Deserialize, Serialize};

use super::State;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// `done` of `total` (bytes, or steps), 0 where unknown.
    Progress { phase: String, done: u64, total: u64 },
    /// Bytes of a log, as text where they are UTF-8 (lossy).
    Output { bytes: Vec<u8> },
    /// Lines of a log.
    Lines { lines: Vec<LogLine> },
    /// Something has happened.
    Happened { what: EventNotice },
    /// The last event of a request that worked. The value's fields are documented with the command.
    Done { value: serde_json::Value },
    /// The last event of a request that failed: one sentence, and how the command is to end if not with 1.
    Failed {
        message: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<u8>,
    },
}

/// What has happened, as `rekindle events --json` prints it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EventNotice {
    /// RFC 3339, with microseconds.
    pub time: String,
    /// `listening`, `state`, `problem`, `migrated`, `outlived`, `mended`, `removed`, `image-made` or `image-removed`.
    pub event: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The GPU that it runs on now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// The node that it runs at now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// A line of a log, as `rekindle logs --json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// RFC 3339, with microseconds; none where it is not known.
    pub time: Option<String>,
    pub stream: Stream,
    /// Without its end.
    pub text: String,
}

/// Who has printed a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stream {
    Stdout,
    Stderr,
    /// Not the program: a restore's marker, and what is said of lost output.
    Rekindle,
}
