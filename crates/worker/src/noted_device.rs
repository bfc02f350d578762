//! A device whose context outlives the program that uses it: what is made through this is noted, and given back together
//! when nobody has this any more.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rekindle_device::{
    Access, Array, ArrayCopy, ArrayDescription, Capture, Code, Copy3D, Device, DeviceInfo, Event, Function,
    FunctionInfo, Global, Graph, GraphExec, GraphNode, GraphNodeKind, KernelSetting, KernelSettings, Launch,
    LinkInput, LoadError, Loaded, Memory, MemorySet, Module, ModuleKind, NodeWork, Part, Piece, PreparedCode,
    Result, Stream, Units, View, ViewKind,
};

use crate::belongings::Belongings;

/// A function of the C library's heap for kernels, as symbol tables name it.
const MALLOC: &[u8] = b"\0malloc\0";

pub(crate) struct NotedDevice {
    device: Arc<dyn Device>,
    belongings: Mutex<Belongings>,
    /// What limits were before somebody changed them.
    limits: Mutex<BTreeMap<u32, u64>>,
    /// What leaves the context another one than it was.
    trace: Mutex<Option<&'static str>>,
}

impl NotedDevice {
    pub(crate) fn new(device: Arc<dyn Device>) -> Arc<NotedDevice> {
        let (belongings, limits, trace) = (Mutex::default(), Mutex::default(), Mutex::default());
        Arc::new(NotedDevice { device, belongings, limits, trace })
    }

    /// Why the context cannot be as it was before: a module was loaded whole, which may have globals in heaps of the driver's, or
    /// a kernel that allocates memory itself, or something could not be given back.
    pub(crate) fn lasting_trace(&self) -> Option<&'static str> {
        *self.trace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave_trace(&self, what: &'static str) {
        self.trace.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(what);
    }

    /// The device, with all of it given back, none of which is in use; none if something stays.
    pub(crate) fn give_back(self) -> Option<Arc<dyn Device>> {
        self.device.bind().ok()?;
        let mut left = self.belongings().give_back(&*self.device);
        let limits = std::mem::take(&mut *self.limits.lock().unwrap_or_else(PoisonError::into_inner));
        limits.into_iter().for_each(|(limit, value)| left.note(self.device.set_limit(limit, value)));
        left.tell();
        left.is_nothing().then_some(self.device)
    }

    fn belongings(&self) -> MutexGuard<'_, Belongings> {
        self.belongings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make<T: Copy, N>(&self, made: Result<T>, note: impl FnOnce(&mut Belongings, T) -> N) -> Result<T> {
        let made = made?;
        note(&mut self.belongings(), made);
        Ok(made)
    }

    /// Forgotten before it is given back: another thread may be given the same right after.
    fn give<N>(
        &self,
        forget: impl FnOnce(&mut Belongings) -> N,
        give: impl FnOnce(&dyn Device) -> Result<()>,
    ) -> Result<()> {
        forget(&mut self.belongings());
        give(&*self.device).inspect_err(|_| self.leave_trace("something could not be given back"))
    }

    fn note_piece(
        &self,
        loaded: std::result::Result<(Module, Function), LoadError>,
    ) -> std::result::Result<(Module, Function), LoadError> {
        let (module, function) = loaded?;
        self.belongings().modules.insert(module);
        Ok((module, function))
    }
}

macro_rules! delegate {
    ($(fn $name:ident(&self $(, $argument:ident: $type:ty)* $(,)?) $(-> $result:ty)?;)*) => {
        $(
            #[inline]
            fn $name(&self $(, $argument: $type)*) $(-> $result)? {
                self.device.$name($($argument),*)
            }
        )*
    };
}

// One that is left to its default would not reach the device.
#[deny(clippy::missing_trait_methods)]
impl Device for NotedDevice {
    fn set_limit(&self, limit: u32, value: u64) -> Result<()> {
        let before = self.device.limit(limit)?;
        self.device.set_limit(limit, value)?;
        self.limits.lock().unwrap_or_else(PoisonError::into_inner).entry(limit).or_insert(before);
        Ok(())
    }
    fn reserve(&self, address: u64, bytes: u64) -> Result<()> {
        let made = self.device.reserve(address, bytes);
        self.make(made, |all, ()| all.reserved.insert(address, bytes))
    }
    fn unreserve(&self, address: u64, bytes: u64) -> Result<()> {
        self.give(|all| all.reserved.remove(&address), |device| device.unreserve(address, bytes))
    }
    fn memory_create(&self, bytes: u64) -> Result<Memory> {
        self.make(self.device.memory_create(bytes), |all, made| all.memory.insert(made))
    }
    fn memory_create_on(&self, gpu: &[u8; 16], bytes: u64) -> Result<Memory> {
        self.make(self.device.memory_create_on(gpu, bytes), |all, made| all.memory.insert(made))
    }
    fn memory_import(&self, descriptor: BorrowedFd<'_>, bytes: u64) -> Result<Memory> {
        self.make(self.device.memory_import(descriptor, bytes), |all, made| all.memory.insert(made))
    }
    fn memory_release(&self, memory: Memory) -> Result<()> {
        self.give(|all| all.memory.remove(&memory), |device| device.memory_release(memory))
    }
    fn map(&self, address: u64, bytes: u64, memory: Memory) -> Result<()> {
        let made = self.device.map(address, bytes, memory);
        self.make(made, |all, ()| all.mapped.insert(address, bytes))
    }
    fn unmap(&self, address: u64, bytes: u64) -> Result<()> {
        self.give(|all| all.mapped.remove(&address), |device| device.unmap(address, bytes))
    }
    fn host_register(&self, address: u64, bytes: u64) -> Result<()> {
        let made = self.device.host_register(address, bytes);
        self.make(made, |all, ()| all.registered.insert(address, bytes))
    }
    fn host_register_read_only(&self, address: u64, bytes: u64) -> Result<()> {
        let made = self.device.host_register_read_only(address, bytes);
        self.make(made, |all, ()| all.registered.insert(address, bytes))
    }
    fn host_unregister(&self, address: u64) -> Result<()> {
        self.give(|all| all.registered.remove(&address), |device| device.host_unregister(address))
    }

