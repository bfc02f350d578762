//! One client's view of a device whose context it shares with others.
//!
//! The default stream, waits for the whole context, and limits are its own; what it makes is noted, and given back when it
//! ends.

mod device;
mod recycling;

use std::collections::HashMap;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, TryLockError};
use std::time::{Duration, Instant};

use rekindle_cuda::{CUDA_ERROR_DEINITIALIZED, CuResult};
use rekindle_device::{Device, Global, Memory, Module, Result, Stream};

use crate::belongings::Belongings;
use crate::shared::division::Portion;
use crate::shared::fair_queue::CopyRank;
use crate::shared::health::Health;
use crate::shared::lane::StreamWork;
use crate::shared::lanes::{IssueSlot, Lanes, State};
use crate::shared::link::{Link, UNTIMED};
use crate::shared::memory_pool::MemoryPool;
use crate::shared::order::are_done;
use crate::shared::overtake::Computes;
use crate::shared::owned::Owned;
use crate::shared::piece::RemainingCopy;
use crate::shared::piece_cache::PieceCache;
use crate::shared::work_sign::WorkSign;

pub(crate) use recycling::Recycling;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// How often it is looked whether a client's work is done.
const LOOK: Duration = Duration::from_micros(200);

pub(crate) struct ClientDevice {
    device: Arc<dyn Device>,
    /// What its streams are given goes through these.
    lanes: Arc<Lanes>,
    owned: Arc<Mutex<Owned>>,
    computes: Arc<Computes>,
    work_sign: WorkSign,
    pieces: Arc<PieceCache>,
    /// Limits that the client has asked for.
    limits: Mutex<Vec<(u32, u64)>>,
    /// The client is about to end: no call begins any more.
    closing: AtomicBool,
    /// What its streams are made on; none: on the whole device.
    portion: Mutex<Option<Arc<Portion>>>,
    /// What they are to be made on, once no call is under way.
    next_portion: Mutex<Option<Option<Arc<Portion>>>>,
    moves: AtomicBool,
    /// Held by each call, so that what the client has is there for as long as calls use it.
    calls: RwLock<()>,
    health: Arc<Health>,
    /// What outlives the context, as far as it was asked for while there was one.
    kept: Mutex<ClientRecords>,
    /// The context has failed, and the client goes on with what was kept: the device is asked nothing, and whatever is given
    /// back goes with the context.
    leaving: AtomicBool,
    /// The context's memory for first uses.
    pool: Arc<MemoryPool>,
    /// What it has of that, once it has its memory that way.
    recycling: OnceLock<Recycling>,
}

#[derive(Default)]
struct ClientRecords {
    /// Descriptors of memory.
    memory: HashMap<Memory, OwnedFd>,
    /// Globals of modules.
    globals: HashMap<Module, Vec<Global>>,
}

/// The device, for a call of a client that is there.
struct Open<'a> {
    device: &'a dyn Device,
    _call: RwLockReadGuard<'a, ()>,
}

impl<'a> Deref for Open<'a> {
    type Target = dyn Device + 'a;

    fn deref(&self) -> &Self::Target {
        self.device
    }
}

impl ClientDevice {
    /// The device's context is current on this thread. `health` is told when it turns out to have failed.
    pub(crate) fn new(
        device: Arc<dyn Device>,
        link: Option<Arc<Link>>,
        pieces: Arc<PieceCache>,
        pool: Arc<MemoryPool>,
        health: Arc<Health>,
    ) -> Result<Arc<ClientDevice>> {
        let legacy = device.stream_create(NON_BLOCKING, 0)?;
        let order = device.event_create(UNTIMED)?;
        let computes = Arc::new(Computes::new());
        let belongings =
            Belongings { streams: [(legacy, 0)].into(), events: [order].into(), ..Belongings::default() };
        let owned = Owned::new(belongings);
        Ok(Arc::new(ClientDevice {
            lanes: Lanes::new(device.clone(), link, legacy, order, computes.clone()),
            device,
            computes,
            work_sign: WorkSign::default(),
            pieces,
            owned: Arc::new(Mutex::new(owned)),
            limits: Mutex::default(),
            closing: AtomicBool::new(false),
            portion: Mutex::default(),
            next_portion: Mutex::default(),
            moves: AtomicBool::new(false),
            calls: RwLock::new(()),
            health,
            kept: Mutex::default(),
            leaving: AtomicBool::new(false),
            pool,
            recycling: OnceLock::new(),
        }))
    }

