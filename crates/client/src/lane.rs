//! A thread's way to the worker: its ring, and the two ways to ask.

use std::collections::VecDeque;

use rekindle_cuda::{CUDA_ERROR_DEVICE_UNAVAILABLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_UNKNOWN, CuResult};
use rekindle_protocol::client::Uncollected;
use rekindle_protocol::operation::{Asynchronous, ReplyHead, Synchronous, decode_reply};
use rekindle_ring::{MAX_PAYLOAD, Producer, REPLY_BYTES, Ring, Staging, Wait};

use crate::abi::Result;
use crate::session::{self, Session};
use crate::stream::StreamTarget;
use crate::{quiesce, thread};

pub struct Lane {
    ring: Ring,
    producer: Producer<'static>,
    staging: Staging,
    index: u32,
    /// Downloads whose bytes were not taken out yet, in their order.
    under_way: VecDeque<Transfer>,
    body: Vec<u8>,
    /// A stream that had nothing to do when the requests up to this one of the program were done.
    idle: Option<(StreamTarget, Ticket)>,
}

/// Bytes of requests of which a thread waits to be heard while its stream has much to do: 64 of the shortest.
const MUCH: u64 = 2 << 10;

/// A request's place in the order of all.
pub type Ticket = u64;

impl Lane {
    pub fn create() -> Result<Lane> {
        let (index, ring) = session::get()?.make_ring()?;
        // SAFETY: the ring is new, and this lane is the only one that makes a producer and an allocator of it.
        let (producer, staging) = unsafe { (ring.producer(), ring.staging()) };
        Ok(Lane {
            ring,
            producer,
            staging,
            index,
            under_way: VecDeque::new(),
            body: Vec::with_capacity(256),
            idle: None,
        })
    }

    /// Takes the positions of a ring file that was made anew under the same mapping.
    pub fn reload(&mut self) {
        // SAFETY: the old producer and allocator are replaced, not used beside the new ones.
        (self.producer, self.staging) = unsafe { (self.ring.producer(), self.ring.staging()) };
        // Requests may be counted anew.
        self.idle = None;
    }

    pub fn uncollected(&self) -> Vec<Uncollected> {
        let piece = |Transfer { offset, bytes, end }: &Transfer| Uncollected {
            ring: self.index,
            offset: *offset,
            bytes: *bytes,
            end: *end,
        };
        self.under_way.iter().map(piece).collect()
    }

