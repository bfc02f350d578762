//! Names across texts: what each refers to, and the layout of initial values.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::Error;
use crate::ast::{Ast, Function, Initial, Linkage, Variable};
use crate::machine::windows;
use crate::module::{Global, Relocation};
use crate::types::Space;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Definition {
    /// Index of a global.
    Global(usize),
    /// Index of the text, and of the variable in it.
    Shared(usize, usize),
    /// Index of a function.
    Function(usize),
}

#[derive(Default)]
pub(super) struct Symbols<'a> {
    asts: &'a [Arc<Ast>],
    /// For each text, the names that only it sees.
    private: Vec<HashMap<&'a str, Definition>>,
    public: HashMap<&'a str, Public>,
    pub variables: Vec<(usize, &'a Variable)>,
    /// Definitions, with the index of their text.
    pub functions: Vec<(usize, &'a Function)>,
    /// Declarations of functions by name, for the layout of calls.
    pub declarations: HashMap<&'a str, &'a Function>,
    external: HashSet<(usize, &'a str)>,
    /// For each function, filled in when it is decoded.
    pub static_shared: Vec<u32>,
    pub registers: Vec<u32>,
}

struct Public {
    definition: Definition,
    linkage: Linkage,
}

impl<'a> Symbols<'a> {
    pub fn collect(asts: &'a [Arc<Ast>]) -> Result<Self, Error> {
        let mut symbols = Symbols { asts, private: vec![HashMap::new(); asts.len()], ..Symbols::default() };
        for (text, ast) in asts.iter().enumerate() {
            for (index, variable) in ast.variables.iter().enumerate() {
                match variable.space {
                    Some(Space::Shared) => {
                        let definition = Definition::Shared(text, index);
                        symbols.private[text].insert(&variable.name, definition);
                    }
                    _ if variable.linkage == Linkage::Extern => {
                        symbols.external.insert((text, &variable.name));
                    }
                    _ => {
                        let definition = Definition::Global(symbols.variables.len());
                        if symbols.define(text, &variable.name, variable.linkage, definition)? {
                            symbols.variables.push((text, variable));
                        }
                    }
                }
            }
            for function in &ast.functions {
                symbols.declarations.entry(&function.name).or_insert(function);
                if function.body.is_some() {
                    let definition = Definition::Function(symbols.functions.len());
                    if symbols.define(text, &function.name, function.linkage, definition)? {
                        symbols.functions.push((text, function));
                    }
                }
            }
        }
        for (text, ast) in asts.iter().enumerate() {
            for (alias, target) in &ast.aliases {
                if let Some(definition) = symbols.find(text, target) {
                    symbols.private[text].insert(alias, definition);
                }
            }
        }
        symbols.static_shared = vec![0; symbols.functions.len()];
        symbols.registers = vec![0; symbols.functions.len()];
        Ok(symbols)
    }

    /// Whether the definition is new; a weaker one gives way.
    fn define(
        &mut self,
        text: usize,
        name: &'a str,
        linkage: Linkage,
        definition: Definition,
    ) -> Result<bool, Error> {
        if linkage == Linkage::Private {
            if self.private[text].insert(name, definition).is_some() {
                return Err(Error::link(format!("`{name}` is defined twice in one module")));
            }
            return Ok(true);
        }
        let soft = |linkage| matches!(linkage, Linkage::Weak | Linkage::Common);
        match self.public.get_mut(name) {
            // The first of equals stays.
            Some(_) if soft(linkage) => Ok(false),
            Some(known) if soft(known.linkage) => {
                known.linkage = linkage;
                known.definition = definition;
                Ok(true)
            }
            Some(_) => Err(Error::link(format!("`{name}` is defined more than once"))),
            None => {
                self.public.insert(name, Public { definition, linkage });
                Ok(true)
            }
        }
    }

    pub fn find(&self, text: usize, name: &str) -> Option<Definition> {
        self.private[text].get(name).copied().or_else(|| Some(self.public.get(name)?.definition))
    }

    pub fn shared(&self, text: usize, index: usize) -> &'a Variable {
        &self.asts[text].variables[index]
    }

    /// Whether others see this definition: it is public and did not give way to another.
    pub fn is_current(&self, linkage: Linkage, name: &str, definition: Definition) -> bool {
        linkage != Linkage::Private
            && self.public.get(name).is_some_and(|public| public.definition == definition)
    }

    /// Whether the text declares a variable or function that another must define.
    pub fn is_external(&self, text: usize, name: &str) -> bool {
        self.external.contains(&(text, name)) || self.declarations.contains_key(name)
    }

    /// The globals with their initial values, and the symbols that those lack.
    pub fn globals(&self) -> Result<(Vec<Global>, Vec<String>), Error> {
        let mut missing = Vec::new();
        let mut globals = Vec::new();
        for (text, variable) in &self.variables {
            let mut global = Global {
                name: variable.name.clone(),
                space: variable.space.unwrap_or(Space::Global),
                size: variable.size,
                align: u64::from(variable.align),
                init: Vec::new(),
                relocations: Vec::new(),
                visible: self.is_current(variable.linkage, &variable.name, Definition::Global(globals.len())),
            };
            if variable.size > 1 << 31 {
                return Err(Error::link(format!(
                    "`{}` of {} bytes is too large",
                    variable.name, variable.size
                )));
            }
            global.init = vec![0; variable.size as usize];
            let width = variable.ty.bytes() as usize;
            for (index, initial) in variable.initial.iter().flatten().enumerate() {
                let at = index * width;
                let bits = match initial {
                    Initial::Bits(bits) => *bits,
                    Initial::Symbol { name, addend, generic } => match self.find(*text, name) {
                        Some(Definition::Function(index)) => windows::function_address(index as u32),
                        Some(Definition::Global(index)) if width == 8 => {
                            global.relocations.push(Relocation {
                                offset: at as u64,
                                symbol: name.clone(),
                                global: index,
                                addend: *addend,
                                generic: *generic,
                            });
                            0
                        }
                        Some(_) => {
                            return Err(Error::link(format!(
                                "the initial value of `{}` holds the address of `{name}`, which it cannot",
                                variable.name
                            )));
                        }
                        None => {
                            missing.push(name.clone());
                            0
                        }
                    },
                };
                if let Some(bytes) = global.init.get_mut(at..at + width) {
                    bytes.copy_from_slice(&bits.to_le_bytes()[..width.min(8)]);
                }
            }
            globals.push(global);
        }
        Ok((globals, missing))
    }
}