    /// Gives back all that the client has, once its calls have returned and its work is done; false if that takes longer than
    /// the limit. Calls that come later fail.
    pub(crate) fn close(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        self.closing.store(true, Ordering::SeqCst);
        self.lanes.close();
        if self.device.bind().is_err() {
            return true;
        }
        let streams = self.owned().all_streams();
        while let Ok(false) = are_done(&*self.device, &streams) {
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        let _none = loop {
            match self.calls.try_write() {
                Ok(none) => break none,
                Err(TryLockError::Poisoned(none)) => break none.into_inner(),
                Err(TryLockError::WouldBlock) if Instant::now() > until => return false,
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOOK),
            }
        };
        // What was given to streams since is short: copies of a load that is not wanted any more.
        let streams = self.owned().all_streams();
        for stream in streams {
            let _ = self.device.stream_synchronize(stream);
        }
        self.end_recycling();
        self.owned().give_back(&*self.device, &self.pieces, self.health.fault().is_some());
        // A descriptor would keep its memory.
        *self.kept() = ClientRecords::default();
        *lock(&self.next_portion) = None;
        *lock(&self.portion) = None;
        true
    }

    /// Asks the device for what the client needs to outlive the context, for so long: true once all is there.
    pub(crate) fn keep(&self, until: Instant) -> Result<bool> {
        let open = self.open()?;
        let missing: Vec<Memory> = {
            let (owned, kept) = (self.owned(), self.kept());
            owned.memory.iter().filter(|memory| !kept.memory.contains_key(memory)).copied().collect()
        };
        for memory in missing {
            if Instant::now() > until {
                return Ok(false);
            }
            let descriptor = self.noted(open.memory_export(memory))?;
            let owned = self.owned();
            if owned.memory.contains(&memory) {
                self.kept().memory.insert(memory, descriptor);
            }
        }
        Ok(true)
    }

    /// The first error of what its streams were given and that was issued later, of which nobody has been told.
    pub(crate) fn take_late(&self) -> Option<CuResult> {
        let code = self.lanes.take_late()?;
        let _ = self.noted(Err::<(), _>(code));
        Some(code)
    }

    /// An error if the context has failed.
    pub(crate) fn check(&self) -> Result<()> {
        let open = self.open()?;
        let legacy = self.lanes.state().order.real(Stream::LEGACY);
        self.noted(open.bind().and_then(|()| open.stream_query(legacy))).map(drop)
    }

    pub(crate) fn set_leaving(&self, leaving: bool) {
        self.leaving.store(leaving, Ordering::SeqCst);
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    fn kept(&self) -> MutexGuard<'_, ClientRecords> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn owned(&self) -> MutexGuard<'_, Owned> {
        lock(&self.owned)
    }

    #[cfg(test)]
    pub(super) fn is_behind(&self, stream: Stream) -> bool {
        let state = self.lanes.state();
        state.queues.is_behind(state.order.real(stream))
    }

    #[cfg(test)]
    pub(super) fn computes(&self) -> &Computes {
        &self.computes
    }

    /// What is copied on this stream is not the program's own.
    pub(crate) fn set_background(&self, stream: Stream) {
        let mut state = self.lanes.state();
        let stream = state.order.real(stream);
        state.queues.set_rank(stream, CopyRank::Background);
    }

    /// From now on its copies take turns by this weight.
    pub(crate) fn set_link_weight(&self, weight: u32) {
        self.lanes.state().queues.set_link_weight(weight);
    }

    /// How long copies of the program have waited for their turn.
    pub(crate) fn link_waited(&self) -> Duration {
        self.lanes.state().queues.link_waited()
    }

    /// Has its streams on these multiprocessors from now on, or as soon as no call is under way and nothing is captured. What
    /// streams were given before goes on where it is.
    pub(crate) fn move_to(&self, portion: Option<Arc<Portion>>) {
        *lock(&self.next_portion) = Some(portion);
        self.moves.store(true, Ordering::SeqCst);
        self.try_move();
    }

    pub(super) fn work_sign(&self) -> &WorkSign {
        &self.work_sign
    }

    /// Whether its streams have nothing to do, and nothing is about to be given to them.
    pub(super) fn is_idle(&self) -> Result<bool> {
        if self.is_closing() || self.is_leaving() {
            return Ok(true);
        }
        // A stream that is captured must not be asked, nor one that is given back: neither begins meanwhile.
        let Ok(_none) = self.calls.try_write() else { return Ok(false) };
        let state = self.lanes.state();
        if state.queues.is_capturing() || !state.queues.is_issued(state.queues.last(), None) {
            return Ok(false);
        }
        drop(state);
        let streams = self.owned().all_streams();
        are_done(&*self.device, &streams)
    }

    fn try_move(&self) {
        let Ok(_none) = self.calls.try_write() else { return };
        let mut state = self.lanes.state();
        let is_over = self.is_closing() || self.is_leaving();
        if is_over || state.queues.is_capturing() {
            return;
        }
        let Some(portion) = lock(&self.next_portion).take() else { return };
        self.moves.store(false, Ordering::SeqCst);
        let mut owned = self.owned();
        owned.sweep(&*self.device);
        let moved = self.device.bind().and_then(|()| self.replace_streams(&mut state, &mut owned, &portion));
        match moved {
            Ok(()) => {
                self.computes.moved_to(portion.as_ref().map_or(0, |portion| Arc::as_ptr(portion).addr()));
                *lock(&self.portion) = portion;
            }
            Err(code) => log::error!("a client's streams stay on the multiprocessors that they have: {code}"),
        }
    }

    /// Puts others on these multiprocessors in the place of all streams.
    fn replace_streams(
        &self,
        state: &mut State,
        owned: &mut Owned,
        portion: &Option<Arc<Portion>>,
    ) -> Result<()> {
        let mut by = HashMap::new();
        let made = owned.streams.iter().try_for_each(|(stream, priority)| {
            by.insert(*stream, create_on(&*self.device, portion.as_deref(), *priority)?);
            Ok(())
        });
        if let Err(code) = made.and_then(|()| state.queues.replace(&by)) {
            for stream in by.values() {
                let _ = self.device.stream_destroy(*stream);
            }
            return Err(code);
        }
        state.order.replace(&by);
        let former = lock(&self.portion).clone();
        for (stream, new) in by {
            let priority = owned.streams.remove(&stream).unwrap_or_default();
            owned.streams.insert(new, priority);
            owned.former.push((stream, former.clone()));
        }
        owned.sweep(&*self.device);
        Ok(())
    }

    fn open(&self) -> Result<Open<'_>> {
        if self.moves.load(Ordering::Relaxed) {
            self.try_move();
        }
        self.open_as_it_is()
    }

