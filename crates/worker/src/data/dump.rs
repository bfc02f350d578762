//! One dump on its way: from a copy on the GPU to memory of the host, and by the memory daemon to its store.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::{FcntlArg, SealFlag, fcntl, posix_fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};
use rekindle_cuda::CuResult;
use rekindle_device::{Access, Device, Event, Stream};
use rekindle_protocol::data::{
    Answer, Contents, DataRequest, DataRequestHead, Expected, Problem, ProblemKind, Version,
};
use rekindle_protocol::fault;
use rekindle_protocol::frame::{self, FrameError};

use super::errand::Stop;
use crate::dispatch::Remote;
use crate::gpu_link::GpuLink;
use crate::host_memory::HostMemory;

/// How often it is looked whether the stream has come that far.
const LOOK: Duration = Duration::from_micros(200);

/// Memory of the host for others to read, which the GPU writes.
pub(super) struct Sealed {
    descriptor: OwnedFd,
    memory: HostMemory,
}

impl Sealed {
    pub(super) fn new(bytes: u64, gpu: &Arc<dyn Device>) -> io::Result<Sealed> {
        let length = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let descriptor = memfd_create(c"rekindle-dump", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        posix_fallocate(&descriptor, 0, length)?;
        let seals = SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
        fcntl(&descriptor, FcntlArg::F_ADD_SEALS(seals))?;
        let memory = HostMemory::map_for(&descriptor, bytes, Access::ReadWrite, gpu)?;
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
    /// Where they give way to what programs copy.
    pub link: Option<Arc<GpuLink>>,
    pub device: usize,
    pub remote: Remote,
}

impl Job {
    pub(super) fn run(self, stop: &Stop) -> Result<Version, Problem> {
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
                    let sealed = Sealed::new(self.bytes, &gpu).map_err(|error| {
                        let sentence = format!(
                            "there is no memory of the host for the {} bytes of {} ({error}); free some",
                            self.bytes, self.url
                        );
                        Problem::new(ProblemKind::Memory, sentence)
                    })?;
                    let copy = (sealed.address(), at, self.bytes);
                    let copied = gpu
                        .bind()
                        .and_then(|()| GpuLink::copy_by(self.link.as_deref(), &*gpu, copy, self.copies))
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

/// The memory daemon writes it, or the next one does, with the same bytes.
fn put(
    url: &str,
    bytes: u64,
    expected: &Expected,
    contents: &OwnedFd,
    stop: &Stop,
) -> Result<Version, Problem> {
    stop.insist(|| attempt(url, bytes, expected, contents, stop)).unwrap_or_else(|last| {
        let sentence = format!(
            "{url} cannot be written, for the memory daemon cannot be reached ({last}); look whether rekindled runs, and at the \
             log memory.log in its state directory"
        );
        Err(Problem::new(ProblemKind::Unavailable, sentence))
    })
}

/// `Err` where the memory daemon is the problem.
fn attempt(
    url: &str,
    bytes: u64,
    expected: &Expected,
    contents: &OwnedFd,
    stop: &Stop,
) -> Result<Result<Version, Problem>, FrameError> {
    let stream = stop.connect()?;
    let request = DataRequest::Dump { url: url.to_string(), bytes, expected: expected.clone() };
    frame::send(&stream, &DataRequestHead::new(request), &[])?;
    frame::send(&stream, &Contents {}, &[contents.as_fd()])?;
    match frame::receive(&stream)?.0 {
        Answer::Dumped { version } => Ok(Ok(version)),
        Answer::Failed(problem) => Ok(Err(problem)),
        _ => Err(io::Error::other("it answered something else").into()),
    }
}
