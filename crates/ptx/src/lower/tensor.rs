//! Tensor maps: copies of tiles, and changes of a map.

use super::function::FunctionLowering;
use super::memory::{take_hints, take_space};
use crate::Error;
use crate::alu::modifiers::Modifiers;
use crate::ast::{Instruction, Operand};
use crate::program::Op;
use crate::tensor_map::field;
use crate::types::Type;

impl FunctionLowering<'_, '_> {
    /// `cp.async.bulk.tensor`, of which `cp.async.bulk` is read. Copies are complete when they are issued.
    pub fn tensor_copy(&mut self, instruction: &Instruction, modifiers: &mut Modifiers) -> Result<(), Error> {
        let dimensions = modifiers.one_of(&[("1d", 1), ("2d", 2), ("3d", 3), ("4d", 4), ("5d", 5)]);
        let is_shared = modifiers.take("shared::cluster") || modifiers.take("shared::cta");
        let is_tensor = is_shared && modifiers.take("global");
        modifiers.take_any(&["tile", "L2::cache_hint"]);
        let loads = modifiers.take("mbarrier::complete_tx::bytes");
        let stores = modifiers.take("bulk_group");
        modifiers.take_any(&["tile", "L2::cache_hint"]);
        let Some(dimensions) = dimensions.filter(|_| modifiers.all_taken() && is_tensor) else {
            return Err(self.unknown(instruction));
        };
        let operands = &instruction.operands;
        match (loads, stores) {
            (true, false) => {
                self.expect(instruction, 3..=4)?;
                let to = self.place(instruction, &operands[0])?;
                let barrier = self.place(instruction, &operands[2])?;
                let (map, coordinates) = self.tile(instruction, &operands[1], dimensions)?;
                let sources: Vec<u32> = [map, to, barrier].into_iter().chain(coordinates).collect();
                self.emit(Op::TensorLoad { dimensions }, &[], &sources);
            }
            (false, true) => {
                self.expect(instruction, 2..=3)?;
                let (map, coordinates) = self.tile(instruction, &operands[0], dimensions)?;
                let from = self.place(instruction, &operands[1])?;
                let sources: Vec<u32> = [map, from].into_iter().chain(coordinates).collect();
                self.emit(Op::TensorStore { dimensions }, &[], &sources);
            }
            _ => return Err(self.unknown(instruction)),
        }
        Ok(())
    }

    /// `[map, {coordinates}]`
    fn tile(
        &mut self,
        instruction: &Instruction,
        operand: &Operand,
        dimensions: u8,
    ) -> Result<(u32, Vec<u32>), Error> {
        let Operand::Coordinates(base, coordinates) = operand else {
            return Err(
                self.error(instruction, "an operand is not a tensor map such as `[%rd1, {%r1, %r2}]`")
            );
        };
        let map = self.place(instruction, base)?;
        let mut rows = Vec::new();
        for coordinate in coordinates {
            rows.extend(self.sources(instruction, coordinate, Type::S32)?);
        }
        if rows.len() != usize::from(dimensions) {
            let found = format!("found {} coordinates, expected {dimensions}", rows.len());
            return Err(self.error(instruction, found));
        }
        Ok((map, rows))
    }

    fn place(&mut self, instruction: &Instruction, operand: &Operand) -> Result<u32, Error> {
        let address = self.address(instruction, operand)?;
        Ok(self.absolute(&address))
    }

    /// `tensormap.replace`, and `tensormap.cp_fenceproxy`, which copies a map.
    pub fn tensor_map(&mut self, instruction: &Instruction, modifiers: &mut Modifiers) -> Result<(), Error> {
        if modifiers.take("cp_fenceproxy") {
            return self.tensor_map_copy(instruction, modifiers);
        }
        let replaces = modifiers.take("replace") && modifiers.take("tile");
        let field = modifiers.take_with(field);
        let space = take_space(modifiers);
        modifiers.take_any(&["b1024", "b32", "b64"]);
        let Some(field) = field.filter(|_| replaces && modifiers.all_taken()) else {
            return Err(self.unknown(instruction));
        };
        let operands = &instruction.operands;
        let (ordinal, value) = match (field.count, operands.as_slice()) {
            (1, [_, value]) => (0, value),
            (count, [_, Operand::Integer(ordinal), value]) if *ordinal < u64::from(count) => {
                (*ordinal as u32, value)
            }
            _ => return Err(self.error(instruction, "its operands are not those of this field")),
        };
        let map = self.place(instruction, &operands[0])?;
        let literal = if field.bytes == 8 { Type::U64 } else { Type::U32 };
        let value = self.source(instruction, value, literal)?;
        let offset = field.offset + ordinal * field.apart;
        self.emit(Op::TensorMapReplace { space, offset, bytes: field.bytes }, &[], &[map, value]);
        Ok(())
    }

    fn tensor_map_copy(&mut self, instruction: &Instruction, modifiers: &mut Modifiers) -> Result<(), Error> {
        let (to, from) = (take_space(modifiers), take_space(modifiers));
        modifiers.take_any(&["tensormap::generic", "sync", "aligned", "release"]);
        take_hints(modifiers);
        if !modifiers.all_taken() {
            return Err(self.unknown(instruction));
        }
        self.expect(instruction, 3..=3)?;
        let sources = [0, 1].map(|at| self.place(instruction, &instruction.operands[at]));
        let [target, source] = sources;
        let sources = [target?, source?];
        self.emit(Op::TensorMapCopy { to, from }, &[], &sources);
        self.emit(Op::Fence, &[], &[]);
        Ok(())
    }
}
