//! Images: taken of programs, made for others to start from, checked.

use rekindle_daemon::Paths;
use rekindle_protocol::daemon::{Framework, Python, Report, Request, Take};
use serde_json::Value;

use super::{Printer, surroundings, warn};
use crate::arguments::{CheckpointArguments, EngineArgument, ImageCommand};
use crate::connection::simply_ask;
use crate::error::{Error, Result};
use crate::{cancel, show};

pub fn checkpoint(paths: &Paths, printer: &Printer, arguments: CheckpointArguments) -> Result<()> {
    let CheckpointArguments {
        name, pid, container, engine, mode, gpu_wait, to, leave_running, prove, ..
    } = arguments;
    let gpu_wait_ms = (gpu_wait * 1000.0).ceil() as u64;
    let take = Take { to, leave_running, gpu_wait_ms, prove };
    let request = match (pid, container) {
        (Some(pid), _) => Request::CheckpointPid { pid, mode: mode.wanted(), take },
        (None, Some(container)) => {
            Request::CheckpointContainer { container, engine: engine.map(EngineArgument::wanted), take }
        }
        (None, None) => Request::Checkpoint { name: name.unwrap_or_default(), take },
    };
    let cancel::Answer { value: answer, too_late } = cancel::ask(paths, &request)?;
    let report: Report = serde_json::from_value(answer.clone())?;
    warn(&report);
    printer.print(&answer, || show::report(&report, printer.verbose));
    if too_late {
        let end = if leave_running { "goes on" } else { "has ended" };
        eprintln!(
            "rekindle: it was too late to cancel: the image {:?} is there, and the program {end}",
            report.image
        );
    }
    Ok(())
}

pub fn make(paths: &Paths, printer: &Printer, command: ImageCommand) -> Result<()> {
    let ImageCommand::Framework { image, gpu, python, imports, warm, no_gpu, limit, command } = command;
    let (directory, environment) = surroundings()?;
    let warm = warm.map(|path| path.to_string_lossy().into_owned());
    let python = Python { interpreter: python, imports, warm, no_gpu };
    let limit_ms = (limit * 1000.0).ceil() as u64;
    let framework = Framework { image, gpu, command, python, directory, environment, limit_ms };
    let request = Request::Framework(framework);
    let answer = simply_ask(paths, &request)?;
    let report: Report = serde_json::from_value(answer.clone())?;
    warn(&report);
    printer.print(&answer, || show::report(&report, printer.verbose));
    Ok(())
}

pub fn verify(paths: &Paths, printer: &Printer, image: String) -> Result<()> {
    let answer = simply_ask(paths, &Request::Verify { image: image.clone() })?;
    let problems: Vec<&str> =
        answer["problems"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if printer.json || problems.is_empty() {
        printer.print(&answer, || {
            let read = answer["bytes"].as_u64().map(show::bytes).unwrap_or_default();
            format!("{} is sound ({read} read)", answer["name"].as_str().unwrap_or_default())
        });
    }
    match problems.as_slice() {
        [] => Ok(()),
        found => Err(Error::Unsound { image, problems: found.join("; ") }),
    }
}
