//! Textures and surfaces: `tex`, `tld4`, `txq`, `suld.b`, `sust.b`, `suq`, `istypep`.
//!
//! They are named by numbers in registers; module variables (`.texref`, `.samplerref`, `.surfref`) are not there.

use super::function::FunctionLowering;
use crate::Error;
use crate::alu::modifiers::Modifiers;
use crate::ast::{Instruction, Operand};
use crate::machine::texture::{Bounds, Fetch, FetchDetail, Query, SurfaceAccess};
use crate::program::Op;
use crate::texture::Geometry;
use crate::types::Type;

const GEOMETRIES: [(&str, Geometry); 7] = [
    ("1d", Geometry::D1),
    ("2d", Geometry::D2),
    ("3d", Geometry::D3),
    ("a1d", Geometry::A1),
    ("a2d", Geometry::A2),
    ("cube", Geometry::Cube),
    ("acube", Geometry::CubeLayers),
];

const QUERIES: [(&str, Query); 9] = [
    ("width", Query::Size(0)),
    ("height", Query::Size(1)),
    ("depth", Query::Size(2)),
    ("array_size", Query::Layers),
    ("num_mipmap_levels", Query::Levels),
    ("normalized_coords", Query::Normalized),
    ("addr_mode_0", Query::AddressMode(0)),
    ("addr_mode_1", Query::AddressMode(1)),
    ("addr_mode_2", Query::AddressMode(2)),
];

impl FunctionLowering<'_, '_> {
    /// The number of what is read, and as many coordinates as there are at least.
    fn coordinates(
        &mut self,
        instruction: &Instruction,
        operand: &Operand,
        count: usize,
        literal: Type,
    ) -> Result<Vec<u32>, Error> {
        let wrong = |this: &Self| this.error(instruction, "an operand is not like `[%rd1, {%f1, %f2}]`");
        let Operand::Coordinates(address, rest) = operand else { return Err(wrong(self)) };
        let Operand::Address(base, 0) = &**address else { return Err(wrong(self)) };
        let [Operand::Vector(_) | Operand::Name(_)] = &rest[..] else {
            return Err(self.error(instruction, "a sampler beside the texture is not supported"));
        };
        let mut rows = vec![self.view(instruction, base)?];
        let found = self.sources(instruction, &rest[0], literal)?;
        if found.len() < count {
            return Err(
                self.error(instruction, format!("found {} coordinates, expected {count}", found.len()))
            );
        }
        rows.extend(&found[..count]);
        Ok(rows)
    }

    /// A texture or surface, by its number in a register.
    fn view(&mut self, instruction: &Instruction, operand: &Operand) -> Result<u32, Error> {
        if self.register_type(operand).is_none_or(|ty| ty.bits() != 64) {
            return Err(self.error(instruction, "a texture or surface is not given in a register of 64 bits"));
        }
        self.source(instruction, operand, Type::B64)
    }

    pub fn texture_fetch(
        &mut self,
        instruction: &Instruction,
        modifiers: &mut Modifiers,
    ) -> Result<(), Error> {
        let gather = instruction.name == "tld4";
        let channel = modifiers.one_of(&[("r", 0u8), ("g", 1), ("b", 2), ("a", 3)]).filter(|_| gather);
        let level = modifiers.take("level") && !gather;
        let gradient = modifiers.take("grad") && !gather;
        modifiers.take("base");
        let geometry = modifiers.one_of(&GEOMETRIES);
        let four = modifiers.take("v4");
        let types = [modifiers.take_type(), modifiers.take_type()];
        let (Some(geometry), true, true) = (geometry, four, modifiers.all_taken()) else {
            return Err(self.unknown(instruction));
        };
        let integer = match types {
            [Some(Type::F32 | Type::U32 | Type::S32), Some(Type::F32)] => false,
            [Some(Type::F32 | Type::U32 | Type::S32), Some(Type::S32)] => true,
            _ => return Err(self.unknown(instruction)),
        };
        let flat = matches!(geometry, Geometry::D2 | Geometry::A2);
        let fits = channel.is_some() == gather && (!gather || flat && !integer) && !(level && gradient);
        if !fits {
            return Err(self.unknown(instruction));
        }
        let count = usize::from(geometry.has_layer()) + geometry.dimensions();
        let extra = usize::from(level) + 2 * usize::from(gradient);
        self.expect(instruction, 2 + extra..=3 + extra)?;
        let (values, resident) = match &instruction.operands[0] {
            Operand::Pair(values, resident) => (&**values, Some(&**resident)),
            values => (values, None),
        };
        let mut results = self.results(instruction, values)?;
        if results.len() != 4 {
            return Err(self.error(instruction, format!("found {} results, expected 4", results.len())));
        }
        let literal = if integer { Type::S32 } else { Type::F32 };
        let mut sources = self.coordinates(instruction, &instruction.operands[1], count, literal)?;
        let mut at = 2;
        let detail = match (level, gradient) {
            (true, _) => {
                sources.push(self.source(instruction, &instruction.operands[at], literal)?);
                at += 1;
                FetchDetail::Level
            }
            (_, true) => {
                for _ in 0..2 {
                    let found = self.sources(instruction, &instruction.operands[at], Type::F32)?;
                    if found.len() < geometry.dimensions() {
                        return Err(self.error(instruction, "a gradient has too few parts"));
                    }
                    sources.extend(&found[..geometry.dimensions()]);
                    at += 1;
                }
                FetchDetail::Gradient
            }
            _ => FetchDetail::Base,
        };
        let mut offsets = 0;
        if let Some(operand) = instruction.operands.get(at) {
            // A single value that is no vector is what depths are compared with.
            let Operand::Vector(_) = operand else { return Err(self.unknown(instruction)) };
            let found = self.sources(instruction, operand, Type::S32)?;
            offsets = found.len().min(geometry.dimensions()).min(3);
            sources.extend(&found[..offsets]);
        }
        if let Some(resident) = resident {
            let resident = self.result(instruction, resident)?;
            results.push(resident);
        }
        let fetch = Fetch { geometry, integer, detail, offsets: offsets as u8, channel };
        self.emit(Op::Fetch(fetch), &results, &sources);
        Ok(())
    }

