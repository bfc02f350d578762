//! Modules, libraries, functions, variables, the linker, occupancy, tensor maps.

use rekindle_device::{Code, LaunchAttributes, LinkInput, ModuleKind, TensorMapArguments, TensorMapWindow};

use crate::gpu::{Failure, Gpu, Outcome, ensure, shape};
use crate::kernels;

const LOG_VERBOSE: (i32, u64) = (12, 1);
const INPUT_PTX: u32 = 1;

pub fn functions(gpu: &Gpu) -> Outcome {
    let mut names = gpu.device.function_names(gpu.module)?;
    names.sort();
    ensure!(names == ["add", "bump", "empty", "store"], "the module's functions are {names:?}");
    let add = gpu.function("add")?;
    let info = gpu.device.function_info(add)?;
    let places: Vec<_> = info.parameters.iter().map(|p| (p.offset, p.size)).collect();
    ensure!(places == [(0, 8), (8, 8), (16, 8), (24, 4)], "add's parameters are {places:?}");
    ensure!(gpu.device.function_info(gpu.function("empty")?)?.parameters.is_empty(), "empty has parameters");
    gpu.device.set_function_attribute(add, 8, 4096)?;
    ensure!(
        gpu.device.function_info(add)?.attributes[8] == 4096,
        "the dynamic shared memory limit was not kept"
    );
    gpu.device.set_function_cache(add, 1)?;
    let Err(missing) = gpu.device.function(gpu.module, "none") else {
        return Err(Failure("a function that is not there was found".into()));
    };
    Ok(format!("{} registers; a missing one: {missing}", info.attributes[4]))
}

pub fn logs(gpu: &Gpu) -> Outcome {
    let loaded = gpu.device.module_load(Code::new(kernels::MAIN), ModuleKind::Module, &[LOG_VERBOSE])?;
    gpu.device.module_unload(loaded.module)?;
    let Err(error) = gpu.device.module_load(Code::new(kernels::BROKEN), ModuleKind::Module, &[]) else {
        return Err(Failure("broken PTX was loaded".into()));
    };
    ensure!(error.log.contains("nonsense"), "the compiler's words are missing: {error}");
    let lines = loaded.log.lines().count();
    Ok(format!("{lines} lines of information; an error: {}", error.log.lines().next().unwrap_or_default()))
}

pub fn library(gpu: &Gpu) -> Outcome {
    let library = gpu.device.module_load(Code::new(kernels::MAIN), ModuleKind::Library, &[])?.module;
    ensure!(gpu.device.globals(library)?.is_empty(), "an unused library was asked for its variables");
    ensure!(gpu.device.function_names(library)?.len() == 4, "not all kernels are named");
    let store = gpu.device.function(library, "store")?;
    let parameters = [(gpu.host as u64).to_le_bytes().as_slice(), &6u32.to_le_bytes()].concat();
    gpu.device.launch(store, &shape(1, 1), gpu.stream, &parameters)?;
    gpu.device.stream_synchronize(gpu.stream)?;
    ensure!(gpu.host_words(1)[0] == 6, "its kernel did not store");
    let globals = gpu.device.globals(library)?;
    ensure!(globals.len() == 2, "its variables are {globals:?}");
    gpu.device.module_unload(library)?;
    Ok("loaded, ran, unloaded".into())
}

pub fn globals(gpu: &Gpu) -> Outcome {
    let globals = gpu.device.globals(gpu.module)?;
    let rows: Vec<_> = globals.iter().map(|g| (g.name.as_str(), g.bytes, g.constant)).collect();
    ensure!(rows == [("counter", 4, false), ("table", 16, true)], "the variables are {rows:?}");
    let (table, _) = gpu.device.global(gpu.module, "table")?;
    ensure!(table == globals[1].address, "one variable at two addresses");
    gpu.set_host_words([100]);
    gpu.device.copy(table, gpu.host as u64, 4, gpu.stream)?;
    gpu.device.stream_synchronize(gpu.stream)?;
    let bump = gpu.function("bump")?;
    for expected in [105, 106] {
        gpu.device.launch(bump, &shape(1, 1), gpu.stream, &(gpu.host as u64).to_le_bytes())?;
        gpu.device.stream_synchronize(gpu.stream)?;
        let seen = gpu.host_words(1)[0];
        ensure!(seen == expected, "bump gave {seen} instead of {expected}");
    }
    ensure!(gpu.words(globals[0].address, 1)? == [7], "the counter can't be read back");
    Ok(format!("counter at {:#x}, table at {:#x}", globals[0].address, table))
}

