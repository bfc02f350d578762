//! Numbers of single, double and half precision.

use half::{bf16, f16};

use crate::trial::*;

fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

/// `wide` is the exact value, or close enough that its direction from the `f32` is right.
fn toward(direction: f64, nearest: f32, wide: f64) -> f32 {
    let error = wide - f64::from(nearest);
    if nearest.is_nan() || error == 0.0 || !wide.is_finite() {
        nearest
    } else if direction > 0.0 && error > 0.0 {
        nearest.next_up()
    } else if direction < 0.0 && error < 0.0 {
        nearest.next_down()
    } else {
        nearest
    }
}

#[test]
fn single_precision() {
    exact32("add.f32 d, a, b;", &[F32, F32], |a, b, _| a + b);
    exact32("sub.ftz.f32 d, a, b;", &[F32, F32], |a, b, _| flushed(flushed(a) - flushed(b)));
    exact32("mul.rn.f32 d, a, b;", &[F32, F32], |a, b, _| a * b);
    exact32("fma.rn.f32 d, a, b, c;", &[F32, F32, F32], |a, b, c| a.mul_add(b, c));
    exact32("fma.rn.ftz.sat.f32 d, a, b, c;", &[F32, F32, F32], |a, b, c| {
        let value = flushed(a).mul_add(flushed(b), flushed(c));
        if value > 0.0 { flushed(value.min(1.0)) } else { 0.0 }
    });
    exact32("div.rn.f32 d, a, b;", &[F32, F32], |a, b, _| a / b);
    exact32("sqrt.rn.f32 d, a;", &[F32], |a, _, _| a.sqrt());
    exact32("mul.rp.f32 d, a, b;", &[F32, F32], |a, b, _| {
        let wide = f64::from(a) * f64::from(b);
        if wide.is_finite() && wide.abs() > f64::from(f32::MAX) {
            return if wide > 0.0 { f32::INFINITY } else { f32::MIN };
        }
        toward(1.0, wide as f32, wide)
    });
    exact32("fma.rm.f32 d, a, a, 0f3F800000;", &[F32], |a, _, _| {
        let wide = f64::from(a) * f64::from(a);
        if wide.is_finite() && wide > f64::from(f32::MAX) {
            return f32::MAX;
        }
        if wide < 1e-20 {
            return 1.0;
        }
        let sum = wide + 1.0;
        toward(-1.0, sum as f32, sum)
    });
    exact32("min.f32 d, a, b;", &[F32, F32], |a, b, _| match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if a == b => {
            if a.is_sign_negative() {
                a
            } else {
                b
            }
        }
        _ => {
            if a < b {
                a
            } else {
                b
            }
        }
    });
    exact32("max.NaN.f32 d, a, b;", &[F32, F32], |a, b, _| match a.is_nan() || b.is_nan() {
        true => f32::NAN,
        false if a == b => {
            if a.is_sign_negative() {
                b
            } else {
                a
            }
        }
        false => a.max(b),
    });
    exact("neg.f32 d, a;", F32, &[F32], |a, _, _| a ^ 0x8000_0000);
    exact("copysign.f32 d, a, b;", F32, &[F32, F32], |a, b, _| a & 0x8000_0000 | b & 0x7fff_ffff);
    exact("add.rn.f32 d, a, 0f7FC00000;", F32, &[F32], |_, _, _| 0x7fff_ffff);
}

#[test]
fn double_precision() {
    exact64("add.f64 d, a, b;", &[F64, F64], |a, b, _| a + b);
    exact64("mul.rn.f64 d, a, b;", &[F64, F64], |a, b, _| a * b);
    exact64("fma.rn.f64 d, a, b, c;", &[F64, F64, F64], |a, b, c| a.mul_add(b, c));
    exact64("div.rn.f64 d, a, b;", &[F64, F64], |a, b, _| a / b);
    exact64("sqrt.rn.f64 d, a;", &[F64], |a, _, _| a.sqrt());
    // The exact sum lies between the two directed ones, which are neighbours or equal.
    run(
        "{ .reg .f64 x, y; add.rm.f64 x, a, b; add.rp.f64 y, a, b; sub.f64 d, y, x; }",
        F64,
        &[F64, F64],
        |[a, b, _], gap| {
            let sum = f64::from_bits(a) + f64::from_bits(b);
            let gap = f64::from_bits(gap);
            let ulp = sum.abs().next_up() - sum.abs();
            if !sum.is_finite() || gap == 0.0 || gap <= ulp && gap > 0.0 {
                Ok(())
            } else {
                Err(format!("{gap:e}, {ulp:e}"))
            }
        },
    );
    exact64("fma.rz.f64 d, a, 0d3FF0000000000000, 0d0000000000000000;", &[F64], |a, _, _| {
        if a == 0.0 { 0.0 } else { a }
    });
}

