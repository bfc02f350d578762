//! Requests over real rings and sockets, on a device that the test controls.

mod common;

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::program::{begin, download, kernel, launch, load, pinned, session, upload, words};
use common::{Client, Worker, alone};
use rekindle_cuda::{
    CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_FOUND,
    CUDA_ERROR_OUT_OF_MEMORY,
};
use rekindle_device::{Copy3D, Launch, MemorySet, PINNED_RANGE};
use rekindle_protocol::client::{CLIENT_VERSION, ToWorker};
use rekindle_protocol::frame::{self, FrameError};
use rekindle_protocol::operation::*;
use rekindle_protocol::worker::{Greeting, VERSION, ask};
use rekindle_worker::{Ended, OpenError};

#[test]
fn a_program_allocates_copies_computes_and_frees() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let worker = Worker::start(directory.path());
    let daemon = worker.daemon();
    let (mut client, welcome) = Client::connect(&worker, &daemon);
    assert_eq!((welcome.driver_version, welcome.devices.len()), (13000, 1));
    let mut lane = begin(&mut client);
    load(&mut lane, 1);
    kernel(&mut lane, 1, 1, "add_one");
    assert_eq!(lane.ask(FunctionGet { module: 1, id: 2, name: "none" }).unwrap_err(), CUDA_ERROR_NOT_FOUND);
    let large = lane.ask(MemoryAllocate { device: 0, bytes: 9 << 20 }).unwrap();
    let small = lane.ask(MemoryAllocate { device: 0, bytes: 100 }).unwrap();
    assert!(
        rekindle_device::DEVICE_RANGE.contains(&large)
            && large.is_multiple_of(2 << 20)
            && small.is_multiple_of(512)
    );
    let data: Vec<u8> = (0..9u32 << 18).flat_map(|n| n.to_le_bytes()).collect();
    upload(&mut lane, 0, large, &data);
    launch(&mut lane, 0, 1, &[large, 9 << 18]);
    lane.ask(StreamSynchronize { device: 0, stream: 0 }).unwrap();
    let back = words(&download(&mut lane, 0, large, 9 << 20));
    assert!(back.iter().enumerate().all(|(n, word)| *word == n as u32 + 1));
    lane.post(Copy { device: 0, stream: PER_THREAD_STREAM, to: small, from: large + 40, bytes: 8 });
    lane.ask(StreamSynchronize { device: 0, stream: PER_THREAD_STREAM }).unwrap();
    assert_eq!(words(&download(&mut lane, PER_THREAD_STREAM, small, 8)), [11, 12]);
    assert_eq!(lane.ask(MemoryRange { address: small + 99 }), Ok((small, 100, 0)));
    assert_eq!(lane.ask(MemoryRange { address: small + 100 }), Err(CUDA_ERROR_NOT_FOUND));
    lane.ask(MemoryFree { device: 0, address: small }).unwrap();
    assert_eq!(lane.ask(MemoryFree { device: 0, address: small }), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(lane.ask(MemoryFree { device: 0, address: large + 512 }), Err(CUDA_ERROR_INVALID_VALUE));
    lane.ask(MemoryFree { device: 0, address: large }).unwrap();
    assert_eq!(lane.ask(MemoryAllocate { device: 0, bytes: 4 << 30 }), Err(CUDA_ERROR_OUT_OF_MEMORY));
    let status = daemon.ask(ask::GetStatus {});
    assert_eq!((status.modules, status.client, status.buffers), (1, 9, 1));
    lane.post(EventDestroy { id: 99 });
    lane.ask(ContextSynchronize { device: 0 }).unwrap();
    assert_eq!(lane.error(), CUDA_ERROR_INVALID_HANDLE.0);
    assert_eq!(lane.error(), 0);
    client.die();
    assert_eq!(worker.end(), Ended::Done);
    assert!(!directory.path().join("ring-9-0").exists());
}

