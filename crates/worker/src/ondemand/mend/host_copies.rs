//! What the program is given of GPU memory: noted in the journal before it can be seen, with a hash of it.
//!
//! A copy to the host that was noted is not done again in the place of another worker: the bytes are there, and the program may
//! have put others over them. What it was given is compared with what comes out then.

use rekindle_device::Event;

use crate::client::Client;
use crate::ondemand::journal::Journal;

/// So much of what is given is hashed.
pub(super) const MOST_HASHED: u64 = 64 << 10;

/// Copies to the host whose end was not seen yet.
#[derive(Default)]
pub(crate) struct HostCopies {
    host: Vec<Host>,
    staged: Vec<Staged>,
}

struct Host {
    device: usize,
    event: Event,
    address: u64,
    bytes: u64,
    mark: Mark,
}

struct Staged {
    ring: usize,
    end: u64,
    address: u64,
    bytes: u64,
    mark: Mark,
}

/// Where it is noted.
#[derive(Clone, Copy)]
pub(super) struct Mark(pub *mut u8);

// SAFETY: points into the mapping of a journal, which is there as long as marks of it are.
unsafe impl Send for Mark {}

impl HostCopies {
    pub(super) fn expect_host(&mut self, device: usize, event: Event, address: u64, bytes: u64, mark: Mark) {
        self.host.push(Host { device, event, address, bytes, mark });
    }

    pub(super) fn expect_staged(&mut self, ring: usize, end: u64, address: u64, bytes: u64, mark: Mark) {
        self.staged.push(Staged { ring, end, address, bytes, mark });
    }

    /// Whether a copy may still write there.
    pub(super) fn comes_to(&self, address: u64, bytes: u64) -> bool {
        self.host.iter().any(|host| host.address < address + bytes && address < host.address + host.bytes)
    }
}

impl Client {
    /// Notes which copies to pinned memory have ended; before the program is told how far the GPU has come.
    pub(crate) fn note_told(&mut self) {
        if self.told.host.is_empty() {
            return;
        }
        let mut host = std::mem::take(&mut self.told.host);
        host.retain(|copy| {
            let ended = self.on(copy.device).and_then(|device| device.event_query(copy.event));
            if ended != Ok(true) {
                return true;
            }
            self.give_event(copy.device, copy.event);
            // SAFETY: pinned memory of the program, which is mapped here; nobody writes there who keeps to CUDA's rules.
            unsafe { note(copy.mark, copy.address, copy.bytes) };
            false
        });
        self.told.host = host;
    }

    /// Notes which copies to a ring's staging area have ended; before the program is told that they have.
    pub(crate) fn note_staged(&mut self, ring: usize, end: u64) {
        self.told.staged.retain(|copy| {
            if copy.ring != ring || copy.end > end {
                return true;
            }
            // SAFETY: a piece of the ring's staging area, which its thread leaves alone until it is told of it.
            unsafe { note(copy.mark, copy.address, copy.bytes) };
            false
        });
    }

    /// What was not noted yet is noted elsewhere from now on, or nowhere: it has ended, and belongs to an epoch before.
    pub(super) fn move_told(&mut self, place_of: impl Fn(*mut u8) -> Option<*mut u8>) {
        let moved = |mark: &mut Mark| match place_of(mark.0) {
            Some(place) => {
                *mark = Mark(place);
                true
            }
            None => false,
        };
        self.told.staged.retain_mut(|copy| moved(&mut copy.mark));
        let ended: Vec<Host> = self.told.host.extract_if(.., |copy| !moved(&mut copy.mark)).collect();
        ended.into_iter().for_each(|copy| self.give_event(copy.device, copy.event));
    }

    /// What was not noted yet is noted nowhere.
    pub(super) fn forget_told(&mut self) {
        let told = std::mem::take(&mut self.told);
        told.host.into_iter().for_each(|copy| self.give_event(copy.device, copy.event));
    }
}

/// # Safety
/// The bytes are mapped, and nobody writes to them meanwhile.
pub(super) unsafe fn note(mark: Mark, address: u64, bytes: u64) {
    let length = bytes.min(MOST_HASHED) as usize;
    // SAFETY: as the caller promises.
    let hash = hash(unsafe { std::slice::from_raw_parts(address as *const u8, length) });
    Journal::note_told(mark.0, hash);
}

pub(super) fn hash(bytes: &[u8]) -> u64 {
    let hash = blake3::hash(bytes);
    let word = hash.as_bytes().first_chunk().copied().unwrap_or_default();
    u64::from_le_bytes(word)
}