    /// Appends the request; none if the thread is to give way before there is room for it.
    fn push(
        &mut self,
        session: &Session,
        opcode: u32,
        operation: &impl serde::Serialize,
        trailer: &[u8],
        give_way: &dyn Fn() -> bool,
    ) -> Result<Option<Ticket>> {
        if !session.alive() {
            return Err(CUDA_ERROR_DEVICE_UNAVAILABLE);
        }
        let mut body = std::mem::take(&mut self.body);
        body.clear();
        self.body = postcard::to_extend(operation, body).map_err(|_| CUDA_ERROR_UNKNOWN)?;
        if self.body.len() + trailer.len() > MAX_PAYLOAD {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let board = session.board;
        let Lane { ring, producer, body, .. } = self;
        let mut target = 0;
        let mut ticket = || {
            target = board.ticket();
            target
        };
        if !producer.try_push(opcode, body, trailer, &mut ticket) {
            let mut is_pushed = false;
            let waited = ring.header().space().wait(
                session.spin,
                || session.alive(),
                || {
                    is_pushed = producer.try_push(opcode, body, trailer, &mut ticket);
                    is_pushed || give_way()
                },
            );
            if waited == Wait::Dead {
                return Err(CUDA_ERROR_DEVICE_UNAVAILABLE);
            }
            if !is_pushed {
                return Ok(None);
            }
        }
        board.ring();
        Ok(Some(target))
    }

    fn ask<S: Synchronous>(&mut self, session: &Session, operation: &S, trailer: &[u8]) -> Result<S::Reply> {
        let reply = &self.ring.header().reply;
        let before = reply.count();
        self.push(session, S::OPCODE, operation, trailer, &|| false)?;
        if reply.wait(session.spin, || session.alive(), || reply.count() != before) == Wait::Dead {
            return Err(CUDA_ERROR_DEVICE_UNAVAILABLE);
        }
        // SAFETY: the area is REPLY_BYTES long, and the worker leaves it alone between its answer and the next request.
        let area = unsafe { std::slice::from_raw_parts(self.ring.reply_area(), REPLY_BYTES) };
        let (head, rest) = area.split_first_chunk().ok_or(CUDA_ERROR_UNKNOWN)?;
        let head = ReplyHead::decode(*head);
        CuResult(head.status).ok()?;
        decode_reply(rest.get(..head.bytes as usize).ok_or(CUDA_ERROR_UNKNOWN)?)
    }
}

/// Runs `use_lane` with the calling thread's lane. Only inside the barrier.
fn with<T>(use_lane: impl FnOnce(&Session, &mut Lane) -> Result<T>) -> Result<T> {
    let session = session::get()?;
    use_lane(session, thread::current().slot().lane()?)
}

/// Asks for something that is not answered.
pub fn post<A: Asynchronous>(operation: &A, trailer: &[u8]) -> Result<()> {
    with(|session, lane| lane.push(session, A::OPCODE, operation, trailer, &|| false))?;
    Ok(())
}

/// As [`post`]: the request's place in the order of all.
pub fn post_in_order<A: Asynchronous>(operation: &A) -> Result<Ticket> {
    let pushed = with(|session, lane| lane.push(session, A::OPCODE, operation, &[], &|| false))?;
    pushed.ok_or(CUDA_ERROR_UNKNOWN)
}

/// What the calling thread asked of a stream last is done, and it was this.
pub fn note_idle(target: StreamTarget, last: Ticket) -> Result<()> {
    with(|_, lane| {
        lane.idle = Some((target, last));
        Ok(())
    })
}

/// Whether a stream has nothing to do: what the calling thread asked of it last is done, and no thread has asked for
/// anything since, of this stream or another one.
pub fn is_idle(target: StreamTarget) -> Result<bool> {
    with(|session, lane| {
        let is_last =
            |(idle, last): (StreamTarget, Ticket)| idle == target && session.board.tickets() == last + 1;
        Ok(lane.idle.is_some_and(is_last) && session.alive())
    })
}

/// Asks for work that the calling thread has said all of, and holds nothing for: while the worker is too far behind to
/// hear of it, a checkpoint does not wait for the thread.
pub fn post_work<A: Asynchronous>(operation: &A, trailer: &[u8]) -> Result<()> {
    give_way_until(|session, lane, give_way| {
        lane.push(session, A::OPCODE, operation, trailer, give_way).map(|pushed| pushed.map(drop))
    })
}

/// Waits until the worker has heard of all that the calling thread has asked for, if that is much.
pub fn be_heard() -> Result<()> {
    give_way_until(|session, lane, give_way| {
        if lane.producer.unread() <= MUCH {
            return Ok(Some(()));
        }
        let header = lane.ring.header();
        let heard = || header.is_drained();
        match header.space().wait(session.spin, || session.alive(), || heard() || give_way()) {
            Wait::Dead => Err(CUDA_ERROR_DEVICE_UNAVAILABLE),
            Wait::Ready => Ok(heard().then_some(())),
        }
    })
}

/// Asks, and waits for the answer.
pub fn ask<S: Synchronous>(operation: &S) -> Result<S::Reply> {
    with(|session, lane| lane.ask(session, operation, &[]))
}

/// As [`ask`], with bulk bytes.
pub fn ask_with<S: Synchronous>(operation: &S, trailer: &[u8]) -> Result<S::Reply> {
    with(|session, lane| lane.ask(session, operation, trailer))
}

/// Waits for the GPU. A checkpoint does not wait for that too: the thread gives way to it with `patiently`, which is asked
/// again when the program goes on, or by another worker when it has been restored. One whose call was made from within
/// another call cannot, and asks `plainly`.
pub fn wait_for(
    patiently: &impl Synchronous<Reply = bool>,
    plainly: &impl Synchronous<Reply = ()>,
) -> Result<()> {
    if !quiesce::may_step_outside() {
        return ask(plainly);
    }
    while !ask(patiently)? {
        quiesce::step_outside();
    }
    Ok(())
}

/// A piece of the staging area that is on its way.
pub use rekindle_ring::Transfer;

/// Takes a piece of the staging area for an upload, and lets `fill` write it.
pub fn stage(bytes: u64, fill: impl FnOnce(&mut [u8])) -> Result<Transfer> {
    let piece = allocate(bytes)?;
    with(|_, lane| {
        // SAFETY: the piece was just allocated, and the worker has not heard of it yet.
        fill(unsafe { lane.staging.bytes(piece) });
        Ok(piece)
    })
}

/// Takes a piece of the staging area for a download, which is [collected](collect) before any later one.
pub fn expect(bytes: u64) -> Result<Transfer> {
    let piece = allocate(bytes)?;
    with(|_, lane| {
        lane.under_way.push_back(piece);
        Ok(piece)
    })
}

/// Waits until the worker has completed the piece, then lets `drain` read it. Pieces before it that were not collected
/// are given up.
pub fn collect(piece: Transfer, drain: impl FnOnce(&[u8])) -> Result<()> {
    give_way_until(|session, lane, give_way| {
        let complete = lane.staging.wait(piece.end, session.spin, || session.alive(), give_way);
        complete.map(|complete| complete.then_some(())).map_err(|_| CUDA_ERROR_DEVICE_UNAVAILABLE)
    })?;
    with(|_, lane| {
        // SAFETY: the worker has said that it is done with the piece, and no later one overlaps it yet.
        drain(unsafe { lane.staging.bytes(piece) });
        lane.under_way.retain(|later| later.end > piece.end);
        Ok(())
    })
}

fn allocate(bytes: u64) -> Result<Transfer> {
    give_way_until(|session, lane, give_way| {
        let holds = !lane.under_way.is_empty();
        let piece = lane.staging.allocate(bytes, holds, session.spin, || session.alive(), give_way);
        piece.map_err(|_| CUDA_ERROR_DEVICE_UNAVAILABLE)
    })
}

/// Asks until there is an answer. A checkpoint does not wait for the GPU here: the thread steps outside for it, and what is
/// on its way comes into the image. One whose call was made from within another call cannot, and waits.
fn give_way_until<T>(
    mut ask: impl FnMut(&Session, &mut Lane, &dyn Fn() -> bool) -> Result<Option<T>>,
) -> Result<T> {
    let may = quiesce::may_step_outside();
    let give_way = || may && quiesce::is_closed();
    loop {
        let answer =
            with(|session, lane| ask(session, lane, &give_way).map_err(|_| CUDA_ERROR_DEVICE_UNAVAILABLE))?;
        match answer {
            Some(answer) => return Ok(answer),
            None => quiesce::step_outside(),
        }
    }
}
