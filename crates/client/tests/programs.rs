//! Small C programs on the emulated GPU, through the library as a program loads it.
//!
//! They use the library and the example `launcher` that cargo has built: run all of the package's tests, not this file alone.

use std::ffi::CString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/programs")
}

/// Where cargo has put the library and the examples.
fn built_at() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent().unwrap().parent().unwrap().to_owned()
}

/// The library as this run of the tests was built with it, or as `cargo build` has left it since.
fn library() -> PathBuf {
    let built = |path: &PathBuf| std::fs::metadata(path).and_then(|m| m.modified()).ok();
    let both = ["libcuda.so", "deps/libcuda.so"].map(|name| built_at().join(name));
    both.into_iter().max_by_key(built).unwrap()
}

fn compile(name: &str, into: &Path) -> PathBuf {
    let program = into.join(name);
    let compiled = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .args([&program, &folder().join(format!("{name}.c"))])
        .arg(library())
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    program
}

fn launcher(program: &Path) -> Command {
    let mut launcher = Command::new(built_at().join("examples/launcher"));
    launcher.arg(program).stdout(Stdio::piped()).stderr(Stdio::piped());
    launcher
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn run(name: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let output = launcher(&compile(name, directory.path())).output().unwrap();
    assert!(output.status.success(), "{name}: {}", text(&output));
    assert!(text(&output).contains("ok\n"), "{name}: {}", text(&output));
    text(&output)
}

#[test]
fn vadd() {
    run("vadd");
}

#[test]
fn copies() {
    run("copies");
}

#[test]
fn order() {
    run("order");
}

#[test]
fn errors_are_named_once() {
    let said = run("errors");
    let named = "rekindle: cuVDPAUGetDevice is not implemented; returned CUDA_ERROR_NOT_SUPPORTED";
    assert_eq!(said.matches(named).count(), 1, "{said}");
}

#[test]
fn arrays_and_textures() {
    run("arrays");
}

#[test]
fn forks() {
    run("fork");
}

#[test]
fn threads() {
    run("threads");
}

#[test]
fn contexts() {
    run("contexts");
}

#[test]
fn graph() {
    run("graph");
}

#[test]
fn graph_errors() {
    run("graph_errors");
}

#[test]
fn user_object() {
    run("user_object");
}

#[test]
fn busy_threads() {
    let directory = tempfile::tempdir().unwrap();
    let end = directory.path().join("end");
    let mut running = launcher(&compile("busy", directory.path())).arg(&end).spawn().unwrap();
    ready(&mut running);
    std::thread::sleep(Duration::from_millis(700));
    std::fs::write(end, "").unwrap();
    let output = running.wait_with_output().unwrap();
    assert!(output.status.success() && text(&output).contains("ok\n"), "{}", text(&output));
}

#[test]
fn without_a_sandbox_there_is_no_device() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile("vadd", directory.path());
    let libraries = directory.path().join("lib");
    std::fs::create_dir(&libraries).unwrap();
    std::os::unix::fs::symlink(library(), libraries.join("libcuda.so.1")).unwrap();
    let output =
        Command::new(program).env("LD_LIBRARY_PATH", libraries).env_remove("REKINDLE_RUN").output().unwrap();
    let said = text(&output);
    assert!(said.contains("rekindle: REKINDLE_RUN is not set") && said.contains("gave 100"), "{said}");
}

#[test]
fn a_worker_that_dies_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let go = directory.path().join("go");
    let mut running = launcher(&compile("death", directory.path())).arg(&go).spawn().unwrap();
    let launcher_pid = running.id() as i32;
    let worker = worker_of(launcher_pid);
    ready(&mut running);
    // SAFETY: a process that this test started.
    unsafe { libc::kill(worker, libc::SIGKILL) };
    std::fs::write(go, "").unwrap();
    let status = running.wait().unwrap();
    let output = running.wait_with_output().unwrap();
    let said = text(&output);
    assert!(status.success() && said.contains("ok\n"), "{said}");
    assert_eq!(said.matches("the GPU worker of this program is gone").count(), 1, "{said}");
}

/// Waits until the program has set up what it needs.
fn ready(running: &mut Child) {
    let mut said = [0; 6];
    running.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    assert_eq!(said, *b"ready\n");
}

/// The pid of the worker that a launcher has started.
fn worker_of(launcher: i32) -> i32 {
    let until = Instant::now() + Duration::from_secs(120);
    while Instant::now() < until {
        let children =
            std::fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children")).unwrap_or_default();
        let all = children.split_whitespace().filter_map(|pid| pid.parse().ok());
        let threads = std::fs::read_dir(format!("/proc/{launcher}/task")).into_iter().flatten().flatten();
        let others = threads.flat_map(|thread| {
            let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>()
        });
        for pid in all.chain(others) {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if command.split(|byte| *byte == 0).nth(1) == Some(b"worker") {
                return pid;
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the launcher has started no worker");
}

#[test]
fn every_name_of_the_table_is_exported_and_not_null() {
    let path = CString::new(library().into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: opening the library does nothing.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null());
    let mut names: Vec<String> = vec!["rekindle_client".to_owned()];
    for function in rekindle_cuda::functions() {
        names.push(function.symbol.to_owned());
        names.extend(function.threads.map(|suffix| format!("{}_{suffix}", function.symbol)));
    }
    let debugger = rekindle_cuda::DEBUGGER_FUNCTIONS.iter().chain(rekindle_cuda::DEBUGGER_VARIABLES);
    names.extend(debugger.map(|name| (*name).to_owned()));
    assert_eq!(names.len(), 708);
    for name in names {
        let symbol = CString::new(name.clone()).unwrap();
        // SAFETY: looking a name up in an open library.
        assert!(!unsafe { libc::dlsym(library, symbol.as_ptr()) }.is_null(), "{name}");
    }
}
