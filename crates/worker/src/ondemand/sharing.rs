//! Requests of a program that has buffers mapped which others have mapped too, and which nobody may change.
//!
//! ```text
//!   requests    launch ─ copy ─ launch ─ download │ launch ─ … ─ synchronise ─ …
//!   journal     base ═ requests ══════════════════╡ base ═ requests ════════════
//!                 └ copied on the GPU, 4 TB/s     └ at rest: what is answered now holds for ever
//! ```
//!
//! What the worker itself sees to be written (copies, fills, uploads) has memory of its own before that. A kernel that
//! writes to a shared buffer faults, at any time; the worker then starts again, with all memory the program's own, as it
//! was at the last base, and does the journal once more ([`super::again`]). What makes that right:
//!
//! - The program is given contents of memory only when all that it has asked for before has ended without a fault; then
//!   the journal begins anew, on a new base. So nothing that was given is computed a second time.
//! - That it has waited for something may be told again and again: it cannot tell the difference.
//! - A kernel that overflows a stack for which [less is held](crate::client) meanwhile faults too, and is mended so.
//! - What could not be done once more, or would change what a base is made of (allocations, modules, pinned memory,
//!   captures), ends the sharing before: all buffers get memory of their own, by a copy on the GPU.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use rekindle_cuda::{CUDA_ERROR_UNKNOWN, CuResult};
use rekindle_protocol::operation::*;
use rekindle_ring::Record;

use super::base::Base;
use super::journal::{Entry, Flags, Journal};
use super::needs::{Needs, needs};
use super::{reaches_host, staged};
use crate::client::Client;
use crate::dispatch::{Admission, DispatchError};

/// A base's memory is given back when it was not needed for so long.
const LINGER: Duration = Duration::from_millis(100);

/// Something that holds an image for as long as it lives.
type Lease = Arc<dyn Send + Sync>;

pub(crate) struct Sharing {
    /// Where the image lies, which a worker that starts again begins with.
    image: PathBuf,
    _lease: Lease,
    began: Instant,
    /// The device whose buffers are shared.
    device: usize,
    base: Option<Base>,
    /// The journal begins where the base was taken.
    is_based: bool,
    /// A request waits until nothing is under way.
    waits: bool,
    used: Instant,
    /// The device holds little for stacks, or was to.
    is_lean: bool,
    /// Who waits for the end of sharing.
    leaving: Vec<Sender<Result<(), DispatchError>>>,
}

impl Sharing {
    /// Of a program on whose GPU nothing is under way; none if it shares nothing.
    pub(crate) fn begin(client: &Client, image: &Path, lease: Lease) -> Option<Sharing> {
        let shares =
            |index: &usize| client.context(*index).is_ok_and(|context| context.heap.shared_bytes() > 0);
        let device = client.open_devices().find(shares)?;
        Some(Sharing {
            image: image.to_path_buf(),
            _lease: lease,
            began: Instant::now(),
            device,
            base: None,
            is_based: false,
            waits: false,
            used: Instant::now(),
            is_lean: false,
            leaving: Vec::new(),
        })
    }

    /// Whether the next request can be done; if it could be done once more, it is in the journal then.
    pub(crate) fn admit(
        &mut self,
        client: &mut Client,
        journal: &mut Journal,
        ring: usize,
        record: &Record<'_>,
    ) -> Admission {
        journal.next_admission();
        self.used = Instant::now();
        let admission = match self.leaving.is_empty() {
            true => self.judge(client, journal, ring, record),
            false => self.at_rest(client, Admission::Alone),
        };
        self.waits = admission == Admission::Wait;
        admission
    }

    fn judge(
        &mut self,
        client: &mut Client,
        journal: &mut Journal,
        ring: usize,
        record: &Record<'_>,
    ) -> Admission {
        let touched = match needs(client, record.opcode, record.body, record.trailer) {
            Needs::Look(_) => return Admission::Now,
            Needs::Memory(touched) if !reaches_host(client, &touched) => touched,
            _ if only_waits(record.opcode) => {
                return match self.at_rest(client, Admission::Now) {
                    // Text that kernels have printed is to be seen then.
                    Admission::Now if client.output.has_text() => self.begin_anew(client, journal),
                    other => other,
                };
            }
            _ if record.opcode == Download::OPCODE => {
                return match self.at_rest(client, Admission::Now) {
                    Admission::Now => self.begin_anew(client, journal),
                    other => other,
                };
            }
            _ => return self.at_rest(client, Admission::Alone),
        };
        let Some(brought) = staged(client, ring, record).map(<[u8]>::len) else {
            return self.at_rest(client, Admission::Alone);
        };
        let written = match client.context(self.device) {
            Ok(context) => context.heap.shared_in(&touched.written),
            Err(_) => Vec::new(),
        };
        let bytes = record.body.len() + record.trailer.len() + brought;
        let full = !journal.has_room(bytes);
        if full || !written.is_empty() {
            if self.at_rest(client, Admission::Now) == Admission::Wait {
                return Admission::Wait;
            }
            self.begin_anew(client, journal);
            if !journal.has_room(bytes) {
                return Admission::Alone;
            }
            if !written.is_empty() {
                self.forget_base(client);
                let made = client.bind(self.device).and_then(|()| {
                    let heap = client.heap(self.device)?;
                    written.iter().try_for_each(|at| heap.make_private(*at))
                });
                if let Err(code) = made {
                    log::warn!("a buffer that is to be written is shared and could not be copied: {code}");
                    return Admission::Alone;
                }
                if client.context(self.device).is_ok_and(|context| context.heap.shared_bytes() == 0) {
                    return Admission::Alone;
                }
            }
        }
        if let Err(code) = self.find_base(client) {
            log::warn!("nothing is shared any more, for faults could not be mended: {code}");
            return Admission::Alone;
        }
        let staged = staged(client, ring, record).unwrap_or_default();
        let Record { opcode, ticket, body, trailer, .. } = *record;
        let flags = Flags::default();
        journal.admit(&Entry { ring, opcode, body, trailer, staged, staged_at: 0, ticket, flags });
        Admission::Now
    }

