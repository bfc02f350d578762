//! What is asked of a service, which answers requests by instances of an image.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::daemon::Level;
use crate::data_slot::DataSlot;
use crate::network::Port;
use crate::worker::ShareMemory;
use crate::workflow::Graph;

/// What is asked of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceRequest {
    /// Where clients come; the program's port of it means nothing.
    pub port: Option<Port>,
    /// The port that the program listens on.
    pub to: Option<u16>,
    /// A path that an instance answers with success once it is ready.
    pub ready: Option<String>,
    /// The GPU, or those that instances are on: each is on one of them.
    #[serde(default)]
    pub gpus: Vec<String>,
    /// Whose service it is: its clients need a token of that tenant. [`NOBODY`](crate::tenant::NOBODY): nobody's.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Whose programs instances share GPU contexts with.
    #[serde(default)]
    pub share: Option<String>,
    /// What an instance has of those.
    #[serde(default)]
    pub link_weight: Option<u32>,
    #[serde(default)]
    pub sm_share: Option<u32>,
    #[serde(default)]
    pub sm_weight: Option<u32>,
    #[serde(default)]
    pub sm_most: Option<u32>,
    /// When what it allocates there gets memory.
    #[serde(default)]
    pub share_memory: Option<ShareMemory>,
    /// Further images of the same program, of which instances are made too.
    #[serde(default)]
    pub variants: Vec<String>,
    /// Where the GPU memory of an idle instance goes.
    pub level: Option<Level>,
    pub min: Option<u32>,
    pub max: Option<u32>,
    pub concurrency: Option<u32>,
    pub queue: Option<u32>,
    pub idle_ms: Option<u64>,
    pub idle_end_ms: Option<u64>,
    pub timeout_ms: Option<u64>,
    /// The levels that an idle instance sleeps at one after the other, and for how long; with none of them, at `level` for
    /// `idle_end_ms`.
    #[serde(default)]
    pub stages: Option<Vec<SleepStage>>,
    /// How long a context is kept for one that sleeps.
    #[serde(default)]
    pub context_ms: Option<u64>,
    /// URLs of the data that instances are about to want.
    #[serde(default)]
    pub data: Option<Vec<String>>,
    /// What of it requests can name another object for.
    #[serde(default)]
    pub data_slots: Option<Vec<DataSlot>>,
    /// The latest version of calls' messages that the program of the image understands.
    #[serde(default)]
    pub message: Option<u32>,
    /// So many of ten thousand requests are to go to the image, and the others where they go; else all.
    #[serde(default)]
    pub canary: Option<u32>,
    /// Whether clients speak TLS.
    #[serde(default)]
    pub tls: Option<TlsRequest>,
}

/// What is asked of a workflow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkflowRequest {
    /// Where clients come; where they do already, or a port that is free, if none is given.
    pub port: Option<Port>,
    /// Whose it is: its clients need a token of that tenant. [`NOBODY`](crate::tenant::NOBODY): nobody's.
    pub tenant: Option<String>,
    pub graph: Graph,
    /// Whether clients speak TLS.
    #[serde(default)]
    pub tls: Option<TlsRequest>,
}

/// How long an instance sleeps at a level before it goes on to the next one, or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SleepStage {
    pub level: Level,
    pub ms: u64,
}

impl SleepStage {
    pub fn time(&self) -> Duration {
        Duration::from_millis(self.ms)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TlsRequest {
    Off,
    With(TlsFiles),
}

/// A certificate, with those above it, and its private key, both in PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}
