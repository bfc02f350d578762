//! Through which of its parameters a kernel may write to global memory, as far as its instructions tell.
//!
//! Registers carry the parameters that their values were computed from, whatever the order of the instructions. A parameter whose
//! register is in the address of a store, an atomic operation or a copy to global memory is one that the kernel writes through.
//!
//! ```text
//!  ld.param %rd1, [out]     %rd1: out
//!  ld.param %rd2, [index]   %rd2: index
//!  ld.global %r1, [%rd2]    %r1: nothing, whatever lies in memory
//!  mad.wide %rd3, %r1, 4, %rd1      %rd3: out
//!  st.global [%rd3], %r2    written: out
//! ```
//!
//! What a kernel itself has stored in local or shared memory is followed there, as one. An address that lies in memory when the
//! kernel begins is not. A kernel that calls functions, or has an instruction that is not known here, is not told of, nor one whose
//! instructions stand in an order in which this would take long.
//! PARALLELGPUOS knows the data flow of kernels that libraries come with, and speculates on that of others (section 4.2).

mod effect;

use std::collections::HashMap;

use crate::ast::{Ast, Function, Statement};
use crate::{Error, parser};
use effect::{Access, Effect, effect};

/// Parameters of a kernel that are followed.
const MOST_PARAMETERS: usize = u128::BITS as usize;
/// How often a kernel's instructions are gone through. As compilers order them, loops take a few.
const MOST_PASSES: usize = 64;
/// Functions of the driver's that write to nothing of the program's.
const HARMLESS: [&str; 2] = ["vprintf", "__assertfail"];

/// By kernel, for each of its parameters whether the kernel may write through it. A kernel of which nobody can tell is missing.
///
/// Fails for text that is not PTX, or not of a kind that the emulated GPU knows.
pub fn write_sets(source: &str) -> Result<HashMap<String, Vec<bool>>, Error> {
    let mut ast = parser::parse(source)?;
    let kernels: Vec<Function> = ast.functions.extract_if(.., |function| function.kernel).collect();
    let told = |kernel: Function| Some((kernel.name.clone(), write_set(&ast, &kernel)?));
    Ok(kernels.into_iter().filter_map(told).collect())
}

fn write_set(ast: &Ast, kernel: &Function) -> Option<Vec<bool>> {
    let body = kernel.body.as_ref().filter(|_| kernel.parameters.len() <= MOST_PARAMETERS)?;
    let mut flow = Flow::default();
    for (number, parameter) in kernel.parameters.iter().enumerate() {
        let register = flow.register(&parameter.name);
        flow.registers[register].places = 1 << number;
    }
    let mut effects = Vec::new();
    flow.read(ast, body, &mut effects)?;
    let mut pass = |_| !effects.iter().fold(false, |changed, effect| changed | flow.apply(effect));
    (0..MOST_PASSES).any(&mut pass).then_some(())?;
    Some((0..kernel.parameters.len()).map(|number| flow.written >> number & 1 == 1).collect())
}

/// Sets of parameters, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Origin {
    /// Whose values it may be computed from.
    values: u128,
    /// Whose own places it may point to, in the parameters' memory.
    places: u128,
}

impl Origin {
    /// Whether there is more in it now.
    fn add(&mut self, other: Origin) -> bool {
        let before = *self;
        self.values |= other.values;
        self.places |= other.places;
        *self != before
    }
}

#[derive(Default)]
struct Flow<'a> {
    names: HashMap<&'a str, usize>,
    registers: Vec<Origin>,
    /// What the kernel has stored, by [`Access::memories`].
    memories: [Origin; 3],
    written: u128,
}

impl<'a> Flow<'a> {
    /// The number of a register, or of anything else that has a name.
    fn register(&mut self, name: &'a str) -> usize {
        let next = self.registers.len();
        let number = *self.names.entry(name).or_insert(next);
        self.registers.resize(self.registers.len().max(number + 1), Origin::default());
        number
    }

    /// The effects of these statements. None if one is not known.
    fn read(&mut self, ast: &Ast, statements: &'a [Statement], effects: &mut Vec<Effect>) -> Option<()> {
        for statement in statements {
            match statement {
                Statement::Block(inner) => self.read(ast, inner, effects)?,
                Statement::Instruction(instruction) => {
                    let is_harmless = |name: &str| {
                        let mut found = ast.functions.iter().filter(|function| function.name == name);
                        HARMLESS.contains(&name) && found.all(|function| function.body.is_none())
                    };
                    effects.extend(effect(instruction, &is_harmless, &mut |name| self.register(name))?);
                }
                _ => {}
            }
        }
        Some(())
    }

    fn sum(&self, registers: &[usize]) -> Origin {
        registers.iter().fold(Origin::default(), |mut sum, register| {
            sum.add(self.registers[*register]);
            sum
        })
    }

    /// Whether anything new came of it.
    fn apply(&mut self, effect: &Effect) -> bool {
        let mut changed = false;
        match effect {
            Effect::Compute { to, from } => {
                let sum = self.sum(from);
                to.iter().for_each(|register| changed |= self.registers[*register].add(sum));
            }
            Effect::Load { to, address, access } => {
                let mut loaded = Origin { values: self.sum(address).places, places: 0 };
                access.memories().iter().for_each(|memory| {
                    loaded.add(self.memories[*memory]);
                });
                to.iter().for_each(|register| changed |= self.registers[*register].add(loaded));
            }
            Effect::Store { address, values, access } => {
                let (address, stored) = (self.sum(address), self.sum(values));
                access.memories().iter().for_each(|memory| changed |= self.memories[*memory].add(stored));
                if matches!(access, Access::Global | Access::Any) {
                    let written = self.written | address.values | address.places;
                    changed |= std::mem::replace(&mut self.written, written) != written;
                }
            }
        }
        changed
    }
}
