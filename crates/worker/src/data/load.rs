//! One object on its way from the memory daemon's memory into a buffer.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Instant;

use rekindle_cuda::{CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN, CuResult};
use rekindle_device::{Device, MemorySet, Stream};
use rekindle_protocol::data::{
    Answer, DataRequest, DataRequestHead, Expected, Problem, ProblemKind, Sharer, Version, Write,
};
use rekindle_protocol::frame::{self, FrameError};

use super::basin::Basin;
use super::errand::{PAUSE, Stop};
use super::pour::{Pour, Poured};
use super::ranges::Ranges;
use super::source::Source;
use crate::dispatch::Remote;
use crate::gpu_link::GpuLink;

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
    /// Where copies give way to what programs copy.
    pub link: Option<Arc<GpuLink>>,
    /// What it is copied through if need be.
    pub basin: Arc<Basin>,
    pub remote: Remote,
}

/// How it came. The connection is open for as long as others may have the memory; the source is to be let go of when that holds
/// up nobody.
pub(super) enum LoadOutcome {
    /// It was copied into the window.
    Copied { version: Version, connection: UnixStream, source: Source },
    /// It is to be written to: so much is in the window, of what is replaced then.
    Own { expected: Expected, source: Option<Source> },
    /// It lies in this memory, which others have mapped too.
    Shared { memory: OwnedFd, room: u64, version: Version, connection: UnixStream },
}

impl Job {
    pub(super) fn run(&self, stop: &Stop) -> Result<LoadOutcome, Problem> {
        stop.insist(|| self.attempt(stop)).unwrap_or_else(|last| {
            let sentence = format!(
                "{} cannot be had, for the memory daemon cannot be reached ({last}); look whether rekindled runs, and at the \
                 log memory.log in its state directory",
                self.url
            );
            Err(Problem::new(ProblemKind::Unavailable, sentence))
        })
    }

    /// `Err` where the memory daemon is the problem.
    fn attempt(&self, stop: &Stop) -> Result<Result<LoadOutcome, Problem>, FrameError> {
        let (began, stream) = (Instant::now(), stop.connect()?);
        let (url, sharer, write) = (self.url.clone(), self.sharer.clone(), self.write);
        frame::send(
            &stream,
            &DataRequestHead::new(DataRequest::Object { url, bytes: Some(self.bytes), sharer, write }),
            &[],
        )?;
        let (first, descriptors) = frame::receive(&stream)?;
        let mut descriptors = descriptors.into_iter();
        let (source, version) = match (first, descriptors.next()) {
            (Answer::Failed(problem), _) => return Ok(Err(problem)),
            (Answer::Object { version }, Some(file)) if version.bytes == self.bytes => {
                (Source::new(&self.gpu, file, self.bytes, descriptors.next())?, version)
            }
            (Answer::OnGpu { version, room }, Some(memory)) if version.bytes == self.bytes => {
                return Ok(Ok(LoadOutcome::Shared { memory, room, version, connection: stream }));
            }
            (Answer::Missing {}, _) => return Ok(self.clear(stop)?.map_err(|code| self.failed(code))),
            _ => return Err(io::Error::other("it answered something else").into()),
        };
        let answered = began.elapsed();
        let window = match self.open_window(stop)? {
            Ok(window) => window,
            Err(code) => return Ok(Err(self.failed(code))),
        };
        let Job { gpu, stream: copies, basin, link, .. } = self;
        let link = link.as_deref();
        let pour = Pour { source: &source, window, gpu: &**gpu, stream: *copies, link, basin, stop };
        let made = began.elapsed();
        let Poured { told, copied, is_lost } = pour.run(|ranges| self.follow(&stream, ranges));
        let (url, whole) = (&self.url, began.elapsed());
        log::debug!(
            "{url}: answered after {answered:.1?}, memory made after {made:.1?}, poured after {whole:.1?}"
        );
        if is_lost {
            log::warn!("memory of the host that {} lies in stays pinned in this worker", self.url);
            std::mem::forget(source);
            return Ok(Err(self.failed(copied.err().unwrap_or(CUDA_ERROR_UNKNOWN))));
        }
        Ok(match (told?, copied) {
            (Ok(()), Ok(())) if self.write.is_some() => {
                Ok(LoadOutcome::Own { expected: Expected::Is(version), source: Some(source) })
            }
            (Ok(()), Ok(())) => Ok(LoadOutcome::Copied { version, connection: stream, source }),
            (Ok(()), Err(code)) => Err(self.failed(code)),
            (Err(problem), _) => Err(problem),
        })
    }

    /// An object that is not there is zeros.
    fn clear(&self, stop: &Stop) -> Result<Result<LoadOutcome, CuResult>, FrameError> {
        let cleared = self.open_window(stop)?.and_then(|window| {
            let set =
                MemorySet { address: window, pitch: 0, value: 0, element: 1, width: self.bytes, height: 1 };
            self.gpu.bind()?;
            self.gpu.set(&set, self.stream)?;
            self.gpu.stream_synchronize(self.stream)
        });
        Ok(cleared.map(|()| LoadOutcome::Own { expected: Expected::Missing {}, source: None }))
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

    /// Tells of each range that is there, until all are.
    fn follow(&self, stream: &UnixStream, ranges: &Ranges) -> Result<Result<(), Problem>, FrameError> {
        let mut left = self.bytes;
        loop {
            match frame::receive(stream)?.0 {
                Answer::Ready { offset, bytes } => {
                    let has = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
                    let Some(rest) = left.checked_sub(bytes).filter(|_| has) else {
                        return Err(io::Error::other("it spoke of bytes that there are none of").into());
                    };
                    left = rest;
                    if let Err(code) = ranges.add(offset, bytes) {
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
