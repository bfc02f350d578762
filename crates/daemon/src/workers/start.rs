//! How a worker's process is started, and how it has ended.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rekindle_protocol::data::SOCKET_VARIABLE;
use rekindle_protocol::worker::LINKS_VARIABLE;

use super::returning::WorkerProcess;
use super::{Address, ENDED, OnEnd, Worker, append};
use crate::error::{Error, Result};

/// What a new worker is started with.
pub struct Start<'a> {
    /// `rekindled`, which is the worker too.
    pub program: &'a Path,
    pub address: Address,
    pub gpu: &'a str,
    /// The sandbox's log: what kernels print goes there.
    pub output: &'a Path,
    pub purpose: Purpose<'a>,
    /// Where the memory daemon listens.
    pub data: PathBuf,
    /// Where the pages are by which workers share links.
    pub links: PathBuf,
}

/// Whom a worker is for.
#[derive(Clone, Copy)]
pub enum Purpose<'a> {
    Program,
    /// As yet nobody.
    Spare,
    /// Programs of a tenant, which share its contexts. So long these are kept without any.
    Shared {
        tenant: &'a str,
        keep: Duration,
    },
}

impl Worker {
    /// Starts a worker. It opens its GPU while the caller goes on; the first request waits for it.
    pub fn start(start: &Start<'_>, on_end: OnEnd) -> Result<Arc<Worker>> {
        // One that came from the pool knows its first place alone, and leaves the socket of its later one.
        let _ = std::fs::remove_file(&start.address.socket);
        let mut command = Command::new(start.program);
        command.arg("worker").arg("--listen").arg(&start.address.socket).arg("--gpu").arg(start.gpu);
        match start.purpose {
            Purpose::Program => {}
            Purpose::Spare => drop(command.arg("--spare")),
            Purpose::Shared { tenant, keep } => {
                command.arg("--shared").arg(tenant).arg("--keep").arg(keep.as_secs().to_string());
            }
        }
        let mut child = command
            .env(SOCKET_VARIABLE, &start.data)
            .env(LINKS_VARIABLE, &start.links)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(append(start.output)?)
            .stderr(append(&start.address.log)?)
            .process_group(0)
            .spawn()
            .map_err(|source| Error::io("start", start.program, source))?;
        let mut worker = Worker::new(start.address.clone(), child.id() as i32, None, on_end);
        worker.starting = true;
        let worker = Arc::new(worker);
        let process = WorkerProcess::of(&worker);
        // Open for as long as this daemon lives, which tells a worker that waits that it does.
        let sign_of_life = child.stdin.take();
        std::thread::spawn(move || {
            let _sign_of_life = sign_of_life;
            let how = match child.wait() {
                Ok(status) => describe(status),
                Err(error) => format!("it could not be waited for: {error}"),
            };
            process.note_end(how);
        });
        Ok(worker)
    }
}

pub(super) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(0), _) => ENDED.to_string(),
        (Some(code), _) => format!("it ended with status {code}"),
        (_, Some(signal)) => format!("it was killed by signal {signal}"),
        _ => "it ended in an unknown way".to_string(),
    }
}
