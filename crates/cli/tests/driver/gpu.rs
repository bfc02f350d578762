//! Programs that use a GPU, in driver mode: what comes back, and what is refused before anything is touched.

use crate::driver::bad::Mounted;
use crate::driver::standin::Fixture;
use crate::driver::support::{Program, numbers};
use crate::harness::{GPU_COUNTER, wait};

/// What a checkpoint said on its way out.
fn said(output: std::process::Output) -> String {
    assert!(!output.status.success(), "it worked");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_tree_goes_on_beside_its_image_and_the_image_continues_it() {
    let scene = Fixture::new();
    let rekindle = &scene.rekindle;
    let mut program = scene.start();
    let report = rekindle.json(&["checkpoint", "--pid", &program.pid(), "--to", "one", "--leave-running"]);
    assert_eq!((&report["mode"], &report["gpu_processes"]), (&"driver".into(), &2.into()));
    let phases: Vec<_> =
        report["phases"].as_array().unwrap().iter().map(|phase| phase["name"].as_str().unwrap()).collect();
    for step in ["lock", "checkpoint", "restore", "unlock"] {
        assert!(phases.contains(&step), "{phases:?}");
    }
    scene.go_on(2);
    rekindle.ok(&["checkpoint", "--pid", &program.pid(), "--to", "two", "--stop", "--mode", "driver"]);
    program.wait().unwrap();
    let inspected = rekindle.json(&["inspect", "two"]);
    assert_eq!(inspected["mode"], "driver");
    assert_eq!(inspected["gpus"].as_array().unwrap().len(), 2);
    assert!(inspected["gpu_in_cpu_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{inspected}");
    assert!(rekindle.ok(&["inspect", "two"]).contains("in CPU part: "));
    assert!(rekindle.ok(&["images"]).contains("in CPU part"));
    assert_eq!(inspected["gpus"][1]["uuid"], "GPU-00000000-0000-0000-0000-000000000002");
    rekindle.ok(&["verify", "two"]);
    // What the driver has put into each process is mapped from a page file, its zeros are not stored.
    let pages: Vec<_> =
        inspected["parts"].as_array().unwrap().iter().filter(|part| part["kind"] == "cpu-pages").collect();
    let sum = |what: &str| pages.iter().map(|part| part[what].as_u64().unwrap()).sum::<u64>();
    assert!(sum("bytes") >= 80 << 20 && sum("stored") <= 61 << 20, "{inspected}");
    // It is large enough for two files of a process, if there is somebody to write both.
    let spread = std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
    assert_eq!(pages.len(), if spread { 4 } else { 2 }, "{inspected}");

    let last: Vec<_> = (0..2).map(|number| *numbers(&scene.output(number)).last().unwrap()).collect();
    assert_eq!(rekindle.json(&["restore", "two", "-d", "--name", "again"])["gpu_processes"], 2);
    scene.go_on(2);
    rekindle.ok(&["kill", "again"]);
    // goes_on has seen that no number is missing or comes twice.
    assert!((0..2).zip(last).all(|(number, last)| *numbers(&scene.output(number)).last().unwrap() > last));
    scene.assert_tidy();
}

#[test]
fn a_program_in_a_sandbox_of_mode_driver_is_checkpointed_and_restored_again_and_again() {
    let scene = Fixture::new();
    let rekindle = &scene.rekindle;
    let command = scene.command(2);
    let mut arguments = vec!["run", "-d", "--mode", "driver", "--name", "counter", "--"];
    arguments.extend(command.iter().map(String::as_str));
    rekindle.ok(&arguments);
    wait("the program", || (0..2).all(|number| !numbers(&scene.output(number)).is_empty()));
    assert_eq!(rekindle.sandbox("counter")["mode"], "driver");
    rekindle.ok(&["checkpoint", "counter", "--to", "running", "--leave-running"]);
    scene.go_on(2);
    for round in 0..3 {
        let image = format!("image-{round}");
        rekindle.ok(&["checkpoint", "counter", "--to", &image, "--stop"]);
        rekindle.ok(&["restore", &image, "-d"]);
        scene.go_on(2);
    }
    rekindle.kill_daemon();
    scene.go_on(2);
    rekindle.ok(&["checkpoint", "counter", "--to", "later", "--stop"]);
    rekindle.ok(&["restore", "later", "-d"]);
    scene.go_on(2);
}

#[test]
fn the_gpus_must_be_the_same_kind_and_are_mapped_by_their_uuids() {
    let scene = Fixture::new();
    let rekindle = &scene.rekindle;
    let program = scene.start_with(1);
    assert!(scene.checkpoint(&program, "image", "--stop").status.success());
    let refused = |gpus: &str, more: &[&str]| {
        scene.write("gpus", gpus);
        let mut arguments = vec!["restore", "image", "-d"];
        arguments.extend(more);
        rekindle.refused(&arguments)
    };
    let uuid = |number: u8| format!("GPU-00000000-0000-0000-0000-0000000000{number:02}");
    let two = "3 H200 100000000 50000000\n4 H200 100000000 50000000\n";
    assert!(refused("1 A100 100000000 50000000\n2 H200 100000000 50000000\n", &[]).contains("A100"));
    assert!(refused("1 H200 100000000 50000000\n", &[]).contains("2 GPUs and this one has 1 GPU"));
    assert!(refused("1 H200 100000000 5\n2 H200 100000000 50000000\n", &[]).contains("0 MB are free"));
    assert!(refused("", &[]).contains("0 GPUs"));
    assert!(refused(two, &["--gpu-map", "x"]).contains("OLD=NEW"));
    assert!(refused(two, &["--gpu-map", &format!("{}={}", uuid(1), uuid(9))]).contains(&uuid(4)));
    scene.write("driver", "2.0\n");
    let running = scene.helper().unwrap();
    crate::harness::kill(running, 9);
    let error = refused(two, &[]);
    assert!(error.contains("driver 1.0") && error.contains("2.0"), "{error}");
    scene.write("driver", "1.0\n");
    crate::harness::kill(scene.helper().unwrap(), 9);
    scene.assert_tidy();

    // Crosswise, as given.
    scene.write("gpus", two);
    let crossed = format!("{}={},{}={}", uuid(1), uuid(4), uuid(2), uuid(3));
    rekindle.ok(&["restore", "image", "-d", "--name", "a", "--gpu-map", &crossed]);
    scene.go_on(1);
    rekindle.ok(&["kill", "a"]);
}

#[test]
fn an_image_without_a_part_of_a_gpu_process_is_never_restored() {
    let scene = Fixture::new();
    let rekindle = &scene.rekindle;
    let program = scene.start();
    assert!(scene.checkpoint(&program, "image", "--stop").status.success());
    let inspected = rekindle.json(&["inspect", "image"]);
    let path = std::path::Path::new(inspected["path"].as_str().unwrap());
    let mut hidden = 0;
    for directory in ["cpu", "pages"] {
        for entry in std::fs::read_dir(path.join(directory)).unwrap() {
            let file = entry.unwrap().path();
            let name = file.file_name().unwrap().to_str().unwrap().to_string();
            if !["core-", "mm-", "pagemap-", "pages-", "anon-"].iter().any(|kind| name.starts_with(kind)) {
                continue;
            }
            let aside = scene.rekindle.path("aside");
            std::fs::rename(&file, &aside).unwrap();
            let error = rekindle.refused(&["restore", "image", "-d", "--name", "x"]);
            assert!(error.contains(&name), "{name}: {error}");
            std::fs::rename(&aside, &file).unwrap();
            hidden += 1;
        }
    }
    assert!(hidden >= 10, "{hidden}");
    scene.assert_tidy();
    rekindle.ok(&["restore", "image", "-d"]);
    scene.go_on(2);
}

#[test]
fn what_the_host_or_the_gpu_cannot_hold_is_refused_first() {
    let scene = Fixture::new();
    scene.write("used", "1125899906842624\n");
    let program = scene.start();
    let error = said(scene.checkpoint(&program, "image", "--leave-running"));
    assert!(error.contains("GPU holds 2147483648 MB"), "{error}");
    scene.go_on(2);
    scene.assert_tidy();
}

#[test]
fn a_disk_that_is_full_of_pages_undoes_the_checkpoint() {
    let scene = Fixture::new();
    let program = scene.start_with(1);
    let dumps = scene.rekindle.path("state/dumps");
    scene.rekindle.json(&["ps"]);
    // Room for CRIU's images, and not for what the driver puts into a program.
    let mounted = Mounted::new(&dumps, 12);
    let error = said(scene.checkpoint(&program, "image", "--stop"));
    assert!(error.contains("No space left") || error.contains("is full"), "{error}");
    scene.go_on(1);
    drop(mounted);
    assert!(scene.rekindle.images().is_empty());
    scene.assert_tidy();
    assert!(scene.checkpoint(&program, "image", "--stop").status.success());
}

#[test]
fn a_kernel_that_runs_too_long_is_told_and_the_program_goes_on() {
    let scene = Fixture::new();
    let program = scene.start_with(1);
    scene.write("kernel", "");
    wait("the kernel", || scene.has("kernel-runs"));
    let arguments = ["checkpoint", "--pid", &program.pid(), "--to", "image", "--stop", "--gpu-wait", "0.2"];
    let error = scene.rekindle.refused(&arguments);
    assert!(error.contains("did not end within 0.2 s") && error.contains("--gpu-wait"), "{error}");
    scene.assert_tidy();
    scene.end_kernel();
    scene.go_on(1);
    let arguments = ["checkpoint", "--pid", &program.pid(), "--to", "image", "--stop", "--gpu-wait", "60"];
    scene.rekindle.ok(&arguments);
}

#[test]
fn processes_that_share_gpu_memory_through_nccl_are_refused_before_they_are_lost() {
    let scene = Fixture::new();
    let sharing = scene.start_in(2, &[("LIKE_NCCL", "1")]);
    let error = said(scene.checkpoint(&sharing, "image", "--stop"));
    assert!(error.contains("share GPU memory") && error.contains("NCCL_P2P_DISABLE=1"), "{error}");
    scene.go_on(2);
    drop(sharing);
    let apart = scene.start_in(2, &[("LIKE_NCCL", "1"), ("NCCL_P2P_DISABLE", "1")]);
    assert!(scene.checkpoint(&apart, "image", "--leave-running").status.success());
    scene.grow(2);
    scene.assert_tidy();
}

#[test]
fn a_process_with_much_on_several_gpus_is_refused_before_it_is_lost() {
    let mut scene = Fixture::new();
    scene.write("everywhere", "");
    let program = scene.start_with(1);
    assert!(scene.checkpoint(&program, "little", "--leave-running").status.success());
    scene.write("used", "2200000000\n");
    let error = said(scene.checkpoint(&program, "image", "--stop"));
    assert!(error.contains("peer access") && error.contains("REKINDLE_TUNING=driver.peers=allow"), "{error}");
    scene.grow(1);
    let small = [("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")];
    drop(program);
    let program = scene.start_in(1, &small);
    assert!(scene.checkpoint(&program, "small", "--leave-running").status.success());
    drop(program);
    let program = scene.start_with(1);
    scene.rekindle.set_fault(None);
    scene.tune("driver.peers=allow");
    assert!(scene.checkpoint(&program, "image", "--leave-running").status.success());
    scene.grow(1);
    scene.assert_tidy();
}

#[test]
fn a_process_that_somebody_else_has_locked_is_left_alone() {
    let scene = Fixture::new();
    let program = scene.start_with(1);
    scene.call("cuCheckpointProcessLock", &program.pid());
    let error = said(scene.checkpoint(&program, "image", "--leave-running"));
    assert!(error.contains("is locked already"), "{error}");
    scene.assert_tidy();
    scene.call("cuCheckpointProcessUnlock", &program.pid());
    scene.go_on(1);
    assert!(scene.checkpoint(&program, "image", "--leave-running").status.success());
}

#[test]
fn a_device_that_the_driver_cannot_let_go_of_is_named() {
    /// A file that looks like a device of the driver's.
    struct Device(String);
    impl Drop for Device {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }
    let scene = Fixture::new();
    let device = Device(format!("/dev/nvidia-rekindle-test-{}", std::process::id()));
    std::fs::write(&device.0, "").unwrap();
    let code = format!("import time\nf = open({:?})\nprint(0, flush=True)\ntime.sleep(60)", device.0);
    let out = scene.output(0);
    let program = Program::start(std::process::Command::new("python3").args(["-c", &code]), &out);
    let error = said(scene.checkpoint(&program, "image", "--leave-running"));
    assert!(error.contains(&device.0) && error.contains("NVML"), "{error}");
    scene.assert_tidy();
}

#[test]
fn modes_and_gpus_that_contradict_each_other_are_refused() {
    let scene = Fixture::new();
    let rekindle = &scene.rekindle;
    let error = rekindle.refused(&["run", "-d", "--mode", "driver", "--gpu", "emulated", "--", "true"]);
    assert!(error.contains("--mode sandbox"), "{error}");
    rekindle.start("counter", &GPU_COUNTER);
    rekindle.goes_on("counter");
    assert_eq!(rekindle.sandbox("counter")["mode"], "sandbox");
    rekindle.ok(&["checkpoint", "counter", "--to", "image", "--stop"]);
    let error = rekindle.refused(&["restore", "image", "-d", "--gpu-map", "a=b"]);
    assert!(error.contains("--gpu-map has no meaning"), "{error}");
}
