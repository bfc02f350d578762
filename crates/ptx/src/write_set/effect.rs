//! What an instruction does, as far as that matters to what is written: which registers come of which, and what is stored where.

use crate::ast::{Instruction, Operand};

#[derive(Debug, PartialEq)]
pub(super) enum Effect {
    /// These registers are computed from those.
    Compute {
        to: Vec<usize>,
        from: Vec<usize>,
    },
    Load {
        to: Vec<usize>,
        address: Vec<usize>,
        access: Access,
    },
    Store {
        address: Vec<usize>,
        values: Vec<usize>,
        access: Access,
    },
}

/// Which memory an address is of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Access {
    Global,
    /// The memory of a thread or of a block.
    Own,
    /// Parameters, the kernel's and those of calls.
    Param,
    /// It is not said.
    Any,
}

impl Access {
    fn of(modifiers: &[String]) -> Access {
        modifiers.iter().find_map(|modifier| Access::named(modifier)).unwrap_or(Access::Any)
    }

    fn named(modifier: &str) -> Option<Access> {
        match modifier.split("::").next() {
            Some("global") => Some(Access::Global),
            Some("shared" | "local" | "const") => Some(Access::Own),
            Some("param") => Some(Access::Param),
            _ => None,
        }
    }

    /// The numbers of the memories that it may be.
    pub(super) fn memories(self) -> &'static [usize] {
        match self {
            Access::Global => &[0],
            Access::Own => &[1],
            Access::Param => &[2],
            Access::Any => &[0, 1],
        }
    }
}

/// What an instruction does; none for one that is not known. An atomic operation has two effects.
pub(super) fn effect<'a>(
    instruction: &'a Instruction,
    is_harmless: &dyn Fn(&str) -> bool,
    register: &mut dyn FnMut(&'a str) -> usize,
) -> Option<Vec<Effect>> {
    let Instruction { name, modifiers, operands, .. } = instruction;
    let access = Access::of(modifiers);
    let has = |word: &str| modifiers.iter().any(|modifier| modifier == word);
    let mut at = |from: usize, to: usize| {
        let mut found = Vec::new();
        let operands = &operands[from.min(operands.len())..to.min(operands.len())];
        operands.iter().for_each(|operand| named(operand, &mut |name| found.push(register(name))));
        found
    };
    let all = operands.len();
    Some(match name.as_str() {
        name if computes(name) => vec![Effect::Compute { to: at(0, 1), from: at(1, all) }],
        "bar" | "barrier" if has("red") => vec![Effect::Compute { to: at(0, 1), from: at(1, all) }],
        "wgmma" if has("mma_async") => vec![Effect::Compute { to: at(0, 1), from: at(1, all) }],
        "wmma" if has("mma") => vec![Effect::Compute { to: at(0, 1), from: at(1, all) }],
        "ld" | "ldu" | "ldmatrix" => vec![Effect::Load { to: at(0, 1), address: at(1, 2), access }],
        "wmma" if has("load") => vec![Effect::Load { to: at(0, 1), address: at(1, 2), access }],
        "multimem" if has("ld_reduce") => vec![Effect::Load { to: at(0, 1), address: at(1, 2), access }],
        "st" | "red" | "multimem" | "discard" => {
            vec![Effect::Store { address: at(0, 1), values: at(1, all), access }]
        }
        "wmma" if has("store") => vec![Effect::Store { address: at(0, 1), values: at(1, all), access }],
        "stmatrix" => vec![Effect::Store { address: at(0, 1), values: at(1, all), access: Access::Own }],
        "atom" => vec![
            Effect::Store { address: at(1, 2), values: at(2, all), access },
            Effect::Load { to: at(0, 1), address: at(1, 2), access },
        ],
        // What is copied to shared memory is what lies in memory. The first space that is named is where it goes.
        "cp" if access == Access::Global && !has("prefetch") => {
            vec![Effect::Store { address: at(0, 1), values: Vec::new(), access }]
        }
        "cp" if access == Access::Own || has("prefetch") || operands.iter().all(is_number) => Vec::new(),
        "call" => match operands.iter().find_map(function)? {
            name if is_harmless(name) => Vec::new(),
            _ => return None,
        },
        name if is_without_effect(name) => Vec::new(),
        _ => return None,
    })
}

