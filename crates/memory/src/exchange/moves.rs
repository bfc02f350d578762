//! Arrays on their way from a GPU to the host, and back. What is not finished is undone.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rekindle_protocol::exchange::Gpu;

use super::item::ArrayLocation;
use super::room::GpuRoom;
use super::{Exchange, Holder};

/// Out of a GPU, with room that is reserved on the host.
pub struct Move {
    pub(super) exchange: Arc<Exchange>,
    pub(super) id: String,
    pub(super) bytes: u64,
    pub(super) room: u64,
    pub(super) from: OwnedFd,
    /// None once it lies there.
    pub(super) to: Option<OwnedFd>,
}

impl Move {
    /// From where, and to where.
    pub(super) fn memories(&self) -> Option<[BorrowedFd<'_>; 2]> {
        Some([self.from.as_fd(), self.to.as_ref()?.as_fd()])
    }

    /// All of it is copied. The GPU's memory is given back.
    pub(super) fn done(mut self) {
        let Some(memory) = self.to.take() else { return };
        self.exchange.known().host_reserved -= self.bytes;
        let mut left = None;
        self.exchange.change(&self.id, |item| {
            left = Some(std::mem::replace(&mut item.location, ArrayLocation::Host { memory }));
            item.moving = false;
        });
        drop(left);
    }
}

impl Drop for Move {
    fn drop(&mut self) {
        if self.to.take().is_some() {
            self.exchange.known().host_reserved -= self.bytes;
            self.exchange.change(&self.id, |item| item.moving = false);
        }
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
