//! Memory that threads share, and addresses of it.

use crate::common::{Memory, Run, TestHost, kernel, parse};

#[test]
fn atomics_of_all_threads() {
    let module = kernel(
        1,
        "",
        "atom.global.add.u32 %r1, [%p0], 1; red.global.max.u32 [%p0+4], %gid; red.global.xor.b32 [%p0+8], %gid;
         atom.global.inc.u32 %r2, [%p0+12], 9; cvt.u64.u32 %d1, %gid; red.global.add.u64 [%p0+16], %d1;
         mov.f32 %f1, 0f3F000000; red.global.add.f32 [%p0+24], %f1;
         mov.b32 %r3, 0x3c003c00; red.global.add.noftz.f16x2 [%p0+28], %r3;
         cvt.rn.f64.u32 %e1, %gid; red.global.add.f64 [%p0+32], %e1;
         cvt.s64.s32 %d2, -5; red.global.min.s64 [%p0+40], %d2;",
    );
    let memory = Memory::new(4096);
    Run { threads: 2, ..Run::shape(4, 128) }.go(&module, "k", &[memory.start]);
    assert_eq!(memory.get::<u32>(0, 4), [512, 511, 0, 2]);
    assert_eq!(memory.get::<u64>(16, 1), [511 * 256]);
    assert_eq!(memory.get::<f32>(24, 1), [256.0]);
    assert_eq!(memory.get::<u32>(28, 1), [0x6000_6000]);
    assert_eq!(memory.get::<f64>(32, 1), [f64::from(511 * 256)]);
    assert_eq!(memory.get::<i64>(40, 1), [-5]);
}

#[test]
fn wide_atomics() {
    let module = kernel(
        1,
        "",
        ".reg .b128 %w<4>; cvt.u64.u32 %d1, %tid32; mov.u64 %d2, 1;
         mov.b128 %w1, {%d1, %d2}; atom.global.b128.exch %w2, [%p0], %w1;
         mov.b128 {%d3, %d4}, %w2; red.global.add.u64 [%p0+16], %d3; red.global.add.u64 [%p0+24], %d4;",
    );
    let memory = Memory::new(4096);
    Run::shape(1, 32).go(&module, "k", &[memory.start]);
    let last = memory.get::<u64>(0, 2);
    assert_eq!(memory.get::<u64>(16, 2), [(0..32).sum::<u64>() - last[0], 31]);
}

#[test]
fn generic_addresses_of_shared_and_local_memory() {
    let module = kernel(
        1,
        ".shared .align 8 .b64 s[2];",
        ".local .align 8 .b8 l[16]; mov.u64 %d1, s; cvta.shared.u64 %d1, %d1; mov.u64 %d2, l; cvta.local.u64 %d2, %d2;
         st.u64 [%d1+8], 11; st.u64 [%d2+8], 22; ld.shared.u64 %d3, [s+8]; ld.local.u64 %d4, [l+8];
         isspacep.shared %q1, %d1; isspacep.local %q2, %d2; isspacep.global %q3, %p0; isspacep.shared %q4, %p0;
         selp.u32 %r1, 1, 0, %q1; selp.u32 %r2, 1, 0, %q2; selp.u32 %r3, 1, 0, %q3; selp.u32 %r4, 1, 0, %q4;
         st.global.v2.u64 [%p0], {%d3, %d4}; st.global.v4.u32 [%p0+16], {%r1, %r2, %r3, %r4};",
    );
    let memory = Memory::new(4096);
    Run::shape(1, 1).go(&module, "k", &[memory.start]);
    assert_eq!(memory.get::<u64>(0, 2), [11, 22]);
    assert_eq!(memory.get::<u32>(16, 4), [1, 1, 1, 0]);
}

#[test]
fn addresses_of_elements_of_arrays() {
    let module = kernel(
        1,
        "",
        ".shared .align 8 .b64 s[4]; .local .align 4 .b8 l[16];
         mov.u64 %d1, s[0]; mov.u64 %d2, s[3]; sub.u64 %d2, %d2, %d1; mov.u64 %d3, l[5]; mov.u64 %d4, l; sub.u64 %d3, %d3, %d4;
         st.global.u64 [%p0], %d2; st.global.u64 [%p0+8], %d3;",
    );
    let memory = Memory::new(4096);
    Run::shape(1, 1).go(&module, "k", &[memory.start]);
    assert_eq!(memory.get::<u64>(0, 2), [24, 5]);
}

