//! The capabilities that taking and bringing back a program needs.

const NEEDED: [(u32, &str); 3] = [(21, "SYS_ADMIN"), (19, "SYS_PTRACE"), (40, "CHECKPOINT_RESTORE")];

/// All that are needed, by name.
pub fn needed() -> [&'static str; 3] {
    NEEDED.map(|(_, name)| name)
}

/// Those of them that this process does not have.
pub fn missing() -> Vec<&'static str> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    missing_in(&status)
}

fn missing_in(status: &str) -> Vec<&'static str> {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    NEEDED.iter().filter(|(bit, _)| mask & (1 << bit) == 0).map(|(_, name)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        assert_eq!(missing_in("CapEff:\t000001ffffffffff\n"), Vec::<&str>::new());
        assert_eq!(missing_in("CapEff:\t000001fffff7ffff\n"), ["SYS_PTRACE"]);
        assert_eq!(missing_in(""), needed());
    }
}
