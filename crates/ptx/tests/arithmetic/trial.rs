//! One instruction, tried on all inputs.

use half::f16;

use crate::common::{Memory, Run, parse};

const COUNT: usize = 512;

/// Registers and memory types: PTX's name of the register's type, bytes.
#[derive(Clone, Copy)]
pub struct Kind(pub &'static str, pub usize);

pub const B16: Kind = Kind("b16", 2);
pub const B32: Kind = Kind("b32", 4);
pub const B64: Kind = Kind("b64", 8);
pub const F32: Kind = Kind("f32", 4);
pub const F64: Kind = Kind("f64", 8);

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
pub fn run(
    instruction: &str,
    d: Kind,
    sources: &[Kind],
    check: impl Fn([u64; 3], u64) -> Result<(), String>,
) {
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

pub fn exact(instruction: &str, d: Kind, sources: &[Kind], expected: impl Fn(u64, u64, u64) -> u64) {
    run(instruction, d, sources, |[a, b, c], result| {
        let expected = low(expected(a, b, c), d.1);
        if result == expected { Ok(()) } else { Err(format!("expected {expected:#x}")) }
    });
}

/// As `exact`, but any NaN is as good as another.
pub fn exact32(instruction: &str, sources: &[Kind], expected: impl Fn(f32, f32, f32) -> f32) {
    let float = |bits: u64| f32::from_bits(bits as u32);
    run(instruction, F32, sources, |[a, b, c], result| {
        let expected = expected(float(a), float(b), float(c));
        let same =
            float(result).to_bits() == expected.to_bits() || float(result).is_nan() && expected.is_nan();
        if same { Ok(()) } else { Err(format!("expected {expected:e}, not {:e}", float(result))) }
    });
}

pub fn exact64(instruction: &str, sources: &[Kind], expected: impl Fn(f64, f64, f64) -> f64) {
    run(instruction, F64, sources, |[a, b, c], result| {
        let [a, b, c, result] = [a, b, c, result].map(f64::from_bits);
        let expected = expected(a, b, c);
        let same = result.to_bits() == expected.to_bits() || result.is_nan() && expected.is_nan();
        if same { Ok(()) } else { Err(format!("expected {expected:e}, not {result:e}")) }
    });
}

/// The half nearest to a value that is exact in `f64`.
pub fn check_half(result: u64, exact: f64) -> Result<(), String> {
    let (result, expected) = (f16::from_bits(result as u16), f16::from_f64(exact));
    // The library rounds twice where the value is within its last bits of a tie: accept only the true nearest.
    let distance = |x: f16| (x.to_f64() - exact).abs();
    let fine = result == expected
        && (result.to_f64() != 0.0 || exact == 0.0 || exact.abs() <= f64::powi(2.0, -25))
        || result.is_nan() && exact.is_nan()
        || exact.is_finite() && distance(result) < distance(expected);
    if fine { Ok(()) } else { Err(format!("expected {expected}, not {result}, for {exact:e}")) }
}
