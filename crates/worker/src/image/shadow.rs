//! A copy of GPU memory on the GPU itself: the program goes on as soon as it is made, and the image is written from it.
//!
//! ```text
//!  program   ──runs──┬ stands still ┬──runs───────────────────────────────▶
//!  GPU memory        ═ shadow copy ═
//!  image                            └── the shadow is drained ──▶ parts
//! ```
//!
//! The copy goes at the speed of the GPU's memory, the drain at that of the link. PARALLELGPUOS calls this a concurrent
//! checkpoint with enough memory (section 4).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rekindle_cuda::CUDA_ERROR_OUT_OF_MEMORY;
use rekindle_device::Stream;
use rekindle_protocol::fault;
use rekindle_protocol::worker::Phase;
use rekindle_store::PartWriter;
use serde_json::Value;

use super::block::{Blocks, Gpu, Preparing};
use super::contents::{self, Place};
use super::error::{Error, Result, device};
use super::save::describe;
use crate::client::{Client, Room};

/// Where each buffer begins is a multiple of this.
const ALIGNMENT: u64 = 512;

/// What is to be saved, and where it is to go.
type Work = Vec<(Place, PartWriter)>;

/// GPU memory as it was, until it is in the image.
pub(crate) struct Shadow {
    /// Emptied by whoever comes first.
    rooms: Arc<Mutex<Rooms>>,
    drain: Arc<Drain>,
}

#[derive(Default)]
struct Rooms {
    full: Vec<Room>,
    /// Without memory. Their addresses are to be given back.
    empty: Vec<Room>,
}

/// The write to the image, on a thread of its own.
#[derive(Default)]
pub(crate) struct Drain {
    stop: AtomicBool,
    outcome: Mutex<Outcome>,
    ended: Condvar,
    /// What was copied through. Letting go of it waits for all that the device is doing.
    blocks: Mutex<Option<Blocks>>,
}

/// Parts as the store describes them, and how long it took since the save began.
type Drained = (Vec<Value>, Vec<Phase>);

#[derive(Default)]
enum Outcome {
    #[default]
    UnderWay,
    Ended(Result<Drained>),
}

/// Where the shadow lies.
pub(super) struct Copies {
    rooms: Vec<Room>,
    work: Work,
}

