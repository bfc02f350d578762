//! Code compiled for the tests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use rekindle_code::{Preparation, Prepared, prepare};

pub const CAPABILITY: u32 = 90;
pub const HOPPER: &str = "-arch=sm_90";

/// Kernels that reach globals and functions in every way that can be taken apart.
pub static SAMPLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let source = root().join("benches/gpu/code.cu");
    compile(&std::fs::read_to_string(source).unwrap(), &[HOPPER, "-cubin"])
});

/// Functions in sections of their own, which call each other in a round; one of two kernels calls them.
pub static ROUND: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let source = r#"
        __device__ int even(int);
        __device__ __noinline__ int odd(int x) { return x == 0 ? 0 : even(x - 1); }
        __device__ __noinline__ int even(int x) { return x == 0 ? 1 : odd(x - 1) * 2; }
        extern "C" __global__ void calls(int *out) { out[0] = even(out[1]); }
        extern "C" __global__ void alone(int *out) { out[0] = out[1]; }
    "#;
    link(&compile(source, &[HOPPER, "-rdc=true", "-cubin"]))
});

/// Linked code, which holds addresses of globals itself.
pub static LINKED: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let source = r#"
        __device__ int table[4];
        extern "C" __global__ void reads(int *out) { out[0] = table[out[1] & 3]; }
        extern "C" __global__ void alone(int *out) { out[0] = out[1]; }
    "#;
    link(&compile(source, &[HOPPER, "-rdc=true", "-cubin"]))
});

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn tool(name: &str) -> PathBuf {
    let packages = std::fs::read_dir(root().join(".venv/lib")).expect("no .venv; run make setup");
    let tools =
        packages.map(|python| python.unwrap().path().join("site-packages/nvidia/cu13/bin").join(name));
    tools.into_iter().find(|path| path.exists()).expect("no compiler in .venv; run make setup")
}

fn run(command: &mut Command) {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// What nvcc makes of CUDA C.
pub fn compile(source: &str, options: &[&str]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("code.cu"), folder.path().join("code.out"));
    std::fs::write(&from, source).unwrap();
    run(Command::new(tool("nvcc")).args(options).arg("-o").arg(&to).arg(&from));
    std::fs::read(to).unwrap()
}

fn link(cubin: &[u8]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("code.cubin"), folder.path().join("linked.cubin"));
    std::fs::write(&from, cubin).unwrap();
    run(Command::new(tool("nvlink")).arg(HOPPER).arg("-o").arg(&to).arg(&from));
    std::fs::read(to).unwrap()
}

pub fn prepared(code: &[u8]) -> Prepared {
    match prepare(code, CAPABILITY) {
        Ok(Preparation::Prepared(prepared)) => prepared,
        other => panic!("{other:?}"),
    }
}
