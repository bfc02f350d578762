//! NCCL between processes: the usual way in which they share GPU memory. A driver older than 610 takes such processes, and
//! then refuses to bring any of them back (CUDA_ERROR_NOT_SUPPORTED, or CUDA_ERROR_INVALID_VALUE), so that the program would
//! be lost.
//!
//! The driver does not say which processes share memory. What can be told is NCCL's way of it: between processes it gives out
//! memory over a socket of its own, unless it is told not to, and then it has files in `/dev/shm` in place of that.

use std::fs;

use rekindle_sandbox::process::sockets;

use crate::error::{Error, Result};

/// The first release that is said to bring such processes back.
const MENDED: u32 = 610;
const SOCKET: &str = "nccl-socket-";
const FILES: &str = "/dev/shm/nccl-";
const SWITCH: &[u8] = b"NCCL_P2P_DISABLE=";

/// Refuses processes that share GPU memory through NCCL.
pub fn refuse(pids: &[i32], driver_version: &str) -> Result<()> {
    let release = driver_version.split('.').next().and_then(|number| number.parse().ok());
    if pids.len() < 2 || release.is_some_and(|release: u32| release >= MENDED) {
        return Ok(());
    }
    match pids.iter().copied().filter(|pid| shares(*pid)).collect::<Vec<_>>()[..] {
        [first, second, ..] => {
            Err(Error::Shared { first, second, driver_version: driver_version.to_string() })
        }
        _ => Ok(()),
    }
}

/// A process that ends meanwhile does not.
fn shares(pid: i32) -> bool {
    let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let (unix, maps) = (read("net/unix"), read("maps"));
    let (unix, maps) = (String::from_utf8_lossy(&unix), String::from_utf8_lossy(&maps));
    has_socket(&unix, &sockets(pid)) && !maps.contains(FILES) && !is_told_not_to(&read("environ"))
}

/// Whether one of these sockets has NCCL's name: the last word of its line, the inode the one before it.
fn has_socket(table: &str, own: &[u64]) -> bool {
    let mut lines = table.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    lines.any(|words| {
        let is_own =
            words.get(6).and_then(|inode| inode.parse().ok()).is_some_and(|inode| own.contains(&inode));
        is_own && words.get(7).is_some_and(|name| name.contains(SOCKET))
    })
}

fn is_told_not_to(environment: &[u8]) -> bool {
    let mut values = environment.split(|byte| *byte == 0).filter_map(|one| one.strip_prefix(SWITCH));
    values.next().is_some_and(|value| !value.is_empty() && value != b"0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_of_nccl_s_is_known_by_its_name() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            ffff8881: 00000002 00000000 00000000 0002 01 41 @tmp/nccl-socket-0-1567894ec5c609a0@@@\n\
            ffff8882: 00000003 00000000 00000000 0001 03 42\n\
            ffff8883: 00000003 00000000 00000000 0001 03 43 /run/bus\n";
        assert!(has_socket(table, &[40, 41]));
        assert!(!has_socket(table, &[42, 43]) && !has_socket("", &[41]) && !has_socket("x", &[41]));
    }

    #[test]
    fn the_switch_counts_unless_it_is_zero() {
        assert!(is_told_not_to(b"A=1\0NCCL_P2P_DISABLE=1\0"));
        for environment in
            [&b""[..], b"NCCL_P2P_DISABLE=0\0", b"NCCL_P2P_DISABLE=\0", b"XNCCL_P2P_DISABLE=1\0"]
        {
            assert!(!is_told_not_to(environment));
        }
    }
}
