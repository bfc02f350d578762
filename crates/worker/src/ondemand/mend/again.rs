//! One request of the journal, done once more in the place of another worker.

use std::collections::HashMap;
use std::time::Duration;

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_READY, CuResult};
use rekindle_device::{Event, Result, Stream};
use rekindle_protocol::operation::{
    Asynchronous, Copy, Download, Origin, ReplyHead, Upload, dispatch, encode_reply,
};

use super::tells;
use crate::client::{Client, Thread, staged_by};
use crate::ondemand::journal::{Entry, Mark, marked};

/// How often it is looked whether the GPU has come so far.
pub(super) const LOOK: Duration = Duration::from_micros(50);

/// What the program was told that it had waited for: what it asked for then comes after that.
#[derive(Default)]
pub(super) struct Awaited<'j> {
    /// Each with the request before which it was told.
    open: Vec<(u64, What<'j>)>,
    /// Behind the last copies of streams of which the program was told with something else.
    last: HashMap<(usize, Stream), Event>,
}

enum What<'j> {
    /// The request of this ring that waits.
    Request(usize),
    /// A question, which is answered with yes.
    Question(Entry<'j>),
    Copy {
        device: usize,
        event: Event,
    },
}

impl<'j> Awaited<'j> {
    /// A request that waits. One that was answered is not answered again.
    pub(super) fn begin(&mut self, client: &mut Client, entry: Entry<'j>, mark: Mark) -> Result<()> {
        let Some((count, told)) = marked(entry.trailer) else { return Err(CUDA_ERROR_INVALID_VALUE) };
        let is_answered = is_answered(client, entry.ring, count);
        let ask = |client: &mut Client| ask(client, &entry);
        match (is_answered, told) {
            (false, _) => match ask(client)? {
                None => client.told.expect_answer(entry.ring, mark),
                Some(reply) => {
                    mark.told();
                    client.reply(entry.ring, &reply);
                }
            },
            // It was sent away so that the program would come to a stand, and asks again.
            (true, None) => {}
            (true, Some(before)) => match ask(client)? {
                None => {
                    client.waiting.is_answered(entry.ring);
                    self.open.push((before, What::Request(entry.ring)));
                }
                Some(reply) if is_yes(&entry, &reply)? => {}
                Some(_) => self.open.push((before, What::Question(entry))),
            },
        }
        Ok(())
    }

    /// The program was told that the copy which a stream was just given has ended, before this request, or with an answer.
    pub(super) fn copy(
        &mut self,
        client: &mut Client,
        (device, stream): (usize, Stream),
        before: Option<u64>,
    ) -> Result<()> {
        let event = client.record(device, stream)?;
        match before {
            Some(before) => self.open.push((before, What::Copy { device, event })),
            None => {
                let earlier = self.last.insert((device, stream), event);
                earlier.into_iter().for_each(|event| client.give_event(device, event));
            }
        }
        Ok(())
    }

    /// Waits for all that the program was told.
    pub(super) fn end(&mut self, client: &mut Client) -> Result<()> {
        let last = self.last.drain().map(|((device, _), event)| (u64::MAX, What::Copy { device, event }));
        self.open.extend(last);
        self.catch_up(client, u64::MAX)
    }

    /// Waits for all that the program was told before it asked for this.
    pub(super) fn catch_up(&mut self, client: &mut Client, request: u64) -> Result<()> {
        for (_, what) in self.open.extract_if(.., |(before, _)| *before <= request) {
            while !has_come(client, &what)? {
                std::thread::sleep(LOOK);
            }
        }
        Ok(())
    }
}

fn has_come(client: &mut Client, what: &What<'_>) -> Result<bool> {
    match what {
        What::Request(ring) => Ok(client.has_come(*ring)),
        What::Question(entry) => ask(client, entry)?.map_or(Ok(true), |reply| is_yes(entry, &reply)),
        What::Copy { device, event } => {
            let has_come = client.on(*device)?.event_query(*event)?;
            if has_come {
                client.give_event(*device, *event);
            }
            Ok(has_come)
        }
    }
}

