//! What kernels can do to each other and to themselves: divergence, waiting, faults.

mod common;

use common::{Memory, Run, TestHost, kernel, parse};
use rekindle_ptx::{Error, Fault, Module};

#[test]
fn a_loop_of_different_length_in_each_lane() {
    let module = kernel(
        1,
        "",
        "mov.u32 %r1, 0; mov.u32 %r2, 0;
         LOOP: setp.ge.u32 %q1, %r1, %gid; @%q1 bra DONE;
         add.u32 %r2, %r2, %r1; add.u32 %r1, %r1, 1; bra LOOP;
         DONE: mad.wide.u32 %d1, %gid, 4, %p0; st.global.u32 [%d1], %r2;",
    );
    let memory = Memory::new(4096);
    Run::shape(2, 48).go(&module, "k", &[memory.start]);
    let out = memory.get::<u32>(0, 96);
    (0..96).for_each(|i: u32| assert_eq!(out[i as usize], i * i.saturating_sub(1) / 2));
}

#[test]
fn lanes_meet_again_after_a_branch() {
    let module = kernel(
        1,
        "",
        "and.b32 %r1, %tid32, 1; setp.eq.u32 %q1, %r1, 0; @%q1 bra EVEN;
         mov.u32 %r2, 100; bra JOIN;
         EVEN: mov.u32 %r2, 200;
         JOIN: activemask.b32 %r3; add.u32 %r2, %r2, %tid32;
         mad.wide.u32 %d1, %tid32, 8, %p0; st.global.v2.u32 [%d1], {%r2, %r3};",
    );
    let memory = Memory::new(4096);
    Run::shape(1, 32).go(&module, "k", &[memory.start]);
    let out = memory.get::<u32>(0, 64);
    for i in 0..32 {
        assert_eq!(out[2 * i], i as u32 + if i % 2 == 0 { 200 } else { 100 });
        assert_eq!(out[2 * i + 1], u32::MAX);
    }
}

#[test]
fn a_shuffle_waits_for_the_lanes_it_names() {
    let module = kernel(
        1,
        "",
        "setp.lt.u32 %q1, %tid32, 10; @!%q1 bra LATE;
         mov.u32 %r1, 5; bra.uni MEET;
         LATE: mov.u32 %r1, 7; add.u32 %r1, %r1, %tid32;
         MEET: shfl.sync.idx.b32 %r2|%q2, %r1, 12, 31, 0xffffffff;
         mad.wide.u32 %d1, %tid32, 4, %p0; st.global.u32 [%d1], %r2;",
    );
    let memory = Memory::new(4096);
    Run::shape(1, 32).go(&module, "k", &[memory.start]);
    assert!(memory.get::<u32>(0, 32).iter().all(|v| *v == 19));
}

#[test]
fn warp_barriers_at_different_places() {
    let module = kernel(
        1,
        ".shared .align 4 .b32 s[2];",
        "setp.lt.u32 %q1, %tid32, 16; @%q1 bra FIRST;
         bar.warp.sync 0xffffffff; ld.shared.u32 %r1, [s]; bra JOIN;
         FIRST: mov.u32 %r1, 77; st.shared.u32 [s], %r1; bar.warp.sync 0xffffffff;
         JOIN: mad.wide.u32 %d1, %tid32, 4, %p0; st.global.u32 [%d1], %r1;",
    );
    let memory = Memory::new(4096);
    Run::shape(1, 32).go(&module, "k", &[memory.start]);
    assert!(memory.get::<u32>(0, 32).iter().all(|v| *v == 77));
}

#[test]
fn barriers_honour_threads_that_left() {
    let module = kernel(
        1,
        ".shared .align 4 .b32 s[256];",
        "setp.ge.u32 %q1, %tid32, 70; @%q1 exit;
         shl.b32 %r1, %tid32, 2; mov.u32 %r2, s; add.u32 %r1, %r1, %r2; st.shared.u32 [%r1], %tid32;
         bar.sync 0;
         sub.u32 %r3, 69, %tid32; shl.b32 %r3, %r3, 2; add.u32 %r3, %r3, %r2; ld.shared.u32 %r4, [%r3];
         mad.wide.u32 %d1, %tid32, 4, %p0; st.global.u32 [%d1], %r4;",
    );
    let memory = Memory::new(4096);
    Run::shape(1, 128).go(&module, "k", &[memory.start]);
    let out = memory.get::<u32>(0, 70);
    (0..70).for_each(|i: u32| assert_eq!(out[i as usize], 69 - i));
}

#[test]
fn counted_barriers_between_producers_and_consumers() {
    let module = kernel(
        1,
        ".shared .align 4 .b32 s[32];",
        "setp.ge.u32 %q1, %tid32, 32; @%q1 bra CONSUME;
         mov.u32 %r2, s; shl.b32 %r1, %tid32, 2; add.u32 %r1, %r1, %r2; st.shared.u32 [%r1], %tid32;
         barrier.cta.arrive 3, 64; bra END;
         CONSUME: barrier.cta.sync 3, 64;
         sub.u32 %r3, 63, %tid32; shl.b32 %r3, %r3, 2; mov.u32 %r2, s; add.u32 %r3, %r3, %r2;
         ld.shared.u32 %r4, [%r3]; sub.u32 %r5, %tid32, 32;
         mad.wide.u32 %d1, %r5, 4, %p0; st.global.u32 [%d1], %r4;
         END:",
    );
    let memory = Memory::new(4096);
    Run::shape(1, 64).go(&module, "k", &[memory.start]);
    let out = memory.get::<u32>(0, 32);
    (0..32).for_each(|i: u32| assert_eq!(out[i as usize], 31 - i));
}

