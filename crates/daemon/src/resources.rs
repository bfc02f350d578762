//! How much of this machine is free.

use std::path::Path;

/// Memory that can be had without swapping, bytes.
pub fn available_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes.unwrap_or(0) << 10
}

/// Free bytes where `path` lies or would lie.
pub fn free_space(path: &Path) -> u64 {
    path.ancestors()
        .find_map(|place| nix::sys::statvfs::statvfs(place).ok())
        .map_or(0, |stat| stat.blocks_available() * stat.fragment_size())
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
