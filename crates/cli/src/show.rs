//! What people see of the daemon's answers.

use std::fmt::Write;

use comfy_table::{Table, presets};
use rekindle_daemon::Finding;
use rekindle_protocol::daemon::{
    Happened, LogLine, Mending, MigrationReport, Mode, NodeMigrationReport, Operation, Report, Round,
    Sandbox, SleepReport, Trace, Way,
};
use rekindle_protocol::exchange::Count;
use rekindle_protocol::worker::{self, Phase, WayTaken};
use serde_json::Value;

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
pub fn stats(all: &[Used], handed_on: &[Count]) -> String {
    let used = used(all);
    match handed_on {
        [] => used,
        counts => format!("{used}\n\n{}", handed_on_by(counts)),
    }
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
        "PINNED",
        "TO GPU",
        "FROM GPU",
        "WAIT",
        "WEIGHT",
        "SHARE",
        "MENDING",
        "PROCESSES",
    ]);
    let known = |text: Option<String>| text.unwrap_or_else(|| "-".to_string());
    let size = |size: Option<u64>| known(size.map(bytes));
    for Used { stats, processor_percent } in all {
        table.add_row([
            stats.name.clone(),
            text(&serde_json::to_value(stats.state).unwrap_or_default()),
            known(processor_percent.map(|percent| format!("{percent:.1} %"))),
            size(stats.host_bytes),
            size(stats.device_bytes),
            size(stats.pinned_bytes),
            size(stats.to_gpu_bytes),
            size(stats.from_gpu_bytes),
            known(stats.link_waited_us.map(|waited| format!("{:.1} s", waited as f64 / 1e6))),
            known(stats.link_weight.map(|weight| weight.to_string())),
            known(stats.sm_share.map(|percent| format!("{percent} %"))),
            known(stats.mending.as_ref().map(mending)),
            stats.processes.to_string(),
        ]);
    }
    table.trim_fmt()
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
        None => word.to_string(),
    }
}

pub fn mode(mode: Mode) -> String {
    let word = serde_json::to_value(mode).unwrap_or_default();
    text(&word)
}

pub fn images(images: &Value) -> String {
    let mut table = table(&[
        "IMAGE", "CREATED", "MODE", "CPU", "GPU", "PINNED", "OWN", "SHARED", "CACHED", "COMMAND", "PROBLEM",
    ]);
    for image in images.as_array().into_iter().flatten() {
        let size = |field: &str| image["sizes"][field].as_u64().map(bytes).unwrap_or_default();
        let shared = image["shared_bytes"].as_u64().unwrap_or_default();
        table.add_row([
            text(&image["name"]),
            text(&image["created"]),
            text(&image["mode"]),
            size("cpu"),
            if is_gpu_in_cpu(image) { IN_CPU.to_string() } else { size("gpu") },
            size("pinned"),
            image["sizes"]["stored"].as_u64().map(|stored| bytes(stored - shared)).unwrap_or_default(),
            bytes(shared),
            cached(&image["cached_bytes"]),
            shorten(&words(&image["command"]), 40),
            text(&image["problem"]),
        ]);
    }
    table.trim_fmt()
}

/// Services, with how many instances of each are at which stage.
pub fn services(answer: &Value) -> String {
    let mut table = table(&[
        "SERVICE",
        "TENANT",
        "IMAGE",
        "ADDRESS",
        "INSTANCES",
        "QUEUED",
        "IN FLIGHT",
        "GPU MEMORY",
        "SERVED",
        "FAILED",
        "REFUSED",
        "PROBLEM",
    ]);
    for service in answer["services"].as_array().into_iter().flatten() {
        let (image, problem) = (text(&service["source"]["image"]), text(&service["problem"]));
        table.add_row(service_row(
            service,
            [text(&service["name"]), text(&service["tenant"]), image, address(service)],
            problem,
        ));
        let canary = &service["canary"];
        if let Some(share) = canary["share"].as_f64() {
            let name = format!("{} ({}% canary)", text(&service["name"]), share * 100.0);
            let first = [name, text(&service["tenant"]), text(&canary["image"]), String::new()];
            table.add_row(service_row(canary, first, text(&canary["stopped"])));
        }
    }
    let mut shown = table.trim_fmt();
    let limit = answer["memory"]["limit_bytes"].as_u64();
    for (gpu, used) in answer["memory"]["used_bytes"].as_object().into_iter().flatten() {
        let used = bytes(used.as_u64().unwrap_or_default());
        if let Some(limit) = limit {
            let _ = write!(shown, "\n{gpu}: {used} of the {} that services may have", bytes(limit));
        }
    }
    shown
}

