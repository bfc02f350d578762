//! A copy of GPU memory on the GPU itself: the program goes on as soon as it is made, and the image is written from it
//! ([`Shadow`]).
//!
//! ```text
//!  program   ──runs──┬ stands still ┬──runs───────────────────────────────▶
//!  GPU memory        ═ shadow copy ═ hashes ═
//!  image                            └── the shadow is drained ──▶ parts
//! ```
//!
//! The copy goes at the speed of the GPU's memory, the drain at that of the link. PARALLELGPUOS calls this a concurrent
//! checkpoint with enough memory (section 4).

use std::collections::HashMap;
use std::ops::Range;
use std::time::Instant;

use rekindle_cuda::CUDA_ERROR_OUT_OF_MEMORY;
use rekindle_device::Stream;
use rekindle_store::{ContentHash, PartWriter};

use super::block::{Gpu, Preparing};
use super::contents::{self, Place};
use super::copy_out;
use super::drain::Shadow;
use super::error::{Result, device};
use crate::client::{Client, Room};
use crate::hashing::{Hasher, SUBTREE, VALUE};

/// This part of a GPU's memory is left to others meanwhile.
const LEFT: u64 = 16;
/// So much is hashed as one, or less at the end of a buffer.
const INPUT: u64 = contents::BLOCK as u64;
/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;

/// What is to be saved, and where it is to go.
pub(super) type Work = Vec<(Place, PartWriter)>;

/// Where the shadow lies.
pub(super) struct Copies {
    rooms: Vec<Room>,
    /// Of each device, what of its room is in use; behind that lie its hashes.
    filled: Vec<(usize, Range<u64>)>,
    work: Work,
}

impl Copies {
    /// Takes all of the work, and copies its buffers within their GPUs. None, and the work stays, if they have no room for
    /// that. The devices are idle.
    pub(super) fn make(client: &mut Client, work: &mut Work) -> Result<Option<Copies>> {
        let mut copies = Copies { rooms: Vec::new(), filled: Vec::new(), work: Vec::new() };
        for index in 0..client.contexts.len() {
            let on_it = work.iter().filter(|(place, _)| place.device == index);
            let bytes = on_it.map(|(place, _)| taken_by(place)).sum();
            if bytes == 0 {
                continue;
            }
            // Its hashes lie behind it.
            let needed = bytes + values_of(bytes);
            let (free, total) = client.memory_space(index).map_err(device("tell its free memory"))?;
            if free < needed + total / LEFT {
                copies.close(client);
                return Ok(None);
            }
            match Room::new(client, index, needed) {
                Ok(room) => {
                    copies.filled.push((index, room.address..room.address + bytes));
                    copies.rooms.push(room);
                }
                Err(code) => {
                    copies.close(client);
                    return match code {
                        CUDA_ERROR_OUT_OF_MEMORY => Ok(None),
                        code => Err(device("make room for a copy of its memory")(code)),
                    };
                }
            }
        }
        copies.work = std::mem::take(work);
        match copies.fill(client) {
            Ok(()) => Ok(Some(copies)),
            Err(code) => {
                copies.close(client);
                Err(device("copy its memory")(code))
            }
        }
    }

    /// Returns when all is copied. Behind that all of it is hashed at once: each chunk by itself would wait for the program's
    /// kernels later.
    fn fill(&mut self, client: &mut Client) -> rekindle_device::Result<()> {
        let mut copied = Vec::new();
        for (index, filled) in &self.filled {
            client.bind(*index)?;
            let context = client.context(*index)?;
            let (gpu, stream) = (&context.device, stream(&context.gpu.copies));
            let mut to = filled.start;
            for (place, _) in self.work.iter_mut().filter(|(place, _)| place.device == *index) {
                gpu.copy(to, place.address, place.bytes, stream)?;
                place.address = to;
                to += taken_by(place);
            }
            let event = gpu.event_create(DISABLE_TIMING)?;
            gpu.event_record(event, stream, 0)?;
            copied.push((*index, event));
            if let Some(hasher) = &context.gpu.hasher {
                let bytes = filled.end - filled.start;
                hasher.enqueue_all(filled.start, bytes, INPUT, filled.end, stream)?;
            }
        }
        copied.into_iter().try_for_each(|(index, event)| {
            let gpu = client.on(index)?;
            gpu.event_synchronize(event)?;
            gpu.event_destroy(event)
        })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.work.iter().map(|(place, _)| place.bytes).sum()
    }

    pub(super) fn close(self, client: &mut Client) {
        for room in self.rooms {
            if let Err(code) = room.close(client) {
                log::warn!("the memory of a checkpoint's copy stays in use: {code}");
            }
        }
    }

    /// What writes it to the image. `since` is when the save began.
    pub(super) fn drain(self, gpus: Vec<Option<Gpu>>, blocks: Option<Preparing>, since: Instant) -> Shadow {
        let Copies { rooms, filled, work } = self;
        Shadow::begin(rooms, since, move |stop| {
            let (hashes, blocks) = Hashes::fetch(&gpus, blocks, &filled)?;
            let (copied, blocks) =
                copy_out::save(&gpus, blocks, &work, Some(&|place, of| hashes.of(place, of)), stop)?;
            Ok((work, copied, blocks))
        })
    }
}

/// What a device has computed of its shadow.
struct Hashes {
    /// By device: where the shadow begins, and the values from there on.
    values: HashMap<usize, (u64, Vec<u8>)>,
}

impl Hashes {
    /// Waits until they are there.
    fn fetch(
        gpus: &[Option<Gpu>],
        blocks: Option<Preparing>,
        filled: &[(usize, Range<u64>)],
    ) -> Result<(Hashes, Option<Preparing>)> {
        let mut hashes = Hashes { values: HashMap::new() };
        let Some(blocks) = blocks else { return Ok((hashes, None)) };
        let mut blocks = blocks.wait().map_err(device("pin host memory to copy through"))?;
        for (index, filled) in filled {
            let Some(gpu) = gpus.get(*index).and_then(Option::as_ref).filter(|gpu| gpu.hasher.is_some())
            else {
                continue;
            };
            let bytes = values_of(filled.end - filled.start);
            let failed = device("hash its memory");
            let fetched = gpu.wait().and_then(|()| copy_out::fetch(gpu, &mut blocks, filled.end, bytes));
            hashes.values.insert(*index, (filled.start, fetched.map_err(failed)?));
        }
        Ok((hashes, Some(Preparing::Ready(blocks))))
    }

    /// Of a piece of what lies there; none if it was not hashed as an input.
    fn of(&self, place: &Place, piece: Range<u64>) -> Option<ContentHash> {
        let (begin, values) = self.values.get(&place.device)?;
        let bytes = piece.end - piece.start;
        let from = place.address + piece.start - begin;
        if !Hasher::takes(bytes) || bytes > INPUT || !from.is_multiple_of(INPUT) {
            return None;
        }
        let at = |place: u64| (place / SUBTREE) as usize * VALUE;
        values.get(at(from)..at(from + bytes)).map(Hasher::finish)
    }
}

fn stream(streams: &[Stream]) -> Stream {
    streams.first().copied().unwrap_or(Stream::LEGACY)
}

/// What a buffer takes in a shadow: each of its chunks begins where an input does.
fn taken_by(place: &Place) -> u64 {
    place.bytes.next_multiple_of(INPUT)
}

/// Bytes of values of so many bytes.
fn values_of(bytes: u64) -> u64 {
    bytes / SUBTREE * VALUE as u64
}
