//! `rekindle trace`: a sandbox's last checkpoint or restore as a table, as a picture, and for trace viewers.

use std::path::{Path, PathBuf};

use rekindle_daemon::Paths;
use rekindle_protocol::daemon::{Request, Trace};
use serde_json::{Value, json};

use crate::commands::Printer;
use crate::connection::simply_ask;
use crate::error::{Error, Result};
use crate::{picture, show};

pub fn perform(
    paths: &Paths,
    printer: &Printer,
    name: String,
    svg: Option<PathBuf>,
    chrome: Option<PathBuf>,
) -> Result<()> {
    let mut answer = simply_ask(paths, &Request::Trace { name: name.clone() })?;
    let traces: Vec<Trace> = serde_json::from_value(answer["traces"].clone())?;
    let last = traces.last().ok_or_else(|| Error::NoTrace { name: name.clone() })?;
    let svg = svg.unwrap_or_else(|| PathBuf::from(format!("{}.trace.svg", file_stem(&name))));
    write(&svg, &picture::draw(&name, last))?;
    answer["svg"] = json!(svg);
    if let Some(chrome) = chrome {
        write(&chrome, &self::chrome(&traces).to_string())?;
        answer["chrome"] = json!(chrome);
    }
    printer.print(&answer, || format!("{}\nthe picture: {}", show::trace(last), svg.display()));
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|source| Error::File {
        action: "write",
        path: path.to_path_buf(),
        source,
    })
}

/// A name of a file for a sandbox, whose name may hold anything printable.
fn file_stem(name: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    name.trim_start_matches('.').chars().map(plain).take(60).collect()
}

/// All traces in the format of `chrome://tracing`: a process for each, a thread for each of its lanes.
fn chrome(traces: &[Trace]) -> Value {
    let mut events = Vec::new();
    for (process, trace) in traces.iter().enumerate() {
        let title = format!("{} {} ({})", show::operation(trace.operation), trace.image, trace.began);
        events.push(
            json!({ "ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": { "name": title } }),
        );
        let lanes = picture::lanes(trace);
        for (thread, lane) in lanes.iter().enumerate() {
            events.push(
                json!({ "ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": { "name": lane } }),
            );
        }
        for phase in &trace.phases {
            events.push(json!({
                "ph": "X",
                "name": phase.name,
                "cat": if phase.waited_for.is_empty() { "work" } else { "wait" },
                "ts": phase.start_us,
                "dur": phase.duration_us,
                "pid": process,
                "tid": lanes.iter().position(|lane| *lane == phase.lane),
                "args": { "bytes": phase.bytes, "waited_for": phase.waited_for },
            }));
        }
    }
    json!({ "displayTimeUnit": "ms", "traceEvents": events })
}

#[cfg(test)]
mod tests {
    use rekindle_protocol::daemon::Operation;
    use rekindle_protocol::worker::Phase;

    use super::*;

    #[test]
    fn names_make_harmless_files() {
        assert_eq!(file_stem("../a b/$(c)"), "_a_b___c_");
        assert_eq!(file_stem("train.py-1"), "train.py-1");
    }

    #[test]
    fn a_viewer_gets_a_thread_for_each_lane() {
        let phase = |lane: &str, name: &str| Phase {
            lane: lane.into(),
            name: name.into(),
            duration_us: 5,
            ..Phase::default()
        };
        let trace = Trace {
            operation: Operation::Restore,
            image: "i".into(),
            began: String::new(),
            total_us: 10,
            stopped_us: 10,
            problem: None,
            phases: vec![phase("daemon", "checks"), phase("gpu half", "buffers"), phase("daemon", "resume")],
            memory: Vec::new(),
            waited: Vec::new(),
            written: None,
        };
        let events = chrome(&[trace]);
        let threads: Vec<_> = events["traceEvents"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|event| event["ph"] == "X")
            .map(|event| event["tid"].as_u64().unwrap())
            .collect();
        assert_eq!(threads, [0, 1, 0]);
    }
}
