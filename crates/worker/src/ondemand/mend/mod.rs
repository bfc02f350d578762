//! Requests of a program that is not to see the loss of its worker.
//!
//! ```text
//!   requests   launch ─ copy ─ launch ─ wait │ launch ─ … ─ download │ allocate ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ │ launch
//!   journal    epoch 1 ══════════════════════╡ epoch 2 ═════════════ ✕ nothing could be mended ╞ epoch 3
//!              └ base: a copy of memory      └ base: at rest                                   └ state, base
//! ```
//!
//! An epoch begins at rest: all that was asked for has ended well; or [behind work](cut) that the GPU has. It has a base, which is what memory held then, the state of
//! all else ([`crate::image::save_bare`]), and the journal of what was asked for since. Another worker builds that state, puts
//! the base back and does the journal once more ([`replay`]). What makes that right:
//!
//! - The base is of all GPUs that the program has a context on, at a moment when none has anything to do, and the journal is one, in
//!   the order of requests: what a kernel or a copy changes on another GPU is in both.
//! - A request is in the journal before it is done, and the program is told of it after that.
//! - What the program was given of memory meanwhile is noted with a hash ([`told`]); if something else comes out, it does not go
//!   on as if nothing had happened, unless it wants to.
//! - What a copy has brought to the host before the program was told of it is not brought there again.
//! - What could not be done once more, or changes what a base is made of, ends the epoch. The next one begins when the program is
//!   at rest for a moment.
//!
//! A context that a fault has ended is mended in the same way: the worker ends. If the fault comes once more, it is the program's
//! own, and it is told.

mod again;
mod allocation;
mod base;
mod base_memory;
mod compare;
mod cut;
mod kind;
mod mend_state;
mod pace;
mod probe;
mod replay;
mod rows;
mod told;

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rekindle_protocol::mending::MendObstacle;
use rekindle_protocol::operation::{
    Asynchronous, CaptureStatus, Copy, EventRecord, GraphLaunch, GraphNodes, Id, MemoryRange, ReplyHead,
    Synchronous,
};
use rekindle_protocol::{fault, tuning};
use rekindle_ring::Record;

use super::journal::{Entry, Flags, Journal, Mark, unmarked};
use super::{only_waits, staged};
use crate::client::{Client, Mending};
use crate::image;
use allocation::PlacedAllocation;
use cut::Cut;
use kind::{Kind, is_never, kind};
use mend_state::MendState;
use pace::{Due, Epoch, EpochPacing, NEARLY_FULL};
use probe::Probe;
pub(crate) use replay::{MendTakeover, take_up};
pub(crate) use told::Told;

/// What lasts of an epoch's journal is written into the state when it has grown to this.
const MOST_LASTING: usize = 1 << 20;

pub(crate) struct Mend {
    keep: MendState,
    /// Where the state is written: a store, and the beginning of names there.
    store: PathBuf,
    name: String,
    /// States that were written.
    states: u64,
    /// An epoch counts.
    is_on: bool,
    /// What the state is of has changed.
    is_changed: bool,
    /// Its own work has ended the program's context.
    has_failed: bool,
    /// What the request is that was admitted last.
    admitted: Kind,
    /// Something is in the journal.
    is_used: bool,
    /// The time of an event is to be kept: that is in the state alone.
    is_timed: bool,
    /// What launches of graphs are, as long as nothing changes graphs or pinned memory.
    graphs: HashMap<Id, Kind>,
    /// The wait that is the journal's last entry.
    waited: Option<(u32, Vec<u8>)>,
    pace: EpochPacing,
    /// Where the next epoch is to begin, while its base is on its way.
    cut: Option<Cut>,
    /// A mark in the stream that its base is to come behind.
    probe: Option<Probe>,
    /// Epochs may begin while the GPU works.
    may_cut: bool,
}

/// The program is told of what a request has waited for, now or once it is answered.
fn is_told(client: &mut Client, ring: usize, mark: Mark, answer: Option<&[u8]>) {
    match answer {
        Some(_) => mark.told(),
        None => client.told.expect_answer(ring, mark),
    }
}

