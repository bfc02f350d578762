//! A shadow on its way to the image, beside the running program.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rekindle_protocol::fault;
use rekindle_protocol::worker::Phase;
use rekindle_ring::Record;
use rekindle_store::PartWriter;
use serde_json::Value;

use super::copy_out;
use super::enqueued_copies::EnqueuedCopies;
use super::error::{Error, Result};
use super::guard::Guard;
use super::reference::Reference;
use super::save::describe;
use super::shadow::SaveTask;
use crate::client::{Client, Room};

/// Parts as the store describes them, and how long it took since the save began.
pub(super) type Drained = (Vec<Value>, Vec<Phase>);
/// How fast new contents are taken to be written, in bytes a second, to tell for how long.
const WRITE_RATE: f64 = 5e9;

/// GPU memory as it was, until it is in the image.
pub(crate) struct Shadow {
    /// Emptied by whoever comes first.
    rooms: Arc<Mutex<Rooms>>,
    drain: Arc<Drain>,
    /// Who needs its memory does not wait for its end.
    gives_way: bool,
    /// The copy, where it is made when the GPU comes to it; the drain has it until then.
    behind: Option<Weak<EnqueuedCopies>>,
    /// What has no copy, and is not to be changed yet.
    guard: Option<Arc<Guard>>,
}

#[derive(Default)]
struct Rooms {
    full: Vec<Room>,
    /// Without memory. Their addresses are to be given back.
    empty: Vec<Room>,
}

/// The write to the image, on a thread of its own.
#[derive(Default)]
pub(crate) struct Drain {
    pub(super) stop: AtomicBool,
    has_ended: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
enum State {
    /// It has not begun: the program may stand still, and is not to wait for it.
    #[default]
    Waiting,
    /// The program may have the machine to itself until then; not at all, if somebody waits for what is drained.
    UnderWay(Option<Instant>),
    Ended(Result<Drained>),
}

impl Shadow {
    /// `write` is called on a thread of its own once somebody waits for what comes of it.
    pub(super) fn begin(
        rooms: Vec<Room>,
        write: impl FnOnce(&Drain) -> Result<Drained> + Send + 'static,
    ) -> Shadow {
        let drain = Arc::new(Drain::default());
        let told = drain.clone();
        let run = move || {
            told.await_begin();
            told.end(write(&told));
        };
        if let Err(source) = std::thread::Builder::new().name("drain".into()).spawn(run) {
            drain.end(Err(Error::Io { action: "start", path: "a thread".to_string(), source }));
        }
        let rooms = Arc::new(Mutex::new(Rooms { full: rooms, empty: Vec::new() }));
        Shadow { rooms, drain, gives_way: false, behind: None, guard: None }
    }

    /// It is ended when somebody needs its memory.
    pub(super) fn giving_way(mut self) -> Shadow {
        self.gives_way = true;
        self
    }

    /// Its copy is made behind the program's work.
    pub(super) fn coming_behind(mut self, copies: Weak<EnqueuedCopies>) -> Shadow {
        self.behind = Some(copies);
        self
    }

    /// Some of it is written from where it lies.
    pub(super) fn guarding(mut self, guard: Option<Arc<Guard>>) -> Shadow {
        self.guard = guard;
        self
    }

    /// Whether a request has to wait until what it may change is copied out.
    pub(crate) fn holds(&self, client: &Client, record: &Record<'_>) -> bool {
        let Some(guard) = self.guard.as_ref().filter(|_| !self.drain.has_ended.load(Ordering::Acquire))
        else {
            return false;
        };
        let holds = guard.holds(client, record);
        if holds {
            self.drain.begin();
        }
        holds
    }

    pub(crate) fn comes_behind(&self) -> bool {
        self.behind.is_some()
    }

    /// The copy that comes behind the program's work; none if it is made.
    pub(crate) fn enqueued(&self) -> Option<Arc<EnqueuedCopies>> {
        self.behind.as_ref().and_then(Weak::upgrade)
    }

    pub(crate) fn drain(&self) -> Arc<Drain> {
        self.drain.clone()
    }

