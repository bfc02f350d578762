//! What a module says of its kernels' shared memory and registers, and signatures that differ between texts.

mod common;

use common::{Memory, Run, parse};
use rekindle_ptx::{Entry, Module};

fn entry(directives: &str, body: &str) -> Entry {
    let module = parse(&format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n.extern .shared .align 32 .b8 dynamic[];
         .visible .entry k(.param .u64 out) {directives} {{ {body} ret; }}"
    ));
    module.entries()[0].clone()
}

#[test]
fn static_shared_memory_is_exact_and_dynamic_follows_aligned() {
    let source = ".version 8.0\n.target sm_90\n.address_size 64\n.extern .shared .align 32 .b8 dynamic[];
         .visible .entry k(.param .u64 out) { .reg .b64 %d<4>; .reg .b32 %r<4>; .shared .align 4 .b8 fixed[40];
         mov.u32 %r1, dynamic; mov.u32 %r2, fixed; sub.u32 %r3, %r1, %r2; ld.param.u64 %d1, [out];
         st.global.u32 [%d1], %r3; mov.u32 %r1, 7; st.shared.u32 [dynamic+28], %r1; st.shared.u32 [fixed+36], %r2;
         ld.shared.u32 %r1, [dynamic+28]; st.global.u32 [%d1+4], %r1; ret; }";
    let module = parse(source);
    let entry = &module.entries()[0];
    assert_eq!((entry.static_shared, entry.dynamic_shared_at), (40, 64));
    let memory = Memory::new(4096);
    Run { dynamic_shared: 32, ..Run::shape(1, 1) }.go(&module, "k", &[memory.start]);
    assert_eq!(memory.get::<u32>(0, 2), [64, 7]);
}

#[test]
fn registers_stay_within_what_a_kernel_promises() {
    let loads: String = (0..100).map(|i| format!("ld.global.u64 %d{i}, [%d200+{}];", 8 * i)).collect();
    let stores: String = (0..100).map(|i| format!("st.global.u64 [%d200+{}], %d{i};", 8 * (i + 1))).collect();
    let body = format!(".reg .b64 %d<201>; ld.param.u64 %d200, [out]; {loads} {stores}");
    let registers = |directives| entry(directives, &body).registers;
    assert!(registers(".maxntid 32") > 190);
    assert_eq!(registers(""), 64);
    assert_eq!(registers(".maxnreg 40"), 40);
    assert_eq!(registers(".maxntid 1024"), 64);
    assert_eq!(registers(".reqntid 16, 16, 2"), 128);
    assert_eq!(registers(".maxntid 128 .minnctapersm 8"), 64);
    assert_eq!(entry(".maxnreg 40", "").registers, 16);
}

/// Compilers declare a C function without result as one that gives one; only the text of the caller says so.
#[test]
fn a_result_that_another_text_does_not_give_is_undefined() {
    let caller = parse(
        ".version 8.0\n.target sm_90\n.address_size 64\n.extern .func (.param .b32 r) f(.param .b64 a, .param .b32 b);
         .visible .entry k(.param .u64 out) { .reg .b64 %d; .reg .b32 %r; ld.param.u64 %d, [out];
         { .param .b64 a; .param .b32 b; .param .b32 r; st.param.b64 [a], %d; st.param.b32 [b], 5;
           call.uni (r), f, (a, b); ld.param.b32 %r, [r]; } ret; }",
    );
    let callee = "f(.param .b64 a, .param .b32 b) { .reg .b64 %d; .reg .b32 %r; ld.param.u64 %d, [a];
         ld.param.u32 %r, [b]; st.global.u32 [%d], %r; ret; }";
    let callee = parse(&format!(".version 8.0\n.target sm_90\n.address_size 64\n.visible .func {callee}"));
    let memory = Memory::new(4096);
    Run::shape(1, 1).go(&Module::link(&[caller, callee]).unwrap(), "k", &[memory.start]);
    assert_eq!(memory.get::<u32>(0, 1), [5]);

    let alone = Module::parse(
        ".version 8.0\n.target sm_90\n.visible .func f() { ret; }
         .visible .entry k() { .param .b32 r; call.uni (r), f; ret; }",
    );
    assert!(alone.unwrap_err().to_string().contains("0 arguments and 1 results"));
}
