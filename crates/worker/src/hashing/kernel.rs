//! BLAKE3 as PTX text.
//!
//! One thread hashes one leaf of 1 KB, sixteen blocks one after the other; one thread block then joins its 128 leaves,
//! pair by pair in shared memory, to the chaining value of a subtree of 128 KB, and writes that. The compression's
//! seven rounds are written out, so that the permutation of message words costs nothing: it is only another name for
//! each register.

use std::fmt::Write;

/// The kernel's name.
pub(super) const NAME: &str = "rekindle_blake3_subtrees";
/// Leaves that one thread block joins.
pub(super) const LEAVES: u32 = 128;
/// Bytes of a leaf.
pub(super) const LEAF: u32 = 1024;

const IV: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];
const PERMUTATION: [usize; 16] = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8];
const ROUNDS: usize = 7;
const CHUNK_START: u32 = 1;
const CHUNK_END: u32 = 2;
const PARENT: u32 = 4;

/// The kernel takes the address of the bytes, that of the chaining values to write (32 bytes for each thread block),
/// and how many thread blocks make one input; the next input begins behind it.
pub(super) fn text() -> String {
    let mut ptx = format!(
        ".version 7.0
.target sm_70
.address_size 64
.visible .entry {NAME}(.param .u64 bytes, .param .u64 out, .param .u32 blocks)
.maxntid {LEAVES}, 1, 1
{{
.reg .pred %p, %q;
.reg .b32 %thread, %block, %n, %at, %step, %flags, %counter, %half, %left, %right;
.reg .b32 %m<16>, %v<16>, %h<8>;
.reg .b64 %from, %to, %wide;
.shared .align 16 .b8 values[{}];
ld.param.u64 %from, [bytes];
cvta.to.global.u64 %from, %from;
ld.param.u64 %to, [out];
cvta.to.global.u64 %to, %to;
ld.param.u32 %n, [blocks];
mov.u32 %thread, %tid.x;
mov.u32 %block, %ctaid.x;
mul.wide.u32 %wide, %block, {};
add.u64 %from, %from, %wide;
mul.wide.u32 %wide, %thread, {LEAF};
add.u64 %from, %from, %wide;
mul.wide.u32 %wide, %block, 32;
add.u64 %to, %to, %wide;
rem.u32 %counter, %block, %n;
mad.lo.u32 %counter, %counter, {LEAVES}, %thread;
",
        LEAVES * 32,
        LEAVES * LEAF,
    );
    leaf(&mut ptx);
    tree(&mut ptx);
    ptx.push_str("}\n");
    ptx
}

fn leaf(ptx: &mut String) {
    set_words(ptx, &IV);
    ptx.push_str("mov.u32 %step, 0;\nLEAF:\n");
    for four in 0..4 {
        let [a, b, c, d] = [0, 1, 2, 3].map(|word| four * 4 + word);
        line(ptx, format!("ld.global.v4.u32 {{%m{a}, %m{b}, %m{c}, %m{d}}}, [%from+{}]", four * 16));
    }
    line(ptx, "mov.u32 %flags, 0".into());
    line(ptx, "setp.eq.u32 %p, %step, 0".into());
    line(ptx, format!("@%p mov.u32 %flags, {CHUNK_START}"));
    line(ptx, format!("setp.eq.u32 %p, %step, {}", LEAF / 64 - 1));
    line(ptx, format!("@%p mov.u32 %flags, {CHUNK_END}"));
    compress(ptx, "%counter", "%flags");
    line(ptx, "add.u64 %from, %from, 64".into());
    line(ptx, "add.u32 %step, %step, 1".into());
    line(ptx, format!("setp.lt.u32 %q, %step, {}", LEAF / 64));
    line(ptx, "@%q bra LEAF".into());
}

fn tree(ptx: &mut String) {
    line(ptx, "mov.u32 %at, values".into());
    line(ptx, "shl.b32 %left, %thread, 5".into());
    line(ptx, "add.u32 %right, %at, %left".into());
    words(ptx, "st.shared", "%right", "h", 0);
    // From here on: where this thread's pair lies.
    line(ptx, "shl.b32 %left, %thread, 6".into());
    line(ptx, "add.u32 %left, %at, %left".into());
    line(ptx, format!("mov.u32 %half, {}", LEAVES / 2));
    ptx.push_str("TREE:\nbar.sync 0;\nsetp.ge.u32 %p, %thread, %half;\n@%p bra WAIT;\n");
    words(ptx, "ld.shared", "%left", "m", 0);
    for eight in 0..2 {
        let [a, b, c, d] = [0, 1, 2, 3].map(|word| 8 + eight * 4 + word);
        line(ptx, format!("ld.shared.v4.u32 {{%m{a}, %m{b}, %m{c}, %m{d}}}, [%left+{}]", 32 + eight * 16));
    }
    set_words(ptx, &IV);
    compress(ptx, "0", &PARENT.to_string());
    ptx.push_str("WAIT:\nbar.sync 0;\n@%p bra NEXT;\n");
    words(ptx, "st.shared", "%right", "h", 0);
    ptx.push_str("NEXT:\nshr.u32 %half, %half, 1;\nsetp.ne.u32 %q, %half, 0;\n@%q bra TREE;\n");
    line(ptx, "setp.ne.u32 %p, %thread, 0".into());
    line(ptx, "@%p bra DONE".into());
    words(ptx, "st.global", "%to", "h", 0);
    ptx.push_str("DONE:\nret;\n");
}

/// `%h` becomes the chaining value of the block in `%m`, going on from `%h`.
fn compress(ptx: &mut String, counter: &str, flags: &str) {
    for n in 0..8 {
        line(ptx, format!("mov.b32 %v{n}, %h{n}"));
    }
    for (n, word) in IV[..4].iter().enumerate() {
        line(ptx, format!("mov.b32 %v{}, {word:#010x}", 8 + n));
    }
    for (n, word) in [counter, "0", "64", flags].iter().enumerate() {
        line(ptx, format!("mov.b32 %v{}, {word}", 12 + n));
    }
    let mut message: [usize; 16] = std::array::from_fn(|n| n);
    for round in 0..ROUNDS {
        for n in 0..4 {
            mix(ptx, [n, 4 + n, 8 + n, 12 + n], message[2 * n], message[2 * n + 1]);
        }
        for n in 0..4 {
            let diagonal = [n, 4 + (n + 1) % 4, 8 + (n + 2) % 4, 12 + (n + 3) % 4];
            mix(ptx, diagonal, message[8 + 2 * n], message[9 + 2 * n]);
        }
        if round + 1 < ROUNDS {
            message = PERMUTATION.map(|from| message[from]);
        }
    }
    for n in 0..8 {
        line(ptx, format!("xor.b32 %h{n}, %v{n}, %v{}", n + 8));
    }
}

fn mix(ptx: &mut String, [a, b, c, d]: [usize; 4], first: usize, second: usize) {
    for (word, rotations) in [(first, [16, 12]), (second, [8, 7])] {
        line(ptx, format!("add.u32 %v{a}, %v{a}, %v{b}"));
        line(ptx, format!("add.u32 %v{a}, %v{a}, %m{word}"));
        line(ptx, format!("xor.b32 %v{d}, %v{d}, %v{a}"));
        line(ptx, format!("shf.r.wrap.b32 %v{d}, %v{d}, %v{d}, {}", rotations[0]));
        line(ptx, format!("add.u32 %v{c}, %v{c}, %v{d}"));
        line(ptx, format!("xor.b32 %v{b}, %v{b}, %v{c}"));
        line(ptx, format!("shf.r.wrap.b32 %v{b}, %v{b}, %v{b}, {}", rotations[1]));
    }
}

/// Eight words of `prefix` from or to an address, as two vectors.
fn words(ptx: &mut String, operation: &str, address: &str, prefix: &str, first: usize) {
    for four in 0..2 {
        let [a, b, c, d] = [0, 1, 2, 3].map(|word| format!("%{prefix}{}", first + four * 4 + word));
        let vector = format!("{{{a}, {b}, {c}, {d}}}");
        let place = format!("[{address}+{}]", four * 16);
        line(
            ptx,
            match operation.starts_with("ld") {
                true => format!("{operation}.v4.u32 {vector}, {place}"),
                false => format!("{operation}.v4.u32 {place}, {vector}"),
            },
        );
    }
}

fn set_words(ptx: &mut String, to: &[u32; 8]) {
    for (n, word) in to.iter().enumerate() {
        line(ptx, format!("mov.b32 %h{n}, {word:#010x}"));
    }
}

fn line(ptx: &mut String, instruction: String) {
    // Writing to a string does not fail.
    let _ = writeln!(ptx, "{instruction};");
}
