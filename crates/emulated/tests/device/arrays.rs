use rekindle_cuda::*;
use rekindle_device::{
    ARRAY_CUBEMAP, ARRAY_LAYERED, ARRAY_SURFACE, Array, ArrayCopy, ArrayDescription, ArrayFormat, ArrayLevel,
    CopyEnd, Device, Result, Sampler, Stream, Texture, TextureResource, View,
};

use crate::support::{MIB, Pinned, buffer, download, machine, upload};

const NON_BLOCKING: u32 = 1;

fn words(width: u64, height: u64, depth: u64) -> ArrayDescription {
    ArrayDescription {
        width,
        height,
        depth,
        format: ArrayFormat::U32,
        channels: 1,
        flags: ARRAY_SURFACE,
        levels: None,
    }
}

fn plain(array: Array) -> ArrayLevel<Array> {
    ArrayLevel { array, level: None }
}

/// `size` in bytes, rows, slices, at the same place on both sides.
fn copy(
    gpu: &dyn Device,
    to: CopyEnd<Array>,
    from: CopyEnd<Array>,
    size: [u64; 3],
    stream: Stream,
) -> Result<()> {
    let [width, height, depth] = size;
    gpu.copy_array(&ArrayCopy { to, from, width, height, depth }, stream)
}

#[test]
fn arrays_count_against_the_device_as_long_as_somebody_needs_them() {
    let machine = machine("memory=64M");
    let gpu = machine.gpu.as_ref();
    let array = gpu.array_create(&words(1024, 4096, 0)).unwrap();
    assert_eq!(gpu.memory_info(), Ok((48 * MIB, 64 * MIB)));
    assert_eq!(gpu.array_create(&words(1024, 4096, 4)), Err(CUDA_ERROR_OUT_OF_MEMORY));
    let view = View::Surface(plain(array));
    let number = gpu.view_create(&view).unwrap();
    gpu.array_destroy(array).unwrap();
    assert_eq!(gpu.array_destroy(array), Err(CUDA_ERROR_INVALID_HANDLE));
    assert_eq!(gpu.view_create(&view), Err(CUDA_ERROR_INVALID_HANDLE));
    assert_eq!(gpu.memory_info(), Ok((48 * MIB, 64 * MIB)), "kernels may read it by the surface");
    gpu.view_destroy(view.kind(), number).unwrap();
    assert_eq!(gpu.memory_info(), Ok((64 * MIB, 64 * MIB)));
}

#[test]
fn a_copy_that_waits_keeps_its_array() {
    let machine = machine("");
    let gpu = &machine.gpu;
    let stream = gpu.stream_create(NON_BLOCKING, 0).unwrap();
    let flag = buffer(gpu.as_ref(), MIB);
    let array = gpu.array_create(&words(256, 64, 0)).unwrap();
    let all = [1024, 64, 1];
    let pinned = Pinned::new(gpu, 0..256 * 64);
    let memory = CopyEnd::Linear { address: pinned.address(), pitch: 1024, slice: 64 * 1024 };
    let there = CopyEnd::Array { at: plain(array), x: 0, y: 0, z: 0 };
    copy(gpu.as_ref(), there, memory, all, stream).unwrap();
    let target = buffer(gpu.as_ref(), MIB);
    gpu.wait_value(stream, flag.address, 1, 4, 0).unwrap();
    let here = CopyEnd::Linear { address: target.address, pitch: 1024, slice: 64 * 1024 };
    copy(gpu.as_ref(), here, there, all, stream).unwrap();
    gpu.array_destroy(array).unwrap();
    upload(gpu, flag.address, &[1]);
    gpu.stream_synchronize(stream).unwrap();
    assert_eq!(download(gpu, target.address, 256 * 64), (0..256 * 64).collect::<Vec<_>>());
}

