//! Through which of their parameters kernels may write.

use rekindle_ptx::write_sets;

/// Which of its parameters a kernel may write through, `w` for each, and `-` for the others; none if nobody can tell.
fn told(text: &str, kernel: &str) -> Option<String> {
    let sets = write_sets(text).unwrap();
    Some(sets.get(kernel)?.iter().map(|written| if *written { 'w' } else { '-' }).collect())
}

/// Of a kernel with four parameters of 64 bits, loaded to `%rd0` to `%rd3`.
fn kernel(body: &str) -> Option<String> {
    let formals: Vec<_> = (0..4).map(|number| format!(".param .u64 p{number}")).collect();
    let loads: String = (0..4).map(|number| format!("ld.param.u64 %rd{number}, [p{number}];\n")).collect();
    let text = format!(
        ".version 9.0\n.target sm_90\n.address_size 64\n\
         .extern .func (.param .b32 ret) vprintf (.param .b64 a, .param .b64 b);\n\
         .func own (.param .b64 a) {{ ret; }}\n\
         .visible .entry k({}) {{\n.reg .b64 %rd<99>; .reg .b32 %r<99>; .reg .pred %p<9>;\n\
         .local .align 8 .b8 depot[64];\n.shared .align 8 .b8 room[64];\n{loads}{body}\nret; }}",
        formals.join(", ")
    );
    told(&text, "k")
}

#[test]
fn what_a_compiler_emits_is_told() {
    let text = include_str!("data/compiled.ptx");
    for (kernel, expected) in [
        ("recur", None),
        ("red", Some("w--")),
        ("warpred", Some("w-")),
        ("hello", Some("-")),
        ("lock", Some("ww")),
        ("dbl", Some("w-")),
        ("ints", Some("w--")),
        ("dyn", Some("w")),
        ("calls", None),
        ("dynamic_dispatch", None),
        ("wide", Some("w-")),
        ("copies", Some("w-")),
        ("phases", Some("w-")),
    ] {
        assert_eq!(told(text, kernel).as_deref(), expected, "{kernel}");
    }
}

#[test]
fn stores_count_by_what_their_addresses_are_computed_from() {
    let scatter = "ld.global.u64 %rd4, [%rd1]; mad.lo.s64 %rd5, %rd4, 8, %rd0; st.global.u32 [%rd5], %r2;";
    assert_eq!(kernel(scatter).unwrap(), "w---");
    assert_eq!(kernel("cvta.to.global.u64 %rd4, %rd3; red.global.add.u32 [%rd4+4], 1;").unwrap(), "---w");
    assert_eq!(kernel("atom.exch.b32 %r0, [%rd1], 1;").unwrap(), "-w--");
    assert_eq!(kernel("selp.b64 %rd4, %rd1, %rd2, %p0; st.u32 [%rd4], 1;").unwrap(), "-ww-");
    assert_eq!(
        kernel("mov.b64 {%r0, %r1}, %rd2; mov.b64 %rd4, {%r0, %r1}; st.u8 [%rd4], 1;").unwrap(),
        "--w-"
    );
    assert_eq!(kernel("shfl.sync.idx.b32 %r1|%p0, %r0, 0, 31, -1; cvt.u32.u64 %r0, %rd0;").unwrap(), "----");
}

#[test]
fn the_order_of_the_text_does_not_matter() {
    let turn = "again: st.global.u32 [%rd5], 1; mov.u64 %rd5, %rd4; mov.u64 %rd4, %rd2; bra again;";
    assert_eq!(kernel(turn).unwrap(), "--w-");
}

