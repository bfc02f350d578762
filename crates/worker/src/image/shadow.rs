//! A copy of GPU memory on the GPU itself: the program goes on as soon as it is made, and the image is written from it
//! ([`Shadow`]).
//!
//! ```text
//!  program   ──runs──┬ stands still ┬──runs───────────────────────────────▶
//!  GPU memory        ═ shadow copy ═ hashes ═
//!  image                            └── the shadow is drained ──▶ parts
//! ```
//!
//! Where the GPU still works for the program, the copy is enqueued behind that, and what the program asks for from then on behind
//! the copy.
//!
//! The copy goes at the speed of the GPU's memory, the drain at that of the link. PARALLELGPUOS calls this a concurrent
//! checkpoint with enough memory (section 4).

use std::ops::Range;
use std::sync::Arc;

use rekindle_cuda::CUDA_ERROR_OUT_OF_MEMORY;
use rekindle_device::{Event, Stream};
use rekindle_parallel::{BESIDE_A_PROGRAM, give_way};
use rekindle_store::PartWriter;

use super::block::{Gpu, Preparing};
use super::contents::PartLocation;
use super::drain::{Draining, SaveContext, Shadow};
use super::enqueued_copies::EnqueuedCopies;
use super::error::{Result, device};
use super::hashed::{Hashes, Hashing, taken_by};
use super::runs::{self, Run};
use super::{copy_out, transfer_path};
use crate::client::{Client, Room};

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;

/// What is to be saved, and where it is to go.
pub(super) type SaveTask = Vec<(PartLocation, PartWriter)>;

/// Where the shadow lies.
#[derive(Default)]
pub(super) struct Copies {
    rooms: Vec<Room>,
    /// Of each device, what of its room is in use; behind that lie its hashes.
    filled: Vec<(usize, Range<u64>)>,
    /// Reached when all of a device is copied.
    under_way: Vec<(usize, Event)>,
    /// What is copied, by where the copy lies.
    runs: Vec<Run>,
    /// The program goes on before all is copied.
    behind: bool,
}

