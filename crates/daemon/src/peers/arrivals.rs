//! Programs that come from other nodes, each by the id of its migration: whether one has been accepted, and so is never to go on
//! where it came from.
//!
//! ```text
//!   Comes ──the word──▶ Accepted (on disk) ──▶ Runs ──the other node knows──▶ forgotten
//!     └──────┴─ fails, or the other node asks before the word ─▶ Never: forgotten
//! ```
//!
//! Of one that is not known here it is certain that it has never run here, and never will. So what is on disk stays there until
//! the other node has said that it knows.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::key::PublicKey;
use crate::error::{Error, Result};
use crate::host::replace::{Outlasting, PRIVATE, replace};
use crate::peers::PeerError;

/// How long one that was given up may take to be gone.
const GIVING_UP: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Comes,
    Accepted,
    Runs,
    /// It was given up while it came.
    Never,
}

/// What is certain of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrivalFate {
    /// It has run here, or does.
    Runs,
    /// It has not, and never will.
    Never,
}

#[derive(Clone, Debug)]
struct Arrival {
    from: PublicKey,
    name: String,
    phase: Phase,
}

/// On disk, of one that is accepted.
#[derive(Serialize, Deserialize)]
struct ArrivalRecord {
    from: PublicKey,
    name: String,
    ran: bool,
}

pub struct Arrivals {
    directory: PathBuf,
    all: Mutex<HashMap<String, Arrival>>,
    changed: Condvar,
}