/// Whether an answer tells that the GPU has come so far: `None` is yet to come.
fn tells(opcode: u32, answer: Option<&[u8]>) -> bool {
    let Some((head, value)) = answer.and_then(|answer| answer.split_at_checked(ReplyHead::BYTES)) else {
        return true;
    };
    let head = head.try_into().map(ReplyHead::decode);
    let looks = [MemoryRange::OPCODE, CaptureStatus::OPCODE, GraphNodes::OPCODE].contains(&opcode);
    // Those that are answered with a truth are done if it is one.
    !looks && head.is_ok_and(|head| head.status == 0) && value != [0]
}

impl Mend {
    pub(crate) fn new(store: PathBuf, name: String) -> std::io::Result<Mend> {
        Ok(Mend::with(MendState::new()?, store, name))
    }

    fn with(keep: MendState, store: PathBuf, name: String) -> Mend {
        Mend {
            keep,
            store,
            name,
            states: 0,
            is_on: false,
            is_changed: true,
            has_failed: false,
            admitted: Kind::Look,
            is_used: false,
            is_timed: false,
            graphs: HashMap::new(),
            waited: None,
            pace: EpochPacing::new(Instant::now()),
            cut: None,
            probe: None,
            may_cut: !tuning::is(tuning::BEHIND, "off"),
        }
    }

    /// From now on the daemon at the other end holds what is kept.
    pub(crate) fn be_held_by(&mut self, daemon: UnixStream, client: &UnixStream) {
        self.keep.be_held_by(daemon, client);
    }

    /// Who holds what is kept.
    pub(crate) fn holder(&self) -> Option<&UnixStream> {
        self.keep.holder()
    }

    /// The store where states are written, and the beginning of their names.
    pub(crate) fn place(&self) -> (&Path, &str) {
        (&self.store, &self.name)
    }

    /// What is done of requests, if it could be done once more.
    pub(crate) fn journal(&mut self) -> Option<&mut Journal> {
        self.notes().then(|| self.keep.journal())
    }

    /// Whether requests are noted.
    fn notes(&self) -> bool {
        self.is_on || self.is_cut()
    }

    /// Whether the loss of the context would be mended.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// The program waits until it is at rest.
    pub(crate) fn holds(&self) -> bool {
        self.pace.holds()
    }

    pub(crate) fn note_attached(&self, attached: bool) {
        self.keep.ledger.note_attached(attached);
    }

    /// Sees to it that the next request, which is done now, could be done once more; or to it that nobody thinks so.
    pub(crate) fn admit(&mut self, client: &mut Client, ring: usize, record: &Record<'_>) {
        if !self.notes() {
            // What is asked for while there is no epoch belongs to the state of the next one, as all else.
            if is_never(record.opcode) {
                self.pace.is_disturbed(Instant::now());
                self.is_changed = true;
            }
            return;
        }
        self.keep.journal().next_admission();
        self.admitted = self.kind(client, record);
        let noted = match self.admitted {
            Kind::Look => return,
            Kind::Never(lapse) => Err(lapse),
            Kind::Wait | Kind::Free => {
                let count = client.threads.get(ring).map_or(0, |thread| thread.ring.header().reply.count());
                self.note(ring, record, &unmarked(count.into()), &[], Flags::WAIT)
            }
            Kind::Allocate => self.note(ring, record, &[0; PlacedAllocation::BYTES], &[], Flags::default()),
            Kind::Again => match staged(client, ring, record) {
                Some(_) if self.keeps_time(client, record) => {
                    self.is_timed = true;
                    self.note(ring, record, record.trailer, &[], Flags::default())
                }
                Some(bytes) => self.note(ring, record, record.trailer, bytes, Flags::default()),
                None => Err(MendObstacle::Changed),
            },
            Kind::From { address, bytes } => {
                // SAFETY: pinned memory of the program, which is mapped here as far as it goes; a program that writes there
                // before its copy has ended gets one state of it or another.
                let source = unsafe { std::slice::from_raw_parts(address as *const u8, bytes as usize) };
                self.note(ring, record, record.trailer, source, Flags::default())
            }
            Kind::To | Kind::Staged => self.note(ring, record, &unmarked(0), &[], Flags::default()),
        };
        match noted {
            Ok(()) => self.note_journal(),
            Err(lapse) => self.lapse(client, lapse),
        }
    }

