//! What a worker asks of a GPU: one trait, two makers (`nvidia`, `emulated`).
//!
//! A [`Platform`] is a driver that was opened; a [`Device`] is one GPU of it with its context. Handles are small
//! numbers that mean something to the device that gave them. Every call may be made from any thread that has
//! called [`Device::bind`]; work on streams is asynchronous and its errors come from the next synchronising call,
//! as CUDA's rules say.

mod array;
mod code;
mod copy;
mod info;
mod launch;
mod node;
mod prepared;
mod slice;
mod tensor_map;
mod texture;
mod units;

pub use array::{
    ARRAY_CUBEMAP, ARRAY_LAYERED, ARRAY_SURFACE, ArrayCopy, ArrayDescription, ArrayFormat, ArrayLevel,
    CopyEnd,
};
pub use code::{Code, Global, LinkInput, LoadError, Loaded, ModuleKind};
pub use copy::{Copy3D, MemorySet, ValueOperation};
pub use info::{Access, DeviceInfo, FunctionInfo, GpuKind, Parameter, Placement, uuid_text};
pub use launch::{Capture, GraphNodeKind, Launch, LaunchAttributes};
pub use node::NodeWork;
pub use prepared::{Constants, KernelSetting, KernelSettings, Piece, PreparedCode, load_piece};
pub use slice::{PROGRAM_RANGE, Slice};
pub use tensor_map::{TENSOR_MAP_ARGUMENTS, TensorMapArguments, TensorMapWindow};
pub use texture::{
    ResourceView, Sampler, TEXTURE_AS_INTEGER, TEXTURE_NORMALIZED, TEXTURE_SRGB, Texture, TextureResource,
    View, ViewKind,
};
pub use units::Units;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rekindle_cuda::{CUDA_ERROR_NOT_SUPPORTED, CuResult};

/// What a node of a graph has the host do, at each launch; others wait for it.
pub type GraphCall = Arc<dyn Fn() + Send + Sync>;

/// Every device call answers with a driver result code on failure.
pub type Result<T> = std::result::Result<T, CuResult>;

/// Device memory of a program lies in this range, at addresses that the worker chooses (16 TiB).
pub const DEVICE_RANGE: std::ops::Range<u64> = 0x6000_0000_0000..0x7000_0000_0000;

/// Pinned host memory lies in this range, at one address in program and worker (4 TiB).
pub const PINNED_RANGE: std::ops::Range<u64> = 0x5000_0000_0000..0x5400_0000_0000;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u64);
    )*};
}

handles! {
    /// Physical memory made by [`Device::memory_create`], mapped or not.
    Memory;
    /// A loaded module or library.
    Module;
    /// A kernel of a module.
    Function;
    /// A stream; [`Stream::LEGACY`] is the default one.
    Stream;
    /// An event.
    Event;
    /// A graph that can be edited or instantiated.
    Graph;
    /// A node of a graph.
    GraphNode;
    /// A graph that can be launched.
    GraphExec;
    /// Multiprocessors that streams are made on ([`Device::part_create`]).
    Part;
    /// An array, with mipmaps or without.
    Array;
}

impl Stream {
    /// The legacy default stream (`CUstream` 0).
    pub const LEGACY: Stream = Stream(0);
}

/// A driver that was opened and initialised.
pub trait Platform: Send + Sync {
    fn kind(&self) -> GpuKind;
    /// As `cuDriverGetVersion`: 13000 is CUDA 13.0.
    fn driver_version(&self) -> i32;
    /// The driver's own version text, such as `580.159.04`.
    fn driver_name(&self) -> String;
    fn devices(&self) -> &[DeviceInfo];
    /// Makes the context of a device, or hands out the one that was made.
    fn open(&self, index: usize) -> Result<Arc<dyn Device>>;
    /// UUIDs of the GPUs whose memory this one can have mapped, to copy from it without the host.
    fn reaches(&self, index: usize) -> Vec<[u8; 16]> {
        self.devices().get(index).map(|own| own.uuid).into_iter().collect()
    }
    /// The driver's own checkpoint of another process (`cuCheckpointProcess*`); `NOT_SUPPORTED` where there is none.
    fn process_lock(&self, pid: i32, timeout_ms: u32) -> Result<()>;
    fn process_checkpoint(&self, pid: i32) -> Result<()>;
    fn process_restore(&self, pid: i32) -> Result<()>;
    fn process_unlock(&self, pid: i32) -> Result<()>;
    /// Where the driver has put its own heaps so far, in order; none where module globals need no such help to lie
    /// where they did.
    fn placements(&self) -> Vec<Placement> {
        Vec::new()
    }
    /// Has the driver put its heaps where an earlier process had them, as far as it asks for the same ones again.
    fn expect_placements(&self, _earlier: &[Placement]) {}
    /// All that a program had in the contexts was given back, and another one comes.
    fn renew_placements(&self) {}
}

