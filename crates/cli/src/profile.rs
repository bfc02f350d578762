//! `rekindle profile`: learns in which order a program uses its GPU buffers, and which of them it writes to.

use std::process::{Command, Stdio};

use rekindle_daemon::Paths;
use rekindle_protocol::daemon::{Report, Request, Restore};
use serde_json::{Value, json};

use crate::arguments::ProfileArguments;
use crate::commands::Printer;
use crate::connection::simply_ask;
use crate::error::{Error, Result};

/// Where the request finds the sandbox's name.
const VARIABLE: &str = "REKINDLE_SANDBOX";

pub fn perform(
    paths: &Paths,
    printer: &Printer,
    ProfileArguments { image, gpu, request }: ProfileArguments,
) -> Result<()> {
    let restore = Request::Restore(Restore { image, gpu, record: true, ..Restore::default() });
    let report: Report = serde_json::from_value(simply_ask(paths, &restore)?)?;
    let name = report.name;
    let learned = send(&name, &request)
        .and_then(|()| simply_ask(paths, &Request::KeepOrder { name: name.clone() }))
        .map(|mut answer| {
            let shares = answer["shares"] == true;
            answer["unwritten"] = json!(shares.then(|| learn_unwritten(paths, &name, &request)).flatten());
            answer
        });
    let ended = simply_ask(paths, &Request::Kill { names: vec![name], signal: None, grace_ms: None });
    let answer = learned?;
    ended?;
    printer.print(&answer, || {
        let parts = answer["parts"].as_array().map_or(0, Vec::len);
        match answer["unwritten"].as_array() {
            Some(unwritten) => format!(
                "{parts} buffers, in the order of their use; {} that instances can share",
                unwritten.len()
            ),
            None => format!("{parts} buffers, in the order of their use"),
        }
    });
    Ok(())
}

/// Sends the request once more, to a program whose buffers were marked: its answer means nothing. Names of the buffers that
/// it has left as they were; none if that could not be found out.
fn learn_unwritten(paths: &Paths, name: &str, request: &[String]) -> Option<Value> {
    let name = name.to_string();
    let marked = simply_ask(paths, &Request::Mark { name: name.clone() });
    let kept = marked
        .and_then(|_| send(&name, request))
        .and_then(|()| simply_ask(paths, &Request::KeepUnwritten { name }));
    match kept {
        Ok(answer) => Some(answer["unwritten"].clone()),
        Err(error) => {
            eprintln!("rekindle: which buffers instances can share was not found out: {error}");
            None
        }
    }
}

/// Standard output is the answer's.
fn send(sandbox: &str, request: &[String]) -> Result<()> {
    let failed = |how: String| Error::Request { command: request.join(" "), how };
    let (program, arguments) = request.split_first().ok_or_else(|| failed("it is empty".to_string()))?;
    let status = Command::new(program)
        .args(arguments)
        .env(VARIABLE, sandbox)
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .status()
        .map_err(|error| failed(error.to_string()))?;
    if status.success() { Ok(()) } else { Err(failed(status.to_string())) }
}
