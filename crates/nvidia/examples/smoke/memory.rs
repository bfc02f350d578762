//! Memory: mapping, protection, export and import, pinned host memory, copies and fills.

use std::os::fd::AsFd;

use rekindle_device::{Access, Copy3D, DEVICE_RANGE, MemorySet};

use crate::gpu::{Gpu, Outcome, ensure};

pub fn mapping(gpu: &Gpu) -> Outcome {
    let (free, total) = gpu.device.memory_info()?;
    let buffer = gpu.buffer(64 << 20)?;
    gpu.store(buffer.address + 4, 77)?;
    ensure!(gpu.words(buffer.address + 4, 1)? == [77], "a stored word did not come back");
    let taken = free.saturating_sub(gpu.device.memory_info()?.0);
    ensure!(taken >= 64 << 20, "{taken} bytes less are free after a buffer of 64 MiB");
    gpu.free(buffer)?;
    Ok(format!("granularity {}, {} of {total} bytes free", gpu.device.granularity(), free))
}

pub fn reserve_taken(gpu: &Gpu) -> Outcome {
    let answer = gpu.device.reserve(DEVICE_RANGE.start, gpu.device.granularity());
    let Err(code) = answer else {
        return Err(crate::gpu::Failure("taken addresses were given again".into()));
    };
    let apart = DEVICE_RANGE.start + (2 << 40);
    gpu.device.reserve(apart, 1 << 40)?;
    gpu.device.unreserve(apart, 1 << 40)?;
    Ok(format!("taken addresses are refused with {code}"))
}

pub fn protection(gpu: &Gpu) -> Outcome {
    let buffer = gpu.buffer(2 << 20)?;
    gpu.store(buffer.address, 1)?;
    gpu.device.stream_synchronize(gpu.stream)?;
    gpu.device.protect(buffer.address, buffer.bytes, Access::Read)?;
    ensure!(gpu.words(buffer.address, 1)? == [1], "a read-only page could not be read");
    let none = gpu.device.protect(buffer.address, buffer.bytes, Access::None);
    gpu.device.protect(buffer.address, buffer.bytes, Access::ReadWrite)?;
    gpu.store(buffer.address, 2)?;
    ensure!(gpu.words(buffer.address, 1)? == [2], "a page made writable again was not written");
    gpu.free(buffer)?;
    Ok(format!("read and read-write; none: {none:?}"))
}

pub fn two_mappings(gpu: &Gpu) -> Outcome {
    let buffer = gpu.buffer(2 << 20)?;
    let second = gpu.addresses(buffer.bytes);
    gpu.device.map(second, buffer.bytes, buffer.memory)?;
    gpu.device.protect(second, buffer.bytes, Access::ReadWrite)?;
    gpu.store(second, 3)?;
    let seen = gpu.words(buffer.address, 1)?;
    gpu.device.unmap(second, buffer.bytes)?;
    gpu.free(buffer)?;
    ensure!(seen == [3], "the first mapping has {seen:?}");
    Ok("one memory at two addresses".into())
}

pub fn export_import(gpu: &Gpu) -> Outcome {
    let buffer = gpu.buffer(2 << 20)?;
    gpu.store(buffer.address, 4)?;
    gpu.device.stream_synchronize(gpu.stream)?;
    let descriptor = gpu.device.memory_export(buffer.memory)?;
    gpu.free(buffer)?;
    let imported = gpu.device.memory_import(descriptor.as_fd(), buffer.bytes)?;
    // What a process was given it can pass on.
    let descriptor = gpu.device.memory_export(imported)?;
    gpu.device.memory_release(imported)?;
    let memory = gpu.device.memory_import(descriptor.as_fd(), buffer.bytes)?;
    gpu.device.map(buffer.address, buffer.bytes, memory)?;
    gpu.device.protect(buffer.address, buffer.bytes, Access::ReadWrite)?;
    let seen = gpu.words(buffer.address, 1)?;
    gpu.device.unmap(buffer.address, buffer.bytes)?;
    gpu.device.memory_release(memory)?;
    ensure!(seen == [4], "the imported memory has {seen:?}");
    Ok("contents outlive every handle but the descriptor".into())
}

