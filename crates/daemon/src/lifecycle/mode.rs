//! In which mode a program is started whose user leaves that to the daemon.
//!
//! It is the sandbox, unless it is known beforehand that the program cannot run there: an earlier run of the same file with the
//! same arguments was refused a function, or it is linked statically and cannot have Rekindle's libcuda. Driver mode takes an
//! NVIDIA GPU.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rekindle_protocol::daemon::Mode;

use crate::daemon::Daemon;
use crate::sandboxes::refusals::Memory;

use super::run::RunRequest;

/// The driver's control device, which is there with any NVIDIA GPU.
const CONTROL_DEVICE: &str = "/dev/nvidiactl";
/// Names the library in whose place a test has another one.
const LIBRARY: &str = "REKINDLE_LIBCUDA";

const EXECUTABLE: &[u8; 4] = b"\x7fELF";
/// `PT_INTERP`, and where ELF files of 64 bits have what is about segments.
const INTERPRETER: u32 = 3;
const SEGMENTS_AT: u64 = 32;
const SEGMENT_BYTES_AT: u64 = 54;
const MOST_SEGMENTS: u16 = 256;

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
    let is_static = executable(request).is_some_and(|path| is_static(&path).unwrap_or(false));
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

/// Whether an executable asks for no dynamic linker. Anything but an ELF file of 64 bits is run by another one.
fn is_static(path: &Path) -> std::io::Result<bool> {
    let mut file = File::open(path)?;
    let mut magic = [0; 5];
    if file.read_exact(&mut magic).is_err() || &magic[..4] != EXECUTABLE || magic[4] != 2 {
        return Ok(false);
    }
    let (mut at, mut shape) = ([0; 8], [0; 4]);
    file.read_exact_at(&mut at, SEGMENTS_AT)?;
    file.read_exact_at(&mut shape, SEGMENT_BYTES_AT)?;
    let at = u64::from_le_bytes(at);
    let bytes = u16::from_le_bytes([shape[0], shape[1]]);
    let count = u16::from_le_bytes([shape[2], shape[3]]);
    for number in 0..count.min(MOST_SEGMENTS) {
        let mut kind = [0; 4];
        file.read_exact_at(&mut kind, at.saturating_add(u64::from(number) * u64::from(bytes)))?;
        if u32::from_le_bytes(kind) == INTERPRETER {
            return Ok(false);
        }
    }
    Ok(count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_asks_for_no_linker_is_static() {
        assert!(!is_static(&std::env::current_exe().unwrap()).unwrap());
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        let mut header = vec![0; 64];
        header[..5].copy_from_slice(b"\x7fELF\x02");
        header[32] = 64;
        (header[54], header[56]) = (56, 1);
        header.extend([1, 0, 0, 0]);
        header.extend([0; 52]);
        std::fs::write(&file, &header).unwrap();
        assert!(is_static(&file).unwrap());
        header[64] = 3;
        std::fs::write(&file, &header).unwrap();
        assert!(!is_static(&file).unwrap());
        std::fs::write(&file, "#!/bin/sh\n").unwrap();
        assert!(!is_static(&file).unwrap());
    }
}