/// One GPU and its context.
pub trait Device: Send + Sync {
    fn info(&self) -> &DeviceInfo;
    /// Makes this device's context current on the calling thread; costs next to nothing where it is already.
    fn bind(&self) -> Result<()>;
    /// Waits for all work of the context.
    fn synchronize(&self) -> Result<()>;
    fn limit(&self, limit: u32) -> Result<u64>;
    fn set_limit(&self, limit: u32, value: u64) -> Result<()>;

    // Memory. Sizes and addresses are multiples of `granularity`; a handle is mapped whole.

    /// Free and total bytes.
    fn memory_info(&self) -> Result<(u64, u64)>;
    /// Whether other processes take their memory of the GPU from the same.
    fn has_common_memory(&self) -> bool {
        true
    }
    fn granularity(&self) -> u64;
    /// Reserves addresses at exactly `address`; nothing is mapped there yet.
    fn reserve(&self, address: u64, bytes: u64) -> Result<()>;
    fn unreserve(&self, address: u64, bytes: u64) -> Result<()>;
    fn memory_create(&self, bytes: u64) -> Result<Memory>;
    /// As [`Device::memory_create`], of another GPU of the machine, whose memory this one can have mapped.
    fn memory_create_on(&self, _gpu: &[u8; 16], _bytes: u64) -> Result<Memory> {
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }
    fn memory_release(&self, memory: Memory) -> Result<()>;
    /// A descriptor that keeps the memory alive beyond this process.
    fn memory_export(&self, memory: Memory) -> Result<OwnedFd>;
    fn memory_import(&self, descriptor: BorrowedFd<'_>, bytes: u64) -> Result<Memory>;
    /// Maps a handle; not accessible until [`Device::protect`].
    fn map(&self, address: u64, bytes: u64, memory: Memory) -> Result<()>;
    fn unmap(&self, address: u64, bytes: u64) -> Result<()>;
    fn protect(&self, address: u64, bytes: u64, access: Access) -> Result<()>;
    /// Pins host memory that is mapped in this process, so that copies run at full speed and kernels may use it at
    /// the same address.
    fn host_register(&self, address: u64, bytes: u64) -> Result<()>;
    /// As [`Device::host_register`], for memory that this process may only read; kernels may not write it either.
    fn host_register_read_only(&self, address: u64, bytes: u64) -> Result<()>;
    fn host_unregister(&self, address: u64) -> Result<()>;

    // Modules.

    /// Takes code apart; where it has to be loaded whole, a word for the reason, which is logged.
    fn prepare(
        &self,
        code: &Code,
        options: &[(i32, u64)],
    ) -> std::result::Result<Arc<dyn PreparedCode>, &'static str>;
    /// Loads PTX, a cubin or a fatbin. The device keeps `code` as long as the module is loaded.
    fn module_load(
        &self,
        code: Code,
        kind: ModuleKind,
        options: &[(i32, u64)],
    ) -> std::result::Result<Loaded, LoadError>;
    fn module_unload(&self, module: Module) -> Result<()>;
    /// Loads a piece with these settings. In a context that clients share it may be there already, for another one.
    fn piece_load(
        &self,
        kernel: &str,
        piece: &Piece,
        settings: &KernelSettings,
    ) -> std::result::Result<(Module, Function), LoadError> {
        load_piece(self, kernel, piece, settings)
    }
    /// A loaded piece that is to have one setting more, for this client alone. It is another one after that if others have it
    /// too; the former stays loaded for what was launched of it.
    fn piece_set(
        &self,
        loaded: (Module, Function),
        setting: KernelSetting,
    ) -> std::result::Result<(Module, Function), LoadError> {
        let set = setting.apply(self, loaded.1);
        set.map(|()| loaded).map_err(|code| LoadError { code, log: String::new() })
    }
    fn function(&self, module: Module, name: &str) -> Result<Function>;
    fn function_names(&self, module: Module) -> Result<Vec<String>>;
    fn function_info(&self, function: Function) -> Result<FunctionInfo>;
    fn set_function_attribute(&self, function: Function, attribute: i32, value: i32) -> Result<()>;
    fn set_function_cache(&self, function: Function, config: i32) -> Result<()>;
    /// Address and size of a module's global or constant.
    fn global(&self, module: Module, name: &str) -> Result<(u64, u64)>;
    /// Every global and constant that this device can name, for a checkpoint.
    fn globals(&self, module: Module) -> Result<Vec<Global>>;
    /// Finds out now what [`Device::globals`] needs to know of the code, which takes long where there is much of it.
    fn expect_globals(&self, _module: Module) {}
    /// `cuLink*` in one step: a cubin, or whatever [`Device::module_load`] takes, and the log.
    fn link(
        &self,
        inputs: &[LinkInput<'_>],
        options: &[(i32, u64)],
    ) -> std::result::Result<(Vec<u8>, String), LoadError>;
    fn occupancy_blocks(&self, function: Function, block: i32, shared: u64, flags: u32) -> Result<i32>;
    fn occupancy_shared(&self, function: Function, blocks: i32, block: i32) -> Result<u64>;
    fn occupancy_clusters(&self, launch: &Launch, function: Function) -> Result<i32>;
    fn occupancy_cluster_size(&self, launch: &Launch, function: Function) -> Result<i32>;

    // Streams and events.

    /// How the multiprocessors can be divided among streams; none where they cannot.
    fn units(&self) -> Option<Units> {
        None
    }
    /// The multiprocessors of these units.
    fn part_create(&self, _units: u64) -> Result<Part> {
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }
    /// None of its streams is left.
    fn part_destroy(&self, _part: Part) -> Result<()> {
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }
    /// A non-blocking stream whose kernels run on these multiprocessors alone, and those of graphs that are captured from it.
    fn stream_create_on(&self, _part: Part, _priority: i32) -> Result<Stream> {
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }

    fn stream_create(&self, flags: u32, priority: i32) -> Result<Stream>;
    fn stream_destroy(&self, stream: Stream) -> Result<()>;
    /// True when all work of the stream is done.
    fn stream_query(&self, stream: Stream) -> Result<bool>;
    fn stream_synchronize(&self, stream: Stream) -> Result<()>;
    fn stream_wait_event(&self, stream: Stream, event: Event, flags: u32) -> Result<()>;
    /// Returns when nothing that the stream was given is kept back from the GPU: what another device is told to wait for
    /// must be there.
    fn stream_issue(&self, _stream: Stream) -> Result<()> {
        Ok(())
    }
    fn event_create(&self, flags: u32) -> Result<Event>;
    fn event_destroy(&self, event: Event) -> Result<()>;
    fn event_record(&self, event: Event, stream: Stream, flags: u32) -> Result<()>;
    /// As [`Device::stream_issue`], up to the event's last record.
    fn event_issue(&self, _event: Event) -> Result<()> {
        Ok(())
    }
    fn event_query(&self, event: Event) -> Result<bool>;
    fn event_synchronize(&self, event: Event) -> Result<()>;
    /// Milliseconds between two recorded events.
    fn event_elapsed(&self, start: Event, end: Event) -> Result<f32>;

    // Work on a stream.

    fn launch(&self, function: Function, launch: &Launch, stream: Stream, parameters: &[u8]) -> Result<()>;
    /// Asynchronous copy; each address is device memory or registered host memory.
    fn copy(&self, to: u64, from: u64, bytes: u64, stream: Stream) -> Result<()>;
    fn copy_3d(&self, copy: &Copy3D, stream: Stream) -> Result<()>;
    fn set(&self, set: &MemorySet, stream: Stream) -> Result<()>;
    /// Runs `call` on a thread of the device when the stream gets there; the stream waits for it.
    fn host_call(&self, stream: Stream, call: Box<dyn FnOnce() + Send>) -> Result<()>;
    /// `width` is 4 or 8 bytes; flags as `CUstreamWaitValue_flags` and `CUstreamWriteValue_flags`.
    fn wait_value(&self, stream: Stream, address: u64, value: u64, width: u32, flags: u32) -> Result<()>;
    fn write_value(&self, stream: Stream, address: u64, value: u64, width: u32, flags: u32) -> Result<()>;

    // Graphs.

    fn capture_begin(&self, stream: Stream, mode: u32) -> Result<()>;
    fn capture_end(&self, stream: Stream) -> Result<Graph>;
    fn capture(&self, stream: Stream) -> Result<Capture>;
    fn graph_create(&self) -> Result<Graph>;
    /// Adds a node, behind others.
    fn graph_add(&self, graph: Graph, after: &[GraphNode], work: NodeWork<'_>) -> Result<GraphNode>;
    /// A handle for one conditional node of the graph. `default` is what each launch begins with.
    fn graph_condition(&self, graph: Graph, default: Option<u32>) -> Result<u64>;
    /// `kind` is `CUgraphConditionalNodeType`. The graphs are the bodies, empty, and belong to the node.
    fn graph_add_conditional(
        &self,
        graph: Graph,
        after: &[GraphNode],
        handle: u64,
        kind: u32,
        bodies: u32,
    ) -> Result<(GraphNode, Vec<Graph>)>;
    fn graph_nodes(&self, graph: Graph) -> Result<Vec<GraphNode>>;
    fn graph_node_kind(&self, node: GraphNode) -> Result<GraphNodeKind>;
    fn graph_destroy(&self, graph: Graph) -> Result<()>;
    fn graph_instantiate(&self, graph: Graph, flags: u64) -> Result<GraphExec>;
    /// The instance does what the graph does from its next launch on, if that has the same shape: `CUgraphExecUpdateResult`,
    /// 0 if so.
    fn graph_exec_update(&self, exec: GraphExec, graph: Graph) -> Result<u32>;
    fn graph_launch(&self, exec: GraphExec, stream: Stream) -> Result<()>;
    fn graph_exec_destroy(&self, exec: GraphExec) -> Result<()>;

    /// `cuTensorMapEncode*`: arguments packed as [`TensorMapArguments`], 128 bytes back. `kind` 0 tiled, 1 im2col.
    fn tensor_map(&self, kind: u32, arguments: &[u8]) -> Result<[u8; 128]>;
    // Arrays, and the objects by which kernels read and write them.

    fn array_create(&self, _description: &ArrayDescription) -> Result<Array> {
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }
    /// No work uses it any more.
    fn array_destroy(&self, _array: Array) -> Result<()> {
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }
    /// Asynchronous, as [`Device::copy_3d`].
    fn copy_array(&self, _copy: &ArrayCopy<Array>, _stream: Stream) -> Result<()> {
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }
    /// The number of a texture or surface object, as kernels take it. Which one it is the device decides.
    fn view_create(&self, _view: &View<Array>) -> Result<u64> {
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }
    fn view_destroy(&self, _kind: ViewKind, _number: u64) -> Result<()> {
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }

    /// `cuTensorMapReplaceAddress`.
    fn tensor_map_replace(&self, _map: [u8; 128], _address: u64) -> Result<[u8; 128]> {
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }
    /// `CUatomicOperationCapability` of each `CUatomicOperation`, on memory of the host.
    fn host_atomics(&self, _operations: &[u32]) -> Result<Vec<u32>> {
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }
    /// What the driver says of the device by a number that libraries of its maker know: 0 is no.
    fn feature(&self, _feature: u32) -> Result<i32> {
        Ok(0)
    }
    /// One sentence about the fault that made this context's errors sticky, where the device knows more than the code.
    fn fault(&self) -> Option<String>;
}
