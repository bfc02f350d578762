//! Requests that are done while contents of buffers are still on their way.
//!
//! ```text
//!   restore ──▶ program runs ────────────────────────────────────────────▶
//!   loading  ═══ buffers, those named by the next request first ═══╗
//!   requests   launch ─ copy ─ launch ─ launch … ┄ all that answers ┄┄╢ nothing under way ─▶ answers, log dropped
//!                 │ log                                             ║
//!                 └─ a fault: [`again`] ──▶ new worker: load all ── do the log once more ─▶
//! ```
//!
//! What makes it right whatever a kernel reads:
//!
//! - Memory is mapped for the program when its contents are there, so a kernel that comes to other memory faults.
//! - Until all is there and everything that was done has ended without a fault, the program is given nothing that
//!   depends on it: no contents, no answer that tells how far the GPU has come, no text that a kernel printed. So
//!   whatever is done once more is done for the first time as far as the program can tell, and on the same contents.
//! - Pinned memory, by which both sides could see each other's work, is mapped for the GPU only then.
//! - Requests that could not be done once more with the same effect wait.

mod again;
mod conversations;
mod journal;
mod needs;
mod replay;
mod uses;

use std::sync::Arc;

use rekindle_device::DEVICE_RANGE;
use rekindle_protocol::operation::{Asynchronous, Upload, name};
use rekindle_ring::Record;

pub(crate) use again::{ARGUMENT, do_again, main};
pub(crate) use conversations::{Conversations, Daemon, wait_for_parting, wait_readable};
pub(crate) use uses::{Spans, Uses};

use crate::engine::Engine;
use crate::image::Progress;
use journal::Log;
use needs::{Needs, Touched, needs};

/// What is known of requests that run ahead.
pub(crate) struct OnDemand {
    progress: Arc<Progress>,
    spans: Spans,
    log: Log,
    /// The request that was last seen to wait.
    waits: Option<u64>,
    /// A request waits for all memory, as all after it do then.
    held: bool,
    /// The request that was admitted last is in the log.
    logged: bool,
    /// The parts that the request named which was looked at last.
    named: Vec<usize>,
}

impl OnDemand {
    pub(crate) fn new(progress: Arc<Progress>, spans: Spans) -> OnDemand {
        OnDemand {
            progress,
            spans,
            log: Log::default(),
            waits: None,
            held: false,
            logged: false,
            named: Vec::new(),
        }
    }

    /// Whether the next request can be done now; if so it is in the log.
    pub(crate) fn admits(&mut self, engine: &Engine, ring: usize, record: &Record<'_>) -> bool {
        if self.held {
            return false;
        }
        let (touched, logged) = match needs(engine, record.opcode, record.body, record.trailer) {
            Needs::Look(touched) => (touched, false),
            Needs::Memory(touched) if !reaches_host(engine, &touched) => (touched, true),
            _ => return self.hold(record.opcode),
        };
        self.named = self.spans.parts(&touched);
        let missing: Vec<usize> =
            self.named.iter().copied().filter(|part| !self.progress.is_whole(*part)).collect();
        if !missing.is_empty() {
            if self.waits.replace(record.ticket) != Some(record.ticket) {
                self.progress.hurry(&missing);
            }
            return false;
        }
        self.logged = logged;
        if !logged {
            return true;
        }
        let Some(staged) = staged(engine, ring, record) else { return self.hold(record.opcode) };
        if !self.log.has_room(record.body.len() + record.trailer.len() + staged.len()) {
            return self.hold(record.opcode);
        }
        self.log.push(ring, record.opcode, record.body, record.trailer, staged);
        true
    }

    /// The parts that the request names which was admitted last, if that is to be done again after a fault.
    pub(crate) fn admitted(&self) -> &[usize] {
        if self.logged { &self.named } else { &[] }
    }

    fn hold(&mut self, opcode: u32) -> bool {
        log::debug!("{} waits until all buffers are loaded", name(opcode).unwrap_or("a request"));
        self.held = true;
        false
    }

    /// The request that was admitted last has failed, and had no effect.
    pub(crate) fn failed(&mut self) {
        if std::mem::take(&mut self.logged) {
            self.log.pop();
        }
    }

    /// The request that was admitted last was not done.
    pub(crate) fn put_back(&mut self) {
        if std::mem::take(&mut self.logged) {
            self.log.put_back();
        }
    }
}

/// Whether memory is named that is not the device's own.
fn reaches_host(engine: &Engine, touched: &Touched) -> bool {
    let pinned = |word: &u64| engine.pinned_later.iter().any(|range| range.contains(word));
    touched.ranges.iter().any(|range| !DEVICE_RANGE.contains(&range.start))
        || touched.words.iter().any(pinned)
}

/// What an upload has brought along; nothing for other requests, `None` for one that is nonsense.
fn staged<'e>(engine: &'e Engine, ring: usize, record: &Record<'_>) -> Option<&'e [u8]> {
    if record.opcode != Upload::OPCODE {
        return Some(&[]);
    }
    let upload: Upload = postcard::from_bytes(record.body).ok()?;
    let last = upload.offset.checked_add(upload.bytes)?;
    let thread = engine.threads.get(ring).filter(|_| last <= rekindle_ring::STAGING_BYTES as u64)?;
    // SAFETY: the range lies in the ring's staging area, and the client leaves the piece alone until it is complete.
    Some(unsafe {
        std::slice::from_raw_parts(
            thread.ring.staging_area().add(upload.offset as usize),
            upload.bytes as usize,
        )
    })
}
