//! Loads, stores, asynchronous copies and mbarriers.

use super::function::FunctionLowering;
use super::operand::{Address, PointerBase};
use crate::Error;
use crate::alu::modifiers::Modifiers;
use crate::ast::{Instruction, Operand};
use crate::program::{Access, Mbarrier, Op};
use crate::types::{Space, Type};

/// Words that change caching or order, but not what an in-order memory does.
const HINTS: [&str; 35] = [
    "ca",
    "cg",
    "cs",
    "cv",
    "wb",
    "wt",
    "lu",
    "nc",
    "weak",
    "sys",
    "gpu",
    "cta",
    "cluster",
    "unified",
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L1::evict_first",
    "L1::evict_last",
    "L1::no_allocate",
    "L2::evict_normal",
    "L2::evict_first",
    "L2::evict_last",
    "L2::64B",
    "L2::128B",
    "L2::256B",
    "L2::cache_hint",
    "L1",
    "L2",
    "level::eviction_priority",
    "acq_rel",
    "sc",
    "release",
    "acquire",
    "relaxed",
    "noftz",
];

pub(super) fn take_space(modifiers: &mut Modifiers) -> Space {
    modifiers
        .one_of(&[
            ("global", Space::Global),
            ("const", Space::Const),
            ("shared", Space::Shared),
            ("shared::cta", Space::Shared),
            ("shared::cluster", Space::Shared),
            ("local", Space::Local),
            ("param", Space::Param),
            ("param::entry", Space::Param),
            ("param::func", Space::Param),
        ])
        .unwrap_or(Space::Generic)
}

/// Takes words of order, scope and caching; says whether other threads may be awaited here.
pub(super) fn take_hints(modifiers: &mut Modifiers) -> bool {
    let volatile = modifiers.take("volatile") | modifiers.take("mmio");
    let ordered = ["acquire", "relaxed", "release", "acq_rel", "sc"].iter().any(|word| modifiers.has(word));
    modifiers.take_any(&HINTS);
    volatile || ordered
}

impl FunctionLowering<'_, '_> {
    fn access(&mut self, address: &Address, space: Space, ty: Type, count: usize) -> Access {
        let (width, count) = if ty == Type::B128 { (8, 2 * count) } else { (ty.bytes() as usize, count) };
        let frame = address.known == Some(PointerBase::Frame);
        let space = match space {
            _ if frame => Space::Local,
            // A parameter's address in a register is generic.
            Space::Param if address.known.is_none() => Space::Generic,
            other => other,
        };
        Access {
            space,
            width: width as u8,
            count: count as u8,
            sign_extend: 0,
            frame,
            volatile: false,
            offset: address.offset,
        }
    }

    pub fn load(&mut self, instruction: &Instruction, modifiers: &mut Modifiers) -> Result<(), Error> {
        let volatile = take_hints(modifiers);
        let space = take_space(modifiers);
        let vector = modifiers.one_of(&[("v2", 2), ("v4", 4), ("v8", 8)]).unwrap_or(1);
        let Some(ty) = modifiers.take_type().filter(|_| modifiers.all_taken()) else {
            return Err(self.unknown(instruction));
        };
        // A third operand is a cache policy.
        self.expect(instruction, 2..=3)?;
        let address = self.address(instruction, &instruction.operands[1])?;
        let mut access = self.access(&address, space, ty, vector);
        access.volatile = volatile;
        let results = self.results(instruction, &instruction.operands[0])?;
        if results.len() != usize::from(access.count) {
            return Err(self
                .error(instruction, format!("found {} results, expected {}", results.len(), access.count)));
        }
        if ty.is_signed() {
            let register = self.rows[results[0] as usize];
            access.sign_extend = register.bits().min(64) as u8;
        }
        match address.known {
            Some(PointerBase::Parameter) => self.emit(Op::LoadParameter(access), &results, &[]),
            _ => self.emit(Op::Load(access), &results, &[address.base]),
        }
        Ok(())
    }

    pub fn store(&mut self, instruction: &Instruction, modifiers: &mut Modifiers) -> Result<(), Error> {
        take_hints(modifiers);
        let space = take_space(modifiers);
        let vector = modifiers.one_of(&[("v2", 2), ("v4", 4), ("v8", 8)]).unwrap_or(1);
        let Some(ty) = modifiers.take_type().filter(|_| modifiers.all_taken()) else {
            return Err(self.unknown(instruction));
        };
        self.expect(instruction, 2..=3)?;
        let address = self.address(instruction, &instruction.operands[0])?;
        if address.known == Some(PointerBase::Parameter) {
            return Err(self.error(instruction, "a kernel's parameters cannot be written"));
        }
        let access = self.access(&address, space, ty, vector);
        let values = self.sources(instruction, &instruction.operands[1], ty)?;
        if values.len() != usize::from(access.count) {
            return Err(
                self.error(instruction, format!("found {} values, expected {}", values.len(), access.count))
            );
        }
        let mut sources = vec![address.base];
        sources.extend(values);
        self.emit(Op::Store(access), &[], &sources);
        Ok(())
    }