/// Whether a request of this ring, which had had so many answers before, has its own.
fn is_answered(client: &Client, ring: usize, count: u64) -> bool {
    let has_more = |thread: &Thread| u64::from(thread.ring.header().reply.count()) != count;
    client.threads.get(ring).is_none_or(has_more)
}

/// A fault has come before this request could be done once more: who waits for its answer, or for its piece of a staging area, gets
/// that.
pub(super) fn fail(client: &mut Client, entry: &Entry<'_>, code: CuResult) {
    if !entry.flags.waits() {
        free_staging(client, entry);
    } else if let Some((count, _)) = marked(entry.trailer)
        && !is_answered(client, entry.ring, count)
    {
        client.reply(entry.ring, &encode_reply::<()>(&Err(code)));
    }
}

/// Whether a question is answered with yes. What could not be asked is an error.
fn is_yes(entry: &Entry<'_>, reply: &[u8]) -> Result<bool> {
    match status(reply) {
        CUDA_ERROR_NOT_READY => Ok(false),
        status => status.ok().map(|()| tells(entry.opcode, Some(reply))),
    }
}

fn status(reply: &[u8]) -> CuResult {
    let head = reply.get(..ReplyHead::BYTES).and_then(|head| head.try_into().ok());
    head.map_or(CuResult(0), |head| CuResult(ReplyHead::decode(head).status))
}

/// What a request that waits is answered with at once, if it is. A fault is an error.
fn ask(client: &mut Client, entry: &Entry<'_>) -> Result<Option<Vec<u8>>> {
    let mut failure = Ok(());
    let failed = |_: &mut Client, _, code| failure = Err(code);
    let answer = dispatch(client, Origin { ring: entry.ring }, entry.opcode, entry.body, &[], failed);
    let answer = answer.map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    failure?;
    match answer.as_deref().map(status) {
        Some(status) if status.is_sticky() => Err(status),
        _ => Ok(answer),
    }
}

/// Copies from the journal what came from the host.
pub(super) fn from_journal(client: &mut Client, entry: &Entry<'_>, memory: u64) -> Result<()> {
    let (device, stream, to) = match entry.opcode {
        Upload::OPCODE => {
            postcard::from_bytes::<Upload>(entry.body).map(|one| (one.device, one.stream, one.to))
        }
        _ => postcard::from_bytes::<Copy>(entry.body).map(|one| (one.device, one.stream, one.to)),
    }
    .map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    let (index, stream) = client.enter(Origin { ring: entry.ring }, device, stream)?;
    let bytes = entry.staged.len() as u64;
    client.context(index)?.device.copy(to, memory + entry.staged_at as u64, bytes, stream)?;
    client.operations += 1;
    free_staging(client, entry);
    Ok(())
}

/// A transfer through the staging area is not waited for any more.
pub(super) fn free_staging(client: &mut Client, entry: &Entry<'_>) {
    if let Some((device, end)) = staged_by(entry.opcode, entry.body)
        && client.threads.get(entry.ring).is_some_and(|thread| !thread.ring.is_staged_to(end))
    {
        client.needs_no_transfer(entry.ring, device, end);
    }
}

/// Copies what the program was given to where it is compared: by which stream of which device.
pub(super) fn to_scratch(
    client: &mut Client,
    entry: &Entry<'_>,
    at: u64,
    bytes: u64,
) -> Result<(usize, Stream)> {
    let (device, stream, from) = match entry.opcode {
        Download::OPCODE => {
            postcard::from_bytes::<Download>(entry.body).map(|one| (one.device, one.stream, one.from))
        }
        _ => postcard::from_bytes::<Copy>(entry.body).map(|one| (one.device, one.stream, one.from)),
    }
    .map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    let (index, stream) = client.enter(Origin { ring: entry.ring }, device, stream)?;
    client.context(index)?.device.copy(at, from, bytes, stream)?;
    client.operations += 1;
    Ok((index, stream))
}
