use std::time::{Duration, Instant};

use rekindle_cuda::*;
use rekindle_device::{Access, Launch, Stream};

use crate::support::{
    MIB, PTX, Pinned, addresses, buffer, download, function, load, machine, parameters, shape, upload,
};

#[test]
fn vectors_add_up() {
    let machine = machine("threads=2");
    let gpu = &machine.gpu;
    let ptx = r#"
.version 8.0
.target sm_90
.address_size 64
.visible .entry add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .f32 %f<4>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<11>;
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    ld.param.u64 %rd3, [c];
    ld.param.u32 %r2, [n];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r1, %r3, %r4, %r5;
    setp.ge.s32 %p1, %r1, %r2;
    @%p1 bra $done;
    mul.wide.s32 %rd5, %r1, 4;
    add.s64 %rd6, %rd1, %rd5;
    add.s64 %rd7, %rd2, %rd5;
    add.s64 %rd8, %rd3, %rd5;
    ld.global.f32 %f1, [%rd6];
    ld.global.f32 %f2, [%rd7];
    add.f32 %f3, %f1, %f2;
    st.global.f32 [%rd8], %f3;
$done:
    ret;
}
"#;
    let add = function(gpu, ptx, "add");
    let n = 10_007_u32;
    let bytes = u64::from(n) * 4;
    let [a, b, c] = [(); 3].map(|()| buffer(gpu.as_ref(), bytes));
    let input: Vec<f32> = (0..n).map(|i| i as f32 * 0.25).collect();
    let words: Vec<u32> = input.iter().map(|value| value.to_bits()).collect();
    upload(gpu, a.address, &words);
    upload(gpu, b.address, &words);
    let info = gpu.function_info(add).unwrap();
    assert_eq!(info.parameter_bytes(), 28);
    let mut arguments = parameters(&[a.address, b.address, c.address]);
    arguments.extend(n.to_le_bytes());
    gpu.launch(add, &shape(n.div_ceil(256), 256), Stream::LEGACY, &arguments).unwrap();
    let sum = download(gpu, c.address, n as usize);
    assert!(sum.iter().zip(&input).all(|(sum, value)| f32::from_bits(*sum) == value * 2.0));
}

#[test]
fn kernels_of_two_streams_run_at_a_time() {
    let machine = machine("threads=2");
    let gpu = &machine.gpu;
    let (spin, store) = (function(gpu, PTX, "spin"), function(gpu, PTX, "store"));
    let device = buffer(gpu.as_ref(), 2 * MIB);
    let (a, b) = (gpu.stream_create(1, 0).unwrap(), gpu.stream_create(1, 0).unwrap());
    gpu.launch(spin, &shape(1, 1), a, &parameters(&[device.address])).unwrap();
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(gpu.stream_query(a), Ok(false));
    gpu.launch(store, &shape(1, 1), b, &parameters(&[device.address, 1])).unwrap();
    gpu.synchronize().unwrap();
    assert_eq!(download(gpu, device.address, 1), [7]);
}

#[test]
fn kernels_use_registered_host_memory() {
    let machine = machine("");
    let gpu = &machine.gpu;
    let increment = function(gpu, PTX, "increment");
    let host = Pinned::new(gpu, 0..64);
    gpu.launch(increment, &shape(2, 32), Stream::LEGACY, &parameters(&[host.address()])).unwrap();
    gpu.synchronize().unwrap();
    assert_eq!(host.read(), (1..65).collect::<Vec<u32>>());
}

