//! The table of operations. Order is the wire format: further ones come last, since the client of an image may be older.

use rekindle_device::{
    ArrayCopy, ArrayDescription, Capture, Copy3D, FunctionInfo, Launch, LaunchAttributes, MemorySet,
    ModuleKind, Units, View, ViewKind,
};
use serde::{Deserialize, Serialize};

use super::{CaptureEnds, Id, NodeAction, NodeFound, operations};

/// Where code lies that the client wants loaded.
#[derive(Debug, Serialize, Deserialize)]
pub enum CodeSource<'a> {
    /// In the trailer.
    Trailer,
    /// In a read-only mapping of a file that both sides can open: the cheap way for a library's fatbin.
    File { path: &'a str, offset: u64, bytes: u64 },
    /// In a file of the run directory, which the worker removes after mapping it.
    Shared { name: &'a str, bytes: u64 },
}

/// Whose nodes are meant.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum NodesOf {
    Graph(Id),
    /// Those of the graph that it was instantiated from, as they were then.
    Exec(Id),
}

/// A module that was loaded.
#[derive(Debug, Serialize, Deserialize)]
pub struct ModuleLoaded {
    /// A driver result code, 0 for success: the log is given in either case.
    pub status: i32,
    pub log: String,
}

/// A kernel that was found.
#[derive(Debug, Serialize, Deserialize)]
pub struct FunctionFound {
    pub info: FunctionInfo,
}

/// One input of a link: its bytes follow the ones before it in the trailer or shared file.
#[derive(Debug, Serialize, Deserialize)]
pub struct LinkPart {
    pub kind: u32,
    pub name: String,
    pub bytes: u64,
}

/// What a link gave: the cubin lies in a file of the run directory.
#[derive(Debug, Serialize, Deserialize)]
pub struct Linked {
    pub status: i32,
    pub log: String,
    pub name: String,
    pub bytes: u64,
}

/// What comes of something that the memory daemon has a part in: else the number of a kind ([`crate::data::ProblemKind`]), and a
/// sentence.
pub type DataOutcome<T> = Result<T, (u32, String)>;

/// What work of a program has waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitFor {
    /// Declared data that was on its way.
    Data,
    /// Contents of its image that were still being loaded.
    Image,
    /// Memory that it was about to change, and that was being written to an image first.
    Checkpoint,
}

/// How it stands with data that was declared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataFound {
    /// Some of it is still to come.
    pub loading: bool,
    /// Why it cannot be had: the number of a kind ([`crate::data::ProblemKind`]), and a sentence.
    pub problem: Option<(u32, String)>,
}