impl Copies {
    /// Takes all of the work, and copies its buffers within their GPUs. None, and the work stays, if they have no room for
    /// that. The devices are idle.
    pub(super) fn make(client: &mut Client, work: &mut Work) -> Result<Option<Copies>> {
        let mut copies = Copies { rooms: Vec::new(), work: Vec::new() };
        for index in 0..client.contexts.len() {
            let bytes =
                work.iter().filter(|(place, _)| place.device == index).map(|(place, _)| room(place)).sum();
            if bytes == 0 {
                continue;
            }
            match Room::new(client, index, bytes) {
                Ok(room) => copies.rooms.push(room),
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

    pub(super) fn close(self, client: &mut Client) {
        for room in self.rooms {
            if let Err(code) = room.close(client) {
                log::warn!("the memory of a checkpoint's copy stays in use: {code}");
            }
        }
    }

    fn fill(&mut self, client: &mut Client) -> rekindle_device::Result<()> {
        for room in &self.rooms {
            let stream = client.context(room.index)?.gpu.copies.first().copied().unwrap_or(Stream::LEGACY);
            client.bind(room.index)?;
            let mut to = room.address;
            for (place, _) in self.work.iter_mut().filter(|(place, _)| place.device == room.index) {
                room.device.copy(to, place.address, place.bytes, stream)?;
                place.address = to;
                to += self::room(place);
            }
        }
        for room in &self.rooms {
            let stream = client.context(room.index)?.gpu.copies.first().copied().unwrap_or(Stream::LEGACY);
            client.bind(room.index)?;
            room.device.stream_synchronize(stream)?;
        }
        Ok(())
    }

    pub(super) fn bytes(&self) -> u64 {
        self.work.iter().map(|(place, _)| place.bytes).sum()
    }

    /// Begins to write it to the image. `since` is when the save began.
    pub(super) fn drain(self, gpus: Vec<Option<Gpu>>, blocks: Option<Preparing>, since: Instant) -> Shadow {
        let Copies { rooms, work } = self;
        let drain = Arc::new(Drain::default());
        let told = drain.clone();
        let run = move || told.end(told.write(&gpus, blocks, work, since));
        if let Err(source) = std::thread::Builder::new().name("drain".into()).spawn(run) {
            drain.end(Err(Error::Io { action: "start", path: "a thread".to_string(), source }));
        }
        Shadow { rooms: Arc::new(Mutex::new(Rooms { full: rooms, empty: Vec::new() })), drain }
    }
}

/// What a buffer takes in a shadow.
fn room(place: &Place) -> u64 {
    place.bytes.next_multiple_of(ALIGNMENT)
}

impl Drain {
    fn write(
        &self,
        gpus: &[Option<Gpu>],
        blocks: Option<Preparing>,
        work: Work,
        since: Instant,
    ) -> Result<Drained> {
        let began = Instant::now();
        fault::point("drain-begun").map_err(|fault| Error::Refused(fault.to_string()))?;
        let (copied, blocks) = contents::save(gpus, blocks, &work, &self.stop)?;
        *self.blocks.lock().unwrap_or_else(PoisonError::into_inner) = blocks;
        let bytes = work.iter().map(|(place, _)| place.bytes).sum();
        let parts = work.into_iter().map(|(_, writer)| describe(&writer.finish()?));
        let parts = parts.collect::<Result<_>>()?;
        let phase = Phase {
            name: "drain".to_string(),
            start_us: (began - since).as_micros() as u64,
            duration_us: began.elapsed().as_micros() as u64,
            bytes,
            from: contents::origin(bytes, copied),
            ..Phase::default()
        };
        Ok((parts, vec![phase]))
    }

    fn end(&self, result: Result<Drained>) {
        *self.outcome() = Outcome::Ended(result);
        self.ended.notify_all();
    }

    fn outcome(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it has ended, and gives what has come of it to the first who asks. It is given up when `is_wanted` says
    /// so, which is asked now and then.
    pub(crate) fn wait(&self, is_wanted: impl Fn() -> bool) -> Result<Drained> {
        let mut outcome = self.outcome();
        while matches!(*outcome, Outcome::UnderWay) {
            let waited = self.ended.wait_timeout(outcome, super::LOOK);
            outcome = waited.unwrap_or_else(PoisonError::into_inner).0;
            if !is_wanted() {
                self.stop.store(true, Ordering::Relaxed);
            }
        }
        match std::mem::replace(&mut *outcome, Outcome::Ended(Ok(Drained::default()))) {
            Outcome::Ended(result) => result,
            Outcome::UnderWay => Err(Error::Cancelled),
        }
    }

    /// Waits until nothing reads the shadow any more.
    fn join(&self) {
        let mut outcome = self.outcome();
        while matches!(*outcome, Outcome::UnderWay) {
            outcome = self.ended.wait(outcome).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Shadow {
    pub(crate) fn drain(&self) -> Arc<Drain> {
        self.drain.clone()
    }

    /// Bytes of a device that it takes.
    pub(crate) fn bytes_of(&self, index: usize) -> u64 {
        let rooms = lock(&self.rooms);
        rooms.full.iter().filter(|room| room.index == index).map(|room| room.bytes).sum()
    }

    /// The image is not wanted any more.
    pub(crate) fn give_up(&self) {
        self.drain.stop.store(true, Ordering::Relaxed);
    }

    /// What gives its memory back once it is drained, from whatever thread; the driver waits for all work of its devices.
    pub(crate) fn emptying(&self) -> impl FnOnce() + Send + 'static {
        let (rooms, drain) = (self.rooms.clone(), self.drain.clone());
        move || {
            drain.join();
            drop(drain.blocks.lock().unwrap_or_else(PoisonError::into_inner).take());
            let mut rooms = lock(&rooms);
            for room in std::mem::take(&mut rooms.full) {
                match room.empty() {
                    Ok(()) => rooms.empty.push(room),
                    Err(code) => log::warn!("the memory of a checkpoint's copy stays in use: {code}"),
                }
            }
        }
    }

    /// Rooms that were emptied since this was asked.
    pub(crate) fn take_emptied(&self) -> Vec<Room> {
        std::mem::take(&mut lock(&self.rooms).empty)
    }
}

fn lock(rooms: &Mutex<Rooms>) -> MutexGuard<'_, Rooms> {
    rooms.lock().unwrap_or_else(PoisonError::into_inner)
}
