//! Sandboxes: what they are, what they use, what happens to them.

use rekindle_protocol::daemon::{
    EventNotice, Level, LogLine, Mending, Mode, PoolTarget, Recovery, Sandbox, Spare, Stats,
};
use rekindle_protocol::exchange::{Count, MoveCounts};
use serde_json::Value;

use super::{bytes, shorten, table, text};
use crate::stats::Used;

pub fn sandboxes(sandboxes: &[Sandbox]) -> String {
    let mut table = table(&[
        "NAME",
        "STATE",
        "MODE",
        "PID",
        "GPU",
        "GPU MEMORY",
        "STARTED",
        "PORTS",
        "COMMAND",
        "PROBLEM",
    ]);
    for sandbox in sandboxes {
        table.add_row([
            sandbox.name.clone(),
            state(sandbox),
            mode(sandbox.mode),
            if sandbox.pid > 0 { sandbox.pid.to_string() } else { String::new() },
            sandbox.gpu.clone(),
            if sandbox.device_bytes > 0 { bytes(sandbox.device_bytes) } else { String::new() },
            sandbox.started.clone(),
            sandbox.ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            shorten(&sandbox.command.join(" "), 40),
            sandbox.problem.clone().or_else(|| refused(sandbox)).unwrap_or_default(),
        ]);
    }
    table.trim_fmt()
}

/// What the program was refused, and what can be done.
fn refused(sandbox: &Sandbox) -> Option<String> {
    let names = sandbox.refused.join(", ");
    let text = format!("was refused {names}; `rekindle run --mode driver` is the way out");
    (!sandbox.refused.is_empty()).then_some(text)
}

/// What programs use, and below it what functions hand on, if they do.
pub fn stats(all: &[Used], handed_on: &[Count], moves: MoveCounts) -> String {
    let mut shown = used(all);
    if !handed_on.is_empty() {
        shown += &format!("\n\n{}", handed_on_by(handed_on));
    }
    if moves != MoveCounts::default() {
        let MoveCounts { to_gpus, to_host, from_nodes, to_nodes, between_gpus } = moves;
        shown += &format!(
            "\n\narrays moved: {to_gpus} to other GPUs, {to_host} to the host; {from_nodes} from other nodes, {to_nodes} to them; \
             {between_gpus} copied by takers on another GPU"
        );
    }
    shown
}

/// Below that: the workers that wait for each GPU, where more are to than always are, or there is no room for them.
pub fn pool(waiting: &[Spare], targets: &[PoolTarget]) -> String {
    let is_told = |target: &&PoolTarget| target.workers > target.least || target.short_of_memory;
    let told: Vec<&PoolTarget> = targets.iter().filter(is_told).collect();
    if told.is_empty() {
        return String::new();
    }
    let mut table = table(&[
        "WAITING WORKERS OF",
        "READY",
        "TARGET",
        "LEAST",
        "RECENT",
        "ASLEEP",
        "PROCESSES",
        "GPU MEMORY",
    ]);
    for target in told {
        let ready = waiting.iter().filter(|spare| spare.ready && spare.gpu == target.gpu).count();
        let numbers = [ready, target.workers, target.least, target.recent, target.asleep, target.processes];
        let memory = if target.short_of_memory { "too little is free" } else { "-" };
        let row = numbers.map(|number| number.to_string());
        table.add_row(
            std::iter::once(target.gpu.clone()).chain(row).chain(std::iter::once(memory.to_string())),
        );
    }
    format!("\n\n{}", table.trim_fmt())
}

fn handed_on_by(counts: &[Count]) -> String {
    let mut table = table(&["HANDED ON BY", "ARRAYS", "HELD", "GPU MEMORY", "HOST MEMORY"]);
    for count in counts {
        table.add_row([
            count.owner.clone(),
            count.arrays.to_string(),
            count.held.to_string(),
            bytes(count.gpu_bytes),
            bytes(count.host_bytes),
        ]);
    }
    table.trim_fmt()
}

