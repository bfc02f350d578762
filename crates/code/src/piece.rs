//! Cutting one kernel out of a module.
//!
//! Kept: the code of the kernel and of all that it can reach, by relocations and by the module's call graph; what
//! belongs to these functions (notes, parameters, constants, shared memory); what belongs to all (notes about the
//! file, tables of addresses). The globals' addresses are filled in, and the globals themselves go, for they lie
//! elsewhere. Sections and symbols keep their numbers, so that nothing that names them by number
//! changes: those that go become empty. Names go with them. What debuggers read goes too.

use std::collections::{HashMap, HashSet};

use crate::cubin::{Cubin, word32};
use crate::error::{Error, Result};
use crate::globals::is_globals;
use crate::notes::notes;
use crate::prepare::{AddressPart, Prepared};
use crate::write::Writer;

/// Sections of one function bear its name behind one of these.
const OF_FUNCTION: [&str; 5] = [".text.", ".nv.info.", ".nv.shared.", ".nv.local.", ".nv.constant"];
const LEFT_OUT: [&str; 5] = [".debug_", ".nv_debug", ".nv.merc", ".nv.capmerc", ".nv.dbg"];
const RELOCATIONS: [&str; 2] = [".rela", ".rel"];
const CALLS: &str = ".nv.callgraph";
const PROTOTYPES: &str = ".nv.prototype";
/// The lower half of a word.
const LOW: u64 = 0xffff_ffff;
const SYMBOL: usize = 24;
const PAIR: usize = 8;

/// Whether a section is for debuggers alone.
pub(crate) fn is_left_out(name: &str) -> bool {
    LEFT_OUT.iter().any(|prefix| name.starts_with(prefix))
}

/// The function that a section belongs to.
pub(crate) fn owner(name: &str) -> Option<&str> {
    let prefix = OF_FUNCTION.iter().find(|prefix| name.starts_with(**prefix))?;
    let rest = &name[prefix.len()..];
    // The number of a constant bank stands before the dot.
    if *prefix == ".nv.constant" { rest.split_once('.').map(|(_, function)| function) } else { Some(rest) }
}

pub(crate) fn cut(cubin: &Cubin<'_>, prepared: &Prepared, kernel: &str, globals: u64) -> Result<Vec<u8>> {
    let kept = reached(cubin, kernel)?;
    let dropped = dropped(cubin, &kept);
    let gone: HashSet<u32> = (0u32..)
        .zip(&cubin.symbols)
        .filter(|(_, symbol)| symbol.section.is_some_and(|section| dropped[section]))
        .map(|(index, _)| index)
        .collect();
    let mut writer = Writer::new(cubin);
    for (index, _) in dropped.iter().enumerate().filter(|(_, dropped)| **dropped) {
        writer.drop_section(index);
    }
    let left = cubin.sections.iter().enumerate().filter(|(index, _)| !dropped[*index]);
    for (index, section) in left {
        match section.name {
            ".nv.info" => writer.replace(index, module_notes(cubin, index, &gone)?),
            // A call from or to what is gone; a prototype of what is gone.
            CALLS => writer.replace(index, pairs(cubin, index, &gone, true)?),
            PROTOTYPES => writer.replace(index, pairs(cubin, index, &gone, false)?),
            _ => {}
        }
    }
    let mut done: HashMap<usize, HashSet<usize>> = HashMap::new();
    for row in prepared.addresses.iter().filter(|row| !dropped[row.relocations]) {
        let target = cubin.sections[row.relocations].info as usize;
        let address = globals.wrapping_add(row.of);
        writer.write_word(target, row.offset as usize, |word| match row.part {
            AddressPart::Whole => address,
            // The upper half of an instruction's first word.
            AddressPart::Low => word & LOW | address << 32,
            AddressPart::High => word & LOW | address & !LOW,
        });
        done.entry(row.relocations).or_default().insert(row.at);
    }
    for (relocations, done) in done {
        let left = cubin.relocation_rows(relocations).filter(|(at, _)| !done.contains(at));
        writer.replace(relocations, left.flat_map(|(_, row)| row).copied().collect());
    }
    for symbol in &gone {
        writer.blank_symbol(*symbol as usize * SYMBOL);
    }
    Ok(writer.finish())
}

