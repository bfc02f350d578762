//! What is said with the memory daemon.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rekindle_cuda::{CUDA_ERROR_OUT_OF_MEMORY, CuResult};
use rekindle_protocol::data::{DataRequest, DataRequestHead, Problem, ProblemKind};
use rekindle_protocol::exchange::{self, Answer, ExchangeMessage, Gpu, Put};
use rekindle_protocol::frame::{self, FrameError};

use crate::client::Client;
use crate::data::connect;
use crate::dispatch::Remote;

/// How long an answer may take: others may have to move arrays.
const PATIENCE: Duration = Duration::from_secs(120);
/// The same, while the program's requests wait.
const HURRY: Duration = Duration::from_secs(5);

/// Who talks, for a program that waits.
pub(super) struct ExchangeClient {
    pub remote: Remote,
    pub owner: String,
    /// The program's GPU, and its number for it.
    pub gpu: Gpu,
    pub device: usize,
}

impl ExchangeClient {
    /// Has a copy kept, in memory of so much room, perhaps that of one of the arrays before; its name.
    pub(super) fn put(
        &self,
        range: (u64, u64),
        (room, before): (u64, Vec<String>),
        expiry_ms: u64,
        uses: u32,
    ) -> Result<String, Problem> {
        let (device, bytes) = (self.device, range.1);
        let (owner, gpu) = (self.owner.clone(), self.gpu.clone());
        let put = Put { owner, gpu, bytes, room, expiry_ms, uses, before };
        let stream = ask(exchange::ExchangeRequest::Put(put), PATIENCE)?;
        let (Answer::Room { over }, _) = self.hear(&stream)? else { return Err(misunderstood()) };
        let copy = self.on_dispatch(move |client| client.copy_out(device, range, room, over.as_deref()))?;
        let memory = copy.name.clone();
        let told = frame::send(&stream, &ExchangeMessage::Here { memory }, &[copy.memory.as_fd()])
            .map_err(unreachable)
            .and_then(|()| self.hear(&stream));
        let kept = match told {
            Ok((Answer::Kept { id }, _)) => Ok(id),
            Ok(_) => Err(misunderstood()),
            Err(problem) => Err(problem),
        };
        let id = kept.as_ref().ok().cloned();
        self.remote.run(move |dispatcher| dispatcher.client.keep_given(device, copy, id));
        kept
    }

    /// Where an array of so many bytes is mapped.
    pub(super) fn get(&self, id: &str, wanted: u64) -> Result<u64, Problem> {
        let (owner, gpu) = (self.owner.clone(), self.gpu.clone());
        let stream =
            ask(exchange::ExchangeRequest::Get { owner, gpu, id: id.to_string(), bytes: wanted }, PATIENCE)?;
        let (answer, memories) = self.hear(&stream)?;
        let memory = memories.into_iter().next().ok_or_else(misunderstood)?;
        let (Answer::OnGpu { bytes, .. } | Answer::OnHost { bytes, .. }) = answer else {
            return Err(misunderstood());
        };
        if bytes != wanted {
            let sentence = format!(
                "the array {id} has {bytes} bytes, and its shape and dtype say {wanted}; put it again"
            );
            return Err(Problem::new(ProblemKind::Size, sentence));
        }
        let device = self.device;
        match answer {
            Answer::OnGpu { gpu, room, memory: name, .. } if gpu == self.gpu.uuid => {
                self.on_dispatch(move |client| {
                    let kept = name.as_deref().map(|name| client.take_kept(device, (bytes, room), name));
                    let address = match kept.transpose()?.flatten() {
                        Some(address) => address,
                        None => client.map_array(device, (bytes, room), memory.as_fd())?,
                    };
                    client.exchange.hold(address, stream, name.map(|name| (name, room)));
                    Ok(address)
                })
            }
            Answer::OnGpu { room, .. } => {
                self.on_dispatch(move |client| client.copy_from_gpu(device, (bytes, room), memory.as_fd()))
            }
            Answer::OnHost { keep, .. } => {
                let (address, kept) =
                    self.on_dispatch(move |client| client.copy_from_host(device, bytes, &memory, keep))?;
                match kept {
                    Some(memory) => {
                        // Should nobody hear it, the array stays where it was, and what is mapped here as it is.
                        let here = ExchangeMessage::Here { memory: None };
                        let _ = frame::send(&stream, &here, &[memory.as_fd()]);
                        self.on_dispatch(move |client| {
                            client.exchange.hold(address, stream, None);
                            Ok(())
                        })?;
                    }
                    None => drop(frame::send(&stream, &ExchangeMessage::Copied {}, &[])),
                }
                Ok(address)
            }
            _ => Err(misunderstood()),
        }
    }

