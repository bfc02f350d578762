//! `mma.sync`, `ldmatrix` and `stmatrix`.

use super::function::FunctionLowering;
use crate::Error;
use crate::alu::modifiers::Modifiers;
use crate::ast::Instruction;
use crate::machine::matrix::Multiply;
use crate::program::Op;
use crate::types::Type;

impl FunctionLowering<'_, '_> {
    pub fn multiply_matrix(
        &mut self,
        instruction: &Instruction,
        modifiers: &mut Modifiers,
    ) -> Result<(), Error> {
        let fixed = ["sync", "aligned", "row", "col"].iter().all(|word| modifiers.take(word));
        let shapes = [("m16n8k4", 4), ("m16n8k8", 8), ("m16n8k16", 16), ("m16n8k32", 32)];
        let shape = modifiers.one_of(&shapes);
        let saturate = modifiers.take("satfinite");
        let types = [(); 4].map(|()| modifiers.take_type());
        let (Some(k), [Some(d), Some(a), Some(b), Some(c)], true, true) =
            (shape, types, fixed, modifiers.all_taken())
        else {
            return Err(self.unknown(instruction));
        };
        let Some(multiply) = Multiply::new(k, d, a, b, c, saturate) else {
            return Err(self.unknown(instruction));
        };
        self.expect(instruction, 4..=4)?;
        let results = self.results(instruction, &instruction.operands[0])?;
        let mut sources = Vec::new();
        for operand in &instruction.operands[1..] {
            sources.extend(self.sources(instruction, operand, Type::B32)?);
        }
        let [rows_d, rows_a, rows_b, rows_c] = multiply.rows();
        if results.len() != rows_d || sources.len() != rows_a + rows_b + rows_c {
            return Err(self.error(instruction, "the vectors do not fit the shape"));
        }
        self.emit(Op::Matrix(multiply.into()), &results, &sources);
        Ok(())
    }

    pub fn move_matrix(&mut self, instruction: &Instruction, modifiers: &mut Modifiers) -> Result<(), Error> {
        let store = instruction.name == "stmatrix";
        let fixed = ["sync", "aligned", "m8n8"].iter().all(|word| modifiers.take(word));
        let count = modifiers.one_of(&[("x1", 1u8), ("x2", 2), ("x4", 4)]);
        let transposed = modifiers.take("trans");
        modifiers.take_any(&["shared", "shared::cta"]);
        let ty = modifiers.take_type();
        let (Some(count), Some(Type::B16), true, true) = (count, ty, fixed, modifiers.all_taken()) else {
            return Err(self.unknown(instruction));
        };
        self.expect(instruction, 2..=2)?;
        let (registers, address) = if store { (1, 0) } else { (0, 1) };
        let address = self.address(instruction, &instruction.operands[address])?;
        let rows = self.results(instruction, &instruction.operands[registers])?;
        if rows.len() != usize::from(count) {
            return Err(self.error(instruction, format!("found {} registers, expected {count}", rows.len())));
        }
        let op = Op::LoadMatrix { count, transposed, store, offset: address.offset };
        if store {
            let sources: Vec<u32> = std::iter::once(address.base).chain(rows).collect();
            self.emit(op, &[], &sources);
        } else {
            self.emit(op, &rows, &[address.base]);
        }
        Ok(())
    }
}
