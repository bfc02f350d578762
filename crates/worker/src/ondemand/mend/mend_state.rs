//! What another worker would go on from, and what the daemon is told to hold of it.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rekindle_protocol::frame;
use rekindle_protocol::mending::{LEDGER, Ledger, MendObstacle, MendStatus, RetainedItem};

use super::base::{self, Base, BaseDescription, NextPart};
use super::base_memory::{AddressPool, BaseMemory};
use crate::client::Client;
use crate::ondemand::OnDemandError;
use crate::ondemand::journal::{Journal, Mark};
use crate::successor;

const CLIENT: &str = "client";
const JOURNALS: [&str; 2] = ["journal-0", "journal-1"];
/// What names of bases begin with; the slot and the device follow.
const BASE: &str = "base-";

fn base_name(slot: usize, device: usize) -> String {
    format!("{BASE}{slot}-{device}")
}

/// Two of each, which take turns.
pub(super) struct MendState {
    pub ledger: Ledger,
    journals: [Journal; 2],
    bases: [Base; 2],
    apart: Option<AddressPool>,
    /// The epoch that counts, or counted last.
    epoch: u64,
    /// Who holds all this too.
    daemon: Option<UnixStream>,
}

impl MendState {
    pub(super) fn new() -> std::io::Result<MendState> {
        let file = || successor::memory_file(&[]);
        let journal = || file().and_then(|file| Journal::new(file.into()));
        let ledger = Ledger::open(file()?)?;
        ledger.lapse(MendObstacle::Beginning);
        Ok(MendState {
            ledger,
            journals: [journal()?, journal()?],
            bases: <[Base; 2]>::default(),
            apart: None,
            epoch: 0,
            daemon: None,
        })
    }

