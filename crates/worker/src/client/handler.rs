//! Each operation of the protocol, and where it is done.

use rekindle_device::{Capture, FunctionInfo, Result, Units};
use rekindle_protocol::operation::*;

use super::Client;

type No<'t> = &'t [u8];

impl Handler for Client {
    fn context_open(&mut self, _: Origin, request: ContextOpen, _: No) -> Answer<()> {
        let opened = self.open(request.device.into());
        if self.has_several_gpus() {
            self.load_what_is_known();
        }
        opened.into()
    }

    fn context_synchronize(&mut self, origin: Origin, request: ContextSynchronize, _: No) -> Answer<()> {
        self.synchronize_context(origin, request.device, ())
    }

    fn limit_get(&mut self, _: Origin, request: LimitGet, _: No) -> Answer<u64> {
        self.limit(request).into()
    }

    fn limit_set(&mut self, _: Origin, request: LimitSet, _: No) -> Answer<()> {
        self.set_limit(request).into()
    }

    fn context_reset(&mut self, _: Origin, request: ContextReset, _: No) -> Answer<()> {
        self.reset_context(request).into()
    }

    fn memory_info(&mut self, _: Origin, request: MemoryInfo, _: No) -> Answer<(u64, u64)> {
        self.memory_space(request.device.into()).into()
    }

    fn memory_allocate(&mut self, _: Origin, request: MemoryAllocate, _: No) -> Answer<u64> {
        self.allocate(request.device.into(), request.bytes).into()
    }

    fn memory_free(&mut self, origin: Origin, request: MemoryFree, _: No) -> Answer<()> {
        self.free(origin, request)
    }

    fn memory_allocate_async(&mut self, origin: Origin, request: MemoryAllocateAsync, _: No) -> Answer<u64> {
        self.allocate_async(origin, request).into()
    }

    fn memory_free_async(&mut self, origin: Origin, request: MemoryFreeAsync, _: No) -> Result<()> {
        self.free_async(origin, request)
    }

    fn pool_trim(&mut self, _: Origin, request: PoolTrim, _: No) -> Result<()> {
        self.trim(request.device.into(), request.keep).map(|_| ())
    }

    fn memory_range(&mut self, _: Origin, request: MemoryRange, _: No) -> Answer<(u64, u64, u8)> {
        self.range_of(request.address).into()
    }

    fn data_load(&mut self, _: Origin, request: DataLoad<'_>, _: No) -> Answer<u64> {
        self.load_data(request).into()
    }

    fn data_state(&mut self, origin: Origin, request: DataState, _: No) -> Answer<DataFound> {
        self.data_found(origin, &request)
    }

    fn data_open(&mut self, _: Origin, request: DataOpen<'_>, _: No) -> Answer<u64> {
        self.open_data_for_writing(request).into()
    }

    fn data_dump(&mut self, origin: Origin, request: DataDump, _: No) -> Answer<DataOutcome<()>> {
        self.dump_data(origin, &request).into()
    }

    fn data_dumped(&mut self, origin: Origin, request: DataDumped, _: No) -> Answer<DataFound> {
        self.dump_found(origin, &request)
    }

    fn data_read(
        &mut self,
        origin: Origin,
        request: DataRead<'_>,
        _: No,
    ) -> Answer<DataOutcome<(u64, Vec<u8>)>> {
        self.read_data(origin, &request)
    }

    fn data_waits(&mut self, _: Origin, request: DataWaits, _: No) -> Answer<Vec<(WaitFor, u64, u64)>> {
        Answer::Now(Ok(self.waits.take(request.most as usize)))
    }

    fn exchange_put(&mut self, origin: Origin, request: ExchangePut, _: No) -> Answer<DataOutcome<String>> {
        self.put_array(origin, request)
    }

    fn exchange_get(&mut self, origin: Origin, request: ExchangeGet<'_>, _: No) -> Answer<DataOutcome<u64>> {
        self.get_array(origin, request)
    }

    fn exchange_drop(&mut self, origin: Origin, request: ExchangeDrop<'_>, _: No) -> Answer<DataOutcome<()>> {
        self.drop_array(origin, request)
    }

    fn address_reserve(&mut self, _: Origin, request: AddressReserve, _: No) -> Answer<u64> {
        self.reserve_addresses(request).into()
    }

    fn address_free(&mut self, _: Origin, request: AddressFree, _: No) -> Answer<()> {
        self.free_addresses(request).into()
    }

    fn physical_create(&mut self, _: Origin, request: PhysicalCreate, _: No) -> Answer<()> {
        self.create_physical(request).into()
    }

