//! What the daemon has done, counted since it started: checkpoints, restores and the like, and programs brought back after a
//! failure.

use std::sync::LazyLock;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use rekindle_gateway::durations;
use rekindle_protocol::daemon::Operation;

/// A daemon is a process, and has all that is done in it to count.
static WORK: LazyLock<[Work; OPERATIONS.len()]> = LazyLock::new(Default::default);
static RECOVERIES: LazyLock<Recoveries> = LazyLock::new(Recoveries::default);

const OPERATIONS: [(Operation, &str); 5] = [
    (Operation::Checkpoint, "checkpoint"),
    (Operation::Restore, "restore"),
    (Operation::Sleep, "sleep"),
    (Operation::Wake, "wake"),
    (Operation::Migrate, "migrate"),
];

/// All operations of one kind.
pub struct Work {
    /// How long those took that came to their end; a restore, until the program ran.
    pub took: Histogram,
    /// How long the programs of those stood still.
    pub stood: Histogram,
    pub failed: Counter,
}

impl Default for Work {
    fn default() -> Work {
        Work { took: durations(), stood: durations(), failed: Counter::default() }
    }
}

/// Programs that ended though nobody wanted it, and have a plan for that.
#[derive(Default)]
pub struct Recoveries {
    /// Those that go on, from an image or from their beginning.
    pub done: Counter,
    /// Tries that came to nothing.
    pub failed: Counter,
}

/// Operations by what they are called.
pub fn work() -> impl Iterator<Item = (&'static str, &'static Work)> {
    OPERATIONS.iter().map(|(_, name)| *name).zip(WORK.iter())
}

pub fn recoveries() -> &'static Recoveries {
    &RECOVERIES
}

/// An operation has come to its end.
pub fn done(operation: Operation, took: Duration, stood: Duration) {
    let Some(work) = of(operation) else { return };
    work.took.observe(took.as_secs_f64());
    work.stood.observe(stood.as_secs_f64());
}

/// An operation that had begun came to nothing.
pub fn failed(operation: Operation) {
    if let Some(work) = of(operation) {
        work.failed.inc();
    }
}

fn of(operation: Operation) -> Option<&'static Work> {
    let at = OPERATIONS.iter().position(|(one, _)| *one == operation)?;
    WORK.get(at)
}
