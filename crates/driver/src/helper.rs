//! The helper process: it has the driver open, so that no step waits for the driver's start, and serves the daemon on
//! connections that come through its standard input.
//!
//! It ends when the daemon is gone and all that it held runs again.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rekindle_protocol::frame::{self, FrameError};
use rekindle_protocol::tuning;

use crate::error::{Error, Result};
use crate::journal::Journal;
use crate::library::Library;
use crate::message::{Request, Response, Used};
use crate::operation::{Limits, Operation};
use crate::states::Driver;

/// The argument with which `rekindled` becomes the helper.
pub const HELPER_ARGUMENT: &str = "driver-helper";

/// How long each step of the driver but the lock may take.
const LIMIT: Duration = Duration::from_secs(120);
/// How long a helper that works on a journal is waited for.
const TAKE_OVER_LIMIT: Duration = Duration::from_secs(180);

struct Server {
    /// Where the journals lie.
    directory: PathBuf,
    driver: Mutex<Option<Arc<dyn Driver>>>,
    step_limit: Duration,
}

/// Runs the helper; `words` is the journals' directory.
pub fn main(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let _ = env_logger::Builder::from_env(env_logger::Env::default().filter_or("REKINDLE_LOG", "info"))
        .try_init();
    let Some(directory) = words.next().map(PathBuf::from) else {
        eprintln!("rekindled: {HELPER_ARGUMENT} takes a directory; the daemon runs this");
        return ExitCode::FAILURE;
    };
    let control = match std::io::stdin().as_fd().try_clone_to_owned() {
        Ok(control) => UnixStream::from(control),
        Err(error) => {
            eprintln!("rekindled: {HELPER_ARGUMENT} has no standard input ({error}); the daemon runs this");
            return ExitCode::FAILURE;
        }
    };
    let limit = tuning::word(tuning::STEP_LIMIT).and_then(|text| text.parse().ok());
    let limit = limit.map(Duration::from_millis);
    let step_limit = limit.unwrap_or(LIMIT);
    let server = Arc::new(Server { directory, driver: Mutex::new(None), step_limit });
    let early = server.clone();
    // Opening takes a while: it is done before the first request needs it.
    std::thread::spawn(move || early.driver());
    let mut threads = Vec::new();
    while let Ok(((), descriptors)) = frame::receive::<()>(&control) {
        threads.retain(|thread: &std::thread::JoinHandle<()>| !thread.is_finished());
        for descriptor in descriptors {
            let server = server.clone();
            threads.push(std::thread::spawn(move || server.converse(&UnixStream::from(descriptor))));
        }
    }
    for thread in threads {
        let _ = thread.join();
    }
    ExitCode::SUCCESS
}

impl Server {
    fn driver(&self) -> Result<Arc<dyn Driver>> {
        let mut driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = &*driver {
            return Ok(driver.clone());
        }
        Ok(driver.insert(Arc::new(Library::open()?)).clone())
    }

    fn limits(&self, lock: Duration) -> Limits {
        Limits { lock, step: self.step_limit }
    }

    fn converse(&self, stream: &UnixStream) {
        let Ok((request, _)) = frame::receive::<Request>(stream) else { return };
        match self.answer(request, stream) {
            Ok(response) => say(stream, &response),
            Err(error) => {
                log::warn!("{error}");
                say(stream, &Response::Failed { message: error.to_string() });
                if matches!(error, Error::Hung { .. }) {
                    // The call can't be taken back but by ending this process; its journal tells the next one.
                    std::process::exit(1);
                }
            }
        }
    }

    fn answer(&self, request: Request, stream: &UnixStream) -> Result<Response> {
        Ok(match request {
            Request::Gpus => Response::Gpus { gpus: self.driver()?.gpus()? },
            Request::Usage => {
                let used = self.driver()?.usage().into_iter();
                let used = used.map(|(gpu_uuid, pid, bytes)| Used { gpu_uuid, pid, bytes }).collect();
                Response::Usage { used }
            }
            Request::Hold { id, root, lock_ms } => {
                let limits = self.limits(Duration::from_millis(lock_ms));
                let (operation, held) = Operation::hold(&self.driver()?, &self.directory, &id, root, limits)?;
                say(stream, &Response::Held(held));
                self.held(operation, stream)?
            }
            Request::Restore { id, pids, pairs } => {
                let limits = self.limits(Duration::ZERO);
                let phases = Operation::restore(&self.driver()?, &self.directory, &id, &pids, pairs, limits)?;
                Response::Done { phases }
            }
            Request::Recover { ids } => Response::Recovered { notes: self.recover(ids)? },
            Request::Release | Request::Forget => {
                return Err(Error::Helper {
                    action: "go on",
                    reason: "nothing is held on this connection".into(),
                });
            }
        })
    }

    /// Waits for what is to become of held processes. Without a word they are released.
    fn held(&self, operation: Operation, stream: &UnixStream) -> Result<Response> {
        let word = frame::receive::<Request>(stream);
        if let Err(FrameError::Closed) = word {
            log::warn!("the daemon is gone; what it held is brought back to running");
        }
        if let Ok((Request::Forget, _)) = word {
            operation.forget();
            return Ok(Response::Done { phases: Vec::new() });
        }
        Ok(Response::Done { phases: operation.release()? })
    }

    fn recover(&self, ids: Vec<String>) -> Result<Vec<String>> {
        let (mut notes, mut failures) = (Vec::new(), Vec::new());
        for id in ids {
            match self.recover_one(&self.directory, &id) {
                Ok(more) => notes.extend(more),
                Err(error @ Error::Hung { .. }) => return Err(error),
                Err(error) => failures.push(error.to_string()),
            }
        }
        if failures.is_empty() { Ok(notes) } else { Err(Error::Stuck(failures.join("; "))) }
    }

    fn recover_one(&self, directory: &Path, id: &str) -> Result<Vec<String>> {
        let Some(journal) = Journal::take_over(directory, id, TAKE_OVER_LIMIT)? else {
            return Ok(Vec::new());
        };
        Operation::recover(&self.driver()?, journal, self.limits(Duration::ZERO))
    }
}

/// A daemon that is gone needs no answer.
fn say(stream: &UnixStream, response: &Response) {
    if let Err(error) = frame::send(stream, response, &[]) {
        log::debug!("the daemon was not told: {error}");
    }
}
