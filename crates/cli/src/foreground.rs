//! A program in the foreground: its output here, signals passed on to it, its exit code as ours.

use std::io::Write;

use nix::sys::signal::{SigSet, Signal};
use rekindle_daemon::Paths;
use rekindle_protocol::daemon::{Request, Sandbox};

use crate::connection::{ask, simply_ask};
use crate::error::{Error, Result};

/// The signals that are passed on.
const PASSED_ON: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// Where a followed program's output goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Output {
    Stdout,
    /// Standard output belongs to a JSON document.
    Stderr,
}

impl Output {
    pub fn write(self, bytes: &[u8]) {
        // A reader that is gone, such as `head`, does not concern the program.
        let _ = match self {
            Output::Stdout => {
                let mut stdout = std::io::stdout().lock();
                stdout.write_all(bytes).and_then(|()| stdout.flush())
            }
            Output::Stderr => std::io::stderr().lock().write_all(bytes),
        };
    }
}

/// Keeps the signals from ending this process. To be called before any thread is started.
pub fn hold_signals() -> Result<()> {
    signals().thread_block().map_err(|errno| Error::system("hold signals back", errno))
}

/// Follows the program to its end and tells how that was.
pub fn follow(paths: &Paths, name: &str, output: Output) -> Result<Sandbox> {
    pass_signals_on(paths.clone(), name.to_string());
    let name = name.to_string();
    let request = Request::Logs {
        name: name.clone(),
        follow: true,
        own: true,
        since_us: None,
        tail: None,
        lines: false,
    };
    ask(paths, &request, |bytes| output.write(bytes))?;
    let ended = simply_ask(paths, &Request::Wait { name })?;
    Ok(serde_json::from_value(ended)?)
}

fn pass_signals_on(paths: Paths, name: String) {
    std::thread::spawn(move || {
        while let Ok(signal) = signals().wait() {
            let request =
                Request::Kill { names: vec![name.clone()], signal: Some(signal as i32), grace_ms: None };
            if let Err(error) = simply_ask(&paths, &request) {
                eprintln!("rekindle: {signal} was not passed on: {error}");
            }
        }
    });
}

pub fn signals() -> SigSet {
    PASSED_ON.into_iter().collect()
}
