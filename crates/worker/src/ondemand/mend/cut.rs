//! An epoch that begins while the GPU works: its base is enqueued behind that, and nobody waits.
//!
//! ```text
//!   requests   launch ─ launch ─┬─ launch ─ copy ─ launch ─ launch ─┬─ launch
//!   stream     ════ kernels ════╪═════════════╡ base ╞══ kernels ═══╪════════
//!   journal    epoch 1 ═════════╪═══════════════════════════════════╡
//!              epoch 2          └ the cut                 as copied ╞════════
//! ```
//!
//! The base holds what all has left that was asked for before the cut. Until it is copied the epoch before counts, and its journal
//! goes on. When it is copied, all before the cut has ended without a fault, and the program was told of what it waited for. Then
//! the new epoch's journal has what the other one has from the cut on, and counts. Where no epoch counts, the new one's journal
//! begins at the cut.
//!
//! What was asked for before is all of one stream. That goes on behind the copy, and so waits for nothing that it would not wait
//! for anyhow. Work of other streams would change memory before it is copied: it waits on the host, and if that takes too long the
//! copy is of no use. So a kernel that waits for what another stream does gets that.
//!
//! A stream may have a kernel that runs for as long as the program. So it is [marked first](super::probe).

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rekindle_device::{Event, Result, Stream};
use rekindle_protocol::fault;
use rekindle_protocol::mending::MendObstacle;
use rekindle_protocol::operation::{Asynchronous, EventRecord, PoolTrim, StreamDestroy, StreamWaitEvent};
use rekindle_ring::Record;

use super::mend_state::Next;
use super::pace::NEARLY_FULL;
use super::rows::copies;
use super::{Mend, Mending};
use crate::client::Client;
use crate::ondemand::order::{Name, order};

/// How often it is looked whether the GPU has come to the copy, while the program asks for nothing.
pub(super) const LOOK: Duration = Duration::from_millis(1);

/// What the next epoch is to begin from.
pub(super) struct Cut {
    next: Next,
    epoch: u64,
    image: PathBuf,
    /// The state was written: nothing of the journal before lasts.
    anew: bool,
    /// Where it is in the journal of the epoch that counted then, if one did.
    at: Option<usize>,
    device: usize,
    stream: Stream,
    /// Before the copy, and behind it.
    copying: Event,
    copied: Event,
    since: Instant,
    /// How long the program's requests waited for the cut to be made.
    took: Duration,
    /// Events were recorded before it whose time is to be kept.
    is_timed: bool,
    /// Since when a request waits for the copy.
    held: Option<Instant>,
    /// Its epoch is not to begin.
    is_void: bool,
}

impl Cut {
    /// Whether a request would change memory, or give some back, before it is copied.
    fn is_overtaken_by(&self, client: &Client, ring: usize, record: &Record<'_>) -> bool {
        match record.opcode {
            StreamDestroy::OPCODE | PoolTrim::OPCODE => true,
            EventRecord::OPCODE | StreamWaitEvent::OPCODE => false,
            opcode => {
                let stream = order(client, ring, opcode, record.body).and_then(|order| order.stream);
                stream.is_some_and(|stream| handle(client, stream.device, stream.name) != Some(self.stream))
            }
        }
    }

    /// Its epoch is not to begin. What is copied for that is of no use.
    pub(super) fn give_up(&mut self) {
        self.is_void = true;
    }

    fn is_copied(&self, client: &mut Client) -> Result<bool> {
        client.on(self.device)?.event_query(self.copied)
    }
}

/// A stream's handle; none if it is not made yet.
fn handle(client: &Client, device: u8, name: Name) -> Option<Stream> {
    match name {
        Name::Legacy(_) => Some(Stream::LEGACY),
        Name::Own(_, ring) => {
            let own = client.threads.get(ring)?.streams.get(usize::from(device))?.as_ref();
            own.map(|stream| stream.handle)
        }
        Name::Numbered(id) => client.streams.get(id).ok().map(|stream| stream.handle),
    }
}

impl Mend {
    /// Whether an epoch is to begin that does not count yet.
    pub(super) fn is_cut(&self) -> bool {
        self.cut.as_ref().is_some_and(|cut| !cut.is_void)
    }

    /// Whether a request may be done now.
    pub(crate) fn may_go_on(&mut self, client: &mut Client, ring: usize, record: &Record<'_>) -> bool {
        let Some(cut) = self.cut.as_mut().filter(|cut| !cut.is_void) else { return true };
        let fills_journal = self.is_on && self.keep.current().bytes() > NEARLY_FULL;
        // A fault is met by the request itself.
        let is_free = !fills_journal && !cut.is_overtaken_by(client, ring, record);
        if is_free || cut.is_copied(client) != Ok(false) {
            return true;
        }
        let now = Instant::now();
        let since = *cut.held.get_or_insert(now);
        let is_in_vain = self.pace.is_in_vain(since, now);
        if is_in_vain {
            self.give_up_cut(client);
        }
        is_in_vain
    }

