//! Products of matrices by warps.

use crate::common::{Memory, Run, kernel};

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
