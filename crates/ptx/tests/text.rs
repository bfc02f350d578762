//! Texts that are wrong, and how they are refused.

mod common;

use common::{Memory, Run, TestHost, place};
use proptest::prelude::*;
use rekindle_ptx::{Error, Module};

fn refused(body: &str) -> Error {
    let source = format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k()\n{{\n.reg .b32 %r<4>;\n.reg .pred %p;\n{body}\nret;\n}}\n"
    );
    Module::parse(&source).expect_err("the text is wrong")
}

#[test]
fn unknown_instructions_are_named_with_their_line() {
    let cases = [
        ("frobnicate.u32 %r1, %r2;", "frobnicate.u32"),
        ("add.rn.u32 %r1, %r2, %r3;", "add.rn.u32"),
        ("add.u32.sideways %r1, %r2, %r3;", "add.u32.sideways"),
        ("tex.2d.v4.f32.f32 {%r0,%r1,%r2,%r3}, [%r1, {%r2, %r3}];", "tex.2d.v4.f32.f32"),
        ("tex.2d.v4.f16.f32 {%r0,%r1,%r2,%r3}, [%r1, {%r2, %r3}];", "tex.2d.v4.f16.f32"),
        ("tex.2dms.v4.f32.s32 {%r0,%r1,%r2,%r3}, [%r1, {%r0, %r2, %r3, %r3}];", "tex.2dms.v4.f32.s32"),
        ("sust.p.1d.b32.trap [%r1, {%r2}], {%r3};", "sust.p.1d.b32.trap"),
        ("sured.b.add.1d.u32.trap [%r1, {%r2}], %r3;", "sured.b.add.1d.u32.trap"),
        (
            "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%r1], [%r2, {%r3}], [%r1];",
            "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes",
        ),
        (
            "tensormap.replace.tile.colour.global.b1024.b32 [%r1], 2;",
            "tensormap.replace.tile.colour.global.b1024.b32",
        ),
        ("wgmma.fence.sync.aligned;", "wgmma.fence.sync.aligned"),
        ("setp.lo.s32 %p, %r1, %r2;", "setp.lo.s32"),
    ];
    for (body, name) in cases {
        let error = refused(body);
        assert_eq!(error.line(), Some(8), "{error}");
        assert!(error.to_string().starts_with("line 8: "), "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn operands_are_checked() {
    for body in [
        "add.u32 %r1, %r2;",
        "add.u32 %r1, %nowhere, 1;",
        "add.u32 %tid.x, %r1, 1;",
        "mov.u32 %r9, 1;",
        "bra NOWHERE;",
        "@%r1 mov.u32 %r1, 1;",
        "ld.global.v2.u32 {%r1, %r2, %r3}, [%r1];",
        "call nothing, (%r1);",
        "st.global.u32 %r1, %r2;",
        "tensormap.replace.tile.box_dim.global.b1024.b32 [%r1], 5, 8;",
        "tensormap.replace.tile.rank.global.b1024.b32 [%r1], 1, 8;",
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%r1, {%r2}], [%r3];",
    ] {
        let error = refused(body);
        assert_eq!(error.line(), Some(8), "{body}: {error}");
    }
}

#[test]
fn what_is_not_ptx() {
    for text in
        ["", "\0\0\0", "\x7fELF", "hello", ".version", ".version 8.0\n.target sm_80\n.entry k() {", "{{{{"]
    {
        assert!(Module::parse(text).is_err(), "{text:?}");
    }
    let deep = format!(".version 8.0\n.target sm_80\n.entry k() {{ {}", "{".repeat(100_000));
    assert!(Module::parse(&deep).is_err());
    for open in ["{", "[%r1, ", "("] {
        let deep = format!(".version 8.0\n.target sm_80\n.entry k() {{ mov.b32 {} ;}}", open.repeat(100_000));
        assert!(Module::parse(&deep).is_err());
    }
    let deep = format!(".version 8.0\n.target sm_80\n.entry k() {{ mov.u32 {}", "(".repeat(100_000));
    assert!(Module::parse(&deep).is_err());
}

#[test]
fn registers_in_scopes_and_families() {
    let module = Module::parse(
        ".version 8.0 .target sm_80, texmode_independent .address_size 64 // one line
         .visible .entry k(.param .align 8 .b8 s[24], .param .u32 n) .maxntid 128, 2, 1 .minnctapersm 2 {
           .reg .b32 a, %r<10>, %r1x<3>; .reg .v2 .f32 v; mov.u32 %r9, 1; mov.u32 %r1x2, %r9; mov.f32 v.y, 0f3F800000;
           { .reg .b64 a; mov.u64 a, 1; L: add.u64 a, a, 1; } { .reg .b64 a; mov.u64 a, 1; bra L; L: add.u64 a, a, 1; }
           mov.u32 a, WARP_SZ; /* two
           lines */ ret; }",
    )
    .unwrap();
    let entry = &module.entries()[0];
    assert_eq!((entry.max_threads, entry.parameters[1].offset), (256, 24));
    assert_eq!(module.version(), (8, 0));
}

#[test]
fn initial_values() {
    let module = Module::parse(
        ".version 8.0 .target sm_80 .address_size 64
         .global .align 4 .b8 text[4] = {65, 66};
         .const .f32 numbers[2][2] = {{1.0, 0f40000000}, {-3}};
         .visible .global .u64 pointer = generic(text)+2;
         .global .align 8 .u64 table[2] = {f, pointer};
         .global .s16 shorts[] = {-1, 2, 3};
         .func f() { ret; }",
    )
    .unwrap();
    let [text, numbers, pointer, table, shorts] = module.globals() else { panic!() };
    assert_eq!(text.init, [65, 66, 0, 0]);
    let floats: Vec<f32> =
        numbers.init.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(floats, [1.0, 2.0, -3.0, 0.0]);
    assert_eq!((pointer.relocations[0].global, pointer.relocations[0].addend, pointer.visible), (0, 2, true));
    assert_eq!(
        (table.relocations.len(), table.relocations[0].offset, table.relocations[0].global),
        (1, 8, 2)
    );
    assert_ne!(table.init[..8], [0; 8]);
    assert_eq!((shorts.size, &shorts.init[..2]), (6, &[0xff, 0xff][..]));
}

const SAMPLE: &str = include_str!("data/compiled.ptx");

type Edit = (u32, u8, usize, u8);

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    proptest::collection::vec((any::<u32>(), any::<u8>(), 0usize..40, 0u8..6), 1..5)
}