#[test]
fn addresses_that_a_kernel_has_put_down_are_found_again() {
    let spilled = "st.local.u64 [depot+8], %rd1; ld.local.u64 %rd4, [depot+8]; st.global.u32 [%rd4], 1;";
    assert_eq!(kernel(spilled).unwrap(), "-w--");
    let shared = "st.shared.u64 [room], %rd3; ld.shared.u64 %rd4, [room]; st.global.u32 [%rd4], 1;";
    assert_eq!(kernel(shared).unwrap(), "---w");
    let generic = "mov.u64 %rd5, depot; cvta.local.u64 %rd5, %rd5; st.u64 [%rd5], %rd2; ld.local.u64 %rd4, [depot];\
                   st.global.u32 [%rd4], 1;";
    assert_eq!(kernel(generic).unwrap(), "--w-");
    let global = "st.global.u64 [%rd0], %rd1; ld.global.u64 %rd4, [%rd0]; st.global.u32 [%rd4], 1;";
    assert_eq!(kernel(global).unwrap(), "ww--");
    // What was spilled is not what lies in global memory.
    let apart = "st.local.u64 [depot], %rd1; ld.global.u64 %rd4, [%rd2]; add.s64 %rd4, %rd4, %rd0; st.global.u32 [%rd4], 1;";
    assert_eq!(kernel(apart).unwrap(), "w---");
}

#[test]
fn parameters_that_are_read_by_their_own_addresses_count() {
    let by_register = "mov.b64 %rd4, p1; ld.param.u64 %rd5, [%rd4]; st.global.u32 [%rd5], 1;";
    assert_eq!(kernel(by_register).unwrap(), "-w--");
    let generic =
        "mov.b64 %rd4, p2; cvta.param.u64 %rd4, %rd4; ld.u64 %rd5, [%rd4]; st.global.u32 [%rd5], 1;";
    assert_eq!(kernel(generic).unwrap(), "--w-");
}

#[test]
fn copies_count_by_where_they_go() {
    let bulk = "cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%rd3], 16; cp.async.bulk.commit_group;\
                cp.async.bulk.wait_group.read 0;";
    assert_eq!(kernel(bulk).unwrap(), "--w-");
    let in_bulk =
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%rd2], 16, [%r1];";
    assert_eq!(kernel(in_bulk).unwrap(), "----");
    let tensor = "cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%rd1, {%r0}], [%r1];";
    assert_eq!(kernel(tensor).unwrap(), "-w--");
    let by_place = "mov.b64 %rd4, p3; cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.bulk_group [%rd4, {%r0}], [%r1];";
    assert_eq!(kernel(by_place).unwrap(), "---w");
    assert_eq!(kernel("cp.async.ca.shared.global [%r0], [%rd0], 4; cp.async.wait_all;").unwrap(), "----");
    assert_eq!(kernel("cp.async.bulk.prefetch.L2.global [%rd0], 16;").unwrap(), "----");
}

#[test]
fn what_is_not_known_is_not_told_of() {
    assert_eq!(kernel("call.uni own, (%rd0);"), None);
    assert_eq!(kernel("call.uni (%r0), %rd4, (%rd0), proto;"), None);
    assert_eq!(kernel("invented.global.u32 [%rd0], 1;"), None);
    assert_eq!(kernel("{ .param .b32 r; call.uni (r), vprintf, (%rd0, %rd1); }").unwrap(), "----");
    // Each pass gets one instruction further.
    let backward = |count: usize| {
        let moves = (5..5 + count).rev().map(|at| format!("mov.u64 %rd{}, %rd{at};", at + 1));
        let turns: String =
            moves.chain([format!("mov.u64 %rd5, %rd1; st.u32 [%rd{}], 1;", 5 + count)]).collect();
        kernel(&turns)
    };
    assert_eq!(backward(40).unwrap(), "-w--");
    assert_eq!(backward(90), None);
    let many: Vec<_> = (0..129).map(|number| format!(".param .u64 p{number}")).collect();
    let text = |count: usize| {
        format!(".version 9.0\n.target sm_90\n.visible .entry k({}) {{ ret; }}", many[..count].join(","))
    };
    assert_eq!(told(&text(129), "k"), None);
    assert_eq!(told(&text(128), "k").unwrap(), "-".repeat(128));
}
