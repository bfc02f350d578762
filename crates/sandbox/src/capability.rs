//! The capabilities that taking and bringing back a program needs: one table, for whoever looks.

/// What cannot be done without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum For {
    /// Sandboxes, and images of any program.
    Checkpoints,
    /// Bringing any program back.
    Restores,
    /// Images of programs with a process that runs as another user than the daemon, and bringing them back.
    OtherUsers,
    /// Bringing back programs that have limits beyond the daemon's; images of those before, where CRIU traces by itself.
    HigherLimits,
    /// Stops and restores that do not wait for processors on a machine with other work.
    OtherWork,
}

impl For {
    pub const ALL: [For; 5] =
        [For::Checkpoints, For::Restores, For::OtherUsers, For::HigherLimits, For::OtherWork];
}

/// Bit, name, what cannot be done without, for what.
type Need = (u32, &'static str, For, &'static str);

const NEEDED: [Need; 11] = [
    (21, "SYS_ADMIN", For::Checkpoints, "namespaces"),
    (19, "SYS_PTRACE", For::Checkpoints, "holding processes still"),
    (40, "CHECKPOINT_RESTORE", For::Checkpoints, "their pids"),
    (18, "SYS_CHROOT", For::Restores, "their root directories"),
    (25, "SYS_TIME", For::Restores, "their clocks"),
    (12, "NET_ADMIN", For::Restores, "the sizes of their sockets' buffers"),
    (8, "SETPCAP", For::Restores, "their capabilities"),
    (7, "SETUID", For::OtherUsers, "their users"),
    (6, "SETGID", For::OtherUsers, "their groups"),
    (24, "SYS_RESOURCE", For::HigherLimits, "their limits"),
    (23, "SYS_NICE", For::OtherWork, "processors before other work"),
];

/// All that are needed for this, by name, with what for.
pub fn needed(purpose: For) -> Vec<(&'static str, &'static str)> {
    let of_these = NEEDED.iter().filter(|need| need.2 == purpose);
    of_these.map(|(_, name, _, what)| (*name, *what)).collect()
}

/// Those of them that this process does not have.
pub fn missing(purpose: For) -> Vec<(&'static str, &'static str)> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    missing_in(&status, purpose)
}

fn missing_in(status: &str, purpose: For) -> Vec<(&'static str, &'static str)> {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let has = |name: &str| NEEDED.iter().any(|(bit, known, ..)| *known == name && mask & (1 << bit) != 0);
    needed(purpose).into_iter().filter(|(name, _)| !has(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let none: [(&str, &str); 0] = [];
        for purpose in For::ALL {
            assert_eq!(missing_in("CapEff:\t000001ffffffffff\n", purpose), none);
            assert_eq!(missing_in("", purpose), needed(purpose));
        }
        assert_eq!(missing_in("CapEff:\t000001fffff7ffff\n", For::Checkpoints)[0].0, "SYS_PTRACE");
        assert_eq!(missing_in("CapEff:\t000001fffeffffff\n", For::Restores), none);
        assert_eq!(missing_in("CapEff:\t000001fffeffffff\n", For::HigherLimits)[0].0, "SYS_RESOURCE");
    }
}