#[test]
fn a_write_to_read_only_memory_is_a_sticky_fault() {
    let machine = machine("");
    let gpu = &machine.gpu;
    let increment = function(gpu, PTX, "increment");
    let (first, second) = (buffer(gpu.as_ref(), 2 * MIB), buffer(gpu.as_ref(), 2 * MIB));
    let exported = gpu.memory_export(first.memory).unwrap();
    upload(gpu, first.address, &[41]);
    gpu.launch(increment, &shape(1, 1), Stream::LEGACY, &parameters(&[first.address])).unwrap();
    gpu.synchronize().unwrap();
    gpu.protect(second.address, second.bytes, Access::Read).unwrap();
    gpu.launch(increment, &shape(1, 1), Stream::LEGACY, &parameters(&[second.address + 256])).unwrap();
    assert_eq!(gpu.synchronize(), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
    let again = gpu.launch(increment, &shape(1, 1), Stream::LEGACY, &parameters(&[first.address]));
    assert_eq!(again, Err(CUDA_ERROR_ILLEGAL_ADDRESS));
    assert_eq!(gpu.stream_create(0, 0), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
    let fault = gpu.fault().unwrap();
    assert!(
        fault.contains("increment") && fault.contains(&format!("{:#x}", second.address + 256)),
        "{fault}"
    );
    drop(machine);

    let next = crate::support::machine("");
    let at = addresses(2 * MIB);
    let memory = next.gpu.memory_import(std::os::fd::AsFd::as_fd(&exported), 2 * MIB).unwrap();
    next.gpu.reserve(at, 2 * MIB).unwrap();
    next.gpu.map(at, 2 * MIB, memory).unwrap();
    next.gpu.protect(at, 2 * MIB, Access::ReadWrite).unwrap();
    assert_eq!(download(&next.gpu, at, 1), [42], "contents outlive the fault");
}

#[test]
fn unmapped_memory_faults_and_releases_who_waits() {
    let machine = machine("");
    let gpu = &machine.gpu;
    let (increment, spin) = (function(gpu, PTX, "increment"), function(gpu, PTX, "spin"));
    let device = buffer(gpu.as_ref(), 2 * MIB);
    let hole = addresses(2 * MIB);
    gpu.reserve(hole, 2 * MIB).unwrap();
    let (a, b) = (gpu.stream_create(1, 0).unwrap(), gpu.stream_create(1, 0).unwrap());
    gpu.launch(spin, &shape(1, 1), a, &parameters(&[device.address])).unwrap();
    let waiter = std::thread::spawn({
        let gpu = std::sync::Arc::clone(gpu);
        move || gpu.stream_synchronize(a)
    });
    std::thread::sleep(Duration::from_millis(10));
    gpu.launch(increment, &shape(1, 64), b, &parameters(&[hole])).unwrap();
    assert_eq!(gpu.stream_synchronize(b), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
    assert_eq!(waiter.join().unwrap(), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
}

#[test]
fn launches_beyond_the_limits_have_their_codes() {
    let machine = machine("sms=2");
    let gpu = &machine.gpu;
    let store = function(gpu, PTX, "store");
    let device = buffer(gpu.as_ref(), 2 * MIB);
    let arguments = parameters(&[device.address, 1]);
    let launch = |launch: Launch| gpu.launch(store, &launch, Stream::LEGACY, &arguments);
    for wrong in [
        shape(0, 1),
        shape(1, 0),
        shape(1, 1025),
        Launch { block: [1, 1, 65], ..shape(1, 1) },
        Launch { grid: [1, 65536, 1], ..shape(1, 1) },
        Launch { shared: 49 << 10, ..shape(1, 1) },
    ] {
        assert_eq!(launch(wrong.clone()), Err(CUDA_ERROR_INVALID_VALUE), "{wrong:?}");
    }
    let short = gpu.launch(store, &shape(1, 1), Stream::LEGACY, &arguments[..8]);
    assert_eq!(short, Err(CUDA_ERROR_INVALID_VALUE));
    let cooperative = |blocks| Launch { cooperative: true, ..shape(blocks, 1024) };
    assert_eq!(launch(cooperative(5)), Err(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE));
    launch(cooperative(4)).unwrap();
    gpu.set_function_attribute(store, 8, 100 << 10).unwrap();
    launch(Launch { shared: 100 << 10, ..shape(1, 1) }).unwrap();
    assert_eq!(gpu.set_function_attribute(store, 8, 228 << 10), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(gpu.occupancy_blocks(store, 1024, 0, 0), Ok(2));
    assert_eq!(gpu.occupancy_blocks(store, 32, 100 << 10, 0), Ok(2));
    gpu.synchronize().unwrap();
    assert_eq!(download(gpu, device.address, 1), [1]);
}

#[test]
fn dropping_the_machine_ends_a_running_kernel() {
    let machine = machine("");
    let gpu = &machine.gpu;
    let device = buffer(gpu.as_ref(), 2 * MIB);
    let spin = function(gpu, PTX, "spin");
    gpu.launch(spin, &shape(1, 1), Stream::LEGACY, &parameters(&[device.address])).unwrap();
    let start = Instant::now();
    drop(machine);
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn what_kernels_print_comes_out_whole() {
    let machine = machine("");
    let gpu = &machine.gpu;
    let ptx = r#"
.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 status) vprintf(.param .b64 format, .param .b64 arguments);
.global .align 1 .b8 format[9] = {110, 32, 61, 32, 37, 100, 33, 10, 0};
.visible .entry print(.param .u32 n)
{
    .local .align 8 .b8 frame[8];
    .reg .b32 %r<3>;
    .reg .b64 %rd<5>;
    ld.param.u32 %r1, [n];
    mov.u64 %rd1, frame;
    cvta.local.u64 %rd2, %rd1;
    st.local.u32 [frame], %r1;
    mov.u64 %rd3, format;
    cvta.global.u64 %rd4, %rd3;
    {
        .param .b64 a;
        .param .b64 b;
        .param .b32 result;
        st.param.b64 [a], %rd4;
        st.param.b64 [b], %rd2;
        call.uni (result), vprintf, (a, b);
        ld.param.b32 %r2, [result];
    }
    ret;
}
"#;
    let print = function(gpu, ptx, "print");
    for n in 0..5_u32 {
        gpu.launch(print, &shape(1, 1), Stream::LEGACY, &n.to_le_bytes()).unwrap();
    }
    gpu.synchronize().unwrap();
    assert_eq!(machine.printed.text(), "n = 0!\nn = 1!\nn = 2!\nn = 3!\nn = 4!\n");
}

const ODDITIES: &str = r#"
.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b64 block) malloc(.param .b64 bytes);
.extern .func free(.param .b64 block);
.visible .entry trap_at(.param .u32 block)
{
    .reg .pred %p<2>;
    .reg .b32 %r<3>;
    ld.param.u32 %r1, [block];
    mov.u32 %r2, %ctaid.x;
    setp.eq.u32 %p1, %r1, %r2;
    @%p1 trap;
    ret;
}
.visible .entry misaligned(.param .u64 p)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [p];
    ld.global.u32 %r1, [%rd1+2];
    st.global.u32 [%rd1], %r1;
    ret;
}
.visible .entry count(.param .u64 p)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [p];
    atom.global.add.u32 %r1, [%rd1], 1;
    ret;
}
.visible .entry heap(.param .u64 p, .param .u64 bytes)
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [p];
    ld.param.u64 %rd2, [bytes];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.u64 %rd4, %rd1, %rd3;
    {
        .param .b64 bytes_;
        .param .b64 block;
        st.param.b64 [bytes_], %rd2;
        call.uni (block), malloc, (bytes_);
        ld.param.b64 %rd5, [block];
    }
    setp.eq.u64 %p1, %rd5, 0;
    mov.u32 %r2, 0;
    @%p1 bra $done;
    st.u32 [%rd5], %r1;
    ld.u32 %r2, [%rd5];
    add.u32 %r2, %r2, 1;
    {
        .param .b64 block;
        st.param.b64 [block], %rd5;
        call.uni free, (block);
    }
$done:
    st.global.u32 [%rd4], %r2;
    ret;
}
"#;

#[test]
fn faults_have_their_codes() {
    let cases =
        [("trap_at", 40_u64, CUDA_ERROR_LAUNCH_FAILED), ("misaligned", 0, CUDA_ERROR_MISALIGNED_ADDRESS)];
    for (name, argument, code) in cases {
        let machine = machine("threads=3");
        let gpu = &machine.gpu;
        let kernel = function(gpu, ODDITIES, name);
        let device = buffer(gpu.as_ref(), 2 * MIB);
        let bytes = gpu.function_info(kernel).unwrap().parameter_bytes();
        let argument = if name == "misaligned" { device.address } else { argument };
        gpu.launch(kernel, &shape(64, 96), Stream::LEGACY, &parameters(&[argument])[..bytes]).unwrap();
        assert_eq!(gpu.synchronize(), Err(code), "{name}");
        assert!(gpu.fault().unwrap().contains(name));
    }
}

#[test]
fn streams_launch_side_by_side_without_losing_any() {
    let machine = machine("threads=3");
    let gpu = &machine.gpu;
    let count = function(gpu, ODDITIES, "count");
    let device = buffer(gpu.as_ref(), 2 * MIB);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let stream = gpu.stream_create(1, 0).unwrap();
                for blocks in 1..20 {
                    gpu.launch(count, &shape(blocks, 48), stream, &parameters(&[device.address])).unwrap();
                }
                gpu.stream_synchronize(stream).unwrap();
                gpu.stream_destroy(stream).unwrap();
            });
        }
    });
    assert_eq!(download(gpu, device.address, 1), [6 * 190 * 48]);
}