    fn physical_release(&mut self, _: Origin, request: PhysicalRelease, _: No) -> Answer<()> {
        self.release_physical(request.id).into()
    }

    fn physical_map(&mut self, _: Origin, request: PhysicalMap, _: No) -> Answer<()> {
        self.map_physical(request).into()
    }

    fn physical_unmap(&mut self, _: Origin, request: PhysicalUnmap, _: No) -> Answer<()> {
        self.unmap_physical(request).into()
    }

    fn physical_protect(&mut self, _: Origin, request: PhysicalProtect, _: No) -> Answer<()> {
        self.protect_physical(request).into()
    }

    fn pinned_register(&mut self, _: Origin, request: PinnedRegister<'_>, _: No) -> Answer<()> {
        self.register_pinned(request).into()
    }

    fn pinned_unregister(&mut self, origin: Origin, request: PinnedUnregister, _: No) -> Answer<()> {
        self.unregister_pinned(origin, request)
    }

    fn module_load(&mut self, _: Origin, request: ModuleLoad<'_>, code: &[u8]) -> Answer<ModuleLoaded> {
        self.load_module(request, code).into()
    }

    fn module_unload(&mut self, origin: Origin, request: ModuleUnload, _: No) -> Answer<()> {
        self.unload_module(origin, request.id)
    }

    fn function_get(&mut self, _: Origin, request: FunctionGet<'_>, _: No) -> Answer<FunctionFound> {
        self.get_function(request).into()
    }

    fn function_names(&mut self, _: Origin, request: FunctionNames, _: No) -> Answer<Vec<String>> {
        self.names(request.module).into()
    }

    fn function_set(&mut self, _: Origin, request: FunctionSet, _: No) -> Answer<FunctionInfo> {
        self.set_function(request).into()
    }

    fn function_cache(&mut self, _: Origin, request: FunctionCache, _: No) -> Result<()> {
        self.set_cache(request.id, request.config)
    }

    fn global_get(&mut self, _: Origin, request: GlobalGet<'_>, _: No) -> Answer<(u64, u64)> {
        self.get_global(request).into()
    }

    fn link(&mut self, _: Origin, request: Link<'_>, inputs: &[u8]) -> Answer<Linked> {
        self.link_code(request, inputs).into()
    }

    fn occupancy_blocks(&mut self, _: Origin, request: OccupancyBlocks, _: No) -> Answer<i32> {
        let OccupancyBlocks { function, block, shared, flags } = request;
        let kernel = self.kernel(function);
        kernel
            .and_then(|(device, kernel)| self.on(device)?.occupancy_blocks(kernel, block, shared, flags))
            .into()
    }

    fn occupancy_shared(&mut self, _: Origin, request: OccupancyShared, _: No) -> Answer<u64> {
        let OccupancyShared { function, blocks, block } = request;
        let kernel = self.kernel(function);
        kernel.and_then(|(device, kernel)| self.on(device)?.occupancy_shared(kernel, blocks, block)).into()
    }

    fn occupancy_clusters(&mut self, _: Origin, request: OccupancyClusters, _: No) -> Answer<i32> {
        let OccupancyClusters { function, launch, size } = request;
        let kernel = self.kernel(function);
        kernel
            .and_then(|(device, kernel)| match size {
                true => self.on(device)?.occupancy_cluster_size(&launch, kernel),
                false => self.on(device)?.occupancy_clusters(&launch, kernel),
            })
            .into()
    }

    fn tensor_map(&mut self, _: Origin, request: TensorMap<'_>, _: No) -> Answer<Vec<u8>> {
        let device = self.on(request.device.into());
        device.and_then(|device| Ok(device.tensor_map(request.kind, request.arguments)?.to_vec())).into()
    }

    fn host_atomics(&mut self, _: Origin, request: HostAtomics, _: No) -> Answer<Vec<u32>> {
        let device = self.on(request.device.into());
        device.and_then(|device| device.host_atomics(&request.operations)).into()
    }

    fn device_feature(&mut self, _: Origin, request: DeviceFeature, _: No) -> Answer<i32> {
        self.on(request.device.into()).and_then(|device| device.feature(request.feature)).into()
    }

    fn tensor_map_replace(&mut self, _: Origin, request: TensorMapReplace<'_>, _: No) -> Answer<Vec<u8>> {
        let TensorMapReplace { device, map, address } = request;
        let replace = |device: &dyn rekindle_device::Device| {
            let map = map.try_into().map_err(|_| rekindle_cuda::CUDA_ERROR_INVALID_VALUE)?;
            Ok(device.tensor_map_replace(map, address)?.to_vec())
        };
        self.on(device.into()).and_then(replace).into()
    }

