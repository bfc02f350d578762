//! The program's objects, each with what a checkpoint must know to make it again.

use std::sync::{Arc, OnceLock};

use rekindle_device::{
    Event, Function, Graph, GraphExec, GraphNode, KernelSettings, ModuleKind, Part, Stream,
};
use rekindle_protocol::operation::Id;

use super::events::DISABLE_TIMING;
use super::{Bank, Body, KernelWriteSet, ModuleWriteSets, Recipe};
use crate::code::LoadedCode;

#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamObject {
    pub device: usize,
    pub flags: u32,
    pub priority: i32,
    pub handle: Stream,
    /// It may have unfinished work.
    pub busy: bool,
    /// Pieces of work that it was given, as they are counted around.
    pub issued: u32,
    /// When it was made, as [`ModuleObject::loaded_at`] counts.
    pub at: u64,
    /// The part of the multiprocessors that it was made on; none: all.
    pub part: Option<Id>,
}

/// Multiprocessors that streams are made on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartObject {
    pub device: usize,
    pub units: u64,
    pub handle: Part,
    pub meeting: EventJoin,
}

/// Where the streams of a part, or of a device, meet for an event.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EventJoin {
    /// A stream that waits for them, or that they have waited for; made when it is first needed.
    pub stream: Option<Stream>,
    /// Later streams begin behind what it has.
    pub holds: bool,
}

/// A moment on a device: an event recorded in this worker's life, and its time in milliseconds on the program's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub event: Event,
    pub time: f64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct EventObject {
    pub device: usize,
    pub flags: u32,
    pub handle: Event,
    pub recorded: bool,
    /// The time on the program's clock, for an event that was recorded before the restore and not again since.
    pub restored: Option<f64>,
}

impl EventObject {
    pub(crate) fn keeps_time(&self) -> bool {
        self.flags & DISABLE_TIMING == 0
    }
}

pub(crate) struct ModuleObject {
    pub device: usize,
    pub kind: ModuleKind,
    pub options: Vec<(i32, u64)>,
    pub code: LoadedCode,
    pub body: Body,
    pub loaded_at: u64,
    /// Moments of look-ups, loads and streams share one count; none while it is loaded.
    pub unloaded_at: Option<u64>,
    pub globals: Vec<GlobalGiven>,
    /// Why it could not be taken apart, if that was tried.
    pub whole: Option<String>,
    pub write_sets: ModuleWriteSets,
}

/// A global whose address the program asked for.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct GlobalGiven {
    pub name: String,
    pub address: u64,
    pub bytes: u64,
    pub at: u64,
}

pub(crate) struct FunctionObject {
    pub device: usize,
    pub module: Id,
    pub name: String,
    /// None until the kernel is loaded.
    pub handle: Option<Function>,
    /// Constants that a launch has to fill before.
    pub bank: Option<Bank>,
    /// When it was looked up, in a module that is whole.
    pub at: u64,
    /// How many operations the program had made when it was last launched.
    pub used: u64,
    pub settings: KernelSettings,
    pub write_set: OnceLock<KernelWriteSet>,
}

/// A graph of the device, and its nodes by their numbers.
pub(crate) type Built = (Graph, Vec<GraphNode>);

pub(crate) struct GraphObject {
    pub device: usize,
    /// None where the recipe was changed since.
    pub built: Option<Built>,
    pub recipe: Arc<Recipe>,
    /// The graph and the node that have this one in them, and which of the node's bodies it is.
    pub within: Option<(Id, u32, u32)>,
}

pub(crate) struct ExecObject {
    pub device: usize,
    /// None until it is made after a restore, see [`Client::make_ahead`](super::Client::make_ahead).
    pub handle: Option<GraphExec>,
    pub flags: u64,
    /// Of the graph as it was when this was instantiated, with what was changed since.
    pub recipe: Arc<Recipe>,
    /// Some of that is not in the instance yet.
    pub is_stale: bool,
    /// Which launch of a graph was its last one, as they are counted; 0 for none.
    pub used: u64,
}
