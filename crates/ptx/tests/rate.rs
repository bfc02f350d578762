//! How many PTX instructions a thread of the host runs in a second. Run it alone, optimised:
//! `cargo test --release -p rekindle-ptx --test rate -- --ignored --nocapture`

mod common;

use std::time::Instant;

use common::{Memory, Run, kernel};

const ROUNDS: u32 = 2000;

fn measure(name: &str, step: &str, instructions: u32) -> f64 {
    let unrolled = step.repeat(16);
    let module = kernel(
        1,
        ".shared .align 4 .b8 s[1024];",
        &format!(
            "mov.u32 %r6, s; shl.b32 %r5, %tid32, 2; add.u32 %r5, %r5, %r6; cvt.rn.f32.u32 %f1, %gid; mov.f32 %f2, 0f3F7FFFFF; mov.f32 %f3, 0f3F000000; mov.u32 %r1, 0;
             mov.u32 %r2, %gid; mov.u32 %r3, 12345; cvt.rn.f64.u32 %e1, %gid; mov.f64 %e2, 0d3FEFFFFFFFFFFFFF;
             mad.wide.u32 %d1, %gid, 4, %p0;
             LOOP: {unrolled} add.u32 %r1, %r1, 1; setp.lt.u32 %q1, %r1, {ROUNDS}; @%q1 bra LOOP;
             add.f32 %f1, %f1, %f3; st.global.f32 [%d1], %f1; st.global.u32 [%d1], %r2; st.global.f64 [%p0], %e1;"
        ),
    );
    let memory = Memory::new(1 << 16);
    let begun = Instant::now();
    Run::shape(4, 256).go(&module, "k", &[memory.start]);
    let count = f64::from((16 * instructions + 3) * ROUNDS) * 1024.0;
    let rate = count / begun.elapsed().as_secs_f64() / 1e6;
    println!("{name:24} {rate:8.0} million thread-instructions a second");
    rate
}

#[test]
#[ignore = "a measurement, meant for an optimised build"]
fn arithmetic_runs_at_a_hundred_million_instructions_a_second() {
    let fused = measure("fma.rn.f32", "fma.rn.f32 %f1, %f1, %f2, %f3;", 1);
    let integer = measure(
        "mad.lo / xor / shl",
        "mad.lo.u32 %r2, %r2, %r3, %r1; xor.b32 %r2, %r2, %r3; shl.b32 %r4, %r2, 3;",
        3,
    );
    let double = measure("mul.f64", "mul.f64 %e1, %e1, %e2;", 1);
    let compared = measure("setp / selp", "setp.gt.u32 %q2, %r2, %r3; selp.u32 %r2, %r1, %r2, %q2;", 2);
    let memory = measure("ld.global / st.global", "ld.global.u32 %r2, [%d1]; st.global.u32 [%d1], %r2;", 2);
    let shared = measure("ld.shared / st.shared", "ld.shared.u32 %r2, [%r5]; st.shared.u32 [%r5], %r2;", 2);
    let sine = measure("sin.approx", "sin.approx.f32 %f1, %f1;", 1);
    for rate in [fused, integer, double, compared, memory, shared] {
        assert!(rate >= 100.0, "{rate} million a second");
    }
    assert!(sine > 10.0, "{sine}");
}

#[test]
#[ignore = "a measurement, meant for an optimised build"]
fn launches_and_blocks_cost_little() {
    let module =
        kernel(1, "", "mad.wide.u32 %d1, %gid, 4, %p0; ld.global.f32 %f1, [%d1]; st.global.f32 [%d1], %f1;");
    let memory = Memory::new(4 << 20);
    let per = |count: u32, begun: Instant| begun.elapsed().as_secs_f64() * 1e6 / f64::from(count);
    let begun = Instant::now();
    (0..10_000).for_each(|_| Run::shape(1, 32).go(&module, "k", &[memory.start]));
    let launch = per(10_000, begun);
    let begun = Instant::now();
    Run::shape(32_768, 32).go(&module, "k", &[memory.start]);
    let small = per(32_768, begun);
    let begun = Instant::now();
    Run::shape(1024, 1024).go(&module, "k", &[memory.start]);
    let large = per(1024, begun);
    println!("a launch {launch:.2} us; a block of 32 threads {small:.2} us, of 1024 {large:.2} us");
    assert!(launch < 50.0 && small < 20.0 && large < 200.0);
}