    fn at_rest(&mut self, client: &mut Client, then: Admission) -> Admission {
        if client.is_at_rest() && !client.is_broken() { then } else { Admission::Wait }
    }

    /// What has ended is never done once more.
    fn begin_anew(&mut self, client: &mut Client, journal: &mut Journal) -> Admission {
        // Text of kernels comes with a synchronisation.
        let device = client.bind(self.device).and_then(|()| client.context(self.device));
        if let Err(code) = device.and_then(|context| context.device.synchronize()) {
            client.note_fault(self.device, code);
            return Admission::Wait;
        }
        journal.begin_anew();
        self.is_based = false;
        client.output.pass_on();
        Admission::Now
    }

    /// Sees to a base that the journal can begin with.
    fn find_base(&mut self, client: &mut Client) -> Result<(), CuResult> {
        if self.is_based {
            return Ok(());
        }
        let base = match self.base.take() {
            Some(base) => base,
            None => Base::new(client, self.device)?,
        };
        let taken = base.take();
        self.base = Some(base);
        self.is_based = taken.is_ok();
        taken
    }

    fn forget_base(&mut self, client: &mut Client) {
        if let Some(base) = self.base.take() {
            base.let_go(client);
        }
    }

    /// Gives all buffers memory of their own. Nothing is under way on the device.
    pub(crate) fn end(&mut self, client: &mut Client, journal: &mut Journal) -> Result<(), CuResult> {
        if self.begin_anew(client, journal) == Admission::Wait {
            return Err(client.broken().unwrap_or(CUDA_ERROR_UNKNOWN));
        }
        self.forget_base(client);
        client.grow_stacks(self.device)?;
        client.bind(self.device)?;
        let all = 0..u64::MAX;
        let heap = client.heap(self.device)?;
        let shared = heap.shared_in(std::slice::from_ref(&all));
        shared.into_iter().try_for_each(|at| heap.make_private(at))
    }

    /// What a worker that starts again needs: none if it could mend nothing.
    pub(super) fn mending(&self) -> Option<(PathBuf, &Base, Duration)> {
        let base = self.base.as_ref().filter(|_| self.is_based)?;
        Some((self.image.clone(), base, self.began.elapsed()))
    }

    /// A request waits until nothing is under way.
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// Sharing is to end as soon as nothing is under way.
    pub(crate) fn is_to_end(&self) -> bool {
        !self.leaving.is_empty()
    }

    pub(crate) fn leave(&mut self, answer: Sender<Result<(), DispatchError>>) {
        self.leaving.push(answer);
    }

    /// Tells those who wait how it ended.
    pub(crate) fn tell(&mut self, result: &Result<(), DispatchError>) {
        self.leaving.drain(..).for_each(|answer| drop(answer.send(result.clone())));
    }

    /// Gives back what nobody has needed for a while: a base's memory, and most of that for stacks. When to look again, if
    /// there is any.
    pub(crate) fn rest(&mut self, client: &mut Client, journal: &mut Journal) -> Option<Duration> {
        if self.base.is_none() && self.is_lean {
            return None;
        }
        if self.used.elapsed() < LINGER || self.at_rest(client, Admission::Now) == Admission::Wait {
            return Some(LINGER);
        }
        if self.begin_anew(client, journal) == Admission::Now {
            self.forget_base(client);
            // Once: who needs more after all is not to wait for it after each pause.
            if !std::mem::replace(&mut self.is_lean, true)
                && let Err(code) = client.shrink_stacks(self.device)
            {
                log::warn!("device {} holds as much as before for stacks: {code}", self.device);
            }
        }
        None
    }
}

/// Requests that change nothing, and are answered when the GPU has come so far.
pub(super) fn only_waits(opcode: u32) -> bool {
    [
        ContextSynchronize::OPCODE,
        StreamQuery::OPCODE,
        StreamSynchronize::OPCODE,
        EventQuery::OPCODE,
        EventSynchronize::OPCODE,
        ContextAwait::OPCODE,
        StreamAwait::OPCODE,
        EventAwait::OPCODE,
        StreamRoom::OPCODE,
        EventElapsed::OPCODE,
        MemoryRange::OPCODE,
        CaptureStatus::OPCODE,
        GraphNodes::OPCODE,
    ]
    .contains(&opcode)
}
