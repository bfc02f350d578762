use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rekindle_cuda::*;
use rekindle_device::{Device, MemorySet, Stream};

use crate::support::{MIB, Pinned, buffer, download, machine};

/// A stream stops at the call until the sender is used or dropped.
fn gate(gpu: &Arc<dyn Device>, stream: Stream) -> mpsc::Sender<()> {
    let (open, wait) = mpsc::channel();
    gpu.host_call(
        stream,
        Box::new(move || {
            let _ = wait.recv();
        }),
    )
    .unwrap();
    open
}

fn fill(gpu: &Arc<dyn Device>, address: u64, value: u32, stream: Stream) {
    gpu.set(&MemorySet { address, pitch: 0, value, element: 4, width: 1, height: 1 }, stream).unwrap();
}

#[test]
fn a_stream_keeps_its_order_and_calls_do_not_wait() {
    let machine = machine("");
    let gpu = &machine.gpu;
    let device = buffer(gpu.as_ref(), 2 * MIB);
    let host = Pinned::new(gpu, [0; 2]);
    let stream = gpu.stream_create(1, 0).unwrap();
    let open = gate(gpu, stream);
    for value in 1..100 {
        fill(gpu, device.address, value, stream);
        gpu.copy(device.address + 4, device.address, 4, stream).unwrap();
    }
    gpu.copy(host.address(), device.address, 8, stream).unwrap();
    assert_eq!(gpu.stream_query(stream), Ok(false));
    assert_eq!(host.read(), [0, 0]);
    drop(open);
    gpu.stream_synchronize(stream).unwrap();
    assert_eq!(gpu.stream_query(stream), Ok(true));
    assert_eq!(host.read(), [99, 99]);
}

#[test]
fn an_engine_runs_as_the_process_does_whoever_uses_it_first() {
    let machine = machine("");
    let gpu = &machine.gpu;
    // SAFETY: asks how the calling thread is scheduled.
    let nice = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    let (usual, (sender, of_the_engine)) = (nice(), mpsc::channel());
    let first = || {
        rekindle_parallel::go_first();
        gpu.host_call(Stream::LEGACY, Box::new(move || sender.send(nice()).unwrap())).unwrap();
    };
    std::thread::scope(|scope| scope.spawn(first).join().unwrap());
    assert_eq!(of_the_engine.recv().unwrap(), usual);
}

#[test]
fn the_legacy_stream_orders_blocking_streams_only() {
    let machine = machine("");
    let gpu = &machine.gpu;
    let (blocking, free) = (gpu.stream_create(0, 0).unwrap(), gpu.stream_create(1, 0).unwrap());
    let device = buffer(gpu.as_ref(), 2 * MIB);

    let open = gate(gpu, blocking);
    fill(gpu, device.address, 1, Stream::LEGACY);
    fill(gpu, device.address + 4, 2, free);
    gpu.stream_synchronize(free).unwrap();
    assert_eq!(gpu.stream_query(Stream::LEGACY), Ok(false), "waits for the blocking stream");
    let late = gpu.stream_create(0, 0).unwrap();
    fill(gpu, device.address + 8, 3, late);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(gpu.stream_query(late), Ok(false), "waits for the legacy stream");
    drop(open);
    gpu.stream_synchronize(late).unwrap();
    assert_eq!(download(gpu, device.address, 3), [1, 2, 3]);

    let open = gate(gpu, blocking);
    gpu.stream_destroy(blocking).unwrap();
    fill(gpu, device.address, 4, Stream::LEGACY);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(gpu.stream_query(Stream::LEGACY), Ok(false), "waits for a destroyed stream's work too");
    drop(open);
    gpu.synchronize().unwrap();
    assert_eq!(gpu.stream_query(blocking), Err(CUDA_ERROR_INVALID_HANDLE));
}

