//! Puts `mmap` into the dynamic symbol table, so that libraries which are opened later find `rekindled`'s own. An
//! executable that does not define it is not changed.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for symbol in ["mmap", "mmap64"] {
        println!("cargo:rustc-link-arg=-Wl,--export-dynamic-symbol={symbol}");
    }
}
