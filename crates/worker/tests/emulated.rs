//! A worker on the emulated GPU, through checkpoint and restore.

mod common;

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::program::{begin, bytes_of, download, kernel, launch, upload, words};
use common::{Client, Daemon, Lane, Worker, alone, wait_for_addresses};
use rekindle_cuda::{
    CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_INVALID_PTX, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_FOUND,
};

use rekindle_device::{DEVICE_RANGE, LaunchAttributes, ModuleKind};
use rekindle_protocol::operation::*;
use rekindle_protocol::worker::{Contents, ask};
use rekindle_ring::{BoardMapping, Ring};
use rekindle_store::Store;
use rekindle_worker::{Gpu, OpenedDriver};

const PTX: &[u8] = b"
.version 7.0
.target sm_70
.address_size 64
.visible .global .u32 counter = 5;
.visible .const .u32 step = 3;
.visible .global .u64 list[2] = { counter, 7 };

.visible .entry step_all(.param .u64 base, .param .u32 count)
{
    .reg .pred %p;
    .reg .u32 %r<8>;
    .reg .u64 %d<4>;
    ld.param.u64 %d0, [base];
    ld.param.u32 %r0, [count];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    setp.ge.u32 %p, %r4, %r0;
    @%p bra DONE;
    mul.wide.u32 %d1, %r4, 4;
    add.u64 %d2, %d0, %d1;
    ld.global.u32 %r5, [%d2];
    ld.const.u32 %r6, [step];
    add.u32 %r5, %r5, %r6;
    st.global.u32 [%d2], %r5;
DONE:
    ret;
}

.visible .entry bump()
{
    .reg .u32 %r<2>;
    .reg .u64 %d<2>;
    ld.global.u64 %d0, [list];
    atom.global.add.u32 %r0, [%d0], 1;
    ret;
}
";

/// How modules are loaded.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Whole,
    Pieces,
}

fn worker(directory: &Path, form: Form) -> Worker {
    Worker::start_on(directory, Arc::default(), move || {
        let opened = Gpu::parse("emulated:memory=1G,devices=2").unwrap().open()?;
        Ok(OpenedDriver { in_pieces: form == Form::Pieces, ..opened })
    })
}

/// Saves the program's GPU half as an image of this name, and gives the image's path.
fn save(daemon: &Daemon, store: &Store, name: &str) -> String {
    let draft = store.begin(name).unwrap();
    daemon.quiesce();
    let staging = draft.path().to_str().unwrap().to_string();
    let parts = daemon.ask(ask::Save { staging, contents: Contents::Saved }).parts;
    draft.adopt(parts.into_iter().map(|part| serde_json::from_value(part).unwrap()).collect()).unwrap();
    draft.commit().unwrap().path().to_str().unwrap().to_string()
}

/// How many modules a restore has loaded, and how many it has left in pieces.
fn modules(counts: &BTreeMap<String, u64>) -> (u64, u64) {
    let of = |what: &str| counts.get(what).copied().unwrap_or(0);
    (of("loaded"), of("in pieces"))
}

/// Has a new worker go on from an image with one ring; gives what it counted of modules too.
fn restore(directory: &Path, image: String, form: Form) -> (Worker, Daemon, Client, BTreeMap<String, u64>) {
    wait_for_addresses();
    std::fs::create_dir_all(directory).unwrap();
    BoardMapping::create(&directory.join("board-9-0")).unwrap();
    Ring::create(&directory.join("ring-9-0")).unwrap();
    let worker = worker(directory, form);
    let daemon = worker.daemon();
    let run_directory = directory.to_str().unwrap().to_string();
    let phases =
        daemon.ask(ask::Restore { image, run_directory, cached: Vec::new(), beside: false, runs: false });
    let counts = phases.into_iter().find(|phase| phase.name == "modules").unwrap().counts;
    let (ours, theirs) = UnixStream::pair().unwrap();
    daemon.ask_with(ask::Adopt { pid: 1, driver_attached: false }, &theirs);
    drop(theirs);
    let client = Client::restored(directory, ours);
    daemon.ask(ask::Resume { restored: true, driver_attached: false });
    // Nobody saves before that.
    daemon.ask(ask::Loaded {});
    (worker, daemon, client, counts.into_iter().collect())
}

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const DYNAMIC_SHARED: i32 = 8;

