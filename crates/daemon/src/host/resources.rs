//! How much of this machine is free, and leaving it so.

use std::path::Path;

/// Memory of the host that can be had without swapping, bytes; 0 if the kernel does not tell.
pub fn available_memory() -> u64 {
    rekindle_sandbox::memory::available().unwrap_or(0)
}

/// Free bytes where `path` lies or would lie.
pub fn free_space(path: &Path) -> u64 {
    path.ancestors()
        .find_map(|place| nix::sys::statvfs::statvfs(place).ok())
        .map_or(0, |stat| stat.blocks_available() * stat.fragment_size())
}

/// Has large buffers of this process given back when they are freed. By itself malloc keeps them, for each thread that
/// ever had one.
pub fn give_memory_back() {
    const LARGE: i32 = 1 << 20;
    // SAFETY: sets a parameter of malloc.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_some() {
        assert!(available_memory() > 0);
        assert!(free_space(Path::new("/tmp/is/not/there")) > 0);
    }
}
