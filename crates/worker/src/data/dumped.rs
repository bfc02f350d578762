//! Data that a program writes to: its own memory, which a dump puts into its store as it is at that place of a stream.
//!
//! ```text
//!   program     … kernel ─ DataDump ─ kernel …                               DataDumped ─▶ waits
//!   stream      … kernel ─ copied on the GPU ─ kernel …                                     ▲
//!   a thread                └▶ memory of the host ─▶ memory daemon ─▶ store ───────────────┘
//! ```
//!
//! Where the GPU has no room for a copy, it is copied to memory of the host by the stream itself, which takes that longer.

use rekindle_cuda::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OPERATING_SYSTEM, CUDA_ERROR_OUT_OF_MEMORY,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
};
use rekindle_device::{Result, Stream};
use rekindle_protocol::data::{Expected, Problem, ProblemKind, Version};
use rekindle_protocol::operation::{
    Answer, DataDump, DataDumped, DataFound, DataOutcome, Origin, encode_reply,
};

use super::Data;
use super::dump::{From, Job, Sealed};
use super::errand::Errand;
use crate::client::Client;
use crate::dispatch::Dispatcher;

/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIMING: u32 = 2;

pub(crate) struct Written {
    pub device: usize,
    pub url: String,
    pub bytes: u64,
    /// What the next dump replaces.
    pub expected: Expected,
    state: State,
    /// Rings whose threads wait for its end.
    waiting: Vec<usize>,
}

/// The last dump.
enum State {
    /// There was none, or it is in the store.
    Done,
    UnderWay(Errand),
    Failed(Problem),
}

impl Written {
    pub(crate) fn new(device: usize, url: &str, bytes: u64, expected: Expected) -> Written {
        Written { device, url: url.to_string(), bytes, expected, state: State::Done, waiting: Vec::new() }
    }

    pub(super) fn is_under_way(&self) -> bool {
        matches!(self.state, State::UnderWay(_))
    }

    /// It is not waited for any more. What its store was given already may come to be there.
    pub(super) fn stop(self) {
        if let State::UnderWay(errand) = self.state {
            errand.stop();
        }
    }

    fn found(&self) -> DataFound {
        match &self.state {
            State::Done => DataFound { loading: false, problem: None },
            State::UnderWay(_) => DataFound { loading: true, problem: None },
            State::Failed(problem) => {
                DataFound { loading: false, problem: Some((problem.kind as u32, problem.sentence.clone())) }
            }
        }
    }
}

impl Data {
    pub(crate) fn written(&self) -> impl Iterator<Item = (u64, &Written)> {
        self.written.iter().map(|(address, written)| (*address, written))
    }

    pub(crate) fn note_written(&mut self, address: u64, written: Written) {
        self.written.insert(address, written);
    }
}