fn mutated(edits: Vec<Edit>) -> String {
    let mut text = SAMPLE.as_bytes().to_vec();
    for (at, byte, length, kind) in edits {
        let at = at as usize % (text.len() - 100);
        let end = at + length;
        match kind {
            0 => text[at] = byte,
            1 => drop(text.drain(at..end)),
            2 => {
                let copy = text[at..end].to_vec();
                text.splice(at..at, copy);
            }
            3 => text[at] = b"{}()[];,.%<>-0"[usize::from(byte) % 14],
            // A digit is another: other registers, types, labels and sizes.
            _ => {
                if let Some(digit) = text[at..].iter().position(u8::is_ascii_digit) {
                    text[at + digit] = b'0' + byte % 10;
                }
            }
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is cut out, doubled or overwritten, parsing ends with a module or an error.
    #[test]
    fn mutated_texts_never_panic(edits in edits()) {
        let _ = Module::parse(&mutated(edits));
    }

    /// What still parses runs to its end, to a fault, or until it is cancelled.
    #[test]
    fn mutated_kernels_never_panic(edits in edits()) {
        let Ok(module) = Module::parse(&mutated(edits)) else {
            return Ok(());
        };
        if !module.unresolved().is_empty() || module.globals().iter().map(|global| global.size).sum::<u64>() > 1 << 20 {
            return Ok(());
        }
        let (memory, globals) = (Memory::new(1 << 16), Memory::new(2 << 20));
        let run = Run { globals: place(&module, &globals), dynamic_shared: 512, ..Run::shape(2, 64) };
        for entry in module.entries() {
            let host = TestHost { patience: 8, heap: memory.start.into(), ..TestHost::default() };
            if let Ok(grid) = run.prepare(&module, &entry.name, &[memory.start; 4]) {
                let _ = grid.run(&host, 1);
            }
        }
    }

    #[test]
    fn noise_never_panics(text in "\\PC{0,200}") {
        let _ = Module::parse(&format!(".version 8.0 .target sm_80 {text}"));
        let _ = Module::parse(&format!(".version 8.0 .target sm_80 .entry k() {{ {text} }}"));
    }
}
