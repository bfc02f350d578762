//! Texts to one program: symbols resolved, instructions decoded, registers assigned.

mod allocate;
mod arithmetic;
mod atomics;
mod barriers;
mod calls;
mod control;
mod fragment;
mod function;
mod matrix;
mod memory;
mod moves;
mod operand;
mod special;
mod symbols;
mod tensor;
mod texture;
mod warp;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, LazyLock, Mutex};

use crate::Error;
use crate::ast::{Ast, Directives, Linkage, Variable};
use crate::module::{Entry, Parameter};
use crate::program::{Constant, Function, Instruction, Program};
use function::FunctionLowering;
use symbols::{Definition, Symbols};

/// What the functions of a program share while they are decoded.
pub(crate) struct Unit<'a> {
    symbols: Symbols<'a>,
    code: Vec<Instruction>,
    operands: Vec<u32>,
    constants: Vec<Constant>,
    constant_index: HashMap<Constant, u32>,
    unresolved: BTreeSet<String>,
    /// Shared variables that device functions use: at these offsets in every kernel.
    common_shared: Shared,
}

/// A layout of static shared memory: variables by their text's index and name.
#[derive(Debug, Default, Clone)]
struct Shared {
    offsets: HashMap<(usize, String), u32>,
    size: u32,
}

impl Shared {
    fn place(&mut self, size: u64, align: u32) -> u32 {
        let at = self.size.next_multiple_of(align.max(1));
        self.size = at.saturating_add(u32::try_from(size).unwrap_or(u32::MAX / 2));
        at
    }
}

impl Unit<'_> {
    fn constant(&mut self, constant: Constant) -> u32 {
        let next = self.constants.len() as u32;
        let index = *self.constant_index.entry(constant).or_insert(next);
        if index == next {
            self.constants.push(constant);
        }
        index | crate::program::CONSTANT
    }
}

/// Offsets of variables laid out one after the other, and the end.
pub(crate) fn layout(variables: &[Variable], start: u32) -> (Vec<Parameter>, u32) {
    let mut end = start;
    let parameters = variables
        .iter()
        .map(|variable| {
            let offset = end.next_multiple_of(variable.align.max(1));
            let size = variable.size.min(1 << 24) as u32;
            end = offset.saturating_add(size);
            Parameter { offset, size, align: variable.align }
        })
        .collect();
    (parameters, end)
}

/// The most registers that a thread may have so that every block that the kernel allows fits a multiprocessor. What
/// it needs beyond counts as spilled, as a compiler would do that is told the size of the blocks: the count is an
/// estimate, and a launch must not fail because of one.
fn register_limit(directives: &Directives) -> u32 {
    const OF_MULTIPROCESSOR: u32 = 1 << 16;
    let threads = directives.required_threads.or(directives.max_threads).map_or(1024, product);
    let together =
        threads.clamp(128, 1024).next_multiple_of(128).saturating_mul(directives.min_blocks.unwrap_or(1));
    let fitting = (OF_MULTIPROCESSOR / together.max(1) / 8 * 8).max(16);
    fitting.min(directives.max_registers.unwrap_or(255)).min(255)
}

fn product(dimensions: [u32; 3]) -> u32 {
    dimensions.iter().fold(1, |product, n| product.saturating_mul(*n))
}

/// Functions that every device has besides those of the interpreter.
static RUNTIME: LazyLock<Option<Arc<Ast>>> =
    LazyLock::new(|| crate::parser::parse(include_str!("runtime.ptx")).ok().map(Arc::new));

/// Decodes the texts, and the device runtime with them if they call it.
pub(crate) fn lower(asts: &[Arc<Ast>]) -> Result<Program, Error> {
    let program = lower_texts(asts)?;
    let Some(runtime) = &*RUNTIME else {
        return Ok(program);
    };
    let defines = |name: &String| runtime.functions.iter().any(|function| function.name == *name);
    if !program.unresolved.iter().any(defines) {
        return Ok(program);
    }
    let mut all = asts.to_vec();
    all.push(Arc::clone(runtime));
    lower_texts(&all)
}

fn lower_texts(asts: &[Arc<Ast>]) -> Result<Program, Error> {
    let symbols = Symbols::collect(asts)?;
    let dynamic_align = asts
        .iter()
        .flat_map(|ast| &ast.variables)
        .filter(|variable| variable.unsized_array)
        .map(|variable| variable.align)
        .max()
        .unwrap_or(1)
        .max(16);
    let mut unit = Unit {
        symbols,
        code: Vec::new(),
        operands: Vec::new(),
        constants: Vec::new(),
        constant_index: HashMap::new(),
        unresolved: BTreeSet::new(),
        common_shared: Shared::default(),
    };
    unit.constant(Constant::Bits(0));
    let (globals, missing) = unit.symbols.globals()?;
    unit.unresolved.extend(missing);
    let constant = globals
        .iter()
        .filter(|global| global.space == crate::Space::Const)
        .map(|global| global.size)
        .sum::<u64>();

    let count = unit.symbols.functions.len();
    let mut functions: Vec<Option<Function>> = vec![None; count];
    // Device functions first: the shared memory that they use lies before the kernels' own.
    for kernels in [false, true] {
        for (index, lowered) in functions.iter_mut().enumerate() {
            let (text, function) = unit.symbols.functions[index];
            if function.kernel == kernels {
                *lowered = Some(FunctionLowering::lower(&mut unit, text, function)?);
            }
        }
    }
    let functions: Vec<Function> = functions.into_iter().flatten().collect();
    let mut entries = Vec::new();
    let mut entry_functions = Vec::new();
    for (index, function) in functions.iter().enumerate() {
        let (_, source) = unit.symbols.functions[index];
        let current = source.linkage == Linkage::Private
            || unit.symbols.is_current(source.linkage, &source.name, Definition::Function(index));
        if !source.kernel || !current {
            continue;
        }
        let directives = &source.directives;
        entry_functions.push(index as u32);
        entries.push(Entry {
            name: source.name.clone(),
            parameters: layout(&source.parameters, 0).0,
            registers: function.registers,
            static_shared: 0,
            dynamic_shared_at: 0,
            local: function.frame,
            constant: u32::try_from(constant).unwrap_or(u32::MAX),
            max_threads: directives
                .required_threads
                .or(directives.max_threads)
                .map_or(1024, product)
                .min(1024),
            required_threads: directives.required_threads,
            cluster: directives.cluster,
        });
    }
    let mut program = Program {
        code: unit.code,
        operands: unit.operands,
        constants: unit.constants,
        functions,
        entries,
        entry_functions,
        globals,
        unresolved: unit.unresolved.into_iter().collect(),
        version: asts.iter().map(|ast| ast.version).max().unwrap_or_default(),
        target: asts.first().map(|ast| ast.target.clone()).unwrap_or_default(),
        rows: Mutex::new(None),
    };
    for (entry, index) in program.entries.iter_mut().zip(&program.entry_functions) {
        entry.static_shared = unit.symbols.static_shared[*index as usize];
        entry.dynamic_shared_at =
            entry.static_shared.checked_next_multiple_of(dynamic_align).unwrap_or(u32::MAX);
        let (_, source) = unit.symbols.functions[*index as usize];
        let most = register_limit(&source.directives);
        entry.registers = unit.symbols.registers[*index as usize].max(16).min(most);
    }
    Ok(program)
}
