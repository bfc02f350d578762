//! Arrays that functions hand on: the giver's worker copies one into memory of its own, of which the memory daemon keeps a
//! descriptor; a taker's worker maps that, and the array is there.
//!
//! ```text
//!   giver       ExchangePut ─▶ copied on the GPU ── descriptor ──▶ memory daemon
//!   taker       ExchangeGet ◀─ mapped, read-only ◀─ descriptor ─────────┘
//! ```
//!
//! Both keep what they have mapped for a moment ([`kept`]): the next array of that size goes there.
//!
//! A thread talks with the memory daemon ([`conversation`]); the dispatch thread copies and maps ([`copies`]). The taker's call
//! waits, so that its program does not stand still meanwhile. What it has mapped is a buffer that cannot be written to; when the
//! program stands still it becomes one of the program's own.

mod conversation;
mod copies;
mod kept;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OPERATING_SYSTEM, CuResult};
use rekindle_device::uuid_text;
use rekindle_protocol::data::{Problem, ProblemKind};
use rekindle_protocol::exchange::Gpu;
use rekindle_protocol::operation::{
    Answer, DataOutcome, ExchangeDrop, ExchangeGet, ExchangePut, Origin, encode_reply,
};
use serde::Serialize;

use crate::client::Client;
use conversation::ExchangeClient;
use kept::{Blocks, KEPT};

/// An array of others that is mapped.
pub(super) struct ImportedArray {
    /// It is kept for as long as this is open.
    _connection: UnixStream,
    /// The name of its memory, and its room, if that may have another array later.
    memory: Option<(String, u64)>,
}

/// What one program has of others.
#[derive(Default)]
pub(crate) struct Exchange {
    /// Whose arrays the program puts and gets; none if it is in no sandbox.
    pub owner: Option<String>,
    /// What workers of its GPU are started with.
    choice: String,
    /// By where they are mapped.
    imported: HashMap<u64, ImportedArray>,
    /// Memory that the program's arrays were put in, and that others' were mapped in.
    given: Blocks,
    taken: Blocks,
    /// When others' arrays gave way to memory of the program's.
    gave_way: Option<Instant>,
    /// How many calls have a thread that talks for them.
    talks: usize,
}

/// A copy of an array, in memory that is mapped here.
pub(super) struct Copied {
    at: u64,
    room: u64,
    memory: OwnedFd,
    /// The memory's, if it has had another array.
    name: Option<String>,
}

impl Exchange {
    pub(crate) fn belong(&mut self, owner: String, choice: String) {
        (self.owner, self.choice) = (Some(owner), choice);
    }

    pub(crate) fn has(&self, address: u64) -> bool {
        self.imported.contains_key(&address)
    }

    /// Arrays of others are mapped, or are being talked about. Memory that is kept for the next one is nothing that a program
    /// would miss.
    pub(crate) fn is_busy(&self) -> bool {
        !self.imported.is_empty() || self.talks > 0
    }

    fn keeps(&self) -> bool {
        !self.given.is_empty() || !self.taken.is_empty()
    }

    /// When it is to be looked at what is kept, if that is sooner.
    pub(crate) fn look_again(&self, nap: Duration) -> Duration {
        if self.keeps() { nap.min(KEPT) } else { nap }
    }

    fn hold(&mut self, address: u64, connection: UnixStream, memory: Option<(String, u64)>) {
        self.imported.insert(address, ImportedArray { _connection: connection, memory });
    }

    /// It is mapped no more.
    pub(crate) fn forget(&mut self, address: u64) {
        self.imported.remove(&address);
    }

    /// The program is no more, or all of its memory was given back.
    pub(crate) fn forget_all(&mut self) {
        self.imported.clear();
    }
}

