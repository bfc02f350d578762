//! Memory that comes when it is first named: by a launch, copy, fill or graph, or by an address among bytes on their way to
//! the GPU.
//!
//! ```text
//!   cuMemAlloc ─▶ addresses        launch(address) ─▶ memory, mapped ─▶ done
//!                    └────────────── freed ────────────▶ given back when the client rests
//! ```
//!
//! A kernel never comes to memory that is not there by an address that the program has handed it ([`crate::ondemand::reach`]).
//! One that computes an address from that of another allocation faults.

use std::ops::Range;

use rekindle_cuda::{CUDA_ERROR_OUT_OF_MEMORY, CuResult};
use rekindle_device::{ArrayCopy, CopyEnd, Result, TextureResource, View};
use rekindle_protocol::operation::*;
use rekindle_ring::Record;

use super::Client;
use crate::ondemand::{RequestReach, reach};
use crate::shared::Recycling;

/// Requests without an answer that use what memory holds.
const WORK: [u32; 10] = [
    LaunchKernel::OPCODE,
    LaunchKernelWith::OPCODE,
    Copy::OPCODE,
    CopyStrided::OPCODE,
    CopyArray::OPCODE,
    Upload::OPCODE,
    Download::OPCODE,
    SetMemory::OPCODE,
    WriteValue::OPCODE,
    GraphLaunch::OPCODE,
];

impl Client {
    /// Bytes that it has addresses for, and no memory yet.
    pub(crate) fn unbacked_bytes(&self) -> u64 {
        self.contexts.iter().flatten().map(|context| context.heap.unbacked_bytes()).sum()
    }

    #[inline]
    pub(crate) fn has_unbacked(&self) -> bool {
        self.contexts.iter().flatten().any(|context| context.heap.has_unbacked())
    }

    /// It has allocated nothing yet, and what it allocates gets memory at once: what it did is done once more because a kernel may
    /// have come to memory that was not there.
    pub(crate) fn need_memory_at_once(&mut self) {
        self.has_memory_at_once = true;
        self.contexts.iter_mut().flatten().for_each(|context| context.heap.wait_no_more());
    }

    /// Has memory be there for all that a request may come to.
    pub(crate) fn back_for(&mut self, ring: usize, record: &Record<'_>) -> Result<()> {
        let among = self.unbacked_span();
        let named: Vec<(usize, u64)> = match self.may_come_to(ring, record, &among) {
            RequestReach::Nothing => return Ok(()),
            RequestReach::Anything => self.unbacked_in(&among),
            RequestReach::These(touched, found) => {
                let ranges = touched.ranges.iter().flat_map(|range| self.unbacked_in(range));
                let words = touched.words.iter().chain(&found).filter(|word| among.contains(word));
                ranges.chain(words.filter_map(|word| self.unbacked_at(*word))).collect()
            }
        };
        let backed = named.into_iter().try_for_each(|(device, at)| self.back(device, at));
        if backed.is_err() {
            let device = self.bound();
            let free = self.on(device).and_then(|gpu| gpu.memory_info()).map_or(0, |(free, _)| free);
            let without = self.unbacked_bytes();
            log::warn!(
                "client {}: {} needs GPU memory that is not there: {} of the {} MB that the program has allocated have none yet, \
                 and the GPU has {} MB free; it is not done, and the program is told {CUDA_ERROR_OUT_OF_MEMORY}",
                self.gpus.regions.slice().map_or(0, |slice| slice.number()),
                name(record.opcode).unwrap_or("a request"),
                without >> 20,
                (without + self.backed_bytes()) >> 20,
                free >> 20,
            );
        }
        backed
    }

    /// Has memory be there at this address.
    pub(crate) fn back_at(&mut self, address: u64) -> Result<()> {
        match self.unbacked_at(address) {
            Some((device, at)) => self.back(device, at),
            None => Ok(()),
        }
    }

    /// A request that had no memory is not done: whoever waits for its answer gets it, else the program hears of it as of any
    /// that failed.
    pub(crate) fn lacks_memory(&mut self, ring: usize, record: &Record<'_>, code: CuResult) {
        if is_answered(record.opcode) {
            return self.reply(ring, &encode_reply::<()>(&Err(code)));
        }
        self.lacking = Some((self.bound(), code));
        self.refuse(ring, record, code);
    }

    /// Whether a request is not done since one before it had no memory, and the program has not been told yet: it would be done on
    /// what that was to bring.
    pub(crate) fn is_refused(&mut self, ring: usize, record: &Record<'_>) -> bool {
        let (Some((device, code)), Some(board)) = (self.lacking, self.board) else { return false };
        if board.error(device) != code.0 {
            self.lacking = None;
            return false;
        }
        if !WORK.contains(&record.opcode) {
            return false;
        }
        self.abandon(ring, record.opcode, record.body, code);
        board.set_error(device, code.0);
        true
    }

    /// Bytes that its contexts have ready for first uses, of which it has found memory so often there, and so often not.
    pub(crate) fn pool(&self) -> (u64, u64, u64) {
        let views = self.contexts.iter().flatten().filter_map(|context| context.gpu.view.as_deref());
        views.fold((0, 0, 0), |(bytes, hits, misses), view| {
            let counts = view.recycling().map_or((0, 0), Recycling::counts);
            (bytes + view.pool_bytes(), hits + counts.0, misses + counts.1)
        })
    }

