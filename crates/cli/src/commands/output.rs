//! What a program has printed.

use rekindle_daemon::Paths;
use rekindle_protocol::daemon::Request;
use serde_json::json;

use super::Printer;
use crate::arguments::LogArguments;
use crate::connection::{ask, ask_lines};
use crate::error::Result;
use crate::foreground::Output;
use crate::show;

pub fn logs(paths: &Paths, printer: &Printer, arguments: LogArguments) -> Result<()> {
    let LogArguments { name, follow, since, tail, timestamps } = arguments;
    let lines = timestamps || printer.json;
    let request = Request::Logs { name: name.clone(), follow, own: false, since_us: since, tail, lines };
    if printer.json {
        let (mut log, mut all) = (Vec::new(), Vec::new());
        ask_lines(paths, &request, |bytes| log.extend_from_slice(bytes), |lines| all.extend(lines))?;
        printer.print_json(&json!({ "name": name, "log": String::from_utf8_lossy(&log), "lines": all }));
    } else if lines {
        ask_lines(paths, &request, |_| {}, |lines| Output::Stdout.write(show::log(&lines).as_bytes()))?;
    } else {
        ask(paths, &request, |bytes| Output::Stdout.write(bytes))?;
    }
    Ok(())
}
