//! What another worker would go on from, and what the daemon is told to hold of it.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rekindle_protocol::frame;
use rekindle_protocol::mending::{LEDGER, Ledger, MendObstacle, MendStatus, RetainedItem};
use serde::{Deserialize, Serialize};

use super::base_memory::{AddressPool, BaseMemory};
use super::rows::{self, Row};
use crate::client::Client;
use crate::ondemand::OnDemandError;
use crate::ondemand::journal::Journal;
use crate::successor;

const CLIENT: &str = "client";
const JOURNALS: [&str; 2] = ["journal-0", "journal-1"];
const BASES: [&str; 2] = ["base-0", "base-1"];

/// What is to be known of a base.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct BaseDescription {
    pub device: usize,
    pub bytes: u64,
    pub on_host: bool,
    pub rows: Vec<Row>,
    /// Where the state of the GPU half lies that the journal begins behind.
    pub image: PathBuf,
}

/// Two of each, which take turns.
pub(super) struct MendState {
    pub ledger: Ledger,
    journals: [Journal; 2],
    places: [Option<BaseMemory>; 2],
    about: [Option<BaseDescription>; 2],
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
            places: [None, None],
            about: [None, None],
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
        let mut left = [None, None];
        for (slot, name) in BASES.into_iter().enumerate() {
            let Ok((kept, descriptor)) = take(name) else { continue };
            let about: BaseDescription = serde_json::from_str(&kept.about)?;
            left[slot] = Some((about, descriptor));
        }
        let slot = (epoch % 2) as usize;
        if left[slot].is_none() {
            return Err(OnDemandError::NotHeld(BASES[slot]));
        }
        let keep = MendState {
            ledger,
            journals,
            places: [None, None],
            about: [None, None],
            apart: None,
            epoch,
            daemon: None,
        };
        Ok((keep, Inherited { slot, left }))
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

    /// Of the base that counts.
    pub(super) fn device(&self) -> Option<usize> {
        self.about[(self.epoch % 2) as usize].as_ref().map(|about| about.device)
    }

    pub(super) fn image(&self) -> Option<&PathBuf> {
        self.about[(self.epoch % 2) as usize].as_ref().map(|about| &about.image)
    }

    /// Images of the state that a base belongs to.
    pub(super) fn images(&self) -> impl Iterator<Item = &PathBuf> {
        self.about.iter().flatten().map(|about| &about.image)
    }

    /// Whether somebody holds what is kept.
    pub(super) fn is_held(&self) -> bool {
        self.daemon.is_some()
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
        let Some((about, place)) = self.about[slot].as_ref().zip(self.places[slot].as_ref()) else {
            return true;
        };
        let text = serde_json::to_string(about).unwrap_or_default();
        self.tell(BASES[slot], text, place.descriptor.as_fd())
    }

    fn tell(&self, name: &str, about: String, what: BorrowedFd<'_>) -> bool {
        let Some(daemon) = self.daemon.as_ref() else { return false };
        let told = frame::send(daemon, &RetainedItem { name: name.to_string(), about }, &[what]);
        if let Err(error) = &told {
            log::info!("nobody holds any more what a lost worker would be mended with: {error}");
        }
        told.is_ok()
    }

    /// Makes room for the next base, with the rows that it is to have. Where there is room for one alone, the one that counts
    /// does no more.
    pub(super) fn prepare(&mut self, client: &mut Client, index: usize) -> Result<Next, MendObstacle> {
        let unsaved = |code| {
            log::warn!(
                "the GPU memory of a program cannot be copied so that a lost worker could be mended: {code}"
            );
            MendObstacle::Unsaved
        };
        client.bind(index).map_err(unsaved)?;
        let (rows, bytes) = rows::rows(client, index).map_err(unsaved)?;
        if self.apart.is_none() {
            self.apart = Some(AddressPool::reserve(client, index).map_err(unsaved)?);
        }
        let Some(apart) = self.apart.as_mut() else { return Err(MendObstacle::Unsaved) };
        let slot = ((self.epoch + 1) % 2) as usize;
        let fits = |place: &BaseMemory| place.bytes >= bytes && place.bytes / 2 <= bytes.max(4 << 20);
        if self.places[slot].as_ref().is_some_and(|place| !fits(place))
            && let Some(place) = self.places[slot].take()
        {
            place.close(apart);
        }
        if self.places[slot].is_some() {
            return Ok(Next { slot, rows });
        }
        match BaseMemory::new(client, index, apart, bytes) {
            Ok(place) => self.places[slot] = Some(place),
            Err(code) => {
                // The one that there is has to do, if it is large enough; what it holds counts no more.
                let other = 1 - slot;
                let found =
                    self.places[other].take().filter(|_| code == rekindle_cuda::CUDA_ERROR_OUT_OF_MEMORY);
                let Some(place) = found else { return Err(MendObstacle::NoRoom) };
                self.ledger.lapse(MendObstacle::Taking);
                self.about[other] = None;
                if fits(&place) {
                    self.places[slot] = Some(place);
                } else {
                    place.close(apart);
                    let place =
                        BaseMemory::new(client, index, apart, bytes).map_err(|_| MendObstacle::NoRoom)?;
                    self.places[slot] = Some(place);
                }
            }
        }
        Ok(Next { slot, rows })
    }

