//! Workers that wait for anybody load modules that images have in common ([`Modules`](super::modules)).
//!
//! One module a request, so that whoever takes the worker meanwhile waits for that one alone. An image that is removed
//! meanwhile is not waited for either: what is read of it fails.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rekindle_protocol::worker::{CommonModule, Surveyed, ask};
use rekindle_store::{Image, PartKind};

use super::modules::{Identity, Planned};
use super::{State, WorkerPool};
use crate::error::{Error, Result};
use crate::workers::Worker;

/// How long a worker may take over one image or module. One that takes longer is given up.
const LIMIT: Duration = Duration::from_secs(20);

/// What a waiting worker has loaded ahead, and who sees to it.
#[derive(Default)]
pub(super) struct Preloads {
    pub loaded: Vec<CommonModule>,
    /// A thread does.
    pub busy: bool,
    /// It is to look once more.
    again: bool,
}

enum Step {
    Unload(Vec<String>),
    Load(Planned),
}

impl WorkerPool {
    /// Has those that wait for anybody load what images have in common, as that is now.
    pub fn tend(self: &Arc<WorkerPool>) {
        if self.size.modules == 0 {
            return;
        }
        let mut chosen = Vec::new();
        for spare in &mut self.lock().spares {
            match &mut spare.preloads {
                _ if !spare.ready || spare.want.image.is_some() => {}
                preloads if preloads.busy => preloads.again = true,
                preloads => {
                    preloads.busy = true;
                    chosen.push((spare.worker.clone(), spare.want.gpu.clone()));
                }
            }
        }
        for (worker, gpu) in chosen {
            let pool = self.clone();
            std::thread::spawn(move || pool.tend_one(&worker, &gpu));
        }
    }

    fn tend_one(&self, worker: &Arc<Worker>, gpu: &str) {
        loop {
            let done = self.load_ahead(worker, gpu);
            let mut state = self.lock();
            let Some(preloads) = preloads(&mut state, worker) else { return };
            let again = std::mem::take(&mut preloads.again) && done.is_ok();
            preloads.busy = again;
            if let Err(error) = done {
                log::warn!("a worker that waits does not load modules ahead: {error}");
            }
            if !again {
                return;
            }
        }
    }

    fn load_ahead(&self, worker: &Arc<Worker>, gpu: &str) -> Result<()> {
        let images = self.store.join("images");
        let unknown = self.lock().modules.unknown(gpu, &images);
        for image in unknown {
            if !self.survey(worker, gpu, image)? {
                return Ok(());
            }
        }
        loop {
            let Some(step) = self.next_step(worker, gpu) else { return Ok(()) };
            self.take_step(worker, gpu, step)?;
        }
    }

    /// Has the worker tell which modules an image has. False if it is of no use to go on.
    fn survey(&self, worker: &Arc<Worker>, gpu: &str, image: (PathBuf, Identity)) -> Result<bool> {
        if preloads(&mut self.lock(), worker).is_none() {
            return Ok(false);
        }
        let Ok(opened) = Image::open_unheld(&image.0) else { return Ok(true) };
        let learned = opened.load_order().ok().and_then(|order| order.restores);
        let request = ask::Survey { image: image.0.to_string_lossy().into_owned() };
        let action = "tell which modules an image has";
        let asked = match opened.parts(PartKind::WorkerState).next() {
            Some(_) => worker.ask_within(action, request, &[], Some(LIMIT)),
            // One of mode driver, or without a GPU half, has nothing for a worker.
            None => Ok(Surveyed::default()),
        };
        let surveyed = match asked {
            Ok(surveyed) => surveyed,
            Err(_) if preloads(&mut self.lock(), worker).is_none() => return Ok(false),
            // Whoever restores it is told.
            Err(Error::Worker { .. }) => Surveyed::default(),
            Err(error) => return Err(error),
        };
        self.lock().modules.know(gpu, image, surveyed, u64::from(learned.unwrap_or(0)));
        Ok(true)
    }

    fn next_step(&self, worker: &Arc<Worker>, gpu: &str) -> Option<Step> {
        let mut state = self.lock();
        let plan = state.modules.plan(gpu, self.size.modules);
        let loaded = &preloads(&mut state, worker)?.loaded;
        let is_planned = |key: &str| plan.iter().any(|planned| planned.module.key == key);
        let surplus: Vec<String> =
            loaded.iter().map(|module| module.key.clone()).filter(|key| !is_planned(key)).collect();
        if !surplus.is_empty() {
            return Some(Step::Unload(surplus));
        }
        let is_loaded = |planned: &Planned| loaded.contains(&planned.module);
        plan.iter().find(|planned| !is_loaded(planned)).cloned().map(Step::Load)
    }

    fn take_step(&self, worker: &Arc<Worker>, gpu: &str, step: Step) -> Result<()> {
        let action = "load a module ahead";
        let done = match &step {
            Step::Unload(keys) => {
                worker.ask_within(action, ask::UnloadAhead { keys: keys.clone() }, &[], Some(LIMIT))
            }
            Step::Load(Planned { image, module }) => {
                let image = image.to_string_lossy().into_owned();
                let request = ask::LoadAhead { image, key: module.key.clone() };
                worker.ask_within(action, request, &[], Some(LIMIT))
            }
        };
        let mut state = self.lock();
        match (done, step) {
            (Ok(()), Step::Unload(keys)) => {
                if let Some(preloads) = preloads(&mut state, worker) {
                    preloads.loaded.retain(|module| !keys.contains(&module.key));
                }
            }
            (Ok(()), Step::Load(Planned { module, .. })) => {
                if let Some(preloads) = preloads(&mut state, worker) {
                    preloads.loaded.push(module);
                }
            }
            // One that was taken meanwhile refuses.
            (Err(_), _) if preloads(&mut state, worker).is_none() => {}
            (Err(Error::Worker { reason, .. }), Step::Load(planned)) => {
                log::info!("a module of {} is not loaded ahead: {reason}", planned.image.display());
                state.modules.fails(gpu, &planned);
            }
            (Err(error), _) => return Err(error),
        }
        Ok(())
    }
}

/// While it waits.
fn preloads<'s>(state: &'s mut State, worker: &Arc<Worker>) -> Option<&'s mut Preloads> {
    let found = state.spares.iter_mut().find(|spare| Arc::ptr_eq(&spare.worker, worker));
    found.map(|spare| &mut spare.preloads)
}