    /// As [`ClientDevice::open`], without moving its streams, for which the device would be bound.
    fn open_as_it_is(&self) -> Result<Open<'_>> {
        let call = self.calls.read().unwrap_or_else(PoisonError::into_inner);
        match self.is_closing() || self.is_leaving() {
            false => Ok(Open { device: &*self.device, _call: call }),
            true => Err(self.health.fault().unwrap_or(CUDA_ERROR_DEINITIALIZED)),
        }
    }

    /// Notes a failure that ends the context.
    fn noted<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(code) = &result
            && code.is_sticky()
        {
            self.health.fail(*code);
        }
        result
    }

    /// Makes something, which is the client's from then on.
    fn make<T: Copy, N>(
        &self,
        make: impl FnOnce(&dyn Device) -> Result<T>,
        note: impl FnOnce(&mut Owned, T) -> N,
    ) -> Result<T> {
        let open = self.open()?;
        let made = self.noted(make(&*open))?;
        let _ = note(&mut self.owned(), made);
        Ok(made)
    }

    /// Gives something back. All of it was, if the client is no more, and is, if the context is.
    fn give<F>(
        &self,
        forget: impl FnOnce(&mut Owned) -> F,
        give: impl FnOnce(&dyn Device) -> Result<()>,
    ) -> Result<()> {
        let Ok(open) = self.open() else { return Ok(()) };
        let _ = forget(&mut self.owned());
        self.noted(give(&*open))
    }

    /// Work on a stream, in its place: done now, or put into its lane to be done later.
    fn work(
        &self,
        stream: Stream,
        now: impl FnOnce(&dyn Device, Stream) -> Result<()>,
        later: impl FnOnce() -> StreamWork,
    ) -> Result<()> {
        let open = self.open()?;
        let done = self.lanes.place(stream).and_then(|place| match place {
            IssueSlot::Now(stream) => now(&*open, stream),
            IssueSlot::Later(held) => {
                held.put(later());
                Ok(())
            }
        });
        self.noted(done)
    }

    /// As [`ClientDevice::work`], of what is small enough to be kept in any case.
    fn small_work(
        &self,
        stream: Stream,
        work: impl Fn(&dyn Device, Stream) -> Result<()> + Copy + Send + 'static,
    ) -> Result<()> {
        self.work(stream, work, || Box::new(work))
    }

    /// A copy, over the link or within the GPU.
    fn copy_as(
        &self,
        rest: RemainingCopy,
        stream: Stream,
        whole: impl Fn(&dyn Device, Stream) -> Result<()> + Copy + Send + 'static,
    ) -> Result<()> {
        match rest.way().filter(|_| rest.left() > 0) {
            Some(way) => {
                let _open = self.open()?;
                let reaches = || {
                    let (owned, line) = (self.owned(), rest.line());
                    line.is_some_and(|(to, from, bytes)| {
                        owned.reaches(to, bytes) && owned.reaches(from, bytes)
                    })
                };
                self.noted(self.lanes.copy(way, rest, stream, whole, reaches))
            }
            None => self.small_work(stream, whole),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A non-blocking stream on these multiprocessors; on all without.
fn create_on(device: &dyn Device, portion: Option<&Portion>, priority: i32) -> Result<Stream> {
    match portion {
        Some(portion) => device.stream_create_on(portion.part(), priority),
        None => device.stream_create(NON_BLOCKING, priority),
    }
}
