//! What a client has of a context that it shares: all of it is given back when the client ends, in whatever state it is
//! then.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use rekindle_device::{Device, Memory, Module, Stream};

use super::division::Portion;
use super::piece_cache::PieceCache;
use crate::belongings::Belongings;

#[derive(Default)]
pub(super) struct Owned {
    /// Its alone.
    belongings: Belongings,
    /// Streams that others have taken the places of, and whose work is not done, with what they are on.
    pub former: Vec<(Stream, Option<Arc<Portion>>)>,
    /// Pieces that others may have too, and how often it has taken each.
    pub pieces: HashMap<Module, usize>,
    /// Memory that others may have by a descriptor.
    pub exported: HashSet<Memory>,
    /// Where memory is mapped that others may have taken since, as one of `mapped`.
    pub passed_on: HashSet<u64>,
}

impl Deref for Owned {
    type Target = Belongings;

    fn deref(&self) -> &Belongings {
        &self.belongings
    }
}

impl DerefMut for Owned {
    fn deref_mut(&mut self) -> &mut Belongings {
        &mut self.belongings
    }
}

impl Owned {
    pub(super) fn new(belongings: Belongings) -> Owned {
        Owned { belongings, ..Owned::default() }
    }

    /// All that may have work.
    pub(super) fn all_streams(&self) -> Vec<Stream> {
        self.streams.keys().copied().chain(self.former.iter().map(|(stream, _)| *stream)).collect()
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
        let mut left = self.belongings.give_back(device);
        for (module, times) in self.pieces.drain() {
            (0..times).for_each(|_| left.note(pieces.give(device, module)));
        }
        self.former.drain(..).for_each(|(stream, _)| left.note(device.stream_destroy(stream)));
        if !has_failed {
            left.tell();
        }
    }
}
