//! Matrix fragments spread over a warp, as the PTX manual lays them out.

use super::step::{Exec, Operands, Stop};
use super::warp::Path;
use crate::alu::minifloat::{self, BF16, E4M3, E5M2, F16, TF32};
use crate::alu::{LANES, Lanes, Rounding};
use crate::types::{Space, Type};

const M: usize = 16;
const N: usize = 8;

/// `mma.sync.aligned.m16n8kK`
#[derive(Debug, Clone, Copy)]
pub(crate) struct Multiply {
    k: usize,
    a: Type,
    b: Type,
    /// Of the accumulator and the result.
    c: Type,
    saturate: bool,
}

impl Multiply {
    /// `None` for shapes and types that are not supported.
    pub fn new(k: usize, d: Type, a: Type, b: Type, c: Type, saturate: bool) -> Option<Self> {
        let bits = |ty| match ty {
            Type::F16 | Type::Bf16 => Some(16),
            Type::Tf32 => Some(32),
            Type::S8 | Type::U8 | Type::E4m3 | Type::E5m2 => Some(8),
            _ => None,
        };
        let shapes: &[usize] = match bits(a)? {
            32 => &[4, 8],
            16 => &[8, 16],
            _ => &[16, 32],
        };
        let integer = |ty| matches!(ty, Type::S8 | Type::U8);
        let accumulator = match c {
            Type::F32 => !integer(a),
            Type::F16 => a == Type::F16,
            Type::S32 => integer(a),
            _ => false,
        };
        let alike = a == b || bits(a) == Some(8) && integer(a) == integer(b);
        let valid = shapes.contains(&k) && d == c && accumulator && alike && (!saturate || integer(a));
        valid.then_some(Self { k, a, b, c, saturate })
    }

    fn element_bits(&self) -> usize {
        self.a.bits().min(32) as usize
    }

    /// Registers of D, A, B and C.
    pub fn rows(&self) -> [usize; 4] {
        let of = |elements: usize, bits: usize| elements * bits / 32 / LANES;
        let bits = if self.a == Type::Tf32 { 32 } else { self.element_bits() };
        let accumulator = of(M * N, self.c.bits() as usize);
        [accumulator, of(M * self.k, bits), of(self.k * N, bits), accumulator]
    }
}

fn integer(ty: Type, bits: u64) -> i64 {
    if ty == Type::S8 { i64::from(bits as u8 as i8) } else { i64::from(bits as u8) }
}

fn real(ty: Type, bits: u64) -> f64 {
    match ty {
        Type::F16 => minifloat::decode(&F16, bits & 0xffff),
        Type::Bf16 => minifloat::decode(&BF16, bits & 0xffff),
        Type::Tf32 => minifloat::decode(&TF32, bits >> 13 & 0x7_ffff),
        Type::E4m3 => minifloat::decode(&E4M3, bits & 0xff),
        Type::E5m2 => minifloat::decode(&E5M2, bits & 0xff),
        _ => f64::from(f32::from_bits(bits as u32)),
    }
}

/// Element `index` of a lane's fragment of A: row and column. Fragments are made of 8 rows by 4 words, first two
/// below each other, then the next columns.
fn place_a(lane: usize, register: usize, element: usize, per_word: usize) -> (usize, usize) {
    let (group, within) = (lane / 4, lane % 4);
    let row = group + 8 * (register % 2);
    let column = within * per_word + element + 4 * per_word * (register / 2);
    (row, column)
}

/// Row and column of B.
fn place_b(lane: usize, register: usize, element: usize, per_word: usize) -> (usize, usize) {
    let (group, within) = (lane / 4, lane % 4);
    (within * per_word + element + 4 * per_word * register, group)
}

/// Row and column of C and D, by the number of the element in the fragment.
fn place_c(lane: usize, element: usize) -> (usize, usize) {
    (lane / 4 + 8 * (element / 2), lane % 4 * 2 + element % 2)
}

