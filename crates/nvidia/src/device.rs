//! One GPU behind [`Device`].
//!
//! Every call but [`NvidiaDevice::open`] and [`Device::bind`] needs the [context](crate::context) current on the calling
//! thread, which `bind` makes it. Handles are the driver's pointers; see the crate's head for what that asks of callers.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_READY};
use rekindle_device::{
    Access, Array, ArrayCopy, ArrayDescription, Capture, Code, Copy3D, Device, DeviceInfo, Event, Function,
    FunctionInfo, Global, Graph, GraphExec, GraphNode, GraphNodeKind, Launch, LinkInput, LoadError, Loaded,
    Memory, MemorySet, Module, ModuleKind, NodeWork, Part, PreparedCode, Result, Stream, Units, View,
    ViewKind,
};

use crate::driver::{Driver, call};
use crate::imported::Imported;
use crate::memory::Registered;
use crate::modules::Modules;
use crate::parts::Division;
use crate::placement::in_code;
use crate::prepared::NvidiaCode;
use crate::sys;
use crate::work::Attributes;
use crate::{context, graph, graph_work, tensor};

pub struct NvidiaDevice {
    pub(crate) driver: Arc<Driver>,
    pub(crate) context: u64,
    pub(crate) info: DeviceInfo,
    pub(crate) ordinal: i32,
    /// The ordinals of other GPUs of the program, which have access to its memory.
    pub(crate) reached_by: Vec<i32>,
    pub(crate) granularity: u64,
    pub(crate) modules: Modules,
    pub(crate) imported: Imported,
    /// How its multiprocessors are divided, once that was asked for; none where they cannot be.
    pub(crate) division: OnceLock<Option<Division>>,
}

/// The answer of a query: done, not yet, or an error.
fn ready(answer: Result<()>) -> Result<bool> {
    match answer {
        Ok(()) => Ok(true),
        Err(CUDA_ERROR_NOT_READY) => Ok(false),
        Err(code) => Err(code),
    }
}

/// A driver call of a device's method: it needs nothing that the arguments do not show.
macro_rules! ask {
    ($device:expr, $function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the function reads and writes only what it is given here, which outlives the call; handles are live
        // ones of this context by the crate's contract; the GPU checks its addresses, the driver host addresses.
        unsafe { call!($device.driver, $function($($argument),*)) }
    };
}

pub(crate) use ask;

