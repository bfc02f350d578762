//! `wmma.load`, `wmma.store` and `wmma.mma`.

use super::function::FunctionLowering;
use super::memory::take_space;
use crate::Error;
use crate::alu::modifiers::Modifiers;
use crate::ast::Instruction;
use crate::machine::fragment::{Fragment, Product, Transfer};
use crate::program::Op;
use crate::types::Type;

const SHAPES: [(&str, [usize; 3]); 3] =
    [("m16n16k16", [16, 16, 16]), ("m32n8k16", [32, 8, 16]), ("m8n32k16", [8, 32, 16])];

impl FunctionLowering<'_, '_> {
    pub fn fragment(&mut self, instruction: &Instruction, modifiers: &mut Modifiers) -> Result<(), Error> {
        let what = modifiers.one_of(&[("load", "load"), ("store", "store"), ("mma", "mma")]);
        let fixed = modifiers.take("sync") && modifiers.take("aligned");
        let shape = modifiers.one_of(&SHAPES);
        let (Some(what), Some(shape), true) = (what, shape, fixed) else {
            return Err(self.unknown(instruction));
        };
        if what == "mma" {
            return self.fragment_product(instruction, modifiers, shape);
        }
        let which = modifiers.one_of(&[("a", "a"), ("b", "b"), ("c", "c"), ("d", "d")]);
        let by_row = modifiers.one_of(&[("row", true), ("col", false)]);
        let space = take_space(modifiers);
        let ty = modifiers.take_type();
        let (Some(which), Some(by_row), Some(ty), true) = (which, by_row, ty, modifiers.all_taken()) else {
            return Err(self.unknown(instruction));
        };
        let store = what == "store";
        let Some(fragment) = Fragment::new(which, shape, ty).filter(|_| store == (which == "d")) else {
            return Err(self.unknown(instruction));
        };
        self.expect(instruction, 2..=3)?;
        let operands = &instruction.operands;
        let (registers, address) = if store { (1, 0) } else { (0, 1) };
        let address = self.address(instruction, &operands[address])?;
        let stride = match operands.get(2) {
            Some(stride) => self.source(instruction, stride, Type::U32)?,
            None => self.bits(if by_row { fragment.columns } else { fragment.rows } as u64),
        };
        let rows = self.results(instruction, &operands[registers])?;
        if rows.len() != fragment.registers {
            let message = format!("found {} registers, expected {}", rows.len(), fragment.registers);
            return Err(self.error(instruction, message));
        }
        let op = Op::MoveFragment(Transfer { fragment, by_row, space, offset: address.offset, store }.into());
        if store {
            let sources: Vec<u32> = [address.base, stride].into_iter().chain(rows).collect();
            self.emit(op, &[], &sources);
        } else {
            self.emit(op, &rows, &[address.base, stride]);
        }
        Ok(())
    }

    /// The layouts in the modifiers are those of the fragments' loads, which ours does not depend on.
    fn fragment_product(
        &mut self,
        instruction: &Instruction,
        modifiers: &mut Modifiers,
        shape: [usize; 3],
    ) -> Result<(), Error> {
        modifiers.take_any(&["row", "col"]);
        modifiers.take_any(&["row", "col"]);
        let types = [(); 4].map(|()| modifiers.take_type());
        // `f16` products name D and C; the others all four.
        let [d, a, b, c] = match types {
            [Some(d), Some(c), None, None] => [d, Type::F16, Type::F16, c],
            [Some(d), Some(a), Some(b), Some(c)] => [d, a, b, c],
            _ => return Err(self.unknown(instruction)),
        };
        let fragments =
            [("d", d), ("a", a), ("b", b), ("c", c)].map(|(which, ty)| Fragment::new(which, shape, ty));
        let [Some(d), Some(a), Some(b), Some(c)] = fragments else {
            return Err(self.unknown(instruction));
        };
        if a.ty != b.ty || !modifiers.all_taken() {
            return Err(self.unknown(instruction));
        }
        self.expect(instruction, 4..=4)?;
        let results = self.results(instruction, &instruction.operands[0])?;
        let mut sources = Vec::new();
        for operand in &instruction.operands[1..] {
            sources.extend(self.sources(instruction, operand, Type::B32)?);
        }
        if results.len() != d.registers || sources.len() != a.registers + b.registers + c.registers {
            return Err(self.error(instruction, "the vectors do not fit the shape"));
        }
        self.emit(Op::MultiplyFragments(Product([d, a, b, c]).into()), &results, &sources);
        Ok(())
    }
}
