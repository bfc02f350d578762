//! What of a client at rest only its context knows, noted while there is one, so that the client outlives the context.
//!
//! All else is the worker's: objects and their numbers, code, graphs, what was allocated where. Memory outlives a context
//! by its descriptors ([`ClientDevice::keep`](crate::shared::ClientDevice::keep)).

use std::time::{Duration, Instant};

use rekindle_device::Result;
use rekindle_protocol::operation::Id;

use super::{Body, Client, EventObject};

/// Times of a device's events on the program's clock, and of the moment when they were noted.
type Times = (Vec<(Id, f64)>, f64);

/// A request waits at most so long for what is being noted.
const MOMENT: Duration = Duration::from_millis(2);

/// How much of a client is noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoteProgress {
    /// It is not at rest.
    Nothing,
    /// There is more to note.
    Some,
    All,
}

pub(super) struct AtRest {
    /// So many operations the program had asked for.
    operations: u64,
    noted: Instant,
    /// Of each device; none where it has no context.
    times: Vec<Option<Times>>,
}

impl Client {
    /// Looks whether all that was asked for is done, and notes what is to outlive the context.
    pub(crate) fn note_rest(&mut self) -> Result<NoteProgress> {
        if self.obstacle().is_some() || !self.is_at_rest() {
            return Ok(NoteProgress::Nothing);
        }
        let is_noted = self.at_rest.as_ref().is_some_and(|noted| noted.operations == self.operations);
        if !is_noted {
            self.note_globals()?;
            let times =
                (0..self.contexts.len()).map(|index| self.note_times(index)).collect::<Result<_>>()?;
            self.at_rest = Some(AtRest { operations: self.operations, noted: Instant::now(), times });
        }
        Ok(if self.gpus.keep(Instant::now() + MOMENT)? { NoteProgress::All } else { NoteProgress::Some })
    }

    /// What keeps it from coming to rest, or from outliving its context at rest.
    pub(crate) fn obstacle(&self) -> Option<&'static str> {
        let waits = !self.waiting.is_empty() || self.link.has_calls();
        waits.then_some("it waits for the GPU").or_else(|| self.lasting_obstacle())
    }

    /// As [`Client::obstacle`], but for what its GPU has to do.
    pub(super) fn lasting_obstacle(&self) -> Option<&'static str> {
        let is = |found: bool, what| found.then_some(what);
        None.or_else(|| is(!self.recordings.is_empty(), "it is capturing a graph"))
            .or_else(|| is(!self.data.is_settled(), "data that it declared is being loaded"))
            .or_else(|| is(self.data.problem().is_some(), "it holds data that could not be loaded"))
            .or_else(|| is(self.exchange.is_busy(), "it has arrays that others handed on"))
            .or_else(|| {
                is(
                    !self.arrays.is_empty() || !self.views.is_empty(),
                    "it has arrays or textures, which only its context has",
                )
            })
            .or_else(|| is(self.ipc.is_used(), "it has memory or events that other processes have too"))
    }

    /// Whether others have a part in what it has, or it captures a graph.
    pub(crate) fn has_others(&self) -> bool {
        let waits = !self.waiting.is_empty() || self.link.has_calls();
        !waits && self.obstacle().is_some()
    }

    fn note_times(&mut self, index: usize) -> Result<Option<Times>> {
        let Some(context) = &self.contexts[index] else { return Ok(None) };
        let is_timed = |event: &EventObject| event.device == index && event.recorded && event.keeps_time();
        let counts_on = context.anchor.is_some() || self.events.iter().any(|(_, event)| is_timed(event));
        // The clock of a program that has no times begins with its first ones.
        if counts_on { self.event_times(index).map(Some) } else { Ok(Some((Vec::new(), 0.0))) }
    }

    /// Has the device tell the globals of modules that are whole: their contents are the context's alone.
    fn note_globals(&mut self) -> Result<()> {
        for (_, module) in self.modules.iter() {
            if let Body::Whole(handle) = &module.body {
                self.context(module.device)?.device.globals(*handle)?;
            }
        }
        Ok(())
    }

    /// The context has failed: from now on the client is what was noted of it at rest.
    pub(crate) fn leave(&mut self) {
        self.leaving = true;
        // That of an earlier stop: what threads have not taken by now stays in their rings.
        self.uncollected.clear();
        self.gpus.set_leaving(true);
    }

    /// It stays in the context that has failed.
    pub(crate) fn stay(&mut self) {
        self.leaving = false;
        self.gpus.set_leaving(false);
    }

    /// As [`Client::event_times`] tells them, of a client that leaves its context.
    pub(super) fn times_at_rest(&self, index: usize) -> Option<Times> {
        let noted = self.at_rest.as_ref().filter(|_| self.leaving)?;
        let (times, clock) = noted.times.get(index)?.clone()?;
        Some((times, clock + noted.noted.elapsed().as_secs_f64() * 1000.0))
    }

    /// Whether contents are lost with the context: those of globals of modules that are whole.
    pub(crate) fn loses_globals(&self) -> bool {
        self.modules.iter().any(|(_, module)| match &module.body {
            Body::Whole(handle) => {
                let globals = self.context(module.device).and_then(|context| context.device.globals(*handle));
                globals.map_or(true, |globals| !globals.is_empty())
            }
            Body::Pieces(_) => false,
        })
    }
}
