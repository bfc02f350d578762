//! What is asked of a service, which answers requests by instances of an image.

use serde::{Deserialize, Serialize};

use crate::daemon::Level;
use crate::network::Port;

/// What is asked of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceWish {
    /// Where clients come; the program's port of it means nothing.
    pub port: Option<Port>,
    /// The port that the program listens on.
    pub to: Option<u16>,
    /// A path that an instance answers with success once it is ready.
    pub ready: Option<String>,
    pub gpu: Option<String>,
    /// Whose programs instances share GPU contexts with.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Where the GPU memory of an idle instance goes.
    pub level: Option<Level>,
    pub min: Option<u32>,
    pub max: Option<u32>,
    pub concurrency: Option<u32>,
    pub queue: Option<u32>,
    pub idle_ms: Option<u64>,
    pub idle_end_ms: Option<u64>,
    pub timeout_ms: Option<u64>,
    /// URLs of the data that instances are about to want.
    #[serde(default)]
    pub data: Option<Vec<String>>,
}
