//! `rekindle deploy`, `rekindle dev`, `rekindle call` and `rekindle convert`: the Python package `rekindle` does it, in the interpreter that
//! functions run in.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use rekindle_daemon::{RUNS_VARIABLE, SOCKET_VARIABLE, STATE_VARIABLE};

use crate::arguments::{AppArguments, CallArguments, ConvertArguments};
use crate::error::{Error, Result};

/// Which command the package asks.
const COMMAND_VARIABLE: &str = "REKINDLE_COMMAND";

/// Where an installation has the package's sources, from the directory that the command is in.
const INSTALLED: &str = "../share/rekindle/python";

/// Begins the package's module. What lies in the current directory is not what it imports.
const SCRIPT: &str = r#"
import json, sys
sys.path[:] = [path for path in sys.path if path]
try:
    import rekindle.MODULE as module
except ImportError as error:
    what = "is not installed for" if error.name == "rekindle" else f"lacks {error.name!r} in"
    sentence = f"the Python package rekindle {what} {sys.executable}; install it: {sys.executable} -m pip install {sys.argv[1]}"
    if "--json" in sys.argv:
        print(json.dumps({"error": sentence}), flush=True)
    raise SystemExit(f"rekindle: {sentence}") from None
sys.exit(module.main(sys.argv[2:]))
"#;

/// What is asked of the package.
#[derive(Debug)]
pub enum PackageCommand {
    Deploy(AppArguments),
    Develop(AppArguments),
    Convert(ConvertArguments),
    Call(CallArguments),
}

impl PackageCommand {
    fn module(&self) -> &'static str {
        match self {
            PackageCommand::Deploy(_) => "deploying",
            PackageCommand::Develop(_) => "developing",
            PackageCommand::Convert(_) => "converting",
            PackageCommand::Call(_) => "calling",
        }
    }

    fn python(&self) -> &str {
        match self {
            PackageCommand::Deploy(app) | PackageCommand::Develop(app) => &app.python,
            PackageCommand::Convert(convert) => &convert.python,
            PackageCommand::Call(call) => &call.python,
        }
    }

    /// What the module's `main` is given.
    fn words(&self) -> Vec<OsString> {
        // What begins with a dash may be a number.
        let given = match self {
            PackageCommand::Call(call) => std::iter::once(&call.name).chain(&call.words).cloned().collect(),
            _ => Vec::new(),
        };
        let timeout = match self {
            PackageCommand::Call(call) => call.timeout.map(|seconds| seconds.to_string()),
            _ => None,
        };
        let (mut words, options) = match self {
            PackageCommand::Call(CallArguments { tenant, token, url, ca, .. }) => (
                Vec::new(),
                vec![
                    ("--tenant", tenant),
                    ("--token", token),
                    ("--url", url),
                    ("--ca", ca),
                    ("--timeout", &timeout),
                ],
            ),
            PackageCommand::Deploy(app) | PackageCommand::Develop(app) => {
                let no_base = app.no_base.then(|| "--no-base".into());
                let words = std::iter::once(app.file.clone().into()).chain(no_base).collect();
                (words, vec![("--tenant", &app.tenant)])
            }
            PackageCommand::Convert(ConvertArguments { model, output, name, data_url, .. }) => (
                vec![model.clone().into(), "--output".into(), output.clone().into()],
                vec![("--name", name), ("--data-url", data_url)],
            ),
        };
        for (option, value) in options {
            if let Some(value) = value {
                // One that begins with a dash is a value all the same.
                words.push(format!("{option}={value}").into());
            }
        }
        if !given.is_empty() {
            words.push("--".into());
            words.extend(given.into_iter().map(OsString::from));
        }
        words
    }
}

/// Where the daemon is, as the command line or the settings say it.
pub struct DaemonAddress {
    pub socket: Option<PathBuf>,
    pub state: Option<PathBuf>,
    pub run_dir: Option<PathBuf>,
}

/// Becomes the interpreter; returns only if that cannot be started.
pub fn perform(work: &PackageCommand, json: bool, address: DaemonAddress) -> Result<()> {
    let python = work.python();
    let itself = std::env::current_exe()
        .map_err(|source| Error::system("find the rekindle command itself", source))?;
    let mut command = Command::new(python);
    command.arg("-c").arg(SCRIPT.replace("MODULE", work.module())).arg(sources(&itself));
    if json {
        command.arg("--json");
    }
    command.args(work.words());
    command.env(COMMAND_VARIABLE, &itself);
    for (variable, place) in
        [(SOCKET_VARIABLE, address.socket), (STATE_VARIABLE, address.state), (RUNS_VARIABLE, address.run_dir)]
    {
        if let Some(place) = place {
            command.env(variable, place);
        }
    }
    let source = command.exec();
    Err(Error::Python { python: python.to_string(), source })
}

/// What `pip` is to install.
fn sources(itself: &std::path::Path) -> PathBuf {
    let installed = itself.parent().map(|directory| directory.join(INSTALLED));
    installed
        .filter(|place| place.exists())
        .and_then(|place| place.canonicalize().ok())
        .unwrap_or_else(|| PathBuf::from("./python (in the sources of Rekindle)"))
}
