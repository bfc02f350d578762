//! `rekindle profile`: learns in which order a program uses its GPU buffers, which of them it writes to, and how much memory a
//! request needs.

use std::process::{Command, Stdio};

use rekindle_daemon::Paths;
use rekindle_protocol::daemon::{Report, Request, Restore};
use rekindle_protocol::worker::RequestProfile;
use serde_json::{Value, json};

use crate::arguments::ProfileArguments;
use crate::commands::Printer;
use crate::connection::simply_ask;
use crate::error::{Error, Result};
use crate::show::bytes;

/// Where the request finds the sandbox's name.
const VARIABLE: &str = "REKINDLE_SANDBOX";

pub fn perform(
    paths: &Paths,
    printer: &Printer,
    ProfileArguments { image, gpu, share, request }: ProfileArguments,
) -> Result<()> {
    let is_shared = share.is_some();
    let restore = Restore { image, gpu, record: true, tenant: share, ..Restore::default() };
    let restore = Request::Restore(restore);
    let report: Report = serde_json::from_value(simply_ask(paths, &restore)?)?;
    let name = report.name;
    let learned = send(&name, &request)
        .and_then(|()| simply_ask(paths, &Request::KeepOrder { name: name.clone() }))
        .map(|mut answer| {
            // What others of its context have must not be marked.
            let shares = answer["shares"] == true && !is_shared;
            answer["unwritten"] = json!(shares.then(|| learn_unwritten(paths, &name, &request)).flatten());
            answer
        });
    let ended = simply_ask(paths, &Request::Kill { names: vec![name], signal: None, grace_ms: None });
    let answer = learned?;
    ended?;
    printer.print(&answer, || {
        let parts = answer["parts"].as_array().map_or(0, Vec::len);
        let order = format!("{parts} buffers, in the order of their use");
        let order = match answer["unwritten"].as_array() {
            Some(unwritten) => format!("{order}; {} that instances can share", unwritten.len()),
            None => order,
        };
        let profiles: Vec<RequestProfile> =
            serde_json::from_value(answer["memory"].clone()).unwrap_or_default();
        std::iter::once(order).chain(profiles.iter().map(memory)).collect::<Vec<_>>().join("\n")
    });
    Ok(())
}

/// What a request needed of a GPU's memory.
fn memory(profile: &RequestProfile) -> String {
    let most = |levels: &mut dyn Iterator<Item = (u32, u64)>| {
        levels.max_by_key(|(launch, bytes)| (*bytes, std::cmp::Reverse(*launch))).unwrap_or_default()
    };
    let resident = profile.resident_bytes;
    let held = profile.held.iter().map(|(launch, level)| (*launch, resident.saturating_add_signed(*level)));
    let (held_at, held) = most(&mut held.chain([(0, resident)]));
    let (used_at, used) = most(
        &mut profile.used.iter().map(|(launch, bytes)| (*launch, resident + bytes)).chain([(0, resident)]),
    );
    format!(
        "{} launches; allocated {}, had memory {} (launch {held_at}), needed between first and last use {} (launch {used_at}); \
         giving memory back after its last use would save {}",
        profile.launches,
        bytes(profile.allocated_bytes),
        bytes(held),
        bytes(used),
        bytes(held - used.min(held)),
    )
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
