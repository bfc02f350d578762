//! Graphs of workflows, from files.

use std::path::Path;

use rekindle_protocol::workflow::Graph;

use crate::error::{Error, Result};

/// The longest file.
const LONGEST: u64 = 1 << 20;

/// What a file says; the daemon checks the rest.
pub fn read(file: &Path) -> Result<Graph> {
    let failed = |why: String| Error::Graph { file: file.to_path_buf(), why };
    let length = std::fs::metadata(file).map_err(|error| failed(error.to_string()))?.len();
    if length > LONGEST {
        return Err(failed(format!("it has {length} bytes, and {LONGEST} are taken")));
    }
    let text = std::fs::read(file).map_err(|error| failed(error.to_string()))?;
    serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))
}
