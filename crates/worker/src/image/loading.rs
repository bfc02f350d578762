//! Contents of buffers that are still on their way while the program runs already.
//!
//! Requests of the program wait meanwhile: all of them, or with [`OnDemand`] those that name what is not there yet, or
//! could not be done once more.

use std::collections::{HashMap, HashSet};
use std::mem::replace;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use rekindle_protocol::fault;
use rekindle_protocol::worker::Phase;
use rekindle_store::{Image, Part};

use super::beside::Beside;
use super::block::{Gpu, Preparing};
use super::cache::Views;
use super::contents::PartLocation;
use super::error::{Error, LoadingError, Result, device};
use super::hidden::{Hidden, Windows};
use super::resident::Resident;
use super::save_memory::{Window, unmap_windows};
use super::source::Sources;
use super::state::State;
use super::{contents, restore_memory};
use crate::client::Client;
use crate::dispatch::{Activity, DeferredWork, Dispatcher, Ended, Remote, Shared};
use crate::ipc::{Arrivals, Arrived};
use crate::ondemand::{Journal, OnDemand, Sharing, Spans};

/// What is answered to whoever waits for the end.
pub(crate) type Outcome = std::result::Result<Vec<Phase>, LoadingError>;

/// What is loaded, and from where.
pub(super) struct LoadTask {
    pub image: Image,
    pub state: Arc<State>,
    pub windows: Vec<Window>,
    pub gpus: Vec<Option<Gpu>>,
    /// Names of parts whose memory was taken over with its contents.
    pub left: HashSet<String>,
    /// What of the image lies in caches; the thread that loads takes it.
    pub views: Mutex<Views>,
    /// What of it a device can copy from where it lies; as with `views`.
    pub resident: Mutex<Option<Resident>>,
    /// All of memory, where the program is not to reach it before its contents are there.
    pub hidden: Option<Vec<Hidden>>,
    /// Names of parts, those first that are to be loaded first.
    pub order: Vec<String>,
    /// Where declared data is loaded to, by the names of parts.
    pub declared: HashMap<String, u64>,
    /// What is to come of other processes of the program.
    pub arrivals: Arrivals,
}

/// What was read from.
struct UsedBuffers {
    views: Views,
    resident: Option<Resident>,
}

pub(crate) struct Loading {
    work: Arc<LoadTask>,
    remote: Remote,
    /// When the restore began.
    since: Instant,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(Phase, UsedBuffers, Arrived)>>>,
    waiting: Vec<Sender<Outcome>>,
    on_demand: Option<OnDemand>,
    windows: Vec<Windows>,
    /// All contents are there.
    loaded: Option<Phase>,
    /// Looks whether all is there that is to be read.
    present: Option<Beside<()>>,
}

impl LoadTask {
    fn parts(&self) -> Result<Vec<(PartLocation, &Part)>> {
        match &self.hidden {
            Some(hidden) => restore_memory::hidden_work(&self.image, hidden),
            None => restore_memory::work(&self.image, &self.state, &self.windows, &self.left),
        }
    }

    fn order(&self, parts: &[(PartLocation, &Part)]) -> Vec<usize> {
        let number = |name: &String| parts.iter().position(|(_, part)| part.name == *name);
        self.order.iter().filter_map(number).collect()
    }

    /// All of a part is there.
    fn show(&self, number: usize) -> Result<()> {
        let Some(one) = self.hidden.as_ref().and_then(|hidden| hidden.get(number)) else { return Ok(()) };
        match self.gpus.get(one.device) {
            Some(Some(gpu)) => one.show(&*gpu.device),
            _ => Ok(()),
        }
    }
}

/// Where the program has the parts that the state tells of.
pub(super) fn spans(state: &State) -> Spans {
    let mut names = Vec::new();
    let mut spans = Vec::new();
    for buffer in state.backed() {
        spans.push((buffer.address..buffer.address + buffer.bytes, names.len()));
        names.push(super::state::buffer_part(buffer.address));
    }
    let is_own = |serial: u64| !state.physical_shared.imports.contains_key(&serial);
    for row in state.physical.iter().filter(|row| is_own(row.serial)) {
        let mappings = state.mappings.iter().filter(|mapping| mapping.serial == row.serial);
        spans.extend(mappings.map(|one| (one.address..one.address + one.bytes, names.len())));
        names.push(super::state::physical_part(row.serial));
    }
    Spans::new(names, spans)
}

