//! A client: all that one program has on GPUs, and what is done with it for each request.
//!
//! It belongs to its dispatch thread. Nothing here blocks on the GPU: whoever must wait is put on the list of [`waiting`]
//! and answered when the work is done.

mod alone;
mod arrays;
mod assumed;
mod backlog;
mod behind;
mod capture;
mod constants;
mod context;
mod copy_order;
mod copy_room;
mod demand;
mod events;
mod faults;
mod first_use;
mod graph_changes;
mod graph_shape;
mod graphs;
mod handler;
mod links;
mod memory;
mod modules;
mod numbers;
mod objects;
mod outlive;
mod parts;
mod pieces;
mod rebuild;
mod recipe;
mod room;
mod settle;
mod signature;
mod stack;
mod staging;
mod status;
mod streams;
mod table;
mod turns;
mod unfold;
mod virtual_memory;
mod waiting;
mod waits;
mod work;
mod write_sets;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rekindle_cuda::{CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_DEVICE, CuResult};
use rekindle_device::{Device, Event, Result, Stream};
use rekindle_protocol::client::Uncollected;
use rekindle_protocol::operation::Id;
use rekindle_ring::{Board, Ring};

use crate::data::Data;
use crate::exchange::Exchange;
use crate::gpus::Gpus;
use crate::image::{Shadow, Unused};
use crate::ipc::Ipc;
use crate::link::Link;
use crate::memory::{Heap, VirtualMemory};
use crate::ondemand::Told;
use crate::printed::ProgramOutput;

pub(crate) use crate::memory::Pinned;
pub(crate) use alone::Request;
pub(crate) use arrays::{ArrayObject, ViewObject};
pub(crate) use constants::Bank;
pub(crate) use context::Context;
pub(crate) use copy_room::RoomRequest;
pub(crate) use events::{DISABLE_TIMING, INTERPROCESS};
pub(crate) use faults::Mending;
pub(crate) use numbers::{Maker, Missed, renumber};
pub(crate) use objects::{
    Built, EventJoin, EventObject, ExecObject, FunctionObject, GlobalGiven, GraphObject, Mark, ModuleObject,
    PartObject, StreamObject,
};
use outlive::AtRest;
pub(crate) use outlive::NoteProgress;
pub(crate) use pieces::{Body, GlobalsBuffer, LoadedPiece, Pieces, load};
pub(crate) use recipe::{GraphStep, Recipe, Recording, Step};
pub(crate) use room::Room;
pub(crate) use staging::{Lane, staged_by};
pub(crate) use table::Table;
pub(crate) use turns::{KernelKey, Turn, Turns};
pub(crate) use waiting::Waiting;
use waits::Waits;
pub(crate) use write_sets::{KernelWriteSet, ModuleWriteSets};

/// One thread of the program.
pub(crate) struct Thread {
    /// The client's number for the ring.
    pub index: u32,
    pub name: String,
    pub ring: Ring,
    pub lane: Lane,
    /// The per-thread default stream, on each device.
    pub streams: Vec<Option<StreamObject>>,
}

