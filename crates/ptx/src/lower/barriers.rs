//! Barriers of blocks and clusters, and fences.

use super::function::FunctionLowering;
use super::memory::{take_hints, take_space};
use crate::Error;
use crate::alu::modifiers::Modifiers;
use crate::ast::{Instruction, Operand};
use crate::program::{Barrier, BarrierKind, Op};
use crate::types::Type;

impl FunctionLowering<'_, '_> {
    pub fn barrier(&mut self, instruction: &Instruction, modifiers: &mut Modifiers) -> Result<(), Error> {
        if modifiers.take("warp") {
            if !modifiers.take("sync") || !modifiers.all_taken() {
                return Err(self.unknown(instruction));
            }
            self.expect(instruction, 1..=1)?;
            let mask = self.source(instruction, &instruction.operands[0], Type::B32)?;
            self.emit(Op::WarpBarrier, &[], &[mask]);
            return Ok(());
        }
        let aligned = modifiers.take("aligned");
        if modifiers.take("cluster") {
            let arrive = modifiers.take("arrive");
            let wait = modifiers.take("wait");
            modifiers.take_any(&["release", "relaxed", "acquire"]);
            if arrive == wait || !modifiers.all_taken() {
                return Err(self.unknown(instruction));
            }
            self.emit(Op::ClusterBarrier { arrive, wait }, &[], &[]);
            return Ok(());
        }
        modifiers.take("cta");
        // The two spellings differ in whether a warp must arrive whole; either works here.
        if aligned && instruction.name == "bar" {
            return Err(self.unknown(instruction));
        }
        let Some(what) = modifiers.take_first() else {
            return Err(self.unknown(instruction));
        };
        let inverted = matches!(instruction.operands.last(), Some(Operand::Not(_)));
        let kind = match what {
            "sync" => BarrierKind::Sync,
            "arrive" => BarrierKind::Arrive,
            "red" => {
                let kinds = [
                    ("popc", BarrierKind::Popc { inverted }),
                    ("and", BarrierKind::And { inverted }),
                    ("or", BarrierKind::Or { inverted }),
                ];
                let Some(kind) = modifiers.one_of(&kinds) else {
                    return Err(self.unknown(instruction));
                };
                modifiers.take_any(&["u32", "pred"]);
                kind
            }
            _ => return Err(self.unknown(instruction)),
        };
        if !modifiers.all_taken() {
            return Err(self.unknown(instruction));
        }
        let reduces = !matches!(kind, BarrierKind::Sync | BarrierKind::Arrive);
        let mut operands = instruction.operands.iter();
        let mut results = Vec::new();
        if reduces {
            self.expect(instruction, 3..=4)?;
            results.extend(operands.next().map(|operand| self.result(instruction, operand)).transpose()?);
        } else {
            self.expect(instruction, 1..=2)?;
        }
        let mut sources = Vec::new();
        for operand in operands {
            let plain = match operand {
                Operand::Not(name) => &Operand::Name(name.clone()),
                operand => operand,
            };
            sources.push(self.source(instruction, plain, Type::B32)?);
        }
        let counted = sources.len() > 1 + usize::from(reduces);
        self.emit(Op::Barrier(Barrier { kind, counted }), &results, &sources);
        Ok(())
    }

    pub fn fence(&mut self, instruction: &Instruction, modifiers: &mut Modifiers) -> Result<(), Error> {
        modifiers.take_any(&["gl", "proxy", "async", "alias", "mbarrier_init"]);
        modifiers.take_any(&[
            "async::generic",
            "sync_restrict::shared::cluster",
            "sync_restrict::shared::cta",
        ]);
        modifiers.take_any(&["async.global", "async.shared", "tensormap::generic"]);
        take_hints(modifiers);
        take_space(modifiers);
        modifiers.take_any(&["release", "acquire", "cluster", "gpu"]);
        if !modifiers.all_taken() {
            return Err(self.unknown(instruction));
        }
        self.emit(Op::Fence, &[], &[]);
        Ok(())
    }
}