fn service_row(row: &Value, [name, tenant, image, address]: [String; 4], problem: String) -> [String; 12] {
    [
        name,
        tenant,
        image,
        address,
        stages(row),
        row["queued"].to_string(),
        row["in_flight"].to_string(),
        bytes(row["gpu_bytes"].as_u64().unwrap_or_default()),
        row["served"].to_string(),
        row["failed"].to_string(),
        row["refused"].to_string(),
        problem,
    ]
}

/// Where a service's clients come.
pub fn address(service: &Value) -> String {
    let port = service["port"].as_u64().unwrap_or_default();
    match service["address"].as_str() {
        None => port.to_string(),
        Some(address) if address.contains(':') => format!("[{address}]:{port}"),
        Some(address) => format!("{address}:{port}"),
    }
}

fn stages(service: &Value) -> String {
    let mut counts = std::collections::BTreeMap::new();
    for instance in service["instances"].as_array().into_iter().flatten() {
        *counts.entry(text(&instance["stage"])).or_insert(0) += 1;
    }
    let shown = counts.iter().map(|(stage, count)| format!("{count} {stage}"));
    let shown = shown.chain((service["draining"] == true).then(|| "draining".to_string()));
    let shown = shown.collect::<Vec<_>>().join(", ");
    if shown.is_empty() { "none".to_string() } else { shown }
}

/// Lines of a log with their times.
pub fn log(lines: &[LogLine]) -> String {
    lines.iter().map(|line| format!("{} {}\n", line.time.as_deref().unwrap_or("-"), line.text)).collect()
}