    fn kind(&mut self, client: &Client, record: &Record<'_>) -> Kind {
        if record.opcode != GraphLaunch::OPCODE {
            return kind(client, record);
        }
        let Ok(GraphLaunch { exec, .. }) = postcard::from_bytes(record.body) else {
            return Kind::Never(MendObstacle::Changed);
        };
        *self.graphs.entry(exec).or_insert_with(|| kind(client, record))
    }

    /// Whether this records when an event happened.
    fn keeps_time(&self, client: &Client, record: &Record<'_>) -> bool {
        record.opcode == EventRecord::OPCODE
            && postcard::from_bytes::<EventRecord>(record.body)
                .is_ok_and(|record| client.events.get(record.event).is_ok_and(|event| event.keeps_time()))
    }

    fn note(
        &mut self,
        ring: usize,
        record: &Record<'_>,
        trailer: &[u8],
        staged: &[u8],
        flags: Flags,
    ) -> Result<(), MendObstacle> {
        let Record { opcode, ticket, body, .. } = *record;
        let journal = self.keep.journal();
        if !journal.has_room(body.len() + trailer.len() + staged.len()) {
            return Err(MendObstacle::Full);
        }
        journal.admit(&Entry { ring, opcode, body, trailer, staged, staged_at: 0, ticket, flags });
        if !only_waits(opcode) {
            self.is_used = true;
            self.waited = None;
        }
        Ok(())
    }

    /// The request that was admitted last is done, with this answer if it has one by now.
    pub(crate) fn done(
        &mut self,
        client: &mut Client,
        ring: usize,
        record: &Record<'_>,
        answer: Option<&[u8]>,
    ) {
        if !self.notes() {
            return;
        }
        if matches!(self.admitted, Kind::Look | Kind::Again) {
            return;
        }
        let Some(at) = self.keep.journal().admitted() else { return };
        let mark = self.keep.journal().mark(at);
        match self.admitted {
            Kind::Wait => {
                let wait = (record.opcode, record.body.to_vec());
                // One that tells nothing new orders nothing.
                let orders =
                    self.is_used && tells(record.opcode, answer) && self.waited.as_ref() != Some(&wait);
                match answer.is_none() || orders {
                    true => {
                        (self.waited, self.is_used) = (Some(wait), true);
                        is_told(client, ring, mark, answer);
                    }
                    false => {
                        self.keep.journal().put_back_admitted();
                        self.note_journal();
                    }
                }
            }
            Kind::Free => is_told(client, ring, mark, answer),
            Kind::Allocate => {
                if let Some(given) = PlacedAllocation::of(client, record.body, answer) {
                    self.keep.journal().set_trailer(at, &given.encode());
                }
            }
            Kind::To => {
                let copy = postcard::from_bytes::<Copy>(record.body);
                if copy.is_ok_and(|copy| client.expect_brought(ring, &copy, mark).is_err()) {
                    self.lapse(client, MendObstacle::HostMemory);
                }
            }
            Kind::Staged => {
                if let Ok(download) = postcard::from_bytes(record.body) {
                    client.expect_staged(ring, &download, mark);
                }
            }
            _ => {}
        }
    }

    fn note_journal(&self) {
        if !self.is_on {
            return;
        }
        self.keep.ledger.note_journal(self.keep.current().since_base() as u64);
    }

    /// Gives the GPU memory of bases back, for the program needs it; false if there is none.
    pub(crate) fn give_way(&mut self, client: &mut Client) -> bool {
        if !self.keep.has_device_memory() {
            return false;
        }
        self.lapse(client, MendObstacle::NoRoom);
        let copying = self.await_cut(client);
        self.keep.give_back(copying);
        self.pace.lacks_room(Instant::now());
        true
    }

    /// From now on nothing could be mended.
    fn lapse(&mut self, client: &mut Client, why: MendObstacle) {
        self.keep.ledger.lapse(why);
        client.forget_told();
        client.mending = None;
        (self.is_on, self.is_changed, self.is_used, self.waited) = (false, true, false, None);
        self.cut.iter_mut().for_each(Cut::give_up);
        self.forget_probe(client);
        self.graphs.clear();
        self.pace.has_ended(Instant::now());
    }