impl Loading {
    /// Begins it. The dispatch thread ends it, [`Loading::end`], when told by `remote`. `since` is when the restore
    /// began.
    pub(super) fn begin(
        work: LoadTask,
        windows: Vec<Windows>,
        blocks: Option<Preparing>,
        remote: Remote,
        since: Instant,
    ) -> Result<Loading> {
        let work = Arc::new(work);
        let parts = work.parts()?;
        let bytes: u64 = parts.iter().map(|(location, _)| location.bytes).sum();
        let shared: u64 =
            work.hidden.iter().flatten().filter(|one| one.memory.is_none()).map(|one| one.bytes).sum();
        let progress = {
            let views = work.views.lock().unwrap_or_else(PoisonError::into_inner);
            let sources = Sources::of(&work.image, &views, None);
            Arc::new(contents::to_load(&parts, &sources, &work.order(&parts)))
        };
        let on_demand = work.hidden.is_some().then(|| OnDemand::new(progress.clone(), spans(&work.state)));
        let stop = Arc::new(AtomicBool::new(false));
        let (loaded, told, for_later) = (work.clone(), stop.clone(), remote.clone());
        let load = move || {
            rekindle_parallel::go_first();
            let began = Instant::now();
            let views = std::mem::take(&mut *loaded.views.lock().unwrap_or_else(PoisonError::into_inner));
            let resident = loaded.resident.lock().unwrap_or_else(PoisonError::into_inner).take();
            let sources = Sources::of(&loaded.image, &views, resident.as_ref());
            let names: Vec<String> = loaded.parts()?.iter().map(|(_, part)| part.name.clone()).collect();
            let whole = |number: usize| {
                loaded.show(number)?;
                if let Some(address) = names.get(number).and_then(|name| loaded.declared.get(name)).copied() {
                    remote.run(move |dispatcher| dispatcher.client.declare(address));
                }
                progress.set_whole(number);
                remote.wake();
                Ok(())
            };
            let may_begin = fault::point("loading-begun").map_err(Error::from);
            let result = may_begin.and_then(|()| loaded.parts()).and_then(|parts| {
                let blocks = contents::load(&loaded.gpus, blocks, &sources, &parts, &progress, &told, whole)?;
                Ok((blocks, loaded.arrivals.fetch(&told)?))
            });
            remote.run(Loading::end);
            let mut from = sources.tally();
            if shared > 0 {
                from.insert("shared".to_string(), shared);
            }
            let (blocks, arrived) = result?;
            let phase = Phase {
                name: "GPU memory".to_string(),
                start_us: (began - since).as_micros() as u64,
                duration_us: began.elapsed().as_micros() as u64,
                bytes: bytes + shared,
                from,
                ..Phase::default()
            };
            drop(blocks);
            Ok((phase, UsedBuffers { views, resident }, arrived))
        };
        let thread = std::thread::Builder::new().name("loading".into()).spawn(load);
        let thread =
            thread.map_err(|source| Error::Io { action: "start", path: "a thread".to_string(), source })?;
        // What can be told without reading is told before the program runs.
        let looked_for = work.clone();
        let present = Beside::begin(move || {
            let parts: Vec<&Part> = looked_for.parts()?.into_iter().map(|(_, part)| part).collect();
            Ok(looked_for.image.check_present(&parts)?)
        });
        Ok(Loading {
            work,
            remote: for_later,
            since,
            stop,
            thread: Some(thread),
            waiting: Vec::new(),
            on_demand,
            windows,
            loaded: None,
            present: Some(present),
        })
    }

    /// Waits until all that is to be read was looked for; fails if some of it is not there.
    pub(super) fn check_present(&mut self) -> Result<()> {
        self.present.take().map_or(Ok(()), Beside::end)
    }

    /// Requests can be done before all contents are there.
    pub(crate) fn is_on_demand(&self) -> bool {
        self.on_demand.is_some()
    }

    pub(crate) fn on_demand(&mut self) -> Option<&mut OnDemand> {
        self.on_demand.as_mut()
    }

    /// Where the image lies.
    pub(crate) fn image(&self) -> PathBuf {
        self.work.image.path().to_path_buf()
    }

    /// How long ago the restore began.
    pub(crate) fn age(&self) -> std::time::Duration {
        self.since.elapsed()
    }

    /// The contents are there, or cannot be.
    fn end(dispatcher: &mut Dispatcher) {
        let Some(loading) = dispatcher.activity.loading() else { return };
        let finished = loading.finish(&mut dispatcher.client, &mut dispatcher.later);
        if !loading.is_on_demand() {
            return Loading::tell(dispatcher, finished, None);
        }
        match finished {
            Ok(phase) => loading.loaded = Some(phase),
            // A fault of a kernel ends the loading too; the worker that goes on loads again.
            Err(error) => {
                dispatcher.client.is_at_rest();
                if !dispatcher.client.is_broken() {
                    Loading::tell(dispatcher, Err(error), None);
                }
            }
        }
    }

