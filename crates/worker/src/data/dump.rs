//! One dump on its way: from a copy on the GPU to memory of the host, and by the memory daemon to its store.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rekindle_cuda::CuResult;
use rekindle_device::{Access, Device, Event, Stream};
use rekindle_protocol::data::{Answer, Contents, Expected, Problem, ProblemKind, Version, Want, Wish};
use rekindle_protocol::fault;
use rekindle_protocol::frame::{self, FrameError};

use super::connect;
use crate::dispatch::Remote;
use crate::host_memory::HostMemory;

/// For how long the next memory daemon is looked for when there is none, and how often.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);
/// How often it is looked whether the stream has come that far.
const LOOK: Duration = Duration::from_micros(200);

/// Memory of the host for others to read, which the GPU writes.
pub(super) struct Sealed {
    descriptor: OwnedFd,
    memory: HostMemory,
}

impl Sealed {
    pub(super) fn new(bytes: u64, gpu: Arc<dyn Device>) -> io::Result<Sealed> {
        let length = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: makes a descriptor, which is ours alone.
        let file = unsafe {
            let number = libc::memfd_create(c"rekindle-dump".as_ptr(), flags);
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            File::from(OwnedFd::from_raw_fd(number))
        };
        let seals = libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
        // SAFETY: changes the size of our file, and what may be done with it.
        let code = unsafe {
            match libc::posix_fallocate(file.as_raw_fd(), 0, length) {
                0 if libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) != 0 => {
                    return Err(io::Error::last_os_error());
                }
                code => code,
            }
        };
        if code != 0 {
            return Err(io::Error::from_raw_os_error(code));
        }
        let descriptor = OwnedFd::from(file);
        let memory = HostMemory::map(&descriptor, bytes, Access::ReadWrite, gpu)?;
        Ok(Sealed { descriptor, memory })
    }

    pub(super) fn address(&self) -> u64 {
        self.memory.address()
    }
}

/// Where the stream copies it to.
pub(super) enum From {
    /// Memory of the GPU that is given back then.
    Gpu(u64),
    Host(Sealed),
}

pub(super) struct Job {
    pub url: String,
    pub bytes: u64,
    pub expected: Expected,
    pub from: From,
    /// Behind the stream's copy.
    pub event: Event,
    pub gpu: Arc<dyn Device>,
    /// A stream for further copies.
    pub copies: Stream,
    pub device: usize,
    pub remote: Remote,
}

/// The thread that does it.
pub(super) struct Dumper {
    stopped: Arc<Stop>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Stop {
    told: AtomicBool,
    /// The connection that it waits at.
    stream: Mutex<Option<UnixStream>>,
}

impl Stop {
    fn is_told(&self) -> bool {
        self.told.load(Ordering::Acquire)
    }

    fn stream(&self) -> std::sync::MutexGuard<'_, Option<UnixStream>> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Dumper {
    /// `ended` is told how it ended, unless it is stopped.
    pub(super) fn begin(
        job: Job,
        ended: impl FnOnce(Result<Version, Problem>) + Send + 'static,
    ) -> io::Result<Dumper> {
        let stopped = Arc::new(Stop::default());
        let told = stopped.clone();
        let run = move || {
            let outcome = job.run(&told);
            if !told.is_told() {
                ended(outcome);
            }
        };
        let thread = std::thread::Builder::new().name("dump".into()).spawn(run)?;
        Ok(Dumper { stopped, thread })
    }

    pub(super) fn stop(self) {
        self.stopped.told.store(true, Ordering::Release);
        if let Some(stream) = self.stopped.stream().take() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        let _ = self.thread.join();
    }
}

impl Job {
    fn run(self, stop: &Stop) -> Result<Version, Problem> {
        let failed = |code: CuResult| {
            let sentence = format!(
                "{} could not be copied from the GPU ({code}); look at the log for what the GPU has met",
                self.url
            );
            Problem::new(ProblemKind::Gpu, sentence)
        };
        let arrived = self.arrive(stop);
        let _ = self.gpu.event_destroy(self.event);
        let (gpu, device, remote) = (self.gpu.clone(), self.device, self.remote.clone());
        let descriptor = match (self.from, arrived) {
            (From::Gpu(at), arrived) => {
                let copied = arrived.map_err(failed).and_then(|()| {
                    let sealed = Sealed::new(self.bytes, gpu.clone()).map_err(|error| {
                        let sentence = format!(
                            "there is no memory of the host for the {} bytes of {} ({error}); free some",
                            self.bytes, self.url
                        );
                        Problem::new(ProblemKind::Memory, sentence)
                    })?;
                    let copied = gpu
                        .bind()
                        .and_then(|()| gpu.copy(sealed.address(), at, self.bytes, self.copies))
                        .and_then(|()| gpu.stream_synchronize(self.copies));
                    copied.map_err(failed)?;
                    Ok(sealed.descriptor)
                });
                remote.run(move |dispatcher| dispatcher.client.release_snapshot(device, at));
                copied?
            }
            (From::Host(sealed), arrived) => {
                arrived.map_err(failed)?;
                sealed.descriptor
            }
        };
        put(&self.url, self.bytes, &self.expected, &descriptor, stop)
    }

    /// Waits until the stream has copied it.
    fn arrive(&self, stop: &Stop) -> Result<(), CuResult> {
        fault::point("data-dump").map_err(|_| rekindle_cuda::CUDA_ERROR_UNKNOWN)?;
        self.gpu.bind()?;
        while !self.gpu.event_query(self.event)? {
            if stop.is_told() {
                return Err(rekindle_cuda::CUDA_ERROR_UNKNOWN);
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

/// Asks memory daemon after memory daemon: each begins anew, with the same bytes.
fn put(
    url: &str,
    bytes: u64,
    expected: &Expected,
    contents: &OwnedFd,
    stop: &Stop,
) -> Result<Version, Problem> {
    let until = Instant::now() + PATIENCE;
    let last = loop {
        match attempt(url, bytes, expected, contents, stop) {
            Ok(how) => return how,
            Err(error) if stop.is_told() || Instant::now() > until => break error,
            Err(error) => log::debug!("the memory daemon is asked again: {error}"),
        }
        std::thread::sleep(PAUSE);
    };
    let sentence = format!(
        "{url} cannot be written, for the memory daemon cannot be reached ({last}); look whether rekindled runs, and at the log \
         memory.log in its state directory"
    );
    Err(Problem::new(ProblemKind::Unavailable, sentence))
}

/// `Err` where the memory daemon is the problem.
fn attempt(
    url: &str,
    bytes: u64,
    expected: &Expected,
    contents: &OwnedFd,
    stop: &Stop,
) -> Result<Result<Version, Problem>, FrameError> {
    let stream = connect()?;
    *stop.stream() = Some(stream.try_clone()?);
    if stop.is_told() {
        return Err(FrameError::Closed);
    }
    let wish = Wish::Dump { url: url.to_string(), bytes, expected: expected.clone() };
    frame::send(&stream, &Want::new(wish), &[])?;
    frame::send(&stream, &Contents {}, &[contents.as_fd()])?;
    match frame::receive(&stream)?.0 {
        Answer::Dumped { version } => Ok(Ok(version)),
        Answer::Failed(problem) => Ok(Err(problem)),
        _ => Err(io::Error::other("it answered something else").into()),
    }
}