operations! {
    // Context.

    /// Makes the device's context, if it is not there yet. Every other operation on the device needs it.
    sync context_open ContextOpen { device: u8 } -> ();
    /// Waits for all work of the device, from every thread.
    sync context_synchronize ContextSynchronize { device: u8 } -> ();
    sync limit_get LimitGet { device: u8, limit: u32 } -> u64;
    sync limit_set LimitSet { device: u8, limit: u32, value: u64 } -> ();
    /// Frees everything of the device: `cuDevicePrimaryCtxReset`, or the last release.
    sync context_reset ContextReset { device: u8 } -> ();

    // Memory.

    /// Free and total bytes.
    sync memory_info MemoryInfo { device: u8 } -> (u64, u64);
    /// `cuMemAlloc`: the address.
    sync memory_allocate MemoryAllocate { device: u8, bytes: u64 } -> u64;
    /// `cuMemFree`: waits for the device, as the driver does.
    sync memory_free MemoryFree { device: u8, address: u64 } -> ();
    /// `cuMemAllocAsync`: the address; usable by work that the stream does from now on.
    sync memory_allocate_async MemoryAllocateAsync { device: u8, bytes: u64, stream: Id } -> u64;
    async memory_free_async MemoryFreeAsync { device: u8, address: u64, stream: Id };
    /// Gives memory that freed stream-ordered allocations left behind back to the device.
    async pool_trim PoolTrim { device: u8, keep: u64 };
    /// The allocation that holds an address: (base, bytes, device).
    sync memory_range MemoryRange { address: u64 } -> (u64, u64, u8);
    /// `cuMemAddressReserve`; `address` is a wish, 0 for none.
    sync address_reserve AddressReserve { bytes: u64, alignment: u64, address: u64 } -> u64;
    sync address_free AddressFree { address: u64, bytes: u64 } -> ();
    sync physical_create PhysicalCreate { device: u8, id: Id, bytes: u64 } -> ();
    sync physical_release PhysicalRelease { id: Id } -> ();
    sync physical_map PhysicalMap { address: u64, bytes: u64, id: Id } -> ();
    sync physical_unmap PhysicalUnmap { address: u64, bytes: u64 } -> ();
    /// `access` is `CUmemAccess_flags`: 0 none, 1 read, 3 read and write.
    sync physical_protect PhysicalProtect { device: u8, address: u64, bytes: u64, access: u32 } -> ();
    /// A file `name` of the run directory, which the client has mapped at `address`, becomes pinned memory.
    sync pinned_register PinnedRegister<'a> { device: u8, name: &'a str, address: u64, bytes: u64 } -> ();
    /// Waits for the device; the worker unmaps and removes the file.
    sync pinned_unregister PinnedUnregister { device: u8, address: u64 } -> ();

    // Modules.

    sync module_load ModuleLoad<'a> { device: u8, id: Id, kind: ModuleKind, #[serde(borrow)] source: CodeSource<'a>, options: Vec<(i32, u64)> } -> ModuleLoaded;
    sync module_unload ModuleUnload { id: Id } -> ();
    sync function_get FunctionGet<'a> { module: Id, id: Id, name: &'a str } -> FunctionFound;
    sync function_names FunctionNames { module: Id } -> Vec<String>;
    /// The 16 attributes, after `FunctionSet` changed some.
    sync function_set FunctionSet { id: Id, attribute: i32, value: i32 } -> FunctionInfo;
    async function_cache FunctionCache { id: Id, config: i32 };
    /// Address and bytes.
    sync global_get GlobalGet<'a> { module: Id, name: &'a str } -> (u64, u64);
    /// The inputs' bytes lie one after the other in the trailer, or in `shared` if that is not empty.
    sync link Link<'a> { device: u8, parts: Vec<LinkPart>, shared: &'a str, options: Vec<(i32, u64)> } -> Linked;
    sync occupancy_blocks OccupancyBlocks { function: Id, block: i32, shared: u64, flags: u32 } -> i32;
    sync occupancy_shared OccupancyShared { function: Id, blocks: i32, block: i32 } -> u64;
    /// `size` false: most active clusters; true: largest cluster size.
    sync occupancy_clusters OccupancyClusters { function: Id, launch: Launch, size: bool } -> i32;
    /// See `Device::tensor_map`; 128 bytes.
    sync tensor_map TensorMap<'a> { device: u8, kind: u32, arguments: &'a [u8] } -> Vec<u8>;

    // Streams and events.

    async stream_create StreamCreate { device: u8, id: Id, flags: u32, priority: i32 };
    async stream_destroy StreamDestroy { id: Id };
    sync stream_query StreamQuery { device: u8, stream: Id } -> bool;
    sync stream_synchronize StreamSynchronize { device: u8, stream: Id } -> ();
    async stream_wait_event StreamWaitEvent { device: u8, stream: Id, event: Id, flags: u32 };
    async event_create EventCreate { device: u8, id: Id, flags: u32 };
    async event_destroy EventDestroy { id: Id };
    async event_record EventRecord { device: u8, stream: Id, event: Id, flags: u32 };
    sync event_query EventQuery { event: Id } -> bool;
    sync event_synchronize EventSynchronize { event: Id } -> ();
    /// Milliseconds.
    sync event_elapsed EventElapsed { start: Id, end: Id } -> f32;

    // Work. Trailer of launches: the packed parameters.

    async launch_kernel LaunchKernel { device: u8, stream: Id, function: Id, grid: [u32; 3], block: [u32; 3], shared: u32 };
    async launch_kernel_with LaunchKernelWith { device: u8, stream: Id, function: Id, grid: [u32; 3], block: [u32; 3], shared: u32, cooperative: bool, attributes: LaunchAttributes };
    /// Device or pinned memory on both sides.
    async copy Copy { device: u8, stream: Id, to: u64, from: u64, bytes: u64 };
    async copy_strided CopyStrided { device: u8, stream: Id, copy: Copy3D };
    /// From the ring's staging area; complete means that the piece up to `end` may be reused.
    async upload Upload { device: u8, stream: Id, to: u64, offset: u64, bytes: u64, end: u64 };
    /// To the ring's staging area; complete means that the bytes are there.
    async download Download { device: u8, stream: Id, from: u64, offset: u64, bytes: u64, end: u64 };
    async memory_set SetMemory { device: u8, stream: Id, set: MemorySet };
    async wait_value WaitValue { device: u8, stream: Id, address: u64, value: u64, width: u32, flags: u32 };
    async write_value WriteValue { device: u8, stream: Id, address: u64, value: u64, width: u32, flags: u32 };
    /// The worker sends `Call { token }` over the control socket when the stream gets there, and waits for its end.
    async host_call HostCall { device: u8, stream: Id, token: u64 };

    // Graphs.

    sync capture_begin CaptureBegin { device: u8, stream: Id, mode: u32 } -> ();
    /// The graph gets `graph`; the reply says how many nodes it has.
    sync capture_end CaptureEnd { device: u8, stream: Id, graph: Id } -> u32;
    sync capture_status CaptureStatus { device: u8, stream: Id } -> Capture;
    sync graph_create GraphCreate { device: u8, graph: Id } -> ();
    /// Nodes are numbered within their graph in the order in which they were added. Trailer: packed parameters.
    sync graph_add_kernel GraphAddKernel { graph: Id, after: Vec<u32>, function: Id, launch: Launch } -> u32;
    sync graph_add_copy GraphAddCopy { graph: Id, after: Vec<u32>, copy: Copy3D } -> u32;
    sync graph_add_set GraphAddSet { graph: Id, after: Vec<u32>, set: MemorySet } -> u32;
    sync graph_add_empty GraphAddEmpty { graph: Id, after: Vec<u32> } -> u32;
    /// `CUgraphNodeType` of each node.
    sync graph_nodes GraphNodes { graph: Id } -> Vec<u32>;
    sync graph_destroy GraphDestroy { graph: Id } -> ();
    sync graph_instantiate GraphInstantiate { graph: Id, exec: Id, flags: u64 } -> ();
    async graph_launch GraphLaunch { device: u8, exec: Id, stream: Id };
    sync graph_exec_destroy GraphExecDestroy { exec: Id } -> ();
    /// The node has the child as it is now.
    sync graph_add_child GraphAddChild { graph: Id, after: Vec<u32>, child: Id } -> u32;

    // Declared data.

    /// A new buffer of so many bytes, into which an object of a store is loaded: the address. Work that names it waits.
    sync data_load DataLoad<'a> { device: u8, url: &'a str, bytes: u64 } -> u64;
    /// How it stands with what is loaded to this address; with `wait`, when that has ended.
    sync data_state DataState { address: u64, wait: bool } -> DataFound;

    // What functions hand on.

    /// Keeps a copy of memory for others, until so long after its last use or so many uses (0: any number): its name. Nobody
    /// writes there meanwhile.
    sync exchange_put ExchangePut { device: u8, address: u64, bytes: u64, expiry_ms: u64, uses: u32 } -> DataOutcome<String>;
    /// Maps what has this name and size: the address.
    sync exchange_get ExchangeGet<'a> { device: u8, id: &'a str, bytes: u64 } -> DataOutcome<u64>;
    /// Nobody needs it any more, or with `use_only` one of those that it was put for.
    sync exchange_drop ExchangeDrop<'a> { device: u8, id: &'a str, use_only: bool } -> DataOutcome<()>;

    // Waits that give way: false where the program is to stand still before what is waited for has come. Whoever waits is to
    // ask again when the program goes on.

    sync context_await ContextAwait { device: u8 } -> bool;
    sync stream_await StreamAwait { device: u8, stream: Id } -> bool;
    sync event_await EventAwait { event: Id } -> bool;

    // CUDA IPC. Handles are opaque to the client.

    /// `cuIpcGetMemHandle`: a handle of the allocation that begins there.
    sync ipc_memory_export IpcMemoryExport { device: u8, address: u64 } -> Vec<u8>;
    /// `cuIpcOpenMemHandle`: where the allocation begins here, and its bytes.
    sync ipc_memory_open IpcMemoryOpen<'a> { device: u8, handle: &'a [u8] } -> (u64, u64);
    /// `cuIpcCloseMemHandle`, once or as often as it was opened: whether it is open no more.
    sync ipc_memory_close IpcMemoryClose { device: u8, address: u64, all: bool } -> bool;
    /// `cuIpcGetEventHandle`.
    sync ipc_event_export IpcEventExport { event: Id } -> Vec<u8>;
    /// `cuIpcOpenEventHandle`: the event gets `event`.
    sync ipc_event_open IpcEventOpen<'a> { device: u8, event: Id, handle: &'a [u8] } -> ();
    /// Records an event of several processes; when this is answered, all of them know of it.
    sync ipc_event_record IpcEventRecord { device: u8, stream: Id, event: Id } -> ();
    /// Has a stream wait for what such an event was recorded for last.
    sync ipc_event_wait IpcEventWait { device: u8, stream: Id, event: Id } -> ();

    // Changes of what nodes do.

    /// Trailer: packed parameters.
    sync graph_set_kernel GraphSetKernel { of: NodesOf, node: u32, function: Id, launch: Launch } -> ();
    sync graph_set_copy GraphSetCopy { of: NodesOf, node: u32, copy: Copy3D } -> ();
    sync graph_set_set GraphSetSet { of: NodesOf, node: u32, set: MemorySet } -> ();
    /// The node has the child as it is now.
    sync graph_set_child GraphSetChild { of: NodesOf, node: u32, child: Id } -> ();
    /// An instance does what the graph does, if that has the same shape: `CUgraphExecUpdateResult`.
    sync graph_exec_update GraphExecUpdate { exec: Id, graph: Id } -> u32;

    // Arrays, and the textures and surfaces by which kernels use them.

    sync array_create ArrayCreate { device: u8, id: Id, description: ArrayDescription } -> ();
    /// Waits for the device.
    sync array_destroy ArrayDestroy { id: Id } -> ();
    async copy_array CopyArray { device: u8, stream: Id, copy: ArrayCopy<Id> };
    /// The object's number, which is the device's own: kernels get it as an argument.
    sync view_create ViewCreate { device: u8, view: View<Id> } -> u64;
    sync view_destroy ViewDestroy { device: u8, kind: ViewKind, number: u64 } -> ();
    // Nodes of any kind, edges, and captures into graphs. From here on captured nodes are as others: they are numbered in the
    // order in which they were captured.

    sync graph_add GraphAdd { graph: Id, after: Vec<u32>, action: NodeAction } -> u32;
    /// The path leads into graphs in nodes: node and body, from the outermost on.
    sync graph_set GraphSet { of: NodesOf, path: Vec<(u32, u32)>, node: u32, action: NodeAction } -> ();
    /// As many of the nodes from this number on as fit an answer.
    sync graph_topology GraphTopology { graph: Id, from: u32 } -> Vec<Option<NodeFound>>;
    /// What a node does.
    sync graph_node GraphNode { graph: Id, node: u32 } -> NodeAction;
    /// Adds edges, or takes them away: the second of each pair comes after the first.
    sync graph_edges GraphEdges { graph: Id, edges: Vec<(u32, u32)>, add: bool } -> ();
    /// Takes a node out. Its number is not used again.
    sync graph_remove GraphRemove { graph: Id, node: u32 } -> ();
    sync graph_clone GraphClone { graph: Id, clone: Id } -> ();
    /// The graph in a child node, or a body of a conditional one, gets a number of its own. It lives as long as its node.
    sync graph_inside GraphInside { graph: Id, node: u32, body: u32, inside: Id } -> ();
    /// Whether a node of an instance does something.
    sync graph_enable GraphEnable { exec: Id, path: Vec<(u32, u32)>, node: u32, enabled: bool } -> ();
    /// What is captured becomes part of a graph: its first nodes come after these.
    sync capture_begin_into CaptureBeginInto { device: u8, stream: Id, mode: u32, graph: Id, after: Vec<u32> } -> ();
    /// How many nodes the graph has now.
    sync capture_end_into CaptureEndInto { device: u8, stream: Id, graph: Id } -> u32;
    sync capture_ends CaptureEndsOf { device: u8, stream: Id, from: u32 } -> CaptureEnds;
    /// What the next node of a captured stream comes after: these nodes too, or alone.
    sync capture_depend CaptureDepend { device: u8, stream: Id, after: Vec<u32>, alone: bool } -> ();
    /// A node of a captured stream.
    sync capture_add CaptureAdd { device: u8, stream: Id, action: NodeAction } -> ();
    /// A node of the graph of a capture, behind these: its number. It is on no stream.
    sync capture_add_behind CaptureAddBehind { device: u8, stream: Id, after: Vec<u32>, action: NodeAction } -> u32;
    // Parts of the multiprocessors: green contexts.

    /// How the multiprocessors can be divided for the program.
    sync part_units PartUnits { device: u8 } -> Units;
    /// The multiprocessors of a set of units.
    sync part_create PartCreate { device: u8, id: Id, units: u64 } -> ();
    /// Its streams, whose work is done, go with it.
    async part_destroy PartDestroy { id: Id };
    /// A non-blocking stream whose kernels run there.
    async stream_create_on StreamCreateOn { part: Id, id: Id, priority: i32 };
    /// Records an event behind all that the streams of a part have, or of the device.
    sync context_record ContextRecord { device: u8, part: Option<Id>, event: Id } -> ();
    /// Has all that the streams of a part, or of the device, are given from now on wait for an event.
    sync context_wait ContextWait { device: u8, part: Option<Id>, event: Id } -> ();

    /// `cuMemExportToShareableHandle`: a handle of the memory, as of CUDA IPC.
    sync physical_export PhysicalExport { id: Id } -> Vec<u8>;
    /// `cuMemImportFromShareableHandle`: the device that the memory lies on, and its bytes.
    sync physical_import PhysicalImport<'a> { id: Id, handle: &'a [u8] } -> (u8, u64);

    /// What the link to the host does of each of these atomic operations: `CUatomicOperationCapability`.
    sync host_atomics HostAtomics { device: u8, operations: Vec<u32> } -> Vec<u32>;
    /// A tensor map of 128 bytes for memory elsewhere.
    sync tensor_map_replace TensorMapReplace<'a> { device: u8, map: &'a [u8], address: u64 } -> Vec<u8>;
    /// What the driver says of a device by a number that libraries of its maker know: 0 is no.
    sync device_feature DeviceFeature { device: u8, feature: u32 } -> i32;
    /// As `GraphSetChild`, of a node of a graph in an instance.
    sync graph_set_child_inside GraphSetChildInside { exec: Id, path: Vec<(u32, u32)>, node: u32, child: Id } -> ();
    /// A graph that is in no other one is in a node from now on, in place of what was there, as after `graph_inside`.
    sync graph_put GraphPut { graph: Id, node: u32, body: u32, inside: Id } -> ();

    /// As `data_load`, into a buffer that the program writes to and dumps. With `create` an object that is not there is zeros.
    sync data_open DataOpen<'a> { device: u8, url: &'a str, bytes: u64, create: bool } -> u64;
    /// Writes what such a buffer holds at this place of the stream into its store, in place of what was loaded.
    sync data_dump DataDump { device: u8, stream: Id, address: u64 } -> DataOutcome<()>;
    /// How it stands with the last dump of the buffer at this address; with `wait`, when that has ended.
    sync data_dumped DataDumped { address: u64, wait: bool } -> DataFound;
    /// Bytes of an object, as many as fit an answer, and how many it has.
    sync data_read DataRead<'a> { url: &'a str, offset: u64, bytes: u32 } -> DataOutcome<(u64, Vec<u8>)>;

    /// When requests waited for bytes, of so many times at most, each once: for what, when it began (µs since 1970), and the µs.
    sync data_waits DataWaits { most: u32 } -> Vec<(WaitFor, u64, u64)>;

    /// A wait that gives way, for a stream that has as much to do as it takes to take more.
    sync stream_room StreamRoom { device: u8, stream: Id } -> bool;

    /// As `graph_topology`, of what a capture under way on this stream has made by now.
    sync capture_topology CaptureTopology { device: u8, stream: Id, from: u32 } -> Vec<Option<NodeFound>>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{Asynchronous, Synchronous};

    #[test]
    fn opcodes_and_names_agree() {
        assert_eq!(name(ContextOpen::OPCODE), Some("ContextOpen"));
        assert_eq!(name(LaunchKernel::OPCODE), Some("LaunchKernel"));
        assert_eq!(name(GraphExecDestroy::OPCODE), Some("GraphExecDestroy"));
        assert_eq!(name(u32::MAX), None);
    }
}
