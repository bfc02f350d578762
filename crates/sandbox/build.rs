//! Compiles what is loaded into CRIU: a library while that dumps, and another one while it restores a program that uses tile
//! registers or protection keys. The sandbox has both in it as bytes.

use std::path::{Path, PathBuf};

const ASSIST: [&str; 5] =
    ["in_criu.c", "in_criu_files.c", "in_criu_pages.c", "in_criu_sockets.c", "in_criu_threads.c"];

fn main() {
    println!("cargo:rerun-if-changed=src/assist/in_criu.h");
    compile("in_criu.so", Path::new("src/assist"), &ASSIST);
    compile("processor_in_criu.so", Path::new("src/processor"), &["in_criu.c"]);
}

fn compile(library: &str, directory: &Path, sources: &[&str]) {
    let library = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo names it")).join(library);
    let mut command = cc::Build::new().warnings(true).get_compiler().to_command();
    command.args(["-shared", "-fPIC", "-O2", "-Werror", "-s", "-o"]).arg(library);
    for source in sources.iter().map(|name| directory.join(name)) {
        println!("cargo:rerun-if-changed={}", source.display());
        command.arg(source);
    }
    let built = command.status().expect("a C compiler, `cc`");
    assert!(built.success(), "{} could not be compiled", directory.display());
}
