//! Checkpoints that write GPU memory beside the running program.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::program::{Program, begin, bytes_of, download, kernel, launch, load, pinned, upload, words};
use common::{Client, Daemon, Knobs, Worker, alone};
use rekindle_cuda::CUDA_ERROR_OUT_OF_MEMORY;
use rekindle_device::{MemorySet, PINNED_RANGE};
use rekindle_protocol::operation::*;
use rekindle_protocol::worker::{Contents, Phase, Saved, ask};
use rekindle_store::{Draft, PartKind, Store};

const MB: u64 = 1 << 20;

fn program(directory: &Path, memory: u64) -> Program {
    let knobs = Arc::new(Knobs::default());
    knobs.memory.store(memory, Ordering::Relaxed);
    let worker = Worker::start_with(directory, knobs);
    let daemon = worker.daemon();
    let (mut client, _) = Client::connect(&worker, &daemon);
    let lane = begin(&mut client);
    Program { worker, daemon, client, lane }
}

/// A buffer of 10 MB that begins with 1, 2, 3.
fn filled(program: &mut Program) -> u64 {
    let lane = &mut program.lane;
    let buffer = lane.ask(MemoryAllocate { device: 0, bytes: 10 * MB }).unwrap();
    upload(lane, 0, buffer, &bytes_of(&[1, 2, 3]));
    lane.ask(ContextSynchronize { device: 0 }).unwrap();
    buffer
}

fn adopt(draft: &Draft, saved: Saved) -> Vec<Phase> {
    draft.adopt(saved.parts.into_iter().map(|part| serde_json::from_value(part).unwrap()).collect()).unwrap();
    saved.phases
}

fn save(daemon: &Daemon, draft: &Draft) -> Vec<Phase> {
    let contents = Contents::Shadowed;
    daemon.ask(ask::Quiesce { limit_ms: common::LIMIT.as_millis() as u64, contents });
    let staging = draft.path().to_str().unwrap().to_string();
    let phases = adopt(draft, daemon.ask(ask::Save { staging, contents }));
    daemon.ask(ask::Resume { restored: false, driver_attached: false });
    phases
}

fn has(phases: &[Phase], name: &str) -> bool {
    phases.iter().any(|phase| phase.name == name)
}

/// What the image has of the buffer there.
fn contents(store: &Store, image: &str, address: u64) -> Vec<u8> {
    let image = store.image(image).unwrap();
    let part = image.part(PartKind::GpuBuffer, &format!("{address:012x}"));
    let part = part.unwrap_or_else(|| panic!("{:?}", image.parts(PartKind::GpuBuffer).collect::<Vec<_>>()));
    let mut bytes = vec![0; part.bytes as usize];
    image.read_part(part, 0, &mut bytes).unwrap();
    bytes
}

#[test]
fn what_the_program_writes_after_the_cut_is_not_in_the_image() {
    let _alone = alone();
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(&state.path().join("store")).unwrap();
    let mut program = program(&state.path().join("run"), 64 * MB);
    let lane = &mut program.lane;
    let buffer = lane.ask(MemoryAllocate { device: 0, bytes: 5 * MB }).unwrap();
    let before: Vec<u32> = (0..5u32 << 18).map(|n| n.wrapping_mul(2_654_435_761)).collect();
    upload(lane, 0, buffer, &bytes_of(&before));
    lane.ask(ContextSynchronize { device: 0 }).unwrap();
    let draft = store.begin("first").unwrap();
    let phases = save(&program.daemon, &draft);
    assert!(has(&phases, "shadow copy") && !has(&phases, "GPU memory"), "{phases:?}");
    let lane = &mut program.lane;
    upload(lane, 0, buffer, &bytes_of(&vec![7; 5 << 18]));
    lane.ask(ContextSynchronize { device: 0 }).unwrap();
    let phases = adopt(&draft, program.daemon.ask(ask::Drain { wanted: true, catch_up_us: 0 }));
    assert_eq!((phases[0].name.as_str(), phases[0].bytes), ("drain", 6 * MB));
    draft.commit().unwrap();
    assert_eq!(contents(&store, "first", buffer)[..5 << 20], bytes_of(&before));
    assert_eq!(words(&download(&mut program.lane, 0, buffer, 4)), [7]);
    // There is nothing else to drain, and the next one begins anew.
    assert!(program.daemon.ask(ask::Drain { wanted: true, catch_up_us: 0 }).parts.is_empty());
    let draft = store.begin("second").unwrap();
    save(&program.daemon, &draft);
    adopt(&draft, program.daemon.ask(ask::Drain { wanted: true, catch_up_us: 0 }));
    draft.commit().unwrap();
    assert_eq!(words(&contents(&store, "second", buffer)[..5 << 20]), vec![7; 5 << 18]);
    program.end();
}

