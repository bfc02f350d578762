//! A device without work takes no processor time. Alone in its process, whose time it measures.

use std::time::Duration;

use rekindle_device::{Access, MemorySet, Stream};
use rekindle_emulated::{Config, platform};

#[test]
fn an_idle_device_takes_no_processor_time() {
    let platform = platform(&Config::default()).unwrap();
    let gpu = platform.open(0).unwrap();
    let (at, bytes) = (0x6000_0000_0000, gpu.granularity());
    let memory = gpu.memory_create(bytes).unwrap();
    gpu.reserve(at, bytes).unwrap();
    gpu.map(at, bytes, memory).unwrap();
    gpu.protect(at, bytes, Access::ReadWrite).unwrap();
    let fill = MemorySet { address: at, pitch: 0, value: 1, element: 4, width: 16, height: 1 };
    gpu.set(&fill, Stream::LEGACY).unwrap();
    gpu.wait_value(Stream::LEGACY, at, 1, 4, 1).unwrap();
    gpu.copy(at + 64, at, 64, Stream::LEGACY).unwrap();
    gpu.host_call(Stream::LEGACY, Box::new(|| ())).unwrap();
    gpu.synchronize().unwrap();
    // Its threads may not have come to rest at once.
    let used = (0..20).map(|_| {
        let before = processor_time();
        std::thread::sleep(Duration::from_millis(300));
        processor_time() - before
    });
    let is_quiet = |used: &Duration| *used < Duration::from_millis(5);
    assert!(used.into_iter().any(|used| is_quiet(&used)), "it is never idle");
}

fn processor_time() -> Duration {
    // SAFETY: the structure is plain data that the call fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    [usage.ru_utime, usage.ru_stime]
        .map(|time| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000))
        .into_iter()
        .sum()
}