    fn stream_create(&mut self, _: Origin, request: StreamCreate, _: No) -> Result<()> {
        self.create_stream(request)
    }

    fn stream_destroy(&mut self, _: Origin, request: StreamDestroy, _: No) -> Result<()> {
        self.destroy_stream(request)
    }

    fn part_units(&mut self, _: Origin, request: PartUnits, _: No) -> Answer<Units> {
        self.units(request.device).into()
    }

    fn part_create(&mut self, _: Origin, request: PartCreate, _: No) -> Answer<()> {
        self.create_part(request).into()
    }

    fn part_destroy(&mut self, _: Origin, request: PartDestroy, _: No) -> Result<()> {
        self.destroy_part(request)
    }

    fn stream_create_on(&mut self, _: Origin, request: StreamCreateOn, _: No) -> Result<()> {
        self.create_stream_on(request)
    }

    fn context_record(&mut self, _: Origin, request: ContextRecord, _: No) -> Answer<()> {
        self.record_all(request).into()
    }

    fn context_wait(&mut self, _: Origin, request: ContextWait, _: No) -> Answer<()> {
        self.wait_in_all(request).into()
    }

    fn stream_query(&mut self, origin: Origin, request: StreamQuery, _: No) -> Answer<bool> {
        self.query_stream(origin, request).into()
    }

    fn stream_synchronize(&mut self, origin: Origin, request: StreamSynchronize, _: No) -> Answer<()> {
        self.synchronize_stream(origin, (request.device, request.stream), ())
    }

    fn stream_wait_event(&mut self, origin: Origin, request: StreamWaitEvent, _: No) -> Result<()> {
        self.wait_event(origin, request)
    }

    fn event_create(&mut self, _: Origin, request: EventCreate, _: No) -> Result<()> {
        self.create_event(request)
    }

    fn event_destroy(&mut self, _: Origin, request: EventDestroy, _: No) -> Result<()> {
        let event = self.events.remove(request.id)?;
        self.unshare_event(request.id);
        self.destroy_event(event.device, event.handle)
    }

    fn event_record(&mut self, origin: Origin, request: EventRecord, _: No) -> Result<()> {
        self.record_event(origin, request)
    }

    fn event_query(&mut self, _: Origin, request: EventQuery, _: No) -> Answer<bool> {
        self.query_event(request.event).into()
    }

    fn event_synchronize(&mut self, origin: Origin, request: EventSynchronize, _: No) -> Answer<()> {
        self.synchronize_event(origin, request.event, ())
    }

    fn context_await(&mut self, origin: Origin, request: ContextAwait, _: No) -> Answer<bool> {
        let answer = self.synchronize_context(origin, request.device, true);
        self.gives_way(answer)
    }

    fn stream_await(&mut self, origin: Origin, request: StreamAwait, _: No) -> Answer<bool> {
        let answer = self.synchronize_stream(origin, (request.device, request.stream), true);
        self.gives_way(answer)
    }

    fn stream_room(&mut self, origin: Origin, request: StreamRoom, _: No) -> Answer<bool> {
        let answer = self.await_room(origin, request.device, request.stream);
        self.gives_way(answer)
    }

    fn event_await(&mut self, origin: Origin, request: EventAwait, _: No) -> Answer<bool> {
        let answer = self.synchronize_event(origin, request.event, true);
        self.gives_way(answer)
    }

    fn ipc_memory_export(&mut self, _: Origin, request: IpcMemoryExport, _: No) -> Answer<Vec<u8>> {
        self.export_memory(request).into()
    }

    fn ipc_memory_open(&mut self, _: Origin, request: IpcMemoryOpen<'_>, _: No) -> Answer<(u64, u64)> {
        self.open_memory(request).into()
    }

    fn ipc_memory_close(&mut self, origin: Origin, request: IpcMemoryClose, _: No) -> Answer<bool> {
        self.close_memory(origin, request)
    }

    fn physical_export(&mut self, _: Origin, request: PhysicalExport, _: No) -> Answer<Vec<u8>> {
        self.export_physical(request).into()
    }

    fn physical_import(&mut self, _: Origin, request: PhysicalImport<'_>, _: No) -> Answer<(u8, u64)> {
        self.import_physical(request).into()
    }

    fn ipc_event_export(&mut self, _: Origin, request: IpcEventExport, _: No) -> Answer<Vec<u8>> {
        self.export_event(request).into()
    }

