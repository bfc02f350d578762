//! What a client has of a context that it shares: all of it is given back when the client ends, in whatever state it is
//! then.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use rekindle_device::{Array, Device, Event, Graph, GraphExec, Memory, Module, Result, Stream, ViewKind};

use super::division::Portion;
use super::piece_cache::PieceCache;

#[derive(Default)]
pub(super) struct Owned {
    /// The driver's, and their priorities.
    pub streams: HashMap<Stream, i32>,
    /// Those that others have taken the places of, and whose work is not done, with what they are on.
    pub former: Vec<(Stream, Option<Arc<Portion>>)>,
    pub events: HashSet<Event>,
    pub modules: HashSet<Module>,
    /// Pieces that others may have too, and how often it has taken each.
    pub pieces: HashMap<Module, usize>,
    pub graphs: HashSet<Graph>,
    pub execs: HashSet<GraphExec>,
    pub views: HashSet<(ViewKind, u64)>,
    pub arrays: HashSet<Array>,
    pub memory: HashSet<Memory>,
    /// Memory of these that others may have by a descriptor.
    pub exported: HashSet<Memory>,
    /// Where memory is mapped that others may have taken since, as one of `mapped`.
    pub passed_on: HashSet<u64>,
    /// Where something is mapped, and its bytes.
    pub mapped: BTreeMap<u64, u64>,
    pub reserved: HashMap<u64, u64>,
    /// Memory of the host that the GPU knows, and its bytes.
    pub registered: BTreeMap<u64, u64>,
}

impl Owned {
    /// All that may have work.
    pub(super) fn all_streams(&self) -> Vec<Stream> {
        self.streams.keys().copied().chain(self.former.iter().map(|(stream, _)| *stream)).collect()
    }

    /// Whether all of this is memory of the GPU, or of the host and known to it, that is one piece.
    pub(super) fn reaches(&self, address: u64, bytes: u64) -> bool {
        [&self.mapped, &self.registered].into_iter().any(|ranges| {
            let before = ranges.range(..=address).next_back();
            before.is_some_and(|(start, length)| {
                address - start < *length && bytes <= length - (address - start)
            })
        })
    }

    pub(super) fn add_piece(&mut self, module: Module) {
        *self.pieces.entry(module).or_default() += 1;
    }

    /// Takes one of the times off that the client has taken a piece.
    pub(super) fn take_piece(&mut self, module: Module) {
        let Entry::Occupied(mut times) = self.pieces.entry(module) else { return };
        *times.get_mut() -= 1;
        if *times.get() == 0 {
            times.remove();
        }
    }

    /// Gives former streams back whose work is done.
    pub(super) fn sweep(&mut self, device: &dyn Device) {
        self.former.retain(|(stream, _)| match device.stream_query(*stream) {
            Ok(true) => device.stream_destroy(*stream).is_err(),
            _ => true,
        });
    }

    /// Gives everything back. None of its work is under way any more. What cannot be given back to a context that has failed
    /// goes with its process.
    pub(super) fn give_back(&mut self, device: &dyn Device, pieces: &PieceCache, has_failed: bool) {
        let mut left = Unreturned::default();
        self.execs.drain().for_each(|exec| left.note(device.graph_exec_destroy(exec)));
        self.graphs.drain().for_each(|graph| left.note(device.graph_destroy(graph)));
        self.modules.drain().for_each(|module| left.note(device.module_unload(module)));
        for (module, times) in self.pieces.drain() {
            (0..times).for_each(|_| left.note(pieces.give(device, module)));
        }
        self.views.drain().for_each(|(kind, number)| left.note(device.view_destroy(kind, number)));
        self.arrays.drain().for_each(|array| left.note(device.array_destroy(array)));
        self.events.drain().for_each(|event| left.note(device.event_destroy(event)));
        self.streams.drain().for_each(|(stream, _)| left.note(device.stream_destroy(stream)));
        self.former.drain(..).for_each(|(stream, _)| left.note(device.stream_destroy(stream)));
        std::mem::take(&mut self.registered)
            .into_keys()
            .for_each(|address| left.note(device.host_unregister(address)));
        std::mem::take(&mut self.mapped)
            .into_iter()
            .for_each(|(address, bytes)| left.note(device.unmap(address, bytes)));
        self.memory.drain().for_each(|memory| left.note(device.memory_release(memory)));
        self.reserved.drain().for_each(|(address, bytes)| left.note(device.unreserve(address, bytes)));
        if !has_failed {
            left.tell();
        }
    }
}

/// What could not be given back, which stays until the context's end.
#[derive(Default)]
struct Unreturned {
    count: usize,
    first: Option<rekindle_cuda::CuResult>,
}

impl Unreturned {
    fn note(&mut self, done: Result<()>) {
        if let Err(code) = done {
            self.count += 1;
            self.first.get_or_insert(code);
        }
    }

    fn tell(self) {
        if let Some(code) = self.first {
            log::error!("{} things of a client that has ended stay in its context: {code}", self.count);
        }
    }
}
