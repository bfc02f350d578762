//! One function a command: ask, then show.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use rekindle_daemon::Places;
use rekindle_protocol::daemon::{MigrationReport, Report, Request, Sandbox, SleepReport, State};
use rekindle_protocol::frame::FrameError;
use rekindle_protocol::mounts::Mounts;
use serde_json::{Value, json};

use crate::arguments::{
    Arguments, Command, EngineArgument, ImageCommand, ModeArgument, OrderArgument, PortionArguments,
    SandboxArguments,
};
use crate::connection::{ask, ask_lines, ask_with, beside, listen, simply_ask};
use crate::error::{Error, Result};
use crate::foreground::{self, Output};
use crate::functions::{self, Given, Work};
use crate::input::Input;
use crate::settings::Settings;
use crate::{
    archive, cancel, completion, copy, desktop, exec, filter, nodes, pages, profile, show, stats, tenant,
    terminal, trace,
};

pub fn perform(arguments: Arguments) -> Result<ExitCode> {
    let given = arguments.places;
    let settings = Settings::load(None)?;
    let given = Given {
        socket: settings.place(given.socket, rekindle_daemon::SOCKET_VARIABLE),
        state: settings.place(given.state, rekindle_daemon::STATE_VARIABLE),
        run_dir: settings.place(given.run_dir, rekindle_daemon::RUNS_VARIABLE),
    };
    let places = Places::new(given.socket.clone(), given.state.clone(), given.run_dir.clone())?;
    let printer = Printer { json: arguments.json, verbose: arguments.verbose };
    match arguments.command {
        Command::Run {
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
        } => {
            let (directory, environment) = surroundings()?;
            let (network, publish) = network.wanted();
            let mut request = Request::Run {
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
            if let Request::Run { directory, environment, user, .. } = &mut request {
                *user = setting.apply(directory, environment);
                if terminal.tty {
                    terminal::describe(environment);
                }
            }
            if sandbox.detach && terminal.interactive && !terminal.tty {
                return Err(Error::NobodyTypes);
            }
            if terminal.tty && !sandbox.detach {
                return terminal::run(&places, &printer, &request);
            }
            return run(&places, &printer, &request, sandbox.detach);
        }
        Command::Restore { image, sandbox, network, limits, volumes, gpu_map, order, verify } => {
            let order = order.map(OrderArgument::wanted);
            let (network, publish) = network.wanted();
            let SandboxArguments { name, gpu, share, detach } = sandbox;
            let limits = limits.wanted();
            let request = Request::Restore {
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
            };
            return restore(&places, &printer, &request, detach);
        }
        Command::Profile { image, gpu, request } => {
            profile::perform(&places, &printer, image, gpu, &request)?
        }
        Command::Deploy { app } => functions::perform(&Work::Deploy(app), printer.json, given)?,
        Command::Dev { app } => functions::perform(&Work::Develop(app), printer.json, given)?,
        Command::Convert(model) => functions::perform(&Work::Convert(model), printer.json, given)?,
        Command::Doctor => return doctor(&places, &printer),
        Command::Verify { image } => verify(&places, &printer, image)?,
        Command::Stats { names, no_stream } => stats::perform(&places, &printer, &names, no_stream)?,
        Command::Logs { name, follow, since, tail, timestamps } => {
            let lines = timestamps || printer.json;
            let request = Request::Logs { name, follow, own: false, since_us: since, tail, lines };
            logs(&places, &printer, &request)?;
        }
        Command::Ps { all, filters } => {
            let mut answer = simply_ask(&places, &Request::List)?;
            let mut sandboxes: Vec<Sandbox> = serde_json::from_value(answer["sandboxes"].take())?;
            sandboxes.retain(|sandbox| filter::is_shown(sandbox, all, &filters));
            answer["sandboxes"] = json!(sandboxes);
            printer.print(&answer, || show::sandboxes(&sandboxes));
        }
        Command::Kill { names, signal } => {
            let answer = simply_ask(&places, &Request::Kill { names, signal, grace_ms: None })?;
            printer.print_json(&answer);
        }
        Command::Stop { names, timeout } => {
            let grace_ms = Some((timeout * 1000.0).ceil() as u64);
            let answer = simply_ask(&places, &Request::Kill { names, signal: None, grace_ms })?;
            printer.print_json(&answer);
        }
        Command::Exec { name, environment, directory, command } => {
            let wish = exec::Wish { name, environment, directory, command };
            let (answer, code) = exec::perform(&places, wish, printer.json)?;
            printer.print_json(&answer);
            return Ok(code);
        }
        Command::Attach { name } => return terminal::attach(&places, &printer, &name),
        Command::Cp { from, to } => {
            let answer = copy::perform(&places, from, to)?;
            printer.print_json(&answer);
        }
        Command::Wait { name } => {
            let answer = simply_ask(&places, &Request::Wait { name })?;
            let ended: Sandbox = serde_json::from_value(answer.clone())?;
            let code = ended.exit_code.map_or_else(|| "none".to_string(), |code| code.to_string());
            printer.print(&answer, || code);
            return Ok(code_of(&ended));
        }
        Command::Device { name, gpu } => {
            let answer = simply_ask(&places, &Request::Device { name, gpu })?;
            printer.print(&answer, || answer["device"].as_str().unwrap_or_default().to_string());
        }
        Command::Checkpoint {
            name,
            pid,
            container,
            engine,
            mode,
            gpu_wait,
            to,
            leave_running,
            prove,
            ..
        } => {
            let gpu_wait_ms = (gpu_wait * 1000.0).ceil() as u64;
            let request = match (pid, container) {
                (Some(pid), _) => {
                    Request::CheckpointPid { pid, mode: mode.wanted(), to, leave_running, gpu_wait_ms, prove }
                }
                (None, Some(container)) => {
                    let engine = engine.map(EngineArgument::wanted);
                    Request::CheckpointContainer { container, engine, to, leave_running, gpu_wait_ms, prove }
                }
                (None, None) => Request::Checkpoint {
                    name: name.unwrap_or_default(),
                    to,
                    leave_running,
                    gpu_wait_ms,
                    prove,
                },
            };
            let cancel::Answer { value: answer, too_late } = cancel::ask(&places, &request)?;
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
        }
        Command::Sleep { name, level } => {
            slept(&places, &printer, &Request::Sleep { name, level: level.wanted() })?;
        }
        Command::Wake { name } => slept(&places, &printer, &Request::Wake { name })?,
        Command::Migrate { name, take_back: true, .. } => nodes::take_back(&places, &printer, name)?,
        Command::Migrate { name, gpu, to: Some(node), rounds, publish, forward: forward_ms, .. } => {
            let request = Request::MigrateTo { name, node, gpu, rounds, publish, forward_ms };
            nodes::migrate(&places, &printer, &request)?;
        }
        Command::Node { command } => nodes::node(&places, &printer, command)?,
        Command::Migrate { name, gpu, rounds, .. } => {
            let gpu = gpu.unwrap_or_default();
            let cancel::Answer { value: answer, too_late } =
                cancel::ask(&places, &Request::Migrate { name, gpu, rounds })?;
            let report: MigrationReport = serde_json::from_value(answer.clone())?;
            printer.print(&answer, || show::migrated(&report, printer.verbose));
            if too_late {
                eprintln!("rekindle: it was too late to cancel: {:?} has moved", report.name);
            }
        }
        Command::Serve { image, name, service } => {
            let answer = simply_ask(&places, &Request::Serve { name, image, wish: service.wish() })?;
            printer.print(&answer, || show::address(&answer));
        }
        Command::Services => {
            let answer = simply_ask(&places, &Request::Services)?;
            printer.print(&answer, || show::services(&answer));
        }
        Command::Page { no_open } => {
            let answer = simply_ask(&places, &Request::Page)?;
            printer.print(&answer, || answer["address"].as_str().unwrap_or_default().to_string());
            if !no_open && !printer.json {
                desktop::open(answer["address"].as_str().unwrap_or_default());
            }
        }
        Command::Limits { name, portion } => {
            let PortionArguments { link_weight, sm_share } = portion;
            let request = Request::SetLimits { name: name.clone(), link_weight, sm_share };
            let answer = simply_ask(&places, &request)?;
            printer.print(&answer, || format!("{name} has it from now on"));
        }
        Command::Scale { name, scale } => {
            let answer = simply_ask(&places, &Request::Scale { name, min: scale.min, max: scale.max })?;
            printer.print_json(&answer);
        }
        Command::Drain { name } => {
            let answer = simply_ask(&places, &Request::Drain { name, remove: false, now: false })?;
            printer.print_json(&answer);
        }
        Command::Unserve { name, now } => {
            let answer = simply_ask(&places, &Request::Drain { name, remove: true, now })?;
            printer.print_json(&answer);
        }
        Command::Tenant(command) => tenant::perform(&places, &printer, command)?,
        Command::Trace { name, svg, chrome } => trace::perform(&places, &printer, name, svg, chrome)?,
        Command::Image(ImageCommand::Framework { image, gpu, python, imports, warm, limit, command }) => {
            let (directory, environment) = surroundings()?;
            let request = Request::Framework {
                image,
                gpu,
                command,
                interpreter: python,
                imports,
                warm: warm.map(|path| path.to_string_lossy().into_owned()),
                directory,
                environment,
                limit_ms: (limit * 1000.0).ceil() as u64,
            };
            let answer = simply_ask(&places, &request)?;
            let report: Report = serde_json::from_value(answer.clone())?;
            warn(&report);
            printer.print(&answer, || show::report(&report, printer.verbose));
        }
        Command::Events => {
            listen(&places, |happened| {
                let shown =
                    if printer.json { json!(happened).to_string() } else { show::happened(&happened) };
                Output::Stdout.write(format!("{shown}\n").as_bytes());
            })?;
        }
        Command::Images => {
            let answer = simply_ask(&places, &Request::Images)?;
            printer.print(&answer, || show::images(&answer["images"]));
        }
        Command::Inspect { image } => {
            let answer = simply_ask(&places, &Request::Inspect { image })?;
            printer.print(&answer, || show::image(&answer));
        }
        Command::Rm { names, sandbox } => {
            let answer = simply_ask(&places, &Request::Forget { names, only_sandboxes: sandbox })?;
            printer.print_json(&answer);
        }
        Command::Export { image, file } => {
            let answer = archive::export(&places, image, &file)?;
            // Standard output may be the archive's.
            if file != Path::new(archive::STANDARD) {
                printer.print_json(&answer);
            }
        }
        Command::Import { file, name } => {
            let answer = archive::import(&places, &file, name)?;
            printer.print(&answer, || answer["name"].as_str().unwrap_or_default().to_string());
        }
        Command::Tag { image, name } => {
            let answer = simply_ask(&places, &Request::Tag { image, other: name })?;
            printer.print_json(&answer);
        }
        Command::Rmi { images } => {
            let answer = simply_ask(&places, &Request::Remove { images })?;
            printer.print_json(&answer);
        }
        Command::Prune { images } => {
            let answer = simply_ask(&places, &Request::Prune { images })?;
            printer.print(&answer, || show::pruned(&answer));
        }
        Command::Shutdown => shutdown(&places, &printer)?,
        Command::Completions { shell } => completion::register(shell)?,
        Command::Man { directory } => pages::man(&directory)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn run(places: &Places, printer: &Printer, request: &Request, detach: bool) -> Result<ExitCode> {
    if !detach {
        foreground::hold_signals()?;
    }
    // A program of a framework image has read its input already.
    let takes_input = !detach && !matches!(request, Request::Run { from: Some(_), .. });
    let input = if takes_input { Input::make()? } else { None };
    let answer = ask_with(places, request, input.as_ref().map(Input::theirs))?;
    let sandbox: Sandbox = serde_json::from_value(answer.clone())?;
    if let Some(reason) = sandbox.mode_reason.as_ref().filter(|_| printer.verbose) {
        eprintln!("rekindle: {} is started in mode {}: {reason}", sandbox.name, show::mode(sandbox.mode));
    }
    if detach {
        printer.print(&answer, || sandbox.name.clone());
        return Ok(ExitCode::SUCCESS);
    }
    input.into_iter().for_each(Input::pass_on);
    let ended = foreground::follow(places, &sandbox.name, printer.output())?;
    printer.print_json(&json!(ended));
    Ok(code_of(&ended))
}

/// The current directory, and the variables of the environment that are text.
fn surroundings() -> Result<(String, Vec<(String, String)>)> {
    let here =
        std::env::current_dir().map_err(|source| Error::system("find the current directory", source))?;
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    Ok((here.to_string_lossy().into_owned(), environment.collect()))
}

fn restore(places: &Places, printer: &Printer, request: &Request, detach: bool) -> Result<ExitCode> {
    if !detach {
        foreground::hold_signals()?;
    }
    let input = if detach { None } else { Input::make()? };
    let answer = ask_with(places, request, input.as_ref().map(Input::theirs))?;
    let report: Report = serde_json::from_value(answer.clone())?;
    warn(&report);
    // Its engine has the container's output.
    if detach || report.container.is_some() {
        printer.print(&answer, || report.name.clone());
        return Ok(ExitCode::SUCCESS);
    }
    printer.print_json(&answer);
    input.into_iter().for_each(Input::pass_on);
    let ended = foreground::follow(places, &report.name, printer.output())?;
    Ok(code_of(&ended))
}

fn slept(places: &Places, printer: &Printer, request: &Request) -> Result<()> {
    let answer = simply_ask(places, request)?;
    let report: SleepReport = serde_json::from_value(answer.clone())?;
    printer.print(&answer, || show::slept(&report, printer.verbose));
    Ok(())
}

fn warn(report: &Report) {
    for warning in &report.warnings {
        eprintln!("rekindle: warning: {warning}");
    }
}

/// The program's exit code as ours. One that was checkpointed and stopped ended well.
pub fn code_of(ended: &Sandbox) -> ExitCode {
    match (ended.state, ended.exit_code) {
        (State::Stopped, _) => ExitCode::SUCCESS,
        (_, Some(code)) => ExitCode::from(code.clamp(0, 255) as u8),
        _ => ExitCode::FAILURE,
    }
}

fn logs(places: &Places, printer: &Printer, request: &Request) -> Result<()> {
    let Request::Logs { name, lines, .. } = request else { return Ok(()) };
    if printer.json {
        let (mut log, mut all) = (Vec::new(), Vec::new());
        ask_lines(places, request, |bytes| log.extend_from_slice(bytes), |lines| all.extend(lines))?;
        printer.print_json(&json!({ "name": name, "log": String::from_utf8_lossy(&log), "lines": all }));
    } else if *lines {
        ask_lines(places, request, |_| {}, |lines| Output::Stdout.write(show::log(&lines).as_bytes()))?;
    } else {
        ask(places, request, |bytes| Output::Stdout.write(bytes))?;
    }
    Ok(())
}

fn verify(places: &Places, printer: &Printer, image: String) -> Result<()> {
    let answer = simply_ask(places, &Request::Verify { image: image.clone() })?;
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

/// Needs no daemon: what keeps one from starting is found here too.
fn doctor(places: &Places, printer: &Printer) -> Result<ExitCode> {
    let findings = rekindle_daemon::examine(places, &beside("rekindled")?);
    let sound = findings.iter().all(|finding| finding.ok || !finding.required_for_all);
    printer.print(&json!({ "ok": sound, "findings": findings }), || show::findings(&findings));
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Starts no daemon only to end it. One that closes the connection was ending already.
fn shutdown(places: &Places, printer: &Printer) -> Result<()> {
    if UnixStream::connect(&places.socket).is_ok() {
        match simply_ask(places, &Request::Shutdown) {
            Ok(_) | Err(Error::Lost(FrameError::Closed)) => {}
            Err(error) => return Err(error),
        }
    }
    printer.print_json(&json!({}));
    Ok(())
}

/// Prints an answer as people or as programs want it.
pub struct Printer {
    pub json: bool,
    pub verbose: bool,
}

impl Printer {
    pub fn print(&self, answer: &Value, text: impl FnOnce() -> String) {
        let mut shown = if self.json { answer.to_string() } else { text() };
        shown.push('\n');
        Output::Stdout.write(shown.as_bytes());
    }

    /// For commands that say nothing to people when they work.
    pub fn print_json(&self, answer: &Value) {
        if self.json {
            self.print(answer, String::new);
        }
    }

    /// Where a program's output goes: standard output is the document's when one is wanted.
    pub fn output(&self) -> Output {
        if self.json { Output::Stderr } else { Output::Stdout }
    }
}
