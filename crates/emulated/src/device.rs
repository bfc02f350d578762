//! One emulated GPU: the calls of [`Device`], each checked and handed to the part that does it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rekindle_cuda::{
    CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_FOUND, CUDA_ERROR_NOT_SUPPORTED,
    CUDA_ERROR_UNSUPPORTED_LIMIT, CuResult,
};
use rekindle_device::{
    Access, Array, ArrayCopy, ArrayDescription, Capture, Code, Copy3D, Device, DeviceInfo, Event, Function,
    FunctionInfo, Global, Graph, GraphExec, GraphNode, GraphNodeKind, Launch, LinkInput, LoadError, Loaded,
    Memory, MemorySet, Module, ModuleKind, NodeWork, Part, PreparedCode, Result, Stream, Units, View,
    ViewKind,
};

use crate::arena::Arena;
use crate::arrays::Arrays;
use crate::attributes::LIMIT_HEAP;
use crate::common::Common;
use crate::context::{Context, Contexts};
use crate::copy_engines::CopyEngines;
use crate::function::Kernel;
use crate::graph::Action;
use crate::module::LoadedModule;
use crate::modules::{self, Modules};
use crate::output::Output;
use crate::parts;
use crate::physical::{Budget, Share};
use crate::prepared::EmulatedCode;
use crate::scheduler::Scheduler;
use crate::space::{GRANULARITY, Space};
use crate::views::Views;
use crate::work::{Engine, Executor, Op, Services};
use crate::{Config, Error};

thread_local! {
    /// The number of the device that this thread is bound to.
    static BOUND: Cell<Option<u32>> = const { Cell::new(None) };
}

pub(crate) struct EmulatedDevice {
    info: DeviceInfo,
    // Before the modules and the arena, so that no thread runs when they go.
    context: Arc<Context>,
    modules: Mutex<Modules>,
    limits: Mutex<BTreeMap<u32, u64>>,
    arena: Arc<Arena>,
    pub(crate) space: Arc<Space>,
    pub(crate) arrays: Arrays,
    budget: Arc<Budget>,
    is_divisible: bool,
    /// Whoever gives it work shares this. Some calls have it to themselves, and wait for all work meanwhile, as a driver's do.
    entry: RwLock<()>,
    /// What the context takes.
    _context_memory: Share,
}

impl EmulatedDevice {
    pub fn new(
        info: DeviceInfo,
        config: &Config,
        space: Arc<Space>,
        output: Arc<Output>,
        machine: &Arc<Contexts>,
    ) -> std::result::Result<EmulatedDevice, Error> {
        let device = config.number(info.index);
        let common = config.common.as_deref().map(|directory| Common::join(directory, device));
        let budget = Budget::new(config.memory, common.transpose().map_err(Error::Common)?);
        let room = |_| Error::NoRoom { needed: config.context >> 20, free: budget.free() >> 20 };
        let context_memory = budget.take(config.context).map_err(room)?;
        let arena = Arena::new(info.index, Arc::clone(&space), Arc::clone(&budget))?;
        let limits: BTreeMap<u32, u64> = info.limits.iter().copied().collect();
        let heap = limits.get(&LIMIT_HEAP).copied().unwrap_or_default();
        let services = Services {
            arena: Arc::clone(&arena),
            output,
            views: Views::default(),
            cancelled: AtomicBool::new(false),
            heap_limit: AtomicU64::new(heap),
            conditions: Mutex::default(),
        };
        let engines = CopyEngines::open(config.bandwidth, config.common.as_deref(), device);
        let engines = engines.map_err(Error::Common)?;
        let executor = Executor::new(Arc::clone(&space), services, config, engines);
        Ok(EmulatedDevice {
            context: Context::new(info.index, Scheduler::new(executor), machine),
            info,
            modules: Mutex::default(),
            limits: Mutex::new(limits),
            arena,
            space,
            arrays: Arrays::default(),
            budget,
            is_divisible: config.green,
            entry: RwLock::default(),
            _context_memory: context_memory,
        })
    }

    fn check(&self) -> Result<()> {
        self.context.scheduler.check()
    }

