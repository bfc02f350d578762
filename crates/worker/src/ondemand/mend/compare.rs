//! What the program was told, beside what comes out when its requests are done once more.

use std::sync::Arc;

use rekindle_cuda::CUDA_ERROR_OUT_OF_MEMORY;
use rekindle_device::{Device, Result};
use rekindle_protocol::mending::How;
use rekindle_protocol::operation::{Asynchronous, Copy, Download};

use super::told::{MOST_HASHED, hash};
use crate::client::Client;
use crate::ondemand::journal::Entry;

/// What the program was told, and where it comes to now.
pub(super) struct Compared {
    pub at: u64,
    pub bytes: u64,
    pub expected: u64,
    pub what: &'static str,
}

/// Memory that both sides can reach: the journal's, or some to compare with.
pub(super) struct HostMemory {
    device: Arc<dyn Device>,
    pub address: u64,
    bytes: u64,
    is_own: bool,
}

/// How many bytes of a copy to the host are compared.
pub(super) fn told_bytes(entry: &Entry<'_>) -> Option<u64> {
    let bytes = match entry.opcode {
        Copy::OPCODE => postcard::from_bytes::<Copy>(entry.body).ok()?.bytes,
        Download::OPCODE => postcard::from_bytes::<Download>(entry.body).ok()?.bytes,
        _ => return None,
    };
    Some(bytes.min(MOST_HASHED))
}

/// Whether the program was told what comes out now.
pub(super) fn check(compared: &[Compared], how: How) -> std::result::Result<(), String> {
    let differs = |one: &&Compared| {
        // SAFETY: lies in the scratch memory, to which nothing is copied any more.
        let bytes = unsafe { std::slice::from_raw_parts(one.at as *const u8, one.bytes as usize) };
        hash(bytes) != one.expected
    };
    let others: Vec<&Compared> = compared.iter().filter(differs).collect();
    let Some(first) = others.first() else { return Ok(()) };
    let found = format!(
        "{} of {} answers that the program was given came out otherwise when its requests were done once more (the first one {} of \
         {} bytes)",
        others.len(),
        compared.len(),
        first.what,
        first.bytes
    );
    match how {
        How::Strict => Err(format!("{found}; run it with --mend=loose if it may go on all the same")),
        How::Loose => {
            log::warn!("{found}; it goes on all the same");
            Ok(())
        }
    }
}

impl HostMemory {
    pub(super) fn register(
        client: &Client,
        index: usize,
        (address, bytes): (u64, u64),
        is_own: bool,
    ) -> Result<HostMemory> {
        let device = client.context(index)?.device.clone();
        device.host_register(address, bytes)?;
        Ok(HostMemory { device, address, bytes, is_own })
    }

    pub(super) fn make(client: &Client, index: usize, bytes: u64) -> Result<HostMemory> {
        let bytes = bytes.next_multiple_of(4096);
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory at an address of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes as usize, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        HostMemory::register(client, index, (base as u64, bytes), true).inspect_err(|_| {
            // SAFETY: mapped above, and known to nobody.
            unsafe { libc::munmap(base, bytes as usize) };
        })
    }

    /// Nothing is copied from or to it any more.
    pub(super) fn let_go(self) {
        if let Err(code) = self.device.host_unregister(self.address) {
            log::warn!("memory that requests were done once more from stays pinned: {code}");
        }
        if self.is_own {
            // SAFETY: mapped by `make`, and nothing borrows from it.
            unsafe { libc::munmap(self.address as *mut libc::c_void, self.bytes as usize) };
        }
    }
}
