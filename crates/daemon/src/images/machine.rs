//! What a manifest says of program, machine and GPUs.

use rekindle_device::GpuKind as DeviceKind;
use rekindle_protocol::daemon::Mode as Shown;
use rekindle_protocol::worker::Status;
use rekindle_sandbox::Cpu;
use rekindle_store::{Gpu, GpuKind, Machine, MappedFile, Mode, Program};

pub fn this() -> Machine {
    let kernel = |name| std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
    Machine { host: kernel("hostname").trim().to_string(), kernel: kernel("osrelease").trim().to_string() }
}

pub fn program(command: &[String], cpu: &Cpu<'_>) -> Program {
    let root = cpu.root_pid().unwrap_or(0);
    let link = |name| std::fs::read_link(format!("/proc/{root}/{name}")).unwrap_or_default();
    Program {
        argv: command.to_vec(),
        cwd: link("cwd"),
        exe: link("exe"),
        pid: cpu.program_pid().unsigned_abs(),
    }
}

/// A program of which the command alone is known.
pub fn program_of(command: &[String]) -> Program {
    Program { argv: command.to_vec(), ..Program::default() }
}

pub fn mode(mode: Shown) -> Mode {
    match mode {
        Shown::Sandbox => Mode::Sandbox,
        Shown::Driver => Mode::Driver,
    }
}

pub fn shown_mode(mode: Mode) -> Shown {
    match mode {
        Mode::Sandbox => Shown::Sandbox,
        Mode::Driver => Shown::Driver,
    }
}

pub fn gpus(status: &Status) -> Vec<Gpu> {
    status
        .devices
        .iter()
        .zip(0..)
        .map(|(device, index)| Gpu {
            kind: kind(device.kind),
            model: device.name.clone(),
            uuid: device.uuid.iter().map(|byte| format!("{byte:02x}")).collect(),
            memory_bytes: device.total_memory,
            driver_version: status.driver.clone(),
            index,
        })
        .collect()
}

pub fn kind(kind: DeviceKind) -> GpuKind {
    match kind {
        DeviceKind::Nvidia => GpuKind::Nvidia,
        DeviceKind::Emulated => GpuKind::Emulated,
    }
}

pub fn mapped_file(file: &rekindle_sandbox::MappedFile) -> MappedFile {
    MappedFile {
        path: file.path.clone(),
        content_id: file.identity.to_string(),
        bytes: file.size,
        modified: (file.modified_ns / 1_000_000_000) as i64,
    }
}