    /// Copies memory, and has the epoch begin that this belongs to: with what lasts of the journal, or with `anew` an empty one.
    pub(super) fn begin(
        &mut self,
        client: &mut Client,
        index: usize,
        next: Next,
        image: PathBuf,
        (ticket, anew): (u64, bool),
        began: std::time::Instant,
    ) -> Result<(), MendObstacle> {
        let Next { slot, rows } = next;
        let Some(place) = &self.places[slot] else { return Err(MendObstacle::NoRoom) };
        let (address, bytes, on_host) = (place.address, place.bytes, place.is_on_host());
        let taken = client.bind(index).and_then(|()| rows::take(client, index, &rows, address));
        if let Err(code) = taken {
            log::warn!("the GPU memory of a program could not be copied: {code}");
            client.note_fault(index, code);
            return Err(MendObstacle::Unsaved);
        }
        let [first, second] = &mut self.journals;
        let (journal, before) = if slot == 0 { (first, &*second) } else { (second, &*first) };
        if !journal.begin_behind((!anew).then_some(before), ticket) {
            return Err(MendObstacle::NoRoom);
        }
        let journal_bytes = journal.since_base() as u64;
        let base_bytes = rows.iter().map(|(row, _)| row.bytes()).sum();
        let rows = rows.into_iter().map(|(row, _)| row).collect();
        let about = BaseDescription { device: index, bytes, on_host, rows, image };
        self.about[slot] = Some(about);
        if !self.tell_of_base(slot) {
            self.daemon = None;
        }
        self.epoch += 1;
        let taken = MendStatus {
            base_bytes,
            base_on_host: on_host,
            base_unix_ms: unix_ms(),
            base_us: began.elapsed().as_micros() as u64,
            journal_bytes,
            ..MendStatus::default()
        };
        self.ledger.begin(self.epoch, &taken);
        Ok(())
    }

    pub(super) fn has_device_memory(&self) -> bool {
        self.places.iter().flatten().any(|place| !place.is_on_host())
    }

    /// Gives the memory of all bases back. None of them counts.
    pub(super) fn give_back(&mut self) {
        self.about = [None, None];
        let places = std::mem::take(&mut self.places);
        if let Some(apart) = &mut self.apart {
            places.into_iter().flatten().for_each(|place| place.close(apart));
        }
        if let Some(daemon) = &self.daemon {
            for name in BASES {
                let forget = RetainedItem { name: name.to_string(), about: String::new() };
                // Whoever holds a descriptor of it holds its memory.
                let _ = frame::send(daemon, &forget, &[]);
            }
        }
    }

    /// Opens the places of bases that another worker has left, and makes memory what the one holds that counts.
    pub(super) fn open(&mut self, client: &mut Client, inherited: Inherited) -> Result<(), OnDemandError> {
        let Inherited { slot: current, left } = inherited;
        for (slot, left) in left.into_iter().enumerate() {
            let Some((about, descriptor)) = left else { continue };
            let opened = (|| {
                if self.apart.is_none() {
                    self.apart = Some(AddressPool::reserve(client, about.device)?);
                }
                let apart = self.apart.as_mut().ok_or(rekindle_cuda::CUDA_ERROR_OUT_OF_MEMORY)?;
                BaseMemory::open(client, about.device, apart, (about.bytes, about.on_host), descriptor)
            })();
            match opened {
                Ok(place) => {
                    self.places[slot] = Some(place);
                    self.about[slot] = Some(about);
                }
                Err(code) if slot == current => return Err(OnDemandError::Copy(code)),
                Err(code) => log::warn!("a copy of GPU memory of a lost worker cannot be used: {code}"),
            }
        }
        Ok(())
    }

    pub(super) fn put_back(&self, client: &mut Client) -> Result<(), OnDemandError> {
        let slot = (self.epoch % 2) as usize;
        let kept = self.about[slot].as_ref().zip(self.places[slot].as_ref());
        let (about, place) = kept.ok_or(OnDemandError::NoCopy)?;
        client
            .bind(about.device)
            .and_then(|()| rows::put_back(client, about.device, &about.rows, place.address))
            .map_err(OnDemandError::Memory)
    }
}

/// The base that is about to be taken.
pub(super) struct Next {
    slot: usize,
    rows: Vec<(Row, u64)>,
}

/// What of bases another worker has left.
pub(super) struct Inherited {
    slot: usize,
    left: [Option<(BaseDescription, OwnedFd)>; 2],
}

impl Inherited {
    pub(super) fn image(&self) -> Option<PathBuf> {
        self.left[self.slot].as_ref().map(|(about, _)| about.image.clone())
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis() as u64
}
