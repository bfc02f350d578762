//! Divergence, and waiting for each other.

use std::time::{Duration, Instant};

use crate::common::{Memory, Run, kernel};

/// What this thread has had of a processor.
fn processor() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the time there.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

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
fn lanes_that_sleep_come_back_and_take_no_processor() {
    // The second half of each warp sleeps twenty times, and the first one waits for it.
    let module = kernel(
        1,
        "",
        "mov.u32 %r1, 0; setp.lt.u32 %q1, %tid32, 16; @%q1 bra JOIN;
         mov.u32 %r2, 500000;
         AGAIN: nanosleep.u32 500000; nanosleep.u32 %r2; add.u32 %r1, %r1, 1;
         setp.lt.u32 %q2, %r1, 20; @%q2 bra AGAIN;
         JOIN: bar.sync 0; mad.wide.u32 %d1, %gid, 4, %p0; st.global.u32 [%d1], %r1;",
    );
    let memory = Memory::new(4096);
    let (began, before) = (Instant::now(), processor());
    Run::shape(4, 32).go(&module, "k", &[memory.start]);
    let (took, used) = (began.elapsed(), processor() - before);
    let out = memory.get::<u32>(0, 128);
    (0..128).for_each(|i| assert_eq!(out[i], if i % 32 < 16 { 0 } else { 20 }));
    assert!(took >= Duration::from_millis(20), "{took:?}");
    assert!(used < took / 2, "{used:?} of {took:?}");
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
