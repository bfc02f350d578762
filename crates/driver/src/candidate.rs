//! Which processes of a tree may use a GPU: those that have a device of the driver's open or mapped, or its library.

use rekindle_sandbox::process::maps;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub pid: i32,
    /// A device that it has; a process without may have the library only.
    pub device: Option<String>,
}

/// Asked of `/proc`; a process that ends meanwhile is none.
pub fn candidates(pids: impl IntoIterator<Item = i32>) -> Vec<Candidate> {
    pids.into_iter().filter_map(candidate).collect()
}

fn candidate(pid: i32) -> Option<Candidate> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let device = open.filter_map(|entry| fs::read_link(entry.path()).ok()).find(|path| is_device(path));
    let device = device.map(|path| path.to_string_lossy().into_owned());
    if device.is_some() {
        return Some(Candidate { pid, device });
    }
    let areas = maps::if_there(pid);
    let mapped: Vec<_> = areas.iter().map(|area| Path::new(OsStr::from_bytes(&area.name))).collect();
    let device = mapped.iter().find(|path| is_device(path)).map(|path| path.display().to_string());
    let library = mapped.iter().any(|path| is_library(path));
    (device.is_some() || library).then_some(Candidate { pid, device })
}

fn is_device(path: &Path) -> bool {
    path.starts_with("/dev") && path.to_string_lossy().starts_with("/dev/nvidia")
}

fn is_library(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libcuda.so"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_libraries_by_name() {
        for device in ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"] {
            assert!(is_device(Path::new(device)));
        }
        assert!(!is_device(Path::new("/home/dev/nvidia0")) && !is_device(Path::new("/dev/null")));
        assert!(
            is_library(Path::new("/usr/lib/libcuda.so.580.1")) && is_library(Path::new("/x/libcuda.so.1"))
        );
        assert!(!is_library(Path::new("/usr/lib/libcudart.so.12")));
    }

    #[test]
    fn this_process_uses_none() {
        assert_eq!(candidates([std::process::id() as i32, -1]), []);
    }
}
