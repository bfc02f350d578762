//! Work that may write to pinned memory. An image takes that memory while the program stands still, so such work has to end first.
//!
//! A kernel reaches all pinned memory, by whatever address it finds, so a program that has some waits. With `gpu.behind=arguments`
//! it waits for what is known: copies, fills and written values by where they go, and kernels by addresses among their arguments
//! (PARALLELGPUOS, section 5). What a kernel reaches by addresses in memory alone is not known then; the check mode of images
//! compares pinned memory.

use rekindle_device::{Event, Result, Stream};
use rekindle_protocol::tuning;

use super::Client;

#[derive(Default)]
pub(crate) struct HostWrites {
    /// It is looked at what is known.
    is_followed: bool,
    /// An event behind the last such work of each stream.
    last: Vec<(usize, Stream, Event)>,
    /// There was some behind which there can be no event, since a stream was being captured.
    is_unknown: bool,
    /// From the lowest to the highest address that pinned memory ever had.
    start: u64,
    end: u64,
}

impl HostWrites {
    pub(super) fn new() -> HostWrites {
        HostWrites { is_followed: tuning::is(tuning::BEHIND, "arguments"), ..HostWrites::default() }
    }

    /// There is pinned memory there.
    pub(crate) fn note_pinned(&mut self, address: u64, bytes: u64) {
        (self.start, self.end) = match self.end {
            0 => (address, address + bytes),
            _ => (self.start.min(address), self.end.max(address + bytes)),
        };
    }

    /// Another stream may get this one's handle.
    pub(super) fn forget_stream(&mut self, device: usize, stream: Stream) {
        let is_it = |(other, of, _): &&mut (usize, Stream, Event)| (*other, *of) == (device, stream);
        self.last.iter_mut().filter(is_it).for_each(|(_, of, _)| *of = Stream(u64::MAX));
    }

    fn may_hold(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }
}

impl Client {
    /// A stream was given a kernel with these arguments.
    #[inline]
    pub(super) fn note_arguments(&mut self, device: usize, stream: Stream, arguments: &[u8]) -> Result<()> {
        if self.host_writes.end == 0 || !self.host_writes.is_followed {
            return Ok(());
        }
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        let found = arguments.windows(8).step_by(4).map(word).any(|word| self.is_host(word));
        if found { self.note_host_write(device, stream) } else { Ok(()) }
    }

    /// A stream was given what writes to this address.
    pub(super) fn note_write_to(&mut self, device: usize, stream: Stream, address: u64) -> Result<()> {
        if self.follows_writes_to(address) { self.note_host_write(device, stream) } else { Ok(()) }
    }

    /// Whether what writes to this address is to be noted.
    pub(super) fn follows_writes_to(&self, address: u64) -> bool {
        self.host_writes.is_followed && self.is_host(address)
    }

    /// A stream was given a graph.
    pub(super) fn note_graph(&mut self, device: usize, stream: Stream) -> Result<()> {
        let may_write = self.host_writes.is_followed && !self.pinned.is_empty();
        if may_write { self.note_host_write(device, stream) } else { Ok(()) }
    }

    fn is_host(&self, address: u64) -> bool {
        self.host_writes.may_hold(address) && self.is_pinned(address)
    }

    fn note_host_write(&mut self, device: usize, stream: Stream) -> Result<()> {
        if !self.recordings.is_empty() {
            self.host_writes.is_unknown = true;
            return Ok(());
        }
        let known = self.host_writes.last.iter().find(|(other, of, _)| (*other, *of) == (device, stream));
        match known {
            Some((_, _, event)) => self.context(device)?.device.event_record(*event, stream, 0),
            None => {
                let event = self.record(device, stream)?;
                self.host_writes.last.push((device, stream, event));
                Ok(())
            }
        }
    }

    /// Whether such work may be under way.
    pub(crate) fn writes_host(&mut self) -> Result<bool> {
        if !self.host_writes.is_followed {
            return Ok(!self.pinned.is_empty());
        }
        for (device, stream, event) in std::mem::take(&mut self.host_writes.last) {
            match self.on(device)?.event_query(event)? {
                true => self.give_event(device, event),
                false => self.host_writes.last.push((device, stream, event)),
            }
        }
        self.host_writes.is_unknown &= !self.is_at_rest();
        Ok(self.host_writes.is_unknown || !self.host_writes.last.is_empty())
    }
}