#[test]
fn clusters_share_their_memory() {
    let module = kernel(
        1,
        ".shared .align 4 .b32 s;",
        "mov.u32 %r1, %cluster_ctarank; mul.lo.u32 %r2, %r1, 10; st.shared.u32 [s], %r2;
         barrier.cluster.arrive; barrier.cluster.wait;
         xor.b32 %r3, %r1, 1; mov.u32 %r4, s; mapa.shared::cluster.u32 %r5, %r4, %r3;
         ld.shared::cluster.u32 %r6, [%r5]; mad.wide.u32 %d1, %cta, 4, %p0; st.global.u32 [%d1], %r6;
         barrier.cluster.arrive; barrier.cluster.wait;",
    );
    let memory = Memory::new(4096);
    Run { cluster: [2, 1, 1], ..Run::shape(4, 32) }.go(&module, "k", &[memory.start]);
    assert_eq!(memory.get::<u32>(0, 4), [10, 0, 10, 0]);
}

#[test]
fn mbarriers_and_asynchronous_copies() {
    let module = kernel(
        1,
        ".shared .align 8 .b64 bar; .shared .align 16 .b8 s[512];",
        "setp.ne.u32 %q1, %tid32, 0; @%q1 bra READY; mbarrier.init.shared.b64 [bar], %ntid32; READY: bar.sync 0;
         shl.b32 %r1, %tid32, 2; mov.u32 %r2, s; add.u32 %r2, %r2, %r1; cvt.u64.u32 %d1, %r1; add.u64 %d2, %p0, %d1;
         cp.async.ca.shared.global [%r2], [%d2], 4; cp.async.commit_group; cp.async.wait_group 0;
         mbarrier.arrive.shared.b64 %d3, [bar];
         WAIT: mbarrier.try_wait.shared.b64 %q2, [bar], %d3; @!%q2 bra WAIT;
         sub.u32 %r3, %ntid32, %tid32; shl.b32 %r3, %r3, 2; mov.u32 %r4, s; add.u32 %r3, %r3, %r4;
         ld.shared.u32 %r5, [%r3+-4]; st.global.u32 [%d2+1024], %r5;",
    );
    let memory = Memory::new(4096);
    memory.put(0, &(0..128u32).collect::<Vec<_>>());
    Run::shape(1, 128).go(&module, "k", &[memory.start]);
    let out = memory.get::<u32>(1024, 128);
    (0..128).for_each(|i: u32| assert_eq!(out[i as usize], 127 - i));
}

#[test]
fn device_heap() {
    let module = parse(
        ".version 8.0\n.target sm_80\n.address_size 64\n.extern .func (.param .b64 r) malloc (.param .b64 a);
         .extern .func free (.param .b64 a);
         .visible .entry k(.param .u64 out) { .reg .b64 %d<4>; ld.param.u64 %d1, [out];
         { .param .b64 a; st.param.b64 [a], 24; .param .b64 r; call.uni (r), malloc, (a); ld.param.b64 %d2, [r]; }
         st.u64 [%d2], 9; ld.u64 %d3, [%d2]; st.global.u64 [%d1], %d3;
         { .param .b64 a; st.param.b64 [a], %d2; call.uni free, (a); } ret; }",
    );
    let memory = Memory::new(8192);
    let host = TestHost { heap: (memory.start + 4096).into(), ..TestHost::default() };
    Run::shape(1, 1).on(&host, &module, "k", &[memory.start]).unwrap();
    assert_eq!(memory.get::<u64>(0, 1), [9]);
}

#[test]
fn conditions_of_graphs() {
    let module = parse(
        ".version 8.0\n.target sm_80\n.address_size 64\n
         .extern .func cudaGraphSetConditional (.param .b64 handle, .param .b32 value);
         .visible .entry k(.param .u64 handle) { .reg .b64 %d<2>; ld.param.u64 %d1, [handle];
         { .param .b64 h; st.param.b64 [h], %d1; .param .b32 v; st.param.b32 [v], 3;
           call.uni cudaGraphSetConditional, (h, v); } ret; }",
    );
    let host = TestHost::default();
    Run::shape(1, 1).on(&host, &module, "k", &[1 << 40]).unwrap();
    assert_eq!(*host.conditions.lock().unwrap(), [(1 << 40, 3)]);
}
