//! Damaged cubins: an error or something that can be cut, never a panic.

use proptest::prelude::*;
use rekindle_code::{Error, Preparation, prepare};

use crate::compiler::{CAPABILITY, ROUND, SAMPLE};

const SECTION_HEADER: usize = 64;

fn take_apart(code: &[u8]) {
    if let Ok(Preparation::Prepared(prepared)) = prepare(code, CAPABILITY) {
        let _ = prepared.globals.initial(u64::MAX - 3);
        for kernel in prepared.kernels.keys() {
            let _ = prepared.piece(kernel, u64::MAX - 3);
        }
    }
}

fn word(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
}

/// Where the header of the first section of this name begins.
fn section(bytes: &[u8], name: &str) -> usize {
    let (table, count) = (word(bytes, 40), usize::from(bytes[60]) | usize::from(bytes[61]) << 8);
    let names = usize::from(bytes[62]) | usize::from(bytes[63]) << 8;
    let names = word(bytes, table + names * SECTION_HEADER + 24);
    let header = (0..count).map(|index| table + index * SECTION_HEADER).find(|at| {
        let own = names + u32::from_le_bytes(bytes[*at..*at + 4].try_into().unwrap()) as usize;
        bytes[own..].starts_with(name.as_bytes()) && bytes[own + name.len()] == 0
    });
    header.unwrap_or_else(|| panic!("no section {name}"))
}

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn error(bytes: &[u8]) -> Error {
    prepare(bytes, CAPABILITY).unwrap_err()
}

#[test]
fn sections_over_each_other_are_refused() {
    let mut code = SAMPLE.clone();
    let (first, second) = (section(&code, ".text.plain"), section(&code, ".text.calls"));
    let offset = word(&code, first + 24) as u64;
    put(&mut code, second + 24, offset);
    assert!(matches!(error(&code), Error::Overlap { .. }), "{}", error(&code));
}

#[test]
fn relocations_that_leave_their_section_are_refused() {
    let mut code = SAMPLE.clone();
    let relocations = word(&code, section(&code, ".rela.nv.constant4") + 24);
    put(&mut code, relocations, 1 << 20);
    assert!(matches!(error(&code), Error::RelocationOffset { .. }), "{}", error(&code));
    // Its first byte lies inside, its last does not.
    let table = word(&code, section(&code, ".nv.constant4") + 32) as u64;
    put(&mut code, relocations, table - 4);
    assert!(matches!(error(&code), Error::RelocationOffset { .. }), "{}", error(&code));
    let mut code = SAMPLE.clone();
    let relocations = word(&code, section(&code, ".rela.nv.global.init") + 24);
    let globals = word(&code, section(&code, ".nv.global.init") + 32) as u64;
    put(&mut code, relocations, globals - 4);
    assert!(matches!(error(&code), Error::RelocationOffset { .. }), "{}", error(&code));
}

#[test]
fn symbols_that_are_not_there_are_refused() {
    let mut code = SAMPLE.clone();
    let relocations = word(&code, section(&code, ".rela.nv.constant4") + 24);
    put(&mut code, relocations + 8, 0xffff_ffff_0000_0002);
    assert!(matches!(error(&code), Error::NoSymbol { .. }), "{}", error(&code));
}

#[test]
fn sizes_are_not_believed() {
    for (name, field, value) in [
        (".nv.global", 32, u64::MAX),
        (".nv.global", 32, 1 << 41),
        (".nv.global", 48, 1 << 40),
        (".nv.global.init", 32, u64::MAX),
        (".symtab", 32, 1 << 50),
    ] {
        let mut code = SAMPLE.clone();
        let at = section(&code, name) + field;
        put(&mut code, at, value);
        error(&code);
    }
}

#[test]
fn every_cut_is_an_error() {
    // What does not begin as a cubin would be PTX; segments, which lie behind the sections, are not looked at.
    let end = word(&ROUND, 40) + usize::from(ROUND[60]) * SECTION_HEADER;
    for cut in (4..end).step_by(7) {
        error(&ROUND[..cut]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn no_bytes_make_it_panic(flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12)) {
        for code in [&*SAMPLE, &*ROUND] {
            let mut code = code.clone();
            for (at, value) in &flips {
                let at = at.index(code.len());
                code[at] = *value;
            }
            take_apart(&code);
        }
    }

    /// Where numbers stand that others are found by.
    #[test]
    fn no_headers_make_it_panic(flips in proptest::collection::vec((any::<prop::sample::Index>(), 0usize..64, any::<u8>()), 1..6)) {
        for code in [&*SAMPLE, &*ROUND] {
            let mut code = code.clone();
            let (table, count) = (word(&code, 40), usize::from(code[60]));
            for (row, at, value) in &flips {
                code[table + row.index(count) * SECTION_HEADER + at] = *value;
            }
            take_apart(&code);
        }
    }
}
