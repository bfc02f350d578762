//! Arrays on their way from a GPU to another one or to the host, and back from there. What is not finished is undone.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rekindle_protocol::exchange::Gpu;

use super::item::ArrayLocation;
use super::room::GpuRoom;
use super::{Exchange, Holder};

/// Where room is reserved for an array that is moved.
pub(super) enum Destination {
    Host(OwnedFd),
    Gpu(Gpu, GpuRoom),
}

/// Out of a GPU.
pub struct Move {
    pub(super) exchange: Arc<Exchange>,
    pub(super) id: String,
    pub(super) bytes: u64,
    pub(super) room: u64,
    pub(super) from: OwnedFd,
    /// None once it lies there.
    pub(super) to: Option<Destination>,
}

impl Move {
    /// The UUID of the GPU that it goes to.
    pub(super) fn gpu(&self) -> Option<String> {
        match &self.to {
            Some(Destination::Gpu(gpu, _)) => Some(gpu.uuid.clone()),
            _ => None,
        }
    }

    /// From where, and to where if that is the host.
    pub(super) fn memories(&self) -> Vec<BorrowedFd<'_>> {
        match &self.to {
            Some(Destination::Host(to)) => vec![self.from.as_fd(), to.as_fd()],
            _ => vec![self.from.as_fd()],
        }
    }

    /// All of it is copied, to this memory if it goes to a GPU. The memory before is given back. False if it is not there.
    pub(super) fn done(mut self, memory: Option<OwnedFd>) -> bool {
        let (location, room) = match (self.to.take(), memory) {
            (Some(Destination::Host(memory)), _) => {
                let mut known = self.exchange.known();
                known.host_reserved -= self.bytes;
                known.moves.to_host += 1;
                (ArrayLocation::Host { memory }, None)
            }
            (Some(Destination::Gpu(gpu, room)), Some(memory)) => {
                self.exchange.known().moves.to_gpus += 1;
                (ArrayLocation::Gpu { gpu, memory, name: None }, Some(room))
            }
            (to, _) => {
                self.to = to;
                return false;
            }
        };
        let mut left = None;
        self.exchange.change(&self.id, |item| {
            left = Some(std::mem::replace(&mut item.location, location));
            item.moving = false;
        });
        drop((left, room));
        true
    }
}

impl Drop for Move {
    fn drop(&mut self) {
        match self.to.take() {
            Some(Destination::Host(_)) => self.exchange.known().host_reserved -= self.bytes,
            Some(Destination::Gpu(_, room)) => drop(room),
            None => return,
        }
        self.exchange.change(&self.id, |item| item.moving = false);
    }
}

/// Out of the host's memory.
pub struct Return {
    exchange: Arc<Exchange>,
    id: String,
    pub(super) memory: OwnedFd,
    pub(super) bytes: u64,
    pub(super) room: u64,
}

impl Return {
    pub(super) fn new(
        exchange: Arc<Exchange>,
        id: &str,
        memory: OwnedFd,
        (bytes, room): (u64, u64),
    ) -> Return {
        Return { exchange, id: id.to_string(), memory, bytes, room }
    }

    /// It lies on this GPU from now on, where whoever has copied it has it mapped.
    pub(super) fn kept(self, gpu: &Gpu, memory: OwnedFd, room: GpuRoom) -> Holder {
        let mut left = None;
        self.exchange.change(&self.id, |item| {
            let location = ArrayLocation::Gpu { gpu: gpu.clone(), memory, name: None };
            left = Some(std::mem::replace(&mut item.location, location));
            item.holders += 1;
        });
        drop((left, room));
        Holder { exchange: self.exchange.clone(), id: self.id.clone() }
    }
}

impl Drop for Return {
    fn drop(&mut self) {
        self.exchange.change(&self.id, |item| {
            item.moving = false;
            item.since = Instant::now();
        });
    }
}
