//! What a piece has of its module.

use std::collections::BTreeMap;

use object::read::elf::ElfFile64;
use object::{LittleEndian, Object, ObjectSection, ObjectSymbol};

use rekindle_code::{Limits, Prepared};

use crate::compiler::{HOPPER, LINKED, ROUND, SAMPLE, compile, prepared};

const ADDRESS: u64 = 0x6000_0000_0000;
const LIMITS: Limits = Limits { registers: 65536, threads: 1024, shared: 49152, reserved_shared: 1024 };

/// Contents of the sections with names.
fn sections(cubin: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let file = ElfFile64::<LittleEndian>::parse(cubin).unwrap();
    let named = file.sections().filter(|section| !section.name().unwrap().is_empty());
    named.map(|section| (section.name().unwrap().to_owned(), section.data().unwrap().to_vec())).collect()
}

fn symbols(cubin: &[u8]) -> Vec<String> {
    let file = ElfFile64::<LittleEndian>::parse(cubin).unwrap();
    file.symbols().map(|symbol| symbol.name().unwrap().to_owned()).filter(|name| !name.is_empty()).collect()
}

#[test]
fn a_piece_has_its_kernel_and_no_other() {
    let whole = prepared(&SAMPLE);
    let before = sections(&SAMPLE);
    assert!(whole.kernels.len() > 8);
    for kernel in whole.kernels.values() {
        let piece = whole.piece(&kernel.name, ADDRESS).unwrap();
        assert!(piece.len() < SAMPLE.len() / 2, "{}: {} of {}", kernel.name, piece.len(), SAMPLE.len());
        let again = prepared(&piece);
        assert_eq!(again.kernels.values().collect::<Vec<_>>(), [kernel]);
        assert_eq!(again.globals.bytes, 0);
        let after = sections(&piece);
        let code: Vec<_> = after.keys().filter(|name| name.starts_with(".text.")).collect();
        assert_eq!(code, [&format!(".text.{}", kernel.name)]);
        for part in [".text.", ".nv.info.", ".nv.constant0.", ".nv.constant2.", ".nv.shared."] {
            let name = format!("{part}{}", kernel.name);
            assert_eq!(after.get(&name), before.get(&name), "{name}");
        }
        for name in [".note.nv.cuinfo", ".note.nv.tkinfo", ".nv.compat"] {
            assert_eq!(after[name], before[name], "{name}");
        }
        let gone = |name: &str| !name.contains("debug") && !name.starts_with(".nv.global");
        assert!(after.keys().all(|name| gone(name)), "{:?}", after.keys());
        let others = whole.kernels.keys().filter(|name| **name != kernel.name);
        let names = symbols(&piece);
        assert!(names.contains(&kernel.name));
        others.for_each(|other| assert!(!names.contains(other), "{other} in {}", kernel.name));
    }
}

/// Where a global begins in the buffer.
fn offset(whole: &Prepared, name: &str) -> u64 {
    let found = whole.globals.all.iter().find(|global| global.name == name);
    found.unwrap_or_else(|| panic!("no global {name}")).offset
}

#[test]
fn addresses_of_globals_are_filled_in() {
    let whole = prepared(&SAMPLE);
    let words = |table: &[u8]| {
        let words = table.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        words.collect::<Vec<_>>()
    };
    assert!(words(&sections(&SAMPLE)[".nv.constant4"]).iter().all(|word| *word == 0));
    let file = whole.piece("globals", ADDRESS).unwrap();
    let piece = sections(&file);
    let table = words(&piece[".nv.constant4"]);
    for name in ["counter", "table", "inner", "chain", "functions", "angles"] {
        assert!(table.contains(&(ADDRESS + offset(&whole, name))), "{name} is not in {table:x?}");
    }
    // What is left to the driver: the addresses of its own functions.
    let elf = ElfFile64::<LittleEndian>::parse(&file[..]).unwrap();
    let symbol = |row: &[u8]| {
        let index = u32::from_le_bytes(row[12..16].try_into().unwrap());
        elf.symbol_by_index(object::SymbolIndex(index as usize)).unwrap().name().unwrap().to_owned()
    };
    let mut left: Vec<_> = piece[".rela.nv.constant4"].chunks_exact(24).map(symbol).collect();
    left.sort();
    assert_eq!(left, ["free", "malloc", "vprintf"]);
}

#[test]
fn addresses_in_linked_code_are_filled_in() {
    let whole = prepared(&LINKED);
    let globals = 0x6123_4567_8000;
    let address = globals + offset(&whole, "table");
    let before = &sections(&LINKED)[".text.reads"];
    let after = &sections(&whole.piece("reads", globals).unwrap())[".text.reads"];
    let halves = [address as u32, (address >> 32) as u32];
    let mut found = Vec::new();
    // The halves stand in the second words of moves into registers, and nothing else is changed.
    for (old, new) in before.chunks_exact(4).zip(after.chunks_exact(4)).filter(|(old, new)| old != new) {
        assert_eq!(old, [0; 4]);
        found.push(u32::from_le_bytes(new.try_into().unwrap()));
    }
    found.sort_unstable();
    found.dedup();
    assert_eq!(found, {
        let mut halves = halves;
        halves.sort_unstable();
        halves
    });
    let other = sections(&whole.piece("alone", ADDRESS).unwrap());
    assert_eq!(other[".text.alone"], sections(&LINKED)[".text.alone"]);
}

