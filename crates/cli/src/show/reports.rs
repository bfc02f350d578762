//! What came of operations, and of a look at this machine.

use rekindle_daemon::Finding;
use rekindle_protocol::daemon::{
    MigrationPath, MigrationReport, Mode, NodeMigrationReport, Operation, Report, Round, SleepReport, Trace,
    Written,
};
use rekindle_protocol::worker::{self, Phase, TransferReport, WorkWait};

use super::{bytes, milliseconds, table};

/// Who has waited for a GPU for so long is told why, also without asking.
const LONG_WAIT_US: u64 = 10_000;

/// What a checkpoint was; with `verbose` by its phases.
pub fn report(report: &Report, verbose: bool) -> String {
    let cpu_alone = report.mode == Mode::Driver && report.gpu_processes == 0;
    let note = if cpu_alone { "\nno process uses a GPU: the image is of the CPU alone" } else { "" };
    let phases: &[Phase] = if verbose { &report.phases } else { &[] };
    let memory =
        if verbose { ways(&report.memory) + &written(report.written.as_ref()) } else { String::new() };
    let least_us = if verbose { 0 } else { LONG_WAIT_US };
    self::phases(phases, report.total_us, report.stopped_us)
        + &waits(&report.waited, least_us)
        + &memory
        + note
}

/// How GPU memory of a program that went on came to its image.
fn ways(memory: &[TransferReport]) -> String {
    let shown = |taken: &TransferReport| {
        let TransferReport {
            way,
            why,
            bytes: all,
            unused_bytes,
            ahead_bytes,
            new_bytes,
            still_bytes,
            guarded_bytes,
        } = taken;
        let (all, ahead) = (bytes(*all), bytes(*ahead_bytes));
        let (new, still) = (bytes(*new_bytes), bytes(*still_bytes));
        let guarded = match *guarded_bytes {
            0 => String::new(),
            guarded => {
                format!(", and {} right after it, before the program could change them", bytes(guarded))
            }
        };
        let what = match way {
            worker::TransferPath::Shadow => {
                "it was copied within the GPU and written beside the program".to_string()
            }
            worker::TransferPath::Ahead => {
                format!("{ahead} were written ahead, {new} were new and {still} written in the stop{guarded}")
            }
            worker::TransferPath::Still => {
                format!("{ahead} were written ahead, {still} in the stop{guarded}")
            }
        };
        let unused = match *unused_bytes {
            0 => String::new(),
            unused => format!(", and {} that its allocator has free", bytes(unused)),
        };
        format!("\nGPU memory, {all}{unused}: {what}, since {why}")
    };
    memory.iter().map(shown).collect()
}

/// Why a program stood still until its GPU had done its work, where that took so long.
fn waits(waited: &[WorkWait], least_us: u64) -> String {
    let long = waited.iter().filter(|wait| wait.duration_us >= least_us);
    let shown = |WorkWait { why, duration_us }: &WorkWait| {
        format!("\nfor {} ms of that it waited for its GPU's work, since {why}", milliseconds(*duration_us))
    };
    long.map(shown).collect()
}

/// How fast a program writes.
fn written(written: Option<&Written>) -> String {
    let shown = |written: &Written| {
        let rate = |count: u64| (count as f64 * 1e6 / written.since_us.max(1) as f64) as u64;
        let told =
            |what: &str, count: u64| format!("{} of {what} memory ({}/s)", bytes(count), bytes(rate(count)));
        let since = milliseconds(written.since_us);
        let cpu = written.cpu_bytes.map(|count| format!(" and {}", told("CPU", count))).unwrap_or_default();
        format!("\nwritten since the image before, {since} ms: {}{cpu}", told("GPU", written.gpu_bytes))
    };
    written.map(shown).unwrap_or_default()
}

/// How a program fell asleep or woke; with `verbose` by the phases.
pub fn slept(report: &SleepReport, verbose: bool) -> String {
    let phases: &[Phase] = if verbose { &report.phases } else { &[] };
    self::phases(phases, report.total_us, report.total_us)
}

