//! One function a command: ask, then show.

mod images;
mod output;
mod run;

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use rekindle_daemon::Paths;
use rekindle_protocol::daemon::{Report, Request, Sandbox, SleepReport, State};
use rekindle_protocol::frame::FrameError;
use rekindle_protocol::service::WorkflowRequest;
use serde_json::{Value, json};

use crate::arguments::{
    Arguments, Command, PortionArguments, ScaleArguments, StopArguments, TenantArgument, WorkflowArguments,
};
use crate::connection::{beside, listen, simply_ask};
use crate::error::{Error, Result};
use crate::foreground::Output;
use crate::functions::{self, DaemonAddress, PackageCommand};
use crate::settings::Settings;
use crate::{
    archive, completion, copy, desktop, exec, filter, nodes, pages, profile, show, stats, tenant, terminal,
    trace, workflow,
};

pub fn perform(arguments: Arguments) -> Result<ExitCode> {
    let address = arguments.paths;
    let settings = Settings::load(None)?;
    let address = DaemonAddress {
        socket: settings.place(address.socket, rekindle_daemon::SOCKET_VARIABLE),
        state: settings.place(address.state, rekindle_daemon::STATE_VARIABLE),
        run_dir: settings.place(address.run_dir, rekindle_daemon::RUNS_VARIABLE),
    };
    let paths = Paths::new(address.socket.clone(), address.state.clone(), address.run_dir.clone())?;
    let printer = Printer { json: arguments.json, verbose: arguments.verbose };
    match arguments.command {
        Command::Run(arguments) => return run::run(&paths, &printer, arguments),
        Command::Restore(arguments) => return run::restore(&paths, &printer, arguments),
        Command::Profile(arguments) => profile::perform(&paths, &printer, arguments)?,
        Command::Deploy { app } => functions::perform(&PackageCommand::Deploy(app), printer.json, address)?,
        Command::Dev { app } => functions::perform(&PackageCommand::Develop(app), printer.json, address)?,
        Command::Call(call) => functions::perform(&PackageCommand::Call(call), printer.json, address)?,
        Command::Convert(model) => {
            functions::perform(&PackageCommand::Convert(model), printer.json, address)?
        }
        Command::Doctor => return doctor(&paths, &printer),
        Command::Verify { image } => images::verify(&paths, &printer, image)?,
        Command::Stats { names, no_stream } => stats::perform(&paths, &printer, &names, no_stream)?,
        Command::Logs(arguments) => output::logs(&paths, &printer, arguments)?,
        Command::Ps { all, filters } => {
            let mut answer = simply_ask(&paths, &Request::List)?;
            let mut sandboxes: Vec<Sandbox> = serde_json::from_value(answer["sandboxes"].take())?;
            sandboxes.retain(|sandbox| filter::is_shown(sandbox, all, &filters));
            answer["sandboxes"] = json!(sandboxes);
            printer.print(&answer, || show::sandboxes(&sandboxes));
        }
        Command::Kill { names, signal } => {
            let answer = simply_ask(&paths, &Request::Kill { names, signal, grace_ms: None })?;
            printer.print_json(&answer);
        }
        Command::Stop(StopArguments { names, timeout }) => {
            let grace_ms = Some((timeout * 1000.0).ceil() as u64);
            let answer = simply_ask(&paths, &Request::Kill { names, signal: None, grace_ms })?;
            printer.print_json(&answer);
        }
        Command::Exec(arguments) => {
            let (answer, code) = exec::perform(&paths, arguments, printer.json)?;
            printer.print_json(&answer);
            return Ok(code);
        }
        Command::Attach { name } => return terminal::attach(&paths, &printer, &name),
        Command::Cp { from, to } => {
            let answer = copy::perform(&paths, from, to)?;
            printer.print_json(&answer);
        }
        Command::Wait { name } => {
            let answer = simply_ask(&paths, &Request::Wait { name })?;
            let ended: Sandbox = serde_json::from_value(answer.clone())?;
            let code = ended.exit_code.map_or_else(|| "none".to_string(), |code| code.to_string());
            printer.print(&answer, || code);
            return Ok(code_of(&ended));
        }
        Command::Device { name, gpu } => {
            let answer = simply_ask(&paths, &Request::Device { name, gpu })?;
            printer.print(&answer, || answer["device"].as_str().unwrap_or_default().to_string());
        }
        Command::Checkpoint(arguments) => images::checkpoint(&paths, &printer, arguments)?,
        Command::Sleep { name, level } => {
            slept(&paths, &printer, &Request::Sleep { name, level: level.wanted() })?;
        }
        Command::Wake { name } => slept(&paths, &printer, &Request::Wake { name })?,
        Command::Migrate(arguments) => nodes::migrate(&paths, &printer, arguments)?,
        Command::Node { command } => nodes::node(&paths, &printer, command)?,
        Command::Serve { image, name, service } => {
            let service = Box::new(service.request());
            let answer = simply_ask(&paths, &Request::Serve { name, image, service })?;
            printer.print(&answer, || show::address(&answer));
        }
        Command::ServeWorkflow { graph, name, workflow: WorkflowArguments { port, tenant, tls } } => {
            let TenantArgument { tenant } = tenant;
            let workflow =
                Box::new(WorkflowRequest { port, tenant, graph: workflow::read(&graph)?, tls: tls.wanted() });
            let answer = simply_ask(&paths, &Request::ServeWorkflow { name, workflow })?;
            printer.print(&answer, || show::address(&answer));
        }
        Command::Services { tenant } => {
            let answer = simply_ask(&paths, &Request::Services { tenant })?;
            printer.print(&answer, || show::services(&answer));
        }
        Command::Page { no_open } => {
            let answer = simply_ask(&paths, &Request::Page)?;
            printer.print(&answer, || answer["address"].as_str().unwrap_or_default().to_string());
            if !no_open && !printer.json {
                desktop::open(answer["address"].as_str().unwrap_or_default());
            }
        }
        Command::Limits { name, portion } => {
            let PortionArguments { link_weight, sm_share, sm_weight, sm_most } = portion;
            let request =
                Request::SetLimits { name: name.clone(), link_weight, sm_share, sm_weight, sm_most };
            let answer = simply_ask(&paths, &request)?;
            printer.print(&answer, || format!("{name} has it from now on"));
        }
        Command::Scale { name, tenant: TenantArgument { tenant }, scale, stages } => {
            let ScaleArguments { min, max } = scale;
            let (stages, context_ms) = stages.wanted();
            let request = Request::Scale { name, tenant, min, max, stages, context_ms };
            let answer = simply_ask(&paths, &request)?;
            printer.print_json(&answer);
        }
        Command::Drain { name, tenant: TenantArgument { tenant } } => {
            let answer = simply_ask(&paths, &Request::Drain { name, tenant, remove: false, now: false })?;
            printer.print_json(&answer);
        }
        Command::Unserve { name, tenant: TenantArgument { tenant }, now } => {
            let answer = simply_ask(&paths, &Request::Drain { name, tenant, remove: true, now })?;
            printer.print_json(&answer);
        }
        Command::Tenant(command) => tenant::perform(&paths, &printer, command)?,
        Command::Trace { name, svg, chrome } => trace::perform(&paths, &printer, name, svg, chrome)?,
        Command::Image(command) => images::make(&paths, &printer, command)?,
        Command::Events => {
            listen(&paths, |happened| {
                let shown =
                    if printer.json { json!(happened).to_string() } else { show::happened(&happened) };
                Output::Stdout.write(format!("{shown}\n").as_bytes());
            })?;
        }
        Command::Images => {
            let answer = simply_ask(&paths, &Request::Images)?;
            printer.print(&answer, || show::images(&answer["images"]));
        }
        Command::Inspect { image } => {
            let answer = simply_ask(&paths, &Request::Inspect { image })?;
            printer.print(&answer, || show::image(&answer));
        }
        Command::Rm { names, sandbox } => {
            let answer = simply_ask(&paths, &Request::Forget { names, only_sandboxes: sandbox })?;
            printer.print_json(&answer);
        }
        Command::Export { image, file } => {
            let answer = archive::export(&paths, image, &file)?;
            // Standard output may be the archive's.
            if file != Path::new(archive::STANDARD) {
                printer.print_json(&answer);
            }
        }
        Command::Import { file, name } => {
            let answer = archive::import(&paths, &file, name)?;
            printer.print(&answer, || answer["name"].as_str().unwrap_or_default().to_string());
        }
        Command::Tag { image, name } => {
            let answer = simply_ask(&paths, &Request::Tag { image, other: name })?;
            printer.print_json(&answer);
        }
        Command::Rmi { images } => {
            let answer = simply_ask(&paths, &Request::Remove { images })?;
            printer.print_json(&answer);
        }
        Command::Prune { images } => {
            let answer = simply_ask(&paths, &Request::Prune { images })?;
            printer.print(&answer, || show::pruned(&answer));
        }
        Command::Shutdown => shutdown(&paths, &printer)?,
        Command::Completions { shell } => completion::register(shell)?,
        Command::Man { directory } => pages::man(&directory)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn slept(paths: &Paths, printer: &Printer, request: &Request) -> Result<()> {
    let answer = simply_ask(paths, request)?;
    let report: SleepReport = serde_json::from_value(answer.clone())?;
    printer.print(&answer, || show::slept(&report, printer.verbose));
    Ok(())
}

/// The current directory, and the variables of the environment that are text.
fn surroundings() -> Result<(String, Vec<(String, String)>)> {
    let here =
        std::env::current_dir().map_err(|source| Error::system("find the current directory", source))?;
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    Ok((here.to_string_lossy().into_owned(), environment.collect()))
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

/// Needs no daemon: what keeps one from starting is found here too.
fn doctor(paths: &Paths, printer: &Printer) -> Result<ExitCode> {
    let findings = rekindle_daemon::examine(paths, &beside("rekindled")?);
    let sound = findings.iter().all(|finding| finding.ok || !finding.required_for_all);
    printer.print(&json!({ "ok": sound, "findings": findings }), || show::findings(&findings));
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Starts no daemon only to end it. One that closes the connection was ending already.
fn shutdown(paths: &Paths, printer: &Printer) -> Result<()> {
    if UnixStream::connect(&paths.socket).is_ok() {
        match simply_ask(paths, &Request::Shutdown) {
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