#[test]
fn globals_begin_with_what_the_program_says() {
    let whole = prepared(&SAMPLE);
    let globals = &whole.globals;
    let find = |name: &str| globals.all.iter().find(|global| global.name == name).unwrap();
    let initial = globals.initial(ADDRESS);
    let at = |name: &str| {
        let global = find(name);
        &initial[global.offset as usize..(global.offset + global.bytes) as usize]
    };
    assert_eq!(at("table"), [1u32, 2, 3, 4].map(u32::to_le_bytes).as_flattened());
    assert_eq!(at("inner"), (ADDRESS + find("table").offset + 8).to_le_bytes());
    assert_eq!(at("chain"), (ADDRESS + find("inner").offset).to_le_bytes());
    assert!(initial.len() as u64 <= find("counter").offset, "zeros take no room");
    assert_eq!(find("counter").bytes, 128);
    assert!(globals.all.iter().all(|global| global.offset + global.bytes <= globals.bytes));
    assert_eq!(globals.alignment, 16);
}

#[test]
fn functions_that_call_each_other_in_a_round_go_with_their_kernel() {
    let whole = prepared(&ROUND);
    let code = |kernel: &str| {
        let piece = sections(&whole.piece(kernel, ADDRESS).unwrap());
        piece.into_keys().filter(|name| name.starts_with(".text.")).collect::<Vec<_>>()
    };
    assert_eq!(code("calls"), [".text._Z3oddi", ".text._Z4eveni", ".text.calls"]);
    assert_eq!(code("alone"), [".text.alone"]);
    let calls = &sections(&whole.piece("alone", ADDRESS).unwrap())[".nv.callgraph"];
    // What is left names no function: calls of what is not known.
    assert!(calls.chunks_exact(8).all(|row| row[..4] == [0; 4]), "{calls:x?}");
    assert!(whole.kernels["calls"].local.is_none(), "a round has no known depth");
}

#[test]
fn each_piece_has_a_bank_of_the_user_constants_and_the_buffer_has_them_by_name() {
    let source = r#"
        __device__ float sum, product = 7;
        static __constant__ float factors[8] = {1, 2, 3};
        __constant__ int last = 5;
        extern "C" __global__ void reads(float *x) { x[0] = factors[threadIdx.x] + last + sum * product; }
        extern "C" __global__ void other(float *x) { x[0] = 1; }
    "#;
    let cubin = compile(source, &[HOPPER, "-cubin"]);
    let whole = prepared(&cubin);
    let bank = &sections(&cubin)[".nv.constant3"];
    for kernel in ["reads", "other"] {
        assert_eq!(&sections(&whole.piece(kernel, ADDRESS).unwrap())[".nv.constant3"], bank);
        assert_eq!(whole.kernels[kernel].attributes(&LIMITS)[2], Some(bank.len() as i32));
    }
    let globals = &whole.globals;
    let constants = globals.constants.start as usize..globals.constants.end as usize;
    let initial = globals.initial(ADDRESS);
    assert_eq!(&initial[constants.clone()], &bank[..]);
    assert_eq!(constants.start % 256, 0);
    for (name, value) in [("factors", 1.0f32.to_le_bytes()), ("last", 5i32.to_le_bytes())] {
        let at = offset(&whole, name) as usize;
        assert!(constants.contains(&at) && initial[at..at + 4] == value, "{name}");
    }
    assert_eq!(initial[offset(&whole, "product") as usize..][..4], 7f32.to_le_bytes());
    assert!(offset(&whole, "sum") as usize >= constants.end);
}

#[test]
fn textures_that_kernels_get_as_arguments_need_nothing_of_the_module() {
    let source =
        "extern \"C\" __global__ void reads(cudaTextureObject_t t, cudaSurfaceObject_t s, float *x) {
            x[0] = tex2D<float>(t, x[1], x[2]) + tex1Dfetch<float>(t, 3);
            surf2Dwrite(x[3], s, 4, 5);
        }
        extern \"C\" __global__ void other(float *x) { x[0] = 1; }";
    let code = compile(source, &[HOPPER, "-cubin"]);
    let piece = prepared(&code).piece("reads", ADDRESS).unwrap();
    let (before, after) = (sections(&code), sections(&piece));
    for name in [".text.reads", ".nv.info.reads", ".nv.constant0.reads"] {
        assert_eq!(after.get(name), before.get(name), "{name}");
    }
    assert!(!after.contains_key(".text.other"));
}

#[test]
fn a_kernel_that_is_not_there_is_an_error() {
    let error = prepared(&SAMPLE).piece("nowhere", ADDRESS).unwrap_err();
    assert_eq!(error.to_string(), "the cubin has no kernel nowhere");
}

#[test]
fn notes_tell_what_the_compiler_says() {
    let whole = prepared(&SAMPLE);
    let kernel = &whole.kernels["shared"];
    let attributes = kernel.attributes(&LIMITS);
    assert_eq!(attributes[..2], [Some(1024), Some(512)]);
    assert_eq!(attributes[5..7], [Some(90), Some(90)]);
    assert_eq!(attributes[8], Some(49152 - 512));
    let parameters = kernel.parameters.as_ref().unwrap();
    assert_eq!(parameters.iter().map(|row| (row.offset, row.bytes)).collect::<Vec<_>>(), [(0, 8)]);
    assert_eq!(whole.kernels["clustered"].cluster, Some([1, 1, 1]));
    assert!(whole.kernels["reduces"].local.unwrap() > 0);
}
