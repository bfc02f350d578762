//! A device that keeps CUDA's rules with one queue for all streams, and runs kernels that it knows by name. It can be
//! told to fail, which a GPU cannot.

mod platform;
mod queue;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

pub use platform::{FakePlatform, Knobs};
use queue::{Node, Shared, State};

use rekindle_cuda::{
    CUDA_ERROR_ILLEGAL_STATE, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_PTX, CUDA_ERROR_INVALID_VALUE,
    CUDA_ERROR_MAP_FAILED, CUDA_ERROR_NOT_FOUND, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OUT_OF_MEMORY,
    CuResult,
};
use rekindle_device::*;

pub struct FakeDevice {
    info: DeviceInfo,
    shared: Arc<Shared>,
    runner: Mutex<Option<std::thread::JoinHandle<()>>>,
}

const ARENA: u64 = DEVICE_RANGE.end - (1 << 40);

impl FakeDevice {
    fn new(info: DeviceInfo, knobs: Arc<Knobs>) -> Arc<FakeDevice> {
        let shift = knobs.arena_shift.load(Ordering::Relaxed);
        let state = State { next: 1, arena: ARENA + shift, ..State::default() };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            done: AtomicU64::new(0),
            knobs,
        });
        let runner = shared.clone();
        let runner = std::thread::spawn(move || runner.run());
        Arc::new(FakeDevice { info, shared, runner: Mutex::new(Some(runner)) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap()
    }

    fn number(&self) -> u64 {
        let mut state = self.state();
        state.next += 1;
        state.next
    }

    fn check(&self) -> Result<()> {
        CuResult(self.shared.knobs.sticky.load(Ordering::Relaxed)).ok()
    }

    fn map_pages(&self, address: u64, bytes: u64, file: i32, protection: i32) -> Result<()> {
        let flags = libc::MAP_FIXED
            | if file >= 0 {
                libc::MAP_SHARED
            } else {
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE
            };
        // SAFETY: inside a range that `reserve` took for this device.
        let base =
            unsafe { libc::mmap(address as *mut libc::c_void, bytes as usize, protection, flags, file, 0) };
        if base == libc::MAP_FAILED { Err(CUDA_ERROR_MAP_FAILED) } else { Ok(()) }
    }

    fn graph_node(&self, graph: Graph, node: Node) -> Result<GraphNode> {
        let mut state = self.state();
        let nodes = state.graphs.get_mut(&graph.0).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        nodes.push(node);
        Ok(GraphNode(graph.0 << 16 | (nodes.len() - 1) as u64))
    }
}

impl Drop for FakeDevice {
    fn drop(&mut self) {
        self.state().stop = true;
        self.shared.changed.notify_all();
        self.runner.lock().unwrap().take().unwrap().join().unwrap();
        let state = self.state();
        for (address, bytes) in &state.mapped {
            // SAFETY: reserved or mapped by this device, which nobody uses any more.
            unsafe { libc::munmap(*address as *mut libc::c_void, *bytes as usize) };
        }
        for (file, _) in state.memory.values() {
            // SAFETY: made by `memory_create`.
            unsafe { libc::close(*file) };
        }
    }
}