    /// Gives back what the program has freed, where memory comes at the first use: how many bytes that was. Nothing is under
    /// way.
    pub(crate) fn give_back_freed(&mut self) -> Result<u64> {
        let mut given = 0;
        for device in self.open_devices() {
            if self.context(device)?.heap.waits_for_uses() {
                given += self.trim(device, 0)?;
                self.bind(device)?;
                given += self.heap(device)?.give_empty_slabs()?;
            }
        }
        Ok(given)
    }

    fn back(&mut self, device: usize, at: u64) -> Result<()> {
        self.with_memory(device, |client| {
            client.bind(device)?;
            client.heap(device)?.back_now(at)
        })
    }

    fn backed_bytes(&self) -> u64 {
        self.contexts.iter().flatten().map(|context| context.heap.bytes()).sum()
    }

    /// From the first to the last address without memory, on all devices.
    fn unbacked_span(&self) -> Range<u64> {
        let spans = || self.contexts.iter().flatten().filter_map(|context| context.heap.unbacked_span());
        let first = spans().map(|span| span.start).min().unwrap_or(0);
        first..spans().map(|span| span.end).max().unwrap_or(0)
    }

    fn unbacked_at(&self, address: u64) -> Option<(usize, u64)> {
        let contexts = self.contexts.iter().enumerate();
        let mut open = contexts.filter_map(|(device, context)| Some((device, context.as_ref()?)));
        open.find_map(|(device, context)| Some((device, context.heap.unbacked_at(address)?)))
    }

    fn unbacked_in(&self, range: &Range<u64>) -> Vec<(usize, u64)> {
        let contexts = self.contexts.iter().enumerate();
        let open = contexts.filter_map(|(device, context)| Some((device, context.as_ref()?)));
        open.flat_map(|(device, context)| {
            context.heap.unbacked_in(range).into_iter().map(move |at| (device, at))
        })
        .collect()
    }

    fn may_come_to(&self, ring: usize, record: &Record<'_>, among: &Range<u64>) -> RequestReach {
        let Record { opcode, body, trailer, .. } = *record;
        let found = match opcode {
            // What it is done with needs no memory.
            MemoryFree::OPCODE | MemoryFreeAsync::OPCODE | ContextReset::OPCODE => Ok(RequestReach::Nothing),
            IpcMemoryExport::OPCODE => {
                postcard::from_bytes(body).map(|IpcMemoryExport { address, .. }| RequestReach::at(address, 1))
            }
            TensorMapReplace::OPCODE => postcard::from_bytes(body)
                .map(|TensorMapReplace { address, .. }| RequestReach::at(address, 1)),
            ViewCreate::OPCODE => postcard::from_bytes(body).map(|ViewCreate { view, .. }| read_by(&view)),
            CopyArray::OPCODE => postcard::from_bytes(body).map(|CopyArray { copy, .. }| copied(&copy)),
            // A driver looks at what nodes name when they are made; the rest is named by launches.
            GraphAddKernel::OPCODE | GraphSetKernel::OPCODE => Ok(RequestReach::parameters(trailer)),
            GraphAddCopy::OPCODE => {
                postcard::from_bytes(body).map(|GraphAddCopy { copy, .. }| RequestReach::strided(&copy))
            }
            GraphSetCopy::OPCODE => {
                postcard::from_bytes(body).map(|GraphSetCopy { copy, .. }| RequestReach::strided(&copy))
            }
            GraphAddSet::OPCODE => {
                postcard::from_bytes(body).map(|GraphAddSet { set, .. }| RequestReach::filled(&set))
            }
            GraphSetSet::OPCODE => {
                postcard::from_bytes(body).map(|GraphSetSet { set, .. }| RequestReach::filled(&set))
            }
            GraphAdd::OPCODE | GraphSet::OPCODE | CaptureAdd::OPCODE | CaptureAddBehind::OPCODE => {
                Ok(RequestReach::Anything)
            }
            _ => Ok(reach(self, ring, record, among)),
        };
        // Whoever does it finds out that it is nonsense.
        found.unwrap_or(RequestReach::Nothing)
    }
}

/// The plain memory that a texture reads: launches do not name it.
fn read_by(view: &View<Id>) -> RequestReach {
    match view {
        View::Texture(texture) => match texture.resource {
            TextureResource::Linear { address, .. } | TextureResource::Pitched { address, .. } => {
                RequestReach::at(address, 1)
            }
            TextureResource::Array(_) | TextureResource::Mipmapped(_) => RequestReach::Nothing,
        },
        View::Surface(_) => RequestReach::Nothing,
    }
}

/// The plain memory at either end.
fn copied(copy: &ArrayCopy<Id>) -> RequestReach {
    let ends = [&copy.to, &copy.from].into_iter().find_map(|end| match end {
        CopyEnd::Linear { address, pitch, slice } => Some((*address, *pitch, *slice)),
        CopyEnd::Array { .. } => None,
    });
    let Some((address, pitch, slice)) = ends else { return RequestReach::Nothing };
    let rows = copy.height.saturating_sub(1).saturating_mul(pitch);
    let slices = copy.depth.saturating_sub(1).saturating_mul(slice);
    RequestReach::at(address, copy.width.saturating_add(rows).saturating_add(slices))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_waits_for_an_answer_gets_one() {
        assert!(WORK.iter().all(|opcode| !is_answered(*opcode)));
        assert!([MemoryAllocate::OPCODE, IpcMemoryExport::OPCODE].iter().all(|opcode| is_answered(*opcode)));
        assert!(!is_answered(u32::MAX));
    }
}
