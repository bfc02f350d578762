//! The module-scope variables that code declares, by name: what a checkpoint must save besides buffers.
//!
//! The driver can be asked for a variable only by its name, so the names are read from the code: a cubin's symbols in
//! `.nv.global*` and `.nv.constant3`, and PTX's `.global` and `.const` declarations. The result may name variables
//! that the driver did not load (another architecture's); the caller asks it for each.

use std::collections::BTreeMap;

use rekindle_code::fatbin::{self, EntryKind};
use rekindle_code::{SYMBOL_OBJECT, symbols};

/// A library as large as cuBLASLt is not decompressed whole to look for names: no more than this per module.
const MOST_BYTES: u64 = 256 << 20;

/// Names, each with whether it is in constant memory.
pub type Variables = BTreeMap<String, bool>;

/// The variables of `code` (cubin, fatbin or PTX) that a GPU of `capability` (90 is 9.0) may load, and whether all
/// of the code was looked at.
pub fn variables(code: &[u8], capability: u32) -> (Variables, bool) {
    let mut found = Variables::new();
    let mut whole = true;
    if fatbin::is_fatbin(code) {
        let mut budget = MOST_BYTES;
        for entry in fitting(code, capability) {
            let Some(contents) = entry.contents(budget) else {
                whole = false;
                continue;
            };
            budget -= entry.size.min(budget);
            add(&mut found, &contents);
        }
    } else {
        add(&mut found, code);
    }
    (found, whole)
}

/// The entries that the driver may choose from: cubins of the same major version where there are any, else PTX.
fn fitting(code: &[u8], capability: u32) -> Vec<fatbin::Entry<'_>> {
    let runs = |entry: &fatbin::Entry<'_>| match entry.kind {
        EntryKind::Cubin => entry.capability / 10 == capability / 10 && entry.capability <= capability,
        EntryKind::Ptx => entry.capability <= capability,
        EntryKind::Other(_) => false,
    };
    let all: Vec<_> = fatbin::entries(code).filter(runs).collect();
    let cubins: Vec<_> = all.iter().copied().filter(|entry| entry.kind == EntryKind::Cubin).collect();
    if cubins.is_empty() { all } else { cubins }
}

fn add(found: &mut Variables, code: &[u8]) {
    if code.starts_with(b"\x7fELF") {
        for symbol in symbols(code).iter().filter(|symbol| symbol.kind == SYMBOL_OBJECT && symbol.size > 0) {
            let constant = symbol.section == b".nv.constant3";
            if let (true, Ok(name)) =
                (constant || symbol.section.starts_with(b".nv.global"), std::str::from_utf8(symbol.name))
            {
                found.insert(name.to_owned(), constant);
            }
        }
    } else if let Ok(text) = std::str::from_utf8(code) {
        declared(found, text);
    }
}

/// Adds PTX's module-scope declarations.
fn declared(found: &mut Variables, text: &str) {
    for statement in statements(text) {
        let mut words =
            statement.split_whitespace().skip_while(|word| matches!(*word, ".visible" | ".weak" | ".common"));
        let constant = match words.next() {
            Some(".global") => false,
            Some(".const") => true,
            _ => continue,
        };
        if statement.contains(".texref")
            || statement.contains(".surfref")
            || statement.contains(".samplerref")
        {
            continue;
        }
        for declarator in declarators(&statement) {
            if let Some(name) = name(declarator) {
                found.insert(name.to_owned(), constant);
            }
        }
    }
}

/// The statements outside of functions, without comments; an initialiser is left out.
fn statements(text: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut statement = String::new();
    let (mut depth, mut value, mut quoted) = (0u32, false, false);
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if quoted {
            quoted = character != '"';
            continue;
        }
        match character {
            '"' => quoted = true,
            '/' if characters.peek() == Some(&'/') => {
                characters.by_ref().find(|c| *c == '\n');
                // A directive such as `.version` ends with its line, which only another directive's dot shows.
                statement.push(' ');
            }
            '/' if characters.peek() == Some(&'*') => {
                characters.next();
                let mut last = ' ';
                characters.by_ref().find(|c| std::mem::replace(&mut last, *c) == '*' && *c == '/');
            }
            '{' => depth += 1,
            '}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 && !value {
                    statement.clear();
                }
            }
            _ if depth > 0 => {}
            ';' => {
                all.push(last_directive(&statement));
                statement.clear();
                value = false;
            }
            '=' => value = true,
            ',' => {
                value = false;
                statement.push(',');
            }
            _ if value => {}
            _ => statement.push(character),
        }
    }
    all
}