    pub fn surface_access(
        &mut self,
        instruction: &Instruction,
        modifiers: &mut Modifiers,
    ) -> Result<(), Error> {
        let store = instruction.name == "sust";
        let plain = modifiers.take("b");
        let geometry = modifiers.one_of(&GEOMETRIES[..5]);
        modifiers.take_any(&["ca", "cg", "cs", "cv", "wb", "wt"]);
        let count = modifiers.one_of(&[("v2", 2u8), ("v4", 4)]).unwrap_or(1);
        let width = match modifiers.take_type() {
            Some(ty @ (Type::B8 | Type::B16 | Type::B32 | Type::B64)) => ty.bytes() as u8,
            _ => return Err(self.unknown(instruction)),
        };
        let bounds =
            modifiers.one_of(&[("trap", Bounds::Trap), ("clamp", Bounds::Clamp), ("zero", Bounds::Zero)]);
        let (true, Some(geometry), true) = (plain, geometry, modifiers.all_taken()) else {
            return Err(self.unknown(instruction));
        };
        self.expect(instruction, 2..=2)?;
        let (place, values) = if store { (0, 1) } else { (1, 0) };
        let coordinates = usize::from(geometry.has_layer()) + geometry.dimensions();
        let mut sources =
            self.coordinates(instruction, &instruction.operands[place], coordinates, Type::S32)?;
        let values = &instruction.operands[values];
        let values = match store {
            true => self.sources(instruction, values, Type::B64)?,
            false => self.results(instruction, values)?,
        };
        if values.len() != usize::from(count) {
            return Err(self.error(instruction, format!("found {} values, expected {count}", values.len())));
        }
        let access = SurfaceAccess { geometry, width, count, bounds: bounds.unwrap_or(Bounds::Trap), store };
        let mut results = Vec::new();
        if store {
            sources.extend(values)
        } else {
            results = values
        }
        self.emit(Op::Surface(access), &results, &sources);
        Ok(())
    }

    /// `txq`, `suq`
    pub fn view_query(&mut self, instruction: &Instruction, modifiers: &mut Modifiers) -> Result<(), Error> {
        let surface = instruction.name == "suq";
        let level = modifiers.take("level") && !surface;
        let query = modifiers.one_of(if surface { &QUERIES[..4] } else { &QUERIES[..] });
        let (Some(query), true, true) = (query, modifiers.take("b32"), modifiers.all_taken()) else {
            return Err(self.unknown(instruction));
        };
        self.expect(instruction, 2 + usize::from(level)..=2 + usize::from(level))?;
        let Operand::Address(base, 0) = &instruction.operands[1] else {
            return Err(self.error(instruction, "an operand is not like `[%rd1]`"));
        };
        let view = self.view(instruction, base)?;
        let level = match level {
            true => self.source(instruction, &instruction.operands[2], Type::U32)?,
            false => self.bits(0),
        };
        let result = self.result(instruction, &instruction.operands[0])?;
        self.emit(Op::ViewQuery(query), &[result], &[view, level]);
        Ok(())
    }

    /// `istypep`
    pub fn view_type(&mut self, instruction: &Instruction, modifiers: &mut Modifiers) -> Result<(), Error> {
        let kinds =
            [("texref", Query::IsTexture), ("samplerref", Query::IsSampler), ("surfref", Query::IsSurface)];
        let (Some(query), true) = (modifiers.one_of(&kinds), modifiers.all_taken()) else {
            return Err(self.unknown(instruction));
        };
        self.expect(instruction, 2..=2)?;
        let view = self.view(instruction, &instruction.operands[1])?;
        let zero = self.bits(0);
        let result = self.result(instruction, &instruction.operands[0])?;
        self.emit(Op::ViewQuery(query), &[result], &[view, zero]);
        Ok(())
    }
}