impl Client {
    /// Keeps a copy of a range for others. All work on it has ended.
    pub(crate) fn put_array(&mut self, origin: Origin, request: ExchangePut) -> Answer<DataOutcome<String>> {
        let ExchangePut { device, address, bytes, expiry_ms, uses } = request;
        if bytes == 0 || !self.has_range(address, bytes) {
            return Answer::Now(Err(CUDA_ERROR_INVALID_VALUE));
        }
        let device = usize::from(device);
        let room = match self.bind(device).and_then(|()| self.heap(device)) {
            Ok(heap) => bytes.next_multiple_of(heap.granularity()),
            Err(code) => return Answer::Now(Err(code)),
        };
        let before = self.exchange.given.arrays(device, room);
        let range = (address, bytes);
        self.converse(origin, device, move |talk| talk.put(range, (room, before), expiry_ms, uses))
    }

    /// Maps what somebody has put.
    pub(crate) fn get_array(&mut self, origin: Origin, request: ExchangeGet<'_>) -> Answer<DataOutcome<u64>> {
        let ExchangeGet { device, id, bytes } = request;
        let id = id.to_string();
        self.converse(origin, device.into(), move |talk| talk.get(&id, bytes))
    }

    /// What somebody has put is needed no more.
    pub(crate) fn drop_array(
        &mut self,
        origin: Origin,
        request: ExchangeDrop<'_>,
    ) -> Answer<DataOutcome<()>> {
        let ExchangeDrop { device, id, use_only } = request;
        let id = id.to_string();
        self.converse(origin, device.into(), move |talk| talk.drop_array(&id, use_only))
    }

    /// Answers when a thread has talked with the memory daemon.
    fn converse<T: Serialize + Send + 'static>(
        &mut self,
        origin: Origin,
        device: usize,
        about: impl FnOnce(&ExchangeClient) -> Result<T, Problem> + Send + 'static,
    ) -> Answer<DataOutcome<T>> {
        let talk = match self.talk(device) {
            Ok(Ok(talk)) => talk,
            Ok(Err(problem)) => return Answer::Now(Ok(Err(told(problem)))),
            Err(code) => return Answer::Now(Err(code)),
        };
        let run = move || {
            let reply = encode_reply(&Ok(about(&talk).map_err(told)));
            talk.remote.run(move |dispatcher| {
                dispatcher.client.exchange.talks -= 1;
                dispatcher.client.reply(origin.ring, &reply);
            });
        };
        match std::thread::Builder::new().name("exchange".into()).spawn(run) {
            Ok(_) => {
                self.exchange.talks += 1;
                Answer::Later
            }
            Err(error) => {
                log::error!("cannot start a thread: {error}");
                Answer::Now(Err(CUDA_ERROR_OPERATING_SYSTEM))
            }
        }
    }

    fn talk(&self, device: usize) -> Result<Result<ExchangeClient, Problem>, CuResult> {
        let uuid = uuid_text(&self.context(device)?.device.info().uuid);
        let reaches = self.gpus.reaches(device).iter().map(uuid_text).collect();
        let gpu = Gpu { uuid, choice: self.exchange.choice.clone(), reaches };
        let remote = self.data.remote().ok_or(CUDA_ERROR_OPERATING_SYSTEM)?;
        let Some(owner) = self.exchange.owner.clone() else {
            let sentence = "this program is in no sandbox of Rekindle's, and has nobody to hand arrays on to; run it by \
                            `rekindle run` or as a function";
            return Ok(Err(Problem::new(ProblemKind::Unavailable, sentence)));
        };
        Ok(Ok(ExchangeClient { remote, owner, gpu, device }))
    }

    /// Whether all of a range is memory of the program's.
    fn has_range(&self, address: u64, bytes: u64) -> bool {
        let Some(end) = address.checked_add(bytes) else { return false };
        let mut at = address;
        while at < end {
            match self.range_of(at) {
                Ok((base, bytes, _)) => at = base + bytes,
                Err(_) => return false,
            }
        }
        true
    }
}

fn told(problem: Problem) -> (u32, String) {
    log::warn!("{}", problem.sentence);
    (problem.kind as u32, problem.sentence)
}
