//! A worker whose program has ended or sleeps, and which waits for another one: the same process, and for the daemon another
//! worker.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use nix::fcntl::OFlag;
use rekindle_protocol::worker::{Departure, ask};

use super::{Address, ENDED, OnEnd, Worker, lock};
use crate::error::{Error, Result};
use crate::host::process;

/// A process that this daemon has started.
pub(super) struct WorkerProcess {
    /// As which worker it is known now; none while it is between two.
    current: Mutex<Option<Arc<Worker>>>,
    /// Held by who waits for what it says when it leaves its place, which comes before its end.
    listening: Mutex<()>,
    pid: i32,
}

impl WorkerProcess {
    pub(super) fn of(worker: &Arc<Worker>) -> Arc<WorkerProcess> {
        let current = Mutex::new(Some(worker.clone()));
        let process = Arc::new(WorkerProcess { current, listening: Mutex::new(()), pid: worker.pid() });
        *lock(&worker.process) = Arc::downgrade(&process);
        process
    }

    /// It has ended.
    pub(super) fn note_end(&self, how: String) {
        drop(lock(&self.listening));
        let ended = lock(&self.current).take();
        if let Some(worker) = ended {
            worker.note_end(how);
        }
    }
}

impl Worker {
    /// Asks it to wait at another place when its program has ended or fallen asleep, and waits for that: the worker that it is
    /// then, which leaves unless it is told to [stay](Worker::stay). None if it ends with its program.
    pub fn await_return(self: &Arc<Worker>, place: Address, on_end: OnEnd) -> Result<Option<Arc<Worker>>> {
        let Some(process) = lock(&self.process).upgrade() else { return Ok(None) };
        let (said, word) = nix::unistd::pipe2(OFlag::O_CLOEXEC)
            .map_err(|errno| Error::system("make a pipe", std::io::Error::from(errno)))?;
        let [socket, log] = [&place.socket, &place.log].map(|path| text(path));
        self.ask("serve another program later", ask::ServeAnother { socket, log }, &[word.as_fd()])?;
        // Before that it says nothing, and its end is waited for by who asks something else.
        let _listening = lock(&process.listening);
        drop(word);
        self.awaited.store(true, Ordering::Release);
        let (mut said, mut returned) = (File::from(said), None);
        while let Some(departure) = Departure::receive(&mut said) {
            match departure {
                Departure::Kept(pid) => {
                    lock(&process.current).take();
                    self.be_kept_by(pid);
                }
                Departure::Returned => {
                    let next = Arc::new(Worker::new(place, process.pid, None, on_end));
                    *lock(&next.process) = Arc::downgrade(&process);
                    // Until it is known whether it stays.
                    next.leaves();
                    if lock(&process.current).replace(next.clone()).is_some() {
                        self.leave();
                    }
                    returned = Some(next);
                    break;
                }
            }
        }
        self.awaited.store(false, Ordering::Release);
        Ok(returned)
    }

    /// What it has of its GPU is not about to be free.
    pub fn stay(&self) {
        lock(&self.leaving).take();
    }

    /// Whether it has yet to say what becomes of it after its program.
    pub fn is_awaited(&self) -> bool {
        self.awaited.load(Ordering::Acquire)
    }

    /// Another process is in its place from now on.
    fn be_kept_by(self: &Arc<Worker>, pid: i32) {
        self.pid.store(pid, Ordering::Relaxed);
        let kept = self.clone();
        std::thread::spawn(move || {
            process::wait_for_end(pid);
            kept.note_end(ENDED.to_string());
        });
    }

    /// Nobody is there any more.
    fn leave(&self) {
        let _ = std::fs::remove_file(self.address().socket);
        self.note_end(ENDED.to_string());
        self.hang_up();
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
