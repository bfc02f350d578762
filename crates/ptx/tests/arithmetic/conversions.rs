//! From one type to another, and comparisons.

use half::{bf16, f16};

use crate::trial::*;

#[test]
fn conversions() {
    let float = |bits: u64| f32::from_bits(bits as u32);
    exact("cvt.rzi.s32.f32 d, a;", B32, &[F32], |a, _, _| float(a) as i32 as u64);
    exact("cvt.rni.u32.f32 d, a;", B32, &[F32], |a, _, _| (float(a).round_ties_even() as u32).into());
    exact("cvt.rmi.s64.f32 d, a;", B64, &[F32], |a, _, _| match float(a) {
        a if a.is_nan() => 1 << 63,
        a => a.floor() as i64 as u64,
    });
    exact("cvt.rpi.u16.f64 d, a;", B16, &[F64], |a, _, _| (f64::from_bits(a).ceil() as u16).into());
    exact("cvt.rn.f32.s64 d, a;", F32, &[B64], |a, _, _| (a as i64 as f32).to_bits().into());
    exact("cvt.rz.f32.u32 d, a;", F32, &[B32], |a, _, _| {
        let keep = 32u32.saturating_sub((a as u32).leading_zeros() + 24);
        ((a as u32 >> keep << keep) as f32).to_bits().into()
    });
    exact("cvt.rn.f64.s32 d, a;", F64, &[B32], |a, _, _| f64::from(a as i32).to_bits());
    exact("cvt.sat.u8.s32 d, a;", B32, &[B32], |a, _, _| (a as i32).clamp(0, 255) as u64);
    exact("cvt.s8.s32 d, a;", B32, &[B32], |a, _, _| a as i8 as i32 as u64);
    exact("cvt.s64.s16 d, a;", B64, &[B16], |a, _, _| a as i16 as u64);
    exact("cvt.u32.u16 d, a;", B32, &[B16], |a, _, _| a);
    exact("cvt.sat.s16.u64 d, a;", B16, &[B64], |a, _, _| a.min(0x7fff));
    exact32("cvt.rni.f32.f32 d, a;", &[F32], |a, _, _| a.round_ties_even());
    exact32("cvt.sat.f32.f32 d, a;", &[F32], |a, _, _| if a > 0.0 { a.min(1.0) } else { 0.0 });
    run("cvt.rn.f32.f64 d, a;", F32, &[F64], |[a, ..], d| {
        let (expected, result) = (f64::from_bits(a) as f32, f32::from_bits(d as u32));
        let same = expected.to_bits() == result.to_bits() || expected.is_nan() && result.is_nan();
        if same { Ok(()) } else { Err(format!("expected {expected:e}")) }
    });
    run("cvt.rn.f16.f32 d, a;", B16, &[F32], |[a, ..], d| check_half(d, f64::from(float(a))));
    run("cvt.rn.f16x2.f32 d, a, b;", B32, &[F32, F32], |[a, b, _], d| {
        check_half(d >> 16, f64::from(float(a))).and(check_half(d & 0xffff, f64::from(float(b))))
    });
    run("cvt.rn.bf16.f32 d, a;", B16, &[F32], |[a, ..], d| {
        let (expected, result) = (bf16::from_f32(float(a)), bf16::from_bits(d as u16));
        let same = expected == result || expected.is_nan() && result.is_nan();
        if same { Ok(()) } else { Err(format!("expected {expected}")) }
    });
    exact32("{ .reg .b16 t; cvt.rn.f16.f32 t, a; cvt.f32.f16 d, t; }", &[F32], |a, _, _| {
        f16::from_f32(a).to_f32()
    });
    exact("cvt.rna.tf32.f32 d, a;", B32, &[F32], |a, _, _| match float(a) {
        x if x.is_nan() => 0x7fff_e000,
        x if x.is_infinite() => a,
        _ => (a + 0x1000) & !0x1fff,
    });
}

#[test]
fn comparisons() {
    let predicate = "selp.u32 d, 1, 0, pq;";
    let both = "{ .reg .b32 x, y; selp.u32 x, 1, 0, pq; selp.u32 y, 2, 0, pr; or.b32 d, x, y; }";
    let float = |bits: u64| f32::from_bits(bits as u32);
    exact(&format!("setp.lt.s32 pq, a, b; {predicate}"), B32, &[B32, B32], |a, b, _| {
        ((a as i32) < b as i32).into()
    });
    exact(&format!("setp.hs.u64 pq, a, b; {predicate}"), B32, &[B64, B64], |a, b, _| (a >= b).into());
    exact(&format!("setp.ne.f32 pq, a, b; {predicate}"), B32, &[F32, F32], |a, b, _| {
        (float(a) < float(b) || float(a) > float(b)).into()
    });
    exact(&format!("setp.geu.f32 pq, a, b; {predicate}"), B32, &[F32, F32], |a, b, _| {
        (!(float(a) < float(b))).into()
    });
    exact(&format!("setp.nan.f64 pq, a, b; {predicate}"), B32, &[F64, F64], |a, b, _| {
        (f64::from_bits(a).is_nan() || f64::from_bits(b).is_nan()).into()
    });
    exact(
        &format!("setp.gt.u32 pr, c, 99; setp.eq.and.s32 pq|pr, a, b, !pr; {both}"),
        B32,
        &[B32, B32, B32],
        |a, b, c| {
            let (equal, c) = (a == b, c <= 99);
            u64::from(equal && c) | u64::from(!equal && c) << 1
        },
    );
    exact(&format!("setp.le.f16 pq, a, b; {predicate}"), B32, &[B16, B16], |a, b, _| {
        (f16::from_bits(a as u16) <= f16::from_bits(b as u16)).into()
    });
    exact(&format!("setp.gt.f16x2 pq|pr, a, b; {both}"), B32, &[B32, B32], |a, b, _| {
        let one = |shift: u32| f16::from_bits((a >> shift) as u16) > f16::from_bits((b >> shift) as u16);
        u64::from(one(0)) | u64::from(one(16)) << 1
    });
    exact(
        "set.lt.u32.s32 d, a, b;",
        B32,
        &[B32, B32],
        |a, b, _| if (a as i32) < b as i32 { 0xffff_ffff } else { 0 },
    );
    exact("set.ge.f32.u32 d, a, b;", F32, &[B32, B32], |a, b, _| if a >= b { 0x3f80_0000 } else { 0 });
    exact("slct.u32.s32 d, a, b, c;", B32, &[B32, B32, B32], |a, b, c| if c as i32 >= 0 { a } else { b });
    exact(&format!("testp.subnormal.f32 pq, a; {predicate}"), B32, &[F32], |a, _, _| {
        float(a).is_subnormal().into()
    });
}
