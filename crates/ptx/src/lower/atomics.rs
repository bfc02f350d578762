//! `atom` and `red`.

use super::function::FunctionLowering;
use super::memory::{take_hints, take_space};
use crate::Error;
use crate::alu::Value;
use crate::alu::modifiers::Modifiers;
use crate::ast::Instruction;
use crate::program::{Access, Atomic, Op};
use crate::types::Type;

type Update = fn(u64, u64, u64) -> u64;

/// The new value from the old one and the operands.
fn update(operation: &str, ty: Type) -> Option<Update> {
    macro_rules! op {
        ($t:ty; |$old:ident, $b:ident| $e:expr) => {{
            fn run(old: u64, b: u64, _: u64) -> u64 {
                let ($old, $b) = (<$t as Value>::of(old), <$t as Value>::of(b));
                Value::bits($e)
            }
            run as Update
        }};
    }
    use crate::alu::packed;
    Some(match (operation, ty) {
        ("and", Type::B32 | Type::B64) => op!(u64; |old, b| old & b),
        ("or", Type::B32 | Type::B64) => op!(u64; |old, b| old | b),
        ("xor", Type::B32 | Type::B64) => op!(u64; |old, b| old ^ b),
        ("exch", Type::B32 | Type::B64 | Type::B128) => op!(u64; |_old, b| b),
        ("cas", Type::B16 | Type::B32 | Type::B64 | Type::B128) => |old, b, c| if old == b { c } else { old },
        ("add", Type::U32 | Type::S32) => op!(u32; |old, b| old.wrapping_add(b)),
        ("add", Type::U64 | Type::S64) => op!(u64; |old, b| old.wrapping_add(b)),
        ("add", Type::F32) => op!(f32; |old, b| old + b),
        ("add", Type::F64) => op!(f64; |old, b| old + b),
        ("inc", Type::U32) => op!(u32; |old, b| if old >= b { 0 } else { old + 1 }),
        ("dec", Type::U32) => op!(u32; |old, b| if old == 0 || old > b { b } else { old - 1 }),
        ("min", Type::U32) => op!(u32; |old, b| old.min(b)),
        ("max", Type::U32) => op!(u32; |old, b| old.max(b)),
        ("min", Type::S32) => op!(i32; |old, b| old.min(b)),
        ("max", Type::S32) => op!(i32; |old, b| old.max(b)),
        ("min", Type::U64) => op!(u64; |old, b| old.min(b)),
        ("max", Type::U64) => op!(u64; |old, b| old.max(b)),
        ("min", Type::S64) => op!(i64; |old, b| old.min(b)),
        ("max", Type::S64) => op!(i64; |old, b| old.max(b)),
        ("add", Type::F16) => |old, b, _| packed::add_half(old, b),
        ("add", Type::F16x2) => |old, b, _| packed::pair(old, b, packed::add_half),
        ("add", Type::Bf16) => |old, b, _| packed::add_brain(old, b),
        ("add", Type::Bf16x2) => |old, b, _| packed::pair(old, b, packed::add_brain),
        ("min", Type::F16) => |old, b, _| packed::min_half(old, b),
        ("max", Type::F16) => |old, b, _| packed::max_half(old, b),
        ("min", Type::F16x2) => |old, b, _| packed::pair(old, b, packed::min_half),
        ("max", Type::F16x2) => |old, b, _| packed::pair(old, b, packed::max_half),
        _ => return None,
    })
}

impl FunctionLowering<'_, '_> {
    pub fn atomic(&mut self, instruction: &Instruction, modifiers: &mut Modifiers) -> Result<(), Error> {
        take_hints(modifiers);
        let space = take_space(modifiers);
        let vector = modifiers.one_of(&[("v2", 2usize), ("v4", 4), ("v8", 8)]).unwrap_or(1);
        let operations = ["and", "or", "xor", "exch", "cas", "add", "inc", "dec", "min", "max"];
        let operation = modifiers.take_with(|word| operations.iter().copied().find(|known| *known == word));
        let ty = modifiers.take_type();
        let (Some(operation), Some(ty)) = (operation, ty) else {
            return Err(self.unknown(instruction));
        };
        let Some(update) = update(operation, ty).filter(|_| modifiers.all_taken()) else {
            return Err(self.unknown(instruction));
        };
        let reduction = instruction.name == "red";
        let compare = operation == "cas";
        if reduction && matches!(operation, "exch" | "cas") {
            return Err(self.unknown(instruction));
        }
        let at = usize::from(!reduction);
        let least = at + 2 + usize::from(compare);
        self.expect(instruction, least..=least + 1)?;
        let address = self.address(instruction, &instruction.operands[at])?;
        let mut values = self.sources(instruction, &instruction.operands[at + 1], ty)?;
        if compare {
            values.extend(self.sources(instruction, &instruction.operands[at + 2], ty)?);
        }
        let rows = if ty == Type::B128 { 2 } else { vector };
        if values.len() != rows * (1 + usize::from(compare)) {
            return Err(self.error(instruction, "the operands do not fit the type"));
        }
        let results = if reduction {
            (0..rows).map(|_| self.temporary(Type::B64)).collect()
        } else {
            self.results(instruction, &instruction.operands[0])?
        };
        if results.len() != rows {
            // A sink stands for all rows of the result.
            return Err(self.error(instruction, "the result does not fit the type"));
        }
        let mut access = Access {
            space,
            width: ty.bytes().min(8) as u8,
            count: if ty == Type::B128 { 2 } else { 1 },
            sign_extend: 0,
            frame: address.known.is_some(),
            volatile: !reduction,
            offset: address.offset,
        };
        if ty == Type::B128 {
            let mut sources = vec![address.base];
            sources.extend(values);
            self.emit(Op::Atomic128 { access, compare }, &results, &sources);
            return Ok(());
        }
        let zero = self.bits(0);
        for (index, result) in results.iter().enumerate() {
            access.offset = address.offset.wrapping_add(index as i64 * i64::from(ty.bytes()));
            let second = if compare { values[1] } else { zero };
            let op = Op::Atomic(Atomic { access, update });
            self.emit(op, &[*result], &[address.base, values[index], second]);
        }
        Ok(())
    }
}
