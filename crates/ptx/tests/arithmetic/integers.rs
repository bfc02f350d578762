//! Whole numbers, bits and carries.

use crate::trial::*;

#[test]
fn integer_sums_and_products() {
    exact("add.u16 d, a, b;", B16, &[B16, B16], |a, b, _| a + b);
    exact("add.s32 d, a, b;", B32, &[B32, B32], |a, b, _| a + b);
    exact("add.u64 d, a, b;", B64, &[B64, B64], |a, b, _| a.wrapping_add(b));
    exact("add.sat.s32 d, a, b;", B32, &[B32, B32], |a, b, _| (a as i32).saturating_add(b as i32) as u64);
    exact("sub.sat.s32 d, a, b;", B32, &[B32, B32], |a, b, _| (a as i32).saturating_sub(b as i32) as u64);
    exact("sub.s64 d, a, b;", B64, &[B64, B64], |a, b, _| a.wrapping_sub(b));
    exact("mul.lo.s32 d, a, b;", B32, &[B32, B32], |a, b, _| a.wrapping_mul(b));
    exact("mul.hi.s32 d, a, b;", B32, &[B32, B32], |a, b, _| {
        (i64::from(a as i32) * i64::from(b as i32) >> 32) as u64
    });
    exact("mul.hi.u64 d, a, b;", B64, &[B64, B64], |a, b, _| (u128::from(a) * u128::from(b) >> 64) as u64);
    exact("mul.hi.s64 d, a, b;", B64, &[B64, B64], |a, b, _| {
        (i128::from(a as i64) * i128::from(b as i64) >> 64) as u64
    });
    exact("mul.wide.s32 d, a, b;", B64, &[B32, B32], |a, b, _| {
        (i64::from(a as i32) * i64::from(b as i32)) as u64
    });
    exact("mul.wide.u16 d, a, b;", B32, &[B16, B16], |a, b, _| a * b);
    exact("mad.wide.s32 d, a, b, c;", B64, &[B32, B32, B64], |a, b, c| {
        (i64::from(a as i32) * i64::from(b as i32)).wrapping_add(c as i64) as u64
    });
    exact("mad.hi.u32 d, a, b, c;", B32, &[B32, B32, B32], |a, b, c| (a * b >> 32) + c);
    exact("mad.lo.u64 d, a, b, c;", B64, &[B64, B64, B64], |a, b, c| a.wrapping_mul(b).wrapping_add(c));
    exact("mul24.hi.u32 d, a, b;", B32, &[B32, B32], |a, b, _| (a & 0xff_ffff) * (b & 0xff_ffff) >> 16);
    exact("mul24.lo.s32 d, a, b;", B32, &[B32, B32], |a, b, _| {
        let narrow = |x: u64| i64::from((x as i32) << 8 >> 8);
        (narrow(a) * narrow(b)) as u64
    });
    exact("sad.s32 d, a, b, c;", B32, &[B32, B32, B32], |a, b, c| {
        (c as u32).wrapping_add((a as i32).abs_diff(b as i32)).into()
    });
}

#[test]
fn integer_quotients_and_extremes() {
    exact("div.u32 d, a, b;", B32, &[B32, B32], |a, b, _| a.checked_div(b).unwrap_or(u64::MAX));
    exact("rem.u64 d, a, b;", B64, &[B64, B64], |a, b, _| a.checked_rem(b).unwrap_or(a));
    exact("div.s32 d, a, b;", B32, &[B32, B32], |a, b, _| match b as i32 {
        0 => u64::MAX,
        b => (a as i32).wrapping_div(b) as u64,
    });
    exact("rem.s64 d, a, b;", B64, &[B64, B64], |a, b, _| match b as i64 {
        0 => a,
        b => (a as i64).wrapping_rem(b) as u64,
    });
    exact("min.s16 d, a, b;", B16, &[B16, B16], |a, b, _| (a as i16).min(b as i16) as u64);
    exact("max.u32 d, a, b;", B32, &[B32, B32], |a, b, _| a.max(b));
    exact("max.s64 d, a, b;", B64, &[B64, B64], |a, b, _| (a as i64).max(b as i64) as u64);
    exact("min.relu.s32 d, a, b;", B32, &[B32, B32], |a, b, _| (a as i32).min(b as i32).max(0) as u64);
    exact("max.s16x2 d, a, b;", B32, &[B32, B32], |a, b, _| {
        let one = |shift: u32| ((a >> shift) as i16).max((b >> shift) as i16) as u16 as u64;
        one(16) << 16 | one(0)
    });
    exact("abs.s32 d, a;", B32, &[B32], |a, _, _| (a as i32).wrapping_abs() as u64);
    exact("neg.s64 d, a;", B64, &[B64], |a, _, _| a.wrapping_neg());
}

