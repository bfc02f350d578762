//! GPU memory that is written to an image in the making while the program runs, where there is no room for a copy of all of
//! it: so little is new when it stands still.
//!
//! ```text
//!  buffers  ═══════ wave ═══════ wave …   hashed where they lie
//!  slots      ═ wave ═ wave …             what the store does not have: copied within the GPU, hashed there
//!  image           └─ drained └─ drained
//! ```
//!
//! What the store has is known by its hash alone: a wave of it is long, and nothing is copied. The dispatch thread has each
//! wave hashed, or copied to a slot on the GPU, so a buffer that is freed or mapped anew meanwhile is seen to ([`crate::memory::Heap::note_copy`]). From there the worker's other threads take it. A chunk may be torn that the
//! program writes to while it is copied: its name is the hash of what lies in the slot, which is what is stored. Nothing else
//! is remembered of it but that name, so a guess that was wrong costs time, and no more.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use std::vec::IntoIter;

use rekindle_parallel::{BESIDE_A_PROGRAM, give_way};
use rekindle_protocol::fault;
use rekindle_protocol::worker::{Phase, TransferPath};
use rekindle_store::{ContentHash, PartKind, Staging};
use serde_json::Value;

use super::block::{Blocks, Gpu, Preparing};
use super::contents::{self, PartLocation};
use super::copy_out::{self, Span};
use super::drain::{Drain, Shadow};
use super::error::{Error, Result, device};
use super::hashed::{Hashes, INPUT};
use super::transfer_path::{self, ProbeResult};
use super::waves::{Hashed, Slot, Subject, Wave, hash, waves};
use super::{LOOK, pinned, save_memory};
use crate::client::{Client, Room, RoomRequest};
use crate::dispatch::{Activity, Dispatcher, Remote};

/// Between two looks at what has changed since it was written, at least this part of all is written.
const STEPS: u64 = 8;

/// What was done before the program stands still.
#[derive(Default)]
pub(crate) struct PreCopy {
    pub(super) way: TransferPath,
    pub(super) why: String,
    /// Knows the chunks that were written.
    pub(super) staging: Option<Staging>,
    pub(super) bytes: u64,
}

/// Where it is found once it is done.
type Outcome = Arc<Mutex<PreCopy>>;

impl PreCopy {
    /// The GPU has room for a copy of all, so that there is nothing to be written ahead.
    pub(crate) fn is_needless(&self) -> bool {
        self.why.is_empty()
    }

    fn none(why: String) -> PreCopy {
        PreCopy { why, ..PreCopy::default() }
    }

    /// What is known of the image in the making, if it is that one.
    pub(super) fn join(&self, staging: Staging) -> Staging {
        match &self.staging {
            Some(written) if written.path() == staging.path() => staging.joined(written),
            _ => staging,
        }
    }
}

/// Writing that goes on.
pub(crate) struct RunningPreCopy {
    pub(crate) drain: Arc<Drain>,
    outcome: Outcome,
}

