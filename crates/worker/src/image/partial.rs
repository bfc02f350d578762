//! GPU memory where there is no room for a copy of all of it: what the image has already, since it was written ahead or by an
//! earlier one, stays where it is. Of the rest as much as there is room for is copied within the GPU and drained beside the
//! program; what is left after that is drained from where it lies, before the program changes it ([`super::guard`]), or written
//! at once.
//!
//! ```text
//!  program      ──runs────────────────────┬ stands still ─────────────────┬──runs──────────────────▶
//!  GPU memory     written ahead, in waves ═ hashes ═ copy of what is new ═ what has no room
//!  image        ◀──────────────────────┘                                 └── drained ── the copy, too
//! ```
//!
//! What is there when the program stands still is all that decides: a chunk is in the image by the hash that it has then.

use std::collections::HashMap;
use std::ops::Range;

use rekindle_cuda::CUDA_ERROR_OUT_OF_MEMORY;
use rekindle_parallel::{BESIDE_A_PROGRAM, give_way};
use rekindle_protocol::fault;
use rekindle_store::ContentHash;

use super::block::{Blocks, Gpu, Preparing};
use super::contents::{PartLocation, threads};
use super::copy_out::Span;
use super::drain::{Draining, SaveContext, Shadow};
use super::error::{Error, Result, device};
use super::guard::Guard;
use super::hashed::{Hashes, Hashing, INPUT, values_of};
use super::runs::{self, Run, spans};
use super::shadow::{SaveTask, stream};
use super::{copy_out, transfer_path};
use crate::client::{Client, Room};
use crate::ondemand::Spans;

/// What is new.
pub(super) struct Partial {
    rooms: Vec<Room>,
    shadowed: Vec<Run>,
    guarded: Vec<Run>,
    rest: Vec<Run>,
    /// By device and address of what is to be copied.
    hashes: HashMap<(usize, u64), ContentHash>,
}

/// How it is written: from a copy on the GPU, from where it lies while the program runs, and while that stands still.
#[derive(Clone, Copy)]
pub(super) struct NewBytes {
    pub copied: u64,
    pub guarded: u64,
    pub still: u64,
}

impl NewBytes {
    pub(super) fn drained(self) -> u64 {
        self.copied + self.guarded
    }
}

/// A chunk that is new: the number of its part, its place there, and its hash.
type New = (usize, Range<u64>, Option<ContentHash>);

impl Partial {
    /// Enters what the image has already into its parts. None where devices do not hash, or have no room for hashes. They are
    /// idle.
    pub(super) fn find(
        client: &mut Client,
        gpus: &[Option<Gpu>],
        blocks: &mut Blocks,
        (work, runs): (&SaveTask, &[Run]),
    ) -> Result<Option<Partial>> {
        let mut partial = Partial {
            rooms: Vec::new(),
            shadowed: Vec::new(),
            guarded: Vec::new(),
            rest: Vec::new(),
            hashes: HashMap::new(),
        };
        let hashes = partial.hash(client, gpus, blocks, runs);
        let new = hashes.and_then(|hashes| hashes.map(|hashes| new_chunks(work, runs, &hashes)).transpose());
        match new {
            Ok(Some(new)) => {
                new.into_iter().for_each(|chunk| partial.add(work, chunk));
                Ok(Some(partial))
            }
            nothing => {
                partial.close(client);
                nothing.map(|_| None)
            }
        }
    }

    /// Hashes all of it where it lies.
    fn hash(
        &mut self,
        client: &mut Client,
        gpus: &[Option<Gpu>],
        blocks: &mut Blocks,
        runs: &[Run],
    ) -> Result<Option<Hashes>> {
        let mut all = Vec::new();
        for (index, gpu) in gpus.iter().enumerate() {
            let places = || runs.iter().map(|run| &run.location).filter(|location| location.device == index);
            let bytes: u64 = places().map(|location| values_of(location.bytes)).sum();
            if bytes == 0 {
                continue;
            }
            let Some((gpu, hasher)) = gpu.as_ref().and_then(|gpu| Some((gpu, gpu.hasher.as_ref()?))) else {
                return Ok(None);
            };
            let Some(room) = room(client, index, bytes)? else { return Ok(None) };
            let hashing = Hashing::of(index, places(), room.address);
            self.rooms.push(room);
            gpu.device.bind().map_err(device("hash its memory"))?;
            hashing.enqueue(hasher, stream(&gpu.streams)).map_err(device("hash its memory"))?;
            all.push(hashing);
        }
        Hashes::fetch(gpus, blocks, &all).map(Some)
    }

