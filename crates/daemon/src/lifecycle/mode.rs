//! In which mode a program is started whose user leaves that to the daemon.
//!
//! It is the sandbox, unless it is known beforehand that the program cannot run there: an earlier run of the same file with the
//! same arguments was refused a function, or it is linked statically and cannot have Rekindle's libcuda. Driver mode takes an
//! NVIDIA GPU.

use std::fs::File;
use std::path::{Path, PathBuf};

use rekindle_code::elf::{Elf, ReadCache};
use rekindle_protocol::daemon::Mode;

use crate::daemon::Daemon;
use crate::sandboxes::refusals::Memory;

use super::run::RunRequest;

/// The driver's control device, which is there with any NVIDIA GPU.
const CONTROL_DEVICE: &str = "/dev/nvidiactl";
/// Names the library in whose place a test has another one.
const LIBRARY: &str = "REKINDLE_LIBCUDA";

/// The mode, and why it is that.
pub fn choose(daemon: &Daemon, request: &RunRequest, program: Option<&str>) -> (Mode, String) {
    let sandbox = |why: &str| (Mode::Sandbox, why.to_string());
    if request.run.tenant.is_some() || request.framework {
        return sandbox("what was asked for is there in this mode alone");
    }
    if request.run.gpu.as_deref().is_some_and(|gpu| gpu.starts_with("emulated")) {
        return sandbox("its GPU is an emulated one, which has no driver that could take it");
    }
    let functions = program.map(|program| Memory::in_directory(&daemon.paths.state).of(program));
    let functions = functions.unwrap_or_default();
    let is_static = executable(request).is_some_and(|path| is_static(&path));
    let why = match (functions.as_slice(), is_static) {
        ([], false) => return sandbox("nothing is known that the program could not do there"),
        ([], true) => "it is linked statically, and cannot have Rekindle's libcuda".to_string(),
        (functions, _) => format!("an earlier run of it was refused {} in a sandbox", functions.join(", ")),
    };
    match Path::new(CONTROL_DEVICE).exists() || std::env::var_os(LIBRARY).is_some() {
        true => (Mode::Driver, why),
        false => (Mode::Sandbox, format!("{why}, and there is no NVIDIA GPU whose driver could take it")),
    }
}

/// What stands for a program with its arguments, whatever it is called.
pub fn program(request: &RunRequest) -> Option<String> {
    let mut hash = blake3::Hasher::new();
    hash.update_reader(File::open(executable(request)?).ok()?).ok()?;
    for argument in request.run.command.iter().skip(1) {
        hash.update(&(argument.len() as u64).to_le_bytes());
        hash.update(argument.as_bytes());
    }
    Some(hash.finalize().to_hex().to_string())
}

/// The file that is run, as its shell would find it.
fn executable(request: &RunRequest) -> Option<PathBuf> {
    let name = request.run.command.first()?;
    let is_file = |path: &PathBuf| path.metadata().is_ok_and(|found| found.is_file());
    if name.contains('/') {
        return Some(Path::new(&request.run.directory).join(name)).filter(is_file);
    }
    let path = request.run.environment.iter().find(|(variable, _)| variable == "PATH")?;
    path.1
        .split(':')
        .map(|directory| Path::new(&request.run.directory).join(directory).join(name))
        .find(is_file)
}

fn is_static(path: &Path) -> bool {
    let file = File::open(path);
    file.is_ok_and(|file| Elf::read(&ReadCache::new(file)).is_some_and(|elf| elf.is_static()))
}
