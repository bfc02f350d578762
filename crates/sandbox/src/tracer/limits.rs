//! Limits of processes of another user. The kernel tells them by `prlimit` only to who may change them (`CAP_SYS_RESOURCE`),
//! which not every root may, and in `/proc` to all.

use std::fs;
use std::io;

use super::calls::{Answer, Call, Memory};
use crate::capability::{For, missing};

/// Where a line has them.
const SOFT: std::ops::Range<usize> = 26..47;
const HARD: std::ops::Range<usize> = 47..68;

/// Whether we have to be asked in the kernel's place.
pub fn limits_are_withheld() -> bool {
    !missing(For::HigherLimits).is_empty()
}

/// What `prlimit` says, where it only asks, and for another process.
pub fn tell(call: &Call) -> io::Result<Answer> {
    let [process, resource, wanted, found, ..] = call.words;
    if process == 0 || wanted != 0 || found == 0 {
        return Ok(Answer::Kernel);
    }
    let Some(limits) = of(process as i32, resource as usize) else { return Ok(Answer::Kernel) };
    Memory(call.pid).write(found, limits.map(u64::to_ne_bytes).as_flattened())?;
    Ok(Answer::Value(0))
}

/// The limit that holds, and the highest that it may be made: a line for each, in the order of their numbers, after one of
/// titles.
fn of(process: i32, resource: usize) -> Option<[u64; 2]> {
    let text = fs::read_to_string(format!("/proc/{process}/limits")).ok()?;
    let line = text.lines().nth(1 + resource)?;
    let limit = |place| match line.get(place).map(str::trim)? {
        "unlimited" => Some(libc::RLIM64_INFINITY),
        number => number.parse().ok(),
    };
    Some([limit(SOFT)?, limit(HARD)?])
}

#[cfg(test)]
mod tests {
    use nix::sys::resource::{Resource, getrlimit};

    use super::*;

    #[test]
    fn the_kernel_says_the_same_in_both_ways() {
        let own = std::process::id() as i32;
        let all =
            [Resource::RLIMIT_CPU, Resource::RLIMIT_STACK, Resource::RLIMIT_NOFILE, Resource::RLIMIT_RTTIME];
        for resource in all {
            let (soft, hard) = getrlimit(resource).unwrap();
            assert_eq!(of(own, resource as usize), Some([soft, hard]), "{resource:?}");
        }
        assert_eq!(of(own, 16), None);
    }
}