pub fn link(gpu: &Gpu) -> Outcome {
    let input = |name, text: &'static str| LinkInput { kind: INPUT_PTX, name, bytes: text.as_bytes() };
    let inputs = [input("caller", kernels::LINK_CALLER), input("callee", kernels::LINK_CALLEE)];
    let (cubin, _) = gpu.device.link(&inputs, &[])?;
    let bytes = cubin.len();
    let module = gpu.device.module_load(Code::new(cubin), ModuleKind::Module, &[])?.module;
    let caller = gpu.device.function(module, "caller")?;
    let parameters = [(gpu.host as u64).to_le_bytes().as_slice(), &21u32.to_le_bytes()].concat();
    gpu.device.launch(caller, &shape(1, 1), gpu.stream, &parameters)?;
    gpu.device.stream_synchronize(gpu.stream)?;
    ensure!(gpu.host_words(1)[0] == 42, "twice 21 is {}", gpu.host_words(1)[0]);
    gpu.device.module_unload(module)?;
    let Err(error) = gpu.device.link(&inputs[..1], &[]) else {
        return Err(Failure("a missing function was linked".into()));
    };
    ensure!(error.log.contains("twice"), "the linker's words are missing: {error}");
    Ok(format!("{bytes} bytes; without one input: {}", error.log.lines().next().unwrap_or_default()))
}

pub fn occupancy(gpu: &Gpu) -> Outcome {
    let add = gpu.function("add")?;
    let blocks = gpu.device.occupancy_blocks(add, 256, 0, 0)?;
    let shared = gpu.device.occupancy_shared(add, 2, 256)?;
    ensure!(blocks >= 1 && shared > 0, "{blocks} blocks, {shared} bytes of shared memory");
    Ok(format!("{blocks} blocks of 256 threads; {shared} bytes for 2 blocks"))
}

pub fn launch_shapes(gpu: &Gpu) -> Outcome {
    let cooperative = rekindle_device::Launch { cooperative: true, ..shape(2, 32) };
    gpu.device.launch(gpu.function("empty")?, &cooperative, gpu.stream, &[])?;
    gpu.device.stream_synchronize(gpu.stream)?;
    if gpu.device.info().compute_capability.0 < 9 {
        return Ok("cooperative; this GPU has no clusters".into());
    }
    let module = gpu.device.module_load(Code::new(kernels::CLUSTER), ModuleKind::Module, &[])?.module;
    let cluster = gpu.device.function(module, "cluster")?;
    let mut size = [0u8; 64];
    for (place, value) in size.chunks_exact_mut(4).zip([2u32, 1, 1]) {
        place.copy_from_slice(&value.to_le_bytes());
    }
    let mut launch = shape(4, 32);
    let greatest = gpu.device.occupancy_cluster_size(&launch, cluster)?;
    launch.attributes = LaunchAttributes(vec![(4, size.to_vec())]);
    let active = gpu.device.occupancy_clusters(&launch, cluster)?;
    gpu.device.launch(cluster, &launch, gpu.stream, &(gpu.host as u64).to_le_bytes())?;
    gpu.device.stream_synchronize(gpu.stream)?;
    ensure!(gpu.host_words(1)[0] == 2, "a cluster has {} blocks instead of 2", gpu.host_words(1)[0]);
    gpu.device.module_unload(module)?;
    Ok(format!("cooperative, clusters of 2 ({active} at once, up to {greatest} blocks)"))
}

pub fn tensor_maps(gpu: &Gpu) -> Outcome {
    let buffer = gpu.buffer(2 << 20)?;
    let mut arguments = TensorMapArguments {
        data_type: 7,
        rank: 2,
        address: buffer.address,
        dimensions: [256, 64, 0, 0, 0],
        strides: [1024, 0, 0, 0],
        element_strides: [1; 5],
        interleave: 0,
        swizzle: 0,
        l2_promotion: 0,
        out_of_bounds_fill: 0,
        window: TensorMapWindow::Tiled { sides: [32, 8, 0, 0, 0] },
    };
    if gpu.device.info().compute_capability.0 < 9 {
        return Ok("this GPU has none".into());
    }
    let map = gpu.device.tensor_map(arguments.kind(), &arguments.to_bytes())?;
    ensure!(map.iter().any(|byte| *byte != 0), "the map is empty");
    arguments.rank = 4;
    arguments.dimensions = [64, 16, 16, 2, 0];
    arguments.strides = [256, 4096, 65536, 0];
    arguments.window =
        TensorMapWindow::Im2col { lower: [-1, -1, 0], upper: [-1, -1, 0], channels: 32, pixels: 64 };
    let im2col = gpu.device.tensor_map(arguments.kind(), &arguments.to_bytes())?;
    ensure!(im2col != map, "both kinds give one map");
    gpu.free(buffer)?;
    Ok("tiled and im2col".into())
}
