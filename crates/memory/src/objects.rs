//! Which objects are in memory, and which are on their way there.
//!
//! Whoever asks for an object waits for the answer of its store about which version it has now, and shares the memory
//! with all who ask for that one, also while it is fetched. An object that is whole stays until its room is needed, least
//! recently used first, or its store has another version.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use rekindle_protocol::data::{Count, Expected, Problem, ProblemKind, Version};
use tokio::runtime::Handle;

use crate::dump;
use crate::fetch;
use crate::room::{Budget, Reservation};
use crate::shared::Shared;
use crate::store::{ObjectLocation, Stores};

/// One version of an object.
pub struct Object {
    pub version: Version,
    pub memory: Shared,
    progress: Mutex<Progress>,
    changed: Condvar,
    _room: Reservation,
}

#[derive(Default)]
struct Progress {
    /// Ranges that are there: offsets and lengths, in the order in which they came.
    ready: Vec<(u64, u64)>,
    end: Option<Result<(), Problem>>,
}

/// What there is to say of an object beyond what was said.
pub enum ObjectChange {
    Ready(u64, u64),
    End(Result<(), Problem>),
}

impl Object {
    pub fn reader(&self) -> std::io::Result<OwnedFd> {
        self.memory.reader()
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These bytes are there.
    pub fn add(&self, offset: u64, bytes: u64) {
        if bytes > 0 {
            self.progress().ready.push((offset, bytes));
            self.changed.notify_all();
        }
    }

    fn end(&self, how: Result<(), Problem>) {
        self.progress().end = Some(how);
        self.changed.notify_all();
    }

    pub fn is_whole(&self) -> bool {
        self.progress().end == Some(Ok(()))
    }

    /// Waits for the next news after so many.
    pub fn news(&self, after: usize) -> ObjectChange {
        let mut progress = self.progress();
        loop {
            if let Some((offset, bytes)) = progress.ready.get(after) {
                return ObjectChange::Ready(*offset, *bytes);
            }
            if let Some(end) = &progress.end {
                return ObjectChange::End(end.clone());
            }
            progress = self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A version that is to be fetched: room for it is made, for which others wait too.
struct PendingFetch {
    version: Version,
    found: OnceLock<Result<Arc<Object>, Problem>>,
}

#[derive(Default)]
struct Entry {
    flight: Option<Arc<PendingFetch>>,
    object: Option<Arc<Object>>,
    used: u64,
}

#[derive(Default)]
struct ObjectTable {
    entries: HashMap<String, Entry>,
    /// How often something was asked for.
    asked: u64,
}

impl Tally {
    /// So many bytes, or none for it failed.
    fn fetched(&self, bytes: Option<u64>) {
        self.fetches.fetch_add(1, Ordering::Relaxed);
        match bytes {
            Some(bytes) => self.fetched_bytes.fetch_add(bytes, Ordering::Relaxed),
            None => self.failures.fetch_add(1, Ordering::Relaxed),
        };
    }
}

pub struct Objects {
    stores: Stores,
    budget: Arc<Budget>,
    runtime: Handle,
    known: Mutex<ObjectTable>,
    tally: Tally,
}

/// What was done since the process began.
#[derive(Default)]
struct Tally {
    fetches: AtomicU64,
    failures: AtomicU64,
    fetched_bytes: AtomicU64,
}

impl Objects {
    pub fn new(stores: Stores, budget: Arc<Budget>, runtime: Handle) -> Arc<Objects> {
        Arc::new(Objects { stores, budget, runtime, known: Mutex::default(), tally: Tally::default() })
    }

    pub fn count(&self) -> Count {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Tally { fetches, failures, fetched_bytes } = &self.tally;
        let (fetches, failures, fetched_bytes) = (load(fetches), load(failures), load(fetched_bytes));
        Count {
            hits: self.known().asked.saturating_sub(fetches),
            fetches,
            failures,
            fetched_bytes,
            held_bytes: self.budget.taken(),
            limit_bytes: self.budget.most(),
        }
    }

    fn known(&self) -> MutexGuard<'_, ObjectTable> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The version that its store has now.
    pub fn look(&self, name: &str) -> Result<Version, Problem> {
        let location = self.stores.find(name)?;
        self.runtime.block_on(fetch::look(name, &location))
    }

    /// Bytes of it from its store, and how many it has.
    pub fn read(&self, name: &str, offset: u64, bytes: u64) -> Result<(u64, Vec<u8>), Problem> {
        let location = self.stores.find(name)?;
        self.runtime.block_on(fetch::read(name, &location, offset, bytes))
    }

    /// Whether programs may write to it.
    pub fn check_write(&self, name: &str) -> Result<(), Problem> {
        self.stores.check_write(name, &self.stores.find(name)?)
    }

    /// Writes it, in place of what is expected, and says which version it is then.
    pub fn put(&self, name: &str, contents: &Bytes, expected: &Expected) -> Result<Version, Problem> {
        let (began, location) = (Instant::now(), self.stores.find(name)?);
        self.stores.check_write(name, &location)?;
        let put = dump::put(name, &location, contents, expected, self.stores.patience());
        let version = self.runtime.block_on(put).inspect_err(|problem| log::warn!("{}", problem.sentence))?;
        log::info!("wrote {name}: {} bytes in {:.3} s", contents.len(), began.elapsed().as_secs_f64());
        Ok(version)
    }

    /// The object as its store has it now; its bytes may be still to come.
    pub fn ask(self: &Arc<Objects>, name: &str) -> Result<Arc<Object>, Problem> {
        let location = self.stores.find(name)?;
        let now = {
            let mut known = self.known();
            known.asked += 1;
            known.asked
        };
        let version = self.runtime.block_on(fetch::look(name, &location));
        let version = version.inspect_err(|problem| self.failed(problem))?;
        let (flight, outdated) = {
            let mut known = self.known();
            let entry = known.entries.entry(name.to_string()).or_default();
            entry.used = entry.used.max(now);
            if let Some(object) = entry.object.as_ref().filter(|object| object.version == version) {
                return Ok(object.clone());
            }
            match entry.flight.as_ref().filter(|flight| flight.version == version) {
                Some(flight) => {
                    log::info!("{name} is wanted again, and on its way");
                    (flight.clone(), None)
                }
                None => {
                    let flight = Arc::new(PendingFetch { version, found: OnceLock::new() });
                    entry.flight = Some(flight.clone());
                    (flight, entry.object.take())
                }
            }
        };
        drop(outdated);
        let begin = || {
            let object = self.room(name, flight.version.clone()).inspect_err(|problem| {
                self.failed(problem);
                self.landed(name, &flight, None);
            })?;
            let (objects, name) = (self.clone(), name.to_string());
            let (own, flown) = (flight.clone(), object.clone());
            std::thread::spawn(move || objects.fly(&name, &location, &own, flown));
            Ok(object)
        };
        flight.found.get_or_init(begin).clone()
    }

    fn failed(&self, problem: &Problem) {
        self.tally.fetched(None);
        log::warn!("{}", problem.sentence);
    }

    /// Fetches an object for which there is room.
    fn fly(&self, name: &str, location: &ObjectLocation, flight: &Arc<PendingFetch>, object: Arc<Object>) {
        let began = Instant::now();
        let fetched = self.runtime.block_on(fetch::fetch(name, location, &object));
        let (bytes, took) = (object.version.bytes, began.elapsed().as_secs_f64());
        let is_whole = fetched.is_ok();
        match &fetched {
            Ok(()) => {
                self.tally.fetched(Some(bytes));
                log::info!("fetched {name}: {bytes} bytes in {took:.3} s");
            }
            Err(problem) => self.failed(problem),
        }
        object.end(fetched);
        self.landed(name, flight, is_whole.then_some(object));
    }

    /// Keeps what was fetched, unless another version is on its way since.
    fn landed(&self, name: &str, flight: &Arc<PendingFetch>, object: Option<Arc<Object>>) {
        let mut known = self.known();
        let Some(entry) = known.entries.get_mut(name) else { return };
        if !entry.flight.as_ref().is_some_and(|latest| Arc::ptr_eq(latest, flight)) {
            return;
        }
        (entry.flight, entry.object) = (None, object);
        if entry.object.is_none() {
            known.entries.remove(name);
        }
    }

    /// Room for a version, which is to be filled.
    fn room(&self, name: &str, version: Version) -> Result<Arc<Object>, Problem> {
        let bytes = version.bytes;
        if bytes == 0 {
            let sentence = format!("{name} is empty; put data there, or do not declare it");
            return Err(Problem::new(ProblemKind::Size, sentence));
        }
        let room = self.budget.take(bytes, || self.evict()).ok_or_else(|| {
            let most = self.budget.most();
            let sentence = format!(
                "{name} has {bytes} bytes, and data may have {most} of this host's memory; start rekindled with a larger \
                 --data-memory"
            );
            Problem::new(ProblemKind::Memory, sentence)
        })?;
        let memory = Shared::new(bytes).map_err(|error| {
            let sentence = format!("there is no memory for the {bytes} bytes of {name} ({error}); free some");
            Problem::new(ProblemKind::Memory, sentence)
        })?;
        let (progress, changed) = (Mutex::default(), Condvar::new());
        Ok(Arc::new(Object { version, memory, progress, changed, _room: room }))
    }

    /// Drops the object that was used least recently of those that nobody uses.
    fn evict(&self) -> bool {
        let mut known = self.known();
        let unused = |entry: &Entry| {
            entry.flight.is_none()
                && entry.object.as_ref().is_some_and(|object| Arc::strong_count(object) == 1)
        };
        let rows = known.entries.iter().filter(|(_, entry)| unused(entry));
        let Some(name) = rows.min_by_key(|(_, entry)| entry.used).map(|(name, _)| name.clone()) else {
            return false;
        };
        let dropped = known.entries.remove(&name);
        drop(known);
        log::info!("dropped {name}, to make room");
        drop(dropped);
        true
    }
}
