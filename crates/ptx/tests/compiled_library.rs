//! Library code as NVIDIA's compiler emits it: `data/library.cu`, compiled by NVRTC 13.0 for `sm_90`.

mod common;

use common::{Memory, Run, TestHost, place};
use rekindle_ptx::Module;

fn prepared(run: Run) -> (Module, Run, Memory) {
    let (module, globals) = (common::parse(include_str!("data/library.ptx")), Memory::new(1 << 20));
    let addresses = place(&module, &globals);
    (module, Run { globals: addresses, ..run }, globals)
}

unsafe extern "C" {
    fn erf(x: f64) -> f64;
    fn lgamma(x: f64) -> f64;
    fn remainder(x: f64, y: f64) -> f64;
    fn frexp(x: f64, exponent: *mut i32) -> f64;
}

fn expected(v: f64) -> [f64; 24] {
    let mut exponent = 0;
    // SAFETY: functions of the C library without requirements but the pointer to a live integer.
    let (erf, lgamma, remainder, fraction) =
        unsafe { (erf(v), lgamma(v + 20.0), remainder(v, 3.0), frexp(v, &mut exponent)) };
    [
        v.tan(),
        (v / 40.0).asin(),
        v.atan2(3.0),
        (v / 4.0).sinh(),
        erf,
        lgamma,
        v.cbrt(),
        v.abs().powf(2.3),
        v % 1.7,
        remainder,
        v.exp2(),
        (v.abs() + 1.0).log10(),
        v.hypot(2.0),
        v * 8.0,
        fraction + f64::from(exponent),
        v.round(),
        v.round_ties_even(),
        v.floor(),
        v.abs().ln_1p(),
        v.exp_m1(),
        (v * 1000.0).sin(),
        v,
        1.0 / (v.abs() + 1.0).sqrt(),
        v.round(),
    ]
}

fn values() -> Vec<f64> {
    (0..64).map(|i| f64::from(i - 32) * 0.40625 + 0.015625).collect()
}

#[test]
fn functions_in_single_precision() {
    let (module, run, _globals) = prepared(Run::shape(1, 64));
    let memory = Memory::new(1 << 16);
    memory.put(32768, &values().iter().map(|v| *v as f32).collect::<Vec<_>>());
    run.go(&module, "single", &[memory.start, memory.start + 32768]);
    for (v, out) in values().into_iter().zip(memory.get::<[f32; 32]>(0, 64)) {
        for (index, (truth, found)) in expected(v).into_iter().zip(out).enumerate() {
            // `fmod` and `sin` see the argument as it is in single precision; 21 goes through a half.
            let tolerance = match index {
                8 => 2e-6,
                20 => 1e-3,
                21 => v.abs() * 5e-4,
                _ => truth.abs() * 1e-6 + 1e-6,
            };
            assert!((truth - f64::from(found)).abs() <= tolerance, "{index} of {v}: {found} and {truth}");
        }
    }
}

#[test]
fn functions_in_double_precision() {
    let (module, run, _globals) = prepared(Run::shape(1, 64));
    let memory = Memory::new(1 << 16);
    memory.put(32768, &values());
    run.go(&module, "twice", &[memory.start, memory.start + 32768]);
    for (v, out) in values().into_iter().zip(memory.get::<[f64; 32]>(0, 64)) {
        for (index, (truth, found)) in expected(v).into_iter().zip(out).enumerate() {
            assert!(
                (truth - found).abs() <= truth.abs() * 2e-15 + 1e-15,
                "{index} of {v}: {found} and {truth}"
            );
        }
    }
}

#[test]
fn cooperative_groups() {
    let (module, run, _globals) = prepared(Run::shape(1, 64));
    let memory = Memory::new(1 << 16);
    let x: Vec<i32> = (0..64).map(|i| i * 37 % 61).collect();
    memory.put(32768, &x);
    run.go(&module, "groups", &[memory.start, memory.start + 32768]);
    for (i, out) in memory.get::<[i32; 8]>(0, 64).into_iter().enumerate() {
        let tile = &x[i / 8 * 8..i / 8 * 8 + 8];
        let warp = &x[i / 32 * 32..i / 32 * 32 + 32];
        assert_eq!(out[0], tile.iter().sum::<i32>(), "{i}");
        assert_eq!(out[1], tile[..=i % 8].iter().sum::<i32>(), "{i}");
        if i % 8 < 5 {
            assert_eq!(out[2], x[i + 3], "{i}");
        }
        if x[i] & 1 == 1 {
            let odd: Vec<i32> = warp.iter().copied().filter(|v| v & 1 == 1).collect();
            let before = warp[..i % 32].iter().filter(|v| *v & 1 == 1).count() as i32;
            assert_eq!(
                (out[3], out[4]),
                (odd.len() as i32 * 100 + before, *odd.iter().max().unwrap()),
                "{i}"
            );
        }
        assert_eq!(out[5], i32::from(tile.iter().any(|v| *v > 50)), "{i}");
        assert_eq!(out[6], tile.iter().filter(|v| *v % 3 == x[i] % 3).count() as i32, "{i}");
        assert_eq!(out[7], i as i32 / 8, "{i}");
    }
}

#[test]
fn barriers_of_the_whole_grid() {
    let (module, run, _globals) = prepared(Run { threads: 2, ..Run::shape(20, 64) });
    let memory = Memory::new(4096);
    let run = Run { workspace: memory.start + 1024, ..run };
    run.go(&module, "barrier_of_grid", &[memory.start, memory.start + 512]);
    assert_eq!(memory.get::<i32>(0, 3), [1280, 2560, 3840]);
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
        assert_eq!(out, [a.wrapping_mul(b), a / b, a >> 3, a - b], "{i}");
    }
}

/// Compilers call these for `grid.sync()` where they do not expand it.
#[test]
fn the_device_runtime_is_linked_in() {
    let module = common::kernel(
        1,
        ".extern .func (.param .b64 r) cudaCGGetIntrinsicHandle (.param .b32 a);
         .extern .func (.param .b32 r) cudaCGSynchronize (.param .b64 a, .param .b32 b);",
        "{ .param .b32 a; st.param.b32 [a], 1; .param .b64 h; call.uni (h), cudaCGGetIntrinsicHandle, (a); ld.param.b64 %d1, [h]; }
         atom.global.add.u32 %r1, [%p0], 1;
         { .param .b64 a; st.param.b64 [a], %d1; .param .b32 b; st.param.b32 [b], 0; .param .b32 r;
           call.uni (r), cudaCGSynchronize, (a, b); ld.param.b32 %r2, [r]; }
         ld.volatile.global.u32 %r3, [%p0]; mad.wide.u32 %d2, %gid, 4, %p0; st.global.u32 [%d2+4], %r3;",
    );
    assert!(module.unresolved().is_empty());
    let memory = Memory::new(8192);
    let workspace = memory.start + 6144;
    for blocks in [7, 30] {
        memory.put(0, &[0u32]);
        Run { threads: 2, workspace, ..Run::shape(blocks, 32) }.go(&module, "k", &[memory.start]);
        assert!(memory.get::<u32>(4, 32 * blocks as usize).iter().all(|count| *count == 32 * blocks));
    }
    let fault = Run::shape(1, 32).on(&TestHost::default(), &module, "k", &[memory.start]).unwrap_err();
    assert!(matches!(fault, rekindle_ptx::Fault::Trap { .. }), "{fault}");
}
