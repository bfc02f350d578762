//! Programs that are brought back after a failure.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What a user wants for a program that may fail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryPlan {
    /// How often an image is taken, milliseconds; none: never.
    pub every_ms: Option<u64>,
    /// After how many of the program's steps one is.
    #[serde(default)]
    pub steps: Option<StepPlan>,
    /// How many of the images stay.
    pub keep: u32,
    /// How often it may fail without coming farther than before; none: it is not brought back.
    pub restarts: Option<u32>,
}

/// What a user calls the steps of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepPlan {
    /// How many are between two images.
    pub every: u64,
    /// Each change of this file of the program's is one; without it those count that `rekindle.step()` tells.
    pub file: Option<PathBuf>,
}

/// What has come of that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    pub plan: RecoveryPlan,
    /// The images that are kept, the oldest first.
    pub images: Vec<String>,
    pub recoveries: u32,
    /// The program's time that it had to do again, milliseconds.
    pub repeated_ms: u64,
    /// From ends to when it was about to run again, milliseconds.
    pub lost_ms: u64,
    /// Whether it is not brought back any more.
    pub over: bool,
}