    /// What another worker has kept, with what was to be known of its bases.
    pub(super) fn inherit(
        mut held: Vec<(RetainedItem, OwnedFd)>,
    ) -> Result<(MendState, Inherited), OnDemandError> {
        let mut take = |name: &'static str| {
            let at = held.iter().position(|(kept, _)| kept.name == name);
            at.map(|at| held.swap_remove(at)).ok_or(OnDemandError::NotHeld(name))
        };
        let ledger = Ledger::open(File::from(take(LEDGER)?.1)).map_err(OnDemandError::Kept)?;
        let journals = [take(JOURNALS[0])?.1, take(JOURNALS[1])?.1];
        let [first, second] = journals.map(Journal::inherit);
        let journals = [first.map_err(OnDemandError::Kept)?, second.map_err(OnDemandError::Kept)?];
        let Some(epoch) = ledger.standing().epoch else {
            let why = ledger.standing().why.unwrap_or(MendObstacle::Beginning);
            return Err(OnDemandError::Obstacle(why));
        };
        let mut left = Vec::new();
        for (kept, descriptor) in held.extract_if(.., |(kept, _)| kept.name.starts_with(BASE)) {
            let about: BaseDescription = serde_json::from_str(&kept.about)?;
            left.push((about, descriptor));
        }
        let current = || left.iter().map(|(about, _)| about).filter(|about| about.epoch == epoch);
        if current().next().is_none_or(|about| about.gpus != current().count()) {
            return Err(OnDemandError::NotHeld(BASE));
        }
        let keep =
            MendState { ledger, journals, bases: <[Base; 2]>::default(), apart: None, epoch, daemon: None };
        Ok((keep, Inherited { epoch, left }))
    }

    pub(super) fn standing(&self) -> MendStatus {
        self.ledger.standing()
    }

    pub(super) fn journal(&mut self) -> &mut Journal {
        &mut self.journals[(self.epoch % 2) as usize]
    }

    pub(super) fn current(&self) -> &Journal {
        &self.journals[(self.epoch % 2) as usize]
    }

    /// The base that counts, or counted last.
    fn base(&self) -> &Base {
        &self.bases[(self.epoch % 2) as usize]
    }

    /// The GPUs that the base is of.
    pub(super) fn devices(&self) -> Vec<usize> {
        self.base().about.iter().map(|about| about.device).collect()
    }

    pub(super) fn image(&self) -> Option<&PathBuf> {
        self.base().image()
    }

    /// Images of the state that a base belongs to.
    pub(super) fn images(&self) -> impl Iterator<Item = &PathBuf> {
        self.bases.iter().filter_map(Base::image)
    }

    /// Who holds what is kept.
    pub(super) fn holder(&self) -> Option<&UnixStream> {
        self.daemon.as_ref()
    }

    /// From now on this daemon holds it, and the worker's end of its client's socket.
    pub(super) fn be_held_by(&mut self, daemon: UnixStream, client: &UnixStream) {
        self.daemon = Some(daemon);
        let told = self.tell(CLIENT, String::new(), client.as_fd())
            && self.tell(LEDGER, String::new(), self.ledger.descriptor())
            && (0..2).all(|slot| self.tell(JOURNALS[slot], String::new(), self.journals[slot].descriptor()))
            && (0..2).all(|slot| self.tell_of_base(slot));
        if !told {
            self.daemon = None;
        }
    }

    /// False if nobody holds anything any more.
    fn tell_of_base(&self, slot: usize) -> bool {
        let Base { places, about } = &self.bases[slot];
        about.iter().all(|about| {
            let Some(place) = places.get(&about.device) else { return true };
            let text = serde_json::to_string(about).unwrap_or_default();
            self.tell(&base_name(slot, about.device), text, place.descriptor.as_fd())
        })
    }

    fn tell(&self, name: &str, about: String, what: BorrowedFd<'_>) -> bool {
        let Some(daemon) = self.daemon.as_ref() else { return false };
        let told = frame::send(daemon, &RetainedItem { name: name.to_string(), about }, &[what]);
        if let Err(error) = &told {
            log::info!("nobody holds any more what a lost worker would be mended with: {error}");
        }
        told.is_ok()
    }

    /// Makes room for the next base of these GPUs, with the rows that it is to have. Where there is room for one alone, the one that
    /// counts does no more, if it `may_lapse`.
    pub(super) fn prepare(
        &mut self,
        client: &mut Client,
        devices: &[usize],
        may_lapse: bool,
    ) -> Result<Next, MendObstacle> {
        let unsaved = |code| {
            log::warn!(
                "the GPU memory of a program cannot be copied so that a lost worker could be mended: {code}"
            );
            MendObstacle::Unsaved
        };
        let parts = base::parts(client, devices).map_err(unsaved)?;
        if self.apart.is_none() {
            let first = devices.first().copied().unwrap_or_default();
            self.apart = Some(AddressPool::reserve(client, first).map_err(unsaved)?);
        }
        let Some(apart) = self.apart.as_mut() else { return Err(MendObstacle::Unsaved) };
        let slot = ((self.epoch + 1) % 2) as usize;
        let [first, second] = &mut self.bases;
        let (next, other) = if slot == 0 { (first, second) } else { (second, first) };
        next.about.clear();
        for part in &parts {
            client.bind(part.device).map_err(unsaved)?;
            let lapse = || {
                self.ledger.lapse(MendObstacle::Taking);
                // What it held is this one's from now on.
                forget(self.daemon.as_ref(), 1 - slot, part.device);
            };
            next.make_room(client, part, apart, may_lapse.then_some(&mut *other), lapse)?;
        }
        Ok(Next { slot, parts })
    }

    /// Copies memory, and has the epoch begin that this belongs to: with what lasts of the journal, or with `anew` an empty one.
    pub(super) fn begin(
        &mut self,
        client: &mut Client,
        next: Next,
        image: PathBuf,
        (ticket, anew): (u64, bool),
        began: std::time::Instant,
    ) -> Result<(), MendObstacle> {
        let slot = next.slot;
        if let Err((index, code)) = self.bases[slot].take(client, &next.parts) {
            log::warn!("the GPU memory of a program could not be copied: {code}");
            client.note_fault(index, code);
            return Err(MendObstacle::Unsaved);
        }
        let (journal, before) = self.journals_of(slot);
        if !journal.begin_behind((!anew).then_some((before, before.bytes())), ticket) {
            return Err(MendObstacle::NoRoom);
        }
        self.count(next, self.epoch + 1, &image, began.elapsed());
        Ok(())
    }

    /// The journal of the epoch that a base is for, and the other one.
    fn journals_of(&mut self, slot: usize) -> (&mut Journal, &Journal) {
        let [first, second] = &mut self.journals;
        if slot == 0 { (first, second) } else { (second, first) }
    }

    /// Has the copy of memory be made behind what the streams of copies have. Where no epoch counts, the journal of the next one
    /// begins here, at the request of this ticket. Gives the number of that epoch.
    pub(super) fn enqueue(
        &mut self,
        client: &mut Client,
        next: &Next,
        (counts, ticket): (bool, u64),
    ) -> Result<u64, MendObstacle> {
        let slot = next.slot;
        if !counts && !self.journals_of(slot).0.begin_behind(None, ticket) {
            return Err(MendObstacle::NoRoom);
        }
        if let Err(code) = self.bases[slot].enqueue(client, &next.parts) {
            log::warn!("the GPU memory of a program could not be copied: {code}");
            next.parts.iter().for_each(|part| client.note_fault(part.device, code));
            return Err(MendObstacle::Unsaved);
        }
        let epoch = self.epoch + 1;
        if !counts {
            self.epoch = epoch;
        }
        Ok(epoch)
    }

    /// Has a journal begin with what lasts of the current one up to `cut`, if that `lasts`, and with all from there on. None without
    /// memory for it; else what marks of the other journal are in this one.
    pub(super) fn move_journal(
        &mut self,
        next: &Next,
        (cut, lasts): (usize, bool),
        ticket: u64,
    ) -> Option<impl Fn(Mark) -> Option<Mark> + use<>> {
        let (journal, before) = self.journals_of(next.slot);
        let is_moved = journal.begin_at(before, cut, lasts, ticket);
        let (from, to) = (before.mark(cut), journal.mark(journal.based_at()));
        is_moved.then_some(move |mark: Mark| mark.moved(from, to))
    }

    /// The epoch of this number counts from now on: its base and its journal are there.
    pub(super) fn count(&mut self, next: Next, epoch: u64, image: &Path, took: Duration) {
        let Next { slot, parts } = next;
        let journal_bytes = self.journals[slot].since_base() as u64;
        self.bases[slot].describe(parts, epoch, image);
        if !self.tell_of_base(slot) {
            self.daemon = None;
        }
        self.epoch = epoch;
        let taken = MendStatus {
            base_bytes: self.base().bytes(),
            base_on_host: self.base().is_on_host(),
            base_unix_ms: unix_ms(),
            base_us: took.as_micros() as u64,
            journal_bytes,
            ..MendStatus::default()
        };
        self.ledger.begin(self.epoch, &taken);
    }

    pub(super) fn has_device_memory(&self) -> bool {
        self.bases.iter().flat_map(|base| base.places.values()).any(|place| !place.is_on_host())
    }

    /// Gives the memory of all bases back, but of one that is being copied to. None of them counts.
    pub(super) fn give_back(&mut self, copying: Option<usize>) {
        for slot in (0..self.bases.len()).filter(|slot| copying != Some(*slot)) {
            let base = std::mem::take(&mut self.bases[slot]);
            for (device, place) in base.places {
                if let Some(apart) = &mut self.apart {
                    place.close(apart);
                }
                forget(self.daemon.as_ref(), slot, device);
            }
        }
    }

    /// Opens the places of bases that another worker has left, those of the base that counts and others to be used again.
    pub(super) fn open(&mut self, client: &mut Client, inherited: Inherited) -> Result<(), OnDemandError> {
        let Inherited { epoch, left } = inherited;
        for (about, descriptor) in left {
            let opened = (|| {
                if self.apart.is_none() {
                    self.apart = Some(AddressPool::reserve(client, about.device)?);
                }
                let apart = self.apart.as_mut().ok_or(rekindle_cuda::CUDA_ERROR_OUT_OF_MEMORY)?;
                BaseMemory::open(client, about.device, apart, (about.bytes, about.on_host), descriptor)
            })();
            let (counts, base) = (about.epoch == epoch, &mut self.bases[(about.epoch % 2) as usize]);
            match opened {
                Ok(place) => {
                    base.places.insert(about.device, place);
                    if counts {
                        base.about.push(about);
                    }
                }
                Err(code) if counts => return Err(OnDemandError::Copy(code)),
                Err(code) => log::warn!("a copy of GPU memory of a lost worker cannot be used: {code}"),
            }
        }
        Ok(())
    }

    pub(super) fn put_back(&self, client: &mut Client) -> Result<(), OnDemandError> {
        if self.base().about.is_empty() {
            return Err(OnDemandError::NoCopy);
        }
        self.base().put_back(client).map_err(OnDemandError::Memory)
    }
}

/// The base that is about to be taken.
pub(super) struct Next {
    slot: usize,
    parts: Vec<NextPart>,
}

impl Next {
    pub(super) fn slot(&self) -> usize {
        self.slot
    }
}

/// What of bases another worker has left.
pub(super) struct Inherited {
    /// The one that counts.
    epoch: u64,
    left: Vec<(BaseDescription, OwnedFd)>,
}

impl Inherited {
    pub(super) fn image(&self) -> Option<PathBuf> {
        self.left.iter().find(|(about, _)| about.epoch == self.epoch).map(|(about, _)| about.image.clone())
    }
}

/// Has who holds a base's descriptor, and its memory by that, let go of it.
fn forget(daemon: Option<&UnixStream>, slot: usize, device: usize) {
    if let Some(daemon) = daemon {
        let forget = RetainedItem { name: base_name(slot, device), about: String::new() };
        let _ = frame::send(daemon, &forget, &[]);
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis() as u64
}
