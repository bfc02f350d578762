//! Kernels as NVIDIA's compiler emits them: `data/compiled.cu`, compiled by NVRTC 13.0 for `compute_90`.

mod common;

use common::{Memory, Run, TestHost, place};
use rekindle_ptx::{Module, Space};

fn module() -> Module {
    common::parse(include_str!("data/compiled.ptx"))
}

fn prepared(run: Run) -> (Module, Run, Memory) {
    let (module, globals) = (module(), Memory::new(1 << 20));
    let addresses = place(&module, &globals);
    (module, Run { globals: addresses, ..run }, globals)
}

#[test]
fn kernels_and_variables_are_described() {
    let module = module();
    assert!(module.unresolved().is_empty(), "{:?}", module.unresolved());
    assert_eq!(module.target(), "sm_90");
    let calls = module.entries().iter().find(|entry| entry.name == "calls").unwrap();
    assert_eq!(
        calls.parameters.iter().map(|p| (p.offset, p.size)).collect::<Vec<_>>(),
        [(0, 8), (8, 8), (16, 4), (24, 40)]
    );
    let constant = module.globals().iter().find(|global| global.name == "ctab").unwrap();
    assert_eq!((constant.space, constant.size), (Space::Const, 32));
    let reduction = module.entries().iter().find(|entry| entry.name == "red").unwrap();
    assert_eq!(reduction.static_shared, 1024);
}

#[test]
fn indirect_calls_and_struct_parameters() {
    let (module, run, _globals) = prepared(Run::shape(2, 64));
    let memory = Memory::new(8192);
    let x: Vec<f32> = (0..128).map(|i| i as f32 * 0.25).collect();
    memory.put(4096, &x);
    let entry = module.entries().iter().position(|entry| entry.name == "calls").unwrap();
    let mut bytes = vec![0u8; 64];
    bytes[..8].copy_from_slice(&memory.start.to_le_bytes());
    bytes[8..16].copy_from_slice(&(memory.start + 4096).to_le_bytes());
    bytes[16..20].copy_from_slice(&100u32.to_le_bytes());
    for i in 0..5 {
        bytes[24 + 4 * i..28 + 4 * i].copy_from_slice(&(i as f32 * 10.0).to_le_bytes());
    }
    bytes[48..56].copy_from_slice(&0.5f64.to_le_bytes());
    bytes[56..58].copy_from_slice(&(-3i16).to_le_bytes());
    let grid = rekindle_ptx::Grid::new(
        rekindle_ptx::Launch {
            module: &module,
            entry,
            grid: run.grid,
            block: run.block,
            cluster: run.cluster,
            dynamic_shared: 0,
            parameters: &bytes,
            addresses: &run.globals,
            device: Default::default(),
        },
        &[rekindle_ptx::AddressRange { start: 0x6000_0000_0000, end: 0x7000_0000_0000 }],
    )
    .unwrap();
    grid.run(&TestHost::default(), 2).unwrap();
    let out = memory.get::<f32>(0, 128);
    for i in 0..100 {
        let called = if i % 2 == 0 { x[i] * 2.0 + 2.0 } else { x[i] * x[i] / (x[i] + 3.0) + x[i].sqrt() };
        let expected = called + (i % 5) as f32 * 10.0 + 0.5 - 3.0 + (i % 8 + 1) as f32;
        assert!((out[i] - expected).abs() <= expected.abs() * 1e-5, "{i}: {} and {expected}", out[i]);
    }
    assert_eq!(out[100], 0.0);
}

#[test]
fn recursion() {
    let (module, run, _globals) = prepared(Run::shape(1, 64));
    let memory = Memory::new(4096);
    run.go(&module, "recur", &[memory.start]);
    let mut numbers = vec![0u32, 1];
    (2..12).for_each(|i| numbers.push(numbers[i - 1] + numbers[i - 2]));
    let out = memory.get::<u32>(0, 64);
    (0..64).for_each(|i| assert_eq!(out[i], numbers[i % 12], "{i}"));
}

#[test]
fn shared_memory_reduction() {
    let (module, run, _globals) = prepared(Run { threads: 2, ..Run::shape(8, 256) });
    let memory = Memory::new(1 << 16);
    let x: Vec<f32> = (0..10_000).map(|i| (i % 17) as f32).collect();
    memory.put(4096, &x);
    run.go(&module, "red", &[memory.start, memory.start + 4096, 10_000]);
    assert_eq!(memory.get::<f32>(0, 1)[0], x.iter().sum::<f32>());
}

#[test]
fn shuffles_votes_and_global_counters() {
    let (module, run, globals) = prepared(Run::shape(1, 64));
    let memory = Memory::new(8192);
    let x: Vec<i32> = (0..64).map(|i| i % 9).collect();
    memory.put(4096, &x);
    run.go(&module, "warpred", &[memory.start, memory.start + 4096]);
    let out = memory.get::<i32>(0, 64);
    for warp in 0..2 {
        let part = &x[warp * 32..warp * 32 + 32];
        let sum: i32 = part.iter().sum();
        // After the exchange every lane holds the sum, which all 32 find to be above 3.
        assert!(out[warp * 32..warp * 32 + 32].iter().all(|v| *v == sum + 32 + 32 * sum), "{out:?}");
    }
    let counter = module.globals().iter().position(|global| global.name == "counter").unwrap();
    assert_eq!(
        globals.get::<i32>((run.globals[counter] - globals.start) as usize, 1)[0],
        x.iter().sum::<i32>()
    );
}

#[test]
fn formatted_output() {
    let (module, run, _globals) = prepared(Run::shape(1, 2));
    let host = TestHost::default();
    run.on(&host, &module, "hello", &[7]).unwrap();
    let text = String::from_utf8(host.printed.into_inner().unwrap()).unwrap();
    assert_eq!(text, "hi 7 str  0.00 7696581394432\nhi 8 str  1.50 7696581394432\n");
}

