//! Programs that use an AMD GPU, with stand-ins for its device and for CRIU's plugin: none of this has seen an AMD GPU.

use std::fs;
use std::os::linux::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::driver::support::{Program, goes_on, output};
use crate::harness::Rekindle;

/// A device that CRIU knows nothing of, under a name like that of AMD's driver.
struct Device(PathBuf);

impl Device {
    fn make() -> Device {
        let known = ["/dev/loop-control", "/dev/fuse"].into_iter().find_map(|path| fs::metadata(path).ok());
        let number = known.expect("a device that CRIU does not know").st_rdev();
        let path = PathBuf::from(format!("/dev/kfd-rekindle-test-{}", std::process::id()));
        let (major, minor) = (libc::major(number), libc::minor(number));
        let mut make = Command::new("mknod");
        make.arg(&path).arg("c").arg(major.to_string()).arg(minor.to_string());
        assert!(make.status().unwrap().success());
        Device(path)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn plugins() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/standin_amdgpu.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Werror", "-shared", "-fPIC", "-o"]);
    compiler.arg(directory.path().join("amdgpu_plugin.so")).arg(source);
    assert!(compiler.status().unwrap().success());
    directory
}

#[test]
fn a_program_on_an_amd_gpu_is_handed_to_criu_s_plugin() {
    let (device, plugins, none) = (Device::make(), plugins(), tempfile::tempdir().unwrap());
    let without = Rekindle::with(&[("REKINDLE_CRIU_PLUGINS", none.path().to_str().unwrap())]);
    let rekindle = Rekindle::with(&[("REKINDLE_CRIU_PLUGINS", plugins.path().to_str().unwrap())]);
    let out = output(&rekindle);
    let code = format!(
        "import os, time\nf = os.open({:?}, os.O_RDWR)\nrdev = os.fstat(f).st_rdev\nn = 0\nwhile True:\n    assert os.fstat(f).st_rdev == rdev\n    print(n, flush=True)\n    n += 1\n    time.sleep(0.02)",
        device.0
    );
    let program = Program::start(Command::new("python3").args(["-c", &code]), &out);
    let arguments = ["checkpoint", "--pid", &program.pid(), "--to", "image", "--stop", "--mode", "driver"];

    let error = without.refused(&arguments);
    assert!(error.contains("AMD GPU") && error.contains("amdgpu_plugin.so"), "{error}");
    assert!(without.images().is_empty());
    goes_on(&out);
    let plugin_of = |rekindle: &Rekindle| {
        let findings = rekindle.output(&["--json", "doctor"]).stdout;
        let findings: serde_json::Value = serde_json::from_slice(&findings).unwrap();
        let findings = findings["findings"].as_array().unwrap().clone();
        findings.into_iter().find(|one| one["need"] == "CRIU's plugin for AMD GPUs").unwrap()
    };
    assert_eq!(plugin_of(&without)["ok"], false);
    assert_eq!(plugin_of(&rekindle)["ok"], true);

    let report = rekindle.json(&arguments);
    assert_eq!(report["gpu_processes"], 1);
    let inspected = rekindle.json(&["inspect", "image"]);
    let parts = inspected["parts"].as_array().unwrap();
    assert!(
        parts.iter().any(|part| part["name"].as_str().unwrap().starts_with("amdgpu-standin-")),
        "{inspected}"
    );
    rekindle.ok(&["restore", "image", "-d", "--name", "again"]);
    goes_on(&out);
    rekindle.ok(&["kill", "again"]);

    drop(device);
    let error = rekindle.refused(&["restore", "image", "-d"]);
    let real = std::path::Path::new("/dev/kfd").exists();
    assert!(real || error.contains("there is none"), "{error}");
    rekindle.assert_tidy();
}