#[test]
fn approximations_keep_their_bounds() {
    fn near(
        instruction: &str,
        relative: f64,
        absolute: f64,
        range: std::ops::Range<f32>,
        truth: impl Fn(f64) -> f64,
    ) {
        run(instruction, F32, &[F32], |[a, ..], result| {
            let (a, result) = (f32::from_bits(a as u32), f64::from(f32::from_bits(result as u32)));
            let truth = truth(f64::from(a));
            let bound = absolute.max(truth.abs() * relative) + f64::from(f32::from_bits(1));
            let fine =
                !range.contains(&a) || truth.abs() > f64::from(f32::MAX) || (result - truth).abs() <= bound;
            if fine { Ok(()) } else { Err(format!("{result:e} for {truth:e}")) }
        });
    }
    let ulps = 2f64.powi(-22);
    near("sin.approx.f32 d, a;", 0.0, 2f64.powi(-20), -3.2..3.2, f64::sin);
    near("cos.approx.f32 d, a;", 0.0, 2f64.powi(-20), -3.2..3.2, f64::cos);
    near("ex2.approx.f32 d, a;", ulps, 0.0, -126.0..128.0, f64::exp2);
    near("lg2.approx.f32 d, a;", ulps, 2f64.powi(-22), 1e-37..3e38, f64::log2);
    near("rcp.approx.f32 d, a;", ulps, 0.0, 1e-37..1e37, |a| 1.0 / a);
    near("rsqrt.approx.f32 d, a;", ulps, 0.0, 1e-37..1e37, |a| 1.0 / a.sqrt());
    near("tanh.approx.f32 d, a;", 2f64.powi(-11), 0.0, -50.0..50.0, f64::tanh);
    near("sqrt.approx.ftz.f32 d, a;", ulps, 0.0, 1e-37..1e37, f64::sqrt);
}

#[test]
fn half_precision() {
    let wide = |bits: u64| f16::from_bits(bits as u16).to_f64();
    let brain = |bits: u64| bf16::from_bits(bits as u16).to_f64();
    run("add.f16 d, a, b;", B16, &[B16, B16], |[a, b, _], d| check_half(d, wide(a) + wide(b)));
    run("mul.rn.f16 d, a, b;", B16, &[B16, B16], |[a, b, _], d| check_half(d, wide(a) * wide(b)));
    run("fma.rn.f16 d, a, b, c;", B16, &[B16, B16, B16], |[a, b, c], d| {
        check_half(d, wide(a).mul_add(wide(b), wide(c)))
    });
    for shift in [0, 16] {
        run("fma.rn.f16x2 d, a, b, c;", B32, &[B32, B32, B32], move |[a, b, c], d| {
            check_half(d >> shift & 0xffff, wide(a >> shift).mul_add(wide(b >> shift), wide(c >> shift)))
        });
    }
    run("fma.rn.bf16 d, a, b, c;", B16, &[B16, B16, B16], |[a, b, c], d| {
        let exact = brain(a).mul_add(brain(b), brain(c));
        let (result, expected) = (bf16::from_bits(d as u16), bf16::from_f64(exact));
        let fine = result == expected
            || result.is_nan() && expected.is_nan()
            || (result.to_f64() - exact).abs() < (expected.to_f64() - exact).abs();
        if fine { Ok(()) } else { Err(format!("expected {expected}, not {result}")) }
    });
    exact("neg.f16x2 d, a;", B32, &[B32], |a, _, _| a ^ 0x8000_8000);
}