impl Arrivals {
    /// Those that a daemon before this one has accepted count as accepted until it is known what became of them.
    pub fn load(directory: PathBuf) -> Arrivals {
        let mut all = HashMap::new();
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            let id = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let read = || serde_json::from_slice::<ArrivalRecord>(&fs::read(&path).ok()?).ok();
            match read().filter(|_| path.extension().is_some_and(|ending| ending == "json")) {
                Some(ArrivalRecord { from, name, ran }) => {
                    let phase = if ran { Phase::Runs } else { Phase::Accepted };
                    all.insert(id, Arrival { from, name, phase });
                }
                None => log::warn!("{} tells of no program and is left alone", path.display()),
            }
        }
        Arrivals { directory, all: Mutex::new(all), changed: Condvar::new() }
    }

    /// A program comes. One of its name that has come before and is given up just now is waited for.
    pub fn begin(&self, id: &str, from: PublicKey, name: &str) -> Result<()> {
        let is_id = id.len() >= 16 && id.len() <= 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let comes = |arrival: &Arrival| !matches!(arrival.phase, Phase::Runs) && arrival.name == name;
        let busy = |all: &mut HashMap<String, Arrival>| all.values().any(comes);
        let waited = self.changed.wait_timeout_while(self.lock(), GIVING_UP, busy);
        let mut all = waited.unwrap_or_else(PoisonError::into_inner).0;
        if !is_id || all.contains_key(id) || busy(&mut all) {
            return Err(PeerError::ComesAlready { name: name.to_string() }.into());
        }
        all.insert(id.to_string(), Arrival { from, name: name.to_string(), phase: Phase::Comes });
        Ok(())
    }

    /// The word has come: from now on it is certain, on disk too, that it does not go on where it came from, unless it is said
    /// [never](Arrivals::never) to have run. An error if it was given up.
    pub fn accept(&self, id: &str) -> Result<()> {
        let mut all = self.lock();
        let given_up = || PeerError::GivenUp.into();
        let arrival = all.get_mut(id).ok_or_else(given_up)?;
        match arrival.phase {
            Phase::Never => return Err(given_up()),
            Phase::Accepted | Phase::Runs => return Ok(()),
            Phase::Comes => {}
        }
        if let Err(error) = self.keep(id, arrival, false) {
            let _ = self.remove(id);
            return Err(error);
        }
        arrival.phase = Phase::Accepted;
        Ok(())
    }

    fn keep(&self, id: &str, arrival: &Arrival, ran: bool) -> Result<()> {
        let place = self.place(id);
        let kept = ArrivalRecord { from: arrival.from, name: arrival.name.clone(), ran };
        serde_json::to_vec(&kept)
            .map_err(io::Error::from)
            .and_then(|text| replace(&place, &text, PRIVATE, Outlasting::Name))
            .map_err(|source| Error::io("write", &place, source))
    }

    pub fn is_accepted(&self, id: &str) -> bool {
        self.lock().get(id).is_some_and(|arrival| arrival.phase == Phase::Accepted)
    }

    pub fn has_run(&self, id: &str) -> bool {
        self.lock().get(id).is_some_and(|arrival| arrival.phase == Phase::Runs)
    }

    /// Those that were accepted, and of which nothing is left here by which to know whether they have run: they have not.
    pub fn give_up_lost(&self) {
        let lost: Vec<_> = {
            let all = self.lock();
            let open = all.iter().filter(|(_, arrival)| arrival.phase == Phase::Accepted);
            open.map(|(id, _)| id.clone()).collect()
        };
        for id in lost {
            if let Err(error) = self.never(&id) {
                log::error!("{error}");
            }
        }
    }

    /// One that was accepted has run here, as its record says too for as long as there is one.
    pub fn runs(&self, id: &str) {
        let mut all = self.lock();
        if let Some(arrival) = all.get_mut(id).filter(|arrival| arrival.phase == Phase::Accepted) {
            arrival.phase = Phase::Runs;
            if let Err(error) = self.keep(id, arrival, true) {
                log::error!("{error}");
            }
        }
        self.changed.notify_all();
    }

    /// It has not run here and never will.
    pub fn never(&self, id: &str) -> Result<()> {
        let mut all = self.lock();
        self.remove(id)?;
        all.remove(id);
        self.changed.notify_all();
        Ok(())
    }

    /// What is certain of a program, which is asked by the node that it comes from. From then on one that has not been accepted
    /// never will be; of one that has, it is waited until it is known, if that takes no longer than this.
    pub fn settle(&self, id: &str, from: PublicKey, within: Duration) -> Option<ArrivalFate> {
        let own = |all: &HashMap<String, Arrival>| {
            all.get(id).filter(|arrival| arrival.from == from).map(|arrival| arrival.phase)
        };
        let mut all = self.lock();
        if own(&all) == Some(Phase::Comes)
            && let Some(arrival) = all.get_mut(id)
        {
            arrival.phase = Phase::Never;
        }
        let open = |all: &mut HashMap<String, Arrival>| own(all) == Some(Phase::Accepted);
        let waited = self.changed.wait_timeout_while(all, within, open);
        let all = waited.unwrap_or_else(PoisonError::into_inner).0;
        match own(&all) {
            Some(Phase::Runs) => Some(ArrivalFate::Runs),
            Some(Phase::Accepted) => None,
            Some(Phase::Comes | Phase::Never) | None => Some(ArrivalFate::Never),
        }
    }

    /// The node that it comes from knows.
    pub fn forget(&self, id: &str, from: PublicKey) -> Result<()> {
        let mut all = self.lock();
        if all.get(id).is_some_and(|arrival| arrival.from == from && arrival.phase == Phase::Runs) {
            self.remove(id)?;
            all.remove(id);
        }
        Ok(())
    }

    fn remove(&self, id: &str) -> Result<()> {
        let place = self.place(id);
        match fs::remove_file(&place).and_then(|()| File::open(&self.directory)?.sync_all()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", &place, error)),
            _ => Ok(()),
        }
    }

    fn place(&self, id: &str) -> PathBuf {
        self.directory.join(format!("{id}.json"))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arrival>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef";

    fn key(digit: &str) -> PublicKey {
        digit.repeat(64).parse().unwrap()
    }

    fn settle(arrivals: &Arrivals) -> Option<ArrivalFate> {
        arrivals.settle(ID, key("1"), Duration::ZERO)
    }

    #[test]
    fn one_that_was_asked_about_before_the_word_never_runs() {
        let place = tempfile::tempdir().unwrap();
        let arrivals = Arrivals::load(place.path().to_path_buf());
        assert_eq!(settle(&arrivals), Some(ArrivalFate::Never));
        arrivals.begin(ID, key("1"), "a").unwrap();
        // Another node's question says nothing.
        assert_eq!(arrivals.settle(ID, key("2"), Duration::ZERO), Some(ArrivalFate::Never));
        assert_eq!(settle(&arrivals), Some(ArrivalFate::Never));
        assert!(arrivals.accept(ID).is_err());
    }

    #[test]
    fn one_that_was_accepted_is_so_for_the_next_daemon_too() {
        let place = tempfile::tempdir().unwrap();
        let load = || Arrivals::load(place.path().to_path_buf());
        let arrivals = load();
        arrivals.begin(ID, key("1"), "a").unwrap();
        arrivals.accept(ID).unwrap();
        assert_eq!(settle(&arrivals), None);
        let next = load();
        assert_eq!((settle(&next), next.is_accepted(ID)), (None, true));
        next.runs(ID);
        assert_eq!(settle(&next), Some(ArrivalFate::Runs));
        assert_eq!(settle(&load()), Some(ArrivalFate::Runs));
        next.forget(ID, key("2")).unwrap();
        assert_eq!(settle(&next), Some(ArrivalFate::Runs));
        next.forget(ID, key("1")).unwrap();
        assert_eq!(settle(&next), Some(ArrivalFate::Never));
        assert_eq!(settle(&load()), Some(ArrivalFate::Never));
    }
}
