//! Containers whose program is on the emulated GPU: the device that they get, images of them, and what is refused.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::driver::container::{Base, counted, goes_on, is_running, podman};
use crate::driver::container_prove::has_proven;
use crate::harness::{GPU_COUNTER, Rekindle, wait};

/// A device of Rekindle's; what engines are told of it goes with the test.
struct Device {
    full_name: String,
    description: PathBuf,
}

impl Device {
    fn make(rekindle: &Rekindle, name: &str) -> Device {
        let made = rekindle.json(&["device", name, "--gpu", "emulated"]);
        let text = |field: &str| made[field].as_str().unwrap().to_string();
        Device { full_name: text("device"), description: text("description").into() }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.description);
    }
}

#[test]
fn a_container_on_the_emulated_gpu_goes_on_from_its_image() {
    let Some(base) = Base::new() else { return };
    let mut rekindle = Rekindle::new();
    let label = format!("rekindle-test-{}", std::process::id());
    let device = Device::make(&rekindle, &label);
    assert_eq!(device.full_name, format!("rekindle.dev/gpu={label}"));
    let programs = Path::new(GPU_COUNTER[1]).parent().unwrap();
    let volume = format!("--volume={0}:{0}:ro", programs.display());
    let script = format!("exec {} {} > /count", GPU_COUNTER[0], GPU_COUNTER[1]);
    let name = base.start("bump", &["--device", &device.full_name, &volume], &["/bin/sh", "-c", &script]);
    wait("the program", || counted(&name).len() > 3);
    let prove = ["checkpoint", "--container", &name, "--to", "one", "--leave-running", "--prove"];
    let report = rekindle.json(&prove);
    assert_eq!((&report["mode"], &report["gpu_processes"]), (&"sandbox".into(), &1.into()));
    assert!(has_proven(&report) && report["warnings"] == json!([]), "{report}");
    goes_on(&name);

    // An image that cannot be made leaves it running; the next daemons find the device again.
    for point in ["saved", "before-commit"] {
        rekindle.set_fault(Some(point));
        let error = rekindle.refused(&["checkpoint", "--container", &name, "--to", "bad", "--stop"]);
        assert!(error.contains("injected"), "{error}");
        goes_on(&name);
    }
    rekindle.set_fault(None);
    let error = rekindle.refused(&["checkpoint", &label, "--to", "bad", "--stop"]);
    assert!(error.contains("is a container's GPU"), "{error}");
    let again = format!("{name}-again");
    let error = rekindle.refused(&["restore", "one", "--name", &again]);
    assert!(error.contains("one container has it at a time"), "{error}");

    rekindle.ok(&["checkpoint", "--container", &name, "--to", "two", "--stop"]);
    assert!(!is_running(&name) && podman(&["rm", &name]).status.success());
    rekindle.set_fault(Some("restore-complete"));
    assert!(rekindle.refused(&["restore", "two"]).contains("injected"));
    rekindle.set_fault(None);
    assert_eq!(rekindle.ok(&["restore", "two"]).trim(), name);
    assert!(counted(&name).len() > 3, "what it had written before is there");
    goes_on(&name);
    let error = rekindle.refused(&["checkpoint", "--container", &name, "--to", "bad", "--stop"]);
    assert!(error.contains("--network host"), "{error}");
    goes_on(&name);

    // The one from which it went on is as good, and brings its device back where that is gone.
    assert!(podman(&["rm", "--force", "--time", "0", &name]).status.success());
    rekindle.ok(&["kill", &label]);
    assert!(!device.description.exists());
    base.own(&again);
    rekindle.ok(&["restore", "one", "--name", &again]);
    goes_on(&again);
    let workers = rekindle.workers();
    assert_eq!(workers.len(), 1);
    assert!(podman(&["rm", "--force", "--time", "0", &again]).status.success());
    rekindle.ok(&["kill", &label]);
    rekindle.assert_tidy();
}

#[test]
fn what_is_no_gpu_for_a_container_is_refused() {
    let rekindle = Rekindle::new();
    assert!(rekindle.refused(&["device", "a/b"]).contains("letters, digits"));
    let error = rekindle.refused(&["device", "real", "--gpu", "nvidia"]);
    assert!(error.contains("NVIDIA GPU") || error.contains("no GPU for a container"), "{error}");
    assert_eq!(rekindle.json(&["ps"])["sandboxes"].as_array().unwrap().len(), 0);
}