#[test]
fn kernels_take_memory_from_the_heap() {
    let machine = machine("");
    let gpu = &machine.gpu;
    gpu.set_limit(2, 1 << 20).unwrap();
    let heap = function(gpu, ODDITIES, "heap");
    let device = buffer(gpu.as_ref(), 2 * MIB);
    for (bytes, fits) in [(64, true), (2 << 20, false), (2048, true)] {
        gpu.launch(heap, &shape(1, 64), Stream::LEGACY, &parameters(&[device.address, bytes])).unwrap();
        let expected: Vec<u32> = (0..64).map(|i| if fits { i + 1 } else { 0 }).collect();
        assert_eq!(download(gpu, device.address, 64), expected, "{bytes} bytes each");
    }
}

#[test]
fn an_unloaded_module_stays_for_the_work_that_uses_it() {
    let machine = machine("");
    let gpu = &machine.gpu;
    let module = load(gpu, PTX);
    let (spin, increment) =
        (gpu.function(module, "spin").unwrap(), gpu.function(module, "increment").unwrap());
    let device = buffer(gpu.as_ref(), 2 * MIB);
    let (a, b) = (gpu.stream_create(1, 0).unwrap(), gpu.stream_create(1, 0).unwrap());
    gpu.launch(spin, &shape(1, 1), a, &parameters(&[device.address])).unwrap();
    gpu.launch(increment, &shape(1, 1), a, &parameters(&[device.address])).unwrap();
    gpu.module_unload(module).unwrap();
    let gone = gpu.launch(increment, &shape(1, 1), b, &parameters(&[device.address]));
    assert_eq!(gone, Err(CUDA_ERROR_INVALID_HANDLE));
    gpu.write_value(b, device.address, 1, 4, 0).unwrap();
    gpu.synchronize().unwrap();
    assert_eq!(download(gpu, device.address, 1), [8]);
}
