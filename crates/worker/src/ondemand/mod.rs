//! Requests that are done while contents of buffers are still on their way.
//!
//! ```text
//!   restore ──▶ program runs ────────────────────────────────────────────▶
//!   loading  ═══ buffers, those named by the next request first ═══╗
//!   requests   launch ─ copy ─ launch ─ launch … ┄ all that answers ┄┄╢ nothing under way ─▶ answers, journal dropped
//!                 │ journal                                         ║
//!                 └─ a fault: [`again`] ──▶ new worker: load all ── do the journal once more ─▶
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
mod base;
mod conversations;
mod deferred;
mod error;
mod journal;
mod mend;
mod needs;
mod order;
mod reach;
mod replace;
mod replay;
mod sharing;
mod uses;
mod writes;

use std::sync::Arc;

use rekindle_device::DEVICE_RANGE;
use rekindle_protocol::operation::{Asynchronous, Upload, name};
use rekindle_ring::Record;

pub(crate) use deferred::{DeferredQueue, Waiting};
pub(crate) use order::{NamedObjects, Object, Order, order, stream as named_stream};

pub(crate) use again::{ARGUMENT, do_again, main};
pub(crate) use conversations::{Conversations, Daemon, wait_for_close, wait_for_parting, wait_readable};
pub(crate) use error::OnDemandError;
pub(crate) use journal::Journal;
pub(crate) use mend::{Mend, MendTakeover, Told, take_up};
pub(crate) use needs::{Needs, TouchedMemory, needs};
pub(crate) use reach::{RequestReach, reach};
pub(crate) use replace::{go_on, restore};
pub(crate) use sharing::Sharing;
use sharing::only_waits;
pub(crate) use uses::{Spans, Uses};
pub(crate) use writes::{Writes, writes};

use crate::client::Client;
use crate::dispatch::Admission;
use crate::image::Progress;
use journal::{Entry, Flags};
use replay::perform;

/// What is known of requests that run ahead.
pub(crate) struct OnDemand {
    progress: Arc<Progress>,
    spans: Spans,
    aside: DeferredQueue,
    /// The request that was last seen to wait.
    waits: Option<u64>,
    /// A request waits for all memory, as all after it do then.
    held: bool,
    /// The parts that the request named which was looked at last.
    named: Vec<usize>,
}

impl OnDemand {
    pub(crate) fn new(progress: Arc<Progress>, spans: Spans) -> OnDemand {
        OnDemand {
            progress,
            spans,
            aside: DeferredQueue::default(),
            waits: None,
            held: false,
            named: Vec::new(),
        }
    }

    /// Whether the next request can be done now; if it is not to wait, it is in the journal.
    pub(crate) fn admit(
        &mut self,
        client: &Client,
        journal: &mut Journal,
        ring: usize,
        record: &Record<'_>,
    ) -> Admission {
        journal.next_admission();
        if self.held {
            return Admission::Wait;
        }
        let Record { opcode, ticket, body, trailer, .. } = *record;
        let (touched, noted) = match needs(client, opcode, body, trailer) {
            Needs::Look(touched) => (touched, false),
            Needs::Memory(touched) if !reaches_host(client, &touched) => (touched, true),
            _ => return self.hold(opcode),
        };
        let Some(order) = order(client, ring, opcode, body) else { return self.hold(opcode) };
        self.named = self.spans.parts(&touched);
        let missing: Vec<usize> =
            self.named.iter().copied().filter(|part| !self.progress.is_whole(*part)).collect();
        let late = !missing.is_empty() || self.aside.precedes(&order);
        let aside = order.stream.filter(|_| late && noted && order.can_wait);
        if late && aside.is_none() {
            if self.waits.replace(ticket) != Some(ticket) {
                self.progress.hurry(&missing);
            }
            return Admission::Wait;
        }
        if noted {
            let Some(staged) = staged(client, ring, record) else { return self.hold(opcode) };
            if !journal.has_room(body.len() + trailer.len() + staged.len()) {
                return self.hold(opcode);
            }
            let flags = if aside.is_some() { Flags::ASIDE } else { Flags::default() };
            let at =
                journal.admit(&Entry { ring, opcode, body, trailer, staged, staged_at: 0, ticket, flags });
            if let Some(stream) = aside {
                let (parts, named) = (self.named.clone(), order.named);
                self.aside.push(stream, Waiting { ticket, at, parts, named, hurried: false });
                return Admission::Aside;
            }
        }
        Admission::Now
    }

    /// Does what was put aside and need not wait any more.
    pub(crate) fn catch_up(&mut self, client: &mut Client, journal: &mut Journal) {
        let OnDemand { aside, progress, .. } = self;
        while !client.is_broken()
            && let Some(at) = aside.next(|part| progress.is_whole(part), |missing| progress.hurry(missing))
            && let Some(entry) = journal.at(at)
        {
            if client.waiting.transfers != 0 {
                client.close_batches();
            }
            match perform(client, &entry) {
                Ok(()) => journal.came_back(at),
                Err(code) => {
                    client.asynchronous_failure(name(entry.opcode).unwrap_or("a request"), code);
                    // What met a fault that is to be mended is done once more.
                    if !client.is_broken() {
                        journal.fail(at);
                    }
                }
            }
        }
    }

    pub(crate) fn has_aside(&self) -> bool {
        !self.aside.is_empty()
    }

    /// The parts that the request names which was admitted last, if that is to be done again after a fault.
    pub(crate) fn admitted(&self, journal: &Journal) -> &[usize] {
        if journal.has_admitted() { &self.named } else { &[] }
    }

    fn hold(&mut self, opcode: u32) -> Admission {
        log::debug!(
            "{} waits until all buffers are loaded; {} requests are put aside",
            name(opcode).unwrap_or("a request"),
            self.aside.len()
        );
        self.held = true;
        Admission::Wait
    }
}

/// Whether memory is named that is not the device's own.
fn reaches_host(client: &Client, touched: &TouchedMemory) -> bool {
    let later = client.mending.as_ref().map_or(&[][..], |mending| &mending.pinned_later);
    let pinned = |word: &u64| later.iter().any(|range| range.contains(word));
    touched.ranges.iter().any(|range| !DEVICE_RANGE.contains(&range.start))
        || touched.words.iter().any(pinned)
}

/// What an upload has brought along; nothing for other requests, `None` for one that is nonsense.
pub(crate) fn staged<'e>(client: &'e Client, ring: usize, record: &Record<'_>) -> Option<&'e [u8]> {
    if record.opcode != Upload::OPCODE {
        return Some(&[]);
    }
    let upload: Upload = postcard::from_bytes(record.body).ok()?;
    let last = upload.offset.checked_add(upload.bytes)?;
    let thread = client.threads.get(ring).filter(|_| last <= rekindle_ring::STAGING_BYTES as u64)?;
    // SAFETY: the range lies in the ring's staging area, and the client leaves the piece alone until it is complete.
    Some(unsafe {
        std::slice::from_raw_parts(
            thread.ring.staging_area().add(upload.offset as usize),
            upload.bytes as usize,
        )
    })
}