    pub(super) fn drop_array(&self, id: &str, use_only: bool) -> Result<(), Problem> {
        let (owner, id) = (self.owner.clone(), id.to_string());
        match self.hear(&ask(exchange::ExchangeRequest::Drop { owner, id, use_only }, PATIENCE)?)?.0 {
            Answer::Done { .. } => Ok(()),
            _ => Err(misunderstood()),
        }
    }

    fn hear(&self, stream: &UnixStream) -> Result<(Answer, Vec<OwnedFd>), Problem> {
        let device = self.device;
        hear(stream, move |way| self.on_dispatch(move |client| client.move_array(device, way)))
    }

    /// Has the dispatch thread do something on the GPU.
    fn on_dispatch<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Client) -> Result<T, CuResult> + Send + 'static,
    ) -> Result<T, Problem> {
        let done = self.remote.ask(move |dispatcher| what(&mut dispatcher.client));
        done.map_err(|error| Problem::new(ProblemKind::Unavailable, error.to_string()))?.map_err(failed)
    }
}

/// Has the memory daemon give up one array's memory on a GPU, which the program lacks; false if there is none.
pub(crate) fn make_room(client: &mut Client, device: usize, gpu: String) -> bool {
    let freed = ask(exchange::ExchangeRequest::MakeRoom { gpu, bytes: 1 }, HURRY)
        .and_then(|stream| hear(&stream, |way| client.move_array(device, way).map_err(failed)));
    matches!(freed, Ok((Answer::Done { freed: 1.. }, _)))
}

fn ask(request: exchange::ExchangeRequest, patience: Duration) -> Result<UnixStream, Problem> {
    let stream = connect().map_err(|error| unreachable(error.into()))?;
    stream.set_read_timeout(Some(patience)).map_err(|error| unreachable(error.into()))?;
    frame::send(&stream, &DataRequestHead::new(DataRequest::Exchange(request)), &[]).map_err(unreachable)?;
    Ok(stream)
}

/// How an array is to be moved.
pub(super) struct Way {
    /// Bytes, and those of its memory.
    pub sizes: (u64, u64),
    /// The memory that it lies in, and that of the host that it is to be copied to, if it is.
    pub memories: Vec<OwnedFd>,
    /// The GPU that it is to be copied to.
    pub to: Option<String>,
}

/// The next answer with its memories, when all is moved that has to be: `move_array` gives memory of the other GPU, if it was to go
/// there.
fn hear(
    stream: &UnixStream,
    mut move_array: impl FnMut(Way) -> Result<Option<OwnedFd>, Problem>,
) -> Result<(Answer, Vec<OwnedFd>), Problem> {
    loop {
        let (bytes, room, to, memories) = match frame::receive(stream).map_err(unreachable)? {
            (Answer::MoveOut { bytes, room, to }, memories) => (bytes, room, to, memories),
            (Answer::Failed(problem), _) => return Err(problem),
            other => return Ok(other),
        };
        let moved = move_array(Way { sizes: (bytes, room), memories, to });
        let told = match &moved {
            Ok(Some(memory)) => {
                frame::send(stream, &ExchangeMessage::Here { memory: None }, &[memory.as_fd()])
            }
            moved => frame::send(stream, &ExchangeMessage::Moved { done: moved.is_ok() }, &[]),
        };
        told.map_err(unreachable)?;
    }
}

fn unreachable(error: FrameError) -> Problem {
    let sentence = format!(
        "arrays cannot be handed on, for the memory daemon cannot be reached ({error}); look whether rekindled runs, and at the \
         log memory.log in its state directory"
    );
    Problem::new(ProblemKind::Unavailable, sentence)
}

fn misunderstood() -> Problem {
    Problem::new(
        ProblemKind::Unavailable,
        "the memory daemon answered something else than was asked; restart what runs since before an upgrade",
    )
}

fn failed(code: CuResult) -> Problem {
    match code {
        CUDA_ERROR_OUT_OF_MEMORY => Problem::new(
            ProblemKind::Memory,
            "the GPU has no room for an array that is handed on; free some of its memory, or drop some arrays",
        ),
        code => Problem::new(
            ProblemKind::Gpu,
            format!(
                "an array could not be copied or mapped ({code}); look at the log for what the GPU has met"
            ),
        ),
    }
}