fn used(all: &[Used]) -> String {
    let mut table = table(&[
        "NAME",
        "STATE",
        "PROCESSORS",
        "HOST MEMORY",
        "GPU MEMORY",
        "UNBACKED",
        "POOL",
        "PINNED",
        "TO GPU",
        "FROM GPU",
        "WAIT",
        "WEIGHT",
        "MULTIPROCESSORS",
        "MENDING",
        "BROUGHT BACK",
        "PROCESSES",
    ]);
    let known = |text: Option<String>| text.unwrap_or_else(|| "-".to_string());
    let size = |size: Option<u64>| known(size.map(bytes));
    for Used { stats, processor_percent } in all {
        table.add_row([
            stats.name.clone(),
            at_level(&text(&serde_json::to_value(stats.state).unwrap_or_default()), stats.asleep),
            known(processor_percent.map(|percent| format!("{percent:.1} %"))),
            size(stats.host_bytes),
            size(stats.device_bytes),
            size(stats.unbacked_bytes),
            known(first_uses(stats)),
            size(stats.pinned_bytes),
            size(stats.to_gpu_bytes),
            size(stats.from_gpu_bytes),
            known(stats.link_waited_us.map(|waited| format!("{:.1} s", waited as f64 / 1e6))),
            known(stats.link_weight.map(|weight| weight.to_string())),
            known(multiprocessors(stats)),
            known(stats.mending.as_ref().map(mending)),
            known(stats.recovery.as_ref().map(recovery)),
            stats.processes.to_string(),
        ]);
    }
    table.trim_fmt()
}

/// What lies ready for first uses, and how many of them have found memory there.
fn first_uses(stats: &Stats) -> Option<String> {
    let (hits, misses) = (stats.pool_hits?, stats.pool_misses?);
    Some(format!("{}, {hits} of {}", bytes(stats.pool_bytes?), hits + misses))
}

/// How many it has now, and what it is to have: its share, its most, and its weight.
fn multiprocessors(stats: &Stats) -> Option<String> {
    let now = stats.multiprocessors.map(|now| now.to_string());
    let said = [
        stats.sm_share.map(|percent| format!("{percent} %")),
        stats.sm_most.map(|percent| format!("at most {percent} %")),
        stats.sm_weight.map(|weight| format!("weight {weight}")),
    ];
    let all: Vec<String> = now.into_iter().chain(said.into_iter().flatten()).collect();
    Some(all.join(", ")).filter(|all| !all.is_empty())
}

/// How often it was brought back, and what that has cost.
fn recovery(recovery: &Recovery) -> String {
    let seconds = |ms: u64| format!("{:.1} s", ms as f64 / 1e3);
    match recovery.recoveries {
        0 => "0 times".to_string(),
        times => format!(
            "{times} times, {} away, {} repeated",
            seconds(recovery.lost_ms),
            seconds(recovery.repeated_ms)
        ),
    }
}

/// Whether the loss of a worker would be mended, and how often it was.
fn mending(mending: &Mending) -> String {
    let word = if mending.on { "on" } else { "off" };
    match mending.mended {
        0 => word.to_string(),
        times => format!("{word}, {times} times"),
    }
}

fn state(sandbox: &Sandbox) -> String {
    let word = serde_json::to_value(sandbox.state).ok();
    let word = word.as_ref().and_then(Value::as_str).unwrap_or_default();
    if let Some(node) = &sandbox.node {
        return format!("moved to {node}");
    }
    match sandbox.exit_code {
        Some(code) => format!("{word} ({code})"),
        None => at_level(word, sandbox.asleep),
    }
}

/// A state, and the level of what sleeps.
fn at_level(state: &str, asleep: Option<Level>) -> String {
    match asleep {
        Some(level) => format!("{state} ({})", text(&serde_json::to_value(level).unwrap_or_default())),
        None => state.to_string(),
    }
}

pub fn mode(mode: Mode) -> String {
    let word = serde_json::to_value(mode).unwrap_or_default();
    text(&word)
}

/// Lines of a log with their times.
pub fn log(lines: &[LogLine]) -> String {
    lines.iter().map(|line| format!("{} {}\n", line.time.as_deref().unwrap_or("-"), line.text)).collect()
}

/// What has happened, on a line.
pub fn happened(what: &EventNotice) -> String {
    let mut words = vec![what.time.clone()];
    words.extend(what.sandbox.iter().map(|name| format!("sandbox {}", shorten(name, 1024))));
    words.extend(what.image.iter().map(|name| format!("image {}", shorten(name, 1024))));
    match what.state {
        Some(state) => words.push(text(&serde_json::to_value(state).unwrap_or_default())),
        None => words.push(what.event.clone()),
    }
    words.extend(what.exit_code.map(|code| format!("({code})")));
    words.extend(what.gpu.iter().map(|gpu| format!("to {}", shorten(gpu, 1024))));
    words.extend(what.problem.iter().map(|problem| shorten(problem, 4096)));
    words.join(" ")
}
