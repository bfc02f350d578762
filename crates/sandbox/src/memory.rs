//! The host's memory.

/// What can be had without swapping, bytes; none if the kernel does not tell.
pub fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes = line.trim().trim_end_matches(" kB").parse::<u64>().ok()?;
    Some(kilobytes << 10)
}