impl Exec<'_> {
    pub fn multiply(&mut self, path: &Path, multiply: &Multiply, operands: Operands<'_>) {
        let [_, rows_a, rows_b, _] = multiply.rows();
        let bits = multiply.element_bits();
        let per_word = 32 / bits;
        let mask = if bits == 32 { u64::from(u32::MAX) } else { (1 << bits) - 1 };
        let sources: Vec<Lanes> = operands.sources.iter().map(|source| *self.row(path, *source)).collect();
        let (a_rows, rest) = sources.split_at(rows_a);
        let (b_rows, c_rows) = rest.split_at(rows_b);
        let k = multiply.k;
        let mut a = vec![0u64; M * k];
        let mut b = vec![0u64; k * N];
        for lane in 0..LANES {
            for (register, row) in a_rows.iter().enumerate() {
                for element in 0..per_word {
                    let (i, j) = place_a(lane, register, element, per_word);
                    a[i * k + j] = row[lane] >> (element * bits) & mask;
                }
            }
            for (register, row) in b_rows.iter().enumerate() {
                for element in 0..per_word {
                    let (i, j) = place_b(lane, register, element, per_word);
                    b[i * N + j] = row[lane] >> (element * bits) & mask;
                }
            }
        }
        let halves = multiply.c == Type::F16;
        let mut results = vec![[0u64; LANES]; operands.results.len()];
        for lane in 0..LANES {
            for element in 0..4 {
                let (i, j) = place_c(lane, element);
                let (register, shift) = if halves { (element / 2, element % 2 * 16) } else { (element, 0) };
                let c = c_rows[register][lane] >> shift;
                let row = &a[i * k..(i + 1) * k];
                let column = (0..k).map(|at| b[at * N + j]);
                results[register][lane] |= multiply.element(row, column, c) << shift;
            }
        }
        for (row, values) in operands.results.iter().zip(&results) {
            self.set(path, *row, values, u32::MAX);
        }
    }

    /// `ldmatrix` and `stmatrix`: 8 by 8 halves, whose rows' addresses come from 8 lanes each.
    pub fn move_matrix(
        &mut self,
        path: &Path,
        count: u8,
        transposed: bool,
        store: bool,
        offset: i64,
        operands: Operands<'_>,
    ) -> Result<(), Stop> {
        let addresses = *self.row(path, operands.sources[0]);
        for matrix in 0..usize::from(count) {
            let mut values = if store { *self.row(path, operands.sources[1 + matrix]) } else { [0; LANES] };
            for (lane, word) in values.iter_mut().enumerate() {
                for element in 0..2 {
                    let (mut row, mut column) = (lane / 4, lane % 4 * 2 + element);
                    if transposed {
                        (row, column) = (column, row);
                    }
                    let giver = matrix * 8 + row;
                    let address =
                        addresses[giver].wrapping_add_signed(offset).wrapping_add(2 * column as u64);
                    let shift = 16 * element;
                    if store {
                        let half = *word >> shift & 0xffff;
                        self.write(giver, Space::Shared, address, 2, half)
                            .map_err(|trouble| trouble.at(giver))?;
                    } else {
                        let half = self
                            .read(giver, Space::Shared, address, 2)
                            .map_err(|trouble| trouble.at(giver))?;
                        *word |= half << shift;
                    }
                }
            }
            if !store {
                self.set(path, operands.results[matrix], &values, u32::MAX);
            }
        }
        Ok(())
    }
}

impl Multiply {
    /// One element of the result. Products are summed in `f64`, then rounded once to the accumulator.
    fn element(&self, row: &[u64], column: impl Iterator<Item = u64>, c: u64) -> u64 {
        if self.c == Type::S32 {
            let products = row.iter().zip(column).map(|(a, b)| integer(self.a, *a) * integer(self.b, b));
            let sum = i64::from(c as u32 as i32) + products.sum::<i64>();
            let sum = if self.saturate { sum.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) } else { sum };
            return u64::from(sum as u32);
        }
        let products = row.iter().zip(column).map(|(a, b)| real(self.a, *a) * real(self.b, b));
        if self.c == Type::F16 {
            let sum = real(Type::F16, c) + products.sum::<f64>();
            return minifloat::encode(&F16, sum, Rounding::Nearest);
        }
        let sum = f64::from(f32::from_bits(c as u32)) + products.sum::<f64>();
        u64::from((sum as f32).to_bits())
    }
}
