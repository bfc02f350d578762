//! Arrays that are sent to other nodes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rekindle_protocol::data::Problem;
use rekindle_protocol::exchange::{ArrayKind, Gpu};

use super::item::{self, ArrayLocation};
use super::room::HostRoom;
use super::{Exchange, Holder, duplicate};

/// An array that is held while it is sent.
pub(super) struct Loan {
    pub array: ArrayKind,
    memory: OwnedFd,
    /// Where it lies, and memory of the host that it is to be copied to, if that is a GPU.
    gpu: Option<(Gpu, OwnedFd, HostRoom)>,
    _holder: Holder,
}

impl Loan {
    pub(super) fn gpu(&self) -> Option<Gpu> {
        self.gpu.as_ref().map(|(gpu, ..)| gpu.clone())
    }

    pub(super) fn memories(&self) -> Vec<BorrowedFd<'_>> {
        let to = self.gpu.iter().map(|(_, to, _)| to.as_fd());
        std::iter::once(self.memory.as_fd()).chain(to).collect()
    }
}

impl Exchange {
    /// Finds an array; waits while somebody moves it.
    pub(super) fn lend(self: &Arc<Exchange>, owner: &str, id: &str) -> Result<Loan, Problem> {
        let mut known = self.known();
        loop {
            known.used += 1;
            let order = known.used;
            let item = item::find(&mut known.items, owner, id)?;
            if item.moving {
                known = self.wait(known);
                continue;
            }
            let (memory, gpu) = match &item.location {
                ArrayLocation::Gpu { gpu, memory, .. } => (duplicate(memory)?, Some(gpu.clone())),
                ArrayLocation::Host { memory } => (duplicate(memory)?, None),
            };
            (item.order, item.since) = (order, Instant::now());
            item.holders += 1;
            let array = item.kind();
            known.moves.to_nodes += 1;
            drop(known);
            let _holder = Holder { exchange: self.clone(), id: id.to_string() };
            let gpu = gpu.map(|gpu| {
                let (room, to) = HostRoom::take(self, array.bytes, "is wanted by another node")?;
                Ok((gpu, to, room))
            });
            return Ok(Loan { array, memory, gpu: gpu.transpose()?, _holder });
        }
    }
}