impl Device for FakeDevice {
    fn prepare(
        &self,
        _: &Code,
        _: &[(i32, u64)],
    ) -> std::result::Result<Arc<dyn PreparedCode>, &'static str> {
        Err("unreadable")
    }

    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn bind(&self) -> Result<()> {
        Ok(())
    }
    fn synchronize(&self) -> Result<()> {
        let last = self.state().streams.values().max().copied().unwrap_or(0);
        self.wait_for(last)
    }
    fn limit(&self, _: u32) -> Result<u64> {
        Ok(1024)
    }
    fn set_limit(&self, _: u32, _: u64) -> Result<()> {
        Ok(())
    }
    fn memory_info(&self) -> Result<(u64, u64)> {
        let used: u64 = self.state().memory.values().map(|row| row.1).sum();
        let total = self.shared.knobs.memory.load(Ordering::Relaxed);
        Ok((total - used, total))
    }
    fn granularity(&self) -> u64 {
        2 << 20
    }
    fn reserve(&self, address: u64, bytes: u64) -> Result<()> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: nothing is replaced.
        let base = unsafe {
            libc::mmap(address as *mut libc::c_void, bytes as usize, libc::PROT_NONE, flags, -1, 0)
        };
        if base as u64 != address {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        self.state().mapped.insert(address, bytes);
        Ok(())
    }
    fn unreserve(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
    fn memory_create(&self, bytes: u64) -> Result<Memory> {
        if self.memory_info()?.0 < bytes {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        // SAFETY: makes a new descriptor.
        let file = unsafe { libc::memfd_create(c"fake".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: the descriptor is ours.
        assert_eq!(unsafe { libc::ftruncate(file, bytes as i64) }, 0);
        let number = self.number();
        self.state().memory.insert(number, (file, bytes));
        self.shared.knobs.used.fetch_add(bytes, Ordering::Relaxed);
        Ok(Memory(number))
    }
    fn memory_release(&self, memory: Memory) -> Result<()> {
        let (file, bytes) = self.state().memory.remove(&memory.0).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        self.shared.knobs.used.fetch_sub(bytes, Ordering::Relaxed);
        // SAFETY: made by `memory_create`.
        unsafe { libc::close(file) };
        Ok(())
    }
    fn memory_export(&self, _: Memory) -> Result<OwnedFd> {
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }
    fn memory_import(&self, _: BorrowedFd<'_>, _: u64) -> Result<Memory> {
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }
    fn map(&self, address: u64, bytes: u64, memory: Memory) -> Result<()> {
        let (file, _) = *self.state().memory.get(&memory.0).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        self.map_pages(address, bytes, file, libc::PROT_NONE)
    }
    fn unmap(&self, address: u64, bytes: u64) -> Result<()> {
        self.map_pages(address, bytes, -1, libc::PROT_NONE)
    }
    fn protect(&self, address: u64, bytes: u64, access: Access) -> Result<()> {
        let protection = match access {
            Access::None => libc::PROT_NONE,
            Access::Read => libc::PROT_READ,
            Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: inside a mapping of this device.
        let done = unsafe { libc::mprotect(address as *mut libc::c_void, bytes as usize, protection) };
        if done == 0 { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }
    fn host_register(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
    fn host_register_read_only(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
    fn host_unregister(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn module_load(
        &self,
        code: Code,
        _: ModuleKind,
        _: &[(i32, u64)],
    ) -> std::result::Result<Loaded, LoadError> {
        if !code.bytes().starts_with(b"fake") {
            return Err(LoadError { code: CUDA_ERROR_INVALID_PTX, log: "line 1: not fake".to_string() });
        }
        let number = self.number();
        let address = self.state().arena;
        self.state().arena += 2 << 20;
        let mapped = self.map_pages(address, 4096, -1, libc::PROT_READ | libc::PROT_WRITE);
        mapped.map_err(|code| LoadError { code, log: String::new() })?;
        let mut state = self.state();
        state.mapped.insert(address, 4096);
        state.modules.insert(number, address);
        Ok(Loaded { module: Module(number), log: "loaded".to_string() })
    }
    fn module_unload(&self, module: Module) -> Result<()> {
        self.state().modules.remove(&module.0).map(|_| ()).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }
    fn function(&self, module: Module, name: &str) -> Result<Function> {
        if !["add_one", "bump", "spin", "fault"].contains(&name) {
            return Err(CUDA_ERROR_NOT_FOUND);
        }
        let number = self.number();
        let mut state = self.state();
        let global = *state.modules.get(&module.0).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        state.functions.insert(number, (name.to_string(), global));
        Ok(Function(number))
    }
    fn function_names(&self, _: Module) -> Result<Vec<String>> {
        Ok(vec!["add_one".to_string()])
    }
    fn function_info(&self, _: Function) -> Result<FunctionInfo> {
        Ok(FunctionInfo { attributes: vec![0; 16], parameters: Vec::new() })
    }
    fn set_function_attribute(&self, _: Function, _: i32, _: i32) -> Result<()> {
        Ok(())
    }
    fn set_function_cache(&self, _: Function, _: i32) -> Result<()> {
        Ok(())
    }
    fn global(&self, module: Module, name: &str) -> Result<(u64, u64)> {
        let address = *self.state().modules.get(&module.0).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if name == "counter" { Ok((address, 4)) } else { Err(CUDA_ERROR_NOT_FOUND) }
    }
    fn globals(&self, module: Module) -> Result<Vec<Global>> {
        let (address, bytes) = self.global(module, "counter")?;
        Ok(vec![Global { name: "counter".to_string(), address, bytes, constant: false }])
    }
    fn link(
        &self,
        inputs: &[LinkInput<'_>],
        _: &[(i32, u64)],
    ) -> std::result::Result<(Vec<u8>, String), LoadError> {
        Ok((inputs.iter().flat_map(|input| input.bytes.to_vec()).collect(), "linked".to_string()))
    }
    fn occupancy_blocks(&self, _: Function, _: i32, _: u64, _: u32) -> Result<i32> {
        Ok(1)
    }
    fn occupancy_shared(&self, _: Function, _: i32, _: i32) -> Result<u64> {
        Ok(1)
    }
    fn occupancy_clusters(&self, _: &Launch, _: Function) -> Result<i32> {
        Ok(1)
    }
    fn occupancy_cluster_size(&self, _: &Launch, _: Function) -> Result<i32> {
        Ok(1)
    }

    fn stream_create(&self, _: u32, _: i32) -> Result<Stream> {
        Ok(Stream(self.number()))
    }
    fn stream_destroy(&self, stream: Stream) -> Result<()> {
        self.state().streams.remove(&stream.0);
        Ok(())
    }
    fn stream_query(&self, stream: Stream) -> Result<bool> {
        let number = self.state().streams.get(&stream.0).copied().unwrap_or(0);
        self.is_done(number)
    }
    fn stream_synchronize(&self, stream: Stream) -> Result<()> {
        let number = self.state().streams.get(&stream.0).copied().unwrap_or(0);
        self.wait_for(number)
    }
    fn stream_wait_event(&self, _: Stream, _: Event, _: u32) -> Result<()> {
        Ok(())
    }
    fn event_create(&self, _: u32) -> Result<Event> {
        Ok(Event(self.number()))
    }
    fn event_destroy(&self, event: Event) -> Result<()> {
        self.state().events.remove(&event.0);
        Ok(())
    }
    fn event_record(&self, event: Event, stream: Stream, _: u32) -> Result<()> {
        if self.state().captures.contains_key(&stream.0) {
            return Ok(());
        }
        let task = move |shared: &Shared| {
            shared.state.lock().unwrap().times.insert(event.0, Instant::now());
        };
        let number = self.submit(stream, Box::new(task))?;
        self.state().events.insert(event.0, number);
        Ok(())
    }
    fn event_query(&self, event: Event) -> Result<bool> {
        let number = self.state().events.get(&event.0).copied().unwrap_or(0);
        if self.shared.knobs.events_first.load(Ordering::Relaxed) {
            return Ok(self.shared.done.load(Ordering::Acquire) >= number);
        }
        self.is_done(number)
    }
    fn event_synchronize(&self, event: Event) -> Result<()> {
        let number = self.state().events.get(&event.0).copied().unwrap_or(0);
        self.wait_for(number)
    }
    fn event_elapsed(&self, start: Event, end: Event) -> Result<f32> {
        let state = self.state();
        let time = |event: Event| state.times.get(&event.0).copied().ok_or(CUDA_ERROR_INVALID_HANDLE);
        let (start, end) = (time(start)?, time(end)?);
        let forward = end.saturating_duration_since(start).as_secs_f32();
        Ok((forward - start.saturating_duration_since(end).as_secs_f32()) * 1e3)
    }

    fn launch(&self, function: Function, _: &Launch, stream: Stream, parameters: &[u8]) -> Result<()> {
        let (name, global) =
            self.state().functions.get(&function.0).cloned().ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        self.node(stream, Node::Kernel(name, global, parameters.to_vec()))
    }
    fn copy(&self, to: u64, from: u64, bytes: u64, stream: Stream) -> Result<()> {
        if to == 0 || from == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.node(stream, Node::Copy(to, from, bytes))
    }
    fn copy_3d(&self, _: &Copy3D, _: Stream) -> Result<()> {
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }
    fn set(&self, set: &MemorySet, stream: Stream) -> Result<()> {
        self.node(stream, Node::Set(*set))
    }
    fn host_call(&self, stream: Stream, call: Box<dyn FnOnce() + Send>) -> Result<()> {
        self.submit(stream, Box::new(move |_| call())).map(|_| ())
    }
    fn wait_value(&self, _: Stream, _: u64, _: u64, _: u32, _: u32) -> Result<()> {
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }
    fn write_value(&self, _: Stream, _: u64, _: u64, _: u32, _: u32) -> Result<()> {
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }

    fn capture_begin(&self, stream: Stream, _: u32) -> Result<()> {
        let id = self.number();
        self.state().captures.insert(stream.0, (id, Vec::new()));
        Ok(())
    }
    fn capture_end(&self, stream: Stream) -> Result<Graph> {
        let (_, nodes) = self.state().captures.remove(&stream.0).ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        let graph = self.graph_create()?;
        self.state().graphs.insert(graph.0, nodes);
        Ok(graph)
    }
    fn capture(&self, stream: Stream) -> Result<Capture> {
        let state = self.state();
        let id = state.captures.get(&stream.0).map(|capture| capture.0);
        Ok(Capture { status: u32::from(id.is_some()), id: id.unwrap_or(0) })
    }
    fn graph_create(&self) -> Result<Graph> {
        let graph = self.number();
        self.state().graphs.insert(graph, Vec::new());
        Ok(Graph(graph))
    }
    fn graph_add(&self, graph: Graph, _: &[GraphNode], work: NodeWork<'_>) -> Result<GraphNode> {
        let node = match work {
            NodeWork::Kernel { function, parameters, .. } => {
                let known = self.state().functions.get(&function.0).cloned();
                let (name, global) = known.ok_or(CUDA_ERROR_INVALID_HANDLE)?;
                Node::Kernel(name, global, parameters.to_vec())
            }
            NodeWork::Copy(copy) => Node::Copy(copy.to, copy.from, copy.width),
            NodeWork::Set(set) => Node::Set(*set),
            NodeWork::Empty => Node::Empty,
            NodeWork::Child(child) => {
                let nodes = self.state().graphs.get(&child.0).cloned();
                Node::Child(nodes.ok_or(CUDA_ERROR_INVALID_HANDLE)?)
            }
            _ => return Err(CUDA_ERROR_NOT_SUPPORTED),
        };
        self.graph_node(graph, node)
    }
    fn graph_condition(&self, _: Graph, _: Option<u32>) -> Result<u64> {
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }
    fn graph_add_conditional(
        &self,
        _: Graph,
        _: &[GraphNode],
        _: u64,
        _: u32,
        _: u32,
    ) -> Result<(GraphNode, Vec<Graph>)> {
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }
    fn graph_nodes(&self, graph: Graph) -> Result<Vec<GraphNode>> {
        let state = self.state();
        let nodes = state.graphs.get(&graph.0).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        Ok((0..nodes.len() as u64).map(|n| GraphNode(graph.0 << 16 | n)).collect())
    }
    fn graph_node_kind(&self, node: GraphNode) -> Result<GraphNodeKind> {
        let state = self.state();
        let nodes = state.graphs.get(&(node.0 >> 16)).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        Ok(GraphNodeKind(match nodes[node.0 as usize & 0xffff] {
            Node::Kernel(..) => 0,
            Node::Copy(..) => 1,
            Node::Set(_) => 2,
            Node::Child(_) => 4,
            Node::Empty => 5,
        }))
    }
    fn graph_destroy(&self, graph: Graph) -> Result<()> {
        self.state().graphs.remove(&graph.0).map(|_| ()).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }
    fn graph_instantiate(&self, graph: Graph, _: u64) -> Result<GraphExec> {
        let number = self.number();
        let mut state = self.state();
        let nodes = state.graphs.get(&graph.0).cloned().ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        state.execs.insert(number, nodes);
        Ok(GraphExec(number))
    }
    fn graph_exec_update(&self, exec: GraphExec, graph: Graph) -> Result<u32> {
        const TOPOLOGY_CHANGED: u32 = 2;
        let mut state = self.state();
        let nodes = state.graphs.get(&graph.0).cloned().ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let known = state.execs.get_mut(&exec.0).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if known.len() != nodes.len() {
            return Ok(TOPOLOGY_CHANGED);
        }
        *known = nodes;
        Ok(0)
    }
    fn graph_launch(&self, exec: GraphExec, stream: Stream) -> Result<()> {
        let nodes = self.state().execs.get(&exec.0).cloned().ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        nodes.into_iter().try_for_each(|node| self.node(stream, node))
    }
    fn graph_exec_destroy(&self, exec: GraphExec) -> Result<()> {
        self.state().execs.remove(&exec.0).map(|_| ()).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }
    fn tensor_map(&self, _: u32, _: &[u8]) -> Result<[u8; 128]> {
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }
    fn fault(&self) -> Option<String> {
        Some("kernel fault wrote to nothing".to_string())
    }
}
