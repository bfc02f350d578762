//! Programs that are started, or brought back, with what they print and are typed.

use std::process::ExitCode;

use rekindle_daemon::Paths;
use rekindle_protocol::daemon::{Report, Request, Restore, Run, Sandbox};
use rekindle_protocol::mounts::Mounts;
use serde_json::json;

use super::{Printer, code_of, surroundings, warn};
use crate::arguments::{ModeArgument, OrderArgument, RestoreArguments, RunArguments, SandboxArguments};
use crate::connection::ask_with;
use crate::error::{Error, Result};
use crate::input::Input;
use crate::{foreground, show, terminal};

pub fn run(paths: &Paths, printer: &Printer, arguments: RunArguments) -> Result<ExitCode> {
    let RunArguments {
        sandbox,
        network,
        limits,
        setting,
        volumes,
        overlays,
        mode,
        from,
        allow,
        recovery,
        terminal,
        command,
    } = arguments;
    let (directory, environment) = surroundings()?;
    let (network, publish) = network.wanted();
    let mut run = Run {
        name: sandbox.name,
        gpu: sandbox.gpu,
        mode: mode.wanted(),
        choose: mode == ModeArgument::Auto,
        command,
        directory,
        environment,
        from,
        allow,
        recovery: recovery.plan(),
        network,
        publish,
        user: None,
        limits: limits.wanted(),
        mounts: Mounts { volumes: volumes.volumes, overlays },
        tenant: sandbox.share,
        terminal: terminal.tty.then(|| terminal::size().unwrap_or_default()),
    };
    run.user = setting.apply(&mut run.directory, &mut run.environment);
    if terminal.tty {
        terminal::describe(&mut run.environment);
    }
    // A program of a framework image has read its input already.
    let takes_input = !sandbox.detach && run.from.is_none();
    let request = Request::Run(Box::new(run));
    if sandbox.detach && terminal.interactive && !terminal.tty {
        return Err(Error::NobodyTypes);
    }
    if terminal.tty && !sandbox.detach {
        return terminal::run(paths, printer, &request);
    }
    start(paths, printer, &request, (sandbox.detach, takes_input))
}

fn start(
    paths: &Paths,
    printer: &Printer,
    request: &Request,
    (detach, takes_input): (bool, bool),
) -> Result<ExitCode> {
    if !detach {
        foreground::hold_signals()?;
    }
    let input = if takes_input { Input::make()? } else { None };
    let answer = ask_with(paths, request, input.as_ref().map(Input::theirs))?;
    let sandbox: Sandbox = serde_json::from_value(answer.clone())?;
    if let Some(reason) = sandbox.mode_reason.as_ref().filter(|_| printer.verbose) {
        eprintln!("rekindle: {} is started in mode {}: {reason}", sandbox.name, show::mode(sandbox.mode));
    }
    if detach {
        printer.print(&answer, || sandbox.name.clone());
        return Ok(ExitCode::SUCCESS);
    }
    input.into_iter().for_each(Input::pass_on);
    let ended = foreground::follow(paths, &sandbox.name, printer.output())?;
    printer.print_json(&json!(ended));
    Ok(code_of(&ended))
}

pub fn restore(paths: &Paths, printer: &Printer, arguments: RestoreArguments) -> Result<ExitCode> {
    let RestoreArguments { image, sandbox, network, limits, volumes, gpu_map, order, verify } = arguments;
    let order = order.map(OrderArgument::wanted);
    let (network, publish) = network.wanted();
    let SandboxArguments { name, gpu, share, detach } = sandbox;
    let limits = limits.wanted();
    let request = Request::Restore(Restore {
        image,
        name,
        gpu,
        gpu_map,
        order,
        record: false,
        verify,
        network,
        publish,
        limits,
        volumes: volumes.volumes,
        tenant: share,
    });
    bring_back(paths, printer, &request, detach)
}

fn bring_back(paths: &Paths, printer: &Printer, request: &Request, detach: bool) -> Result<ExitCode> {
    if !detach {
        foreground::hold_signals()?;
    }
    let input = if detach { None } else { Input::make()? };
    let answer = ask_with(paths, request, input.as_ref().map(Input::theirs))?;
    let report: Report = serde_json::from_value(answer.clone())?;
    warn(&report);
    // Its engine has the container's output.
    if detach || report.container.is_some() {
        printer.print(&answer, || report.name.clone());
        return Ok(ExitCode::SUCCESS);
    }
    printer.print_json(&answer);
    input.into_iter().for_each(Input::pass_on);
    let ended = foreground::follow(paths, &report.name, printer.output())?;
    Ok(code_of(&ended))
}
