//! Tiles of tensors, against plain arithmetic, and changes of tensor maps.

use rekindle_ptx::TensorMap;

use crate::common::{Memory, Run, kernel};

const DIMENSIONS: [u64; 5] = [11, 7, 5, 4, 3];
const SIDES: [u32; 5] = [4, 3, 2, 2, 2];
const STEPS: [u32; 5] = [1, 2, 1, 1, 1];
/// Of floats; rows of 12.
const STRIDES: [u64; 4] = [48, 48 * 7, 48 * 35, 48 * 140];
const MAP: usize = 0;
const PLACES: usize = 256;
const OUT: usize = 512;
const TENSOR: usize = 4096;

fn map(rank: usize, address: u64) -> TensorMap {
    TensorMap {
        element: 7,
        swizzle: 0,
        address,
        dimensions: DIMENSIONS[..rank].to_vec(),
        strides: STRIDES[..rank - 1].to_vec(),
        sides: SIDES[..rank].to_vec(),
        steps: STEPS[..rank].to_vec(),
    }
}

/// The element at these coordinates, by its place in floats; none outside.
fn place(coordinates: &[i64]) -> Option<usize> {
    let mut place = 0;
    for (axis, at) in coordinates.iter().enumerate() {
        if !(0..DIMENSIONS[axis] as i64).contains(at) {
            return None;
        }
        place += *at as usize * if axis == 0 { 1 } else { STRIDES[axis - 1] as usize / 4 };
    }
    Some(place)
}

/// The coordinates of each element of a tile.
fn tile(rank: usize, start: &[i32]) -> Vec<Vec<i64>> {
    let counts: Vec<u32> = (0..rank).map(|axis| SIDES[axis].div_ceil(STEPS[axis])).collect();
    let number = |mut number: u32| {
        let coordinate = |axis: usize| {
            let step = i64::from(number % counts[axis] * STEPS[axis]);
            number /= counts[axis];
            i64::from(start[axis]) + step
        };
        (0..rank).map(coordinate).collect()
    };
    (0..counts.iter().product()).map(number).collect()
}

#[test]
fn tiles_of_every_rank_are_loaded_and_stored() {
    for rank in 1..=5 {
        let registers = ["%r1", "%r2", "%r3", "%r4", "%r5"][..rank].join(", ");
        let starts: String = (0..rank)
            .map(|axis| format!("ld.global.u32 %r{}, [%p0+{}];", axis + 1, PLACES + 4 * axis))
            .collect();
        let bytes = tile(rank, &[0; 5]).len() * 4;
        let module = kernel(
            1,
            ".shared .align 8 .b64 bar; .shared .align 128 .b8 s[1024];",
            &format!(
                "{starts} mov.u32 %r6, s; mov.u32 %r7, bar;
                 setp.ne.u32 %q1, %tid32, 0; @%q1 bra READY;
                 mbarrier.init.shared.b64 [bar], 1; mbarrier.arrive.expect_tx.shared.b64 %d3, [bar], {bytes};
                 cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r6], [%p0, {{{registers}}}], [%r7];
                 READY: bar.sync 0;
                 WAIT: mbarrier.try_wait.parity.shared.b64 %q2, [bar], 0; @!%q2 bra WAIT;
                 shl.b32 %r8, %tid32, 2; add.u32 %r6, %r6, %r8; ld.shared.u32 %r9, [%r6];
                 cvt.u64.u32 %d1, %r8; add.u64 %d2, %p0, %d1; st.global.u32 [%d2+{OUT}], %r9;
                 add.u32 %r9, %r9, 1; st.shared.u32 [%r6], %r9; bar.sync 0; @%q1 bra DONE;
                 mov.u32 %r6, s;
                 cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group [%p0, {{{registers}}}], [%r6];
                 cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
                 DONE:"
            ),
        );
        for start in [[0; 5], [3, 2, 1, 1, 1], [-2, -1, -1, 0, 0], [9, 5, 4, 3, 2], [100, 0, 0, 0, 0]] {
            let memory = Memory::new(1 << 17);
            let numbers: Vec<u32> = (0..12 * 7 * 5 * 4 * 3).map(|number| number + 1).collect();
            memory.put(MAP, &map(rank, memory.start + TENSOR as u64).encode().unwrap());
            memory.put(PLACES, &start);
            memory.put(TENSOR, &numbers);
            let elements = tile(rank, &start);
            Run::shape(1, elements.len() as u32).go(&module, "k", &[memory.start]);
            let expected: Vec<u32> =
                elements.iter().map(|element| place(element).map_or(0, |at| numbers[at])).collect();
            assert_eq!(memory.get::<u32>(OUT, elements.len()), expected, "rank {rank} at {start:?}");
            let mut stored = numbers.clone();
            elements.iter().filter_map(|element| place(element)).for_each(|at| stored[at] += 1);
            assert!(memory.get::<u32>(TENSOR, stored.len()) == stored, "rank {rank} at {start:?}");
        }
    }
}

#[test]
fn each_field_of_a_map_is_replaced() {
    let module = kernel(
        1,
        ".shared .align 128 .b8 s[128];",
        "mov.u32 %r1, s; cvt.u64.u32 %d1, %r1; mov.u32 %r2, 2; mov.u64 %d2, 96;
         tensormap.replace.tile.global_address.global.b1024.b64 [%p0], %p0;
         tensormap.replace.tile.rank.global.b1024.b32 [%p0], %r2;
         tensormap.replace.tile.global_dim.global.b1024.b32 [%p0], 2, 9;
         tensormap.replace.tile.global_stride.global.b1024.b64 [%p0], 1, %d2;
         tensormap.replace.tile.box_dim.global.b1024.b32 [%p0], 2, 5;
         tensormap.replace.tile.element_stride.global.b1024.b32 [%p0], 2, 3;
         tensormap.replace.tile.elemtype.global.b1024.b32 [%p0], 6;
         tensormap.replace.tile.swizzle_mode.global.b1024.b32 [%p0], 0;
         tensormap.replace.tile.interleave_layout.global.b1024.b32 [%p0], 0;
         tensormap.replace.tile.fill_mode.global.b1024.b32 [%p0], 0;
         fence.proxy.tensormap::generic.release.gpu; fence.proxy.tensormap::generic.acquire.gpu [%p0], 128;
         tensormap.replace.tile.rank.shared::cta.b1024.b32 [%r1], 2;",
    );
    let memory = Memory::new(4096);
    let before = TensorMap { sides: vec![8, 3], ..map(2, memory.start + 64) };
    memory.put(0, &before.encode().unwrap());
    Run::shape(1, 1).go(&module, "k", &[memory.start]);
    let found = TensorMap::decode(&memory.get::<u8>(0, 128).try_into().unwrap()).unwrap();
    let expected = TensorMap {
        element: 6,
        address: memory.start,
        dimensions: vec![11, 7, 9],
        strides: vec![48, 96],
        sides: vec![8, 3, 5],
        steps: vec![1, 2, 3],
        ..before
    };
    assert_eq!(found, expected);
}

#[test]
fn what_is_no_map_ends_the_grid() {
    let module = kernel(
        1,
        ".shared .align 8 .b64 bar; .shared .align 128 .b8 s[1024];",
        "mov.u32 %r6, s; mov.u32 %r7, bar; mbarrier.init.shared.b64 [bar], 1;
         cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r6], [%p0, {%r1}], [%r7];",
    );
    let memory = Memory::new(4096);
    let fault =
        Run::shape(1, 1).on(&crate::common::TestHost::default(), &module, "k", &[memory.start]).unwrap_err();
    assert!(fault.to_string().contains("tensor map"), "{fault}");
}