/// What is computed of registers alone, and comes to its first operand.
fn computes(name: &str) -> bool {
    matches!(
        name,
        "abs"
            | "activemask"
            | "add"
            | "addc"
            | "alloca"
            | "and"
            | "bfe"
            | "bfi"
            | "bfind"
            | "bmsk"
            | "brev"
            | "clz"
            | "cnot"
            | "copysign"
            | "cos"
            | "createpolicy"
            | "cvt"
            | "cvta"
            | "div"
            | "dp2a"
            | "dp4a"
            | "elect"
            | "ex2"
            | "fma"
            | "fns"
            | "getctarank"
            | "isspacep"
            | "lg2"
            | "lop3"
            | "mad"
            | "mad24"
            | "madc"
            | "mapa"
            | "match"
            | "max"
            | "min"
            | "mma"
            | "mov"
            | "movmatrix"
            | "mul"
            | "mul24"
            | "neg"
            | "not"
            | "or"
            | "popc"
            | "prmt"
            | "rcp"
            | "redux"
            | "rem"
            | "rsqrt"
            | "sad"
            | "selp"
            | "set"
            | "setp"
            | "shf"
            | "shfl"
            | "shl"
            | "shr"
            | "sin"
            | "slct"
            | "sqrt"
            | "stacksave"
            | "sub"
            | "subc"
            | "szext"
            | "tanh"
            | "testp"
            | "vote"
            | "xor"
    ) || is_video(name)
}

/// `vadd`, `vadd2`, `vadd4`, ...
fn is_video(name: &str) -> bool {
    let stem = name.strip_suffix(['2', '4']).unwrap_or(name);
    matches!(
        stem,
        "vadd" | "vsub" | "vabsdiff" | "vmin" | "vmax" | "vavrg" | "vshl" | "vshr" | "vmad" | "vset"
    )
}

/// It writes to no memory of the program's, and what comes of it is no address.
fn is_without_effect(name: &str) -> bool {
    matches!(
        name,
        "applypriority"
            | "bar"
            | "barrier"
            | "bra"
            | "brkpt"
            | "brx"
            | "exit"
            | "fence"
            | "griddepcontrol"
            | "mbarrier"
            | "membar"
            | "nanosleep"
            | "pmevent"
            | "prefetch"
            | "prefetchu"
            | "ret"
            | "setmaxnreg"
            | "stackrestore"
            | "suld"
            | "suq"
            | "tex"
            | "tld4"
            | "trap"
            | "txq"
            | "wgmma"
    )
}

fn is_number(operand: &Operand) -> bool {
    matches!(operand, Operand::Integer(_))
}

fn function(operand: &Operand) -> Option<&str> {
    match operand {
        Operand::Name(name) => Some(name),
        _ => None,
    }
}

/// The names in an operand; what stands behind the address of a tensor are numbers.
fn named<'a>(operand: &'a Operand, tell: &mut dyn FnMut(&'a str)) {
    match operand {
        Operand::Name(name) | Operand::Offset(name, _) | Operand::Member(name, _) | Operand::Not(name) => {
            tell(name);
        }
        Operand::Address(inner, _) | Operand::Coordinates(inner, _) => named(inner, tell),
        Operand::Vector(inner) | Operand::Group(inner) => inner.iter().for_each(|inner| named(inner, tell)),
        Operand::Pair(one, other) => {
            named(one, tell);
            named(other, tell);
        }
        Operand::Integer(_) | Operand::F32(_) | Operand::F64(_) | Operand::Sink => {}
    }
}
