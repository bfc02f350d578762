//! Talking to the daemon, and starting one where none runs.

use std::io::Read;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rekindle_daemon::Paths;
use rekindle_protocol::client::RUN_DIRECTORY;
use rekindle_protocol::daemon::{Call, Event, EventNotice, LogLine, Request};
use rekindle_protocol::frame::{self, FrameError};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::progress::Progress;

/// How long another command's daemon has to come up when ours found the place taken.
const OTHER_LIMIT: Duration = Duration::from_secs(10);

/// How often a question is asked again when the daemon ends before it says anything.
const TRIES: u32 = 5;

/// Sends a request and follows it to its end: progress goes to the terminal, output to `output`.
pub fn ask(paths: &Paths, request: &Request, output: impl FnMut(&[u8])) -> Result<Value> {
    converse(paths, request, &[], output, |_| {}, |_| Ok(()))
}

/// As [`ask`], for a log as lines.
pub fn ask_lines(
    paths: &Paths,
    request: &Request,
    output: impl FnMut(&[u8]),
    lines: impl FnMut(Vec<LogLine>),
) -> Result<Value> {
    converse(paths, request, &[], output, lines, |_| Ok(()))
}

/// As [`ask`]; `connected` gets the connection once it is asked.
pub fn ask_hearing(
    paths: &Paths,
    request: &Request,
    output: impl FnMut(&[u8]),
    connected: impl Fn(&UnixStream) -> Result<()>,
) -> Result<Value> {
    converse(paths, request, &[], output, |_| {}, connected)
}

/// Has what happens be told, until the daemon ends.
pub fn listen(paths: &Paths, mut told: impl FnMut(EventNotice)) -> Result<Value> {
    exchange(
        paths,
        &Request::Events,
        &[],
        |_| Ok(()),
        |event| {
            if let Event::Happened { what } = event {
                told(what);
            }
        },
    )
}

/// As [`simply_ask`], with a descriptor that goes along.
pub fn ask_with(paths: &Paths, request: &Request, descriptor: Option<BorrowedFd<'_>>) -> Result<Value> {
    converse(paths, request, descriptor.as_slice(), |_| {}, |_| {}, |_| Ok(()))
}

/// As [`simply_ask`], with descriptors that go along; `connected` gets the connection once it is asked.
pub fn ask_passing(
    paths: &Paths,
    request: &Request,
    descriptors: &[BorrowedFd<'_>],
    connected: impl Fn(&UnixStream) -> Result<()>,
) -> Result<Value> {
    converse(paths, request, descriptors, |_| {}, |_| {}, connected)
}

fn converse(
    paths: &Paths,
    request: &Request,
    descriptors: &[BorrowedFd<'_>],
    mut output: impl FnMut(&[u8]),
    mut lines: impl FnMut(Vec<LogLine>),
    connected: impl Fn(&UnixStream) -> Result<()>,
) -> Result<Value> {
    let mut tries = if changes_nothing(request) { TRIES } else { 1 };
    let mut progress = Progress::new();
    loop {
        tries -= 1;
        let mut heard = false;
        let answer = exchange(paths, request, descriptors, &connected, |event| {
            heard = true;
            match event {
                Event::Progress { phase, done, total } => progress.show(&phase, done, total),
                Event::Output { bytes } => output(&bytes),
                Event::Lines { lines: come } => lines(come),
                Event::Happened { .. } => {}
                Event::Done { .. } | Event::Failed { .. } => {}
            }
        });
        match answer {
            // That daemon was on its way out; the next one knows what it knew.
            Err(Error::Lost(FrameError::Closed)) if !heard && tries > 0 => {}
            answer => return answer,
        }
    }
}

fn exchange(
    paths: &Paths,
    request: &Request,
    descriptors: &[BorrowedFd<'_>],
    connected: impl Fn(&UnixStream) -> Result<()>,
    mut hear: impl FnMut(Event),
) -> Result<Value> {
    let stream = connect(paths)?;
    let call = Call {
        wanted_state: paths.given.0.then(|| paths.state.clone()),
        wanted_runs: paths.given.1.then(|| paths.runs.clone()),
        request: request.clone(),
    };
    frame::send(&stream, &call, descriptors)?;
    connected(&stream)?;
    loop {
        match frame::receive::<Event>(&stream)?.0 {
            Event::Done { value } => return Ok(value),
            Event::Failed { message, exit_code } => return Err(Error::Refused { message, exit_code }),
            event => hear(event),
        }
    }
}

fn changes_nothing(request: &Request) -> bool {
    matches!(
        request,
        Request::List
            | Request::Stats { .. }
            | Request::Logs { .. }
            | Request::Wait { .. }
            | Request::Trace { .. }
            | Request::Services { .. }
            | Request::Page
            | Request::Images
            | Request::Inspect { .. }
            | Request::Verify { .. }
    )
}

/// As [`ask`], for requests that print nothing.
pub fn simply_ask(paths: &Paths, request: &Request) -> Result<Value> {
    ask(paths, request, |_| {})
}

fn connect(paths: &Paths) -> Result<UnixStream> {
    let began = Instant::now();
    loop {
        let unreachable = match UnixStream::connect(&paths.socket) {
            Ok(stream) => return Ok(stream),
            Err(error) => error.to_string(),
        };
        let failure = start(paths)?;
        if failure.is_empty() {
            return UnixStream::connect(&paths.socket).map_err(|_| Error::NoDaemon(unreachable));
        }
        // One that another command has just started may be in the way of ours, or one that is about to end.
        if !failure.contains("another daemon") || began.elapsed() > OTHER_LIMIT {
            return Err(Error::NoDaemon(failure));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Starts a daemon and waits until it listens. Returns what it has to say if it doesn't: it closes its standard error
/// when it is ready. A daemon in a sandbox would be of no use: it would end with that, and see no other one's processes.
fn start(paths: &Paths) -> Result<String> {
    if std::env::var_os(RUN_DIRECTORY).is_some() {
        return Ok(
            "none runs, and a program in a sandbox starts none; run a command outside of it".to_string()
        );
    }
    let program = beside("rekindled")?;
    let mut child = Command::new(&program)
        .arg("--background")
        .arg("--socket")
        .arg(&paths.socket)
        .arg("--state")
        .arg(&paths.state)
        .arg("--run-dir")
        .arg(&paths.runs)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| Error::File { action: "start", path: program, source })?;
    let mut said = Vec::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_end(&mut said).map_err(|source| Error::system("listen to the new daemon", source))?;
    }
    let said = String::from_utf8_lossy(&said);
    Ok(said.trim().trim_start_matches("rekindled: ").to_string())
}

/// A program that is installed beside this one.
pub fn beside(name: &str) -> Result<PathBuf> {
    let here = std::env::current_exe().map_err(|source| Error::system("find this executable", source))?;
    Ok(here.with_file_name(name))
}
