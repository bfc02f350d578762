//! Modules of several texts.

use crate::common::{Memory, Run, TestHost, kernel, parse};
use rekindle_ptx::{Error, Module};

#[test]
fn modules_are_linked() {
    let head = ".version 8.0\n.target sm_80\n.address_size 64\n";
    let caller = parse(&format!(
        "{head}.extern .func (.param .b32 r) twice (.param .b32 a);\n.extern .global .align 4 .u32 shared_value;
         .visible .entry k(.param .u64 out) {{ .reg .b64 %d<2>; .reg .b32 %r<3>; ld.param.u64 %d1, [out];
         ld.global.u32 %r1, [shared_value];
         {{ .param .b32 a; st.param.b32 [a], %r1; .param .b32 r; call.uni (r), twice, (a); ld.param.b32 %r2, [r]; }}
         st.global.u32 [%d1], %r2; ret; }}"
    ));
    assert_eq!(caller.unresolved(), ["shared_value", "twice"]);
    let error = Run::shape(1, 1).prepare(&caller, "k", &[0]).err().expect("it cannot be launched");
    assert!(matches!(&error, Error::Launch { message, .. } if message.contains("twice")), "{error}");
    let callee = parse(&format!(
        "{head}.visible .global .align 4 .u32 shared_value = 21;
         .visible .func (.param .b32 r) twice (.param .b32 a) {{ .reg .b32 %r; ld.param.b32 %r, [a]; shl.b32 %r, %r, 1;
         st.param.b32 [r], %r; ret; }}"
    ));
    let module = Module::link(&[caller, callee.clone()]).unwrap();
    assert!(module.unresolved().is_empty());
    let memory = Memory::new(4096);
    memory.put(64, &module.globals()[0].init);
    Run { globals: vec![memory.start + 64], ..Run::shape(1, 1) }.go(&module, "k", &[memory.start]);
    assert_eq!(memory.get::<u32>(0, 1), [42]);
    let error = Module::link(&[callee.clone(), callee]).unwrap_err();
    assert!(error.to_string().contains("defined more than once"), "{error}");
}

/// Compilers call these for `grid.sync()` where they do not expand it.
#[test]
fn the_device_runtime_is_linked_in() {
    let module = kernel(
        1,
        ".extern .func (.param .b64 r) cudaCGGetIntrinsicHandle (.param .b32 a);
         .extern .func (.param .b32 r) cudaCGSynchronize (.param .b64 a, .param .b32 b);",
        "{ .param .b32 a; st.param.b32 [a], 1; .param .b64 h; call.uni (h), cudaCGGetIntrinsicHandle, (a); ld.param.b64 %d1, [h]; }
         atom.global.add.u32 %r1, [%p0], 1;
         { .param .b64 a; st.param.b64 [a], %d1; .param .b32 b; st.param.b32 [b], 0; .param .b32 r;
           call.uni (r), cudaCGSynchronize, (a, b); ld.param.b32 %r2, [r]; }
         ld.volatile.global.u32 %r3, [%p0]; mad.wide.u32 %d2, %gid, 4, %p0; st.global.u32 [%d2+4], %r3;",
    );
    assert!(module.unresolved().is_empty());
    let memory = Memory::new(8192);
    let workspace = memory.start + 6144;
    for blocks in [7, 30] {
        memory.put(0, &[0u32]);
        Run { threads: 2, workspace, ..Run::shape(blocks, 32) }.go(&module, "k", &[memory.start]);
        assert!(memory.get::<u32>(4, 32 * blocks as usize).iter().all(|count| *count == 32 * blocks));
    }
    let fault = Run::shape(1, 32).on(&TestHost::default(), &module, "k", &[memory.start]).unwrap_err();
    assert!(matches!(fault, rekindle_ptx::Fault::Trap { .. }), "{fault}");
}