/// A statement without the semicolon-less directives (`.version 8.0`, `.target sm_90`) in front of it.
fn last_directive(statement: &str) -> String {
    let begins = [".visible", ".weak", ".common", ".extern", ".global", ".const"];
    let start = begins.iter().filter_map(|word| statement.find(word)).min().unwrap_or(0);
    statement[start..].to_owned()
}

/// Splits `.global .u32 a, b[2]` at its commas.
fn declarators(statement: &str) -> impl Iterator<Item = &str> {
    statement.split(',')
}

/// The name that ends a declarator: `.global .align 4 .b8 table[64]` declares `table`.
fn name(declarator: &str) -> Option<&str> {
    let declarator = declarator.split('[').next()?.trim_end();
    let name = declarator.rsplit(|c: char| c.is_whitespace()).next()?;
    let first = name.chars().next()?;
    (first.is_alphabetic() || matches!(first, '_' | '$' | '%')).then_some(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use rekindle_code_samples::{Content, Packing, container, synthetic};

    const PTX: &str = "//\n.version 8.0 // 12.0\n.target sm_90\n.address_size 64\n\n\
        .global .align 4 .u32 counter = 5;\n\
        .visible .const .align 4 .b8 table[8] = {1, 2, 3, 4, 5, 6, 7, 8};\n\
        .extern .global .f32 elsewhere[];\n\
        /* .global .u32 hidden; */ .global .v2 .f32 pair, other[2][3];\n\
        .file 1 \"a;{.global .u32 quoted;\"\n\
        .global .texref image;\n\
        .visible .entry k(.param .u64 p)\n{\n .reg .b32 %r<3>; .shared .b8 s[4]; { .global .u32 local; }\n ret;\n}\n\
        .weak .global .u64 _ZN2ns4deepE;\n";

    fn names(code: &[u8]) -> Vec<(String, bool)> {
        variables(code, 90).0.into_iter().collect()
    }

    #[test]
    fn ptx_declarations_are_found() {
        let expected =
            [("_ZN2ns4deepE", false), ("counter", false), ("other", false), ("pair", false), ("table", true)];
        assert_eq!(names(PTX.as_bytes()), expected.map(|(name, constant)| (name.to_owned(), constant)));
    }

    #[test]
    fn a_cubin_s_symbols_are_found() {
        let cubin = synthetic(
            &[".nv.global.init", ".nv.constant3", ".text.k"],
            &[("a", 1, 1, 4), ("c", 2, 1, 64), ("k", 3, 2, 9), ("outside", 0, 1, 4)],
        );
        assert_eq!(names(&cubin), [("a".to_owned(), false), ("c".to_owned(), true)]);
    }

    #[test]
    fn a_fatbin_gives_what_this_gpu_may_load() {
        let cubin = |name| synthetic(&[".nv.global"], &[(name, 1, 1, 4)]);
        let (older, other, own) = (cubin("older"), cubin("other"), cubin("own"));
        let all = container(&[
            (Content::Cubin, 80, &other, Packing::Plain),
            (Content::Cubin, 90, &own, Packing::Zstd),
            (Content::Cubin, 100, &older, Packing::Plain),
            (Content::Ptx, 90, PTX.as_bytes(), Packing::Lz4),
        ]);
        assert_eq!(names(&all), [("own".to_owned(), false)]);
        let text = container(&[(Content::Ptx, 80, PTX.as_bytes(), Packing::Lz4)]);
        assert_eq!(names(&text), names(PTX.as_bytes()));
    }

    #[test]
    fn what_is_too_large_is_said_to_be_left_out() {
        let mut all = container(&[(Content::Cubin, 90, &[0; 64], Packing::Lz4)]);
        all[16 + 56..16 + 64].copy_from_slice(&(MOST_BYTES + 1).to_le_bytes());
        assert_eq!(variables(&all, 90), (Variables::new(), false));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,200}") {
            let _ = variables(text.as_bytes(), 90);
        }
    }
}
