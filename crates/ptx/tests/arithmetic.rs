//! Each instruction against plain Rust, on random and on awkward values.

// Formulas read better as in the manual.
#![allow(clippy::precedence, clippy::neg_cmp_op_on_partial_ord, clippy::needless_range_loop)]

mod common;

use common::{Memory, Run, parse};
use half::{bf16, f16};

const COUNT: usize = 512;

/// Registers and memory types: PTX's name of the register's type, bytes.
#[derive(Clone, Copy)]
struct Kind(&'static str, usize);

const B16: Kind = Kind("b16", 2);
const B32: Kind = Kind("b32", 4);
const B64: Kind = Kind("b64", 8);
const F32: Kind = Kind("f32", 4);
const F64: Kind = Kind("f64", 8);

/// Values where integers and floats of each width go wrong, then noise.
fn inputs(seed: u64) -> Vec<u64> {
    const AWKWARD: [u64; 36] = [
        0,
        1,
        2,
        31,
        32,
        33,
        63,
        64,
        0x7f,
        0x80,
        0xff,
        0x7fff,
        0x8000,
        0x8001,
        0xffff,
        0x3c00,
        0x7c00,
        0x7e00,
        0xfc00,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        0x3f80_0000,
        0xbf80_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0x0080_0000,
        0x007f_ffff,
        0x3ff0_0000_0000_0000,
        0x7ff0_0000_0000_0000,
        0x7ff8_0000_0000_0000,
        0x8000_0000_0000_0000,
        0x7fff_ffff_ffff_ffff,
        0xffff_ffff_ffff_ffff,
        0x000f_ffff_ffff_ffff,
    ];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..COUNT)
        .map(|index| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            match index % 4 {
                0 => AWKWARD[state as usize % AWKWARD.len()],
                // Floats of moderate size, single or double.
                1 if state & 1 == 0 => u64::from((state as i32 as f32 / 65536.0).to_bits()),
                1 => (state as i64 as f64 / (1u64 << 40) as f64).to_bits(),
                2 => state & 0xff,
                _ => state,
            }
        })
        .collect()
}

fn low(value: u64, bytes: usize) -> u64 {
    if bytes == 8 { value } else { value & ((1 << (8 * bytes)) - 1) }
}

/// Runs `instruction` (with `d`, `a`, `b`, `c`) on all inputs and hands each set with its result to `check`.
fn run(instruction: &str, d: Kind, sources: &[Kind], check: impl Fn([u64; 3], u64) -> Result<(), String>) {
    let names = ["a", "b", "c"];
    let mut body = String::new();
    for (index, (name, kind)) in names.iter().zip(sources).enumerate() {
        body += &format!(".reg .{} {name};\nld.global.{} {name}, [%p+{}];\n", kind.0, kind.0, 8 + 8 * index);
    }
    let module = parse(&format!(
        ".version 8.6\n.target sm_100\n.address_size 64\n.visible .entry k(.param .u64 p) {{\n.reg .b64 %p, %i;\n\
         .reg .b32 %t, %n, %c;\n.reg .pred pq, pr;\n.reg .{} d;\nld.param.u64 %p, [p];\nmov.u32 %t, %tid.x;\n\
         mov.u32 %n, %ntid.x;\nmov.u32 %c, %ctaid.x;\nmad.lo.u32 %t, %c, %n, %t;\nmul.wide.u32 %i, %t, 32;\n\
         add.u64 %p, %p, %i;\n{body}{instruction}\nst.global.{} [%p], d;\nret;\n}}",
        d.0, d.0
    ));
    let memory = Memory::new(COUNT * 32);
    let columns = [inputs(1), inputs(2), inputs(3)];
    for index in 0..COUNT {
        for column in 0..3 {
            memory.put(index * 32 + 8 + 8 * column, &[columns[column][index]]);
        }
    }
    Run::shape(COUNT as u32 / 64, 64).go(&module, "k", &[memory.start]);
    for index in 0..COUNT {
        let mut values = [0; 3];
        for (column, kind) in sources.iter().enumerate() {
            values[column] = low(columns[column][index], kind.1);
        }
        let result = low(memory.get::<u64>(index * 32, 1)[0], d.1);
        check(values, result)
            .unwrap_or_else(|why| panic!("{instruction} of {values:x?} gave {result:#x}: {why}"));
    }
}

fn exact(instruction: &str, d: Kind, sources: &[Kind], expected: impl Fn(u64, u64, u64) -> u64) {
    run(instruction, d, sources, |[a, b, c], result| {
        let expected = low(expected(a, b, c), d.1);
        if result == expected { Ok(()) } else { Err(format!("expected {expected:#x}")) }
    });
}

/// As `exact`, but any NaN is as good as another.
fn exact32(instruction: &str, sources: &[Kind], expected: impl Fn(f32, f32, f32) -> f32) {
    let float = |bits: u64| f32::from_bits(bits as u32);
    run(instruction, F32, sources, |[a, b, c], result| {
        let expected = expected(float(a), float(b), float(c));
        let same =
            float(result).to_bits() == expected.to_bits() || float(result).is_nan() && expected.is_nan();
        if same { Ok(()) } else { Err(format!("expected {expected:e}, not {:e}", float(result))) }
    });
}

fn exact64(instruction: &str, sources: &[Kind], expected: impl Fn(f64, f64, f64) -> f64) {
    run(instruction, F64, sources, |[a, b, c], result| {
        let [a, b, c, result] = [a, b, c, result].map(f64::from_bits);
        let expected = expected(a, b, c);
        let same = result.to_bits() == expected.to_bits() || result.is_nan() && expected.is_nan();
        if same { Ok(()) } else { Err(format!("expected {expected:e}, not {result:e}")) }
    });
}

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

/// The half nearest to a value that is exact in `f64`.
fn check_half(result: u64, exact: f64) -> Result<(), String> {
    let (result, expected) = (f16::from_bits(result as u16), f16::from_f64(exact));
    // The library rounds twice where the value is within its last bits of a tie: accept only the true nearest.
    let distance = |x: f16| (x.to_f64() - exact).abs();
    let fine = result == expected
        && (result.to_f64() != 0.0 || exact == 0.0 || exact.abs() <= f64::powi(2.0, -25))
        || result.is_nan() && exact.is_nan()
        || exact.is_finite() && distance(result) < distance(expected);
    if fine { Ok(()) } else { Err(format!("expected {expected}, not {result}, for {exact:e}")) }
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