/// The functions that a kernel can get to, itself among them.
fn reached<'a>(cubin: &Cubin<'a>, kernel: &str) -> Result<HashSet<&'a str>> {
    let mut calls: Vec<(&'a str, &'a str)> = Vec::new();
    for index in (0..cubin.sections.len()).filter(|index| cubin.sections[*index].is_relocations()) {
        let Some(from) = owner(cubin.target(index).name) else { continue };
        for relocation in cubin.relocations(index) {
            let symbol = &cubin.symbols[relocation.symbol];
            calls.extend(owner(cubin.section_of(symbol)).map(|to| (from, to)));
        }
    }
    if let Some(index) = cubin.named(CALLS) {
        for row in rows(cubin, index)? {
            let code = |at| {
                let symbol = cubin.symbols.get(word32(row, at) as usize)?;
                owner(cubin.section_of(symbol))
            };
            calls.extend(code(0).zip(code(4)));
        }
    }
    calls.sort_unstable();
    calls.dedup();
    let own = cubin.named(&format!(".text.{kernel}")).ok_or_else(|| Error::NoKernel(kernel.to_owned()))?;
    let own = cubin.sections[own].function().unwrap_or_default();
    let mut kept = HashSet::from([own]);
    let mut waiting = vec![own];
    while let Some(function) = waiting.pop() {
        let first = calls.partition_point(|(from, _)| *from < function);
        for (_, to) in calls[first..].iter().take_while(|(from, _)| *from == function) {
            if kept.insert(to) {
                waiting.push(to);
            }
        }
    }
    Ok(kept)
}

/// Which sections go, by number.
fn dropped(cubin: &Cubin<'_>, kept: &HashSet<&str>) -> Vec<bool> {
    let goes = |name: &str| {
        is_left_out(name)
            || is_globals(name)
            || owner(name).is_some_and(|function| {
                // Only names of functions count: `.nv.shared.reserved.0` belongs to none.
                cubin.named(&format!(".text.{function}")).is_some() && !kept.contains(function)
            })
    };
    cubin
        .sections
        .iter()
        .map(|section| match section.is_relocations() {
            true => goes(cubin.sections[section.info as usize].name),
            false => {
                let plain = RELOCATIONS.iter().find_map(|prefix| section.name.strip_prefix(prefix));
                goes(plain.filter(|name| name.starts_with('.')).unwrap_or(section.name))
            }
        })
        .collect()
}

fn module_notes(cubin: &Cubin<'_>, index: usize, gone: &HashSet<u32>) -> Result<Vec<u8>> {
    let mut left = Vec::new();
    for note in notes(cubin, index)? {
        if !note.symbol().is_some_and(|symbol| gone.contains(&symbol)) {
            left.extend_from_slice(note.bytes);
        }
    }
    Ok(left)
}

fn rows<'a>(cubin: &Cubin<'a>, index: usize) -> Result<std::slice::ChunksExact<'a, u8>> {
    let section = &cubin.sections[index];
    if !section.data.len().is_multiple_of(PAIR) {
        return Err(Error::Entries {
            section: section.name.to_owned(),
            found: section.data.len(),
            entry: PAIR,
        });
    }
    Ok(section.data.chunks_exact(PAIR))
}

/// The pairs of words whose symbols are all there still; the second word is a symbol too if `both`.
fn pairs(cubin: &Cubin<'_>, index: usize, gone: &HashSet<u32>, both: bool) -> Result<Vec<u8>> {
    let goes = |row: &[u8]| gone.contains(&word32(row, 0)) || both && gone.contains(&word32(row, 4));
    Ok(rows(cubin, index)?.filter(|row| !goes(row)).flatten().copied().collect())
}