    /// Has an epoch begin here behind what the GPU has to do, or at one of the next looks; false if that cannot be.
    pub(super) fn cut(&mut self, client: &mut Client, next: u64) -> bool {
        let now = Instant::now();
        if !self.may_cut || self.pace.holds() || !self.pace.may_cut(now) {
            return false;
        }
        let anew = self.needs_state();
        let Ok(Some(place)) = client.stream_to_follow(anew) else { return false };
        match self.goes_on(client, place) {
            Ok(true) => {}
            Ok(false) => return true,
            Err(code) => {
                client.note_fault(place.0, code);
                return false;
            }
        }
        let made = self.try_to_cut(client, place, (next, anew), now);
        match made {
            Ok(cut) => {
                self.cut = Some(Cut { took: now.elapsed(), ..cut });
                self.waited = None;
                if fault::point("mend-cut").is_err() {
                    self.give_up_cut(client);
                }
                true
            }
            Err(why) => {
                log::debug!("a program is to come to rest for a copy of its GPU memory: {}", why.why());
                self.pace.has_not_cut(now);
                false
            }
        }
    }

    fn try_to_cut(
        &mut self,
        client: &mut Client,
        (device, stream): (usize, Stream),
        (ticket, anew): (u64, bool),
        since: Instant,
    ) -> std::result::Result<Cut, MendObstacle> {
        let image = self.image_for(client, anew)?;
        let next = self.keep.prepare(client, &[device], !self.is_on)?;
        let at = self.is_on.then(|| self.keep.current().bytes());
        let unsaved = |_| MendObstacle::Unsaved;
        let (gpu, copies) = copies(client, device).map_err(unsaved)?;
        let copying = gpu.event_create(0).map_err(unsaved)?;
        let copied = gpu.event_create(0).map_err(unsaved)?;
        let enqueued = (|| {
            client.follow(device, stream, copies).map_err(unsaved)?;
            gpu.event_record(copying, copies, 0).map_err(unsaved)?;
            let epoch = self.keep.enqueue(client, &next, (self.is_on, ticket))?;
            gpu.event_record(copied, copies, 0).map_err(unsaved)?;
            client.go_on_behind(device, stream, (copies, copied)).map_err(unsaved)?;
            Ok(epoch)
        })();
        let epoch = enqueued.inspect_err(|_| {
            // What was enqueued is not to come to memory that is used for something else.
            if let Err(code) = gpu.stream_synchronize(copies) {
                client.note_fault(device, code);
            }
            for event in [copying, copied] {
                let _ = gpu.event_destroy(event);
            }
        })?;
        let is_timed = std::mem::take(&mut self.is_timed);
        Ok(Cut {
            next,
            epoch,
            image,
            anew,
            at,
            device,
            stream,
            copying,
            copied,
            since,
            took: Duration::ZERO,
            is_timed,
            held: None,
            is_void: false,
        })
    }

    /// As [`Cut::give_up`]; the epoch that counts, if one does, goes on. The next one is to begin at rest.
    fn give_up_cut(&mut self, client: &mut Client) {
        let Some(cut) = self.cut.as_mut().filter(|cut| !cut.is_void) else { return };
        cut.give_up();
        self.pace.has_not_cut(Instant::now());
        self.is_timed |= cut.is_timed;
        if !self.is_on {
            // Its journal is of no use either.
            self.lapse(client, MendObstacle::Beginning);
        }
    }

    /// Has the epoch count if its base is copied; false as long as that is under way. `next` is the ticket of the next request.
    pub(super) fn settle_cut(&mut self, client: &mut Client, next: u64) -> bool {
        let Some(cut) = &self.cut else { return true };
        match cut.is_copied(client) {
            Ok(true) => {}
            Ok(false) => return false,
            Err(code) => {
                client.note_fault(cut.device, code);
                self.give_up_cut(client);
            }
        }
        if fault::point("mend-copied").is_err() {
            self.give_up_cut(client);
        }
        // What was asked for before the cut has ended: the program is told before it is forgotten.
        while client.poll() {}
        if client.has_fault() {
            self.give_up_cut(client);
        }
        if client.is_broken() {
            return true;
        }
        let Some(cut) = self.cut.take() else { return true };
        let took = client.on(cut.device).and_then(|gpu| {
            let took = gpu.event_elapsed(cut.copying, cut.copied);
            gpu.event_destroy(cut.copying)?;
            gpu.event_destroy(cut.copied)?;
            took
        });
        if cut.is_void {
            return true;
        }
        let took = cut.took + Duration::from_secs_f32(took.unwrap_or_default().max(0.0) / 1e3);
        if !self.count_from(client, cut, (next, took)) {
            self.pace.has_not_cut(Instant::now());
        }
        true
    }

    /// False without memory for the journal: the epoch before goes on.
    fn count_from(&mut self, client: &mut Client, cut: Cut, (ticket, took): (u64, Duration)) -> bool {
        if let Some(at) = cut.at {
            let Some(moved) = self.keep.move_journal(&cut.next, (at, !cut.anew), ticket) else {
                self.is_timed |= cut.is_timed;
                return false;
            };
            client.move_told(moved);
        }
        self.keep.count(cut.next, cut.epoch, &cut.image, took);
        self.pace.has_begun_behind(cut.since, Instant::now(), took);
        if !self.is_on {
            (self.is_on, self.is_changed) = (true, false);
            client.mending = Some(Mending::new(Vec::new()));
        }
        self.is_used = self.keep.current().since_base() > 0;
        self.forget_states();
        true
    }

    /// Waits a while until nothing is copied for an epoch that is not to begin; else where it is copied to.
    pub(super) fn await_cut(&mut self, client: &mut Client) -> Option<usize> {
        let began = Instant::now();
        while self.cut.as_mut()?.is_copied(client) == Ok(false) {
            if self.pace.is_in_vain(began, Instant::now()) {
                return self.cut.as_ref().map(|cut| cut.next.slot());
            }
            std::thread::sleep(LOOK);
        }
        None
    }
}