    fn module_load(
        &self,
        code: Code,
        kind: ModuleKind,
        options: &[(i32, u64)],
    ) -> std::result::Result<Loaded, LoadError> {
        self.leave_trace("code of it was loaded whole");
        let loaded = self.device.module_load(code, kind, options)?;
        self.belongings().modules.insert(loaded.module);
        Ok(loaded)
    }
    fn module_unload(&self, module: Module) -> Result<()> {
        self.give(|all| all.modules.remove(&module), |device| device.module_unload(module))
    }
    fn piece_load(
        &self,
        kernel: &str,
        piece: &Piece,
        settings: &KernelSettings,
    ) -> std::result::Result<(Module, Function), LoadError> {
        if memchr::memmem::find(piece.code.bytes(), MALLOC).is_some() {
            self.leave_trace("its kernels may have allocated memory");
        }
        self.note_piece(self.device.piece_load(kernel, piece, settings))
    }
    fn piece_set(
        &self,
        loaded: (Module, Function),
        setting: KernelSetting,
    ) -> std::result::Result<(Module, Function), LoadError> {
        self.note_piece(self.device.piece_set(loaded, setting))
    }

    fn part_create(&self, units: u64) -> Result<Part> {
        self.make(self.device.part_create(units), |all, made| all.parts.insert(made))
    }
    fn part_destroy(&self, part: Part) -> Result<()> {
        self.give(|all| all.parts.remove(&part), |device| device.part_destroy(part))
    }
    fn stream_create_on(&self, part: Part, priority: i32) -> Result<Stream> {
        let made = self.device.stream_create_on(part, priority);
        self.make(made, |all, made| all.streams.insert(made, priority))
    }
    fn stream_create(&self, flags: u32, priority: i32) -> Result<Stream> {
        let made = self.device.stream_create(flags, priority);
        self.make(made, |all, made| all.streams.insert(made, priority))
    }
    fn stream_destroy(&self, stream: Stream) -> Result<()> {
        self.give(|all| all.streams.remove(&stream), |device| device.stream_destroy(stream))
    }
    fn event_create(&self, flags: u32) -> Result<Event> {
        self.make(self.device.event_create(flags), |all, made| all.events.insert(made))
    }
    fn event_destroy(&self, event: Event) -> Result<()> {
        self.give(|all| all.events.remove(&event), |device| device.event_destroy(event))
    }

    fn capture_end(&self, stream: Stream) -> Result<Graph> {
        self.make(self.device.capture_end(stream), |all, made| all.graphs.insert(made))
    }
    fn graph_create(&self) -> Result<Graph> {
        self.make(self.device.graph_create(), |all, made| all.graphs.insert(made))
    }
    fn graph_destroy(&self, graph: Graph) -> Result<()> {
        self.give(|all| all.graphs.remove(&graph), |device| device.graph_destroy(graph))
    }
    fn graph_instantiate(&self, graph: Graph, flags: u64) -> Result<GraphExec> {
        self.make(self.device.graph_instantiate(graph, flags), |all, made| all.execs.insert(made))
    }
    fn graph_exec_destroy(&self, exec: GraphExec) -> Result<()> {
        self.give(|all| all.execs.remove(&exec), |device| device.graph_exec_destroy(exec))
    }

    fn array_create(&self, description: &ArrayDescription) -> Result<Array> {
        self.make(self.device.array_create(description), |all, made| all.arrays.insert(made))
    }
    fn array_destroy(&self, array: Array) -> Result<()> {
        self.give(|all| all.arrays.remove(&array), |device| device.array_destroy(array))
    }
    fn view_create(&self, view: &View<Array>) -> Result<u64> {
        let kind = view.kind();
        self.make(self.device.view_create(view), |all, made| all.views.insert((kind, made)))
    }
    fn view_destroy(&self, kind: ViewKind, number: u64) -> Result<()> {
        self.give(|all| all.views.remove(&(kind, number)), |device| device.view_destroy(kind, number))
    }