fn load(lane: &mut Lane, id: u32, code: &[u8]) -> ModuleLoaded {
    let source = CodeSource::Trailer;
    let request = ModuleLoad { device: 0, id, kind: ModuleKind::Module, source, options: vec![] };
    lane.ask_with(request, code).unwrap()
}

fn step_all(lane: &mut Lane, stream: u32, base: u64, count: u32) {
    let parameters = [&base.to_le_bytes()[..], &count.to_le_bytes()[..]].concat();
    let grid = [count.div_ceil(128), 1, 1];
    let request = LaunchKernel { device: 0, stream, function: 1, grid, block: [128, 1, 1], shared: 0 };
    lane.post_with(request, &parameters);
}

#[test]
fn kernels_globals_and_graphs_survive_a_restore() {
    survive_a_restore(Form::Whole);
}

#[test]
fn so_they_do_in_pieces() {
    survive_a_restore(Form::Pieces);
}

fn survive_a_restore(form: Form) {
    let _alone = alone();
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(&state.path().join("store")).unwrap();
    let first = worker(&state.path().join("run-1"), form);
    let daemon = first.daemon();
    let (mut client, welcome) = Client::connect(&first, &daemon);
    assert_eq!(welcome.devices.len(), 2);
    let mut lane = begin(&mut client);
    let broken = load(&mut lane, 1, b".version 7.0\n.target sm_70\n.entry k() { frobnicate.u32 1; }");
    assert_eq!(broken.status, CUDA_ERROR_INVALID_PTX.0);
    assert!(broken.log.contains("frobnicate"), "{}", broken.log);
    assert_eq!(load(&mut lane, 1, PTX).status, 0);
    lane.ask(ModuleUnload { id: 1 }).unwrap();
    assert_eq!(load(&mut lane, 2, PTX).status, 0);
    kernel(&mut lane, 2, 1, "step_all");
    kernel(&mut lane, 2, 2, "bump");
    let (counter, _) = lane.ask(GlobalGet { module: 2, name: "counter" }).unwrap();
    // Where a module's globals are a buffer, they lie where buffers do.
    let buffers = DEVICE_RANGE.start..DEVICE_RANGE.start + (8 << 40);
    assert_eq!(buffers.contains(&counter), form == Form::Pieces, "{counter:#x}");
    let count = 3u32 << 18;
    let memory = lane.ask(MemoryAllocate { device: 0, bytes: u64::from(count) * 4 }).unwrap();
    let data: Vec<u32> = (0..count).collect();
    upload(&mut lane, 0, memory, &bytes_of(&data));
    step_all(&mut lane, 0, memory, count);
    launch(&mut lane, 0, 2, &[]);
    // The graph's streams do not wait for the legacy one.
    lane.ask(ContextSynchronize { device: 0 }).unwrap();
    // A graph of two streams: fork by an event, join by another.
    for id in 2..4 {
        lane.post(StreamCreate { device: 0, id, flags: 1, priority: 0 });
        lane.post(EventCreate { device: 0, id, flags: 2 });
    }
    lane.ask(CaptureBegin { device: 0, stream: 2, mode: 0 }).unwrap();
    lane.post(EventRecord { device: 0, stream: 2, event: 2, flags: 0 });
    lane.post(StreamWaitEvent { device: 0, stream: 3, event: 2, flags: 0 });
    step_all(&mut lane, 2, memory, 100);
    launch(&mut lane, 3, 2, &[]);
    lane.post(EventRecord { device: 0, stream: 3, event: 3, flags: 0 });
    lane.post(StreamWaitEvent { device: 0, stream: 2, event: 3, flags: 0 });
    step_all(&mut lane, 2, memory, 50);
    let nodes = lane.ask(CaptureEnd { device: 0, stream: 2, graph: 1 }).unwrap();
    assert_eq!(nodes, 3);
    lane.ask(GraphInstantiate { graph: 1, exec: 1, flags: 0 }).unwrap();
    lane.post(GraphLaunch { device: 0, exec: 1, stream: 2 });
    lane.ask(ContextSynchronize { device: 0 }).unwrap();
    assert_eq!(lane.error(), 0);
    let before = words(&download(&mut lane, 0, memory, 4 * count as usize));
    assert_eq!((before[0], before[99], before[100]), (9, 105, 103));
    assert_eq!(words(&download(&mut lane, 0, counter, 4)), [7]);

    let image = save(&daemon, &store, "image");
    client.die();
    first.end();

    let (second, _daemon, client, counts) = restore(&state.path().join("run-2"), image, form);
    let expected = if form == Form::Pieces { (0, 1) } else { (1, 0) };
    assert_eq!(modules(&counts), expected);
    let mut lane = client.old_lane(0);
    assert_eq!(words(&download(&mut lane, 0, memory, 4 * count as usize)), before);
    lane.post(GraphLaunch { device: 0, exec: 1, stream: 2 });
    launch(&mut lane, 3, 2, &[]);
    lane.ask(ContextSynchronize { device: 0 }).unwrap();
    assert_eq!(words(&download(&mut lane, 0, counter, 4)), [9]);
    let after = words(&download(&mut lane, 0, memory, 404));
    assert_eq!((after[0], after[50], after[99], after[100]), (15, 59, 108, 103));
    client.die();
    second.end();
}

