//! Checkpoints and restores, and what goes wrong with them.

mod common;

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::program::{Program, bytes_of, download, words};
use common::{Client, Knobs, Worker, alone};
use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_device::PINNED_RANGE;
use rekindle_protocol::operation::*;
use rekindle_protocol::worker::{Contents, Saved, ask};
use rekindle_ring::{BoardMapping, Ring};
use rekindle_store::{Part, Store};
use rekindle_worker::Ended;

fn parts(saved: Saved) -> Vec<Part> {
    assert!(!saved.phases.is_empty());
    saved.parts.into_iter().map(|part| serde_json::from_value(part).unwrap()).collect()
}

/// A stream of which boards say that it is full: a worker that was lost may have left that.
const FULL: u32 = 9;

/// Makes the files of the run directory anew, as the daemon does before a restore.
fn renew(directory: &Path, rings: u32) {
    let board = BoardMapping::create(&directory.join("board-9-0")).unwrap();
    board.set_deep(std::iter::once((FULL, true)));
    for ring in 0..rings {
        Ring::create(&directory.join(format!("ring-9-{ring}"))).unwrap();
    }
}

/// Saves the program's GPU half as an image of this name.
fn save(program: &Program, store: &Store, name: &str) -> std::path::PathBuf {
    let draft = store.begin(name).unwrap();
    program.daemon.quiesce();
    let staging = draft.path().to_str().unwrap().to_string();
    draft
        .adopt(parts(program.daemon.ask(ask::Save { staging: staging.clone(), contents: Contents::Saved })))
        .unwrap();
    draft.adopt(parts(program.daemon.ask(ask::SavePinned { staging }))).unwrap();
    let image = draft.commit().unwrap();
    image.path().to_owned()
}

/// Starts a new worker from an image.
fn restore(directory: &Path, image: &Path, rings: u32) -> Program {
    renew(directory, rings);
    let worker = Worker::start(directory);
    let daemon = worker.daemon();
    let request = ask::Restore {
        image: image.to_str().unwrap().to_string(),
        run_directory: directory.to_str().unwrap().to_string(),
        cached: Vec::new(),
        beside: false,
        runs: false,
    };
    assert!(daemon.ask(request).iter().any(|phase| phase.name == "modules"));
    let (ours, theirs) = UnixStream::pair().unwrap();
    daemon.ask_with(ask::Adopt { pid: 77, driver_attached: false }, &theirs);
    drop(theirs);
    let client = Client::restored(directory, ours);
    assert!(!client.board.is_deep(FULL) && !client.board.is_full(FULL));
    daemon.ask(ask::Resume { restored: true, driver_attached: false });
    assert_eq!(daemon.ask(ask::Loaded {})[0].name, "GPU memory");
    let lane = client.old_lane(0);
    Program { worker, daemon, client, lane }
}