    delegate! {
        fn info(&self) -> &DeviceInfo;
        fn bind(&self) -> Result<()>;
        fn synchronize(&self) -> Result<()>;
        fn limit(&self, limit: u32) -> Result<u64>;
        fn memory_info(&self) -> Result<(u64, u64)>;
        fn has_common_memory(&self) -> bool;
        fn granularity(&self) -> u64;
        fn memory_export(&self, memory: Memory) -> Result<OwnedFd>;
        fn protect(&self, address: u64, bytes: u64, access: Access) -> Result<()>;
        fn prepare(&self, code: &Code, options: &[(i32, u64)])
            -> std::result::Result<Arc<dyn PreparedCode>, &'static str>;
        fn function(&self, module: Module, name: &str) -> Result<Function>;
        fn function_names(&self, module: Module) -> Result<Vec<String>>;
        fn function_info(&self, function: Function) -> Result<FunctionInfo>;
        fn set_function_attribute(&self, function: Function, attribute: i32, value: i32) -> Result<()>;
        fn set_function_cache(&self, function: Function, config: i32) -> Result<()>;
        fn global(&self, module: Module, name: &str) -> Result<(u64, u64)>;
        fn globals(&self, module: Module) -> Result<Vec<Global>>;
        fn expect_globals(&self, module: Module);
        fn link(&self, inputs: &[LinkInput<'_>], options: &[(i32, u64)])
            -> std::result::Result<(Vec<u8>, String), LoadError>;
        fn occupancy_blocks(&self, function: Function, block: i32, shared: u64, flags: u32) -> Result<i32>;
        fn occupancy_shared(&self, function: Function, blocks: i32, block: i32) -> Result<u64>;
        fn occupancy_clusters(&self, launch: &Launch, function: Function) -> Result<i32>;
        fn occupancy_cluster_size(&self, launch: &Launch, function: Function) -> Result<i32>;
        fn units(&self) -> Option<Units>;
        fn stream_query(&self, stream: Stream) -> Result<bool>;
        fn stream_synchronize(&self, stream: Stream) -> Result<()>;
        fn stream_wait_event(&self, stream: Stream, event: Event, flags: u32) -> Result<()>;
        fn stream_issue(&self, stream: Stream) -> Result<()>;
        fn event_record(&self, event: Event, stream: Stream, flags: u32) -> Result<()>;
        fn event_issue(&self, event: Event) -> Result<()>;
        fn event_query(&self, event: Event) -> Result<bool>;
        fn event_synchronize(&self, event: Event) -> Result<()>;
        fn event_elapsed(&self, start: Event, end: Event) -> Result<f32>;
        fn launch(&self, function: Function, launch: &Launch, stream: Stream, parameters: &[u8]) -> Result<()>;
        fn copy(&self, to: u64, from: u64, bytes: u64, stream: Stream) -> Result<()>;
        fn copy_3d(&self, copy: &Copy3D, stream: Stream) -> Result<()>;
        fn set(&self, set: &MemorySet, stream: Stream) -> Result<()>;
        fn host_call(&self, stream: Stream, call: Box<dyn FnOnce() + Send>) -> Result<()>;
        fn wait_value(&self, stream: Stream, address: u64, value: u64, width: u32, flags: u32) -> Result<()>;
        fn write_value(&self, stream: Stream, address: u64, value: u64, width: u32, flags: u32) -> Result<()>;
        fn capture_begin(&self, stream: Stream, mode: u32) -> Result<()>;
        fn capture(&self, stream: Stream) -> Result<Capture>;
        fn graph_add(&self, graph: Graph, after: &[GraphNode], work: NodeWork<'_>) -> Result<GraphNode>;
        fn graph_condition(&self, graph: Graph, default: Option<u32>) -> Result<u64>;
        fn graph_add_conditional(&self, graph: Graph, after: &[GraphNode], handle: u64, kind: u32, bodies: u32)
            -> Result<(GraphNode, Vec<Graph>)>;
        fn graph_nodes(&self, graph: Graph) -> Result<Vec<GraphNode>>;
        fn graph_node_kind(&self, node: GraphNode) -> Result<GraphNodeKind>;
        fn graph_exec_update(&self, exec: GraphExec, graph: Graph) -> Result<u32>;
        fn graph_launch(&self, exec: GraphExec, stream: Stream) -> Result<()>;
        fn tensor_map(&self, kind: u32, arguments: &[u8]) -> Result<[u8; 128]>;
        fn tensor_map_replace(&self, map: [u8; 128], address: u64) -> Result<[u8; 128]>;
        fn copy_array(&self, copy: &ArrayCopy<Array>, stream: Stream) -> Result<()>;
        fn host_atomics(&self, operations: &[u32]) -> Result<Vec<u32>>;
        fn feature(&self, feature: u32) -> Result<i32>;
        fn fault(&self) -> Option<String>;
    }
}
