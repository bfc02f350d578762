//! Streams, events, host calls, waits on values.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::gpu::{Failure, Gpu, Outcome, ensure, shape};

const NON_BLOCKING: u32 = 1;
const WAIT_AT_LEAST: u32 = 0;

pub fn add(gpu: &Gpu) -> Outcome {
    let n = 100_000u32;
    let buffer = gpu.buffer(4 << 20)?;
    let (a, b, c) = (buffer.address, buffer.address + (1 << 20), buffer.address + (2 << 20));
    gpu.set_host_words((0..n).map(|index| (index as f32).to_bits()));
    gpu.device.copy(a, gpu.host as u64, 4 * u64::from(n), gpu.stream)?;
    gpu.device.copy(b, a, 4 * u64::from(n), gpu.stream)?;
    let mut parameters: Vec<u8> = [a, b, c].iter().flat_map(|address| address.to_le_bytes()).collect();
    parameters.extend_from_slice(&n.to_le_bytes());
    gpu.device.launch(gpu.function("add")?, &shape(n.div_ceil(256), 256), gpu.stream, &parameters)?;
    let sums = gpu.words(c, n as usize)?;
    let wrong = sums.iter().enumerate().find(|(index, word)| f32::from_bits(**word) != 2.0 * *index as f32);
    ensure!(wrong.is_none(), "element {wrong:?} is wrong");
    gpu.free(buffer)?;
    Ok(format!("{n} elements"))
}

pub fn order(gpu: &Gpu) -> Outcome {
    let (least, greatest) = gpu.device.info().stream_priorities;
    let other = gpu.device.stream_create(NON_BLOCKING, greatest)?;
    let (start, end) = (gpu.device.event_create(0)?, gpu.device.event_create(0)?);
    let gate = gpu.buffer(2 << 20)?;
    gpu.store(gate.address, 0)?;
    gpu.device.stream_synchronize(gpu.stream)?;

    gpu.device.event_record(start, gpu.stream, 0)?;
    gpu.device.wait_value(gpu.stream, gate.address, 9, 4, WAIT_AT_LEAST)?;
    gpu.store(gpu.host as u64, 1)?;
    gpu.device.event_record(end, gpu.stream, 0)?;
    gpu.device.stream_wait_event(other, end, 0)?;
    gpu.device.write_value(other, gate.address + 8, 1 << 40, 8, 0)?;
    std::thread::sleep(Duration::from_millis(5));
    ensure!(!gpu.device.stream_query(gpu.stream)?, "the stream did not wait for the value");
    ensure!(!gpu.device.event_query(end)? && !gpu.device.stream_query(other)?, "the event did not wait");
    let third = gpu.device.stream_create(NON_BLOCKING, least)?;
    gpu.device.write_value(third, gate.address, 9, 4, 0)?;
    gpu.device.event_synchronize(end)?;
    gpu.device.stream_synchronize(other)?;
    ensure!(gpu.device.stream_query(gpu.stream)?, "the stream is not done");
    let milliseconds = gpu.device.event_elapsed(start, end)?;
    ensure!(milliseconds >= 4.0, "{milliseconds} ms between the events");
    gpu.device.wait_value(gpu.stream, gate.address + 8, 1 << 40, 8, WAIT_AT_LEAST)?;
    ensure!(gpu.words(gate.address + 8, 2)? == [0, 256], "the 8-byte value was not written");
    for stream in [other, third] {
        gpu.device.stream_destroy(stream)?;
    }
    for event in [start, end] {
        gpu.device.event_destroy(event)?;
    }
    gpu.free(gate)?;
    Ok(format!("priorities {least} to {greatest}; {milliseconds:.1} ms between events"))
}

pub fn host_call(gpu: &Gpu) -> Outcome {
    let seen = Arc::new(AtomicU32::new(0));
    let host = gpu.host as u64;
    gpu.set_host_words([0]);
    gpu.store(host, 8)?;
    let own = seen.clone();
    gpu.device.host_call(
        gpu.stream,
        Box::new(move || {
            std::thread::sleep(Duration::from_millis(5));
            // SAFETY: pinned memory that lives as long as the process; the kernel that wrote it is done.
            own.store(unsafe { (host as *const u32).read_volatile() }, Ordering::SeqCst);
        }),
    )?;
    let start = Instant::now();
    gpu.device.synchronize()?;
    ensure!(seen.load(Ordering::SeqCst) == 8, "the call saw {}", seen.load(Ordering::SeqCst));
    ensure!(Arc::strong_count(&seen) == 1, "the closure was not freed");
    Ok(format!("in stream order, {:.1} ms", start.elapsed().as_secs_f64() * 1e3))
}

pub fn limits(gpu: &Gpu) -> Outcome {
    const STACK: u32 = 0;
    let before = gpu.device.limit(STACK)?;
    gpu.device.set_limit(STACK, before + 1024)?;
    let after = gpu.device.limit(STACK)?;
    gpu.device.set_limit(STACK, before)?;
    ensure!(after >= before + 1024, "the stack limit is {after} after {} was set", before + 1024);
    let info = gpu.device.info();
    ensure!(info.limits.contains(&(STACK, before)), "the limits are {:?}", info.limits);
    let Err(code) = gpu.device.limit(999) else { return Err(Failure("an unknown limit has a value".into())) };
    Ok(format!("{:?}; an unknown one: {code}", info.limits))
}
