//! AMD GPUs: which processes use them, and CRIU's plugin, which takes what they have there and brings it back.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::criu::Criu;

pub const PLUGIN: &str = "amdgpu_plugin.so";
/// Names the directory of CRIU's plugins; no other is looked at then.
pub const PLUGINS_VARIABLE: &str = "REKINDLE_CRIU_PLUGINS";
/// The driver's device for computing; all programs that do so have it open.
const DEVICE: &str = "kfd";
/// Where distributions and CRIU's own `make install` put plugins.
const DIRECTORIES: [&str; 5] = [
    "/usr/lib/criu",
    "/usr/lib/x86_64-linux-gnu/criu",
    "/usr/lib64/criu",
    "/usr/local/lib/criu",
    "/usr/libexec/criu",
];

/// Whether this machine has an AMD GPU that computes.
pub fn is_here() -> bool {
    let devices = fs::read_dir("/dev").into_iter().flatten().flatten();
    devices.into_iter().any(|device| device.file_name().to_string_lossy().starts_with(DEVICE))
}

/// Those of the processes that use one.
pub fn users(pids: impl IntoIterator<Item = i32>) -> Vec<i32> {
    pids.into_iter().filter(|pid| is_user(*pid)).collect()
}

fn is_user(pid: i32) -> bool {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|path| is_device(&path))
}

fn is_device(path: &Path) -> bool {
    path.strip_prefix("/dev").is_ok_and(|name| name.to_string_lossy().starts_with(DEVICE))
}

/// This CRIU with its plugin for AMD GPUs; the directories that were looked in if it is in none.
pub fn with_plugin(criu: &Criu) -> Result<Criu, Vec<PathBuf>> {
    let directories = directories(criu, std::env::var_os(PLUGINS_VARIABLE));
    match directories.iter().find(|directory| directory.join(PLUGIN).is_file()) {
        Some(directory) => Ok(criu.with_plugins(directory)),
        None => Err(directories),
    }
}

fn directories(criu: &Criu, given: Option<OsString>) -> Vec<PathBuf> {
    if let Some(given) = given {
        return vec![given.into()];
    }
    let beside = criu.path().is_dir().then(|| criu.path().join("lib/criu"));
    beside.into_iter().chain(DIRECTORIES.map(PathBuf::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_is_known_by_its_name() {
        assert!(is_device(Path::new("/dev/kfd")));
        for other in ["/dev/dri/renderD128", "/home/dev/kfd", "/dev/null", "pipe:[1]"] {
            assert!(!is_device(Path::new(other)), "{other}");
        }
        assert!(users([std::process::id() as i32, -1]).is_empty());
    }
}