    /// Instructions that only advise the caches.
    pub fn advice(&mut self, instruction: &Instruction, modifiers: &mut Modifiers) -> Result<(), Error> {
        take_hints(modifiers);
        take_space(modifiers);
        modifiers.take("tensormap");
        if !modifiers.all_taken() {
            return Err(self.unknown(instruction));
        }
        for operand in instruction.operands.iter().filter(|operand| matches!(operand, Operand::Address(..))) {
            self.address(instruction, operand)?;
        }
        Ok(())
    }

    /// `createpolicy`: a policy that nothing heeds.
    pub fn cache_policy(
        &mut self,
        instruction: &Instruction,
        modifiers: &mut Modifiers,
    ) -> Result<(), Error> {
        let kinds = ["fractional", "range", "cvt"];
        let kind = modifiers.take_with(|word| kinds.iter().copied().find(|known| *known == word));
        let is_hint = |word: &str| (word == "L2" || word.starts_with("L2::")).then_some(());
        while modifiers.take_with(is_hint).is_some() {}
        take_space(modifiers);
        modifiers.take("b64");
        if kind.is_none() || !modifiers.all_taken() {
            return Err(self.unknown(instruction));
        }
        self.expect(instruction, 1..=4)?;
        let result = self.result(instruction, &instruction.operands[0])?;
        let zero = self.bits(0);
        self.copy(result, zero);
        Ok(())
    }

    /// `cp.async` and what belongs to it. Copies are complete when they are issued.
    pub fn asynchronous(
        &mut self,
        instruction: &Instruction,
        modifiers: &mut Modifiers,
    ) -> Result<(), Error> {
        if !modifiers.take("async") {
            return Err(self.unknown(instruction));
        }
        if modifiers.take("bulk") {
            return self.bulk(instruction, modifiers);
        }
        if ["commit_group", "wait_group", "wait_all"].iter().any(|word| modifiers.take(word)) {
            return if modifiers.all_taken() { Ok(()) } else { Err(self.unknown(instruction)) };
        }
        if modifiers.take("mbarrier") && modifiers.take("arrive") {
            let increments = !modifiers.take("noinc");
            let space = take_space(modifiers);
            modifiers.take("b64");
            if !modifiers.all_taken() {
                return Err(self.unknown(instruction));
            }
            // The arrival that is triggered by the copies is balanced by a pending count of its own.
            if !increments {
                let address = self.address(instruction, &instruction.operands[0])?;
                let state = self.temporary(Type::B64);
                let one = self.bits(1);
                let op = Op::Mbarrier(Mbarrier::Arrive { drop: false }, space, address.offset);
                self.emit(op, &[state], &[address.base, one]);
            }
            return Ok(());
        }
        take_hints(modifiers);
        modifiers.take_any(&["shared", "shared::cta", "global"]);
        // `.shared` and `.global` name destination and source.
        modifiers.take_any(&["shared", "shared::cta", "global"]);
        if !modifiers.all_taken() {
            return Err(self.unknown(instruction));
        }
        self.expect(instruction, 3..=5)?;
        let to = self.address(instruction, &instruction.operands[0])?;
        let from = self.address(instruction, &instruction.operands[1])?;
        let Operand::Integer(bytes @ (4 | 8 | 16)) = instruction.operands[2] else {
            return Err(self.error(instruction, "the size is not 4, 8 or 16"));
        };
        let present = match instruction.operands.get(3) {
            Some(operand) if self.register_type(operand) == Some(Type::Pred) => {
                let ignore = self.source(instruction, operand, Type::Pred)?;
                let size = self.temporary(Type::B32);
                let full = self.bits(bytes);
                self.emit_alu(
                    alu!(|ignore: bool, full: u32| if ignore { 0 } else { full }),
                    size,
                    &[ignore, full],
                );
                size
            }
            Some(operand) if self.register_type(operand) != Some(Type::B64) => {
                self.source(instruction, operand, Type::U32)?
            }
            _ => self.bits(bytes),
        };
        let op = Op::Copy { bytes: bytes as u32, offsets: [to.offset, from.offset] };
        self.emit(op, &[], &[to.base, from.base, present]);
        Ok(())
    }

