//! What calls cost.

use std::time::Instant;

use rekindle_device::{Access, MemorySet};

use crate::gpu::{Gpu, HOST_BYTES, Outcome, shape};

pub fn launches(gpu: &Gpu) -> Outcome {
    const COUNT: u32 = 10_000;
    let empty = gpu.function("empty")?;
    let store = gpu.function("store")?;
    let launch = shape(1, 32);
    let parameters = [(gpu.host as u64).to_le_bytes().as_slice(), &1u32.to_le_bytes()].concat();
    gpu.device.synchronize()?;
    let mut words = Vec::new();
    for (name, function, parameters) in [("empty", empty, &[][..]), ("store", store, &parameters)] {
        let start = Instant::now();
        for _ in 0..COUNT {
            gpu.device.launch(function, &launch, gpu.stream, parameters)?;
        }
        let queued = start.elapsed();
        gpu.device.stream_synchronize(gpu.stream)?;
        let per = |time: std::time::Duration| time.as_secs_f64() * 1e6 / f64::from(COUNT);
        words.push(format!("{name} {:.2} µs queued, {:.2} µs done", per(queued), per(start.elapsed())));
    }
    let start = Instant::now();
    for _ in 0..COUNT {
        gpu.device.bind()?;
    }
    words.push(format!("bind {:.1} ns", start.elapsed().as_secs_f64() * 1e9 / f64::from(COUNT)));
    Ok(words.join("; "))
}

pub fn bandwidth(gpu: &Gpu) -> Outcome {
    let (first, second) = (gpu.buffer(HOST_BYTES)?, gpu.buffer(HOST_BYTES)?);
    let host = gpu.host as u64;
    let mut words = Vec::new();
    for (name, to, from) in [
        ("up", first.address, host),
        ("down", host, first.address),
        ("across", second.address, first.address),
    ] {
        let mut best = f64::MAX;
        for _ in 0..3 {
            let start = Instant::now();
            gpu.device.copy(to, from, HOST_BYTES, gpu.stream)?;
            gpu.device.stream_synchronize(gpu.stream)?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        words.push(format!("{name} {:.1} GB/s", HOST_BYTES as f64 / best / 1e9));
    }
    let set = MemorySet {
        address: first.address,
        pitch: 0,
        value: 0,
        element: 4,
        width: HOST_BYTES / 4,
        height: 1,
    };
    let start = Instant::now();
    gpu.device.set(&set, gpu.stream)?;
    gpu.device.stream_synchronize(gpu.stream)?;
    words.push(format!("fill {:.0} GB/s", HOST_BYTES as f64 / start.elapsed().as_secs_f64() / 1e9));
    gpu.free(first)?;
    gpu.free(second)?;
    Ok(words.join(", "))
}

pub fn mapping(gpu: &Gpu) -> Outcome {
    let bytes = 4u64 << 30;
    let address = gpu.addresses(bytes);
    let start = Instant::now();
    let mut last = 0.0;
    let mut words = Vec::new();
    let mut took = |name: &str| {
        let now = start.elapsed().as_secs_f64() * 1e3;
        words.push(format!("{name} {:.3}", now - last));
        last = now;
    };
    let memory = gpu.device.memory_create(bytes)?;
    took("create");
    gpu.device.map(address, bytes, memory)?;
    took("map");
    gpu.device.protect(address, bytes, Access::ReadWrite)?;
    took("protect");
    let descriptor = gpu.device.memory_export(memory)?;
    took("export");
    gpu.device.unmap(address, bytes)?;
    took("unmap");
    gpu.device.memory_release(memory)?;
    took("release");
    drop(descriptor);
    Ok(format!("4 GiB, ms: {}", words.join(", ")))
}