impl Copies {
    /// Begins to copy what is to be saved within its GPUs. None if they have no room for that. The devices are idle, or it is to come `behind` what they have to do.
    pub(super) fn begin(client: &mut Client, runs: &[Run], behind: bool) -> Result<Option<Copies>> {
        let mut copies = Copies { behind, ..Copies::default() };
        let places: Vec<PartLocation> = runs.iter().map(|run| run.location).collect();
        if transfer_path::lack(client, &places).map_err(device("tell its free memory"))?.is_some() {
            return Ok(None);
        }
        for index in 0..client.contexts.len() {
            let (bytes, values) = transfer_path::needed(places.iter(), index);
            if bytes == 0 {
                continue;
            }
            let ready = client.take_copy_room(index, bytes + values);
            match ready.map_or_else(|| Room::new(client, index, bytes + values), Ok) {
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
        copies.runs = runs.to_vec();
        match copies.fill(client) {
            Ok(()) => Ok(Some(copies)),
            Err(code) => {
                copies.close(client);
                Err(device("copy its memory")(code))
            }
        }
    }

    /// Behind the copy all of it is hashed at once: each chunk by itself would wait for the program's kernels later.
    fn fill(&mut self, client: &mut Client) -> rekindle_device::Result<()> {
        if self.behind {
            client.have_copies_follow_work()?;
        }
        for (index, filled) in &self.filled {
            client.bind(*index)?;
            let context = client.context(*index)?;
            let (gpu, stream) = (context.device.clone(), stream(&context.gpu.copies));
            let mut to = filled.start;
            let locations = self.runs.iter_mut().map(|run| &mut run.location);
            for location in locations.filter(|location| location.device == *index) {
                gpu.copy(to, location.address, location.bytes, stream)?;
                location.address = to;
                to += taken_by(location);
            }
            let event = gpu.event_create(DISABLE_TIMING)?;
            gpu.event_record(event, stream, 0)?;
            self.under_way.push((*index, event));
        }
        if self.behind {
            client.have_work_follow_copies()?;
        }
        for (index, filled) in &self.filled {
            client.bind(*index)?;
            let gpu = &client.context(*index)?.gpu;
            if let Some(hasher) = &gpu.hasher {
                hashing(*index, filled).enqueue(hasher, stream(&gpu.copies))?;
            }
        }
        Ok(())
    }

    /// Returns when all is copied: the program may change it then.
    pub(super) fn wait(&mut self, client: &mut Client) -> Result<()> {
        let wait = |(index, event): (usize, Event)| {
            let gpu = client.on(index)?;
            let waited = gpu.event_synchronize(event);
            waited.and(gpu.event_destroy(event))
        };
        let waited: Vec<_> = self.under_way.drain(..).map(wait).collect();
        waited.into_iter().collect::<rekindle_device::Result<()>>().map_err(device("copy its memory"))
    }

    /// Whether the program goes on before all is copied.
    pub(super) fn comes_behind(&self) -> bool {
        self.behind
    }

    pub(super) fn bytes(&self) -> u64 {
        runs::bytes(&self.runs)
    }

    pub(super) fn close(mut self, client: &mut Client) {
        let ended = self.filled.iter().try_for_each(|(index, _)| {
            client.bind(*index)?;
            let context = client.context(*index)?;
            context.device.stream_synchronize(stream(&context.gpu.copies))
        });
        if let Err(error) = ended.map_err(device("copy its memory")).and(self.wait(client)) {
            log::warn!("a checkpoint's copy may be under way: {error}");
        }
        for room in self.rooms {
            if let Err(code) = room.close(client) {
                log::warn!("the memory of a checkpoint's copy stays in use: {code}");
            }
        }
    }

    /// What writes it to the parts that it is of.
    pub(super) fn drain(
        self,
        work: SaveTask,
        gpus: Vec<Option<Gpu>>,
        blocks: Option<Preparing>,
        save: SaveContext,
    ) -> Shadow {
        let Copies { rooms, filled, under_way, runs, behind } = self;
        let gpu = |index: usize| Some(gpus.get(index)?.as_ref()?.device.clone());
        let enqueued = under_way.into_iter().filter_map(|(index, event)| Some((gpu(index)?, event)));
        let copies = behind.then(|| Arc::new(EnqueuedCopies::new(enqueued.collect())));
        let enqueued = copies.as_ref().map(Arc::downgrade);
        let shadow = Shadow::begin(rooms, move |drain| {
            give_way(BESIDE_A_PROGRAM);
            let mut draining = Draining::begin(save)?;
            if let Some(copies) = copies {
                // Nobody gives its memory back before the GPU has written there.
                copies.wait(|| true)?;
                draining = draining.go_on("the program's work", 0, 0);
            }
            let (mut hashes, mut blocks) = (None, blocks);
            if let Some(preparing) = blocks {
                let mut ready = preparing.wait().map_err(device("pin host memory to copy through"))?;
                let all: Vec<_> = filled.iter().map(|(index, filled)| hashing(*index, filled)).collect();
                let fetched = Hashes::fetch(&gpus, &mut ready, &all)?;
                if !fetched.is_empty() {
                    draining = draining.go_on("hashes", 0, 0);
                }
                hashes = Some(fetched);
                blocks = Some(Preparing::Ready(ready));
            }
            let known = |location: &PartLocation, piece| hashes.as_ref()?.of(location, piece);
            let spans = runs::spans(&runs, &work);
            draining = draining.after(drain, |enough| copy_out::new_bytes(&spans, &known, enough))?;
            let (copied, _) = copy_out::save(&gpus, blocks, &spans, Some(&known), &drain.stop)?;
            drop(spans);
            draining.finish(work, runs::bytes(&runs), copied)
        });
        match enqueued {
            Some(copies) => shadow.coming_behind(copies),
            None => shadow,
        }
    }
}

/// All of what is in use.
fn hashing(index: usize, filled: &Range<u64>) -> Hashing {
    Hashing { index, rows: vec![filled.clone()], values: filled.end }
}

pub(super) fn stream(streams: &[Stream]) -> Stream {
    streams.first().copied().unwrap_or(Stream::LEGACY)
}
