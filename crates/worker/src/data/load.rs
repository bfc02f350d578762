//! One object on its way from the memory daemon's memory into a buffer.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rekindle_cuda::{CUDA_ERROR_OUT_OF_MEMORY, CuResult};
use rekindle_device::{Access, Device, MemorySet, Stream};
use rekindle_protocol::data::{
    Answer, Expected, Problem, ProblemKind, SOCKET_VARIABLE, Sharer, Version, Want, Wish, Write,
};
use rekindle_protocol::fault;
use rekindle_protocol::frame::{self, FrameError};

use crate::dispatch::Remote;
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

/// What is loaded.
pub(super) struct Job {
    /// Of the load.
    pub number: u64,
    pub url: String,
    pub bytes: u64,
    /// Whose programs have it in one memory; none: it is this program's alone.
    pub sharer: Option<Sharer>,
    /// It is to be written to and dumped.
    pub write: Option<Write>,
    pub gpu: Arc<dyn Device>,
    pub stream: Stream,
    pub remote: Remote,
}

/// How it came. The connection is open for as long as others may have the memory.
pub(super) enum Came {
    /// It was copied into the window.
    Copied { left: Left, version: Version, connection: UnixStream },
    /// It is to be written to: so much is in the window, of what is replaced then.
    Own { left: Left, expected: Expected },
    /// It lies in this memory, which others have mapped too.
    Shared { memory: OwnedFd, room: u64, version: Version, connection: UnixStream },
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
        ended: impl FnOnce(Result<Came, Problem>) + Send + 'static,
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
    fn run(&self, stop: &Stop) -> Result<Came, Problem> {
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
    fn attempt(&self, stop: &Stop) -> Result<Result<Came, Problem>, FrameError> {
        let stream = connect()?;
        *stop.stream() = Some(stream.try_clone()?);
        if stop.is_told() {
            return Err(FrameError::Closed);
        }
        let (url, sharer, write) = (self.url.clone(), self.sharer.clone(), self.write);
        frame::send(&stream, &Want::new(Wish::Object { url, bytes: Some(self.bytes), sharer, write }), &[])?;
        let (first, descriptors) = frame::receive(&stream)?;
        let (source, version) = match (first, descriptors.into_iter().next()) {
            (Answer::Failed(problem), _) => return Ok(Err(problem)),
            (Answer::Object { version }, Some(descriptor)) if version.bytes == self.bytes => {
                (HostMemory::map(&descriptor, self.bytes, Access::Read, self.gpu.clone())?, version)
            }
            (Answer::OnGpu { version, room }, Some(memory)) if version.bytes == self.bytes => {
                return Ok(Ok(Came::Shared { memory, room, version, connection: stream }));
            }
            (Answer::Missing {}, _) => return Ok(self.clear(stop)?.map_err(|code| self.failed(code))),
            _ => return Err(io::Error::other("it answered something else").into()),
        };
        let window = match self.open_window(stop)? {
            Ok(window) => window,
            Err(code) => return Ok(Err(self.failed(code))),
        };
        let copied = self.copy(&stream, &source, window);
        // Whatever was begun reads the source and writes the window.
        let waited = self.gpu.bind().and_then(|()| self.gpu.stream_synchronize(self.stream));
        Ok(match (copied?, waited) {
            (Ok(()), Ok(())) if self.write.is_some() => {
                Ok(Came::Own { left: Box::new(source), expected: Expected::Is(version) })
            }
            (Ok(()), Ok(())) => Ok(Came::Copied { left: Box::new(source), version, connection: stream }),
            (Ok(()), Err(code)) => Err(self.failed(code)),
            (Err(problem), _) => Err(problem),
        })
    }

    /// An object that is not there is zeros.
    fn clear(&self, stop: &Stop) -> Result<Result<Came, CuResult>, FrameError> {
        let cleared = self.open_window(stop)?.and_then(|window| {
            let set =
                MemorySet { address: window, pitch: 0, value: 0, element: 1, width: self.bytes, height: 1 };
            self.gpu.bind()?;
            self.gpu.set(&set, self.stream)?;
            self.gpu.stream_synchronize(self.stream)
        });
        Ok(cleared.map(|()| Came::Own { left: Box::new(()), expected: Expected::Missing {} }))
    }

    /// Has the dispatch thread make the memory that it is copied into.
    fn open_window(&self, stop: &Stop) -> Result<Result<u64, CuResult>, FrameError> {
        let (sender, receiver) = channel();
        let number = self.number;
        self.remote.run(move |dispatcher| {
            let _ = sender.send(dispatcher.client.open_data(number));
        });
        // That thread may be the one which waits for this one's end.
        loop {
            match receiver.recv_timeout(PAUSE) {
                Ok(opened) => return Ok(opened),
                Err(RecvTimeoutError::Timeout) if !stop.is_told() => {}
                Err(_) => return Err(FrameError::Closed),
            }
        }
    }

    /// Begins to copy each piece when it is there.
    fn copy(
        &self,
        stream: &UnixStream,
        source: &HostMemory,
        window: u64,
    ) -> Result<Result<(), Problem>, FrameError> {
        let mut left = self.bytes;
        loop {
            match frame::receive(stream)?.0 {
                Answer::Ready { offset, bytes } => {
                    let Some(rest) = left.checked_sub(bytes).filter(|_| source.has(offset, bytes)) else {
                        return Err(io::Error::other("it spoke of bytes that there are none of").into());
                    };
                    left = rest;
                    let (to, from) = (window + offset, source.address() + offset);
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
        if code == CUDA_ERROR_OUT_OF_MEMORY {
            let sentence = format!(
                "the GPU has no room for the {} bytes of {}; free some of its memory, or take a larger GPU",
                self.bytes, self.url
            );
            return Problem::new(ProblemKind::Memory, sentence);
        }
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