#[test]
fn waiting_for_one_thread_does_not_hold_up_another() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let worker = Worker::start(directory.path());
    let daemon = worker.daemon();
    let (mut client, _) = Client::connect(&worker, &daemon);
    let mut one = begin(&mut client);
    let mut two = client.lane();
    load(&mut one, 1);
    kernel(&mut one, 1, 1, "spin");
    let flag = pinned(&mut one, &client, "pinned-9-0", PINNED_RANGE.start);
    one.post(StreamCreate { device: 0, id: 2, flags: 1, priority: 0 });
    one.post(EventCreate { device: 0, id: 5, flags: 0 });
    launch(&mut one, 2, 1, &[PINNED_RANGE.start]);
    one.post(EventRecord { device: 0, stream: 2, event: 5, flags: 0 });
    one.send(StreamSynchronize { device: 0, stream: 2 }, &[]);
    assert_eq!(two.ask(EventQuery { event: 5 }), Ok(false));
    assert_eq!(two.ask(StreamQuery { device: 0, stream: 2 }), Ok(false));
    two.send(EventSynchronize { event: 5 }, &[]);
    std::thread::sleep(Duration::from_millis(30));
    assert!(!one.is_answered() && !two.is_answered());
    flag.store(1, Ordering::Release);
    one.answer::<StreamSynchronize>().unwrap();
    two.answer::<EventSynchronize>().unwrap();
    // A free waits for work that is under way, also on a stream that is no more.
    flag.store(0, Ordering::Release);
    let memory = one.ask(MemoryAllocate { device: 0, bytes: 4 << 20 }).unwrap();
    launch(&mut one, 2, 1, &[PINNED_RANGE.start]);
    one.post(StreamDestroy { id: 2 });
    one.send(MemoryFree { device: 0, address: memory }, &[]);
    assert_eq!(two.ask(MemoryRange { address: memory }), Err(CUDA_ERROR_NOT_FOUND));
    assert!(!one.is_answered());
    // The program stops with a kernel running: the daemon is told, and the program goes on.
    daemon.quiesce_fails(200, "still running");
    flag.store(1, Ordering::Release);
    one.answer::<MemoryFree>().unwrap();
    one.ask(PinnedUnregister { device: 0, address: PINNED_RANGE.start }).unwrap();
    assert!(!directory.path().join("pinned-9-0").exists());
    client.die();
    worker.end();
}

#[test]
fn stream_ordered_memory_is_reused_in_its_order() {
    let (_held, worker, _daemon, client, mut lane) = session();
    load(&mut lane, 1);
    kernel(&mut lane, 1, 1, "spin");
    let flag = pinned(&mut lane, &client, "pinned-9-0", PINNED_RANGE.start);
    lane.post(StreamCreate { device: 0, id: 2, flags: 1, priority: 0 });
    lane.post(StreamCreate { device: 0, id: 3, flags: 1, priority: 0 });
    let first = lane.ask(MemoryAllocateAsync { device: 0, bytes: 3 << 20, stream: 2 }).unwrap();
    launch(&mut lane, 2, 1, &[PINNED_RANGE.start]);
    lane.post(MemoryFreeAsync { device: 0, address: first, stream: 2 });
    let other = lane.ask(MemoryAllocateAsync { device: 0, bytes: 3 << 20, stream: 3 }).unwrap();
    let same = lane.ask(MemoryAllocateAsync { device: 0, bytes: 4 << 20, stream: 2 }).unwrap();
    assert_ne!(other, first);
    assert_eq!(same, first);
    lane.post(MemoryFreeAsync { device: 0, address: same, stream: 2 });
    lane.post(MemoryFreeAsync { device: 0, address: same, stream: 2 });
    flag.store(1, Ordering::Release);
    lane.ask(StreamSynchronize { device: 0, stream: 2 }).unwrap();
    assert_eq!(lane.error(), CUDA_ERROR_INVALID_VALUE.0);
    let (free, total) = lane.ask(MemoryInfo { device: 0 }).unwrap();
    assert_eq!(total - free, 4 << 20, "what was freed counts as free");
    // All of the memory can be had: what is kept is given up for it.
    let bytes = total - (4 << 20);
    let most = lane.ask(MemoryAllocate { device: 0, bytes }).unwrap();
    assert_eq!(lane.ask(MemoryFree { device: 0, address: most }), Ok(()));
    client.die();
    worker.end();
}