pub(crate) struct Client {
    pub gpus: Arc<Gpus>,
    /// What it has on each GPU, as its program numbers them; none where it has no context.
    pub contexts: Vec<Option<Context>>,
    /// The GPU that the last operation was for.
    bound: usize,
    pub directory: PathBuf,
    pub board_name: String,
    pub board: Option<&'static Board>,
    backlogs: backlog::Backlogs,
    /// The program's pid as this worker sees it, 0 until it was told.
    pub pid: i32,
    /// Whether the driver half of its process is attached, as far as this worker was told.
    pub driver_attached: bool,
    /// What was on its way to threads of the program when it came to its stop.
    pub uncollected: Vec<Uncollected>,
    /// Memory whose contents nobody will read, while the program stands still; and what that was when it was asked before.
    pub unused: Unused,
    pub unused_before: Unused,
    /// Code is loaded that may print.
    pub may_print: bool,
    /// The program's standard output, once it is known which process it is.
    pub output: ProgramOutput,
    pub link: Arc<Link>,
    pub threads: Vec<Thread>,
    pub streams: Table<StreamObject>,
    /// Streams that were destroyed and whose room in the driver's heaps no later one has taken over.
    pub former_streams: Vec<StreamObject>,
    /// Multiprocessors that the program has divided off.
    pub parts: Table<PartObject>,
    pub events: Table<EventObject>,
    pub modules: Table<ModuleObject>,
    /// Modules that were unloaded and whose globals still shape the addresses of later ones.
    pub unloaded: Vec<ModuleObject>,
    pub functions: Table<FunctionObject>,
    pub graphs: Table<GraphObject>,
    pub execs: Table<ExecObject>,
    /// Launches of graphs so far.
    pub graph_launches: u64,
    /// Instances of graphs that were not made since a restore, those first that are best made first.
    pub unmade: VecDeque<Id>,
    /// By the client's numbers, which go on.
    pub arrays: BTreeMap<Id, ArrayObject>,
    /// Textures and surfaces, in the order in which they were made.
    pub views: Vec<ViewObject>,
    pub virtual_memory: VirtualMemory,
    pub pinned: Vec<Pinned>,
    /// Whoever takes an image knows what the program writes there from now on, until that is copied.
    pub pinned_is_followed: bool,
    /// Faults are to be mended, and the program is not to see them.
    pub mending: Option<Mending>,
    /// What is noted before the program is told of it, where the loss of this worker is to be mended.
    pub told: Told,
    /// This worker has started again to mend one.
    pub mended: bool,
    /// Whatever it has allocated has memory, also where that would come at the first use.
    pub has_memory_at_once: bool,
    /// A request was not done for want of memory at its first use: where, and what the program is to be told.
    lacking: Option<(usize, CuResult)>,
    pub recordings: HashMap<u64, Recording>,
    pub waiting: Waiting,
    /// The program knows where constants of some module in pieces are.
    pub constants_told: bool,
    /// Of module loads, look-ups and streams made: their order decides where globals lie.
    pub turns: Arc<Turns>,
    pub operations: u64,
    /// Whether streams were told to wait for values, which the program may write.
    pub waits_for_values: bool,
    /// Whether graphs were made that call the program's functions.
    pub calls_in_graphs: bool,
    pub transferred: Transferred,
    /// What an image is written from beside the program.
    pub shadow: Option<Shadow>,
    /// It has changed memory that no request was known to write to while that was written to an image.
    pub writes_unnamed: bool,
    /// Rooms for the copy of an image that is being made ready.
    pub copy_rooms: Vec<Room>,
    /// Declared data that is on its way, or cannot be had.
    pub data: Data,
    /// When its requests waited for bytes.
    pub waits: Waits,
    /// Arrays that other functions have handed on.
    pub exchange: Exchange,
    /// Memory and events that other processes of the program have too.
    pub ipc: Ipc,
    /// What was last noted of it at rest, in a context that others share.
    at_rest: Option<AtRest>,
    /// Its context has failed, and it goes on with what was noted.
    leaving: bool,
    outputs: u32,
    fault: Option<String>,
}

/// How many bytes have gone between the host and the GPUs for the program.
#[derive(Clone, Copy, Default)]
pub(crate) struct Transferred {
    pub to_gpu: u64,
    pub from_gpu: u64,
}

impl Client {
    /// It has a context on the first GPU from the start.
    pub(crate) fn new(gpus: Arc<Gpus>, output: ProgramOutput, link: Arc<Link>) -> Result<Client> {
        let mut client = Client {
            contexts: (0..gpus.count()).map(|_| None).collect(),
            gpus,
            bound: 0,
            directory: PathBuf::new(),
            board_name: String::new(),
            board: None,
            backlogs: backlog::Backlogs::default(),
            pid: 0,
            driver_attached: true,
            uncollected: Vec::new(),
            unused: Unused::default(),
            unused_before: Unused::default(),
            may_print: false,
            output,
            link,
            threads: Vec::new(),
            streams: Table::default(),
            former_streams: Vec::new(),
            parts: Table::default(),
            events: Table::default(),
            modules: Table::default(),
            unloaded: Vec::new(),
            functions: Table::default(),
            graphs: Table::default(),
            execs: Table::default(),
            graph_launches: 0,
            unmade: VecDeque::new(),
            arrays: BTreeMap::new(),
            views: Vec::new(),
            virtual_memory: VirtualMemory::default(),
            pinned: Vec::new(),
            pinned_is_followed: false,
            mending: None,
            told: Told::default(),
            mended: false,
            has_memory_at_once: false,
            lacking: None,
            recordings: HashMap::new(),
            waiting: Waiting::default(),
            constants_told: false,
            turns: Arc::default(),
            operations: 0,
            waits_for_values: false,
            calls_in_graphs: false,
            transferred: Transferred::default(),
            shadow: None,
            writes_unnamed: false,
            copy_rooms: Vec::new(),
            data: Data::default(),
            waits: Waits::default(),
            exchange: Exchange::default(),
            ipc: Ipc::default(),
            at_rest: None,
            leaving: false,
            outputs: 0,
            fault: None,
        };
        client.open(0)?;
        Ok(client)
    }