    fn ipc_event_open(&mut self, _: Origin, request: IpcEventOpen<'_>, _: No) -> Answer<()> {
        self.open_event(request).into()
    }

    fn ipc_event_record(&mut self, origin: Origin, request: IpcEventRecord, _: No) -> Answer<()> {
        self.record_shared(origin, request).into()
    }

    fn ipc_event_wait(&mut self, origin: Origin, request: IpcEventWait, _: No) -> Answer<()> {
        self.wait_shared(origin, request).into()
    }

    fn event_elapsed(&mut self, _: Origin, request: EventElapsed, _: No) -> Answer<f32> {
        self.elapsed(request).into()
    }

    fn launch_kernel(&mut self, origin: Origin, request: LaunchKernel, parameters: &[u8]) -> Result<()> {
        self.launch(origin, request, parameters)
    }

    fn launch_kernel_with(
        &mut self,
        origin: Origin,
        request: LaunchKernelWith,
        parameters: &[u8],
    ) -> Result<()> {
        self.launch_with(origin, request, parameters)
    }

    fn copy(&mut self, origin: Origin, request: Copy, _: No) -> Result<()> {
        self.copy_bytes(origin, request)
    }

    fn copy_strided(&mut self, origin: Origin, request: CopyStrided, _: No) -> Result<()> {
        self.copy_rows(origin, request)
    }

    fn upload(&mut self, origin: Origin, request: Upload, _: No) -> Result<()> {
        self.stage_up(origin, request)
    }

    fn download(&mut self, origin: Origin, request: Download, _: No) -> Result<()> {
        self.stage_down(origin, request)
    }

    fn memory_set(&mut self, origin: Origin, request: SetMemory, _: No) -> Result<()> {
        self.fill(origin, request)
    }

    fn wait_value(&mut self, origin: Origin, request: WaitValue, _: No) -> Result<()> {
        self.await_value(origin, request)
    }

    fn write_value(&mut self, origin: Origin, request: WriteValue, _: No) -> Result<()> {
        self.put_value(origin, request)
    }

    fn host_call(&mut self, origin: Origin, request: HostCall, _: No) -> Result<()> {
        self.call_host(origin, request)
    }

    fn capture_begin(&mut self, origin: Origin, request: CaptureBegin, _: No) -> Answer<()> {
        self.begin_capture(origin, request).into()
    }

    fn capture_end(&mut self, origin: Origin, request: CaptureEnd, _: No) -> Answer<u32> {
        self.end_capture(origin, request).into()
    }

    fn capture_status(&mut self, origin: Origin, request: CaptureStatus, _: No) -> Answer<Capture> {
        self.capture_of(origin, request).into()
    }

    fn graph_create(&mut self, _: Origin, request: GraphCreate, _: No) -> Answer<()> {
        self.create_graph(request).into()
    }

    fn graph_add_kernel(&mut self, _: Origin, request: GraphAddKernel, parameters: &[u8]) -> Answer<u32> {
        self.add_kernel(request, parameters).into()
    }

    fn graph_add_copy(&mut self, _: Origin, request: GraphAddCopy, _: No) -> Answer<u32> {
        self.add_copy(request).into()
    }

    fn graph_add_set(&mut self, _: Origin, request: GraphAddSet, _: No) -> Answer<u32> {
        self.add_set(request).into()
    }

    fn graph_add_empty(&mut self, _: Origin, request: GraphAddEmpty, _: No) -> Answer<u32> {
        self.add_empty(request).into()
    }

    fn graph_add_child(&mut self, _: Origin, request: GraphAddChild, _: No) -> Answer<u32> {
        self.add_child(request).into()
    }

    fn array_create(&mut self, _: Origin, request: ArrayCreate, _: No) -> Answer<()> {
        self.create_array(request).into()
    }

    fn array_destroy(&mut self, origin: Origin, request: ArrayDestroy, _: No) -> Answer<()> {
        self.destroy_array(origin, request)
    }

    fn copy_array(&mut self, origin: Origin, request: CopyArray, _: No) -> Result<()> {
        self.copy_array_rows(origin, request)
    }

    fn view_create(&mut self, _: Origin, request: ViewCreate, _: No) -> Answer<u64> {
        self.create_view(request).into()
    }

    fn view_destroy(&mut self, _: Origin, request: ViewDestroy, _: No) -> Answer<()> {
        self.destroy_view(request).into()
    }