    /// Chunks of one part come in order.
    fn add(&mut self, work: &SaveTask, (number, chunk, hash): New) {
        let PartLocation { device, address, .. } = work[number].0;
        let (address, bytes) = (address + chunk.start, chunk.end - chunk.start);
        if let Some(hash) = hash {
            self.hashes.insert((device, address), hash);
        }
        match self.rest.last_mut() {
            Some(run) if run.number == number && run.from + run.location.bytes == chunk.start => {
                run.location.bytes += bytes;
            }
            _ => self.rest.push(Run {
                number,
                from: chunk.start,
                location: PartLocation { device, address, bytes },
            }),
        }
    }

    /// Copies of it what there is room for.
    pub(super) fn shadow(&mut self, client: &mut Client) -> Result<()> {
        let failed = || device("copy its memory");
        for index in 0..client.contexts.len() {
            let new: u64 = self.rest.iter().filter(|run| run.location.device == index).map(Run::taken).sum();
            if new == 0 {
                continue;
            }
            let left = transfer_path::room(client, index).map_err(device("tell its free memory"))?;
            let bytes = new.min(left / INPUT * INPUT);
            let Some(room) = (if bytes > 0 { room(client, index, bytes)? } else { None }) else { continue };
            let begin = room.address;
            self.rooms.push(room);
            client.bind(index).map_err(failed())?;
            let context = client.context(index).map_err(failed())?;
            let (gpu, stream) = (context.device.clone(), stream(&context.gpu.copies));
            let mut at = begin;
            for run in std::mem::take(&mut self.rest) {
                let fits = (begin + bytes - at).min(run.taken()).min(run.location.bytes);
                if run.location.device != index || fits == 0 {
                    self.rest.push(run);
                    continue;
                }
                let (here, beyond) = run.split(fits);
                gpu.copy(at, here.location.address, here.location.bytes, stream).map_err(failed())?;
                for chunk in (0..here.location.bytes).step_by(INPUT as usize) {
                    if let Some(hash) = self.hashes.remove(&(index, here.location.address + chunk)) {
                        self.hashes.insert((index, at + chunk), hash);
                    }
                }
                let taken = here.taken();
                self.shadowed.push(Run { location: PartLocation { address: at, ..here.location }, ..here });
                at += taken;
                self.rest.extend(beyond);
            }
            gpu.stream_synchronize(stream).map_err(failed())?;
        }
        Ok(())
    }

    /// What has no room is written from where it lies while the program runs, but for ends of buffers that devices do not hash.
    pub(super) fn guard(&mut self) {
        for run in std::mem::take(&mut self.rest) {
            let PartLocation { device, address, bytes } = run.location;
            let is_known = |at: &u64| self.hashes.contains_key(&(device, address + at));
            let known = (0..bytes).step_by(INPUT as usize).take_while(is_known).count() as u64;
            if known == 0 {
                self.rest.push(run);
                continue;
            }
            let (guarded, beyond) = run.split(bytes.min(known * INPUT));
            self.guarded.push(guarded);
            self.rest.extend(beyond);
        }
    }

    /// What is new.
    pub(super) fn bytes(&self) -> NewBytes {
        let (copied, guarded) = (runs::bytes(&self.shadowed), runs::bytes(&self.guarded));
        NewBytes { copied, guarded, still: runs::bytes(&self.rest) }
    }