impl RunningPreCopy {
    /// Once it has ended.
    pub(crate) fn outcome(&self) -> PreCopy {
        std::mem::take(&mut *self.outcome.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Begins to write GPU memory into the image in the making at `staging`; nothing where that is of no use.
pub(crate) fn begin(
    dispatcher: &mut Dispatcher,
    staging: &Path,
    remote: Remote,
) -> Result<std::result::Result<RunningPreCopy, PreCopy>> {
    let began = Instant::now();
    let client = &mut dispatcher.client;
    client.take_over_shadow();
    let places = expected(client);
    let lack = transfer_path::lack(client, &places).map_err(device("tell its free memory"))?;
    let Some(why) = lack else { return Ok(Err(PreCopy::default())) };
    client.copy_rooms_give_way();
    let gpus = save_memory::gpus(client);
    let is_used = |index: usize| places.iter().any(|location| location.device == index);
    if gpus
        .iter()
        .enumerate()
        .any(|(index, gpu)| is_used(index) && gpu.as_ref().is_none_or(|gpu| gpu.hasher.is_none()))
    {
        return Ok(Err(PreCopy::none(format!("{why}, and does not hash what it has"))));
    }
    if !matches!(dispatcher.activity, Activity::Running) || !dispatcher.client.data.is_settled() {
        return Ok(Err(PreCopy::none(format!(
            "{why}, and the program's memory is still being loaded, or shared"
        ))));
    }
    let client = &mut dispatcher.client;
    let staging = Staging::open(staging)?;
    let any = client.any_device().map_err(device("be used"))?;
    let mut rooms = Vec::new();
    let mut slots = Vec::new();
    for index in (0..client.contexts.len()).filter(|index| is_used(*index)) {
        match slots_on(client, index) {
            Some((room, both)) => {
                rooms.push(room);
                slots.push(both);
            }
            None => {
                for room in rooms {
                    let _ = Room::close(room, client);
                }
                return Ok(Err(PreCopy::none(format!("{why}, and none to copy it through"))));
            }
        }
    }
    let preparing = contents::prepare_beside(any, client.gpus.block_pool());
    let outcome = Outcome::default();
    let told = outcome.clone();
    let writer =
        Writer { remote, gpus, slots, staging, blocks: None, written: Vec::new(), bytes: 0, copied: 0 };
    let shadow = Shadow::begin(rooms, move |drain| {
        give_way(BESIDE_A_PROGRAM);
        let (ahead, phase) = writer.run(&places, preparing, why, began, &drain.stop)?;
        *told.lock().unwrap_or_else(PoisonError::into_inner) = ahead;
        Ok((Vec::new(), vec![phase]))
    });
    let shadow = client.shadow.insert(shadow.giving_way());
    Ok(Ok(RunningPreCopy { drain: shadow.drain(), outcome }))
}

/// What is to be made for there to be room for a copy of all. Rooms that are too small for that give their memory back.
pub(crate) fn rooms(client: &mut Client) -> Vec<RoomRequest> {
    let places = [expected(client), pinned::places(client)].concat();
    let needs = |index| {
        let (bytes, values) = transfer_path::needed(places.iter(), index);
        (index, if bytes == 0 { 0 } else { bytes + values })
    };
    let needs: Vec<(usize, u64)> = (0..client.contexts.len()).map(needs).collect();
    if needs.iter().any(|(index, bytes)| client.copy_room(*index) < *bytes) {
        client.copy_rooms_give_way();
    }
    needs.into_iter().filter_map(|(index, bytes)| client.copy_room_request(index, bytes)).collect()
}

/// What an image would have, if the program's allocator has free then what it had when it was asked.
fn expected(client: &Client) -> Vec<PartLocation> {
    client.unused_before.without(save_memory::places(client), INPUT)
}

/// None if there is no room for them.
fn slots_on(client: &mut Client, index: usize) -> Option<(Room, [Slot; 2])> {
    let bytes = transfer_path::slot(client, index).ok()??;
    let room = Room::new(client, index, 2 * Slot::room(bytes)).ok()?;
    let slot = |number| Slot { device: index, address: room.address + number * Slot::room(bytes), bytes };
    let slots = [slot(0), slot(1)];
    Some((room, slots))
}

/// A chunk that was written, and by which name.
type Written = (PartLocation, ContentHash);

struct Writer {
    remote: Remote,
    gpus: Vec<Option<Gpu>>,
    /// Two of each device.
    slots: Vec<[Slot; 2]>,
    staging: Staging,
    blocks: Option<Blocks>,
    /// In this round.
    written: Vec<Written>,
    bytes: u64,
    copied: u64,
}

impl Writer {
    fn run(
        mut self,
        places: &[PartLocation],
        preparing: Preparing,
        mut why: String,
        began: Instant,
        stop: &AtomicBool,
    ) -> Result<(PreCopy, Phase)> {
        let (mut way, mut rounds) = (TransferPath::Ahead, 0);
        let written = preparing.wait().map_err(device("pin host memory to copy through"));
        let written = written.and_then(|blocks| {
            self.blocks = Some(blocks);
            fault::point("gpu-ahead-begun").map_err(|fault| Error::Refused(fault.to_string()))?;
            self.rounds(places, &mut rounds, stop)
        });
        match written {
            Ok(true) => {}
            Ok(false) => {
                way = TransferPath::Still;
                why += ", and the program writes to nearly all of its memory";
            }
            Err(Error::Cancelled) => why += ", which the program needed meanwhile",
            Err(Error::Device { action, code }) => {
                log::warn!("less is written before the program stands still: cannot {action}: {code}");
                why += ", and not all could be copied before";
            }
            Err(error) => return Err(error),
        }
        let phase = Phase {
            name: "write ahead".to_string(),
            duration_us: began.elapsed().as_micros() as u64,
            bytes: self.bytes,
            from: copy_out::origin(self.bytes, self.copied),
            counts: [("rounds".to_string(), u64::from(rounds))].into(),
            ..Phase::default()
        };
        let Writer { staging, bytes, .. } = self;
        Ok((PreCopy { way, why, staging: Some(staging), bytes }, phase))
    }

    /// False if it was of no use.
    fn rounds(&mut self, places: &[PartLocation], rounds: &mut u32, stop: &AtomicBool) -> Result<bool> {
        let all: u64 = places.iter().map(|location| location.bytes).sum();
        while *rounds < transfer_path::ROUNDS {
            *rounds += 1;
            self.written.clear();
            for number in 0..self.slots.len() {
                if !self.round(places, number, stop)? {
                    return Ok(false);
                }
            }
            fault::point("gpu-ahead-round").map_err(|fault| Error::Refused(fault.to_string()))?;
            let looked = self.look(transfer_path::LOOKED_AT, stop)?;
            let indexes: Vec<usize> = self.slots.iter().map(|[slot, _]| slot.device).collect();
            let room = self.ask(stop, move |dispatcher| {
                let room =
                    |index: &usize| transfer_path::room(&mut dispatcher.client, *index).unwrap_or_default();
                indexes.iter().map(room).sum::<u64>()
            })?;
            if looked.is_hopeless() {
                return Ok(false);
            }
            if !looked.is_worth_more(all, room) {
                break;
            }
        }
        Ok(true)
    }

    /// Writes all of a device once that the store does not have. False if most of it has changed before that was done.
    fn round(&mut self, places: &[PartLocation], number: usize, stop: &AtomicBool) -> Result<bool> {
        let [slot, other] = self.slots[number];
        let mut turns = [slot, other].into_iter().cycle();
        let mut begin = |writer: &Writer, waves: &mut IntoIter<Wave>, subject| {
            Some(writer.hash(waves.next()?, turns.next()?, subject))
        };
        let mut all = waves(places, slot.device, slot.hashed()).into_iter();
        let (mut new, mut next) = (Vec::new(), begin(self, &mut all, Subject::Itself));
        while let Some(hashing) = next.take() {
            let hashed = self.wait(hashing, stop)??;
            next = begin(self, &mut all, Subject::Itself);
            self.bytes += hashed.bytes();
            new.extend(self.unknown(&hashed)?);
        }

        let bytes: u64 = new.iter().map(|location: &PartLocation| location.bytes).sum();
        let (mut done, mut next_look) = (0, bytes / STEPS);
        let mut all = waves(&new, slot.device, slot.bytes).into_iter();
        next = begin(self, &mut all, Subject::Copy);
        while let Some(copying) = next.take() {
            let copy = self.wait(copying, stop)??;
            let looks = done >= next_look;
            if !looks {
                next = begin(self, &mut all, Subject::Copy);
            }
            done += copy.bytes();
            self.write(&copy, stop)?;
            fault::point("gpu-ahead-wave").map_err(|fault| Error::Refused(fault.to_string()))?;
            if looks {
                next_look = done + bytes / STEPS;
                if self.look(transfer_path::GLANCED_AT, stop)?.is_hopeless() {
                    return Ok(false);
                }
                next = begin(self, &mut all, Subject::Copy);
            }
        }
        Ok(true)
    }

    /// Has the dispatch thread have a wave hashed.
    fn hash(&self, wave: Wave, slot: Slot, subject: Subject) -> Receiver<Result<Hashed>> {
        self.remote.start(move |dispatcher| hash(dispatcher, wave, slot, subject))
    }

    fn wait<T>(&self, answer: Receiver<T>, stop: &AtomicBool) -> Result<T> {
        loop {
            match answer.recv_timeout(LOOK) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => return Err(self.remote.problem().into()),
                Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => {
                    return Err(Error::Cancelled);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn ask<T: Send + 'static>(
        &self,
        stop: &AtomicBool,
        ask: impl FnOnce(&mut Dispatcher) -> T + Send + 'static,
    ) -> Result<T> {
        self.wait(self.remote.start(ask), stop)
    }

    fn hashes(&mut self, hashed: &Hashed) -> Result<Hashes> {
        let blocks = self.blocks.as_mut().ok_or(Error::Cancelled)?;
        Hashes::fetch(&self.gpus, blocks, &[hashed.hashing()])
    }

    /// What the store does not have of a wave.
    fn unknown(&mut self, hashed: &Hashed) -> Result<Vec<PartLocation>> {
        let hashes = self.hashes(hashed)?;
        let Writer { staging, written, .. } = self;
        hashed.unknown(&hashes, |chunk, hash| {
            let is_known = staging.has(chunk.bytes, hash)?;
            if is_known {
                written.push((chunk, hash));
            }
            Ok(is_known)
        })
    }

    /// Writes what lies in a slot.
    fn write(&mut self, copy: &Hashed, stop: &AtomicBool) -> Result<()> {
        if copy.bytes() == 0 {
            return Ok(());
        }
        let hashes = self.hashes(copy)?;
        let part = |location: &PartLocation| {
            self.staging.part(PartKind::GpuBuffer, "ahead", Value::Null, location.bytes)
        };
        let parts: Vec<_> = copy.subjects().map(part).collect::<std::result::Result<_, _>>()?;
        let spans = copy.subjects().zip(&parts).map(|(location, writer)| Span {
            location: *location,
            from: 0,
            writer,
        });
        let spans: Vec<_> = spans.collect();
        let blocks = self.blocks.take().map(Preparing::Ready);
        let known = |location: &PartLocation, piece| hashes.of(location, piece);
        let (copied, blocks) = copy_out::save(&self.gpus, blocks, &spans, Some(&known), stop)?;
        self.blocks = blocks;
        self.copied += copied;
        self.written.extend(copy.chunks(&hashes));
        Ok(())
    }

    /// How much has changed since of at most so many chunks of each device that were written in this round.
    fn look(&mut self, most: usize, stop: &AtomicBool) -> Result<ProbeResult> {
        let mut looked = ProbeResult::default();
        for number in 0..self.slots.len() {
            let slot = self.slots[number][0];
            let written: Vec<_> =
                self.written.iter().filter(|(location, _)| location.device == slot.device).copied().collect();
            let step = written.len().div_ceil(most).max(1);
            let some: Vec<Written> = written.into_iter().step_by(step).collect();
            for some in some.chunks((slot.hashed() / INPUT) as usize) {
                let wave = Wave(some.iter().map(|(location, _)| *location).collect());
                let hashed = self.wait(self.hash(wave, slot, Subject::Itself), stop)??;
                let hashes = self.hashes(&hashed)?;
                let now: HashMap<u64, ContentHash> =
                    hashed.chunks(&hashes).map(|(location, hash)| (location.address, hash)).collect();
                for (location, hash) in some {
                    looked.bytes += location.bytes;
                    looked.changed +=
                        if now.get(&location.address) == Some(hash) { 0 } else { location.bytes };
                }
            }
        }
        Ok(looked)
    }
}
