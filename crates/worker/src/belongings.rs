//! What a program has in a context, as the driver's handles: all of it is given back when the program ends, in whatever
//! state it is then.

use std::collections::{BTreeMap, HashMap, HashSet};

use rekindle_cuda::CuResult;
use rekindle_device::{
    Array, Device, Event, Graph, GraphExec, Memory, Module, Part, Result, Stream, ViewKind,
};

#[derive(Default)]
pub(crate) struct Belongings {
    /// The driver's, and their priorities.
    pub streams: HashMap<Stream, i32>,
    pub events: HashSet<Event>,
    pub modules: HashSet<Module>,
    pub graphs: HashSet<Graph>,
    pub execs: HashSet<GraphExec>,
    pub views: HashSet<(ViewKind, u64)>,
    pub arrays: HashSet<Array>,
    pub parts: HashSet<Part>,
    pub memory: HashSet<Memory>,
    /// Where something is mapped, and its bytes.
    pub mapped: BTreeMap<u64, u64>,
    pub reserved: HashMap<u64, u64>,
    /// Memory of the host that the GPU knows, and its bytes.
    pub registered: BTreeMap<u64, u64>,
}

impl Belongings {
    /// Whether all of this is memory of the GPU, or of the host and known to it, that is one piece.
    pub(crate) fn reaches(&self, address: u64, bytes: u64) -> bool {
        [&self.mapped, &self.registered].into_iter().any(|ranges| {
            let before = ranges.range(..=address).next_back();
            before.is_some_and(|(start, length)| {
                address - start < *length && bytes <= length - (address - start)
            })
        })
    }

    /// Gives everything back. None of its work is under way any more, and the context is current.
    pub(crate) fn give_back(&mut self, device: &dyn Device) -> Unreturned {
        let mut left = Unreturned::default();
        self.execs.drain().for_each(|exec| left.note(device.graph_exec_destroy(exec)));
        self.graphs.drain().for_each(|graph| left.note(device.graph_destroy(graph)));
        self.modules.drain().for_each(|module| left.note(device.module_unload(module)));
        self.views.drain().for_each(|(kind, number)| left.note(device.view_destroy(kind, number)));
        self.arrays.drain().for_each(|array| left.note(device.array_destroy(array)));
        self.events.drain().for_each(|event| left.note(device.event_destroy(event)));
        self.streams.drain().for_each(|(stream, _)| left.note(device.stream_destroy(stream)));
        self.parts.drain().for_each(|part| left.note(device.part_destroy(part)));
        std::mem::take(&mut self.registered)
            .into_keys()
            .for_each(|address| left.note(device.host_unregister(address)));
        std::mem::take(&mut self.mapped)
            .into_iter()
            .for_each(|(address, bytes)| left.note(device.unmap(address, bytes)));
        self.memory.drain().for_each(|memory| left.note(device.memory_release(memory)));
        self.reserved.drain().for_each(|(address, bytes)| left.note(device.unreserve(address, bytes)));
        left
    }
}

/// What could not be given back, which stays until the context's end.
#[derive(Default)]
pub(crate) struct Unreturned {
    count: usize,
    first: Option<CuResult>,
}

impl Unreturned {
    pub(crate) fn note(&mut self, done: Result<()>) {
        if let Err(code) = done {
            self.count += 1;
            self.first.get_or_insert(code);
        }
    }

    /// False if there is something.
    pub(crate) fn is_nothing(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn tell(&self) {
        if let Some(code) = self.first {
            log::error!("{} things of a client that has ended stay in its context: {code}", self.count);
        }
    }
}
