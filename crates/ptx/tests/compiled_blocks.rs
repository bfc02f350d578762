//! Algorithms over blocks as NVIDIA's compiler emits them: `data/blocks.cu`, compiled by NVRTC 13.0 for `sm_90`.

mod common;

use common::{Memory, Run, place};
use rekindle_ptx::Module;

fn prepared(run: Run) -> (Module, Run, Memory) {
    let (module, globals) = (common::parse(include_str!("data/blocks.ptx")), Memory::new(1 << 20));
    let addresses = place(&module, &globals);
    (module, Run { globals: addresses, ..run }, globals)
}

/// Runs a kernel of one block of 128 on `input`; what it wrote.
fn on_block(kernel: &str, input: &[u32], count: usize) -> Vec<u32> {
    let (module, run, _globals) = prepared(Run::shape(1, 128));
    let memory = Memory::new(1 << 16);
    memory.put(32768, input);
    run.go(&module, kernel, &[memory.start, memory.start + 32768]);
    memory.get(0, count)
}

fn numbers(count: u32) -> Vec<u32> {
    (0..count).map(|i| i.wrapping_mul(2_654_435_761) >> 3).collect()
}

#[test]
fn reduction_and_scan() {
    let input = numbers(128);
    let out = on_block("br", &input, 129);
    let mut sum = 0u32;
    for (index, value) in input.iter().enumerate() {
        sum = sum.wrapping_add(*value);
        assert_eq!(out[1 + index], sum, "{index}");
    }
    assert_eq!(out[0], sum);
}

#[test]
fn radix_sort() {
    let mut input = numbers(512);
    let out = on_block("rs", &input, 512);
    input.sort_unstable();
    assert_eq!(out, input);
}

#[test]
fn barriers_with_asynchronous_copies() {
    let mut input = numbers(128);
    let out = on_block("bar", &input, 128);
    input.reverse();
    assert_eq!(out, input);
}

#[test]
fn pipelines() {
    let input = numbers(512);
    let out = on_block("pipe", &input, 512);
    assert_eq!(out, input.iter().map(|value| value.wrapping_mul(2)).collect::<Vec<_>>());
}

#[test]
fn atomics_of_the_standard_library() {
    let (module, run, _globals) = prepared(Run { threads: 2, ..Run::shape(4, 64) });
    let memory = Memory::new(4096);
    run.go(&module, "atm", &[memory.start, memory.start + 64, memory.start + 128]);
    assert_eq!(memory.get::<f32>(128, 1), [256.0]);
    assert!(memory.get::<i32>(0, 1)[0] >= 256);
}

#[test]
fn matrices() {
    let (module, run, _globals) = prepared(Run::shape(1, 32));
    let memory = Memory::new(8192);
    let number = |i: usize| (i * 7 % 13) as f32 - 6.0;
    memory.put(4096, &(0..256).map(|i| half::f16::from_f32(number(i)).to_bits()).collect::<Vec<_>>());
    run.go(&module, "wm", &[memory.start, memory.start + 4096]);
    for (index, found) in memory.get::<f32>(0, 256).into_iter().enumerate() {
        let (row, column) = (index / 16, index % 16);
        let sum: f32 = (0..16).map(|k| number(row * 16 + k) * number(column * 16 + k)).sum();
        assert_eq!(found, 2.0 * sum, "{row}, {column}");
    }
}