#[test]
fn events_order_streams_and_tell_time() {
    let machine = machine("");
    let gpu = &machine.gpu;
    let (a, b) = (gpu.stream_create(1, 0).unwrap(), gpu.stream_create(1, -5).unwrap());
    let (start, end) = (gpu.event_create(0).unwrap(), gpu.event_create(0).unwrap());
    let silent = gpu.event_create(2).unwrap();
    assert_eq!(gpu.event_query(start), Ok(true), "never recorded");
    assert_eq!(gpu.event_elapsed(start, end), Err(CUDA_ERROR_INVALID_HANDLE));

    gpu.event_record(start, a, 0).unwrap();
    let open = gate(gpu, a);
    gpu.event_synchronize(start).unwrap();
    gpu.event_record(end, a, 0).unwrap();
    gpu.event_record(silent, a, 0).unwrap();
    gpu.stream_wait_event(b, end, 0).unwrap();
    let reached = Arc::new(AtomicU32::new(0));
    let note = Arc::clone(&reached);
    let device = buffer(gpu.as_ref(), 2 * MIB);
    fill(gpu, device.address, 1, b);
    gpu.host_call(b, Box::new(move || note.store(1, Ordering::SeqCst))).unwrap();
    assert_eq!(gpu.event_query(end), Ok(false));
    assert_eq!(gpu.event_elapsed(start, end), Err(CUDA_ERROR_NOT_READY));
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(reached.load(Ordering::SeqCst), 0);
    open.send(()).unwrap();
    gpu.event_synchronize(end).unwrap();
    gpu.stream_synchronize(b).unwrap();
    assert_eq!(reached.load(Ordering::SeqCst), 1);
    let elapsed = gpu.event_elapsed(start, end).unwrap();
    assert!((29.0..60_000.0).contains(&elapsed), "{elapsed}");
    assert_eq!(gpu.event_elapsed(start, silent), Err(CUDA_ERROR_INVALID_HANDLE));
    gpu.event_destroy(end).unwrap();
    assert_eq!(gpu.event_query(end), Err(CUDA_ERROR_INVALID_HANDLE));
}

#[test]
fn waits_for_values_hold_streams() {
    let machine = machine("");
    let gpu = &machine.gpu;
    let device = buffer(gpu.as_ref(), 2 * MIB);
    let at = device.address;
    for (flags, value, too_soon, met) in
        [(0, 5, 4, 6), (1, 5, 6, 5), (2, 4, 3, 12), (3, u64::from(u32::MAX) << 1, 1, 0)]
    {
        let stream = gpu.stream_create(1, 0).unwrap();
        gpu.write_value(Stream::LEGACY, at, too_soon, 4, 0).unwrap();
        gpu.stream_synchronize(Stream::LEGACY).unwrap();
        gpu.wait_value(stream, at, value, 4, flags).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(gpu.stream_query(stream), Ok(false), "flags {flags}");
        gpu.write_value(Stream::LEGACY, at, met, 4, 0).unwrap();
        gpu.stream_synchronize(stream).unwrap();
    }
    assert_eq!(gpu.wait_value(Stream::LEGACY, at + 2, 0, 4, 0), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(gpu.write_value(Stream::LEGACY, at, 0, 2, 0), Err(CUDA_ERROR_INVALID_VALUE));
    gpu.write_value(Stream::LEGACY, at + 8, u64::MAX - 1, 8, 0).unwrap();
    assert_eq!(download(gpu, at + 8, 2), [u32::MAX - 1, u32::MAX]);
}

#[test]
fn whoever_gives_a_stream_more_than_it_takes_waits_and_nobody_else_does() {
    const TAKES: u32 = 1022;
    let machine = machine("");
    let gpu = &machine.gpu;
    let device = buffer(gpu.as_ref(), 2 * MIB);
    let [stream, other] = [1, 1].map(|flags| gpu.stream_create(flags, 0).unwrap());
    let open = gate(gpu, stream);
    (0..TAKES).for_each(|value| fill(gpu, device.address, value, stream));
    std::thread::scope(|scope| {
        let more = scope.spawn(|| fill(gpu, device.address, TAKES, stream));
        fill(gpu, device.address + 4, 7, other);
        gpu.stream_synchronize(other).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert!(!more.is_finished(), "the stream took one more");
        open.send(()).unwrap();
        more.join().unwrap();
    });
    gpu.stream_synchronize(stream).unwrap();
    assert_eq!(download(gpu, device.address, 2), [TAKES, 7]);
}

#[test]
fn dropping_the_machine_ends_what_waits() {
    let machine = machine("");
    let gpu = &machine.gpu;
    let device = buffer(gpu.as_ref(), 2 * MIB);
    gpu.wait_value(Stream::LEGACY, device.address, 1, 4, 1).unwrap();
    fill(gpu, device.address, 3, Stream::LEGACY);
    let start = Instant::now();
    drop(machine);
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn wrong_handles_and_flags_are_refused() {
    let machine = machine("");
    let gpu = &machine.gpu;
    assert_eq!(gpu.stream_create(2, 0), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(gpu.event_create(8), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(gpu.stream_destroy(Stream::LEGACY), Err(CUDA_ERROR_INVALID_HANDLE));
    assert_eq!(gpu.stream_synchronize(Stream(99)), Err(CUDA_ERROR_INVALID_HANDLE));
    assert_eq!(gpu.limit(99), Err(CUDA_ERROR_UNSUPPORTED_LIMIT));
    gpu.set_limit(2, 1 << 20).unwrap();
    assert_eq!(gpu.limit(2), Ok(1 << 20));
}
