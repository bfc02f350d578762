//! Peer access between GPUs: driver 580 takes a process that has it, and brings it back only where each of its allocations is
//! smaller than 512 MB; else the process is lost, whether its image is restored or it was to go on.
//!
//! ```text
//! 580, on restoring   500 MB: maps it on its own GPU, on the other GPU ─▶ goes on
//!                     512 MB: maps it on its own GPU ─▶ CUDA_ERROR_INVALID_VALUE
//! ```
//!
//! The driver does not say who has peer access, nor how large allocations are. So what may be such a process is refused,
//! one with much memory on several GPUs, unless PyTorch is told to have small allocations, or the user knows better.

use rekindle_protocol::tuning;
use std::collections::HashMap;
use std::fs;

use crate::error::{Error, Result};

/// The first release that is said to bring back memory that is mapped elsewhere too.
const MENDED: u32 = 610;
/// What a process has on a GPU with a context, libraries and small allocations.
const LITTLE: u64 = 2 << 30;
/// Names of PyTorch's settings of its allocator, and the one with which allocations are of 20 MB.
const SETTINGS: [&[u8]; 2] = [b"PYTORCH_CUDA_ALLOC_CONF=", b"PYTORCH_ALLOC_CONF="];
const SMALL: &[u8] = b"expandable_segments:True";

/// Refuses a process that might not come back. `usage` are bytes by GPU and process.
pub fn refuse(pids: &[i32], usage: &[(String, i32, u64)], driver_version: &str) -> Result<()> {
    let release = driver_version.split('.').next().and_then(|number| number.parse().ok());
    let is_mended = release.is_some_and(|release: u32| release >= MENDED);
    // Whoever allows it says that programs have no peer access, or only small allocations.
    if is_mended || tuning::is(tuning::PEERS, "allow") {
        return Ok(());
    }
    // A process that ends meanwhile is none.
    let environment = |pid: i32| fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let pids: Vec<_> =
        pids.iter().copied().filter(|pid| !has_small_allocations(&environment(*pid))).collect();
    match suspect(&pids, usage) {
        Some(pid) => Err(Error::Peers { pid, driver_version: driver_version.to_string() }),
        None => Ok(()),
    }
}

/// A process that uses several GPUs and has much on one of them.
fn suspect(pids: &[i32], usage: &[(String, i32, u64)]) -> Option<i32> {
    let mut most: HashMap<i32, (usize, u64)> = HashMap::new();
    for (_, pid, bytes) in usage {
        let (gpus, largest) = most.entry(*pid).or_default();
        *gpus += 1;
        *largest = (*largest).max(*bytes);
    }
    let is_suspect = |pid: &&i32| most.get(pid).is_some_and(|(gpus, largest)| *gpus > 1 && *largest > LITTLE);
    pids.iter().find(is_suspect).copied()
}

fn has_small_allocations(environment: &[u8]) -> bool {
    let mut values = environment
        .split(|byte| *byte == 0)
        .filter_map(|one| SETTINGS.iter().find_map(|name| one.strip_prefix(*name)));
    values.any(|value| value.split(|byte| *byte == b',').any(|setting| setting.trim_ascii() == SMALL))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(gpu: &str, pid: i32, bytes: u64) -> (String, i32, u64) {
        (gpu.to_string(), pid, bytes)
    }

    #[test]
    fn much_on_several_gpus_is_suspect() {
        let usage =
            [on("a", 1, LITTLE), on("b", 1, LITTLE + 1), on("a", 2, 9 << 30), on("a", 3, 1), on("b", 3, 1)];
        assert_eq!(suspect(&[2, 3, 1], &usage), Some(1));
        assert_eq!(suspect(&[2, 3], &usage), None, "one GPU, or little on both");
        assert_eq!(suspect(&[1], &[]), None, "NVML tells nothing");
    }

    #[test]
    fn pytorch_s_setting_is_known() {
        assert!(has_small_allocations(
            b"A=1\0PYTORCH_CUDA_ALLOC_CONF=backend:native, expandable_segments:True\0"
        ));
        assert!(has_small_allocations(b"PYTORCH_ALLOC_CONF=expandable_segments:True"));
        for other in [
            &b""[..],
            b"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False\0",
            b"X=expandable_segments:True\0",
        ] {
            assert!(!has_small_allocations(other));
        }
    }

    #[test]
    fn newer_drivers_are_trusted() {
        let usage = [on("a", 1, 9 << 30), on("b", 1, 1)];
        assert!(refuse(&[1], &usage, "610.10").is_ok());
        let error = refuse(&[1], &usage, "580.159.04").unwrap_err().to_string();
        assert!(
            error.contains("process 1") && error.contains("REKINDLE_TUNING=driver.peers=allow"),
            "{error}"
        );
    }
}