/// What has happened, on a line.
pub fn happened(what: &Happened) -> String {
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

/// What a prune has removed, a line each.
pub fn pruned(answer: &Value) -> String {
    let names = |kind: &str| answer[kind].as_array().cloned().unwrap_or_default();
    let lines = |kind: &str, word: &str| -> Vec<String> {
        names(kind).iter().map(|name| format!("removed {word} {}\n", shorten(&text(name), 1024))).collect()
    };
    let freed = answer["freed_bytes"].as_u64().map(bytes).unwrap_or_default();
    format!("{}{}{freed} freed", lines("sandboxes", "sandbox").concat(), lines("images", "image").concat())
}

/// Where the driver has put it.
const IN_CPU: &str = "in CPU part";

fn is_gpu_in_cpu(image: &Value) -> bool {
    image["mode"] == "driver" && image["gpus"].as_u64().is_some_and(|count| count > 0)
}

/// What of an image lies in caches, those that have nothing of it left out.
fn cached(caches: &Value) -> String {
    let host = ("host", caches["host"].as_u64());
    let gpus = caches["gpus"].as_object().into_iter().flatten();
    let all = gpus.map(|(gpu, count)| (gpu.as_str(), count.as_u64())).chain([host]);
    let held = all.filter_map(|(place, count)| Some((place, count.filter(|count| *count > 0)?)));
    held.map(|(place, count)| format!("{place} {}", bytes(count))).collect::<Vec<_>>().join(", ")
}

pub fn image(image: &Value) -> String {
    let mut table = table(&[]);
    let sizes = &image["sizes"];
    let size = |field: &str| sizes[field].as_u64().map(bytes).unwrap_or_default();
    let gpu_part = match image["gpu_in_cpu_bytes"].as_u64() {
        // NVML does not tell everywhere.
        Some(0) => IN_CPU.to_string(),
        Some(count) => format!("{IN_CPU}: {} of GPU memory", bytes(count)),
        None => size("gpu"),
    };
    for (label, value) in [
        ("image", text(&image["name"])),
        ("created", text(&image["created"])),
        ("mode", text(&image["mode"])),
        ("path", text(&image["path"])),
        ("command", words(&image["program"]["argv"])),
        ("directory", text(&image["program"]["cwd"])),
        (
            "machine",
            format!("{}, Linux {}", text(&image["machine"]["host"]), text(&image["machine"]["kernel"])),
        ),
        ("logical size", size("logical")),
        ("stored", size("stored")),
        ("zeros", size("zero")),
        ("CPU part", size("cpu")),
        ("GPU part", gpu_part),
        ("pinned part", size("pinned")),
        ("mapped files", image["files"].as_array().map_or(0, Vec::len).to_string()),
    ] {
        table.add_row([label.to_string(), value]);
    }
    for gpu in image["gpus"].as_array().into_iter().flatten() {
        let memory = gpu["memory_bytes"].as_u64().map(bytes).unwrap_or_default();
        table.add_row([
            "GPU".to_string(),
            format!("{}, {memory}, driver {}", text(&gpu["model"]), text(&gpu["driver_version"])),
        ]);
    }
    format!("{}\n\n{}", table.trim_fmt(), parts(&image["parts"]))
}

fn parts(parts: &Value) -> String {
    let mut table = table(&["PART", "NAME", "SIZE", "STORED", "FROM IMAGE"]);
    for part in parts.as_array().into_iter().flatten() {
        let size = |field: &str| part[field].as_u64().map(bytes).unwrap_or_default();
        let from = text(&part["from"]);
        table.add_row([text(&part["kind"]), text(&part["name"]), size("bytes"), size("stored"), from]);
    }
    table.trim_fmt()
}

/// What a checkpoint was; with `verbose` by its phases.
pub fn report(report: &Report, verbose: bool) -> String {
    let cpu_alone = report.mode == Mode::Driver && report.gpu_processes == 0;
    let note = if cpu_alone { "\nno process uses a GPU: the image is of the CPU alone" } else { "" };
    let phases: &[Phase] = if verbose { &report.phases } else { &[] };
    let memory = if verbose { ways(&report.memory) } else { String::new() };
    self::phases(phases, report.total_us, report.stopped_us) + &memory + note
}

/// How GPU memory of a program that went on came to its image.
fn ways(memory: &[WayTaken]) -> String {
    let shown = |taken: &WayTaken| {
        let WayTaken { way, why, bytes: all, ahead_bytes, new_bytes, still_bytes } = taken;
        let (all, ahead) = (bytes(*all), bytes(*ahead_bytes));
        let (new, still) = (bytes(*new_bytes), bytes(*still_bytes));
        let what = match way {
            worker::Way::Shadow => "it was copied within the GPU and written beside the program".to_string(),
            worker::Way::Ahead => {
                format!("{ahead} were written ahead, {new} were new and {still} written in the stop")
            }
            worker::Way::Still => format!("{ahead} were written ahead, and {still} in the stop"),
        };
        format!("\nGPU memory, {all}: {what}, since {why}")
    };
    memory.iter().map(shown).collect()
}

/// How a program fell asleep or woke; with `verbose` by the phases.
pub fn slept(report: &SleepReport, verbose: bool) -> String {
    let phases: &[Phase] = if verbose { &report.phases } else { &[] };
    self::phases(phases, report.total_us, report.total_us)
}

pub fn migrated(report: &MigrationReport, verbose: bool) -> String {
    let MigrationReport { name, from, gpu, way, total_us, stopped_us, .. } = report;
    let way = match way {
        Way::Direct => "copied by the GPUs themselves",
        Way::Host => "copied through the host's memory",
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

pub fn trace(trace: &Trace) -> String {
    let word = match trace.operation {
        Operation::Checkpoint => "checkpoint to",
        Operation::Restore => "restore of",
        Operation::Sleep => "sleep at level",
        Operation::Wake => "wake from level",
        Operation::Migrate => "migration to",
    };
    let problem = trace.problem.iter().map(|problem| format!("\nit failed: {problem}")).collect::<String>();
    let table = phases(&trace.phases, trace.total_us, trace.stopped_us);
    format!("{word} {:?}, {}\n{table}{}{problem}", trace.image, trace.began, ways(&trace.memory))
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

pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    if !header.is_empty() {
        table.set_header(header);
    }
    // Lines stay whole, however narrow the terminal says that it is: they can then be searched.
    table.set_content_arrangement(comfy_table::ContentArrangement::Disabled);
    table
}

pub fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn words(value: &Value) -> String {
    value.as_array().into_iter().flatten().map(text).collect::<Vec<_>>().join(" ")
}

/// At most so many characters; control characters replaced, so that nothing plays with the terminal.
fn shorten(text: &str, most: usize) -> String {
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    match text.char_indices().nth(most) {
        None => clean.collect(),
        Some(_) => clean.take(most - 1).chain(['…']).collect(),
    }
}

pub fn milliseconds(microseconds: u64) -> String {
    format!("{:.1}", microseconds as f64 / 1000.0)
}

/// A size in the largest unit that leaves a number of at least one.
pub fn bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_readable() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(3 << 30), "3.0 GiB");
    }

    #[test]
    fn long_and_odd_commands_stay_on_a_line() {
        assert_eq!(shorten("a\n\u{1b}b", 40), "a  b");
        assert_eq!(shorten(&"é".repeat(50), 5), "éééé…");
    }
}