    /// Begins an epoch if that is due and the program is at rest, and holds it if it has to come to rest for that. `next` is the
    /// ticket of its next request. When to look again.
    pub(crate) fn look(&mut self, client: &mut Client, next: u64, is_quiet: bool) -> Option<Duration> {
        if self.has_failed || self.holder().is_none() || client.is_broken() {
            return None;
        }
        if !self.settle_cut(client, next) {
            self.pace.let_go();
            return Some(cut::LOOK);
        }
        // A fault is met by whoever looks next.
        let _ = self.watch_probe(client);
        if client.is_broken() {
            return None;
        }
        let now = Instant::now();
        let (is_used, journal_bytes) = (self.is_used, self.keep.current().bytes());
        let epoch = self.is_on.then_some(Epoch { is_used, journal_bytes });
        let due = self.pace.due(epoch, is_quiet, now);
        if due == Due::No {
            self.pace.let_go();
        } else if client.obstacle().is_none() && client.is_at_rest() && !client.is_broken() {
            self.begin(client, next);
        } else if due == Due::Now
            && epoch.is_none_or(|epoch| epoch.journal_bytes <= NEARLY_FULL)
            && !client.is_broken()
            && self.cut(client, next)
        {
            self.pace.let_go();
        } else {
            let may_hold = client.recordings.is_empty() && !client.work_needs_program();
            self.pace.hold(due, may_hold, now);
            if !self.is_on && client.has_others() {
                self.keep.ledger.lapse(MendObstacle::Others);
            }
        }
        let goes_by_itself = !self.is_on || self.is_used;
        goes_by_itself.then(|| self.pace.again())
    }

    fn begin(&mut self, client: &mut Client, next: u64) {
        let began = Instant::now();
        self.forget_probe(client);
        let begun = self.try_to_begin(client, next, began);
        self.pace.has_tried(began, Instant::now(), begun.is_ok());
        match begun {
            Ok(()) => {
                (self.is_on, self.is_changed, self.is_used) = (true, false, false);
                (self.is_timed, self.waited) = (false, None);
                client.forget_told();
                client.mending = Some(Mending::new(Vec::new()));
                self.forget_states();
            }
            Err(why) => {
                if self.keep.standing().why != Some(why) {
                    log::warn!("the loss of this worker would not be mended: {}", why.why());
                }
                self.lapse(client, why);
            }
        }
    }

    fn try_to_begin(&mut self, client: &mut Client, next: u64, began: Instant) -> Result<(), MendObstacle> {
        let devices: Vec<usize> = client.open_devices().collect();
        let failed = |_| MendObstacle::Unsaved;
        fault::point("mend-taking").map_err(failed)?;
        let anew = self.needs_state();
        let image = self.image_for(client, anew)?;
        let prepared = self.keep.prepare(client, &devices, true)?;
        fault::point("mend-prepared").map_err(failed)?;
        self.keep.begin(client, prepared, image, (next, anew), began)?;
        fault::point("mend-taken").map_err(failed)
    }

    /// Whether the state is to be written for the next epoch.
    fn needs_state(&self) -> bool {
        self.is_changed
            || self.is_timed
            || self.keep.image().is_none()
            || self.keep.current().based_at() > MOST_LASTING
    }

    /// The state that the next epoch has, which is written if it is to be another one.
    fn image_for(&mut self, client: &mut Client, anew: bool) -> Result<PathBuf, MendObstacle> {
        match self.keep.image().filter(|_| !anew) {
            Some(image) => Ok(image.clone()),
            None => self.write_state(client),
        }
    }

    /// Writes all of the GPU half but what memory holds.
    fn write_state(&mut self, client: &mut Client) -> Result<PathBuf, MendObstacle> {
        self.states += 1;
        let name = format!("{}.{}-{}", self.name, std::process::id(), self.states);
        image::save_bare(client, &self.store, &name).map_err(|error| {
            log::warn!("the GPU state of a program cannot be written so that the loss of its worker could be mended: {error}");
            MendObstacle::Unsaved
        })
    }

    /// Removes states that no base belongs to.
    fn forget_states(&self) {
        let prefix = format!("{}.", self.name);
        let used: Vec<PathBuf> = self.keep.images().cloned().collect();
        image::forget_bare(&self.store, &prefix, &used);
    }
}
