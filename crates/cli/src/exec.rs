//! A command beside a sandbox's program: our input and output are its own, signals are passed on to it.

use std::fs::File;
use std::io;
use std::io::IsTerminal;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use rekindle_daemon::Paths;
use rekindle_protocol::daemon::{PassOn, Request};
use rekindle_protocol::frame;
use serde_json::Value;

use crate::arguments::ExecArguments;
use crate::connection::ask_passing;
use crate::error::{Error, Result};
use crate::foreground;

/// What the command is told of our terminal.
const TERMINAL_VARIABLE: &str = "TERM";

/// Runs it to its end. With `apart`, what it prints goes to standard error, for standard output belongs to a document.
pub fn perform(paths: &Paths, arguments: ExecArguments, apart: bool) -> Result<(Value, ExitCode)> {
    foreground::hold_signals()?;
    let ExecArguments { name, mut environment, directory, command } = arguments;
    let known = environment.iter().any(|(name, _)| name == TERMINAL_VARIABLE);
    if io::stdin().is_terminal()
        && !known
        && let Ok(terminal) = std::env::var(TERMINAL_VARIABLE)
    {
        environment.push((TERMINAL_VARIABLE.to_string(), terminal));
    }
    let stdio = [
        open_or_null(io::stdin().as_fd())?,
        if apart { open_or_null(io::stderr().as_fd())? } else { open_or_null(io::stdout().as_fd())? },
        open_or_null(io::stderr().as_fd())?,
    ];
    let passed: Vec<_> = stdio.iter().map(AsFd::as_fd).collect();
    let request = Request::Exec { name, command, environment, directory };
    let answer = ask_passing(paths, &request, &passed, |stream| {
        let stream = stream.try_clone().map_err(|source| Error::system("keep the connection", source))?;
        std::thread::spawn(move || pass_on(&stream));
        Ok(())
    })?;
    let code = answer["exit_code"].as_i64().unwrap_or(1).clamp(0, 255) as u8;
    Ok((answer, ExitCode::from(code)))
}

fn pass_on(stream: &UnixStream) {
    while let Ok(signal) = foreground::signals().wait() {
        // A daemon that is gone is noticed by who waits for its answer.
        let _ = frame::send(stream, &PassOn { signal: signal as i32 }, &[]);
    }
}

/// One of ours that is closed is empty.
fn open_or_null(descriptor: BorrowedFd<'_>) -> Result<OwnedFd> {
    descriptor.try_clone_to_owned().or_else(|_| {
        let null = File::options().read(true).write(true).open("/dev/null");
        null.map(OwnedFd::from).map_err(|source| Error::system("open /dev/null", source))
    })
}

/// `NAME=VALUE`, or a variable of ours by its name.
pub fn variable(text: &str) -> std::result::Result<(String, String), String> {
    match text.split_once('=') {
        Some(("", _)) => Err("expected NAME=VALUE, or the NAME of a variable that is set here".to_string()),
        Some((name, value)) => Ok((name.to_string(), value.to_string())),
        None => match std::env::var(text) {
            Ok(value) => Ok((text.to_string(), value)),
            Err(_) => Err(format!("no variable {text} is set here; give its value: {text}=VALUE")),
        },
    }
}