#[test]
fn boxes_inside_of_levels_and_layers_are_copied_and_no_others() {
    let machine = machine("");
    let gpu = machine.gpu.as_ref();
    let mipmapped = gpu.array_create(&ArrayDescription { levels: Some(3), ..words(16, 8, 0) }).unwrap();
    let layered = gpu.array_create(&ArrayDescription { flags: ARRAY_LAYERED, ..words(8, 0, 5) }).unwrap();
    let pinned = Pinned::new(&machine.gpu, 0..64);
    let memory = CopyEnd::Linear { address: pinned.address(), pitch: 32, slice: 32 };
    let level = |level, x, y, z| CopyEnd::Array { at: ArrayLevel { array: mipmapped, level }, x, y, z };
    let layer = |x, y, z| CopyEnd::Array { at: plain(layered), x, y, z };
    let go = |to, from, size| copy(gpu, to, from, size, Stream::LEGACY);
    let good = [
        go(level(Some(1), 0, 0, 0), memory, [32, 4, 1]),
        go(level(Some(2), 4, 1, 0), level(Some(1), 8, 2, 0), [12, 1, 1]),
        go(layer(8, 0, 3), level(Some(2), 4, 1, 0), [12, 1, 1]),
        go(memory, layer(0, 0, 3), [32, 1, 1]),
        go(memory, layer(0, 0, 3), [0, 1, 1]),
    ];
    assert_eq!(good, [Ok(()); 5]);
    gpu.stream_synchronize(Stream::LEGACY).unwrap();
    // Of the second level's third row, from its third word on.
    assert_eq!(pinned.read()[..8], [0, 0, 18, 19, 20, 0, 0, 0]);
    let bad = [
        go(level(None, 0, 0, 0), memory, [4, 1, 1]),
        go(level(Some(3), 0, 0, 0), memory, [4, 1, 1]),
        go(level(Some(1), 4, 0, 0), memory, [32, 1, 1]),
        go(level(Some(1), 0, 1, 0), memory, [32, 4, 1]),
        go(layer(0, 1, 0), memory, [4, 1, 1]),
        go(layer(0, 0, 3), memory, [4, 1, 3]),
        go(layer(u64::MAX, 0, 0), memory, [4, 1, 1]),
        go(layer(0, 0, 0), CopyEnd::Linear { address: 64, pitch: 32, slice: 32 }, [32, 1, 1]),
    ];
    assert_eq!(bad, [Err(CUDA_ERROR_INVALID_VALUE); 8]);
}

#[test]
fn shapes_that_no_gpu_has_are_refused() {
    let machine = machine("");
    let gpu = machine.gpu.as_ref();
    let cube =
        |width, height, depth| ArrayDescription { flags: ARRAY_CUBEMAP, ..words(width, height, depth) };
    let bad = [
        words(0, 8, 0),
        words(8, 0, 8),
        words(200_000, 0, 0),
        words(8, 100_000, 0),
        words(20_000, 8, 8),
        cube(8, 8, 5),
        cube(8, 4, 6),
        ArrayDescription { channels: 3, ..words(8, 8, 0) },
        ArrayDescription { flags: ARRAY_LAYERED, ..words(8, 8, 0) },
        ArrayDescription { levels: Some(0), ..words(8, 8, 0) },
    ];
    for description in bad {
        assert_eq!(gpu.array_create(&description), Err(CUDA_ERROR_INVALID_VALUE), "{description:?}");
    }
    assert!(gpu.array_create(&cube(8, 8, 6)).is_ok());
}

#[test]
fn textures_say_what_they_cannot_read() {
    let machine = machine("");
    let gpu = machine.gpu.as_ref();
    let array = gpu.array_create(&ArrayDescription { flags: 0, ..words(8, 8, 0) }).unwrap();
    let memory = buffer(gpu, MIB);
    let make = |resource, sampler| gpu.view_create(&View::Texture(Texture { resource, sampler, view: None }));
    let whole = TextureResource::Array(plain(array));
    let linear =
        |address, bytes| TextureResource::Linear { address, format: ArrayFormat::F32, channels: 1, bytes };
    let point = Sampler { address_modes: [1; 3], ..Sampler::default() };
    assert!(make(whole, point).is_ok() && make(linear(memory.address, 4096), point).is_ok());
    let bad = [
        make(whole, Sampler { filter: 1, ..point }),
        make(whole, Sampler { filter: 2, ..point }),
        make(whole, Sampler { address_modes: [0, 4, 0], ..point }),
        make(whole, Sampler { flags: 0x1000, ..point }),
        make(TextureResource::Mipmapped(array), point),
        make(linear(memory.address, 0), point),
        make(linear(memory.address + 4, 4096), point),
        make(linear(memory.address, 1 << 40), point),
        make(linear(0x6fff_0000_0000, 4096), point),
        gpu.view_create(&View::Surface(plain(array))),
    ];
    assert_eq!(bad, [Err(CUDA_ERROR_INVALID_VALUE); 10]);
}