/// A program with kernel 1, `spin`, which is over when the word is not 0.
fn spinning(directory: &Path) -> (Program, &'static AtomicU32) {
    let mut program = program(directory, 64 * MB);
    load(&mut program.lane, 1);
    kernel(&mut program.lane, 1, 1, "spin");
    let flag = pinned(&mut program.lane, &program.client, "pinned-9-0", PINNED_RANGE.start);
    program.lane.post(StreamCreate { device: 0, id: 2, flags: 1, priority: 0 });
    (program, flag)
}

fn spin(program: &mut Program, flag: &AtomicU32) {
    flag.store(0, Ordering::Release);
    launch(&mut program.lane, 2, 1, &[PINNED_RANGE.start]);
}

fn let_go_soon(flag: &'static AtomicU32) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        flag.store(1, Ordering::Release);
    })
}

#[test]
fn work_that_the_gpu_has_goes_on_while_the_program_stands_still() {
    let _alone = alone();
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(&state.path().join("store")).unwrap();
    let (mut program, flag) = spinning(&state.path().join("run"));
    let buffer = filled(&mut program);
    spin(&mut program, flag);
    program.lane.post(EventCreate { device: 0, id: 5, flags: 0 });
    let set = MemorySet { address: buffer, pitch: 0, value: 9, element: 1, width: 8, height: 1 };
    program.lane.post(SetMemory { device: 0, stream: 2, set });
    program.lane.post(EventRecord { device: 0, stream: 2, event: 5, flags: 0 });
    let mut waiting = [program.client.lane(), program.client.lane(), program.client.lane()];
    waiting[0].send(StreamAwait { device: 0, stream: 2 }, &[]);
    waiting[1].send(EventAwait { event: 5 }, &[]);
    waiting[2].send(ContextAwait { device: 0 }, &[]);
    std::thread::sleep(Duration::from_millis(20));
    assert!(waiting.iter().all(|lane| !lane.is_answered()));

    let contents = Contents::Shadowed;
    let limit_ms = common::LIMIT.as_millis() as u64;
    program.daemon.ask(ask::Quiesce { limit_ms, contents });
    assert_eq!(flag.load(Ordering::Acquire), 0, "the kernel is still running");
    assert_eq!(waiting[0].answer::<StreamAwait>(), Ok(false));
    assert_eq!(waiting[1].answer::<EventAwait>(), Ok(false));
    assert_eq!(waiting[2].answer::<ContextAwait>(), Ok(false));
    let ending = let_go_soon(flag);
    let draft = store.begin("image").unwrap();
    let staging = draft.path().to_str().unwrap().to_string();
    let phases = adopt(&draft, program.daemon.ask(ask::Save { staging, contents }));
    assert!(has(&phases, "the program's work") && has(&phases, "shadow copy"), "{phases:?}");
    program.daemon.ask(ask::Resume { restored: false, driver_attached: false });
    assert_eq!(waiting[0].ask(StreamAwait { device: 0, stream: 2 }), Ok(true));
    assert_eq!(waiting[1].ask(EventAwait { event: 5 }), Ok(true));
    adopt(&draft, program.daemon.ask(ask::Drain { wanted: true, catch_up_us: 0 }));
    draft.commit().unwrap();
    assert_eq!(words(&self::contents(&store, "image", buffer)[..12]), [0x0909_0909, 0x0909_0909, 3]);
    // Who goes on waits as ever.
    spin(&mut program, flag);
    waiting[0].send(StreamAwait { device: 0, stream: 2 }, &[]);
    std::thread::sleep(Duration::from_millis(20));
    assert!(!waiting[0].is_answered());
    flag.store(1, Ordering::Release);
    assert_eq!(waiting[0].answer::<StreamAwait>(), Ok(true));
    ending.join().unwrap();
    program.end();
}

#[test]
fn work_that_may_need_the_program_ends_before_it_stands_still() {
    let _alone = alone();
    let state = tempfile::tempdir().unwrap();
    let quiesce = ask::Quiesce { limit_ms: common::LIMIT.as_millis() as u64, contents: Contents::Shadowed };
    let resume = || ask::Resume { restored: false, driver_attached: false };
    let (mut program, flag) = spinning(&state.path().join("run"));
    spin(&mut program, flag);
    program.lane.post(HostCall { device: 0, stream: 2, token: 7 });
    let ending = let_go_soon(flag);
    program.daemon.ask(quiesce.clone());
    assert_eq!(flag.load(Ordering::Acquire), 1, "its function was to be called");
    ending.join().unwrap();
    program.daemon.ask(resume());

    spin(&mut program, flag);
    let address = PINNED_RANGE.start + 8;
    program.lane.post(WriteValue { device: 0, stream: 2, address, value: 1, width: 4, flags: 0 });
    program.lane.post(WaitValue { device: 0, stream: 2, address, value: 1, width: 4, flags: 0 });
    let ending = let_go_soon(flag);
    program.daemon.ask(quiesce);
    assert_eq!(flag.load(Ordering::Acquire), 1, "it might have had to write the value");
    ending.join().unwrap();
    program.daemon.ask(resume());
    program.end();
}

