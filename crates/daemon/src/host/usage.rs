//! What processes use of the machine.

use rekindle_sandbox::Stat;
use rekindle_sandbox::process::text;

/// Of several processes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub processes: u64,
    pub processor_us: u64,
    /// Pages that several processes have count for each by its share; none where the kernel does not tell.
    pub memory: Option<u64>,
}

/// Of those of them that have not ended.
pub fn of(pids: impl IntoIterator<Item = i32>) -> Usage {
    let mut usage = Usage { memory: Some(0), ..Usage::default() };
    for pid in pids {
        let Some(ticks) = Stat::of(pid).ok().and_then(|stat| stat.processor_ticks()) else { continue };
        usage.processes += 1;
        usage.processor_us += ticks * 1_000_000 / ticks_a_second();
        usage.memory = usage.memory.zip(memory(pid)).map(|(all, one)| all + one);
    }
    usage
}

fn ticks_a_second() -> u64 {
    // SAFETY: takes an integer.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(0).max(1)
}

fn memory(pid: i32) -> Option<u64> {
    let all = text(&format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = all.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_time_are_those_that_were_used() {
        let own = std::process::id() as i32;
        let before = of([own]);
        assert_eq!(before.processes, 1);
        let bytes = vec![1u8; 64 << 20];
        let more = of([own]).memory.unwrap() - before.memory.unwrap();
        // Other tests of this process give memory back meanwhile.
        assert!(more >= bytes.len() as u64 / 2, "{more}");
        while of([own]).processor_us < before.processor_us + 30_000 {
            std::hint::black_box(bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>());
        }
        assert_eq!(of([i32::MAX]), Usage { memory: Some(0), ..Usage::default() });
    }
}