#[test]
fn bits_and_fields() {
    exact("popc.b64 d, a;", B32, &[B64], |a, _, _| a.count_ones().into());
    exact("clz.b32 d, a;", B32, &[B32], |a, _, _| (a as u32).leading_zeros().into());
    exact("brev.b32 d, a;", B32, &[B32], |a, _, _| (a as u32).reverse_bits().into());
    exact("bfind.u32 d, a;", B32, &[B32], |a, _, _| (31 - (a as u32).leading_zeros() as i32) as u64);
    exact("bfind.s64 d, a;", B32, &[B64], |a, _, _| {
        let a = if (a as i64) < 0 { !a } else { a };
        (63 - a.leading_zeros() as i32) as u64
    });
    exact("bfind.shiftamt.u32 d, a;", B32, &[B32], |a, _, _| match a {
        0 => u64::MAX,
        a => (a as u32).leading_zeros().into(),
    });
    exact("bfe.u32 d, a, b, c;", B32, &[B32, B32, B32], |a, b, c| {
        (0..32).filter(|i| *i < c & 255 && (b & 255) + i < 32).map(|i| (a >> ((b & 255) + i) & 1) << i).sum()
    });
    // As documented, bit by bit.
    exact("bfe.s64 d, a, b, c;", B64, &[B64, B32, B32], |a, b, c| {
        let (start, length) = (b & 255, c & 255);
        let sign = if length == 0 { 0 } else { a >> (start + length - 1).min(63) & 1 };
        (0..64).map(|i| if i < length && start + i < 64 { a >> (start + i) & 1 } else { sign } << i).sum()
    });
    exact("bfi.b32 d, a, b, 5, 9;", B32, &[B32, B32], |a, b, _| b & !(0x1ff << 5) | (a & 0x1ff) << 5);
    exact("bfi.b64 d, a, b, c, c;", B64, &[B64, B64, B32], |a, b, c| {
        (0..64)
            .map(|i: u64| {
                let at = i.wrapping_sub(c & 255);
                if i >= c & 255 && at < c & 255 { (a >> at & 1) << i } else { b & 1 << i }
            })
            .sum()
    });
    exact("fns.b32 d, a, b, 2;", B32, &[B32, B32], |a, b, _| {
        let set: Vec<u64> = (b & 31..32).filter(|i| a >> i & 1 == 1).collect();
        set.get(1).copied().unwrap_or(u64::MAX)
    });
    exact("bmsk.clamp.b32 d, a, b;", B32, &[B32, B32], |a, b, _| {
        (0..32).filter(|i| *i >= a && *i < a + b).map(|i| 1 << i).sum()
    });
    exact("szext.wrap.s32 d, a, b;", B32, &[B32, B32], |a, b, _| match b & 31 {
        0 => 0,
        n => ((a as i32) << (32 - n) >> (32 - n)) as u64,
    });
}

#[test]
fn logic_and_shifts() {
    exact("lop3.b32 d, a, b, c, 0xe8;", B32, &[B32, B32, B32], |a, b, c| a & b | a & c | b & c);
    exact("lop3.b32 d, a, b, c, 0x1b;", B32, &[B32, B32, B32], |a, b, c| {
        (0..32).map(|i| (0x1b >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i).sum()
    });
    exact("cnot.b32 d, a;", B32, &[B32], |a, _, _| (a == 0).into());
    exact("shl.b32 d, a, b;", B32, &[B32, B32], |a, b, _| if b > 31 { 0 } else { a << b });
    exact("shr.u64 d, a, b;", B64, &[B64, B32], |a, b, _| if b > 63 { 0 } else { a >> b });
    exact("shr.s32 d, a, b;", B32, &[B32, B32], |a, b, _| (a as i32 >> b.min(31)) as u64);
    exact("shr.s16 d, a, b;", B16, &[B16, B32], |a, b, _| (a as i16 >> b.min(15)) as u64);
    exact("shf.l.wrap.b32 d, a, b, c;", B32, &[B32, B32, B32], |a, b, c| (b << 32 | a) << (c & 31) >> 32);
    exact("shf.r.clamp.b32 d, a, b, c;", B32, &[B32, B32, B32], |a, b, c| (b << 32 | a) >> c.min(32));
    exact("prmt.b32 d, a, b, c;", B32, &[B32, B32, B32], |a, b, c| {
        let bytes = (b << 32 | a).to_le_bytes();
        let byte = |i: u64| {
            let selector = c >> (4 * i) & 15;
            let byte = bytes[selector as usize & 7];
            u64::from(if selector & 8 != 0 { (byte as i8 >> 7) as u8 } else { byte }) << (8 * i)
        };
        (0..4).map(byte).sum()
    });
    exact("dp4a.s32.u32 d, a, b, c;", B32, &[B32, B32, B32], |a, b, c| {
        let products = (0..4).map(|i| i64::from((a >> (8 * i)) as i8) * i64::from((b >> (8 * i)) as u8));
        (c as i64 + products.sum::<i64>()) as u64
    });
    exact("vabsdiff4.u32.u32.u32.add d, a, b, c;", B32, &[B32, B32, B32], |a, b, c| {
        c + (0..4).map(|i| u64::from(((a >> (8 * i)) as u8).abs_diff((b >> (8 * i)) as u8))).sum::<u64>()
    });
}

#[test]
fn carries() {
    exact(
        "{ .reg .b32 a0, a1, b0, b1, d0, d1; mov.b64 {a0, a1}, a; mov.b64 {b0, b1}, b;
           add.cc.u32 d0, a0, b0; addc.u32 d1, a1, b1; mov.b64 d, {d0, d1}; }",
        B64,
        &[B64, B64],
        |a, b, _| a.wrapping_add(b),
    );
    exact(
        "{ .reg .b32 a0, a1, b0, b1, d0, d1; mov.b64 {a0, a1}, a; mov.b64 {b0, b1}, b;
           sub.cc.u32 d0, a0, b0; subc.cc.u32 d1, a1, b1; mov.b64 d, {d0, d1}; }",
        B64,
        &[B64, B64],
        |a, b, _| a.wrapping_sub(b),
    );
    exact(
        "{ .reg .b32 d0, d1; mad.lo.cc.u32 d0, a, b, c; madc.hi.u32 d1, a, b, 0; mov.b64 d, {d0, d1}; }",
        B64,
        &[B32, B32, B32],
        |a, b, c| a * b + c,
    );
}
