//! `rekindle deploy` and `rekindle dev`: the Python package `rekindle` does it, in the interpreter that functions run in.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use rekindle_daemon::{RUNS_VARIABLE, SOCKET_VARIABLE, STATE_VARIABLE};

use crate::arguments::AppArguments;
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
#[derive(Clone, Copy, Debug)]
pub enum Work {
    Deploy,
    Develop,
}

impl Work {
    fn module(self) -> &'static str {
        match self {
            Work::Deploy => "deploying",
            Work::Develop => "developing",
        }
    }
}

/// Where the daemon is, as the command line or the settings say it.
pub struct Given {
    pub socket: Option<PathBuf>,
    pub state: Option<PathBuf>,
    pub run_dir: Option<PathBuf>,
}

/// Becomes the interpreter; returns only if that cannot be started.
pub fn perform(work: Work, app: &AppArguments, json: bool, given: Given) -> Result<()> {
    let AppArguments { file, python, tenant } = app;
    let itself = std::env::current_exe()
        .map_err(|source| Error::system("find the rekindle command itself", source))?;
    let mut command = Command::new(python);
    command.arg("-c").arg(SCRIPT.replace("MODULE", work.module())).arg(sources(&itself)).arg(file);
    if let Some(tenant) = tenant {
        command.arg("--tenant").arg(tenant);
    }
    if json {
        command.arg("--json");
    }
    command.env(COMMAND_VARIABLE, &itself);
    for (variable, place) in
        [(SOCKET_VARIABLE, given.socket), (STATE_VARIABLE, given.state), (RUNS_VARIABLE, given.run_dir)]
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