#[test]
fn a_program_goes_on_in_another_worker_where_it_was() {
    let _alone = alone();
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(&state.path().join("store")).unwrap();
    let mut program = Program::start(&state.path().join("run-1"));
    let lane = &mut program.lane;
    // A module that was unloaded still shifts the next one's globals.
    common::program::load(lane, 7);
    common::program::load(lane, 8);
    lane.ask(ModuleUnload { id: 7 }).unwrap();
    let (counter, bytes) = lane.ask(GlobalGet { module: 8, name: "counter" }).unwrap();
    assert_eq!(bytes, 4);
    lane.ask(FunctionGet { module: 8, id: 4, name: "bump" }).unwrap();
    lane.ask(FunctionSet { id: 4, attribute: 8, value: 100 }).unwrap();
    common::program::launch(lane, 0, 4, &[]);
    common::program::launch(lane, 0, 4, &[]);
    let large = lane.ask(MemoryAllocate { device: 0, bytes: 5 << 20 }).unwrap();
    let small = lane.ask(MemoryAllocate { device: 0, bytes: 12 }).unwrap();
    let freed = lane.ask(MemoryAllocateAsync { device: 0, bytes: 3 << 20, stream: 0 }).unwrap();
    lane.post(MemoryFreeAsync { device: 0, address: freed, stream: 0 });
    let data: Vec<u32> = (0..5u32 << 18).map(|n| n.wrapping_mul(2_654_435_761)).collect();
    common::program::upload(lane, 0, large, &bytes_of(&data));
    common::program::upload(lane, 0, small, &bytes_of(&[1, 2, 3]));
    // Memory of the program's own: mapped, mapped read-only, and not mapped.
    let size = 2 << 20;
    let own = lane.ask(AddressReserve { bytes: 2 * size, alignment: 0, address: 0 }).unwrap();
    for id in 1..=3 {
        lane.ask(PhysicalCreate { device: 0, id, bytes: size }).unwrap();
    }
    for (at, id) in [(own, 3), (own, 1), (own + size, 2)] {
        lane.ask(PhysicalMap { address: at, bytes: size, id }).unwrap();
        lane.ask(PhysicalProtect { device: 0, address: at, bytes: size, access: 3 }).unwrap();
        common::program::upload(lane, 0, at, &bytes_of(&[id, id]));
        lane.ask(StreamSynchronize { device: 0, stream: 0 }).unwrap();
        if id == 3 {
            lane.ask(PhysicalUnmap { address: at, bytes: size }).unwrap();
        }
    }
    lane.ask(PhysicalProtect { device: 0, address: own, bytes: size, access: 1 }).unwrap();
    // Streams, events, a graph, a kernel and an unasked error.
    lane.post(StreamCreate { device: 0, id: 5, flags: 1, priority: -1 });
    lane.post(EventCreate { device: 0, id: 1, flags: 0 });
    lane.post(EventCreate { device: 0, id: 2, flags: 0 });
    lane.post(EventCreate { device: 0, id: 3, flags: 0 });
    lane.post(EventRecord { device: 0, stream: 5, event: 1, flags: 0 });
    lane.ask(StreamSynchronize { device: 0, stream: 5 }).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let begun = Instant::now();
    lane.post(EventRecord { device: 0, stream: PER_THREAD_STREAM, event: 2, flags: 0 });
    lane.ask(CaptureBegin { device: 0, stream: 5, mode: 0 }).unwrap();
    common::program::launch(lane, 5, 1, &[small, 2]);
    common::program::launch(lane, 5, 4, &[]);
    lane.ask(CaptureEnd { device: 0, stream: 5, graph: 1 }).unwrap();
    lane.ask(GraphInstantiate { graph: 1, exec: 1, flags: 0 }).unwrap();
    lane.ask(GraphDestroy { graph: 1 }).unwrap();
    lane.ask(StreamSynchronize { device: 0, stream: PER_THREAD_STREAM }).unwrap();
    let elapsed = lane.ask(EventElapsed { start: 1, end: 2 }).unwrap();
    let pinned = PINNED_RANGE.start + (1 << 20);
    let word = common::program::pinned(lane, &program.client, "pinned-9-4", pinned);
    word.store(4711, Ordering::Release);
    let lane = &mut program.lane;
    lane.post(MemoryFreeAsync { device: 0, address: 1, stream: 0 });
    lane.ask(ContextSynchronize { device: 0 }).unwrap();

    let image = save(&program, &store, "first");
    // The program may go on in the old worker.
    program.daemon.ask(ask::Resume { restored: false, driver_attached: false });
    assert_eq!(program.client.seen.resumed.load(Ordering::Acquire), 1);
    assert_eq!(words(&download(&mut program.lane, 0, small, 12)), [1, 2, 3]);
    program.end();

    let directory = state.path().join("run-2");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("pinned-9-4"), [vec![0x67, 0x12, 0, 0], vec![0; 4092]].concat()).unwrap();
    let mut program = restore(&directory, &image, 1);
    let lane = &mut program.lane;
    assert_eq!(lane.error(), CUDA_ERROR_INVALID_VALUE.0);
    assert_eq!(words(&download(lane, 0, large, 5 << 20)), data);
    assert_eq!(lane.ask(GlobalGet { module: 8, name: "counter" }), Ok((counter, 4)));
    assert_eq!(words(&download(lane, 0, counter, 4)), [2]);
    assert_eq!(words(&download(lane, 0, own, 8)), [1, 1]);
    assert_eq!(words(&download(lane, 0, own + size, 8)), [2, 2]);
    lane.ask(PhysicalUnmap { address: own, bytes: size }).unwrap();
    lane.ask(PhysicalMap { address: own, bytes: size, id: 3 }).unwrap();
    lane.ask(PhysicalProtect { device: 0, address: own, bytes: size, access: 3 }).unwrap();
    assert_eq!(words(&download(lane, 0, own, 8)), [3, 3]);
    // SAFETY: mapped by the restored worker, which is this process.
    assert_eq!(unsafe { *(pinned as *const u32) }, 4711);
    lane.post(GraphLaunch { device: 0, exec: 1, stream: 5 });
    common::program::launch(lane, PER_THREAD_STREAM, 4, &[]);
    lane.ask(ContextSynchronize { device: 0 }).unwrap();
    assert_eq!(words(&download(lane, 0, small, 12)), [2, 3, 3]);
    assert_eq!(words(&download(lane, 0, counter, 4)), [4]);
    assert_eq!(lane.ask(EventQuery { event: 2 }), Ok(true));
    let again = lane.ask(EventElapsed { start: 1, end: 2 }).unwrap();
    assert!((again - elapsed).abs() < 0.1, "{again} {elapsed}");
    lane.post(EventRecord { device: 0, stream: 5, event: 3, flags: 0 });
    lane.ask(EventSynchronize { event: 3 }).unwrap();
    let since = lane.ask(EventElapsed { start: 2, end: 3 }).unwrap();
    assert!((0.0..=begun.elapsed().as_secs_f32() * 1e3).contains(&since), "{since}");
    let more = lane.ask(MemoryAllocate { device: 0, bytes: 6 << 20 }).unwrap();
    assert!(more >= large + (5 << 20) || more + (6 << 20) <= large);
    assert_eq!(lane.ask(MemoryFree { device: 0, address: small }), Ok(()));
    assert_eq!(lane.ask(MemoryFree { device: 0, address: large }), Ok(()));

    // And once more.
    let image = save(&program, &store, "second");
    program.end();
    let directory = state.path().join("run-3");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("pinned-9-4"), vec![0; 4096]).unwrap();
    let mut program = restore(&directory, &image, 1);
    let lane = &mut program.lane;
    assert_eq!(words(&download(lane, 0, counter, 4)), [4]);
    let later = lane.ask(EventElapsed { start: 2, end: 3 }).unwrap();
    assert!((later - since).abs() < 0.1, "{later} {since}");
    program.end();
}