    /// Gives the program a context on a device, if it has none yet, and makes it current.
    pub(crate) fn open(&mut self, device: usize) -> Result<()> {
        let context = self.contexts.get_mut(device).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
        if context.is_none() {
            let gpu = self.gpus.open(device)?;
            let context = context.insert(Context::new(gpu, self.gpus.regions.clone()));
            if self.gpus.waits_for_uses() && !self.has_memory_at_once {
                context.heap.wait_for_uses();
                if let Some(view) = &context.gpu.view {
                    context.heap.recycle_through(view.clone());
                }
            }
            self.begin_behind_copies(device)?;
        }
        self.bind(device)
    }

    /// Makes a device's context current on this thread.
    #[inline]
    pub(crate) fn bind(&mut self, device: usize) -> Result<()> {
        let current = self.context(device)?.device.bind();
        self.bound = device;
        current
    }

    /// A device with a context. The first has one from the start.
    pub(crate) fn any_device(&self) -> Result<Arc<dyn Device>> {
        let context = self.contexts.iter().flatten().next();
        Ok(context.ok_or(CUDA_ERROR_INVALID_CONTEXT)?.device.clone())
    }

    /// The device that the last operation was for.
    pub(crate) fn bound(&self) -> usize {
        self.bound
    }

    #[inline]
    pub(crate) fn context(&self, device: usize) -> Result<&Context> {
        let context = self.contexts.get(device).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
        context.as_ref().ok_or(CUDA_ERROR_INVALID_CONTEXT)
    }

    #[inline]
    pub(crate) fn context_mut(&mut self, device: usize) -> Result<&mut Context> {
        let context = self.contexts.get_mut(device).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
        context.as_mut().ok_or(CUDA_ERROR_INVALID_CONTEXT)
    }

    /// The device, with its context made current.
    #[inline]
    pub(crate) fn on(&mut self, device: usize) -> Result<&dyn Device> {
        self.bind(device)?;
        Ok(&*self.context(device)?.device)
    }

    pub(crate) fn heap(&mut self, device: usize) -> Result<&mut Heap> {
        Ok(&mut self.context_mut(device)?.heap)
    }

    /// A file of the run directory, if the name that the program sent is one.
    pub(crate) fn run_file(&self, name: &str) -> Option<PathBuf> {
        crate::memory::is_plain_name(name).then(|| self.directory.join(name))
    }

    pub(crate) fn run_directory(&self) -> &Path {
        &self.directory
    }

    /// A name for a file that the worker makes in the run directory.
    pub(crate) fn output_name(&mut self) -> String {
        self.outputs += 1;
        format!("linked-{}-{}", std::process::id(), self.outputs)
    }

    pub(crate) fn event_of(&mut self, device: usize) -> Result<Event> {
        let context = self.context_mut(device)?;
        match context.scratch.pop() {
            Some(event) => Ok(event),
            None => context.device.event_create(waiting::SCRATCH_EVENT),
        }
    }

    pub(crate) fn give_event(&mut self, device: usize, event: Event) {
        if let Ok(context) = self.context_mut(device) {
            context.scratch.push(event);
        }
    }

    /// An event of the client's own, recorded on a stream now.
    pub(crate) fn record(&mut self, device: usize, stream: Stream) -> Result<Event> {
        self.bind(device)?;
        let event = self.event_of(device)?;
        match self.context(device)?.device.event_record(event, stream, 0) {
            Ok(()) => Ok(event),
            Err(code) => {
                self.give_event(device, event);
                Err(code)
            }
        }
    }

    /// True when no work is under way on any device; looks for faults on the way.
    pub(crate) fn is_at_rest(&mut self) -> bool {
        let mut rest = true;
        for device in self.open_devices() {
            match self.is_idle(device) {
                Ok(idle) => rest &= idle,
                Err(code) => {
                    self.note_fault(device, code);
                    rest = false;
                }
            }
        }
        rest
    }

    /// The devices on which it has a context.
    pub(crate) fn open_devices(&self) -> impl Iterator<Item = usize> + use<> {
        let open: Vec<usize> =
            (0..self.contexts.len()).filter(|device| self.contexts[*device].is_some()).collect();
        open.into_iter()
    }
}
