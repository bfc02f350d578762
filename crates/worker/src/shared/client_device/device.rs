//! What the client asks of the device.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, PoisonError};

use rekindle_cuda::{CUDA_ERROR_NOT_READY, CUDA_ERROR_OPERATING_SYSTEM};
use rekindle_device::{
    Access, Array, ArrayCopy, ArrayDescription, Capture, Code, Copy3D, Device, DeviceInfo, Event, Function,
    FunctionInfo, Global, Graph, GraphExec, GraphNode, GraphNodeKind, KernelSetting, KernelSettings, Launch,
    LinkInput, LoadError, Loaded, Memory, MemorySet, Module, ModuleKind, NodeWork, Piece, PreparedCode,
    Result, Stream, View, ViewKind, load_piece,
};

use super::{ClientDevice, NON_BLOCKING, create_on, lock};
use crate::shared::lanes::{IssueSlot, State};
use crate::shared::order::are_done;
use crate::shared::owned::Owned;
use crate::shared::piece::RemainingCopy;

impl Device for ClientDevice {
    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }
    fn has_common_memory(&self) -> bool {
        self.device.has_common_memory()
    }
    fn bind(&self) -> Result<()> {
        if self.is_leaving() { Ok(()) } else { self.noted(self.device.bind()) }
    }
    fn synchronize(&self) -> Result<()> {
        let open = self.open()?;
        self.noted(self.lanes.wait_for_all())?;
        let streams = self.owned().all_streams();
        self.noted(streams.iter().try_for_each(|stream| open.stream_synchronize(*stream)))
    }
    fn limit(&self, limit: u32) -> Result<u64> {
        let limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        match limits.iter().find(|(asked, _)| *asked == limit) {
            Some((_, value)) => Ok(*value),
            None => self.device.limit(limit),
        }
    }
    fn set_limit(&self, limit: u32, value: u64) -> Result<()> {
        // The context has the largest that any client has asked for.
        if self.device.limit(limit)? < value {
            self.device.set_limit(limit, value)?;
        }
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        limits.retain(|(asked, _)| *asked != limit);
        limits.push((limit, value));
        Ok(())
    }

    fn memory_info(&self) -> Result<(u64, u64)> {
        self.noted(self.open()?.memory_info())
    }
    fn granularity(&self) -> u64 {
        self.device.granularity()
    }
    fn reserve(&self, address: u64, bytes: u64) -> Result<()> {
        let note = |owned: &mut Owned, ()| owned.reserved.insert(address, bytes);
        self.make(|device| device.reserve(address, bytes), note)
    }
    fn unreserve(&self, address: u64, bytes: u64) -> Result<()> {
        self.give(|owned| owned.reserved.remove(&address), |device| device.unreserve(address, bytes))
    }
    fn memory_create(&self, bytes: u64) -> Result<Memory> {
        let make = |device: &dyn Device| self.with_idle_memory(|| device.memory_create(bytes));
        self.make(make, |owned, made| owned.memory.insert(made))
    }
    fn memory_create_on(&self, gpu: &[u8; 16], bytes: u64) -> Result<Memory> {
        self.make(|device| device.memory_create_on(gpu, bytes), |owned, made| owned.memory.insert(made))
    }
    fn memory_release(&self, memory: Memory) -> Result<()> {
        let forget = |owned: &mut Owned| {
            self.kept().memory.remove(&memory);
            owned.exported.remove(&memory);
            owned.memory.remove(&memory)
        };
        self.give(forget, |device| device.memory_release(memory))
    }
    fn memory_export(&self, memory: Memory) -> Result<OwnedFd> {
        match self.kept().memory.get(&memory) {
            Some(kept) => {
                self.owned().exported.insert(memory);
                kept.as_fd().try_clone_to_owned().map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)
            }
            None => {
                let open = self.open()?;
                self.owned().exported.insert(memory);
                open.memory_export(memory)
            }
        }
    }
    fn memory_import(&self, descriptor: BorrowedFd<'_>, bytes: u64) -> Result<Memory> {
        let kept = descriptor.try_clone_to_owned().map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
        let note = |owned: &mut Owned, made| owned.memory.insert(made);
        let made = self.make(|device| device.memory_import(descriptor, bytes), note)?;
        // What somebody else has made outlives the context by the descriptor that it came by.
        self.kept().memory.insert(made, kept);
        Ok(made)
    }
    fn map(&self, address: u64, bytes: u64, memory: Memory) -> Result<()> {
        let note = |owned: &mut Owned, ()| owned.mapped.insert(address, bytes);
        self.make(|device| device.map(address, bytes, memory), note)
    }
    fn unmap(&self, address: u64, bytes: u64) -> Result<()> {
        self.give(|owned| owned.mapped.remove(&address), |device| device.unmap(address, bytes))
    }
    fn protect(&self, address: u64, bytes: u64, access: Access) -> Result<()> {
        self.noted(self.open()?.protect(address, bytes, access))
    }
    fn host_register(&self, address: u64, bytes: u64) -> Result<()> {
        let note = |owned: &mut Owned, ()| owned.registered.insert(address, bytes);
        self.make(|device| device.host_register(address, bytes), note)
    }
    fn host_register_read_only(&self, address: u64, bytes: u64) -> Result<()> {
        let note = |owned: &mut Owned, ()| owned.registered.insert(address, bytes);
        self.make(|device| device.host_register_read_only(address, bytes), note)
    }
    fn host_unregister(&self, address: u64) -> Result<()> {
        // Of a client that is about to end, too: the host may have something else there before the client's work is done.
        let _call = self.calls.read().unwrap_or_else(PoisonError::into_inner);
        let is_known = self.owned().registered.remove(&address).is_some();
        match self.is_leaving() || (self.is_closing() && !is_known) {
            true => Ok(()),
            false => self.noted(self.device.host_unregister(address)),
        }
    }

    fn prepare(
        &self,
        code: &Code,
        options: &[(i32, u64)],
    ) -> std::result::Result<Arc<dyn PreparedCode>, &'static str> {
        self.device.prepare(code, options)
    }
    fn module_load(
        &self,
        code: Code,
        kind: ModuleKind,
        options: &[(i32, u64)],
    ) -> std::result::Result<Loaded, LoadError> {
        let open = self.open().map_err(|code| LoadError { code, log: String::new() })?;
        let loaded = open.module_load(code, kind, options)?;
        self.owned().modules.insert(loaded.module);
        Ok(loaded)
    }
    fn module_unload(&self, module: Module) -> Result<()> {
        // Launches of it may be in lanes.
        let _ = self.lanes.wait_for_all();
        self.kept().globals.remove(&module);
        let is_piece = self.owned().pieces.contains_key(&module);
        match is_piece {
            true => self.give(|owned| owned.take_piece(module), |device| self.pieces.give(device, module)),
            false => self.give(|owned| owned.modules.remove(&module), |device| device.module_unload(module)),
        }
    }
    fn piece_load(
        &self,
        kernel: &str,
        piece: &Piece,
        settings: &KernelSettings,
    ) -> std::result::Result<(Module, Function), LoadError> {
        if !piece.is_sharable {
            return load_piece(self, kernel, piece, settings);
        }
        let open = self.open().map_err(|code| LoadError { code, log: String::new() })?;
        let (module, function) = self.pieces.take(&*open, kernel, piece, settings)?;
        self.owned().add_piece(module);
        Ok((module, function))
    }
    fn piece_set(
        &self,
        loaded: (Module, Function),
        setting: KernelSetting,
    ) -> std::result::Result<(Module, Function), LoadError> {
        let failed = |code| LoadError { code, log: String::new() };
        if !self.owned().pieces.contains_key(&loaded.0) {
            return setting.apply(self, loaded.1).map(|()| loaded).map_err(failed);
        }
        let open = self.open().map_err(failed)?;
        // What was launched before has the settings of then.
        self.lanes.wait_for_all().map_err(failed)?;
        let (module, function) = self.pieces.set(&*open, loaded, setting)?;
        if module != loaded.0 {
            self.owned().add_piece(module);
        }
        Ok((module, function))
    }
    fn function(&self, module: Module, name: &str) -> Result<Function> {
        self.noted(self.open()?.function(module, name))
    }
    fn function_names(&self, module: Module) -> Result<Vec<String>> {
        self.open()?.function_names(module)
    }
    fn function_info(&self, function: Function) -> Result<FunctionInfo> {
        self.open()?.function_info(function)
    }
    fn set_function_attribute(&self, function: Function, attribute: i32, value: i32) -> Result<()> {
        let open = self.open()?;
        // What was launched before has the attributes of then.
        self.lanes.wait_for_all()?;
        open.set_function_attribute(function, attribute, value)
    }
    fn set_function_cache(&self, function: Function, config: i32) -> Result<()> {
        let open = self.open()?;
        self.lanes.wait_for_all()?;
        open.set_function_cache(function, config)
    }
    fn global(&self, module: Module, name: &str) -> Result<(u64, u64)> {
        self.noted(self.open()?.global(module, name))
    }
    fn globals(&self, module: Module) -> Result<Vec<Global>> {
        if let Some(known) = self.kept().globals.get(&module) {
            return Ok(known.clone());
        }
        let globals = self.noted(self.open()?.globals(module))?;
        self.kept().globals.insert(module, globals.clone());
        Ok(globals)
    }
    fn link(
        &self,
        inputs: &[LinkInput<'_>],
        options: &[(i32, u64)],
    ) -> std::result::Result<(Vec<u8>, String), LoadError> {
        self.device.link(inputs, options)
    }
    fn occupancy_blocks(&self, function: Function, block: i32, shared: u64, flags: u32) -> Result<i32> {
        self.open()?.occupancy_blocks(function, block, shared, flags)
    }
    fn occupancy_shared(&self, function: Function, blocks: i32, block: i32) -> Result<u64> {
        self.open()?.occupancy_shared(function, blocks, block)
    }
    fn occupancy_clusters(&self, launch: &Launch, function: Function) -> Result<i32> {
        self.open()?.occupancy_clusters(launch, function)
    }
    fn occupancy_cluster_size(&self, launch: &Launch, function: Function) -> Result<i32> {
        self.open()?.occupancy_cluster_size(launch, function)
    }

    fn stream_create(&self, flags: u32, priority: i32) -> Result<Stream> {
        // A call is under way from here on, so that the portion stays.
        let open = self.open()?;
        let portion = lock(&self.portion).clone();
        let made = self.noted(create_on(&*open, portion.as_deref(), priority))?;
        let mut state = self.lanes.state();
        self.owned().streams.insert(made, priority);
        Ok(state.order.add(made, flags & NON_BLOCKING == 0))
    }
    fn stream_destroy(&self, stream: Stream) -> Result<()> {
        let Ok(_open) = self.open() else { return Ok(()) };
        let mut state = self.lanes.state();
        let State { order, queues } = &mut *state;
        let real = order.real(stream);
        let followed = order.remove(queues, (stream, real));
        let owned = self.owned.clone();
        let destroy = move |device: &dyn Device, stream| {
            lock(&owned).streams.remove(&stream);
            let _ = device.stream_destroy(stream);
            Ok(())
        };
        queues.destroy_stream(real, Box::new(destroy));
        self.noted(followed)
    }
    fn stream_query(&self, stream: Stream) -> Result<bool> {
        let open = self.open()?;
        let state = self.lanes.state();
        let streams = state.order.waits_for(stream);
        let behind = streams.iter().any(|stream| state.queues.is_behind(*stream));
        drop(state);
        if behind { Ok(false) } else { self.noted(are_done(&*open, &streams)) }
    }
    fn stream_synchronize(&self, stream: Stream) -> Result<()> {
        let open = self.open()?;
        let streams = self.lanes.state().order.waits_for(stream);
        let issued = self.lanes.wait_for(&streams);
        self.noted(
            issued.and_then(|()| streams.iter().try_for_each(|stream| open.stream_synchronize(*stream))),
        )
    }
    fn stream_wait_event(&self, stream: Stream, event: Event, flags: u32) -> Result<()> {
        let _open = self.open()?;
        self.noted(self.lanes.wait_event(stream, event, flags))
    }
    fn stream_issue(&self, stream: Stream) -> Result<()> {
        let _open = self.open()?;
        let stream = self.lanes.state().order.real(stream);
        self.noted(self.lanes.wait_for(&[stream]))
    }
    fn event_create(&self, flags: u32) -> Result<Event> {
        self.make(|device| device.event_create(flags), |owned, made| owned.events.insert(made))
    }
    fn event_destroy(&self, event: Event) -> Result<()> {
        let Ok(_open) = self.open() else { return Ok(()) };
        let owned = self.owned.clone();
        let destroy = move |device: &dyn Device| {
            lock(&owned).events.remove(&event);
            let _ = device.event_destroy(event);
        };
        self.lanes.state().queues.destroy_event(event, Box::new(destroy));
        Ok(())
    }
    fn event_record(&self, event: Event, stream: Stream, flags: u32) -> Result<()> {
        let _open = self.open()?;
        self.noted(self.lanes.record(event, stream, flags))
    }
    fn event_issue(&self, event: Event) -> Result<()> {
        // The thread may be bound to another device, which it is to stay.
        let _open = self.open_as_it_is()?;
        self.noted(self.lanes.wait_for_record(event))
    }
    fn event_query(&self, event: Event) -> Result<bool> {
        let open = self.open()?;
        let state = self.lanes.state();
        let unrecorded = state.queues.is_unrecorded(event);
        drop(state);
        if unrecorded { Ok(false) } else { self.noted(open.event_query(event)) }
    }
    fn event_synchronize(&self, event: Event) -> Result<()> {
        let open = self.open()?;
        let recorded = self.lanes.wait_for_record(event);
        self.noted(recorded.and_then(|()| open.event_synchronize(event)))
    }
    fn event_elapsed(&self, start: Event, end: Event) -> Result<f32> {
        let open = self.open()?;
        let unrecorded =
            [start, end].map(|event| self.lanes.state().queues.is_unrecorded(event)).contains(&true);
        if unrecorded { Err(CUDA_ERROR_NOT_READY) } else { open.event_elapsed(start, end) }
    }

    fn launch(&self, function: Function, launch: &Launch, stream: Stream, parameters: &[u8]) -> Result<()> {
        self.computes.launches(&*self.device, launch.grid);
        self.work_sign.launches();
        self.work(
            stream,
            |device, stream| device.launch(function, launch, stream, parameters),
            || {
                let (launch, parameters) = (launch.clone(), parameters.to_vec());
                Box::new(move |device, stream| device.launch(function, &launch, stream, &parameters))
            },
        )
    }
    fn copy(&self, to: u64, from: u64, bytes: u64, stream: Stream) -> Result<()> {
        let whole = move |device: &dyn Device, stream| device.copy(to, from, bytes, stream);
        self.copy_as(RemainingCopy::bytes(to, from, bytes), stream, whole)
    }
    fn copy_3d(&self, copy: &Copy3D, stream: Stream) -> Result<()> {
        let copy = *copy;
        let whole = move |device: &dyn Device, stream| device.copy_3d(&copy, stream);
        self.copy_as(RemainingCopy::rows(&copy), stream, whole)
    }
    fn set(&self, set: &MemorySet, stream: Stream) -> Result<()> {
        let set = *set;
        self.small_work(stream, move |device, stream| device.set(&set, stream))
    }
    fn host_call(&self, stream: Stream, call: Box<dyn FnOnce() + Send>) -> Result<()> {
        let open = self.open()?;
        let done = self.lanes.place(stream).and_then(|place| match place {
            IssueSlot::Now(stream) => open.host_call(stream, call),
            IssueSlot::Later(held) => {
                held.put(Box::new(move |device, stream| device.host_call(stream, call)));
                Ok(())
            }
        });
        self.noted(done)
    }
    fn wait_value(&self, stream: Stream, address: u64, value: u64, width: u32, flags: u32) -> Result<()> {
        self.small_work(stream, move |device, stream| device.wait_value(stream, address, value, width, flags))
    }
    fn write_value(&self, stream: Stream, address: u64, value: u64, width: u32, flags: u32) -> Result<()> {
        self.small_work(stream, move |device, stream| {
            device.write_value(stream, address, value, width, flags)
        })
    }

    fn capture_begin(&self, stream: Stream, mode: u32) -> Result<()> {
        let open = self.open()?;
        let stream = self.lanes.state().order.real(stream);
        // What it was given before is no part of the graph.
        self.lanes.wait_for(&[stream])?;
        open.capture_begin(stream, mode)?;
        self.lanes.state().capture(stream, true);
        Ok(())
    }
    fn capture_end(&self, stream: Stream) -> Result<Graph> {
        // Its stream stays the same until the capture has ended.
        let _open = self.open()?;
        let stream = {
            let mut state = self.lanes.state();
            let stream = state.order.real(stream);
            state.capture(stream, false);
            stream
        };
        self.make(|device| device.capture_end(stream), |owned, made| owned.graphs.insert(made))
    }
    fn capture(&self, stream: Stream) -> Result<Capture> {
        let stream = self.lanes.state().order.real(stream);
        self.open()?.capture(stream)
    }
    fn graph_create(&self) -> Result<Graph> {
        self.make(|device| device.graph_create(), |owned, made| owned.graphs.insert(made))
    }
    fn graph_add(&self, graph: Graph, after: &[GraphNode], work: NodeWork<'_>) -> Result<GraphNode> {
        self.open()?.graph_add(graph, after, work)
    }
    fn graph_condition(&self, graph: Graph, default: Option<u32>) -> Result<u64> {
        self.open()?.graph_condition(graph, default)
    }
    fn graph_add_conditional(
        &self,
        graph: Graph,
        after: &[GraphNode],
        handle: u64,
        kind: u32,
        bodies: u32,
    ) -> Result<(GraphNode, Vec<Graph>)> {
        self.open()?.graph_add_conditional(graph, after, handle, kind, bodies)
    }
    fn graph_nodes(&self, graph: Graph) -> Result<Vec<GraphNode>> {
        self.open()?.graph_nodes(graph)
    }
    fn graph_node_kind(&self, node: GraphNode) -> Result<GraphNodeKind> {
        self.open()?.graph_node_kind(node)
    }
    fn graph_destroy(&self, graph: Graph) -> Result<()> {
        self.give(|owned| owned.graphs.remove(&graph), |device| device.graph_destroy(graph))
    }
    fn graph_instantiate(&self, graph: Graph, flags: u64) -> Result<GraphExec> {
        let note = |owned: &mut Owned, made| owned.execs.insert(made);
        self.make(|device| device.graph_instantiate(graph, flags), note)
    }
    fn graph_exec_update(&self, exec: GraphExec, graph: Graph) -> Result<u32> {
        let open = self.open()?;
        // What was launched before does what it did then.
        self.lanes.wait_for_all()?;
        self.noted(open.graph_exec_update(exec, graph))
    }
    fn graph_launch(&self, exec: GraphExec, stream: Stream) -> Result<()> {
        self.computes.launches_widely();
        self.work_sign.launches();
        self.small_work(stream, move |device, stream| device.graph_launch(exec, stream))
    }
    fn graph_exec_destroy(&self, exec: GraphExec) -> Result<()> {
        let Ok(_open) = self.open() else { return Ok(()) };
        let owned = self.owned.clone();
        let destroy = move |device: &dyn Device| {
            lock(&owned).execs.remove(&exec);
            let _ = device.graph_exec_destroy(exec);
        };
        self.lanes.state().queues.do_later(Box::new(destroy));
        Ok(())
    }

    fn array_create(&self, description: &ArrayDescription) -> Result<Array> {
        self.make(|device| device.array_create(description), |owned, made| owned.arrays.insert(made))
    }
    fn array_destroy(&self, array: Array) -> Result<()> {
        // Copies of it may be in lanes.
        let _ = self.lanes.wait_for_all();
        self.give(|owned| owned.arrays.remove(&array), |device| device.array_destroy(array))
    }
    fn copy_array(&self, copy: &ArrayCopy<Array>, stream: Stream) -> Result<()> {
        let copy = *copy;
        self.small_work(stream, move |device, stream| device.copy_array(&copy, stream))
    }
    fn view_create(&self, view: &View<Array>) -> Result<u64> {
        let note = |owned: &mut Owned, number| owned.views.insert((view.kind(), number));
        self.make(|device| device.view_create(view), note)
    }
    fn view_destroy(&self, kind: ViewKind, number: u64) -> Result<()> {
        // Launches that name it may be in lanes.
        let _ = self.lanes.wait_for_all();
        self.give(|owned| owned.views.remove(&(kind, number)), |device| device.view_destroy(kind, number))
    }

    fn tensor_map_replace(&self, map: [u8; 128], address: u64) -> Result<[u8; 128]> {
        self.device.tensor_map_replace(map, address)
    }
    fn host_atomics(&self, operations: &[u32]) -> Result<Vec<u32>> {
        self.device.host_atomics(operations)
    }
    fn feature(&self, feature: u32) -> Result<i32> {
        self.device.feature(feature)
    }
    fn tensor_map(&self, kind: u32, arguments: &[u8]) -> Result<[u8; 128]> {
        self.device.tensor_map(kind, arguments)
    }
    fn fault(&self) -> Option<String> {
        self.device.fault()
    }
}
