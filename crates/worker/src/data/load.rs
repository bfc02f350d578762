//! One object on its way from the memory daemon's memory into a buffer.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rekindle_cuda::CuResult;
use rekindle_device::{Access, Device, Stream};
use rekindle_protocol::data::{Answer, Problem, ProblemKind, SOCKET_VARIABLE, Want, Wish};
use rekindle_protocol::fault;
use rekindle_protocol::frame::{self, FrameError};

use crate::host_memory::HostMemory;

/// For how long the next memory daemon is looked for when there is none, as while `rekindled` starts anew, and how often.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);

/// A connection to the memory daemon.
pub(crate) fn connect() -> io::Result<UnixStream> {
    let socket = std::env::var_os(SOCKET_VARIABLE)
        .ok_or_else(|| io::Error::other("no daemon has said where it listens"))?;
    UnixStream::connect(Path::new(&socket))
}

/// What is loaded, and to where.
pub(super) struct Job {
    pub url: String,
    pub bytes: u64,
    pub window: u64,
    pub gpu: Arc<dyn Device>,
    pub stream: Stream,
}

/// What was copied from. Letting go of it may hold up the device.
pub(super) type Left = Box<dyn Send>;

/// The thread that does it.
pub(super) struct Loader {
    stopped: Arc<Stop>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Stop {
    told: AtomicBool,
    /// The connection that it waits at.
    stream: Mutex<Option<UnixStream>>,
}

impl Loader {
    /// `ended` is told how it ended, unless it is stopped.
    pub(super) fn begin(
        job: Job,
        ended: impl FnOnce(Result<Left, Problem>) + Send + 'static,
    ) -> io::Result<Loader> {
        let stopped = Arc::new(Stop::default());
        let told = stopped.clone();
        let run = move || {
            let outcome = job.run(&told);
            if !told.is_told() {
                ended(outcome);
            }
        };
        let thread = std::thread::Builder::new().name("data".into()).spawn(run)?;
        Ok(Loader { stopped, thread })
    }

    pub(super) fn stop(self) {
        self.stopped.told.store(true, Ordering::Release);
        if let Some(stream) = self.stopped.stream().take() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        let _ = self.thread.join();
    }
}

impl Stop {
    fn is_told(&self) -> bool {
        self.told.load(Ordering::Acquire)
    }

    fn stream(&self) -> std::sync::MutexGuard<'_, Option<UnixStream>> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Job {
    /// Asks memory daemon after memory daemon: each begins anew, and so does what is copied.
    fn run(&self, stop: &Stop) -> Result<Left, Problem> {
        let until = Instant::now() + PATIENCE;
        let last = loop {
            match self.attempt(stop) {
                Ok(how) => return how,
                Err(error) if stop.is_told() || Instant::now() > until => break error,
                Err(error) => log::debug!("the memory daemon is asked again: {error}"),
            }
            std::thread::sleep(PAUSE);
        };
        let sentence = format!(
            "{} cannot be had, for the memory daemon cannot be reached ({last}); look whether rekindled runs, and at the \
             log memory.log in its state directory",
            self.url
        );
        Err(Problem::new(ProblemKind::Unavailable, sentence))
    }

    /// `Err` where the memory daemon is the problem.
    fn attempt(&self, stop: &Stop) -> Result<Result<Left, Problem>, FrameError> {
        let stream = connect()?;
        *stop.stream() = Some(stream.try_clone()?);
        if stop.is_told() {
            return Err(FrameError::Closed);
        }
        let wish = Wish::Object { url: self.url.clone(), bytes: Some(self.bytes) };
        frame::send(&stream, &Want::new(wish), &[])?;
        let (first, descriptors) = frame::receive(&stream)?;
        let source = match (first, descriptors.into_iter().next()) {
            (Answer::Failed(problem), _) => return Ok(Err(problem)),
            (Answer::Object { bytes }, Some(descriptor)) if bytes == self.bytes => {
                HostMemory::map(&descriptor, bytes, Access::Read, self.gpu.clone())?
            }
            _ => return Err(io::Error::other("it answered something else").into()),
        };
        let copied = self.copy(&stream, &source);
        // Whatever was begun reads the source and writes the window.
        let waited = self.gpu.bind().and_then(|()| self.gpu.stream_synchronize(self.stream));
        Ok(match (copied?, waited) {
            (Ok(()), Ok(())) => Ok(Box::new(source)),
            (Ok(()), Err(code)) => Err(self.failed(code)),
            (Err(problem), _) => Err(problem),
        })
    }

    /// Begins to copy each piece when it is there.
    fn copy(&self, stream: &UnixStream, source: &HostMemory) -> Result<Result<(), Problem>, FrameError> {
        let mut left = self.bytes;
        loop {
            match frame::receive(stream)?.0 {
                Answer::Ready { offset, bytes } => {
                    let Some(rest) = left.checked_sub(bytes).filter(|_| source.has(offset, bytes)) else {
                        return Err(io::Error::other("it spoke of bytes that there are none of").into());
                    };
                    left = rest;
                    let (to, from) = (self.window + offset, source.address() + offset);
                    let begun = fault::point("data-copy").map_err(|_| rekindle_cuda::CUDA_ERROR_UNKNOWN);
                    let begun = begun
                        .and_then(|()| self.gpu.bind())
                        .and_then(|()| self.gpu.copy(to, from, bytes, self.stream));
                    if let Err(code) = begun {
                        return Ok(Err(self.failed(code)));
                    }
                }
                Answer::Whole {} if left == 0 => return Ok(Ok(())),
                Answer::Failed(problem) => return Ok(Err(problem)),
                _ => return Err(io::Error::other("it said that all is there, and some is not").into()),
            }
        }
    }

    fn failed(&self, code: CuResult) -> Problem {
        let sentence = format!(
            "{} could not be copied to the GPU ({code}); look at the log for what the GPU has met",
            self.url
        );
        Problem::new(ProblemKind::Gpu, sentence)
    }
}

/// The buffer could not be given to the program when all was in it.
pub(super) fn unmapped(code: CuResult) -> Problem {
    let sentence = format!("data could not be mapped ({code}); look at the log for what the GPU has met");
    Problem::new(ProblemKind::Gpu, sentence)
}
