//! By which of its parameters a kernel may write to memory, as far as its code or its name tell.
//!
//! ```text
//!  PTX      ── data flow ──▶ exactly, but for addresses that lie in memory (rekindle_ptx::write_sets)
//!  its name ── types ──────▶ not by pointers to constants ([`super::signature`])
//!  neither  ───────────────▶ by any
//! ```
//!
//! Nothing is looked at before somebody asks, and then once: PTX for all kernels of its module, a name for its kernel.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;

use rekindle_code::fatbin::{self, EntryKind};
use rekindle_device::Parameter;
use rekindle_protocol::operation::Id;

use super::signature::constant_pointers;
use super::{Body, Client, FunctionObject, ModuleObject};
use crate::code::LoadedCode;

/// More PTX than this is not looked at, since the program waits meanwhile: 20 to 40 ms for each megabyte.
const MOST_TEXT: usize = 4 << 20;

/// Bytes of the parameters by which it may write; none if nobody can tell.
pub(crate) type KernelWriteSet = Option<Vec<Range<usize>>>;

/// What PTX says of its kernels.
pub(crate) struct ModuleWriteSets {
    /// The code as the program gave it, which may have been compiled since.
    given: LoadedCode,
    told: OnceLock<HashMap<String, Vec<bool>>>,
}

impl ModuleWriteSets {
    pub(crate) fn of(given: LoadedCode) -> ModuleWriteSets {
        ModuleWriteSets { given, told: OnceLock::new() }
    }

    /// For each of a kernel's parameters whether it may write by it.
    fn of_kernel(&self, name: &str) -> Option<&[bool]> {
        let tell = || {
            let code = self.given.code().ok();
            code.and_then(|code| told(code.bytes())).unwrap_or_default()
        };
        self.told.get_or_init(tell).get(name).map(Vec::as_slice)
    }
}

/// What code says, if it is one text of PTX.
fn told(code: &[u8]) -> Option<HashMap<String, Vec<bool>>> {
    let entries: Vec<_> = fatbin::entries(code).collect();
    let text = match &entries[..] {
        [] => code.into(),
        [entry] if entry.kind == EntryKind::Ptx => entry.contents(MOST_TEXT as u64)?,
        _ => return None,
    };
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    let text = str::from_utf8(&text[..end]).ok().filter(|text| text.len() <= MOST_TEXT)?;
    rekindle_ptx::write_sets(text).inspect_err(|error| log::debug!("PTX is not understood: {error}")).ok()
}

impl Client {
    /// Bytes of a kernel's parameters by which it may write; none if nobody can tell, or not before it is loaded.
    pub(crate) fn written_parameters(&self, function: Id) -> Option<&[Range<usize>]> {
        let function = self.functions.get(function).ok()?;
        if let Some(known) = function.write_set.get() {
            return known.as_deref();
        }
        let module = self.modules.get(function.module).ok()?;
        let parameters = self.parameters(function, module)?;
        let find = || {
            let by_name = || Some(constant_pointers(&function.name)?.into_iter().map(|is| !is).collect());
            let by_code = module.write_sets.of_kernel(&function.name).map(<[bool]>::to_vec);
            ranges(&by_code.or_else(by_name)?, &parameters)
        };
        function.write_set.get_or_init(find).as_deref()
    }

    /// Where a kernel's parameters lie.
    fn parameters(&self, function: &FunctionObject, module: &ModuleObject) -> Option<Vec<Parameter>> {
        if let Body::Pieces(pieces) = &module.body
            && let Some(info) = pieces.info(&function.name)
        {
            return Some(info.parameters);
        }
        let gpu = &self.context(function.device).ok()?.device;
        gpu.bind().ok()?;
        Some(gpu.function_info(function.handle?).ok()?.parameters)
    }
}

/// Where the written ones lie; those that follow each other together, as an address may lie in two. None if these are not the
/// parameters of that kernel.
fn ranges(written: &[bool], parameters: &[Parameter]) -> KernelWriteSet {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut follows = false;
    for (is_written, parameter) in written.iter().zip(parameters) {
        let start = parameter.offset as usize;
        let range = start..start + parameter.size as usize;
        match ranges.last_mut().filter(|_| follows) {
            Some(last) if *is_written => last.end = range.end,
            _ => ranges.extend(is_written.then_some(range)),
        }
        follows = *is_written;
    }
    (written.len() == parameters.len()).then_some(ranges)
}

#[cfg(test)]
mod tests {
    use rekindle_code::fatbin::MAGIC;
    use rekindle_device::Code;

    use super::*;

    const TEXT: &str = ".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry put(.param .u64 to, .param .u64 from)\n\
                        { .reg .b64 %rd<3>; .reg .b32 %r<2>; ld.param.u64 %rd1, [to]; ld.param.u64 %rd2, [from];\n\
                        ld.u32 %r1, [%rd2]; st.u32 [%rd1], %r1; ret; }";

    fn told_of(code: &[u8], kernel: &str) -> Option<Vec<bool>> {
        let sets = ModuleWriteSets::of(LoadedCode::Owned(Code::new(code.to_vec())));
        sets.of_kernel(kernel).map(<[bool]>::to_vec)
    }

    fn fatbin(kinds: &[u16]) -> Vec<u8> {
        let entry = |kind: &u16| {
            let mut entry = [&kind.to_le_bytes()[..], &[1, 1, 64, 0, 0, 0]].concat();
            entry.extend((TEXT.len() as u64).to_le_bytes());
            entry.extend((TEXT.len() as u32).to_le_bytes());
            entry.resize(64, 0);
            [entry, TEXT.into()].concat()
        };
        let entries: Vec<u8> = kinds.iter().flat_map(entry).collect();
        [&MAGIC.to_le_bytes()[..], &[1, 0, 16, 0], &(entries.len() as u64).to_le_bytes(), &entries].concat()
    }

    #[test]
    fn ptx_is_looked_at_as_text_and_alone_in_a_fatbin() {
        assert_eq!(told_of(TEXT.as_bytes(), "put"), Some(vec![true, false]));
        assert_eq!(told_of(&[TEXT.as_bytes(), b"\0rest"].concat(), "put"), Some(vec![true, false]));
        assert_eq!(told_of(TEXT.as_bytes(), "other"), None);
        assert_eq!(told_of(&fatbin(&[1]), "put"), Some(vec![true, false]));
        assert_eq!(told_of(&fatbin(&[1, 1]), "put"), None);
        assert_eq!(told_of(&fatbin(&[2]), "put"), None);
        assert_eq!(told_of(b"\x7fELF and more", "put"), None);
        assert_eq!(told_of(&[TEXT, &" ".repeat(MOST_TEXT)].concat().into_bytes(), "put"), None);
    }

    #[test]
    fn parameters_that_follow_each_other_are_one_range() {
        let parameter = |(offset, size)| Parameter { offset, size };
        let parameters: Vec<_> = [(0, 8), (8, 4), (16, 8), (24, 4), (28, 4)].map(parameter).into();
        let found = |written: [u8; 5]| ranges(&written.map(|is| is == 1), &parameters).unwrap();
        assert_eq!(found([1, 1, 1, 0, 1]), [0..24, 28..32]);
        assert_eq!(found([0, 1, 0, 1, 1]), [8..12, 24..32]);
        assert!(found([0; 5]).is_empty());
        assert_eq!(ranges(&[true], &parameters), None);
    }
}
