//! Room for arrays, on each GPU and on the host.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rekindle_protocol::data::{Problem, ProblemKind};
use rekindle_protocol::exchange::Gpu;
use rekindle_protocol::memory_file;

use super::item::ArrayLocation;
use super::moves::{Destination, Move};
use super::{Exchange, ExchangeState, duplicate, item};

/// Room on a GPU that was promised, until it is dropped.
pub struct GpuRoom {
    exchange: Arc<Exchange>,
    gpu: String,
    bytes: u64,
}

impl Drop for GpuRoom {
    fn drop(&mut self) {
        let mut known = self.exchange.known();
        if let Some(reserved) = known.gpu_reserved.get_mut(&self.gpu) {
            *reserved -= self.bytes;
        }
        drop(known);
        self.exchange.changed.notify_all();
    }
}

/// Room on the host for a copy that is being made, until it is dropped.
pub(super) struct HostRoom {
    exchange: Arc<Exchange>,
    bytes: u64,
}

impl HostRoom {
    /// With memory for a copy of an array that `is` what it is.
    pub(super) fn take(
        exchange: &Arc<Exchange>,
        bytes: u64,
        is: &str,
    ) -> Result<(HostRoom, OwnedFd), Problem> {
        let mut known = exchange.known();
        known.check_host(bytes, is, exchange.most.host)?;
        known.host_reserved += bytes;
        drop(known);
        let room = HostRoom { exchange: exchange.clone(), bytes };
        let memory =
            memory_file::filled(bytes).map_err(|error| no_host_room(bytes, is, &error.to_string()))?;
        Ok((room, memory.into()))
    }
}

impl Drop for HostRoom {
    fn drop(&mut self) {
        self.exchange.known().host_reserved -= self.bytes;
    }
}

fn no_host_room(bytes: u64, is: &str, why: &str) -> Problem {
    let sentence = format!(
        "an array of {bytes} bytes {is}, and the host has no room for it: {why}; drop some arrays, or start rekindled with a \
         larger --exchange-host"
    );
    Problem::new(ProblemKind::Memory, sentence)
}

/// For how long no array is moved from one GPU to another where that has failed.
const AVOIDED: Duration = Duration::from_secs(10);

/// What room on a GPU takes.
pub enum RoomRequest {
    Room(GpuRoom),
    /// This is to be moved out first; ask again then.
    MoveOut(Move),
}

impl ExchangeState {
    fn used_on(&self, gpu: &str) -> u64 {
        let reserved = self.gpu_reserved.get(gpu).copied().unwrap_or(0);
        reserved + self.items.values().filter(|item| item.is_on(gpu)).map(|item| item.room).sum::<u64>()
    }

    /// Another GPU that has room for so much more, as far as functions have used it: of those that reach this one's memory and
    /// are reached by it, the one where arrays have least.
    fn neighbour(&self, of: &Gpu, room: u64, most: u64) -> Option<Gpu> {
        let is_avoided = |gpu: &Gpu| {
            let way = (of.uuid.clone(), gpu.uuid.clone());
            self.avoided.get(&way).is_some_and(|since| since.elapsed() < AVOIDED)
        };
        let fits = |gpu: &&Gpu| {
            gpu.uuid != of.uuid
                && of.reaches.contains(&gpu.uuid)
                && gpu.reaches.contains(&of.uuid)
                && self.used_on(&gpu.uuid).saturating_add(room) <= most
                && !is_avoided(gpu)
        };
        let found = self.gpus.values().filter(fits);
        found.min_by_key(|gpu| (self.used_on(&gpu.uuid), &gpu.uuid)).cloned()
    }

    fn used_on_host(&self) -> u64 {
        let lying = self.items.values().filter(|item| item.is_on_host()).map(|item| item.bytes);
        self.host_reserved + lying.sum::<u64>()
    }

    fn check_host(&self, bytes: u64, is: &str, most: u64) -> Result<(), Problem> {
        let used = self.used_on_host();
        match used.saturating_add(bytes) > most {
            true => {
                let why = format!("arrays may have {most} bytes there, and have {used}");
                Err(no_host_room(bytes, is, &why))
            }
            false => Ok(()),
        }
    }