#[test]
fn work_that_does_not_end_is_told_of_and_waited_for_before_the_next_time() {
    let _alone = alone();
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(&state.path().join("store")).unwrap();
    let (mut program, flag) = spinning(&state.path().join("run"));
    spin(&mut program, flag);
    let quiesce = |limit_ms| ask::Quiesce { limit_ms, contents: Contents::Shadowed };
    program.daemon.ask(quiesce(100));
    let draft = store.begin("image").unwrap();
    let staging = draft.path().to_str().unwrap().to_string();
    let save = ask::Save { staging, contents: Contents::Shadowed };
    let problem = program.daemon.asked(save, &[]).unwrap_err();
    assert!(problem.contains("still running the program's work after 0.1 s"), "{problem}");
    program.daemon.ask(ask::Resume { restored: false, driver_attached: false });
    let problem = program.daemon.asked(quiesce(200), &[]).unwrap_err();
    assert!(problem.contains("still running the program's work"), "{problem}");
    flag.store(1, Ordering::Release);
    program.end();
}

#[test]
fn where_a_gpu_has_no_room_for_a_copy_its_memory_is_written_at_once() {
    let _alone = alone();
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(&state.path().join("store")).unwrap();
    let mut program = program(&state.path().join("run"), 16 * MB);
    let buffer = filled(&mut program);
    let draft = store.begin("image").unwrap();
    let phases = save(&program.daemon, &draft);
    assert!(has(&phases, "GPU memory") && !has(&phases, "shadow copy"), "{phases:?}");
    assert!(program.daemon.ask(ask::Drain { wanted: true, catch_up_us: 0 }).parts.is_empty());
    draft.commit().unwrap();
    assert_eq!(words(&contents(&store, "image", buffer)[..12]), [1, 2, 3]);
    program.end();
}

#[test]
fn a_copy_gives_way_to_what_the_program_allocates() {
    let _alone = alone();
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(&state.path().join("store")).unwrap();
    let mut program = program(&state.path().join("run"), 24 * MB);
    let buffer = filled(&mut program);
    let free = program.lane.ask(MemoryInfo { device: 0 }).unwrap();
    let draft = store.begin("image").unwrap();
    assert!(has(&save(&program.daemon, &draft), "shadow copy"));
    let lane = &mut program.lane;
    assert_eq!(lane.ask(MemoryInfo { device: 0 }).unwrap(), free, "the program sees its own memory");
    let more = lane.ask(MemoryAllocate { device: 0, bytes: 12 * MB }).unwrap();
    upload(lane, 0, more, &bytes_of(&[4]));
    assert_eq!(lane.ask(MemoryAllocate { device: 0, bytes: 12 * MB }), Err(CUDA_ERROR_OUT_OF_MEMORY));
    // The image lacks nothing.
    adopt(&draft, program.daemon.ask(ask::Drain { wanted: true, catch_up_us: 0 }));
    draft.commit().unwrap();
    assert_eq!(words(&contents(&store, "image", buffer)[..12]), [1, 2, 3]);
    program.end();
}

#[test]
fn a_daemon_that_dies_while_it_is_drained_leaves_nothing_behind() {
    let _alone = alone();
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(&state.path().join("store")).unwrap();
    let mut program = program(&state.path().join("run"), 24 * MB);
    let buffer = filled(&mut program);
    let draft = store.begin("image").unwrap();
    save(&program.daemon, &draft);
    program.daemon.die();
    drop(draft);
    assert!(program.lane.ask(MemoryAllocate { device: 0, bytes: 12 * MB }).is_ok());
    program.daemon = program.worker.daemon();
    let draft = store.begin("image").unwrap();
    assert!(has(&save(&program.daemon, &draft), "GPU memory"), "there is no room any more");
    draft.commit().unwrap();
    assert_eq!(words(&contents(&store, "image", buffer)[..12]), [1, 2, 3]);
    program.end();
}

#[test]
fn a_copy_that_is_not_wanted_any_more_gives_its_memory_back() {
    let _alone = alone();
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(&state.path().join("store")).unwrap();
    let mut program = program(&state.path().join("run"), 64 * MB);
    let knobs = program.worker.knobs.clone();
    let lane = &mut program.lane;
    lane.ask(MemoryAllocate { device: 0, bytes: 10 * MB }).unwrap();
    let used = knobs.used.load(Ordering::Relaxed);
    for (wanted, name) in [(false, "given-up"), (true, "taken")] {
        let draft = store.begin(name).unwrap();
        assert!(has(&save(&program.daemon, &draft), "shadow copy"));
        assert!(knobs.used.load(Ordering::Relaxed) >= used + 10 * MB);
        let parts = program.daemon.ask(ask::Drain { wanted, catch_up_us: 0 }).parts;
        assert_eq!(parts.is_empty(), !wanted);
        let since = Instant::now();
        while knobs.used.load(Ordering::Relaxed) != used {
            assert!(since.elapsed() < common::LIMIT, "{wanted}: its memory stays in use");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    program.end();
}
