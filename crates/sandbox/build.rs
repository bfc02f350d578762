//! Compiles what is loaded into CRIU while that dumps: a library of its own, which the sandbox has in it as bytes.

use std::path::PathBuf;

fn main() {
    let source = "src/assist/in_criu.c";
    println!("cargo:rerun-if-changed={source}");
    let library = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo names it")).join("in_criu.so");
    let mut command = cc::Build::new().warnings(true).get_compiler().to_command();
    command.args(["-shared", "-fPIC", "-O2", "-Werror", "-s", "-o"]).arg(library).arg(source);
    let built = command.status().expect("a C compiler, `cc`");
    assert!(built.success(), "{source} could not be compiled");
}
