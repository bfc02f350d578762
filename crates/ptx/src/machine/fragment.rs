//! `wmma`: fragments whose layout is the implementation's own.
//!
//! Ours deals the elements of a matrix to the lanes in row order, each lane's share one after the other in its
//! registers, and again from the start where there are more places than elements.

use super::step::{Exec, Operands, Stop};
use super::warp::Path;
use crate::alu::minifloat::{self, BF16, F16};
use crate::alu::{LANES, Lanes, Rounding};
use crate::types::{Space, Type};

/// One matrix of a shape.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fragment {
    pub rows: usize,
    pub columns: usize,
    pub ty: Type,
    pub registers: usize,
}

/// `wmma.load` and `wmma.store`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Transfer {
    pub fragment: Fragment,
    /// Rows lie one after the other in memory; else columns do.
    pub by_row: bool,
    pub space: Space,
    pub offset: i64,
    pub store: bool,
}

/// `wmma.mma`: D, A, B, C.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product(pub [Fragment; 4]);

impl Fragment {
    /// The fragment of matrix `which` (`a`, `b`, or `c` and `d`) of a shape, if there is one of the type.
    pub fn new(which: &str, [m, n, k]: [usize; 3], ty: Type) -> Option<Self> {
        let (rows, columns) = match which {
            "a" => (m, k),
            "b" => (k, n),
            _ => (m, n),
        };
        let share = rows * columns / LANES;
        let registers = match (which, ty) {
            ("a" | "b", Type::F16) => 8,
            ("a" | "b", Type::Bf16) | ("c" | "d", Type::F16) => share / 2,
            ("c" | "d", Type::F32) => share,
            _ => return None,
        };
        Some(Self { rows, columns, ty, registers })
    }

    fn share(&self) -> usize {
        self.rows * self.columns / LANES
    }

    fn per_register(&self) -> usize {
        4 / self.ty.bytes() as usize
    }

    /// Lane, register and shift of each place, with the element there.
    fn places(self) -> impl Iterator<Item = (usize, usize, u32, usize)> {
        let per = self.per_register();
        (0..LANES).flat_map(move |lane| {
            (0..self.registers * per).map(move |place| {
                let element = lane * self.share() + place % self.share();
                (lane, place / per, (place % per) as u32 * self.ty.bits(), element)
            })
        })
    }

    fn values(self, registers: &[Lanes]) -> Vec<f64> {
        let mut values = vec![0.0; self.rows * self.columns];
        for (lane, register, shift, element) in self.places() {
            let bits = registers[register][lane] >> shift;
            values[element] = match self.ty {
                Type::F16 => minifloat::decode(&F16, bits & 0xffff),
                Type::Bf16 => minifloat::decode(&BF16, bits & 0xffff),
                _ => f64::from(f32::from_bits(bits as u32)),
            };
        }
        values
    }
}

impl Exec<'_> {
    pub fn move_fragment(
        &mut self,
        path: &Path,
        transfer: &Transfer,
        operands: Operands<'_>,
    ) -> Result<(), Stop> {
        let Transfer { fragment, by_row, space, offset, store } = *transfer;
        let bases = *self.row(path, operands.sources[0]);
        let strides = *self.row(path, operands.sources[1]);
        let width = fragment.ty.bytes() as u8;
        let mut registers: Vec<Lanes> = vec![[0; LANES]; fragment.registers];
        for (register, source) in registers.iter_mut().zip(operands.sources.iter().skip(2)) {
            *register = *self.row(path, *source);
        }
        for (lane, register, shift, element) in fragment.places() {
            let (row, column) = (element / fragment.columns, element % fragment.columns);
            let (outer, inner) = if by_row { (row, column) } else { (column, row) };
            let distance = outer as u64 * (strides[lane] & 0xffff_ffff) + inner as u64;
            let address = bases[lane].wrapping_add_signed(offset).wrapping_add(distance * u64::from(width));
            if store {
                let value = registers[register][lane] >> shift;
                self.write(lane, space, address, width, value).map_err(|trouble| trouble.at(lane))?;
            } else {
                let value = self.read(lane, space, address, width).map_err(|trouble| trouble.at(lane))?;
                registers[register][lane] |= value << shift;
            }
        }
        for (result, register) in operands.results.iter().zip(&registers) {
            self.set(path, *result, register, u32::MAX);
        }
        Ok(())
    }

    pub fn multiply_fragments(&mut self, path: &Path, product: &Product, operands: Operands<'_>) {
        let Product([d, a, b, c]) = *product;
        let sources: Vec<Lanes> = operands.sources.iter().map(|source| *self.row(path, *source)).collect();
        let (a_rows, rest) = sources.split_at(a.registers);
        let (b_rows, c_rows) = rest.split_at(b.registers);
        let (left, right, add) = (a.values(a_rows), b.values(b_rows), c.values(c_rows));
        let mut registers: Vec<Lanes> = vec![[0; LANES]; d.registers];
        for (lane, register, shift, element) in d.places() {
            let (row, column) = (element / d.columns, element % d.columns);
            let products = (0..a.columns).map(|k| left[row * a.columns + k] * right[k * b.columns + column]);
            let sum = add[element] + products.sum::<f64>();
            let bits = match d.ty {
                Type::F16 => minifloat::encode(&F16, sum, Rounding::Nearest),
                _ => u64::from((sum as f32).to_bits()),
            };
            registers[register][lane] |= bits << shift;
        }
        for (result, register) in operands.results.iter().zip(&registers) {
            self.set(path, *result, register, u32::MAX);
        }
    }
}