    /// Once all contents are there and all that ran ahead has ended without a fault: nothing can go wrong any more that
    /// the program has no part in.
    pub(crate) fn settle(dispatcher: &mut Dispatcher) {
        let Some(loading) = dispatcher.activity.loading() else { return };
        let client = &mut dispatcher.client;
        let ready = loading.loaded.is_some() && !loading.on_demand.as_ref().is_some_and(OnDemand::has_aside);
        if !ready || !client.is_at_rest() || client.is_broken() {
            return;
        }
        let phase = loading.loaded.take().unwrap_or_default();
        if let Some(mending) = &mut client.mending {
            mending.pinned_later.clear();
        }
        client.declare_all();
        let pinned = restore_memory::pin(client, &loading.work.state);
        let sharing = Sharing::begin(client, &loading.image(), loading.work.clone());
        for windows in loading.windows.drain(..) {
            let remote = loading.remote.clone();
            dispatcher.later.push(move || windows.close(&remote));
        }
        Loading::tell(dispatcher, pinned.map(|()| phase), sharing);
        // The loss of this worker is to be mended, at any time.
        if dispatcher.mend.is_some() {
            dispatcher.unshare(channel().0);
        }
    }

    /// Tells how it ended. From now on the program is told what no other worker could know; a fault of its own kernels
    /// can still be mended, by this worker, while it shares buffers.
    fn tell(dispatcher: &mut Dispatcher, result: Result<Phase>, sharing: Option<Sharing>) {
        let (mut loading, mut journal, next) = match replace(&mut dispatcher.activity, Activity::Closed) {
            Activity::Loading { loading, journal } => (loading, journal, Activity::Running),
            Activity::Replaying(Some(loading)) => (loading, None, Activity::Replaying(None)),
            other => {
                dispatcher.activity = other;
                return;
            }
        };
        let name = image_name(&loading.work.image);
        let outcome = result.map(|phase| vec![phase]).map_err(|error| {
            let problem = LoadingError::Failed { image: name, source: Arc::new(error) };
            log::error!("{problem}");
            problem
        });
        journal.iter_mut().for_each(Journal::settle);
        // What the program asks for after a failure would meet contents that are not its own.
        if outcome.is_ok() {
            dispatcher.activity = match sharing.zip(journal) {
                Some((sharing, mut journal)) => {
                    journal.begin_anew();
                    Activity::Sharing(Shared { sharing, journal })
                }
                None => {
                    dispatcher.client.mend_no_more();
                    next
                }
            };
        }
        dispatcher.loaded = Some(outcome.clone());
        if let (Err(problem), true) = (&outcome, loading.waiting.is_empty()) {
            dispatcher.end(Ended::Failed(problem.to_string()));
        }
        for waiting in loading.waiting.drain(..) {
            let _ = waiting.send(outcome.clone());
        }
    }

    fn finish(&mut self, client: &mut Client, later: &mut DeferredWork) -> Result<Phase> {
        let panicked = || Err(Error::Refused("a thread that loaded buffers panicked".to_string()));
        let loaded =
            self.thread.take().map_or_else(panicked, |thread| thread.join().unwrap_or_else(|_| panicked()));
        let (phase, left, arrived) = loaded?;
        later.push(move || drop(left.views));
        left.resident.into_iter().for_each(|resident| later.unpin(resident));
        if self.work.hidden.is_none() {
            unmap_windows(client, &self.work.windows)?;
            restore_memory::protect(client, &self.work.state)?;
            client.declare_all();
            let taken = client.take_arrived(&self.work.arrivals, &arrived);
            taken.map_err(device("have what another process of the program shares"))?;
        }
        Ok(phase)
    }

    /// Has the outcome sent, now or when it is known.
    pub(crate) fn await_outcome(dispatcher: &mut Dispatcher, answer: Sender<Outcome>) {
        match (dispatcher.activity.loading(), &dispatcher.loaded) {
            (Some(loading), _) => loading.waiting.push(answer),
            (None, Some(outcome)) => {
                let _ = answer.send(outcome.clone());
            }
            (None, None) => {
                let _ = answer.send(Err(LoadingError::Nothing));
            }
        }
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn image_name(image: &Image) -> String {
    let path: PathBuf = image.path().to_path_buf();
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}