impl Client {
    /// Begins to write what the buffer at this address holds at this place of the stream into its store.
    pub(crate) fn dump_data(&mut self, origin: Origin, request: &DataDump) -> Result<DataOutcome<()>> {
        let DataDump { device, stream, address } = *request;
        let (device, stream) = self.stream(origin, device, stream)?;
        self.waiting.assumed.note_work();
        if self.is_captured(device, stream)? {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let remote = self.data.remote.clone().ok_or(CUDA_ERROR_OPERATING_SYSTEM)?;
        let Some(written) = self.data.written.get(&address).filter(|written| written.device == device) else {
            return Err(CUDA_ERROR_INVALID_VALUE);
        };
        let (url, bytes, expected) = (written.url.clone(), written.bytes, written.expected.clone());
        if written.is_under_way() {
            let sentence = format!("{url} is being dumped already; wait for that, and dump it then");
            return Ok(Err((ProblemKind::Unavailable as u32, sentence)));
        }
        let from = match self.snapshot(device, (address, bytes), stream) {
            Ok(from) => from,
            Err(code) => {
                let kind = match code {
                    CUDA_ERROR_OUT_OF_MEMORY => ProblemKind::Memory,
                    _ => ProblemKind::Gpu,
                };
                let sentence = format!(
                    "{url} cannot be dumped, for its {bytes} bytes could not be copied ({code}); free memory of the GPU, or of \
                     the host, or look at the log for what the GPU has met"
                );
                return Ok(Err((kind as u32, sentence)));
            }
        };
        let context = self.context(device)?;
        let copies = context.gpu.copies.first().copied().unwrap_or(Stream::LEGACY);
        let (gpu, link) = (context.device.clone(), context.gpu.link.clone());
        let event = gpu.event_create(NO_TIMING)?;
        gpu.event_record(event, stream, 0)?;
        let job =
            Job { url, bytes, expected, from, event, gpu, copies, link, device, remote: remote.clone() };
        let ended = move |outcome| remote.run(move |dispatcher| dispatcher.end_dump(address, outcome));
        let errand = Errand::begin("dump", |stop| job.run(stop), ended).map_err(|error| {
            log::error!("cannot start a thread: {error}");
            CUDA_ERROR_OPERATING_SYSTEM
        })?;
        if let Some(written) = self.data.written.get_mut(&address) {
            written.state = State::UnderWay(errand);
        }
        Ok(Ok(()))
    }

    /// Has the stream copy a range: on the GPU, or to the host if there is no room.
    fn snapshot(&mut self, device: usize, (address, bytes): (u64, u64), stream: Stream) -> Result<From> {
        let room = self.with_memory(device, |client| {
            client.bind(device)?;
            client.heap(device)?.add_own(bytes)
        });
        match room {
            Ok(at) => {
                let copied = self.on(device)?.copy(at, address, bytes, stream);
                if let Err(code) = copied {
                    self.release_snapshot(device, at);
                    return Err(code);
                }
                Ok(From::Gpu(at))
            }
            Err(CUDA_ERROR_OUT_OF_MEMORY) => {
                let gpu = self.context(device)?.device.clone();
                let sealed = Sealed::new(bytes, &gpu).map_err(|error| {
                    log::error!("there is no memory for what is dumped: {error}");
                    CUDA_ERROR_OUT_OF_MEMORY
                })?;
                self.on(device)?.copy(sealed.address(), address, bytes, stream)?;
                Ok(From::Host(sealed))
            }
            Err(code) => Err(code),
        }
    }

    /// How it stands with the last dump of the buffer at this address; with `wait`, once that has ended.
    pub(crate) fn dump_found(&mut self, origin: Origin, request: &DataDumped) -> Answer<DataFound> {
        match self.data.written.get_mut(&request.address) {
            None => Answer::Now(Err(CUDA_ERROR_INVALID_VALUE)),
            Some(written) if request.wait && written.is_under_way() => {
                written.waiting.push(origin.ring);
                Answer::Later
            }
            Some(written) => Answer::Now(Ok(written.found())),
        }
    }

    /// Gives back what a dump was copied to on the GPU. Nothing uses it any more.
    pub(super) fn release_snapshot(&mut self, device: usize, at: u64) {
        let released = self.bind(device).and_then(|()| self.heap(device)?.release(at));
        if let Err(code) = released {
            log::warn!("the memory of a dump stays in use: {code}");
        }
    }
}

impl Dispatcher {
    /// It is in the store, or it is known why it is not.
    fn end_dump(&mut self, address: u64, outcome: std::result::Result<Version, Problem>) {
        let Some(written) = self.client.data.written.get_mut(&address) else { return };
        written.state = match outcome {
            Ok(version) => {
                written.expected = Expected::Is(version);
                State::Done
            }
            Err(problem) => {
                log::warn!("{}", problem.sentence);
                State::Failed(problem)
            }
        };
        let waiting = std::mem::take(&mut written.waiting);
        let reply = encode_reply(&Ok(written.found()));
        waiting.into_iter().for_each(|ring| self.client.reply(ring, &reply));
    }
}