    /// The array on this GPU that was used longest ago of those that nobody uses.
    fn oldest(&self, gpu: &str) -> Option<String> {
        let free = self.items.iter().filter(|(_, item)| item.is_on(gpu) && item.is_free());
        free.min_by_key(|(_, item)| item.order).map(|(id, _)| id.clone())
    }
}

impl Exchange {
    /// A program has this GPU, and its worker can move arrays there.
    pub(super) fn note_gpu(&self, gpu: &Gpu) {
        let mut known = self.known();
        if known.gpus.get(&gpu.uuid) != Some(gpu) {
            known.gpus.insert(gpu.uuid.clone(), gpu.clone());
        }
    }

    /// No array could be moved from one GPU to the other.
    pub(super) fn avoid(&self, from: &str, to: String) {
        self.known().avoided.insert((from.to_string(), to), Instant::now());
    }

    /// Room on a GPU, or what has to be moved out for it.
    pub(super) fn reserve(self: &Arc<Exchange>, gpu: &str, room: u64) -> Result<RoomRequest, Problem> {
        let most = self.most.gpu;
        let full = |why: String| {
            let sentence = format!(
                "{room} bytes of the GPU are needed for an array, and arrays that are handed on may have {most} there, {why}; \
                 drop some, or start rekindled with a larger --exchange-gpu"
            );
            Problem::new(ProblemKind::Memory, sentence)
        };
        let mut known = self.known();
        loop {
            let used = known.used_on(gpu);
            if used.checked_add(room).is_some_and(|sum| sum <= most) {
                *known.gpu_reserved.entry(gpu.to_string()).or_default() += room;
                return Ok(RoomRequest::Room(GpuRoom {
                    exchange: self.clone(),
                    gpu: gpu.to_string(),
                    bytes: room,
                }));
            }
            if room > most {
                return Err(full("which is less".to_string()));
            }
            match known.oldest(gpu) {
                Some(id) => return self.move_out(&mut known, id).map(RoomRequest::MoveOut),
                // It may leave room where it was.
                None if known.items.values().any(|item| item.is_on(gpu) && item.moving) => {
                    known = self.wait(known);
                }
                None => return Err(full(format!("of which {used} are in use"))),
            }
        }
    }

    /// What a program that lacks memory of a GPU is to move out first, if anything can be.
    pub(super) fn unused(self: &Arc<Exchange>, gpu: &str) -> Option<Move> {
        let mut known = self.known();
        let id = known.oldest(gpu)?;
        self.move_out(&mut known, id).ok()
    }

    fn move_out(self: &Arc<Exchange>, known: &mut ExchangeState, id: String) -> Result<Move, Problem> {
        let item = known.items.get(&id).ok_or_else(|| item::missing(&id))?;
        let (bytes, room) = (item.bytes, item.room);
        let (ArrayLocation::Gpu { memory, .. } | ArrayLocation::Host { memory }) = &item.location;
        let from = duplicate(memory)?;
        let next = match &item.location {
            ArrayLocation::Gpu { gpu, .. } => known.neighbour(gpu, room, self.most.gpu),
            ArrayLocation::Host { .. } => None,
        };
        let to = match next {
            Some(gpu) => {
                *known.gpu_reserved.entry(gpu.uuid.clone()).or_default() += room;
                let reserved = GpuRoom { exchange: self.clone(), gpu: gpu.uuid.clone(), bytes: room };
                Destination::Gpu(gpu, reserved)
            }
            None => {
                let is = "is to make room on the GPU";
                known.check_host(bytes, is, self.most.host)?;
                let to = memory_file::filled(bytes);
                let to = to.map_err(|error| no_host_room(bytes, is, &error.to_string()))?;
                known.host_reserved += bytes;
                Destination::Host(to.into())
            }
        };
        if let Some(item) = known.items.get_mut(&id) {
            item.moving = true;
        }
        Ok(Move { exchange: self.clone(), id, bytes, room, from, to: Some(to) })
    }
}