pub fn pinned(gpu: &Gpu) -> Outcome {
    gpu.set_host_words([0]);
    gpu.store(gpu.host as u64, 5)?;
    gpu.device.stream_synchronize(gpu.stream)?;
    let seen = gpu.host_words(1)[0];
    ensure!(seen == 5, "a kernel's write to pinned memory is seen as {seen}");
    let page = vec![0u8; 1 << 20];
    let address = (page.as_ptr() as u64).next_multiple_of(4096);
    gpu.device.host_register(address, 1 << 16)?;
    gpu.device.host_unregister(address)?;
    Ok("kernels write it at the program's address".into())
}

pub fn copies(gpu: &Gpu) -> Outcome {
    let (first, second) = (gpu.buffer(2 << 20)?, gpu.buffer(2 << 20)?);
    gpu.set_host_words(0..1024);
    gpu.device.copy(first.address, gpu.host as u64, 4096, gpu.stream)?;
    gpu.device.copy(second.address, first.address, 4096, gpu.stream)?;
    ensure!(gpu.words(second.address, 1024)?[1023] == 1023, "copies up, across and down lost a word");

    // 2 slices of 3 rows of 8 bytes; the second form's slices are no whole number of rows apart.
    for to_slice in [64 * 4, 64 * 4 + 4] {
        let copy = Copy3D {
            to: second.address,
            to_pitch: 64,
            to_slice,
            from: first.address,
            from_pitch: 16,
            from_slice: 64,
            width: 8,
            height: 3,
            depth: 2,
        };
        let clear =
            MemorySet { address: second.address, pitch: 0, value: 0, element: 4, width: 512, height: 1 };
        gpu.device.set(&clear, gpu.stream)?;
        gpu.device.copy_3d(&copy, gpu.stream)?;
        let words = gpu.words(second.address, 512)?;
        for (slice, row, column) in
            (0..2).flat_map(|s| (0..3).flat_map(move |r| (0..2).map(move |c| (s, r, c))))
        {
            let seen = words[slice * to_slice as usize / 4 + row * 16 + column];
            let expected = (slice * 16 + row * 4 + column) as u32;
            ensure!(
                seen == expected,
                "slice {slice}, row {row}, word {column}: {seen} instead of {expected}"
            );
        }
        ensure!(words[2] == 0, "the copy went beyond its width");
    }
    gpu.free(first)?;
    gpu.free(second)?;
    Ok("1-d and 3-d, whole and ragged slices".into())
}

pub fn fills(gpu: &Gpu) -> Outcome {
    let buffer = gpu.buffer(2 << 20)?;
    for (element, value, expected) in
        [(1, 0xab, 0xabab_abab), (2, 0xcdef, 0xcdef_cdef), (4, 0x1234_5678, 0x1234_5678)]
    {
        for height in [1, 3] {
            let width = 64 / u64::from(element);
            let clear =
                MemorySet { address: buffer.address, pitch: 0, value: 0, element: 1, width: 4096, height: 1 };
            gpu.device.set(&clear, gpu.stream)?;
            let set = MemorySet { address: buffer.address, pitch: 128, value, element, width, height };
            gpu.device.set(&set, gpu.stream)?;
            let words = gpu.words(buffer.address, 128)?;
            let right = (0..128).all(|word| {
                let inside = word % 32 < 16 && word / 32 < height as usize;
                words[word] == if inside { expected } else { 0 }
            });
            ensure!(right, "{height} rows of {width} elements of {element} bytes are wrong");
        }
    }
    gpu.free(buffer)?;
    Ok("1, 2 and 4 bytes, one row and many".into())
}
