//! What an attempt puts into the image: both halves, what describes them, and then the whole.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use rekindle_protocol::daemon::Mode;
use rekindle_protocol::tuning;
use rekindle_protocol::worker::Contents;
use rekindle_sandbox::pages::Layout;
use rekindle_sandbox::{Frozen, PartialInventory, core_files, driver_socket, inherited, timers};
use rekindle_store::{Draft, Image, Part};

use crate::error::{Error, Result};
use crate::fault;
use crate::images::ImageError;
use crate::images::cpu_images;
use crate::images::cpu_pages;
use crate::images::driver_half::DriverHalf;
use crate::images::machine;
use crate::images::metadata::ImageMetadata;
use crate::images::verify::cpu_half;
use crate::restore::proof;
use crate::sandboxes::members;
use crate::sandboxes::standstill::{self, Standstill};
use crate::timeline::{CPU, GPU};
use crate::workers::{Worker, WorkerError, gpu_half};

use super::attempt::{Attempt, QuiescedGpu, Subject};

impl Attempt<'_> {
    /// The pages of the CPU half wait until that is done, however it ends.
    pub(super) fn save(&self, paths: &[PathBuf], _done: Done<'_>) -> Result<Vec<Part>> {
        let _ = self.saved_us.set(self.timeline.elapsed_us());
        standstill::save(self.workers(), paths, self.contents(), self.timeline)
    }

    /// The code of a program that goes on is written before it stands still, and GPU memory where there would be no room for a
    /// copy.
    pub(super) fn write_ahead(&self, draft: &Draft) -> Result<()> {
        if self.contents() != Contents::Shadowed || self.workers().is_empty() {
            return Ok(());
        }
        self.reply.progress("write ahead", 0, 0);
        let _ = self.written_ahead.set(());
        let write = |worker: &Arc<Worker>| {
            let start_us = self.timeline.elapsed_us();
            gpu_half::save_code(worker, draft.path())?;
            self.timeline.lane(GPU).note("code", start_us, self.timeline.elapsed_us() - start_us, 0);
            gpu_half::save_ahead(worker, draft.path(), self.timeline)
        };
        gpu_half::each(self.workers(), write)?;
        self.step("written-ahead")
    }

    /// A program that goes on does so while its GPU memory is written.
    pub(super) fn contents(&self) -> Contents {
        let is_off = tuning::is(tuning::SHADOW, "off");
        if self.request.leave_running && !is_off { Contents::Shadowed } else { Contents::Saved }
    }

    /// An attempt that has failed leaves no copy of the program's memory on the GPU.
    pub(super) fn give_up_drain(&self) {
        let has_begun = self.saved_us.get().is_some() || self.written_ahead.get().is_some();
        let saved = self.workers().iter().filter(|_| has_begun);
        for worker in saved.filter(|worker| worker.ended().is_none()) {
            if let Err(error) = gpu_half::give_up_drain(worker) {
                log::warn!("{error}");
            }
        }
    }

    /// The program goes on: what was shadowed of its GPU memory comes to the draft.
    pub(super) fn drain(&self, draft: &Mutex<Option<Draft>>, catch_up: Duration) -> Result<()> {
        let Some(saved_us) = self.saved_us.get() else { return Ok(()) };
        self.reply.progress("drain", 0, 0);
        self.step("draining")?;
        let drain = |worker: &Arc<Worker>| gpu_half::drain(worker, *saved_us, catch_up, self.timeline);
        let parts = gpu_half::each(self.workers(), drain)?.concat();
        let draft = draft.lock().unwrap_or_else(PoisonError::into_inner);
        draft.as_ref().ok_or(ImageError::NoDraft)?.adopt(parts).map_err(Error::from)
    }

    /// The program stands still with its CPU half written: takes all that can only be had now.
    pub(super) fn gather(
        &self,
        frozen: &Frozen<'_>,
        draft: &Mutex<Option<Draft>>,
        save: Option<ScopedJoinHandle<'_, Result<Vec<Part>>>>,
        paths: &[PathBuf],
        quiesced: &QuiescedGpu<'_>,
        inventory: PartialInventory,
    ) -> Result<()> {
        self.step("frozen")?;
        let draft = draft.lock().unwrap_or_else(PoisonError::into_inner);
        let draft = draft.as_ref().ok_or(ImageError::NoDraft)?;
        let parts = self.timeline.lane(CPU).wait("wait for the GPU half", &[GPU], || join(save))?;
        draft.adopt(parts)?;
        self.step("saved")?;
        for (worker, place) in self.workers().iter().zip(paths) {
            draft.adopt(gpu_half::save_pinned(worker, place, self.timeline)?)?;
        }
        self.step("pinned-saved")?;
        self.timeline.time("describe", || self.describe(frozen, draft, quiesced, inventory))
    }

    /// Puts the CPU half into the draft.
    pub(super) fn take_cpu(&self, draft: &Mutex<Option<Draft>>, images: &Path) -> Result<()> {
        let slot = draft.lock().unwrap_or_else(PoisonError::into_inner);
        let draft = slot.as_ref().ok_or(ImageError::NoDraft)?;
        self.timeline.time("manifest", || self.write_manifest(draft))?;
        core_files::remove_unwritten(images).map_err(|source| Error::io("clean up", images, source))?;
        let served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        match (self.subject.mode, &*served) {
            // There is no client, by which alone it is safe to map all that can be.
            (Mode::Driver, Some(served)) => {
                self.timeline.time("cpu files", || cpu_pages::take(draft, images, served))
            }
            (Mode::Driver, None) => Err(ImageError::Pages { what: "they did not come".to_string() }.into()),
            (Mode::Sandbox, served) => {
                let based = served.as_ref().map(|served| &served.based);
                self.timeline.time("cpu pages", || self.convert(draft, images, based))?;
                inherited::part(images).map_err(|source| Error::io("rewrite", images, source))?;
                driver_socket::silence(images).map_err(|source| Error::io("rewrite", images, source))?;
                timers::wind(images).map_err(|source| Error::io("rewrite", images, source))?;
                // A conversion has written them anew, and nothing is known of them.
                let take = || cpu_images::take(draft, images, &HashMap::new(), |_| true);
                self.timeline.time("cpu files", take)
            }
        }
    }

    /// Makes an image of what was gathered.
    pub(super) fn seal(&self, draft: &Mutex<Option<Draft>>) -> Result<()> {
        self.reply.progress("commit", 0, 0);
        let mut slot = draft.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(draft) = slot.as_ref() {
            self.timeline.time("check", || cpu_half::check_draft(draft))?;
        }
        self.step("before-commit")?;
        if let Some(draft) = slot.take() {
            let prove = |image: &Image| proof::prove(self.daemon, image);
            let wanted = self.request.is_proof_wanted();
            let (id, told) = proof::commit(self.daemon, draft, wanted, self.timeline, self.reply, prove)?;
            self.warnings.lock().unwrap_or_else(PoisonError::into_inner).extend(told);
            let _ = self.made.set(id);
        }
        fault::point("in-image")
    }

    /// Has the program's memory mapped from the image on a restore.
    fn convert(&self, draft: &Draft, images: &Path, based: Option<&Layout>) -> Result<()> {
        let earlier = self.earlier_pages.get_or_init(|| self.read_earlier());
        let in_order = self.copied_ahead.get().is_none();
        let last = based.filter(|_| self.last_links.get().is_some());
        let (warnings, layout) = cpu_pages::convert(draft, images, earlier, last, in_order)?;
        *self.layout.lock().unwrap_or_else(PoisonError::into_inner) = layout;
        let all = self.warn(warnings);
        ImageMetadata::warn(&mut draft.manifest(), &all);
        Ok(())
    }

    /// Adds to what the user should know of the image; all of it.
    fn warn(&self, warnings: Vec<String>) -> Vec<String> {
        for warning in &warnings {
            log::warn!("image {:?}: {warning}", self.request.to);
        }
        let mut all = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(warnings);
        all.clone()
    }

    /// The processes that have a GPU half, as we see them.
    fn gpu_users(&self, quiesced: &QuiescedGpu<'_>) -> Result<Vec<i32>> {
        let mut users = quiesced.hold.map(|hold| hold.held.pids.clone()).unwrap_or_default();
        for client in quiesced.clients() {
            users.push(self.client_pid(client)?);
        }
        users.extend(self.amd.iter().filter_map(|pid| self.subject.cpu.host_pid(*pid)));
        Ok(users)
    }

    fn describe(
        &self,
        frozen: &Frozen<'_>,
        draft: &Draft,
        quiesced: &QuiescedGpu<'_>,
        inventory: PartialInventory,
    ) -> Result<()> {
        let Subject { name, command, gpu, cpu, network, ports, limits, mounts, slice, tenant, .. } =
            &self.subject;
        let inventory = frozen.inventory(inventory)?;
        members::all_live(&self.gpu_users(quiesced)?)?;
        let mut manifest = draft.manifest();
        manifest.program = machine::program(command, cpu);
        let driver = quiesced.hold.map(|hold| DriverHalf::of(hold, cpu));
        manifest.gpus = match &driver {
            Some(half) => half.shown_gpus(),
            None => quiesced.status.map(machine::gpus).unwrap_or_default(),
        };
        let clients: Vec<_> = quiesced.clients().cloned().collect();
        manifest.halves = quiesced.standing.map(Standstill::apart).unwrap_or_default();
        let slices = self.workers().iter().map(|worker| worker.slice());
        let slices = if clients.len() > 1 { slices.collect() } else { Vec::new() };
        let metadata = ImageMetadata {
            name: name.clone(),
            gpu: gpu.clone(),
            inventory,
            clients,
            driver,
            amd: self.amd.clone(),
            framework: self.request.framework,
            container: None,
            network: *network,
            ports: ports.clone(),
            limits: *limits,
            mounts: mounts.clone(),
            slice: *slice,
            slices,
            tenant: tenant.clone(),
            warnings: Vec::new(),
        };
        *self.described.lock().unwrap_or_else(PoisonError::into_inner) = Some(metadata);
        Ok(())
    }

    /// Writes down what was described, for which nothing need stand still.
    fn write_manifest(&self, draft: &Draft) -> Result<()> {
        let described = self.described.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut metadata) = described else { return Err(ImageError::NoDraft.into()) };
        let mut manifest = draft.manifest();
        manifest.mode = machine::mode(self.subject.mode);
        manifest.machine = machine::this();
        manifest.files = metadata.inventory.files.iter().map(machine::mapped_file).collect();
        metadata.warnings = self.warn(metadata.inventory.attributes.lost());
        metadata.write(&mut manifest)
    }
}

fn join(save: Option<ScopedJoinHandle<'_, Result<Vec<Part>>>>) -> Result<Vec<Part>> {
    match save {
        None => Ok(Vec::new()),
        Some(thread) => thread.join().unwrap_or_else(|_| {
            Err(WorkerError::Failed {
                action: "save the GPU half",
                reason: "the thread that asked panicked".into(),
            }
            .into())
        }),
    }
}

/// Says when it goes that something is done.
pub struct Done<'a>(pub &'a OnceLock<()>);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        let _ = self.0.set(());
    }
}
