use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rekindle_cuda::*;
use rekindle_device::{Access, Copy3D, MemorySet, Stream};

use crate::support::{MIB, Pinned, addresses, buffer, download, machine, upload};

#[test]
fn memory_is_counted_against_the_device() {
    let machine = machine("memory=64M");
    let gpu = machine.gpu.as_ref();
    assert_eq!(gpu.memory_info(), Ok((64 * MIB, 64 * MIB)));
    let first = buffer(gpu, 40 * MIB);
    assert_eq!(gpu.memory_create(26 * MIB), Err(CUDA_ERROR_OUT_OF_MEMORY));
    assert_eq!(gpu.memory_create(3), Err(CUDA_ERROR_INVALID_VALUE));
    gpu.memory_release(first.memory).unwrap();
    assert_eq!(gpu.memory_info(), Ok((24 * MIB, 64 * MIB)), "a mapping keeps its memory");
    gpu.unmap(first.address, first.bytes).unwrap();
    assert_eq!(gpu.memory_info(), Ok((64 * MIB, 64 * MIB)));
    assert!(gpu.memory_create(64 * MIB).is_ok());
}

#[test]
fn mappings_are_whole_and_inside_reservations() {
    let machine = machine("");
    let gpu = machine.gpu.as_ref();
    let at = addresses(8 * MIB);
    let memory = gpu.memory_create(4 * MIB).unwrap();
    assert_eq!(gpu.map(at, 4 * MIB, memory), Err(CUDA_ERROR_INVALID_VALUE), "nothing is reserved");
    gpu.reserve(at, 8 * MIB).unwrap();
    assert!(gpu.reserve(at, 8 * MIB).is_err(), "reserved already");
    assert_eq!(gpu.reserve(0x1000_0000_0000, 2 * MIB), Err(CUDA_ERROR_INVALID_VALUE), "not a device address");
    assert_eq!(gpu.map(at, 2 * MIB, memory), Err(CUDA_ERROR_INVALID_VALUE), "not its size");
    assert_eq!(
        gpu.map(at + 6 * MIB, 4 * MIB, memory),
        Err(CUDA_ERROR_INVALID_VALUE),
        "beyond the reservation"
    );
    gpu.map(at, 4 * MIB, memory).unwrap();
    assert_eq!(gpu.map(at + 2 * MIB, 4 * MIB, memory), Err(CUDA_ERROR_INVALID_VALUE), "mapped already");
    gpu.map(at + 4 * MIB, 4 * MIB, memory).unwrap();
    assert_eq!(
        gpu.protect(at, 2 * MIB, Access::ReadWrite),
        Err(CUDA_ERROR_INVALID_VALUE),
        "a part of a mapping"
    );
    gpu.protect(at, 8 * MIB, Access::ReadWrite).unwrap();
    upload(&machine.gpu, at, &[1, 2, 3]);
    assert_eq!(download(&machine.gpu, at + 4 * MIB, 3), [1, 2, 3], "one handle at two addresses");
    assert_eq!(gpu.unreserve(at, 8 * MIB), Err(CUDA_ERROR_INVALID_VALUE), "still mapped");
    assert_eq!(gpu.unmap(at, 6 * MIB), Err(CUDA_ERROR_INVALID_VALUE));
    gpu.unmap(at, 8 * MIB).unwrap();
    gpu.unreserve(at, 8 * MIB).unwrap();
    gpu.memory_release(memory).unwrap();
    assert_eq!(gpu.memory_release(memory), Err(CUDA_ERROR_INVALID_VALUE));
}

#[test]
fn an_exported_descriptor_outlives_the_device() {
    let exported = {
        let machine = machine("");
        let memory = buffer(machine.gpu.as_ref(), 2 * MIB);
        upload(&machine.gpu, memory.address, &[11, 22, 33]);
        let exported = machine.gpu.memory_export(memory.memory).unwrap();
        let again = machine.gpu.memory_import(exported.as_fd(), 2 * MIB).unwrap();
        let (free, total) = machine.gpu.memory_info().unwrap();
        assert_eq!(total - free, 2 * MIB, "one memory is counted once");
        machine.gpu.memory_release(again).unwrap();
        exported
    };
    let machine = machine("");
    let at = addresses(2 * MIB);
    let memory = machine.gpu.memory_import(exported.as_fd(), 2 * MIB).unwrap();
    assert_eq!(machine.gpu.memory_import(exported.as_fd(), 4 * MIB), Err(CUDA_ERROR_INVALID_VALUE));
    machine.gpu.reserve(at, 2 * MIB).unwrap();
    machine.gpu.map(at, 2 * MIB, memory).unwrap();
    machine.gpu.protect(at, 2 * MIB, Access::Read).unwrap();
    assert_eq!(download(&machine.gpu, at, 3), [11, 22, 33]);
}

#[test]
fn host_memory_is_registered_once() {
    let machine = machine("devices=2");
    let gpu = &machine.gpu;
    let words = vec![0_u32; 4096];
    let at = words.as_ptr() as u64;
    assert_eq!(gpu.copy(at, at + 64, 4, Stream::LEGACY), Err(CUDA_ERROR_INVALID_VALUE), "not registered");
    gpu.host_register(at, 16384).unwrap();
    assert_eq!(gpu.host_register(at + 4096, 64), Err(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED));
    machine.platform.open(1).unwrap().host_register(at, 16384).unwrap();
    assert_eq!(gpu.host_register(4096, 4096), Err(CUDA_ERROR_INVALID_VALUE), "not mapped");
    gpu.host_unregister(at).unwrap();
    assert_eq!(gpu.host_unregister(at), Err(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED));
    gpu.copy(at, at + 64, 4, Stream::LEGACY).unwrap();
    gpu.synchronize().unwrap();
}