impl Device for NvidiaDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    #[inline]
    fn bind(&self) -> Result<()> {
        context::bind(&self.driver, self.context)
    }

    fn synchronize(&self) -> Result<()> {
        ask!(self, cuCtxSynchronize())
    }

    fn limit(&self, limit: u32) -> Result<u64> {
        let mut value = 0;
        ask!(self, cuCtxGetLimit(&mut value, limit))?;
        Ok(value as u64)
    }

    fn set_limit(&self, limit: u32, value: u64) -> Result<()> {
        ask!(self, cuCtxSetLimit(limit, value as usize))
    }

    fn memory_info(&self) -> Result<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        ask!(self, cuMemGetInfo_v2(&mut free, &mut total))?;
        Ok((free as u64, total as u64))
    }

    fn granularity(&self) -> u64 {
        self.granularity
    }

    fn reserve(&self, address: u64, bytes: u64) -> Result<()> {
        self.reserve_at(address, bytes)
    }

    fn unreserve(&self, address: u64, bytes: u64) -> Result<()> {
        ask!(self, cuMemAddressFree(address, bytes as usize))
    }

    fn memory_create(&self, bytes: u64) -> Result<Memory> {
        self.create_memory(bytes)
    }

    fn memory_create_on(&self, gpu: &[u8; 16], bytes: u64) -> Result<Memory> {
        self.create_memory_on(gpu, bytes)
    }

    fn memory_release(&self, memory: Memory) -> Result<()> {
        self.release_memory(memory)
    }

    fn memory_export(&self, memory: Memory) -> Result<OwnedFd> {
        self.export_memory(memory)
    }

    fn memory_import(&self, descriptor: BorrowedFd<'_>, _bytes: u64) -> Result<Memory> {
        self.import_memory(descriptor)
    }

    fn map(&self, address: u64, bytes: u64, memory: Memory) -> Result<()> {
        ask!(self, cuMemMap(address, bytes as usize, 0, memory.0, 0))
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<()> {
        ask!(self, cuMemUnmap(address, bytes as usize))
    }

    fn protect(&self, address: u64, bytes: u64, access: Access) -> Result<()> {
        self.set_access(address, bytes, access)
    }

    fn host_register(&self, address: u64, bytes: u64) -> Result<()> {
        self.register(address, bytes, Registered::Writable)
    }

    fn host_register_read_only(&self, address: u64, bytes: u64) -> Result<()> {
        self.register(address, bytes, Registered::ReadOnly)
    }

    fn host_unregister(&self, address: u64) -> Result<()> {
        ask!(self, cuMemHostUnregister(address))
    }

    fn prepare(
        &self,
        code: &Code,
        _options: &[(i32, u64)],
    ) -> std::result::Result<Arc<dyn PreparedCode>, &'static str> {
        Ok(Arc::new(NvidiaCode::prepare(code, &self.info)?))
    }

    fn module_load(
        &self,
        code: Code,
        kind: ModuleKind,
        options: &[(i32, u64)],
    ) -> std::result::Result<Loaded, LoadError> {
        in_code(|| self.modules.load(code, kind, options))
    }

    fn module_unload(&self, module: Module) -> Result<()> {
        in_code(|| self.modules.unload(module))
    }

    fn function(&self, module: Module, name: &str) -> Result<Function> {
        in_code(|| self.modules.function(module, name))
    }

    fn function_names(&self, module: Module) -> Result<Vec<String>> {
        in_code(|| self.modules.function_names(module))
    }

    fn function_info(&self, function: Function) -> Result<FunctionInfo> {
        in_code(|| self.modules.function_info(function))
    }

    fn set_function_attribute(&self, function: Function, attribute: i32, value: i32) -> Result<()> {
        in_code(|| ask!(self, cuFuncSetAttribute(function.0, attribute, value)))
    }

    fn set_function_cache(&self, function: Function, config: i32) -> Result<()> {
        in_code(|| ask!(self, cuFuncSetCacheConfig(function.0, config)))
    }

    fn global(&self, module: Module, name: &str) -> Result<(u64, u64)> {
        in_code(|| self.modules.global(module, name))
    }

    fn globals(&self, module: Module) -> Result<Vec<Global>> {
        in_code(|| self.modules.globals(module))
    }

    fn expect_globals(&self, module: Module) {
        self.modules.expect_globals(module);
    }

    fn link(
        &self,
        inputs: &[LinkInput<'_>],
        options: &[(i32, u64)],
    ) -> std::result::Result<(Vec<u8>, String), LoadError> {
        self.modules.link(inputs, options)
    }

    fn occupancy_blocks(&self, function: Function, block: i32, shared: u64, flags: u32) -> Result<i32> {
        let mut blocks = 0;
        let shared = shared as usize;
        ask!(
            self,
            cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
                &mut blocks,
                function.0,
                block,
                shared,
                flags
            )
        )?;
        Ok(blocks)
    }

    fn occupancy_shared(&self, function: Function, blocks: i32, block: i32) -> Result<u64> {
        let mut bytes = 0;
        ask!(self, cuOccupancyAvailableDynamicSMemPerBlock(&mut bytes, function.0, blocks, block))?;
        Ok(bytes as u64)
    }

    fn occupancy_clusters(&self, launch: &Launch, function: Function) -> Result<i32> {
        let attributes = Attributes::new(launch)?;
        let configuration = attributes.configuration(launch, 0);
        let mut clusters = 0;
        ask!(self, cuOccupancyMaxActiveClusters(&mut clusters, function.0, &configuration))?;
        Ok(clusters)
    }

    fn occupancy_cluster_size(&self, launch: &Launch, function: Function) -> Result<i32> {
        let attributes = Attributes::new(launch)?;
        let configuration = attributes.configuration(launch, 0);
        let mut size = 0;
        ask!(self, cuOccupancyMaxPotentialClusterSize(&mut size, function.0, &configuration))?;
        Ok(size)
    }

    fn units(&self) -> Option<Units> {
        self.division().map(Division::units)
    }

    fn part_create(&self, units: u64) -> Result<Part> {
        self.create_part(units)
    }

    fn part_destroy(&self, part: Part) -> Result<()> {
        self.destroy_part(part)
    }

    fn stream_create_on(&self, part: Part, priority: i32) -> Result<Stream> {
        self.create_stream_on(part, priority)
    }

    fn stream_create(&self, flags: u32, priority: i32) -> Result<Stream> {
        let mut stream = 0;
        ask!(self, cuStreamCreateWithPriority(&mut stream, flags, priority))?;
        Ok(Stream(stream))
    }

    fn stream_destroy(&self, stream: Stream) -> Result<()> {
        ask!(self, cuStreamDestroy_v2(stream.0))
    }

    fn stream_query(&self, stream: Stream) -> Result<bool> {
        ready(ask!(self, cuStreamQuery(stream.0)))
    }

    fn stream_synchronize(&self, stream: Stream) -> Result<()> {
        ask!(self, cuStreamSynchronize(stream.0))
    }

    fn stream_wait_event(&self, stream: Stream, event: Event, flags: u32) -> Result<()> {
        ask!(self, cuStreamWaitEvent(stream.0, event.0, flags))
    }

    fn event_create(&self, flags: u32) -> Result<Event> {
        let mut event = 0;
        ask!(self, cuEventCreate(&mut event, flags))?;
        Ok(Event(event))
    }

    fn event_destroy(&self, event: Event) -> Result<()> {
        ask!(self, cuEventDestroy_v2(event.0))
    }

    fn event_record(&self, event: Event, stream: Stream, flags: u32) -> Result<()> {
        ask!(self, cuEventRecordWithFlags(event.0, stream.0, flags))
    }

    fn event_query(&self, event: Event) -> Result<bool> {
        ready(ask!(self, cuEventQuery(event.0)))
    }

    fn event_synchronize(&self, event: Event) -> Result<()> {
        ask!(self, cuEventSynchronize(event.0))
    }

    fn event_elapsed(&self, start: Event, end: Event) -> Result<f32> {
        let mut milliseconds = 0.0;
        ask!(self, cuEventElapsedTime(&mut milliseconds, start.0, end.0))?;
        Ok(milliseconds)
    }

    #[inline]
    fn launch(&self, function: Function, launch: &Launch, stream: Stream, parameters: &[u8]) -> Result<()> {
        self.launch_kernel(function, launch, stream, parameters)
    }

    #[inline]
    fn copy(&self, to: u64, from: u64, bytes: u64, stream: Stream) -> Result<()> {
        ask!(self, cuMemcpyAsync(to, from, bytes as usize, stream.0))
    }

    fn copy_3d(&self, copy: &Copy3D, stream: Stream) -> Result<()> {
        self.copy_strided(copy, stream)
    }

    fn set(&self, set: &MemorySet, stream: Stream) -> Result<()> {
        self.fill(set, stream)
    }

    fn host_call(&self, stream: Stream, call: Box<dyn FnOnce() + Send>) -> Result<()> {
        self.call_host(stream, call)
    }

    fn wait_value(&self, stream: Stream, address: u64, value: u64, width: u32, flags: u32) -> Result<()> {
        match width {
            4 => ask!(self, cuStreamWaitValue32_v2(stream.0, address, value as u32, flags)),
            8 => ask!(self, cuStreamWaitValue64_v2(stream.0, address, value, flags)),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn write_value(&self, stream: Stream, address: u64, value: u64, width: u32, flags: u32) -> Result<()> {
        match width {
            4 => ask!(self, cuStreamWriteValue32_v2(stream.0, address, value as u32, flags)),
            8 => ask!(self, cuStreamWriteValue64_v2(stream.0, address, value, flags)),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// The driver applies `mode` to threads of this process: where one thread makes the calls of all threads of a
    /// program, `GLOBAL` and `THREAD_LOCAL` forbid what any of them does meanwhile (memory, modules, synchronising),
    /// and what the worker does of its own accord. A worker that captures `RELAXED` must refuse in the program's name
    /// what the mode that it asked for forbids.
    fn capture_begin(&self, stream: Stream, mode: u32) -> Result<()> {
        ask!(self, cuStreamBeginCapture_v2(stream.0, mode))
    }

    fn capture_end(&self, stream: Stream) -> Result<Graph> {
        let mut graph = 0;
        ask!(self, cuStreamEndCapture(stream.0, &mut graph))?;
        Ok(Graph(graph))
    }

    fn capture(&self, stream: Stream) -> Result<Capture> {
        self.capture_state(stream)
    }

    fn graph_create(&self) -> Result<Graph> {
        let mut graph = 0;
        ask!(self, cuGraphCreate(&mut graph, 0))?;
        Ok(Graph(graph))
    }

    fn graph_add(&self, graph: Graph, after: &[GraphNode], work: NodeWork<'_>) -> Result<GraphNode> {
        let driver = &self.driver;
        match work {
            NodeWork::Kernel { function, launch, parameters } => {
                graph::add_kernel(driver, graph, after, function, launch, parameters)
            }
            NodeWork::Copy(copy) => graph::add_copy(self, graph, after, copy),
            NodeWork::CopyArray(copy) => self.add_array_copy(graph, after, copy),
            NodeWork::Set(set) => graph::add_set(self, graph, after, set),
            NodeWork::Empty => graph::add_empty(driver, graph, after),
            NodeWork::Child(child) => graph::add_child(driver, graph, after, child),
            NodeWork::Call(call) => graph_work::add_call(driver, graph, after, call),
            NodeWork::Record(event) => graph_work::add_record(driver, graph, after, event),
            NodeWork::Wait(event) => graph_work::add_wait(driver, graph, after, event),
            NodeWork::Values(operations) => graph_work::add_values(self, graph, after, operations),
        }
    }

    fn graph_condition(&self, graph: Graph, default: Option<u32>) -> Result<u64> {
        graph_work::condition(self, graph, default)
    }

    fn graph_add_conditional(
        &self,
        graph: Graph,
        after: &[GraphNode],
        handle: u64,
        kind: u32,
        bodies: u32,
    ) -> Result<(GraphNode, Vec<Graph>)> {
        graph_work::add_conditional(self, graph, after, handle, kind, bodies)
    }

    fn graph_nodes(&self, graph: Graph) -> Result<Vec<GraphNode>> {
        graph::nodes(&self.driver, graph)
    }

    fn graph_node_kind(&self, node: GraphNode) -> Result<GraphNodeKind> {
        let mut kind = 0;
        ask!(self, cuGraphNodeGetType(node.0, &mut kind))?;
        Ok(GraphNodeKind(kind))
    }

    fn graph_destroy(&self, graph: Graph) -> Result<()> {
        ask!(self, cuGraphDestroy(graph.0))
    }

    fn graph_instantiate(&self, graph: Graph, flags: u64) -> Result<GraphExec> {
        let mut exec = 0;
        ask!(self, cuGraphInstantiateWithFlags(&mut exec, graph.0, flags))?;
        Ok(GraphExec(exec))
    }

    fn graph_exec_update(&self, exec: GraphExec, graph: Graph) -> Result<u32> {
        graph::update(&self.driver, exec, graph)
    }

    #[inline]
    fn graph_launch(&self, exec: GraphExec, stream: Stream) -> Result<()> {
        ask!(self, cuGraphLaunch(exec.0, stream.0))
    }

    fn graph_exec_destroy(&self, exec: GraphExec) -> Result<()> {
        ask!(self, cuGraphExecDestroy(exec.0))
    }

    fn array_create(&self, description: &ArrayDescription) -> Result<Array> {
        self.create_array(description)
    }

    fn array_destroy(&self, array: Array) -> Result<()> {
        self.destroy_array(array)
    }

    fn copy_array(&self, copy: &ArrayCopy<Array>, stream: Stream) -> Result<()> {
        self.copy_arrays(copy, stream)
    }

    fn view_create(&self, view: &View<Array>) -> Result<u64> {
        self.create_view(view)
    }

    fn view_destroy(&self, kind: ViewKind, number: u64) -> Result<()> {
        self.destroy_view(kind, number)
    }

    fn tensor_map(&self, kind: u32, arguments: &[u8]) -> Result<[u8; 128]> {
        tensor::encode(&self.driver, kind, arguments)
    }

    fn tensor_map_replace(&self, map: [u8; 128], address: u64) -> Result<[u8; 128]> {
        tensor::replace(&self.driver, map, address)
    }

    fn feature(&self, feature: u32) -> Result<i32> {
        let Some(get) = self.driver.functions.cuGetExportTable else { return Ok(0) };
        let mut table: *const sys::FeatureTable = std::ptr::null();
        // SAFETY: writes one pointer; reads the id during the call.
        let code = unsafe { get(&mut table, &sys::FEATURES) };
        // SAFETY: the driver's table is there as long as the driver; it says how many bytes it has.
        match unsafe { table.as_ref() }.filter(|_| code.is_success()) {
            Some(table) if table.bytes >= size_of::<sys::FeatureTable>() => {
                // SAFETY: the entry takes these three; as cuSPARSELt calls it.
                Ok(unsafe { (table.has)(self.ordinal, feature, std::ptr::null()) })
            }
            _ => Ok(0),
        }
    }

    fn host_atomics(&self, operations: &[u32]) -> Result<Vec<u32>> {
        let ask = self.driver.functions.cuDeviceGetHostAtomicCapabilities;
        let ask = ask.ok_or(rekindle_cuda::CUDA_ERROR_NOT_SUPPORTED)?;
        let mut found = vec![0; operations.len()];
        let count = operations.len() as u32;
        // SAFETY: both arrays have room for `count` words; nothing is kept.
        let code = unsafe { ask(found.as_mut_ptr(), operations.as_ptr(), count, self.ordinal) };
        self.driver.check("cuDeviceGetHostAtomicCapabilities", code).map(|()| found)
    }

    fn fault(&self) -> Option<String> {
        self.driver.fault()
    }
}
