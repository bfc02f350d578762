//! An errand to the memory daemon, on a thread of its own, which can be stopped: a load is one, and a dump.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rekindle_protocol::data::SOCKET_VARIABLE;
use rekindle_protocol::frame::FrameError;

/// For how long the next memory daemon is looked for when there is none, as while `rekindled` starts anew, and how often.
const PATIENCE: Duration = Duration::from_secs(30);
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// A connection to the memory daemon.
pub(crate) fn connect() -> io::Result<UnixStream> {
    let socket = std::env::var_os(SOCKET_VARIABLE)
        .ok_or_else(|| io::Error::other("no daemon has said where it listens"))?;
    UnixStream::connect(Path::new(&socket))
}

/// The thread that does it.
pub(super) struct Errand {
    stop: Arc<Stop>,
    thread: JoinHandle<()>,
}

/// Whether it is to be stopped, for the thread to look at.
#[derive(Default)]
pub(super) struct Stop {
    told: AtomicBool,
    /// The connection that it waits at.
    stream: Mutex<Option<UnixStream>>,
}

impl Errand {
    /// `ended` is told what came of it, unless it is stopped.
    pub(super) fn begin<T: 'static>(
        name: &str,
        run: impl FnOnce(&Stop) -> T + Send + 'static,
        ended: impl FnOnce(T) + Send + 'static,
    ) -> io::Result<Errand> {
        let stop = Arc::new(Stop::default());
        let told = stop.clone();
        let run = move || {
            let outcome = run(&told);
            if !told.is_told() {
                ended(outcome);
            }
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(run)?;
        Ok(Errand { stop, thread })
    }

    /// Returns when its thread has ended.
    pub(super) fn stop(self) {
        self.stop.told.store(true, Ordering::Release);
        if let Some(stream) = self.stop.stream().take() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        let _ = self.thread.join();
    }
}

impl Stop {
    pub(super) fn is_told(&self) -> bool {
        self.told.load(Ordering::Acquire)
    }

    /// A connection to the memory daemon, which ends when this is told.
    pub(super) fn connect(&self) -> Result<UnixStream, FrameError> {
        let stream = connect()?;
        *self.stream() = Some(stream.try_clone()?);
        if self.is_told() { Err(FrameError::Closed) } else { Ok(stream) }
    }

    /// Asks memory daemon after memory daemon: each begins anew. An error is that none could be reached in time.
    pub(super) fn insist<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, FrameError>,
    ) -> Result<T, FrameError> {
        let until = Instant::now() + PATIENCE;
        loop {
            match attempt() {
                Ok(done) => return Ok(done),
                Err(error) if self.is_told() || Instant::now() > until => return Err(error),
                Err(error) => log::debug!("the memory daemon is asked again: {error}"),
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn stream(&self) -> MutexGuard<'_, Option<UnixStream>> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