    /// On a thread that is bound to another device no stream or event is made for this one, which a driver would make for the
    /// other, and no kernel or graph is launched.
    fn check_bound(&self) -> Result<()> {
        match BOUND.get() {
            Some(bound) if bound != self.info.index => Err(CUDA_ERROR_INVALID_HANDLE),
            _ => self.check(),
        }
    }

    /// For who gives it work.
    fn enter(&self) -> RwLockReadGuard<'_, ()> {
        self.entry.read()
    }

    /// Waits for all its work, and lets nobody give it more meanwhile.
    fn alone(&self) -> Result<RwLockWriteGuard<'_, ()>> {
        self.check()?;
        let alone = self.entry.write();
        self.context.scheduler.wait_all()?;
        Ok(alone)
    }

    pub fn multiprocessors(&self) -> u32 {
        self.context.scheduler.executor().multiprocessors
    }

    pub fn kernel(&self, function: Function) -> Result<Kernel> {
        self.check()?;
        self.modules.lock().kernel(function).cloned()
    }

    fn views(&self) -> &Views {
        &self.context.scheduler.executor().services.views
    }
}

impl Device for EmulatedDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn bind(&self) -> Result<()> {
        match BOUND.replace(Some(self.info.index)) {
            // One that has failed stays current all the same.
            Some(bound) if bound == self.info.index => Ok(()),
            _ => self.check(),
        }
    }

    fn synchronize(&self) -> Result<()> {
        self.context.synchronize()
    }

    fn limit(&self, limit: u32) -> Result<u64> {
        self.check()?;
        self.limits.lock().get(&limit).copied().ok_or(CUDA_ERROR_UNSUPPORTED_LIMIT)
    }

    fn set_limit(&self, limit: u32, value: u64) -> Result<()> {
        let _alone = self.alone()?;
        let mut limits = self.limits.lock();
        let kept = limits.get_mut(&limit).ok_or(CUDA_ERROR_UNSUPPORTED_LIMIT)?;
        *kept = value;
        if limit == LIMIT_HEAP {
            self.context.scheduler.executor().services.heap_limit.store(value, Ordering::Relaxed);
        }
        Ok(())
    }

    fn memory_info(&self) -> Result<(u64, u64)> {
        self.check()?;
        Ok((self.budget.free(), self.budget.total()))
    }

    fn has_common_memory(&self) -> bool {
        self.budget.is_common()
    }

    fn granularity(&self) -> u64 {
        GRANULARITY
    }

    fn reserve(&self, address: u64, bytes: u64) -> Result<()> {
        self.check()?;
        self.space.reserve(address, bytes)
    }

    fn unreserve(&self, address: u64, bytes: u64) -> Result<()> {
        self.check()?;
        self.space.unreserve(address, bytes)
    }

    fn memory_create(&self, bytes: u64) -> Result<Memory> {
        self.check()?;
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Ok(self.space.add(self.space.memories.create(bytes, &self.budget)?))
    }

    /// How much other GPUs have is counted by those.
    fn memory_create_on(&self, _gpu: &[u8; 16], bytes: u64) -> Result<Memory> {
        self.check()?;
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Ok(self.space.add(self.space.memories.create(bytes, &Budget::new(bytes, None))?))
    }

    fn memory_release(&self, memory: Memory) -> Result<()> {
        self.check()?;
        self.space.release(memory)
    }

    fn memory_export(&self, memory: Memory) -> Result<OwnedFd> {
        self.check()?;
        self.space.physical(memory)?.export()
    }

    fn memory_import(&self, descriptor: BorrowedFd<'_>, bytes: u64) -> Result<Memory> {
        self.check()?;
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Ok(self.space.add(self.space.memories.import(descriptor, bytes, &self.budget)?))
    }

    fn map(&self, address: u64, bytes: u64, memory: Memory) -> Result<()> {
        self.check()?;
        self.space.map(address, bytes, memory)
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<()> {
        self.check()?;
        self.space.unmap(address, bytes)
    }

    fn protect(&self, address: u64, bytes: u64, access: Access) -> Result<()> {
        self.check()?;
        self.space.protect(address, bytes, access)
    }

    fn host_register(&self, address: u64, bytes: u64) -> Result<()> {
        self.check()?;
        self.space.register(address, bytes, self.info.index)
    }

    fn host_register_read_only(&self, address: u64, bytes: u64) -> Result<()> {
        self.host_register(address, bytes)
    }

    fn host_unregister(&self, address: u64) -> Result<()> {
        let _alone = self.alone()?;
        self.space.unregister(address, self.info.index)
    }

    fn prepare(
        &self,
        code: &Code,
        options: &[(i32, u64)],
    ) -> std::result::Result<Arc<dyn PreparedCode>, &'static str> {
        Ok(Arc::new(EmulatedCode::prepare(code, options).ok_or("unreadable")?))
    }

    fn module_load(
        &self,
        code: Code,
        _kind: ModuleKind,
        options: &[(i32, u64)],
    ) -> std::result::Result<Loaded, LoadError> {
        let alone = self.alone();
        let _alone = alone.map_err(|code| LoadError { code, log: self.fault().unwrap_or_default() })?;
        let module = LoadedModule::load(code, options, &self.arena)?;
        Ok(Loaded { module: self.modules.lock().add(module), log: String::new() })
    }

    fn module_unload(&self, module: Module) -> Result<()> {
        self.check()?;
        let removed = self.modules.lock().remove(module)?;
        drop(removed);
        Ok(())
    }

    fn function(&self, module: Module, name: &str) -> Result<Function> {
        self.check()?;
        self.modules.lock().function(module, name)
    }

    fn function_names(&self, module: Module) -> Result<Vec<String>> {
        self.check()?;
        let modules = self.modules.lock();
        Ok(modules.get(module)?.module.entries().iter().map(|entry| entry.name.clone()).collect())
    }

    fn function_info(&self, function: Function) -> Result<FunctionInfo> {
        Ok(self.kernel(function)?.info())
    }

    fn set_function_attribute(&self, function: Function, attribute: i32, value: i32) -> Result<()> {
        self.kernel(function)?.set(attribute, value)
    }

    fn set_function_cache(&self, function: Function, config: i32) -> Result<()> {
        self.kernel(function)?;
        if (0..=3).contains(&config) { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }

    fn global(&self, module: Module, name: &str) -> Result<(u64, u64)> {
        self.check()?;
        let modules = self.modules.lock();
        let mut globals = modules.get(module)?.globals.iter();
        let found = globals.find(|global| global.name == name).ok_or(CUDA_ERROR_NOT_FOUND)?;
        Ok((found.address, found.bytes))
    }

    fn globals(&self, module: Module) -> Result<Vec<Global>> {
        self.check()?;
        Ok(self.modules.lock().get(module)?.globals.clone())
    }

    fn link(
        &self,
        inputs: &[LinkInput<'_>],
        options: &[(i32, u64)],
    ) -> std::result::Result<(Vec<u8>, String), LoadError> {
        self.check().map_err(|code| LoadError { code, log: self.fault().unwrap_or_default() })?;
        modules::link(inputs, options)
    }

    fn occupancy_blocks(&self, function: Function, block: i32, shared: u64, _flags: u32) -> Result<i32> {
        self.kernel(function)?.occupancy_blocks(block, shared)
    }

    fn occupancy_shared(&self, function: Function, blocks: i32, block: i32) -> Result<u64> {
        self.kernel(function)?.occupancy_shared(blocks, block)
    }

    fn occupancy_clusters(&self, launch: &Launch, function: Function) -> Result<i32> {
        Ok(self.kernel(function)?.occupancy_clusters(launch, self.multiprocessors()))
    }

    fn occupancy_cluster_size(&self, _launch: &Launch, function: Function) -> Result<i32> {
        Ok(self.kernel(function)?.occupancy_cluster_size())
    }

    fn units(&self) -> Option<Units> {
        self.is_divisible.then(|| parts::units(self.multiprocessors()))
    }

    fn part_create(&self, units: u64) -> Result<Part> {
        if !self.is_divisible {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        self.context.part_create(units)
    }

    fn part_destroy(&self, part: Part) -> Result<()> {
        self.context.part_destroy(part)
    }

    fn stream_create_on(&self, part: Part, priority: i32) -> Result<Stream> {
        self.context.stream_create_on(part, priority)
    }

    fn stream_create(&self, flags: u32, priority: i32) -> Result<Stream> {
        self.check_bound()?;
        self.context.stream_create(flags, priority)
    }

    fn stream_destroy(&self, stream: Stream) -> Result<()> {
        self.context.stream_destroy(stream)
    }

    fn stream_query(&self, stream: Stream) -> Result<bool> {
        self.context.stream_query(stream)
    }

    fn stream_synchronize(&self, stream: Stream) -> Result<()> {
        self.context.stream_synchronize(stream)
    }

    fn stream_wait_event(&self, stream: Stream, event: Event, flags: u32) -> Result<()> {
        let _entered = self.enter();
        self.context.stream_wait_event(stream, event, flags)
    }

    fn event_create(&self, flags: u32) -> Result<Event> {
        self.check_bound()?;
        self.context.event_create(flags)
    }

    fn event_destroy(&self, event: Event) -> Result<()> {
        self.context.event_destroy(event)
    }

    fn event_record(&self, event: Event, stream: Stream, flags: u32) -> Result<()> {
        let _entered = self.enter();
        self.context.event_record(event, stream, flags)
    }

    fn event_query(&self, event: Event) -> Result<bool> {
        self.context.event_query(event)
    }

    fn event_synchronize(&self, event: Event) -> Result<()> {
        self.context.event_synchronize(event)
    }

    fn event_elapsed(&self, start: Event, end: Event) -> Result<f32> {
        self.context.event_elapsed(start, end)
    }

    fn launch(&self, function: Function, launch: &Launch, stream: Stream, parameters: &[u8]) -> Result<()> {
        let _entered = self.enter();
        self.check_bound()?;
        self.context.submit(stream, self.launch_op(function, launch, parameters)?)
    }

    fn copy(&self, to: u64, from: u64, bytes: u64, stream: Stream) -> Result<()> {
        self.copy_3d(&Copy3D::linear(to, from, bytes), stream)
    }

    fn copy_3d(&self, copy: &Copy3D, stream: Stream) -> Result<()> {
        let _entered = self.enter();
        self.check()?;
        self.copy_op(copy)?.map_or(Ok(()), |op| self.context.submit(stream, op))
    }

    fn set(&self, set: &MemorySet, stream: Stream) -> Result<()> {
        let _entered = self.enter();
        self.check()?;
        self.set_op(set)?.map_or(Ok(()), |op| self.context.submit(stream, op))
    }

    fn host_call(&self, stream: Stream, call: Box<dyn FnOnce() + Send>) -> Result<()> {
        let _entered = self.enter();
        self.context.call(stream, call)
    }

    fn wait_value(&self, stream: Stream, address: u64, value: u64, width: u32, flags: u32) -> Result<()> {
        let _entered = self.enter();
        self.check()?;
        let op = self.wait_op(address, value, width, flags)?;
        self.context.submit(stream, op)
    }

    fn write_value(&self, stream: Stream, address: u64, value: u64, width: u32, flags: u32) -> Result<()> {
        let _entered = self.enter();
        self.check()?;
        let op = self.write_op(address, value, width, flags)?;
        self.context.submit(stream, op)
    }

    fn capture_begin(&self, stream: Stream, mode: u32) -> Result<()> {
        self.context.capture_begin(stream, mode)
    }

    fn capture_end(&self, stream: Stream) -> Result<Graph> {
        self.context.capture_end(stream)
    }

    fn capture(&self, stream: Stream) -> Result<Capture> {
        self.context.capture(stream)
    }

    fn graph_create(&self) -> Result<Graph> {
        self.context.graphs(|graphs| Ok(graphs.create()))
    }

    fn graph_add(&self, graph: Graph, after: &[GraphNode], work: NodeWork<'_>) -> Result<GraphNode> {
        let action = match work {
            NodeWork::Kernel { function, launch, parameters } => {
                Action::Op(self.launch_op(function, launch, parameters)?)
            }
            NodeWork::Copy(copy) => {
                let nothing = || Op::Copy { copy: *copy, engine: Engine::Compute, _arrays: Vec::new() };
                Action::Op(self.copy_op(copy)?.unwrap_or_else(nothing))
            }
            NodeWork::CopyArray(copy) => self.array_copy_op(copy)?.map_or(Action::Empty, Action::Op),
            NodeWork::Set(set) => Action::Op(self.set_op(set)?.unwrap_or(Op::Set(*set))),
            NodeWork::Empty => Action::Empty,
            NodeWork::Child(child) => Action::Child(self.context.graphs(|graphs| graphs.child(child))?),
            NodeWork::Call(call) => Action::Call(call),
            NodeWork::Record(event) => Action::Record(event),
            NodeWork::Wait(event) => Action::Wait(event),
            NodeWork::Values(operations) => {
                let ops = operations.iter().filter_map(|operation| self.value_op(*operation).transpose());
                let ops = ops.collect::<Result<Vec<Op>>>()?;
                if ops.is_empty() { Action::Empty } else { Action::Ops(ops.into()) }
            }
        };
        self.context.graphs(|graphs| graphs.add(graph, after, action))
    }

    fn graph_condition(&self, graph: Graph, default: Option<u32>) -> Result<u64> {
        self.context.graphs(|graphs| graphs.condition(graph, default))
    }

    fn graph_add_conditional(
        &self,
        graph: Graph,
        after: &[GraphNode],
        handle: u64,
        kind: u32,
        bodies: u32,
    ) -> Result<(GraphNode, Vec<Graph>)> {
        self.context.graphs(|graphs| graphs.add_conditional(graph, after, handle, kind, bodies))
    }

    fn graph_nodes(&self, graph: Graph) -> Result<Vec<GraphNode>> {
        self.context.graphs(|graphs| graphs.nodes(graph))
    }

    fn graph_node_kind(&self, node: GraphNode) -> Result<GraphNodeKind> {
        self.context.graphs(|graphs| Ok(GraphNodeKind(graphs.node(node)?.action.kind())))
    }

    fn graph_destroy(&self, graph: Graph) -> Result<()> {
        self.context.graphs(|graphs| graphs.destroy(graph))
    }

    fn graph_instantiate(&self, graph: Graph, _flags: u64) -> Result<GraphExec> {
        self.context.graphs(|graphs| graphs.instantiate(graph))
    }

    fn graph_exec_update(&self, exec: GraphExec, graph: Graph) -> Result<u32> {
        self.context.graphs(|graphs| graphs.update(exec, graph))
    }

    fn graph_launch(&self, exec: GraphExec, stream: Stream) -> Result<()> {
        let _entered = self.enter();
        self.check_bound()?;
        self.context.graph_launch(exec, stream)
    }

    fn graph_exec_destroy(&self, exec: GraphExec) -> Result<()> {
        self.context.graphs(|graphs| graphs.destroy_exec(exec))
    }

    fn array_create(&self, description: &ArrayDescription) -> Result<Array> {
        self.check()?;
        self.arrays.create(description, &self.budget)
    }

    fn array_destroy(&self, array: Array) -> Result<()> {
        self.check()?;
        self.arrays.destroy(array)
    }

    fn copy_array(&self, copy: &ArrayCopy<Array>, stream: Stream) -> Result<()> {
        let _entered = self.enter();
        self.check()?;
        self.array_copy_op(copy)?.map_or(Ok(()), |op| self.context.submit(stream, op))
    }

    fn view_create(&self, view: &View<Array>) -> Result<u64> {
        self.check()?;
        self.views().create(view, &self.arrays, &self.space)
    }

    fn view_destroy(&self, kind: ViewKind, number: u64) -> Result<()> {
        self.check()?;
        self.views().destroy(kind, number)
    }

    fn tensor_map(&self, kind: u32, arguments: &[u8]) -> Result<[u8; 128]> {
        crate::tensor::encode(kind, arguments)
    }

    fn tensor_map_replace(&self, map: [u8; 128], address: u64) -> Result<[u8; 128]> {
        crate::tensor::replace(map, address)
    }

    fn host_atomics(&self, operations: &[u32]) -> Result<Vec<u32>> {
        crate::atomics::capabilities(operations)
    }

    fn fault(&self) -> Option<String> {
        let failure = self.context.scheduler.failure()?;
        Some(format!("{}: {}", describe(failure.code), failure.sentence))
    }
}

fn describe(code: CuResult) -> String {
    code.name().map_or_else(|| format!("error {}", code.0), str::to_owned)
}
