//! What the program is told: noted in the journal before that can be seen.
//!
//! Of an answer that it has waited for it is noted before which request it came: what the program asks for from then on may come
//! after that, in whichever stream and on whichever GPU; what it had asked for by then cannot. And what it is given of GPU memory is
//! noted with a hash.
//!
//! A copy to the host that was noted is not done again in the place of another worker: the bytes are there, and the program may
//! have put others over them. What it was given is compared with what comes out then.

use rekindle_device::{Event, Result};
use rekindle_protocol::operation::{Copy, Download, Origin};

use crate::client::Client;
use crate::ondemand::journal::Mark;

/// So much of what is given is hashed.
pub(super) const MOST_HASHED: u64 = 64 << 10;

/// What the program is still to be told.
#[derive(Default)]
pub(crate) struct Told {
    host: Vec<Host>,
    staged: Vec<Staged>,
    /// Rings whose requests wait for an answer.
    answers: Vec<(usize, Mark)>,
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

impl Told {
    pub(super) fn expect_answer(&mut self, ring: usize, mark: Mark) {
        self.answers.push((ring, mark));
    }

    /// Whether a copy may still write there.
    pub(super) fn comes_to(&self, address: u64, bytes: u64) -> bool {
        self.host.iter().any(|host| host.address < address + bytes && address < host.address + host.bytes)
    }
}

impl Client {
    /// A copy to pinned memory was enqueued, which is to be noted.
    pub(super) fn expect_brought(&mut self, ring: usize, copy: &Copy, mark: Mark) -> Result<()> {
        let (device, stream) = self.enter(Origin { ring }, copy.device, copy.stream)?;
        let event = self.record(device, stream)?;
        self.told.host.push(Host { device, event, address: copy.to, bytes: copy.bytes, mark });
        Ok(())
    }

    /// As [`Client::expect_brought`], of a copy to the ring's staging area.
    pub(super) fn expect_staged(&mut self, ring: usize, download: &Download, mark: Mark) {
        let Some(thread) = self.threads.get(ring) else { return };
        let address = thread.ring.staging_area() as u64 + download.offset;
        self.told.staged.push(Staged { ring, end: download.end, address, bytes: download.bytes, mark });
    }

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
            copy.mark.told();
            // SAFETY: a piece of the ring's staging area, which its thread leaves alone until it is told of it.
            unsafe { note(copy.mark, copy.address, copy.bytes) };
            false
        });
    }

    /// Notes that a ring's request has come so far that it is answered; before it is.
    pub(crate) fn note_answer(&mut self, ring: usize) {
        self.told.answers.extract_if(.., |(of, _)| *of == ring).for_each(|(_, mark)| mark.told());
    }

    /// A ring's request is answered before its time: its thread asks again.
    pub(crate) fn forget_answer(&mut self, ring: usize) {
        self.told.answers.retain(|(of, _)| *of != ring);
    }

    /// What was not noted yet is noted elsewhere from now on, or nowhere: it has ended, and belongs to an epoch before.
    pub(super) fn move_told(&mut self, place_of: impl Fn(Mark) -> Option<Mark>) {
        let moved = |mark: &mut Mark| match place_of(*mark) {
            Some(place) => {
                *mark = place;
                true
            }
            None => false,
        };
        self.told.answers.retain_mut(|(_, mark)| moved(mark));
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
unsafe fn note(mark: Mark, address: u64, bytes: u64) {
    let length = bytes.min(MOST_HASHED) as usize;
    // SAFETY: as the caller promises.
    let hash = hash(unsafe { std::slice::from_raw_parts(address as *const u8, length) });
    mark.brought(hash);
}

pub(super) fn hash(bytes: &[u8]) -> u64 {
    let hash = blake3::hash(bytes);
    let word = hash.as_bytes().first_chunk().copied().unwrap_or_default();
    u64::from_le_bytes(word)
}