#[test]
fn a_daemon_that_dies_in_a_checkpoint_undoes_it() {
    let _alone = alone();
    let state = tempfile::tempdir().unwrap();
    let mut program = Program::start(&state.path().join("run"));
    program.daemon.quiesce();
    program.daemon.die();
    let since = Instant::now();
    while program.client.seen.resumed.load(Ordering::Acquire) == 0 {
        assert!(since.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
    // The next daemon finds the worker.
    program.daemon = program.worker.daemon();
    program.daemon.quiesce();
    program.daemon.ask(ask::Resume { restored: false, driver_attached: false });
    assert!(program.lane.ask(MemoryAllocate { device: 0, bytes: 1 }).is_ok());
    program.end();
}

#[test]
fn what_cannot_be_saved_is_said_and_the_program_goes_on() {
    let _alone = alone();
    let state = tempfile::tempdir().unwrap();
    let mut program = Program::start(&state.path().join("run"));
    program.client.seen.busy.store(true, Ordering::Release);
    program.daemon.quiesce_fails(500, "a thread is in a call");
    program.client.seen.busy.store(false, Ordering::Release);
    program.daemon.quiesce();
    let nowhere = state.path().join("nowhere").to_str().unwrap().to_string();
    let problem = program.daemon.fails(ask::Save { staging: nowhere, contents: Contents::Saved });
    assert!(problem.contains("nowhere"), "{problem}");
    program.daemon.ask(ask::Resume { restored: false, driver_attached: false });
    assert!(program.lane.ask(MemoryAllocate { device: 0, bytes: 1 }).is_ok());
    program.end();
}

fn restore_fails(directory: &Path, image: &Path, knobs: Arc<Knobs>) -> String {
    std::fs::create_dir_all(directory).unwrap();
    renew(directory, 1);
    let worker = Worker::start_with(directory, knobs);
    let daemon = worker.daemon();
    let problem = daemon.fails(ask::Restore {
        image: image.to_str().unwrap().to_string(),
        run_directory: directory.to_str().unwrap().to_string(),
        cached: Vec::new(),
        beside: false,
        runs: false,
    });
    daemon.ask(ask::Shutdown {});
    assert_eq!(worker.end(), Ended::Done);
    problem
}

#[test]
fn a_restore_that_cannot_be_is_refused_with_its_reason() {
    let _alone = alone();
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(&state.path().join("store")).unwrap();
    let mut program = Program::start(&state.path().join("run"));
    program.lane.ask(GlobalGet { module: 1, name: "counter" }).unwrap();
    program.lane.ask(MemoryAllocate { device: 0, bytes: 64 << 20 }).unwrap();
    let image = save(&program, &store, "image");
    program.end();

    let knobs = Arc::new(Knobs::default());
    knobs.arena_shift.store(4096, Ordering::Relaxed);
    let problem = restore_fails(&state.path().join("a"), &image, knobs);
    assert!(problem.contains("its global counter"), "{problem}");
    let knobs = Arc::new(Knobs::default());
    knobs.memory.store(32 << 20, Ordering::Relaxed);
    let problem = restore_fails(&state.path().join("b"), &image, knobs);
    assert!(problem.contains("32 of its 32 MB are free"), "{problem}");
    let problem = restore_fails(&state.path().join("c"), &state.path().join("none"), Arc::default());
    assert!(problem.contains("none"), "{problem}");
}