#[test]
fn barrier_reductions() {
    let module = kernel(
        1,
        "",
        "setp.lt.u32 %q1, %tid32, 40; setp.lt.u32 %q2, %tid32, 100;
         barrier.cta.red.popc.u32 %r1, 0, %q1; barrier.cta.red.and.pred %q3, 0, %q2; bar.red.or.pred %q4, 0, !%q2;
         selp.u32 %r2, 1, 0, %q3; selp.u32 %r3, 1, 0, %q4;
         mad.wide.u32 %d1, %tid32, 16, %p0; st.global.v4.u32 [%d1], {%r1, %r2, %r3, %r3};",
    );
    let memory = Memory::new(4096);
    Run::shape(1, 96).go(&module, "k", &[memory.start]);
    memory.get::<[u32; 4]>(0, 96).iter().for_each(|v| assert_eq!(*v, [40, 1, 0, 0]));
}

#[test]
fn blocks_that_wait_for_each_other_all_progress() {
    // A software barrier over the grid: more blocks than threads of the host.
    let module = kernel(
        1,
        "",
        "bar.sync 0; setp.ne.u32 %q1, %tid32, 0; @%q1 bra WAITED;
         mov.u32 %r1, %nctaid.x; atom.add.acq_rel.gpu.global.u32 %r2, [%p0], 1;
         SPIN: ld.acquire.gpu.global.u32 %r3, [%p0]; setp.lt.u32 %q2, %r3, %r1; @%q2 bra SPIN;
         WAITED: bar.sync 0;
         ld.volatile.global.u32 %r4, [%p0]; mad.wide.u32 %d1, %gid, 4, %p0; st.global.u32 [%d1+64], %r4;",
    );
    let memory = Memory::new(1 << 16);
    Run { threads: 2, ..Run::shape(100, 64) }.go(&module, "k", &[memory.start]);
    assert!(memory.get::<u32>(64, 6400).iter().all(|v| *v == 100));
}

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
fn tables_of_branches() {
    let module = kernel(
        1,
        "",
        "and.b32 %r1, %tid32, 3; T: .branchtargets A, B, A, C; brx.idx %r1, T;
         A: mov.u32 %r2, 1; bra END; B: mov.u32 %r2, 2; bra END; C: mov.u32 %r2, 3;
         END: mad.wide.u32 %d1, %tid32, 4, %p0; st.global.u32 [%d1], %r2;",
    );
    let memory = Memory::new(4096);
    Run::shape(1, 32).go(&module, "k", &[memory.start]);
    let out = memory.get::<u32>(0, 32);
    (0..32).for_each(|i| assert_eq!(out[i], [1, 2, 1, 3][i % 4]));
}

#[test]
fn tensor_core_products() {
    let module = kernel(
        1,
        "",
        "cvt.rn.f32.u32 %f1, %tid32; mov.f32 %f9, 0f00000000; cvt.rn.f16x2.f32 %r1, %f1, %f1; mov.b32 %r2, 0x3c003c00;
         mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f2,%f3,%f4,%f5}, {%r1,%r1,%r1,%r1}, {%r2,%r2}, {%f9,%f9,%f9,%f9};
         mad.wide.u32 %d1, %tid32, 16, %p0; st.global.v4.f32 [%d1], {%f2,%f3,%f4,%f5};",
    );
    let memory = Memory::new(4096);
    Run::shape(1, 32).go(&module, "k", &[memory.start]);
    // Each row of A holds its four lanes' numbers four times; B is all ones.
    for (lane, out) in memory.get::<[f32; 4]>(0, 32).into_iter().enumerate() {
        let sum: usize = (0..4).map(|i| (lane / 4 * 4 + i) * 4).sum();
        assert_eq!(out, [sum as f32; 4], "{lane}");
    }
}

#[test]
fn matrix_fragments() {
    let module = kernel(
        3,
        "",
        "mov.f32 %f9, 0f3F800000;
         wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r0,%r1,%r2,%r3,%r4,%r5,%r6,%r7}, [%p0], 16;
         wmma.load.b.sync.aligned.col.m16n16k16.global.f16 {%r8,%r9,%r10,%r11,%r12,%r13,%r14,%r15}, [%p1], 16;
         wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%f0,%f1,%f2,%f3,%f4,%f5,%f6,%f7},
           {%r0,%r1,%r2,%r3,%r4,%r5,%r6,%r7}, {%r8,%r9,%r10,%r11,%r12,%r13,%r14,%r15},
           {%f9,%f9,%f9,%f9,%f9,%f9,%f9,%f9};
         wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%p2], {%f0,%f1,%f2,%f3,%f4,%f5,%f6,%f7}, 20;",
    );
    let memory = Memory::new(8192);
    let number = |seed: usize, i: usize| (i * seed % 13) as f32 - 6.0;
    let halves = |seed| (0..256).map(|i| half::f16::from_f32(number(seed, i)).to_bits()).collect::<Vec<_>>();
    memory.put(0, &halves(7));
    memory.put(512, &halves(11));
    Run::shape(1, 32).go(&module, "k", &[memory.start, memory.start + 512, memory.start + 1024]);
    let out = memory.get::<f32>(1024, 320);
    for row in 0..16 {
        for column in 0..16 {
            let sum: f32 = (0..16).map(|k| number(7, row * 16 + k) * number(11, column * 16 + k)).sum();
            assert_eq!(out[row * 20 + column], 1.0 + sum, "{row}, {column}");
        }
    }
}

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

/// Compilers call these for `grid.sync()` where they do not expand it.
#[test]
fn the_device_runtime_is_linked_in() {
    let module = common::kernel(
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
