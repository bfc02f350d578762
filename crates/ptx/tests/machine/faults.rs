//! What ends a kernel, and launches that are refused.

use crate::common::{Memory, Run, TestHost, kernel, parse};
use rekindle_ptx::{Error, Fault};

#[test]
fn unmapped_pages_fault_with_their_place() {
    let module = kernel(1, "", "mad.wide.u32 %d1, %gid, 4, %p0;\nst.global.u32 [%d1], %gid;");
    let memory = Memory::new(4096);
    // The second block runs past the page.
    let fault = Run::shape(9, 128).on(&TestHost::default(), &module, "k", &[memory.start]).unwrap_err();
    let Fault::IllegalAddress { at, address, write } = &fault else { panic!("{fault}") };
    assert_eq!((*address, *write), (memory.start + 4096, true));
    assert_eq!((at.kernel.as_str(), at.block, at.thread), ("k", [8, 0, 0], [0, 0, 0]));
    assert!(fault.to_string().contains("wrote to address"), "{fault}");
}

#[test]
fn read_only_pages_can_be_read_alone() {
    let memory = Memory::new(4096);
    memory.put(0, &[5u32]);
    memory.protect(libc::PROT_READ);
    let read = kernel(1, "", "ld.global.u32 %r1, [%p0];");
    Run::shape(1, 1).go(&read, "k", &[memory.start]);
    for body in ["st.global.u32 [%p0], 1;", "atom.global.add.u32 %r1, [%p0], 1;"] {
        let fault = Run::shape(1, 1)
            .on(&TestHost::default(), &kernel(1, "", body), "k", &[memory.start])
            .unwrap_err();
        assert!(matches!(fault, Fault::IllegalAddress { write: true, .. }), "{fault}");
    }
    assert_eq!(memory.get::<u32>(0, 1), [5]);
}

#[test]
fn addresses_outside_of_all_ranges_and_misaligned_ones() {
    let module = kernel(1, "", "ld.global.u32 %r1, [%p0];");
    let local = 7u32;
    let outside = &raw const local as u64;
    for address in [0, 8, outside, u64::MAX - 3] {
        let fault = Run::shape(1, 1).on(&TestHost::default(), &module, "k", &[address]).unwrap_err();
        assert!(matches!(fault, Fault::IllegalAddress { write: false, .. }), "{fault}");
    }
    let memory = Memory::new(4096);
    let fault = Run::shape(1, 1).on(&TestHost::default(), &module, "k", &[memory.start + 2]).unwrap_err();
    assert!(matches!(fault, Fault::MisalignedAddress { align: 4, .. }), "{fault}");
}

#[test]
fn shared_memory_has_an_end() {
    let module = kernel(0, ".shared .align 4 .b32 s[4];", "mov.u32 %r1, s; ld.shared.u32 %r2, [%r1+64];");
    let fault = Run::shape(1, 1).on(&TestHost::default(), &module, "k", &[]).unwrap_err();
    assert!(matches!(fault, Fault::IllegalAddress { address: 64, .. }), "{fault}");
}

#[test]
fn traps_and_assertions() {
    let fault = Run::shape(1, 1).on(&TestHost::default(), &kernel(0, "", "trap;"), "k", &[]).unwrap_err();
    assert!(matches!(fault, Fault::Trap { .. }), "{fault}");
    let module = parse(
        ".version 8.0\n.target sm_80\n.address_size 64\n
         .global .align 1 .b8 message[6] = {120, 32, 62, 32, 48, 0};
         .global .align 1 .b8 file[5] = {97, 46, 99, 117, 0};
         .extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e) .noreturn;
         .visible .entry k() { .reg .b64 %rd<4>; .reg .pred %p; .reg .b32 %t; mov.u32 %t, %tid.x;
         setp.ne.u32 %p, %t, 33; @%p bra END;
         mov.u64 %rd1, message; cvta.global.u64 %rd1, %rd1; mov.u64 %rd2, file;
         { .param .b64 p0; st.param.b64 [p0], %rd1; .param .b64 p1; st.param.b64 [p1], %rd2;
           .param .b32 p2; st.param.b32 [p2], 42; .param .b64 p3; st.param.b64 [p3], %rd2;
           .param .b64 p4; st.param.b64 [p4], 1;
           call.uni __assertfail, (p0, p1, p2, p3, p4); }
         END: ret; }",
    );
    let globals = Memory::new(4096);
    globals.put(0, &module.globals()[0].init);
    globals.put(64, &module.globals()[1].init);
    let run = Run { globals: vec![globals.start, globals.start + 64], ..Run::shape(1, 64) };
    let fault = run.on(&TestHost::default(), &module, "k", &[]).unwrap_err();
    let Fault::Assert { at, message } = fault else { panic!("{fault}") };
    assert_eq!(message, "a.cu:42: a.cu: `x > 0`");
    assert_eq!(at.thread, [33, 0, 0]);
}

#[test]
fn endless_kernels_can_be_cancelled() {
    let module = kernel(0, "", "FOREVER: add.u32 %r1, %r1, 1; bra FOREVER;");
    let host = TestHost { patience: 3, ..TestHost::default() };
    assert_eq!(Run::shape(4, 64).on(&host, &module, "k", &[]), Err(Fault::Cancelled));
}

#[test]
fn a_barrier_that_cannot_complete_is_a_fault() {
    let module = kernel(
        0,
        "",
        "setp.eq.u32 %q1, %tid32, 0; @%q1 bra OTHER; bar.sync 1; bra END; OTHER: bar.sync 2; END:",
    );
    let fault = Run::shape(1, 32).on(&TestHost::default(), &module, "k", &[]).unwrap_err();
    assert!(matches!(fault, Fault::Deadlock { .. }), "{fault}");
}

#[test]
fn endless_recursion_overflows_the_stack() {
    let module = parse(
        ".version 8.0\n.target sm_80\n.address_size 64\n
         .func f (.param .b32 a) { .local .b8 x[64]; { .param .b32 b; st.param.b32 [b], 1; call f, (b); } ret; }
         .visible .entry k() { { .param .b32 b; st.param.b32 [b], 1; call f, (b); } ret; }",
    );
    let fault = Run::shape(1, 1).on(&TestHost::default(), &module, "k", &[]).unwrap_err();
    assert!(matches!(fault, Fault::StackOverflow { .. }), "{fault}");
}

#[test]
fn launches_are_checked() {
    let module = parse(
        ".version 8.0\n.target sm_80\n.visible .entry k() .reqntid 64 { .shared .b8 s[1024]; .reg .b64 %d; mov.u64 %d, s; ret; }",
    );
    assert_eq!(module.entries()[0].static_shared, 1024);
    for run in [Run::shape(1, 32), Run::shape(0, 64), Run { dynamic_shared: 1 << 20, ..Run::shape(1, 64) }] {
        assert!(matches!(run.prepare(&module, "k", &[]), Err(Error::Launch { .. })));
    }
    Run::shape(1, 64).go(&module, "k", &[]);
}
