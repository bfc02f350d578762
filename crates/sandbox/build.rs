//! Compiles what is loaded into CRIU while that dumps: a library of its own, which the sandbox has in it as bytes.

use std::path::PathBuf;

const SOURCES: [&str; 4] = ["in_criu.c", "in_criu_files.c", "in_criu_pages.c", "in_criu_threads.c"];

fn main() {
    let directory = PathBuf::from("src/assist");
    println!("cargo:rerun-if-changed={}", directory.join("in_criu.h").display());
    let library = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo names it")).join("in_criu.so");
    let mut command = cc::Build::new().warnings(true).get_compiler().to_command();
    command.args(["-shared", "-fPIC", "-O2", "-Werror", "-s", "-o"]).arg(library);
    for source in SOURCES.map(|name| directory.join(name)) {
        println!("cargo:rerun-if-changed={}", source.display());
        command.arg(source);
    }
    let built = command.status().expect("a C compiler, `cc`");
    assert!(built.success(), "{} could not be compiled", directory.display());
}