#[test]
fn spin_locks_within_and_across_warps_and_blocks() {
    let (module, run, _globals) = prepared(Run { threads: 2, ..Run::shape(3, 64) });
    let memory = Memory::new(4096);
    run.go(&module, "lock", &[memory.start, memory.start + 64]);
    assert_eq!(memory.get::<i32>(64, 1)[0], 192);
}

#[test]
fn double_precision() {
    let (module, run, _globals) = prepared(Run::shape(1, 32));
    let memory = Memory::new(8192);
    let x: Vec<f64> = (0..32).map(|i| f64::from(i) * 0.37).collect();
    memory.put(4096, &x);
    run.go(&module, "dbl", &[memory.start, memory.start + 4096]);
    let out = memory.get::<f64>(0, 32);
    for (x, out) in x.iter().zip(out) {
        let expected = x.mul_add(*x, x.floor()) * (x + 1.0).sqrt() / (x + 2.0) + x.min(x.round_ties_even())
            - (x * 3.0).trunc() * (x - 5.0).abs();
        assert!((out - expected).abs() <= expected.abs() * 1e-14 + 1e-15, "{x}: {out} and {expected}");
    }
}

#[test]
fn integer_functions_behind_a_switch() {
    let (module, run, _globals) = prepared(Run::shape(1, 32));
    let memory = Memory::new(8192);
    let x: Vec<i64> = (0..32i64).map(|i| (i - 16).wrapping_mul(0x1234_5678_9abc) & !7 | i & 7).collect();
    memory.put(4096, &x);
    let m = -77i32;
    run.go(&module, "ints", &[memory.start, memory.start + 4096, m as u32 as u64]);
    let out = memory.get::<i64>(0, 32);
    for (v, out) in x.iter().zip(out) {
        let expected = match v & 7 {
            0 => v / i64::from(m),
            1 => v % i64::from(m),
            2 => (i64::from(*v as i32) * i64::from(m)) >> 32,
            3 => ((i128::from(*v) * i128::from(m)) >> 64) as i64,
            4 => i64::from(v.leading_zeros()),
            5 => v.reverse_bits(),
            6 => i64::from(v.trailing_zeros() + 1),
            _ => {
                let bytes = [(*v as i32).to_le_bytes(), m.to_le_bytes()].concat();
                i64::from(u32::from_le_bytes([bytes[4], bytes[3], bytes[2], bytes[1]]))
            }
        };
        assert_eq!(out, expected, "{v:#x}");
    }
}

#[test]
fn dynamic_shared_memory_and_local_arrays() {
    let (module, run, _globals) = prepared(Run { dynamic_shared: 256, ..Run::shape(1, 64) });
    let memory = Memory::new(4096);
    run.go(&module, "dyn", &[memory.start]);
    let out = memory.get::<i32>(0, 64);
    for t in 0..64 {
        // The array is read in another order, which sums to the same.
        let first = 63 - t;
        let sum: i32 = (0..32).map(|i| ((i * 7 + first) & 31) * t).sum();
        assert_eq!(out[t as usize], first + sum, "{t}");
    }
}

#[test]
fn virtual_functions_and_the_heap() {
    let (module, run, _globals) = prepared(Run::shape(1, 64));
    let memory = Memory::new(1 << 16);
    let host = TestHost { heap: (memory.start + 4096).into(), ..TestHost::default() };
    run.on(&host, &module, "dynamic_dispatch", &[memory.start]).unwrap();
    let out = memory.get::<i32>(0, 64);
    (0..64).for_each(|i| assert_eq!(out[i as usize], if i % 3 == 0 { i * i } else { i }));
}

#[test]
fn integers_of_128_bits() {
    let (module, run, _globals) = prepared(Run::shape(1, 32));
    let memory = Memory::new(8192);
    let x: Vec<i128> = (0..64i128).map(|i| (i - 20) * 0x1234_5678_9abc_def0_1357_9bdf + i).collect();
    memory.put(4096, &x);
    run.go(&module, "wide", &[memory.start, memory.start + 4096]);
    for (i, out) in memory.get::<[i128; 4]>(0, 32).into_iter().enumerate() {
        let (a, b) = (x[2 * i], x[2 * i + 1]);
        assert_eq!(out, [a.wrapping_mul(b), -a, a >> 3, a - b], "{i}");
    }
}

fn numbers(count: u32) -> Vec<u32> {
    (0..count).map(|i| i.wrapping_mul(2_654_435_761) >> 3).collect()
}

#[test]
fn copies_in_the_background() {
    let (module, run, _globals) = prepared(Run::shape(1, 128));
    let memory = Memory::new(1 << 16);
    let input = numbers(512);
    memory.put(32768, &input);
    run.go(&module, "copies", &[memory.start, memory.start + 32768]);
    for (i, found) in memory.get::<u32>(0, 512).into_iter().enumerate() {
        assert_eq!(found, input[i / 128 * 128 + 127 - i % 128].wrapping_mul(2), "{i}");
    }
}

#[test]
fn phases_of_a_barrier_in_shared_memory() {
    let (module, run, _globals) = prepared(Run::shape(1, 128));
    let memory = Memory::new(1 << 16);
    let input = numbers(128);
    memory.put(32768, &input);
    run.go(&module, "phases", &[memory.start, memory.start + 32768]);
    for (i, found) in memory.get::<u32>(0, 512).into_iter().enumerate() {
        assert_eq!(found, input[(i + 37) % 128].wrapping_add(i as u32 / 128), "{i}");
    }
}
