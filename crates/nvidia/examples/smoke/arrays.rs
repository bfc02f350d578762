//! Arrays: copies of every shape, and which numbers the driver gives to textures and surfaces.

use rekindle_device::{
    ARRAY_LAYERED, ARRAY_SURFACE, Array, ArrayCopy, ArrayDescription, ArrayFormat, ArrayLevel, CopyEnd,
    Sampler, Texture, TextureResource, View, ViewKind,
};

use crate::gpu::{Failure, Gpu, Outcome, ensure};

fn description(size: [u64; 3], flags: u32, levels: Option<u32>) -> ArrayDescription {
    let [width, height, depth] = size;
    ArrayDescription { width, height, depth, format: ArrayFormat::U32, channels: 1, flags, levels }
}

/// All of a level, to or from the start of the pinned memory.
fn copy(gpu: &Gpu, array: Array, given: &ArrayDescription, level: u32, up: bool) -> Result<(), Failure> {
    let [width, height, depth] = given.extent(level);
    let memory = CopyEnd::Linear { address: gpu.host as u64, pitch: width, slice: width * height };
    let at = ArrayLevel { array, level: given.levels.map(|_| level) };
    let there = CopyEnd::Array { at, x: 0, y: 0, z: 0 };
    let (to, from) = if up { (there, memory) } else { (memory, there) };
    gpu.device.copy_array(&ArrayCopy { to, from, width, height, depth }, gpu.stream)?;
    Ok(gpu.device.stream_synchronize(gpu.stream)?)
}

pub fn copies(gpu: &Gpu) -> Outcome {
    let shapes = [
        description([1000, 0, 0], 0, None),
        description([100, 50, 0], 0, None),
        description([33, 17, 9], 0, None),
        description([64, 0, 4], ARRAY_LAYERED, None),
        description([64, 32, 5], ARRAY_LAYERED, None),
        description([64, 32, 0], 0, Some(4)),
    ];
    for given in &shapes {
        let array = gpu.device.array_create(given)?;
        for level in given.all_levels() {
            let count = (given.level_bytes(level) / 4) as usize;
            gpu.set_host_words((0..count as u32).map(|word| word * 7 + level));
            copy(gpu, array, given, level, true)?;
            gpu.set_host_words(vec![0; count]);
            copy(gpu, array, given, level, false)?;
            let back = gpu.host_words(count);
            let same = back.iter().zip(0..).all(|(word, at)| *word == at * 7 + level);
            ensure!(same, "level {level} of {given:?} came back otherwise");
        }
        gpu.device.array_destroy(array)?;
    }
    Ok(format!("{} shapes", shapes.len()))
}

pub fn numbers(gpu: &Gpu) -> Outcome {
    let given = description([64, 32, 0], ARRAY_SURFACE, None);
    let array = gpu.device.array_create(&given)?;
    let at = ArrayLevel { array, level: None };
    let texture = |mode| {
        let sampler = Sampler { address_modes: [mode; 3], ..Sampler::default() };
        View::Texture(Texture { resource: TextureResource::Array(at), sampler, view: None })
    };
    let make = |view: &View<Array>| gpu.device.view_create(view);
    let mut first: Vec<u64> = (0..6).map(|n| make(&texture(n % 3))).collect::<Result<_, _>>()?;
    let told = format!("{first:x?}");
    for at in [1, 3] {
        gpu.device.view_destroy(ViewKind::Texture, first[at])?;
    }
    let again = [make(&texture(1))?, make(&texture(1))?];
    (first[1], first[3]) = (again[0], again[1]);
    let surfaces = [make(&View::Surface(at))?, make(&View::Surface(at))?];
    let mut all = first.clone();
    all.sort_unstable();
    all.dedup();
    ensure!(all.len() == first.len(), "two textures have one number: {first:x?}");
    for number in first {
        gpu.device.view_destroy(ViewKind::Texture, number)?;
    }
    for number in surfaces {
        gpu.device.view_destroy(ViewKind::Surface, number)?;
    }
    let fresh: Vec<u64> = (0..6).map(|n| make(&texture(n % 3))).collect::<Result<_, _>>()?;
    let fresh_told = format!("{fresh:x?}");
    for number in fresh {
        gpu.device.view_destroy(ViewKind::Texture, number)?;
    }
    gpu.device.array_destroy(array)?;
    Ok(format!(
        "textures {told}; in place of the second and fourth {again:x?}; surfaces {surfaces:x?}; all made anew {fresh_told}"
    ))
}
