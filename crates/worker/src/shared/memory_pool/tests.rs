//! A pool on an emulated GPU of 256 MB, and who else has memory there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rekindle_cuda::CUDA_ERROR_OUT_OF_MEMORY;
use rekindle_device::{Access, DEVICE_RANGE, Device, Memory};
use rekindle_emulated::Config;

use super::MemoryPool;
use crate::pressure::Pressure;

const MB: u64 = 1 << 20;
/// Addresses of this process that other tests do not use.
static NEXT: AtomicU64 = AtomicU64::new(DEVICE_RANGE.start + (96 << 30));

fn gpu() -> Arc<dyn Device> {
    let config = Config::parse("memory=256M,threads=1").unwrap();
    let device = rekindle_emulated::platform(&config).unwrap().open(0).unwrap();
    device.bind().unwrap();
    device
}

fn free(device: &Arc<dyn Device>) -> u64 {
    device.memory_info().unwrap().0 / MB
}

/// Memory that is mapped, and where.
fn mapped(device: &Arc<dyn Device>, bytes: u64) -> (u64, Memory) {
    let at = NEXT.fetch_add(bytes, Ordering::Relaxed);
    device.reserve(at, bytes).unwrap();
    let memory = device.memory_create(bytes).unwrap();
    device.map(at, bytes, memory).unwrap();
    device.protect(at, bytes, Access::ReadWrite).unwrap();
    (at, memory)
}

#[test]
fn whoever_lacks_memory_gets_what_is_mapped_nowhere_and_then_the_rest() {
    let device = gpu();
    let pool = MemoryPool::new(device.clone(), Arc::default(), None);
    let (at, memory) = mapped(&device, 32 * MB);
    pool.put(32 * MB, memory, (1, at));
    let ahead = device.memory_create(64 * MB).unwrap();
    pool.shared.state().memory.put(64 * MB, ahead);
    assert_eq!((pool.bytes() / MB, free(&device)), (96, 160));
    assert!(pool.give_way());
    assert_eq!((pool.bytes() / MB, free(&device)), (32, 224));
    assert!(pool.shared.state().is_withheld());
    assert!(pool.give_way());
    assert_eq!((pool.bytes(), free(&device)), (0, 256));
    // It was unmapped where it was, and its user is told so.
    assert!(!pool.take_back(32 * MB, memory, (1, at)));
    assert!(!pool.unmap((1, at), |is_mapped| is_mapped));
    device.unmap(at, 32 * MB).unwrap_err();
    assert!(!pool.give_way(), "there is no more");
}

#[test]
fn what_somebody_has_taken_stays_when_its_former_place_is_unmapped() {
    let device = gpu();
    let pool = MemoryPool::new(device.clone(), Arc::default(), None);
    let (at, memory) = mapped(&device, 32 * MB);
    pool.put(32 * MB, memory, (1, at));
    assert_eq!(pool.take(32 * MB), Some(memory));
    assert!(!pool.give_way(), "nothing of it is idle");
    assert_eq!(free(&device), 224);
    device.memory_release(memory).unwrap();
    assert_eq!(free(&device), 256);
}

#[test]
fn others_are_left_a_margin_and_what_is_mapped_goes_only_where_little_is_free() {
    let device = gpu();
    let pool = MemoryPool::new(device.clone(), Arc::default(), None);
    let (at, memory) = mapped(&device, 32 * MB);
    pool.put(32 * MB, memory, (1, at));
    for _ in 0..4 {
        let ahead = device.memory_create(4 * MB).unwrap();
        pool.shared.state().memory.put(4 * MB, ahead);
    }
    pool.shared.leave_margin();
    assert_eq!(pool.bytes() / MB, 48, "much is free");
    // A sixteenth of it are 16 MB: 6 are missing, and 8 go.
    let other = device.memory_create(198 * MB).unwrap();
    assert_eq!(free(&device), 10);
    pool.shared.leave_margin();
    assert_eq!((pool.bytes() / MB, free(&device)), (40, 18));
    // All that is mapped nowhere goes, and leaves more than half of the margin.
    let more = device.memory_create(16 * MB).unwrap();
    pool.shared.leave_margin();
    assert_eq!((pool.bytes() / MB, free(&device)), (32, 10));
    let most = device.memory_create(6 * MB).unwrap();
    pool.shared.leave_margin();
    assert_eq!((pool.bytes() / MB, free(&device)), (0, 36));
    for memory in [other, more, most] {
        device.memory_release(memory).unwrap();
    }
}

#[test]
fn a_pool_gives_way_to_another_worker_that_asks() {
    let (directory, device) = (tempfile::tempdir().unwrap(), gpu());
    let open = || Pressure::open_in(directory.path(), &device.info().uuid).unwrap();
    let pool = MemoryPool::new(device.clone(), Arc::default(), Some(open()));
    let (_, demand) = pool.join().unwrap();
    let other = open();
    let (at, memory) = mapped(&device, 192 * MB);
    pool.put(192 * MB, memory, (1, at));
    assert_eq!((other.elsewhere() / MB, pool.bytes_elsewhere()), (192, 0));
    assert_eq!(device.memory_create(192 * MB), Err(CUDA_ERROR_OUT_OF_MEMORY));
    assert!(other.ask());
    let lacked = device.memory_create(192 * MB).unwrap();
    assert!(pool.shared.state().is_withheld());
    assert!(!other.ask(), "it has no more");
    device.memory_release(lacked).unwrap();
    // What it has counts no more when it ends.
    let (at, memory) = mapped(&device, 32 * MB);
    pool.put(32 * MB, memory, (1, at));
    assert_eq!(other.elsewhere() / MB, 32);
    drop((pool, demand));
    let began = Instant::now();
    while other.elsewhere() > 0 {
        assert!(began.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(1));
    }
}