pub fn migrated(report: &MigrationReport, verbose: bool) -> String {
    let MigrationReport { name, from, gpu, way, total_us, stopped_us, .. } = report;
    let way = match way {
        MigrationPath::Direct => "copied by the GPUs themselves",
        MigrationPath::Host => "copied through the host's memory",
    };
    let phases: &[Phase] = if verbose { &report.phases } else { &[] };
    let mut text = format!("{name:?} runs on {gpu}, and not on {from}; its memory was {way}\n");
    text += &rounds(&report.rounds);
    text + &self::phases(phases, *total_us, *stopped_us)
}

pub fn moved(report: &NodeMigrationReport, verbose: bool) -> String {
    let NodeMigrationReport { name, node, gpu, total_us, stopped_us, .. } = report;
    let on = if gpu.is_empty() { String::new() } else { format!(", on {gpu}") };
    let mut text = format!("{name:?} runs at node {node:?}{on}, and not here\n");
    text += &rounds(&report.rounds);
    let phases: &[Phase] = if verbose { &report.phases } else { &[] };
    text + &self::phases(phases, *total_us, *stopped_us)
}

fn rounds(rounds: &[Round]) -> String {
    let shown = |(number, round): (usize, &Round)| {
        let (took, still) = (milliseconds(round.duration_us), milliseconds(round.stopped_us));
        let bytes = bytes(round.bytes);
        format!("round {}: {bytes} in {took} ms, of which it stood still for {still}\n", number + 1)
    };
    rounds.iter().enumerate().map(shown).collect()
}

/// What stands before the name of what an operation was about.
pub fn operation(operation: Operation) -> &'static str {
    match operation {
        Operation::Checkpoint => "checkpoint to",
        Operation::Restore => "restore of",
        Operation::Sleep => "sleep at level",
        Operation::Wake => "wake from level",
        Operation::Migrate => "migration to",
    }
}

pub fn trace(trace: &Trace) -> String {
    let word = operation(trace.operation);
    let problem = trace.problem.iter().map(|problem| format!("\nit failed: {problem}")).collect::<String>();
    let table = phases(&trace.phases, trace.total_us, trace.stopped_us);
    let memory = waits(&trace.waited, 0) + &ways(&trace.memory) + &written(trace.written.as_ref());
    format!("{word} {:?}, {}\n{table}{memory}{problem}", trace.image, trace.began)
}

fn phases(phases: &[Phase], total_us: u64, stopped_us: u64) -> String {
    let (total, stopped) = (milliseconds(total_us), milliseconds(stopped_us));
    let sum = format!("in all {total} ms, the program stood still for {stopped} ms");
    if phases.is_empty() {
        return sum;
    }
    let mut table = table(&["LANE", "PHASE", "FROM ms", "TOOK ms", "SIZE", "FROM", "WAITED FOR"]);
    for phase in phases {
        let size = if phase.bytes > 0 { bytes(phase.bytes) } else { String::new() };
        let from = phase.from.iter().map(|(place, count)| format!("{place} {}", bytes(*count)));
        let counts = phase.counts.iter().map(|(what, count)| format!("{count} {what}"));
        let from: Vec<_> = from.chain(counts).collect();
        table.add_row([
            phase.lane.clone(),
            phase.name.clone(),
            milliseconds(phase.start_us),
            milliseconds(phase.duration_us),
            size,
            from.join(", "),
            phase.waited_for.join(", "),
        ]);
    }
    format!("{}\n{sum}", table.trim_fmt())
}

pub fn findings(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let mark = match (finding.ok, finding.required_for_all) {
            (true, _) => "ok",
            (false, true) => "MISSING",
            (false, false) => "absent",
        };
        let Finding { need, found, required, mend, .. } = finding;
        text.push_str(&format!("{mark:8}{need}: {found} (required: {required})\n"));
        if !finding.ok {
            text.push_str(&format!("        to mend: {mend}\n"));
        }
    }
    text.trim_end().to_string()
}