    /// Bytes of a device that it takes.
    pub(crate) fn bytes_of(&self, index: usize) -> u64 {
        let rooms = lock(&self.rooms);
        rooms.full.iter().filter(|room| room.index == index).map(|room| room.bytes).sum()
    }

    /// The image is not wanted any more.
    pub(crate) fn give_up(&self) {
        self.drain.stop.store(true, Ordering::Relaxed);
    }

    /// What gives its memory back once it is drained, from whatever thread.
    pub(crate) fn emptying(&self) -> impl FnOnce() + Send + 'static {
        let (rooms, drain, gives_way) = (self.rooms.clone(), self.drain.clone(), self.gives_way);
        move || {
            if gives_way {
                drain.stop.store(true, Ordering::Relaxed);
            }
            drain.begin();
            drop(drain.wait_for_end(|| true));
            let mut rooms = lock(&rooms);
            for room in std::mem::take(&mut rooms.full) {
                match room.empty() {
                    Ok(()) => rooms.empty.push(room),
                    Err(code) => log::warn!("the memory of a checkpoint's copy stays in use: {code}"),
                }
            }
        }
    }

    /// Its rooms, if it is drained and they have their memory yet: the next one can have them.
    pub(crate) fn take_over(&self) -> Option<Vec<Room>> {
        if self.gives_way || !matches!(*lock(&self.drain.state), State::Ended(_)) {
            return None;
        }
        let mut rooms = lock(&self.rooms);
        let is_whole = rooms.empty.is_empty() && !rooms.full.is_empty();
        is_whole.then(|| std::mem::take(&mut rooms.full))
    }

    /// Rooms that were emptied since this was asked.
    pub(crate) fn take_emptied(&self) -> Vec<Room> {
        std::mem::take(&mut lock(&self.rooms).empty)
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        self.give_up();
        self.drain.begin();
    }
}

impl Drain {
    /// Has it begin, waits until it has ended, and gives what has come of it to the first who asks. The program may have the
    /// machine to itself for so long before anything is written. It is given up when `is_wanted` does not say so any more,
    /// which is asked now and then.
    pub(crate) fn finish(&self, catch_up: Duration, is_wanted: impl Fn() -> bool) -> Result<Drained> {
        self.begin_by((!catch_up.is_zero()).then(|| Instant::now() + catch_up));
        let mut state = self.wait_for_end(is_wanted);
        match std::mem::replace(&mut *state, State::Ended(Ok(Drained::default()))) {
            State::Ended(result) => result,
            State::Waiting | State::UnderWay(_) => Err(Error::Cancelled),
        }
    }

    fn wait_for_end(&self, is_wanted: impl Fn() -> bool) -> MutexGuard<'_, State> {
        let mut state = lock(&self.state);
        while !matches!(*state, State::Ended(_)) {
            let waited = self.changed.wait_timeout(state, super::LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if !is_wanted() {
                self.stop.store(true, Ordering::Relaxed);
            }
        }
        state
    }

    /// Somebody waits for it.
    fn begin(&self) {
        let mut state = lock(&self.state);
        if !matches!(*state, State::Ended(_)) {
            *state = State::UnderWay(None);
            self.changed.notify_all();
        }
    }

    fn begin_by(&self, alone_until: Option<Instant>) {
        let mut state = lock(&self.state);
        if matches!(*state, State::Waiting) {
            *state = State::UnderWay(alone_until);
            self.changed.notify_all();
        }
    }