    fn bulk(&mut self, instruction: &Instruction, modifiers: &mut Modifiers) -> Result<(), Error> {
        if modifiers.take("tensor") {
            return self.tensor_copy(instruction, modifiers);
        }
        if ["commit_group", "wait_group"].iter().any(|word| modifiers.take(word)) {
            modifiers.take("read");
            return if modifiers.all_taken() { Ok(()) } else { Err(self.unknown(instruction)) };
        }
        let spaces = |word: &str| match word {
            "shared::cluster" | "shared::cta" => Some(Space::Shared),
            "global" => Some(Space::Global),
            _ => None,
        };
        let to = modifiers.take_with(spaces);
        let from = modifiers.take_with(spaces);
        let signal = modifiers.take("mbarrier::complete_tx::bytes");
        modifiers.take_any(&["bulk_group", "L2::cache_hint"]);
        let (Some(to), Some(from)) = (to, from) else {
            return Err(self.unknown(instruction));
        };
        if !modifiers.all_taken() {
            return Err(self.unknown(instruction));
        }
        self.expect(instruction, 3..=5)?;
        let mut sources = Vec::new();
        for operand in &instruction.operands[..2] {
            let address = self.address(instruction, operand)?;
            sources.push(self.absolute(&address));
        }
        sources.push(self.source(instruction, &instruction.operands[2], Type::U32)?);
        if signal {
            self.expect(instruction, 4..=5)?;
            let address = self.address(instruction, &instruction.operands[3])?;
            sources.push(self.absolute(&address));
        }
        self.emit(Op::BulkCopy { to, from, signal }, &[], &sources);
        Ok(())
    }

    pub fn absolute(&mut self, address: &Address) -> u32 {
        if address.offset == 0 {
            return address.base;
        }
        let sum = self.temporary(Type::B64);
        let offset = self.bits(address.offset as u64);
        self.emit_alu(alu!(|a: u64, b: u64| a.wrapping_add(b)), sum, &[address.base, offset]);
        sum
    }

    pub fn mbarrier(&mut self, instruction: &Instruction, modifiers: &mut Modifiers) -> Result<(), Error> {
        let Some(what) = modifiers.take_first() else {
            return Err(self.unknown(instruction));
        };
        let expect = modifiers.take("expect_tx");
        let parity = modifiers.take("parity");
        modifiers.take("noComplete");
        take_hints(modifiers);
        let space = take_space(modifiers);
        modifiers.take("b64");
        let kind = match (what, expect, parity) {
            ("init", false, false) => Mbarrier::Init,
            ("inval", false, false) => Mbarrier::Invalidate,
            ("arrive", false, false) => Mbarrier::Arrive { drop: false },
            ("arrive_drop", false, false) => Mbarrier::Arrive { drop: true },
            ("arrive", true, false) => Mbarrier::ArriveExpect,
            ("expect_tx", false, false) => Mbarrier::Expect,
            ("complete_tx", false, false) => Mbarrier::Complete,
            ("test_wait" | "try_wait", false, false) => Mbarrier::Test,
            ("test_wait" | "try_wait", false, true) => Mbarrier::TestParity,
            ("pending_count", false, false) => Mbarrier::PendingCount,
            _ => return Err(self.unknown(instruction)),
        };
        if !modifiers.all_taken() {
            return Err(self.unknown(instruction));
        }
        let operands = &instruction.operands;
        if kind == Mbarrier::PendingCount {
            self.expect(instruction, 2..=2)?;
            let state = self.source(instruction, &operands[1], Type::B64)?;
            let result = self.result(instruction, &operands[0])?;
            self.emit(Op::Mbarrier(kind, space, 0), &[result], &[state]);
            return Ok(());
        }
        let has_result = !matches!(operands.first(), Some(Operand::Address(..)));
        let at = usize::from(has_result);
        self.expect(instruction, at + 1..=at + 3)?;
        let address = self.address(instruction, &operands[at])?;
        let value = match operands.get(at + 1) {
            Some(operand) => self.source(instruction, operand, Type::B64)?,
            None => self.bits(1),
        };
        let result =
            if has_result { self.result(instruction, &operands[0])? } else { self.temporary(Type::B64) };
        self.emit(Op::Mbarrier(kind, space, address.offset), &[result], &[address.base, value]);
        Ok(())
    }
}
