//! Takes every call of the device trait through the real driver, and says what works and what it costs.
//!
//! `cargo run -p rekindle-nvidia --example smoke` prints a line a check (`name ok …` or `name FAILED why`) and exits
//! with 1 when one failed; without a driver it says so and exits with 2.

mod arrays;
mod code;
mod gpu;
mod graphs;
mod kernels;
mod memory;
mod process;
mod streams;
mod timing;

use std::process::ExitCode;
use std::time::Instant;

use rekindle_device::Platform;
use rekindle_nvidia::NvidiaPlatform;

use gpu::{Failure, Gpu, HOST_BYTES, Outcome};

const SECONDS: u32 = 180;

/// A name and what it stands for.
type Check = (&'static str, fn(&Gpu) -> Outcome);

fn main() -> ExitCode {
    // SAFETY: a timer that ends the process when something hangs.
    unsafe { libc::alarm(SECONDS) };
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => checks(),
        ["fault", descriptor] => {
            child(descriptor.parse().map_err(Failure::from).and_then(process::fault_child))
        }
        ["hold"] => child(process::hold_child()),
        _ => {
            eprintln!("smoke takes no arguments");
            ExitCode::from(2)
        }
    }
}

/// A child's one line, which its parent reads.
fn child(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(words) => {
            println!("{words}");
            ExitCode::SUCCESS
        }
        Err(Failure(why)) => {
            println!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn checks() -> ExitCode {
    let start = Instant::now();
    let platform = match NvidiaPlatform::open() {
        Ok(platform) => platform,
        Err(error) => {
            eprintln!("smoke: {error}");
            return ExitCode::from(2);
        }
    };
    let mut report = Report { failed: 0 };
    report.row("platform", start, Ok(describe(&platform)));
    let start = Instant::now();
    let gpu = match Gpu::open(&platform, HOST_BYTES) {
        Ok(gpu) => gpu,
        Err(why) => {
            report.row("open", start, Err(why));
            return ExitCode::FAILURE;
        }
    };
    report.row("open", start, Ok("context, 1 TiB of addresses, 1 GiB pinned, kernels".into()));

    let checks: &[Check] = &[
        ("limits", streams::limits),
        ("memory/mapping", memory::mapping),
        ("memory/reserve-taken", memory::reserve_taken),
        ("memory/protection", memory::protection),
        ("memory/two-mappings", memory::two_mappings),
        ("memory/export-import", memory::export_import),
        ("memory/pinned", memory::pinned),
        ("memory/copies", memory::copies),
        ("memory/fills", memory::fills),
        ("arrays/copies", arrays::copies),
        ("arrays/numbers", arrays::numbers),
        ("code/functions", code::functions),
        ("code/logs", code::logs),
        ("code/library", code::library),
        ("code/globals", code::globals),
        ("code/link", code::link),
        ("code/occupancy", code::occupancy),
        ("code/launch-shapes", code::launch_shapes),
        ("code/tensor-maps", code::tensor_maps),
        ("streams/add", streams::add),
        ("streams/order", streams::order),
        ("streams/host-call", streams::host_call),
        ("graphs/captured", graphs::captured),
        ("graphs/built", graphs::built),
        ("graphs/others", graphs::others),
        ("process/fault", process::fault),
        ("timing/launches", timing::launches),
        ("timing/bandwidth", timing::bandwidth),
        ("timing/mapping", timing::mapping),
    ];
    for (name, check) in checks {
        let start = Instant::now();
        report.row(name, start, check(&gpu));
    }
    let start = Instant::now();
    report.row("process/driver-checkpoint", start, process::driver_checkpoint(&platform));
    if report.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

struct Report {
    failed: u32,
}

impl Report {
    fn row(&mut self, name: &str, start: Instant, outcome: Outcome) {
        let milliseconds = start.elapsed().as_secs_f64() * 1e3;
        match outcome {
            Ok(words) => println!("{name} ok ({milliseconds:.1} ms) {words}"),
            Err(Failure(why)) => {
                self.failed += 1;
                println!("{name} FAILED ({milliseconds:.1} ms) {why}");
            }
        }
    }
}

fn describe(platform: &NvidiaPlatform) -> String {
    let info = &platform.devices()[0];
    format!(
        "{:?} driver {} (CUDA {}) from {}; {} GPU; {} {} at {}, compute capability {:?}, {} bytes, {} attributes",
        platform.kind(),
        platform.driver_name(),
        platform.driver_version(),
        platform.library().display(),
        platform.devices().len(),
        info.name,
        info.uuid.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
        info.pci_bus_id,
        info.compute_capability,
        info.total_memory,
        info.attributes.len(),
    )
}