    /// What is to be written at once.
    pub(super) fn rest<'w>(&self, work: &'w SaveTask) -> Vec<Span<'w>> {
        spans(&self.rest, work)
    }

    pub(super) fn hash_of(&self, location: &PartLocation, piece: Range<u64>) -> Option<ContentHash> {
        self.hashes.get(&(location.device, location.address + piece.start)).copied()
    }

    pub(super) fn close(self, client: &mut Client) {
        for room in self.rooms {
            if let Err(code) = room.close(client) {
                log::warn!("the memory of a checkpoint's copy stays in use: {code}");
            }
        }
    }

    /// What writes the copy to the image, and what is guarded before. `buffers`: the addresses by which the program comes to each
    /// part of the work.
    pub(super) fn drain(
        mut self,
        work: SaveTask,
        buffers: Spans,
        gpus: Vec<Option<Gpu>>,
        blocks: Option<Preparing>,
        save: SaveContext,
    ) -> Shadow {
        let of: Vec<(usize, u64)> = self.guarded.iter().map(|run| (run.number, run.location.bytes)).collect();
        let guard = (!of.is_empty()).then(|| Guard::new(buffers, &of));
        let guards = guard.clone();
        let shadow = Shadow::begin(std::mem::take(&mut self.rooms), move |drain| {
            let new = self.bytes().copied + self.bytes().guarded;
            let mut draining = Draining::begin(save)?.after(drain, |_| Ok(new))?;
            let known = |location: &PartLocation, piece| self.hash_of(location, piece);
            let mut blocks = blocks;
            if let Some(guard) = &guard {
                fault::point("guarded").map_err(|fault| Error::Refused(fault.to_string()))?;
                let spans = spans(&self.guarded, &work);
                let (copied, made) =
                    copy_out::save_guarded(&gpus, blocks, &spans, &known, guard, &drain.stop)?;
                blocks = made.map(Preparing::Ready);
                draining = draining.go_on("drain what has no copy", self.bytes().guarded, copied);
            }
            // Nobody waits for the rest.
            give_way(BESIDE_A_PROGRAM);
            let spans = spans(&self.shadowed, &work);
            let (copied, _) = copy_out::save(&gpus, blocks, &spans, Some(&known), &drain.stop)?;
            drop(spans);
            draining.finish(work, self.bytes().copied, copied)
        });
        shadow.guarding(guards)
    }
}

/// None if the device has none.
fn room(client: &mut Client, index: usize, bytes: u64) -> Result<Option<Room>> {
    match Room::new(client, index, bytes) {
        Ok(room) => Ok(Some(room)),
        Err(CUDA_ERROR_OUT_OF_MEMORY) => Ok(None),
        Err(code) => Err(device("make room for a copy of its memory")(code)),
    }
}

/// Enters chunks that the image has, or the store, or that are all zero; the others, in order. On several threads: there are
/// tens of thousands.
fn new_chunks(work: &SaveTask, runs: &[Run], hashes: &Hashes) -> Result<Vec<New>> {
    let chunks = |run: &Run| {
        let (number, from, end) = (run.number, run.from, run.from + run.location.bytes);
        let size = work[number].1.chunk_bytes();
        let range = move |start: u64| start..(start + size).min(end);
        (from..end).step_by(size as usize).map(move |start| (number, range(start)))
    };
    let all: Vec<(usize, Range<u64>)> = runs.iter().flat_map(chunks).collect();
    let look = |some: &[(usize, Range<u64>)]| {
        let mut new = Vec::new();
        for (number, chunk) in some {
            let (location, writer) = &work[*number];
            let hash = hashes.of(location, chunk.clone());
            let is_there = hash.map(|hash| writer.enter_known(chunk.start, hash)).transpose()?;
            if is_there != Some(true) {
                new.push((*number, chunk.clone(), hash));
            }
        }
        Ok(new)
    };
    std::thread::scope(|scope| {
        let share = all.len().div_ceil(threads()).max(1);
        let threads: Vec<_> = all.chunks(share).map(|some| scope.spawn(move || look(some))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Vec<New>>>| {
            let panicked = |_| Err(Error::Refused("a thread that looked at hashes panicked".to_string()));
            thread.join().unwrap_or_else(panicked)
        };
        let found: Vec<_> = threads.into_iter().map(join).collect();
        Ok(found.into_iter().collect::<Result<Vec<_>>>()?.concat())
    })
}
