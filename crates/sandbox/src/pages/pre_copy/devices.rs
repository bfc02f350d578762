//! Whether devices may write to a process's memory, which the kernel does not note.

use std::fs;

use crate::process::maps;

/// Whether something other than the program's own threads may write to its memory.
pub(super) fn is_written_by_devices(host_pid: i32) -> bool {
    has_direct_files(host_pid) || are_there_queues() && has_queue(&maps::if_there(host_pid))
}

/// Whether a process of this machine may have a queue for asynchronous input and output. Of what a process has mapped the
/// kernel tells slowly.
fn are_there_queues() -> bool {
    fs::read_to_string("/proc/sys/fs/aio-nr").map_or(true, |requests| requests.trim() != "0")
}

pub(super) fn has_queue(areas: &[maps::Area]) -> bool {
    areas.iter().any(|area| area.name.starts_with(b"/[aio]"))
}

pub(super) fn has_direct_files(host_pid: i32) -> bool {
    let entries = fs::read_dir(format!("/proc/{host_pid}/fdinfo")).into_iter().flatten().flatten();
    let mut texts = entries.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    let is_direct = |text: String| {
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
        flags.is_some_and(|flags| flags & libc::O_DIRECT != 0 && flags & libc::O_PATH == 0)
    };
    texts.any(is_direct)
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    #[test]
    fn queues_and_files_for_direct_input_and_output_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let ours = std::process::id() as i32;
        assert!(!is_written_by_devices(ours));
        let mut queue: u64 = 0;
        // SAFETY: the call writes the queue's number to the word that it is given.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, 1, &raw mut queue) };
        // Not every kernel has such queues.
        if made == 0 {
            assert!(is_written_by_devices(ours));
            // SAFETY: gives back the queue of above.
            unsafe { libc::syscall(libc::SYS_io_destroy, queue) };
            assert!(!is_written_by_devices(ours));
        }
        let opened = OpenOptions::new().write(true).create(true).custom_flags(libc::O_DIRECT).open(path);
        // A file system without it has none to be found.
        if opened.is_ok() {
            assert!(is_written_by_devices(ours));
        }
    }
}