    fn graph_set_kernel(&mut self, _: Origin, request: GraphSetKernel, parameters: &[u8]) -> Answer<()> {
        self.set_kernel(request, parameters).into()
    }

    fn graph_set_copy(&mut self, _: Origin, request: GraphSetCopy, _: No) -> Answer<()> {
        self.set_copy(request).into()
    }

    fn graph_set_set(&mut self, _: Origin, request: GraphSetSet, _: No) -> Answer<()> {
        self.set_set(request).into()
    }

    fn graph_set_child(&mut self, _: Origin, request: GraphSetChild, _: No) -> Answer<()> {
        self.set_child(request).into()
    }

    fn graph_set_child_inside(&mut self, _: Origin, request: GraphSetChildInside, _: No) -> Answer<()> {
        self.set_child_inside(request).into()
    }

    fn graph_exec_update(&mut self, _: Origin, request: GraphExecUpdate, _: No) -> Answer<u32> {
        self.update_exec(request).into()
    }

    fn graph_add(&mut self, _: Origin, request: GraphAdd, _: No) -> Answer<u32> {
        self.add_action(request).into()
    }

    fn graph_set(&mut self, _: Origin, request: GraphSet, _: No) -> Answer<()> {
        self.set_action(request).into()
    }

    fn graph_topology(&mut self, _: Origin, request: GraphTopology, _: No) -> Answer<Vec<Option<NodeFound>>> {
        self.topology(request).into()
    }

    fn graph_node(&mut self, _: Origin, request: GraphNode, _: No) -> Answer<NodeAction> {
        self.node_action(request).into()
    }

    fn graph_edges(&mut self, _: Origin, request: GraphEdges, _: No) -> Answer<()> {
        self.change_edges(request).into()
    }

    fn graph_remove(&mut self, _: Origin, request: GraphRemove, _: No) -> Answer<()> {
        self.remove_node(request).into()
    }

    fn graph_clone(&mut self, _: Origin, request: GraphClone, _: No) -> Answer<()> {
        self.clone_graph(request).into()
    }

    fn graph_inside(&mut self, _: Origin, request: GraphInside, _: No) -> Answer<()> {
        self.graph_in_node(request).into()
    }

    fn graph_put(&mut self, _: Origin, request: GraphPut, _: No) -> Answer<()> {
        self.put_in_node(request).into()
    }

    fn graph_enable(&mut self, _: Origin, request: GraphEnable, _: No) -> Answer<()> {
        self.enable(request).into()
    }

    fn capture_begin_into(&mut self, origin: Origin, request: CaptureBeginInto, _: No) -> Answer<()> {
        self.begin_capture_into(origin, request).into()
    }

    fn capture_end_into(&mut self, origin: Origin, request: CaptureEndInto, _: No) -> Answer<u32> {
        self.end_capture_into(origin, request).into()
    }

    fn capture_ends(&mut self, origin: Origin, request: CaptureEndsOf, _: No) -> Answer<CaptureEnds> {
        self.capture_ends_of(origin, request).into()
    }

    fn capture_topology(
        &mut self,
        origin: Origin,
        request: CaptureTopology,
        _: No,
    ) -> Answer<Vec<Option<NodeFound>>> {
        self.topology_of_capture(origin, request).into()
    }

    fn capture_depend(&mut self, origin: Origin, request: CaptureDepend, _: No) -> Answer<()> {
        self.depend_in_capture(origin, request).into()
    }

    fn capture_add(&mut self, origin: Origin, request: CaptureAdd, _: No) -> Answer<()> {
        self.add_in_capture(origin, request).into()
    }

    fn capture_add_behind(&mut self, origin: Origin, request: CaptureAddBehind, _: No) -> Answer<u32> {
        self.add_behind_in_capture(origin, request).into()
    }

    fn graph_nodes(&mut self, _: Origin, request: GraphNodes, _: No) -> Answer<Vec<u32>> {
        self.node_kinds(request.graph).into()
    }

    fn graph_destroy(&mut self, _: Origin, request: GraphDestroy, _: No) -> Answer<()> {
        self.destroy_graph(request.graph).into()
    }

    fn graph_instantiate(&mut self, _: Origin, request: GraphInstantiate, _: No) -> Answer<()> {
        self.instantiate(request).into()
    }

    fn graph_launch(&mut self, origin: Origin, request: GraphLaunch, _: No) -> Result<()> {
        self.launch_graph(origin, request)
    }

    fn graph_exec_destroy(&mut self, _: Origin, request: GraphExecDestroy, _: No) -> Answer<()> {
        self.destroy_exec(request.exec).into()
    }
}
