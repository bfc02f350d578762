//! The traces of a sandbox: how its restore and its checkpoints went, one JSON file beside its record.
//!
//! A trace is told to people and never acted upon, so one that cannot be written or read is only reported.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rekindle_protocol::daemon::{Operation, Trace};
use rekindle_protocol::worker::Phase;
use rekindle_sandbox::log_index;
use rekindle_store::bounded;

use crate::error::Result;
use crate::host::clock;
use crate::host::replace::{Outlasting, PRIVATE, replace};
use crate::sandboxes::Sandbox;
use crate::tally;
use crate::timeline::Timeline;

/// How many are kept of one sandbox, the newest.
const KEPT: usize = 16;
/// What they take at most.
const LONGEST: u64 = 64 << 20;

/// One checkpoint or restore that is under way.
pub struct Tracing {
    operation: Operation,
    image: String,
    began: String,
}

impl Tracing {
    pub fn begin(operation: Operation, image: &str) -> Tracing {
        Tracing { operation, image: image.to_string(), began: clock::microseconds(log_index::now_us()) }
    }

    /// Nothing is left with which a trace could be kept.
    pub fn failed(self) {
        tally::failed(self.operation);
    }

    /// Keeps the trace with the sandbox, and passes on how the work ended.
    pub fn end<T>(
        self,
        sandbox: &Sandbox,
        timeline: &Timeline,
        stopped_us: u64,
        result: Result<T>,
    ) -> Result<T> {
        let trace = Trace {
            operation: self.operation,
            image: self.image,
            began: self.began,
            total_us: timeline.elapsed_us(),
            stopped_us,
            problem: result.as_ref().err().map(ToString::to_string),
            phases: timeline.phases(),
            memory: timeline.memory(),
            waited: timeline.waited(),
            written: timeline.written(),
        };
        match &result {
            Ok(_) => {
                let [took, stood] = [trace.total_us, stopped_us].map(Duration::from_micros);
                tally::done(self.operation, took, stood);
            }
            Err(_) => tally::failed(self.operation),
        }
        if let Err(error) = add(&sandbox.traces, trace) {
            log::warn!("the trace of {:?} is not kept: {error}", sandbox.name());
        }
        result
    }
}

/// Where the traces of a sandbox lie; `records` is the directory of records.
pub fn place(records: &Path, id: &str) -> PathBuf {
    records.join(format!("{id}.traces"))
}

/// All that are kept, the oldest first.
pub fn read(path: &Path) -> Vec<Trace> {
    let text = match bounded::read(path, LONGEST) {
        Ok(text) => text,
        Err(rekindle_store::Error::Io { .. }) => return Vec::new(),
        Err(error) => {
            log::warn!("{error}");
            return Vec::new();
        }
    };
    serde_json::from_slice(&text).unwrap_or_else(|error| {
        log::warn!("the traces in {} cannot be read: {error}", path.display());
        Vec::new()
    })
}

/// Adds phases to the newest restore, after which there may have been something else. Several threads may do so at once.
pub fn extend(path: &Path, phases: impl IntoIterator<Item = Phase>) {
    let _exclusive = exclusive();
    let mut traces = read(path);
    let Some(newest) = traces.iter_mut().rfind(|trace| trace.operation == Operation::Restore) else { return };
    newest.phases.extend(phases);
    newest.phases.sort_by_key(|phase| phase.start_us);
    if let Err(error) = write(path, &traces) {
        log::warn!("a trace in {} lacks its last phases: {error}", path.display());
    }
}

/// Who changes a file has read it before.
fn exclusive() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

fn add(path: &Path, trace: Trace) -> std::io::Result<()> {
    let _exclusive = exclusive();
    let mut traces = read(path);
    traces.push(trace);
    traces.drain(..traces.len().saturating_sub(KEPT));
    write(path, &traces)
}

fn write(path: &Path, traces: &[Trace]) -> std::io::Result<()> {
    replace(path, &serde_json::to_vec(traces)?, PRIVATE, Outlasting::Nothing)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn trace(operation: Operation, total_us: u64) -> Trace {
        Trace {
            operation,
            image: "i".into(),
            began: clock::now(),
            total_us,
            stopped_us: 0,
            problem: None,
            phases: Vec::new(),
            memory: Vec::new(),
            waited: Vec::new(),
            written: None,
        }
    }

    #[test]
    fn what_a_restore_has_left_to_be_done_is_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let path = place(directory.path(), "0a");
        for operation in [Operation::Restore, Operation::Restore, Operation::Checkpoint] {
            add(&path, trace(operation, 1)).unwrap();
        }
        extend(&path, [Phase { name: "late".into(), ..Phase::default() }]);
        let phases: Vec<_> = read(&path).iter().map(|trace| trace.phases.len()).collect();
        assert_eq!(phases, [0, 1, 0]);
    }

    #[test]
    fn the_newest_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = place(directory.path(), "0a");
        assert!(read(&path).is_empty());
        for total_us in 0..20 {
            add(&path, trace(Operation::Checkpoint, total_us)).unwrap();
        }
        let kept: Vec<_> = read(&path).iter().map(|trace| trace.total_us).collect();
        assert_eq!(kept, (4..20).collect::<Vec<_>>());
        fs::write(&path, "{").unwrap();
        assert!(read(&path).is_empty());
    }
}