    /// Whoever asked the program for something while it stood still is answered first: what writes the image would slow that
    /// down. Where little is new, that is over soon. `new_bytes` tells how much is, and need not count beyond what it is given.
    /// Whether there was anything to wait for.
    pub(super) fn let_catch_up(&self, new_bytes: impl FnOnce(u64) -> Result<u64>) -> Result<bool> {
        let began = Instant::now();
        let State::UnderWay(Some(limit)) = *lock(&self.state) else { return Ok(false) };
        let most = limit.saturating_duration_since(began);
        let writing = new_bytes((most.as_secs_f64() * WRITE_RATE) as u64)? as f64 / WRITE_RATE;
        let end = began + most.min(Duration::from_secs_f64(writing));
        let mut state = lock(&self.state);
        while let State::UnderWay(Some(_)) = *state
            && let left = end.saturating_duration_since(Instant::now())
            && !left.is_zero()
            && !self.stop.load(Ordering::Relaxed)
        {
            let waited = self.changed.wait_timeout(state, left.min(super::LOOK));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(true)
    }

    fn await_begin(&self) {
        let mut state = lock(&self.state);
        while matches!(*state, State::Waiting) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn end(&self, drained: Result<Drained>) {
        *lock(&self.state) = State::Ended(drained);
        self.has_ended.store(true, Ordering::Release);
        self.changed.notify_all();
    }
}

/// What a drain is to know of the save that it belongs to.
pub(super) struct SaveContext {
    /// When it began.
    pub since: Instant,
    pub reference: Option<Reference>,
}

/// A drain that goes on.
pub(super) struct Draining {
    save: SaveContext,
    began: Instant,
    phases: Vec<Phase>,
}

impl Draining {
    pub(super) fn begin(save: SaveContext) -> Result<Draining> {
        let began = Instant::now();
        fault::point("drain-begun").map_err(|fault| Error::Refused(fault.to_string()))?;
        Ok(Draining { save, began, phases: Vec::new() })
    }

    /// The program catches up first.
    pub(super) fn after(self, drain: &Drain, new_bytes: impl FnOnce(u64) -> Result<u64>) -> Result<Draining> {
        Ok(if drain.let_catch_up(new_bytes)? { self.go_on("catch up", 0, 0) } else { self })
    }

    /// What it has done by now was this: so many bytes, of which some were copied.
    pub(super) fn go_on(mut self, name: &str, bytes: u64, copied: u64) -> Draining {
        self.note(name, bytes, copied);
        self.began = Instant::now();
        self
    }

    fn note(&mut self, name: &str, bytes: u64, copied: u64) {
        self.phases.push(Phase {
            name: name.to_string(),
            start_us: (self.began - self.save.since).as_micros() as u64,
            duration_us: self.began.elapsed().as_micros() as u64,
            bytes,
            from: copy_out::origin(bytes, copied),
            ..Phase::default()
        });
    }

    /// All parts are written: so many bytes from here, of which some were copied.
    pub(super) fn finish(mut self, work: SaveTask, bytes: u64, copied: u64) -> Result<Drained> {
        let finish = |(_, writer): (_, PartWriter)| {
            let part = writer.finish()?;
            self.save.reference.iter().try_for_each(|reference| reference.check(&part))?;
            describe(&part)
        };
        let parts = work.into_iter().map(finish).collect::<Result<_>>()?;
        self.note("drain", bytes, copied);
        Ok((parts, self.phases))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn a_program_catches_up_for_as_long_as_what_is_new_takes_to_be_written() {
        let drain = Drain::default();
        assert!(!drain.let_catch_up(|_| unreachable!()).unwrap(), "nobody has asked for it");
        drain.begin_by(Some(Instant::now() + LONG));
        for (bytes, milliseconds) in [(0, 0), (50_000_000, 10)] {
            let began = Instant::now();
            assert!(drain.let_catch_up(|_| Ok(bytes)).unwrap());
            assert!(began.elapsed() >= Duration::from_millis(milliseconds) && began.elapsed() < LONG);
        }
    }

    #[test]
    fn a_program_that_waits_for_what_is_drained_does_not_wait_for_itself_to_catch_up() {
        let drain = Drain::default();
        drain.begin_by(Some(Instant::now() + LONG));
        std::thread::scope(|scope| {
            let caught_up = scope.spawn(|| drain.let_catch_up(Ok).unwrap());
            drain.begin();
            assert!(caught_up.join().is_ok());
        });
        drain.begin_by(Some(Instant::now() + LONG));
        assert!(!drain.let_catch_up(|_| unreachable!()).unwrap(), "it has begun");
    }
}