#[test]
fn memory_that_the_program_maps_itself() {
    let (_held, worker, _daemon, client, mut lane) = session();
    let bytes = 2 << 20;
    let at = lane.ask(AddressReserve { bytes: 4 * bytes, alignment: 0, address: 0 }).unwrap();
    lane.ask(PhysicalCreate { device: 0, id: 1, bytes }).unwrap();
    lane.ask(PhysicalCreate { device: 0, id: 2, bytes }).unwrap();
    lane.ask(PhysicalMap { address: at, bytes, id: 1 }).unwrap();
    lane.ask(PhysicalMap { address: at + bytes, bytes, id: 2 }).unwrap();
    assert_eq!(lane.ask(PhysicalMap { address: at + bytes, bytes, id: 2 }), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(
        lane.ask(PhysicalMap { address: at + 4 * bytes, bytes, id: 2 }),
        Err(CUDA_ERROR_INVALID_VALUE)
    );
    lane.ask(PhysicalProtect { device: 0, address: at, bytes: 2 * bytes, access: 3 }).unwrap();
    lane.ask(PhysicalRelease { id: 1 }).unwrap();
    upload(&mut lane, 0, at + bytes - 4, &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(download(&mut lane, 0, at + bytes, 4), [5, 6, 7, 8]);
    assert_eq!(lane.ask(AddressFree { address: at, bytes: 4 * bytes }), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(lane.ask(PhysicalUnmap { address: at, bytes: 3 * bytes }), Err(CUDA_ERROR_INVALID_VALUE));
    lane.ask(PhysicalUnmap { address: at, bytes: 2 * bytes }).unwrap();
    lane.ask(AddressFree { address: at, bytes: 4 * bytes }).unwrap();
    lane.ask(PhysicalRelease { id: 2 }).unwrap();
    let (free, total) = lane.ask(MemoryInfo { device: 0 }).unwrap();
    assert_eq!(free, total);
    client.die();
    worker.end();
}

#[test]
fn host_functions_run_in_the_client_in_stream_order() {
    let (_held, worker, _daemon, client, mut lane) = session();
    for token in 0..5 {
        lane.post(HostCall { device: 0, stream: 0, token });
    }
    lane.ask(StreamSynchronize { device: 0, stream: 0 }).unwrap();
    assert_eq!(client.seen.calls.load(Ordering::Acquire), 5);
    // A client that dies while the stream waits for it holds nothing up.
    lane.post(HostCall { device: 0, stream: 0, token: 9 });
    client.die();
    assert_eq!(worker.end(), Ended::Done);
}

#[test]
fn a_fault_is_told_to_everyone_who_waits() {
    let (_held, worker, daemon, client, mut lane) = session();
    load(&mut lane, 1);
    kernel(&mut lane, 1, 1, "fault");
    launch(&mut lane, 0, 1, &[]);
    assert_eq!(lane.ask(StreamSynchronize { device: 0, stream: 0 }), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
    assert_eq!(lane.error(), CUDA_ERROR_ILLEGAL_ADDRESS.0);
    // Staged transfers come to an end too, so that nobody waits for ever.
    let spin = rekindle_ring::Spin(100);
    let transfer = lane.staging.allocate(4, true, spin, || true, || false).unwrap().unwrap();
    let (offset, end) = (transfer.offset, transfer.end);
    lane.post(Download { device: 0, stream: 0, from: 1 << 40, offset, bytes: 4, end });
    assert!(lane.staging.wait(end, spin, || true, || false).unwrap());
    daemon.quiesce_fails(1000, "CUDA_ERROR_ILLEGAL_ADDRESS");
    client.die();
    worker.end();
}

#[test]
fn a_fault_that_shows_only_after_a_wait_is_told_too() {
    let (_held, worker, _daemon, client, mut lane) = session();
    worker.knobs.events_first.store(true, Ordering::Relaxed);
    load(&mut lane, 1);
    kernel(&mut lane, 1, 1, "spin");
    kernel(&mut lane, 1, 2, "fault");
    let flag = pinned(&mut lane, &client, "pinned-9-0", PINNED_RANGE.start);
    launch(&mut lane, 0, 1, &[PINNED_RANGE.start]);
    launch(&mut lane, 0, 2, &[]);
    lane.send(StreamSynchronize { device: 0, stream: 0 }, &[]);
    std::thread::sleep(Duration::from_millis(20));
    flag.store(1, Ordering::Release);
    assert_eq!(lane.answer::<StreamSynchronize>(), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
    assert_eq!(lane.error(), CUDA_ERROR_ILLEGAL_ADDRESS.0);
    client.die();
    worker.end();
}

#[test]
fn graphs_by_capture_and_by_hand() {
    let (_held, worker, daemon, client, mut lane) = session();
    load(&mut lane, 1);
    kernel(&mut lane, 1, 1, "add_one");
    let memory = lane.ask(MemoryAllocate { device: 0, bytes: 64 }).unwrap();
    upload(&mut lane, 0, memory, &[0; 64]);
    lane.post(StreamCreate { device: 0, id: 2, flags: 1, priority: 0 });
    lane.ask(CaptureBegin { device: 0, stream: 2, mode: 2 }).unwrap();
    assert_eq!(lane.ask(CaptureStatus { device: 0, stream: 2 }).unwrap().status, 1);
    launch(&mut lane, 2, 1, &[memory, 4]);
    launch(&mut lane, 2, 1, &[memory, 8]);
    daemon.quiesce_fails(300, "capturing");
    assert_eq!(lane.ask(CaptureEnd { device: 0, stream: 2, graph: 1 }), Ok(2));
    lane.ask(GraphInstantiate { graph: 1, exec: 1, flags: 0 }).unwrap();
    for _ in 0..3 {
        lane.post(GraphLaunch { device: 0, exec: 1, stream: 2 });
    }
    lane.ask(StreamSynchronize { device: 0, stream: 2 }).unwrap();
    assert_eq!(words(&download(&mut lane, 0, memory, 36)), [6, 6, 6, 6, 3, 3, 3, 3, 0]);
    lane.ask(GraphCreate { device: 0, graph: 2 }).unwrap();
    let set = MemorySet { address: memory, pitch: 0, value: 1, element: 1, width: 4, height: 1 };
    assert_eq!(lane.ask(GraphAddSet { graph: 2, after: vec![], set }), Ok(0));
    let parameters: Vec<u8> = [memory, 1].iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
    let add = GraphAddKernel { graph: 2, after: vec![0], function: 1, launch: Launch::default() };
    assert_eq!(lane.ask_with(add, &parameters), Ok(1));
    let copy = Copy3D::linear(memory + 4, memory, 4);
    assert_eq!(lane.ask(GraphAddCopy { graph: 2, after: vec![7], copy }), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(lane.ask(GraphAddCopy { graph: 2, after: vec![1], copy }), Ok(2));
    assert_eq!(lane.ask(GraphAddEmpty { graph: 2, after: vec![2] }), Ok(3));
    assert_eq!(lane.ask(GraphNodes { graph: 2 }), Ok(vec![2, 0, 1, 5]));
    lane.ask(GraphCreate { device: 0, graph: 3 }).unwrap();
    assert_eq!(
        lane.ask(GraphAddChild { graph: 3, after: Vec::new(), child: 9 }),
        Err(CUDA_ERROR_INVALID_HANDLE)
    );
    assert_eq!(
        lane.ask(GraphAddChild { graph: 3, after: Vec::new(), child: 3 }),
        Err(CUDA_ERROR_INVALID_VALUE)
    );
    assert_eq!(lane.ask(GraphAddChild { graph: 3, after: Vec::new(), child: 2 }), Ok(0));
    assert_eq!(lane.ask(GraphNodes { graph: 3 }), Ok(vec![4]));
    lane.ask(GraphDestroy { graph: 2 }).unwrap();
    lane.ask(GraphInstantiate { graph: 3, exec: 2, flags: 0 }).unwrap();
    lane.ask(GraphDestroy { graph: 3 }).unwrap();
    lane.post(GraphLaunch { device: 0, exec: 2, stream: 2 });
    lane.ask(StreamSynchronize { device: 0, stream: 2 }).unwrap();
    assert_eq!(words(&download(&mut lane, 0, memory, 8)), [0x0101_0102, 0x0101_0102]);
    lane.ask(GraphExecDestroy { exec: 2 }).unwrap();
    client.die();
    worker.end();
}

#[test]
fn threads_that_hand_over_keep_their_order() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let worker = Worker::start(directory.path());
    let daemon = worker.daemon();
    let (mut client, _) = Client::connect(&worker, &daemon);
    let mut one = begin(&mut client);
    let mut two = client.lane();
    load(&mut one, 1);
    kernel(&mut one, 1, 1, "add_one");
    let memory = one.ask(MemoryAllocate { device: 0, bytes: 4 }).unwrap();
    for round in 0..500u32 {
        let value = round & 0x7f;
        let set = MemorySet { address: memory, pitch: 0, value, element: 1, width: 4, height: 1 };
        one.post(SetMemory { device: 0, stream: 0, set });
        launch(&mut two, 0, 1, &[memory, 1]);
        let found = words(&download(&mut one, 0, memory, 4))[0];
        assert_eq!(found, value * 0x0101_0101 + 1, "round {round}");
    }
    client.die();
    worker.end();
}

#[test]
fn an_idle_worker_uses_no_processor_time() {
    let (_held, worker, _daemon, client, mut lane) = session();
    lane.ask(ContextSynchronize { device: 0 }).unwrap();
    // The test harness has other threads, whose time counts too: the quietest of several moments tells.
    let used = (0..5).map(|_| {
        let (before, since) = (processor_time(), Instant::now());
        std::thread::sleep(Duration::from_millis(300));
        (processor_time() - before).as_secs_f64() / since.elapsed().as_secs_f64()
    });
    let least = used.fold(f64::MAX, f64::min);
    assert!(least < 0.05, "{least}");
    client.die();
    worker.end();
}

fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills in the struct.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn a_worker_without_a_gpu_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let open = || Err(OpenError::NoGpu { index: 3, found: 1 });
    let worker = Worker::start_on(directory.path(), Default::default(), open);
    let why = "there is no NVIDIA GPU 3: the driver has 1";
    assert_eq!(worker.daemon().fails(ask::GetStatus {}), why);
    assert_eq!(worker.end(), Ended::Failed(why.to_string()));
}

#[test]
fn a_worker_serves_one_client() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let worker = Worker::start(directory.path());
    let daemon = worker.daemon();
    let (client, _) = Client::connect(&worker, &daemon);
    let (_ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let run_directory = directory.path().to_str().unwrap().to_string();
    let refused = daemon.asked(ask::Serve { run_directory }, &[theirs.as_fd()]);
    assert_eq!(refused.unwrap_err(), "this worker has a client already");
    // A board outside the run directory is not opened.
    let board = ToWorker::Board { name: "../board".to_string(), version: CLIENT_VERSION };
    rekindle_protocol::frame::send(&client.socket, &board, &[]).unwrap();
    assert!(matches!(worker.end(), Ended::Failed(problem) if problem.contains("../board")));
}

#[test]
fn who_speaks_another_version_is_refused_in_a_sentence() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let worker = Worker::start(directory.path());
    let stream = UnixStream::connect(directory.path().join("worker.sock")).unwrap();
    frame::send(&stream, &Greeting { version: VERSION + 1 }, &[]).unwrap();
    let (greeting, _) = frame::receive::<Greeting>(&stream).unwrap();
    assert_eq!(greeting.version, VERSION);
    assert!(matches!(frame::receive::<Greeting>(&stream), Err(FrameError::Closed)));

    let daemon = worker.daemon();
    let (client, welcome) = Client::connect(&worker, &daemon);
    assert_eq!(welcome.version, CLIENT_VERSION);
    let board = ToWorker::Board { name: "board-9-0".to_string(), version: CLIENT_VERSION + 1 };
    frame::send(&client.socket, &board, &[]).unwrap();
    match worker.end() {
        Ended::Failed(problem) => assert!(
            problem.contains(&format!("speaks version {} of the client's protocol", CLIENT_VERSION + 1)),
            "{problem}"
        ),
        Ended::Done => panic!("it went on"),
    }
}