#[test]
fn strided_copies_and_fills_touch_their_rows_only() {
    let machine = machine("");
    let gpu = &machine.gpu;
    let device = buffer(gpu.as_ref(), 2 * MIB);
    let fill =
        MemorySet { address: device.address, pitch: 32, value: 0xabcd, element: 2, width: 3, height: 2 };
    gpu.set(&fill, Stream::LEGACY).unwrap();
    assert_eq!(
        download(gpu, device.address, 10),
        [0xabcd_abcd, 0xabcd, 0, 0, 0, 0, 0, 0, 0xabcd_abcd, 0xabcd]
    );
    let host = Pinned::new(gpu, 0..64);
    let copy = Copy3D {
        to: device.address + 4096,
        to_pitch: 8,
        to_slice: 16,
        from: host.address(),
        from_pitch: 16,
        from_slice: 64,
        width: 8,
        height: 2,
        depth: 2,
    };
    gpu.copy_3d(&copy, Stream::LEGACY).unwrap();
    assert_eq!(download(gpu, device.address + 4096, 9), [0, 1, 4, 5, 16, 17, 20, 21, 0]);
    for wrong in [
        Copy3D { to: device.address + device.bytes - 8, ..copy },
        Copy3D { from_slice: u64::MAX, ..copy },
        Copy3D { to_pitch: 4, ..copy },
    ] {
        assert_eq!(gpu.copy_3d(&wrong, Stream::LEGACY), Err(CUDA_ERROR_INVALID_VALUE));
    }
    let big = MemorySet {
        address: device.address,
        pitch: 0,
        value: 9,
        element: 4,
        width: device.bytes / 4,
        height: 1,
    };
    gpu.set(&big, Stream::LEGACY).unwrap();
    assert!(download(gpu, device.address, (device.bytes / 4) as usize).iter().all(|word| *word == 9));
    assert_eq!(gpu.set(&MemorySet { element: 3, ..big }, Stream::LEGACY), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(
        gpu.set(&MemorySet { address: big.address + 1, ..big }, Stream::LEGACY),
        Err(CUDA_ERROR_INVALID_VALUE)
    );
}

#[test]
fn a_copy_into_read_only_memory_is_a_sticky_error() {
    let machine = machine("");
    let gpu = &machine.gpu;
    let device = buffer(gpu.as_ref(), 4 * MIB);
    gpu.protect(device.address, device.bytes, Access::Read).unwrap();
    let host = Pinned::new(gpu, 0..4);
    gpu.copy(host.address(), device.address, 16, Stream::LEGACY).unwrap();
    gpu.synchronize().unwrap();
    gpu.copy(device.address + 64, host.address(), 16, Stream::LEGACY).unwrap();
    assert_eq!(gpu.synchronize(), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
    assert_eq!(gpu.memory_create(2 * MIB), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
    assert_eq!(gpu.stream_query(Stream::LEGACY), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
    let fault = gpu.fault().unwrap();
    assert!(fault.contains(&format!("{:#x}", device.address + 64)), "{fault}");
}

#[test]
fn the_set_bandwidth_holds_for_each_direction() {
    let machine = machine("bandwidth=32M");
    let gpu = &machine.gpu;
    let device = buffer(gpu.as_ref(), 4 * MIB);
    let (up, down) = (Pinned::new(gpu, 0..1 << 19), Pinned::new(gpu, 0..1 << 19));
    let streams = [gpu.stream_create(1, 0).unwrap(), gpu.stream_create(1, 0).unwrap()];
    // A busy machine makes it longer now and then, and nothing makes it shorter: one after the other takes 500 ms.
    let (began, mut is_asynchronous, mut overlaps) = (Instant::now(), false, false);
    while !is_asynchronous || !overlaps {
        assert!(began.elapsed() < Duration::from_secs(120), "{is_asynchronous} {overlaps}");
        let start = Instant::now();
        for _ in 0..4 {
            gpu.copy(device.address, up.address(), 2 * MIB, streams[0]).unwrap();
            gpu.copy(down.address(), device.address + 2 * MIB, 2 * MIB, streams[1]).unwrap();
        }
        is_asynchronous |= gpu.stream_query(streams[0]) == Ok(false);
        gpu.synchronize().unwrap();
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(240), "8 MiB each way at 32 MiB/s: {took:?}");
        overlaps |= took < Duration::from_millis(450);
    }
}

#[test]
fn devices_have_their_own_memory_and_reach_each_others() {
    let machine = machine("devices=3,memory=64M");
    assert_eq!(machine.platform.devices().len(), 3);
    let other = machine.platform.open(2).unwrap();
    assert!(machine.platform.open(3).is_err());
    let (here, there) = (buffer(machine.gpu.as_ref(), 60 * MIB), buffer(other.as_ref(), 60 * MIB));
    upload(&machine.gpu, here.address, &[5, 6]);
    machine.gpu.copy(there.address, here.address, 8, Stream::LEGACY).unwrap();
    machine.gpu.synchronize().unwrap();
    assert_eq!(download(&other, there.address, 2), [5, 6]);
    assert_ne!(machine.platform.devices()[0].uuid, machine.platform.devices()[2].uuid);
}
