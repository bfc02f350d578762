//! Contents of buffers that are still on their way while the program runs already.
//!
//! Requests of the program wait meanwhile, all of them: a kernel may reach any buffer through pointers in memory, so
//! which ones it needs is not known before it runs.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use rekindle_protocol::worker::Phase;
use rekindle_store::Image;

use super::block::{Gpu, Preparing};
use super::cache::Views;
use super::error::{Error, Result};
use super::save_memory::{Window, unmap_windows};
use super::source::Sources;
use super::state::State;
use super::{contents, restore_memory};
use crate::dispatch::{Desk, Ended, Remote};

/// What is answered to whoever waits for the end.
pub(crate) type Outcome = std::result::Result<Vec<Phase>, String>;

/// What is loaded, and from where.
pub(super) struct Work {
    pub image: Image,
    pub state: State,
    pub windows: Vec<Window>,
    pub gpus: Vec<Option<Gpu>>,
    /// Names of parts whose memory was taken over with its contents.
    pub left: HashSet<String>,
    /// What of the image lies in caches; the thread that loads takes it.
    pub views: Mutex<Views>,
}

pub(crate) struct Loading {
    work: Arc<Work>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Phase>>>,
    waiting: Vec<Sender<Outcome>>,
}

impl Loading {
    /// Begins it. The dispatch thread ends it, [`Loading::end`], when told by `remote`. `since` is when the restore
    /// began.
    pub(super) fn begin(work: Work, blocks: Preparing, remote: Remote, since: Instant) -> Result<Loading> {
        let work = Arc::new(work);
        let parts = restore_memory::work(&work.image, &work.state, &work.windows, &work.left)?;
        let bytes = parts.iter().map(|(place, _)| place.bytes).sum();
        let stop = Arc::new(AtomicBool::new(false));
        let (loaded, told) = (work.clone(), stop.clone());
        let load = move || {
            let began = Instant::now();
            let views = std::mem::take(&mut *loaded.views.lock().unwrap_or_else(PoisonError::into_inner));
            let sources = Sources::of(&loaded.image, &views);
            let result = restore_memory::work(&loaded.image, &loaded.state, &loaded.windows, &loaded.left)
                .and_then(|parts| contents::load(&loaded.gpus, blocks, &sources, &parts, &told));
            remote.run(Loading::end);
            let from = sources.tally();
            // Letting go of memory takes longer than the program should wait.
            std::thread::spawn(move || drop(views));
            result.map(|()| Phase {
                name: "GPU memory".to_string(),
                start_us: (began - since).as_micros() as u64,
                duration_us: began.elapsed().as_micros() as u64,
                bytes,
                from,
                ..Phase::default()
            })
        };
        let thread = std::thread::Builder::new().name("loading".into()).spawn(load);
        let thread =
            thread.map_err(|source| Error::Io { action: "start", path: "a thread".to_string(), source })?;
        let loading = Loading { work: work.clone(), stop, thread: Some(thread), waiting: Vec::new() };
        // What can be told without reading is told before the program runs.
        parts.iter().try_for_each(|(_, part)| work.image.check_present(part))?;
        Ok(loading)
    }

    /// The contents are there, or cannot be.
    fn end(desk: &mut Desk) {
        let Some(mut loading) = desk.loading.take() else { return };
        let result = loading.finish(desk);
        let name = image_name(&loading.work.image);
        let outcome = result.map(|phase| vec![phase]).map_err(|error| {
            let problem = format!("image {name:?} could not be loaded: {error}");
            log::error!("{problem}");
            problem
        });
        desk.loaded = Some(outcome.clone());
        if let (Err(problem), true) = (&outcome, loading.waiting.is_empty()) {
            desk.end(Ended::Failed(problem.clone()));
        }
        for waiting in loading.waiting.drain(..) {
            let _ = waiting.send(outcome.clone());
        }
    }

    fn finish(&mut self, desk: &mut Desk) -> Result<Phase> {
        let panicked = || Err(Error::Refused("a thread that loaded buffers panicked".to_string()));
        let loaded =
            self.thread.take().map_or_else(panicked, |thread| thread.join().unwrap_or_else(|_| panicked()));
        let phase = loaded?;
        unmap_windows(&mut desk.engine, &self.work.windows)?;
        restore_memory::protect(&mut desk.engine, &self.work.state)?;
        Ok(phase)
    }

    /// Has the outcome sent, now or when it is known.
    pub(crate) fn await_outcome(desk: &mut Desk, answer: Sender<Outcome>) {
        match (&mut desk.loading, &desk.loaded) {
            (Some(loading), _) => loading.waiting.push(answer),
            (None, Some(outcome)) => {
                let _ = answer.send(outcome.clone());
            }
            (None, None) => {
                let _ = answer.send(Err("nothing is being loaded".to_string()));
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
