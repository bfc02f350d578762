//! What is said with whoever puts, gets or drops an array.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rekindle_protocol::data::{Problem, ProblemKind};
use rekindle_protocol::exchange::{Answer, ExchangeMessage, ExchangeRequest, Gpu, Put};
use rekindle_protocol::frame::{self, FrameError};

use super::lend::Loan;
use super::moves::{Move, Return};
use super::room::{GpuRoom, RoomRequest};
use super::{Exchange, Found};

/// How long a worker may take to copy an array.
const PATIENCE: Duration = Duration::from_secs(60);

/// Does what is wished.
pub fn serve(
    stream: &UnixStream,
    exchange: &Arc<Exchange>,
    request: ExchangeRequest,
) -> Result<(), FrameError> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let talk = Connection { stream, exchange };
    match request {
        ExchangeRequest::Put(put) => {
            exchange.note_gpu(&put.gpu);
            talk.put(&put)
        }
        ExchangeRequest::Get { owner, gpu, id, bytes } => {
            exchange.note_gpu(&gpu);
            match exchange.get_anywhere(&owner, &id, bytes) {
                Ok(found) => talk.give(found, &gpu),
                Err(problem) => talk.refuse(problem),
            }
        }
        ExchangeRequest::Drop { owner, id, use_only } => {
            match exchange.drop_anywhere(&owner, &id, use_only) {
                Ok(()) => talk.say(&Answer::Done { freed: 0 }, &[]),
                Err(problem) => talk.refuse(problem),
            }
        }
        ExchangeRequest::MakeRoom { gpu, bytes } => talk.make_room(&gpu, bytes),
        ExchangeRequest::Lend { owner, id } => match exchange.lend(&owner, &id) {
            Ok(loan) => talk.lend(&loan),
            Err(problem) => talk.refuse(problem),
        },
        ExchangeRequest::Where { ids } => talk.say(&Answer::Lie { on: exchange.lie(&ids) }, &[]),
        ExchangeRequest::Count {} => {
            let moves = exchange.known().moves;
            talk.say(&Answer::Counts(exchange.counts(), moves), &[])
        }
    }
}

/// What came of an array that was to be moved.
#[derive(PartialEq, Eq)]
enum Moved {
    Done,
    /// It may go elsewhere.
    Again,
    Failed,
}

struct Connection<'a> {
    stream: &'a UnixStream,
    exchange: &'a Arc<Exchange>,
}

impl Connection<'_> {
    fn say(&self, answer: &Answer, memories: &[BorrowedFd<'_>]) -> Result<(), FrameError> {
        frame::send(self.stream, answer, memories)
    }

    fn refuse(&self, problem: Problem) -> Result<(), FrameError> {
        log::warn!("{}", problem.sentence);
        self.say(&Answer::Failed(problem), &[])
    }

    fn hear(&self) -> Result<(ExchangeMessage, Option<OwnedFd>), FrameError> {
        let (said, memories) = frame::receive(self.stream)?;
        Ok((said, memories.into_iter().next()))
    }

    fn put(&self, put: &Put) -> Result<(), FrameError> {
        let room = match self.reserve(&put.gpu.uuid, put.room)? {
            Ok(room) => room,
            Err(problem) => return self.refuse(problem),
        };
        self.say(&Answer::Room { over: self.exchange.over(&put.before) }, &[])?;
        match self.hear()? {
            (ExchangeMessage::Here { memory: name }, Some(memory)) => {
                let id = self.exchange.keep(put, (memory, name), room)?;
                self.say(&Answer::Kept { id: id.clone() }, &[]).inspect_err(|_| {
                    // Nobody knows its name.
                    let _ = self.exchange.drop_item(&put.owner, &id, false);
                })
            }
            // It could not be copied.
            _ => Ok(()),
        }
    }

    fn give(&self, found: Found, wanted: &Gpu) -> Result<(), FrameError> {
        let _holder = match found {
            Found::Gpu { gpu, memory, name, bytes, room, holder } => {
                if gpu.uuid != wanted.uuid {
                    self.exchange.known().moves.between_gpus += 1;
                }
                self.say(&Answer::OnGpu { gpu: gpu.uuid, bytes, room, memory: name }, &[memory.as_fd()])?;
                holder
            }
            Found::Host(back) => match self.bring_back(back, wanted)? {
                Some(holder) => holder,
                None => return Ok(()),
            },
        };
        // It is held for as long as it is mapped.
        self.stream.set_read_timeout(None)?;
        self.hear().map(drop)
    }

    /// Returns when it is sent.
    fn lend(&self, loan: &Loan) -> Result<(), FrameError> {
        self.say(&Answer::Lent { array: loan.array, gpu: loan.gpu() }, &loan.memories())?;
        self.stream.set_read_timeout(None)?;
        self.hear().map(drop)
    }

    /// Gives an array that lies on the host. Where the GPU has no room for it the taker has it for itself alone.
    fn bring_back(&self, back: Return, gpu: &Gpu) -> Result<Option<super::Holder>, FrameError> {
        let kept = self
            .reserve(&gpu.uuid, back.room)?
            .inspect_err(|problem| log::info!("{}", problem.sentence))
            .ok();
        let answer = Answer::OnHost { bytes: back.bytes, room: back.room, keep: kept.is_some() };
        self.say(&answer, &[back.memory.as_fd()])?;
        Ok(match (self.hear()?, kept) {
            ((ExchangeMessage::Here { .. }, Some(memory)), Some(room)) => Some(back.kept(gpu, memory, room)),
            _ => None,
        })
    }

    /// Room on a GPU, for which the worker moves out what has to be.
    fn reserve(&self, gpu: &str, room: u64) -> Result<Result<GpuRoom, Problem>, FrameError> {
        loop {
            match self.exchange.reserve(gpu, room) {
                Ok(RoomRequest::Room(room)) => return Ok(Ok(room)),
                Ok(RoomRequest::MoveOut(out)) => {
                    if self.move_out(gpu, out)? == Moved::Failed {
                        let sentence = "an array that was to make room on the GPU could not be copied to the host; look at \
                                        the log of the sandbox for what the GPU has met";
                        return Ok(Err(Problem::new(ProblemKind::Gpu, sentence)));
                    }
                }
                Err(problem) => return Ok(Err(problem)),
            }
        }
    }

    /// Has the worker copy an array out of this GPU.
    fn move_out(&self, gpu: &str, out: Move) -> Result<Moved, FrameError> {
        let (bytes, to) = (out.bytes, out.gpu());
        self.say(&Answer::MoveOut { bytes, room: out.room, to: to.clone() }, &out.memories())?;
        let (message, memory) = self.hear()?;
        let is_copied =
            matches!(message, ExchangeMessage::Moved { done: true } | ExchangeMessage::Here { .. });
        if is_copied && out.done(memory) {
            log::info!("moved {bytes} bytes of an array to {}", to.as_deref().unwrap_or("the host"));
            return Ok(Moved::Done);
        }
        let Some(to) = to else { return Ok(Moved::Failed) };
        log::warn!("{bytes} bytes of an array could not be moved to the GPU {to}; another place is tried");
        self.exchange.avoid(gpu, to);
        Ok(Moved::Again)
    }

    fn make_room(&self, gpu: &str, bytes: u64) -> Result<(), FrameError> {
        let mut freed = 0;
        while freed < bytes
            && let Some(out) = self.exchange.unused(gpu)
        {
            let room = out.room;
            match self.move_out(gpu, out)? {
                Moved::Done => freed += room,
                Moved::Again => {}
                Moved::Failed => break,
            }
        }
        self.say(&Answer::Done { freed }, &[])
    }
}