#[test]
fn a_kernel_that_goes_astray_ends_the_context_and_not_the_worker() {
    let _alone = alone();
    let state = tempfile::tempdir().unwrap();
    let worker = worker(state.path(), Form::Whole);
    let daemon = worker.daemon();
    let (mut client, _) = Client::connect(&worker, &daemon);
    let mut lane = begin(&mut client);
    assert_eq!(load(&mut lane, 1, PTX).status, 0);
    kernel(&mut lane, 1, 1, "step_all");
    let memory = lane.ask(MemoryAllocate { device: 0, bytes: 2 << 20 }).unwrap();
    step_all(&mut lane, 0, memory, (2 << 18) + (1 << 18));
    lane.send(StreamSynchronize { device: 0, stream: 0 }, &[]);
    assert_eq!(lane.answer::<StreamSynchronize>(), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
    assert_eq!(lane.error(), CUDA_ERROR_ILLEGAL_ADDRESS.0);
    daemon.ask(ask::GetStatus {});
    client.die();
    worker.end();
}

#[test]
fn a_cooperative_launch_and_a_second_device() {
    let _alone = alone();
    let state = tempfile::tempdir().unwrap();
    let worker = worker(state.path(), Form::Whole);
    let daemon = worker.daemon();
    let (mut client, _) = Client::connect(&worker, &daemon);
    let mut lane = begin(&mut client);
    lane.ask(ContextOpen { device: 1 }).unwrap();
    assert_eq!(load(&mut lane, 1, PTX).status, 0);
    kernel(&mut lane, 1, 1, "bump");
    lane.post(LaunchKernelWith {
        device: 0,
        stream: PER_THREAD_STREAM,
        function: 1,
        grid: [2, 1, 1],
        block: [32, 1, 1],
        shared: 0,
        cooperative: true,
        attributes: LaunchAttributes::default(),
    });
    lane.ask(StreamSynchronize { device: 0, stream: PER_THREAD_STREAM }).unwrap();
    let (counter, _) = lane.ask(GlobalGet { module: 1, name: "counter" }).unwrap();
    assert_eq!(words(&download(&mut lane, 0, counter, 4)), [69]);
    let there = lane.ask(MemoryAllocate { device: 1, bytes: 4096 }).unwrap();
    assert_eq!(lane.ask(MemoryRange { address: there }), Ok((there, 4096, 1)));
    lane.post(Copy { device: 1, stream: 0, to: there, from: counter, bytes: 4 });
    lane.ask(ContextSynchronize { device: 1 }).unwrap();
    lane.post(Copy { device: 0, stream: 0, to: counter, from: there, bytes: 4 });
    lane.ask(ContextSynchronize { device: 0 }).unwrap();
    lane.ask(ContextReset { device: 1 }).unwrap();
    assert_eq!(lane.error(), 0);
    assert_eq!(words(&download(&mut lane, 0, counter, 4)), [69]);
    client.die();
    worker.end();
}

#[test]
fn a_daemon_that_dies_while_memory_is_saved_does_not_hold_the_program_up() {
    let _alone = alone();
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(&state.path().join("store")).unwrap();
    let slow = || Gpu::parse("emulated:bandwidth=16M").unwrap().open();
    let worker = Worker::start_on(&state.path().join("run"), Arc::default(), slow);
    let daemon = worker.daemon();
    let (mut client, _) = Client::connect(&worker, &daemon);
    let mut lane = begin(&mut client);
    lane.ask(MemoryAllocate { device: 0, bytes: 256 << 20 }).unwrap();
    let draft = store.begin("image").unwrap();
    daemon.quiesce();
    let staging = draft.path().to_str().unwrap().to_string();
    daemon.send(ask::Save { staging, contents: Contents::Saved }, &[]);
    std::thread::sleep(Duration::from_millis(100));
    drop(daemon);
    drop(draft);
    let since = Instant::now();
    while client.seen.resumed.load(Ordering::Acquire) == 0 {
        assert!(since.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(lane.ask(MemoryAllocate { device: 0, bytes: 1 }).is_ok());
    client.die();
    worker.end();
}

/// Globals of what is whole lie where all that came before lets them, pieces too: those are loaded in their turn then.
#[test]
fn pieces_and_whole_modules_with_globals_are_loaded_in_their_old_order() {
    let _alone = alone();
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(&state.path().join("store")).unwrap();
    let first = worker(&state.path().join("run-1"), Form::Pieces);
    let daemon = first.daemon();
    let (mut client, _) = Client::connect(&first, &daemon);
    let mut lane = begin(&mut client);
    assert_eq!(load(&mut lane, 1, PTX).status, 0);
    kernel(&mut lane, 1, 1, "step_all");
    kernel(&mut lane, 1, 2, "bump");
    launch(&mut lane, 0, 2, &[]);
    lane.ask(ContextSynchronize { device: 0 }).unwrap();
    let (counter, _) = lane.ask(GlobalGet { module: 1, name: "counter" }).unwrap();
    let image = save(&daemon, &store, "one");
    client.die();
    first.end();

    let (second, daemon, client, _) = restore(&state.path().join("run-2"), image, Form::Whole);
    let mut lane = client.old_lane(0);
    assert_eq!(load(&mut lane, 2, PTX).status, 0);
    let (other, _) = lane.ask(GlobalGet { module: 2, name: "counter" }).unwrap();
    kernel(&mut lane, 2, 3, "bump");
    launch(&mut lane, 0, 3, &[]);
    launch(&mut lane, 0, 3, &[]);
    lane.ask(ContextSynchronize { device: 0 }).unwrap();
    let image = save(&daemon, &store, "two");
    let ordered = |name: &str| {
        let image = store.image(name).unwrap();
        let part = image.part(rekindle_store::PartKind::WorkerState, "worker-state").unwrap();
        part.attributes["code"]["ordered"].as_bool().unwrap()
    };
    assert!(!ordered("one") && ordered("two"));
    client.die();
    second.end();

    let (third, _daemon, client, counts) = restore(&state.path().join("run-3"), image, Form::Pieces);
    assert_eq!(modules(&counts), (1, 1));
    let mut lane = client.old_lane(0);
    // Loaded before, and loaded for the first time.
    launch(&mut lane, 0, 2, &[]);
    launch(&mut lane, 0, 3, &[]);
    let memory = lane.ask(MemoryAllocate { device: 0, bytes: 4096 }).unwrap();
    upload(&mut lane, 0, memory, &bytes_of(&[1, 2]));
    step_all(&mut lane, 0, memory, 2);
    lane.ask(ContextSynchronize { device: 0 }).unwrap();
    assert_eq!(lane.error(), 0);
    assert_eq!(words(&download(&mut lane, 0, memory, 8)), [4, 5]);
    assert_eq!(words(&download(&mut lane, 0, counter, 4)), [7]);
    assert_eq!(words(&download(&mut lane, 0, other, 4)), [8]);
    client.die();
    third.end();
}

#[test]
fn a_module_in_pieces_is_loaded_as_far_as_it_is_used() {
    let _alone = alone();
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(&state.path().join("store")).unwrap();
    let first = worker(&state.path().join("run-1"), Form::Pieces);
    let daemon = first.daemon();
    let (mut client, _) = Client::connect(&first, &daemon);
    let mut lane = begin(&mut client);
    assert_eq!(load(&mut lane, 1, PTX).status, 0);
    assert_eq!(lane.ask(FunctionNames { module: 1 }).unwrap(), ["step_all", "bump"]);
    let absent = lane.ask(FunctionGet { module: 1, id: 9, name: "nowhere" });
    assert_eq!(absent.err(), Some(CUDA_ERROR_NOT_FOUND));
    assert_eq!(lane.ask(GlobalGet { module: 1, name: "nowhere" }).err(), Some(CUDA_ERROR_NOT_FOUND));
    kernel(&mut lane, 1, 1, "step_all");
    kernel(&mut lane, 1, 2, "bump");
    let large = 100 << 10;
    lane.ask(FunctionSet { id: 2, attribute: DYNAMIC_SHARED, value: large }).unwrap();
    let (counter, _) = lane.ask(GlobalGet { module: 1, name: "counter" }).unwrap();
    // The first of its module, and no allocation.
    assert_eq!(lane.ask(MemoryFree { device: 0, address: counter }), Err(CUDA_ERROR_INVALID_VALUE));
    let (step, _) = lane.ask(GlobalGet { module: 1, name: "step" }).unwrap();
    upload(&mut lane, 0, step, &bytes_of(&[4]));
    let memory = lane.ask(MemoryAllocate { device: 0, bytes: 4096 }).unwrap();
    upload(&mut lane, 0, memory, &bytes_of(&[1, 2]));
    lane.ask(ContextSynchronize { device: 0 }).unwrap();
    let image = save(&daemon, &store, "one");
    client.die();
    first.end();

    // Saved again before anything of it was loaded: the next one takes it from there.
    let (second, daemon, client, _) = restore(&state.path().join("run-2"), image, Form::Whole);
    let image = save(&daemon, &store, "two");
    client.die();
    second.end();
    let (third, _daemon, client, counts) = restore(&state.path().join("run-3"), image, Form::Pieces);
    assert_eq!(modules(&counts), (0, 1));
    let mut lane = client.old_lane(0);
    // What was set of the kernel holds, though it is loaded only now.
    let grid = [3, 1, 1];
    let shared = large as u32;
    lane.post(LaunchKernel { device: 0, stream: 0, function: 2, grid, block: [1, 1, 1], shared });
    step_all(&mut lane, 0, memory, 2);
    lane.ask(ContextSynchronize { device: 0 }).unwrap();
    assert_eq!(lane.error(), 0);
    assert_eq!(words(&download(&mut lane, 0, counter, 4)), [8]);
    assert_eq!(words(&download(&mut lane, 0, memory, 8)), [5, 6]);
    let blocks = lane.ask(OccupancyBlocks { function: 1, block: 128, shared: 0, flags: 0 }).unwrap();
    assert!(blocks > 0);
    kernel(&mut lane, 1, 3, "bump");
    launch(&mut lane, 0, 3, &[]);
    lane.ask(ContextSynchronize { device: 0 }).unwrap();
    assert_eq!(words(&download(&mut lane, 0, counter, 4)), [9]);
    // Unloading gives the buffer of its globals back.
    lane.ask(ModuleUnload { id: 1 }).unwrap();
    assert!(lane.ask(MemoryRange { address: counter }).is_err());
    assert!(lane.ask(FunctionNames { module: 1 }).is_err());
    assert_eq!(load(&mut lane, 4, PTX).status, 0);
    let (again, _) = lane.ask(GlobalGet { module: 4, name: "counter" }).unwrap();
    assert_eq!(words(&download(&mut lane, 0, again, 4)), [5]);
    client.die();
    third.end();
}
