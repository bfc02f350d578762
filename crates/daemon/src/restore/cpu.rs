//! CRIU brings the CPU half back.
//!
//! ```text
//! sandbox    namespaces, CRIU's process ─┐
//! cpu half   check files ─ link pages ───┴─ CRIU restores ─┬─ populate ─ the program may run
//! cpu pages  check pages ──────────────────────────────────┘
//! ```
//!
//! What CRIU acts on was checked before. Pages it only puts, or maps, where the program finds them: they are checked
//! beside it, and the program does not run before that. If CRIU fails, what is damaged there is the better reason.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rekindle_parallel::go_first;
use rekindle_sandbox::autobound::{self, Names};
use rekindle_sandbox::pages;
use rekindle_sandbox::{
    Criu, ExternalSocket, ReadySandbox, RestoreReport, RestoreSpec, Restored, Sandbox as CpuHalf,
};

use super::{Attempt, available_threads, join};
use crate::error::{Error, Result};
use crate::fault;
use crate::images::verify::page_files;
use crate::images::{cpu_images, cpu_pages, driver_half};
use crate::sandboxes::members::Members;
use crate::timeline::{CPU, PAGES, SANDBOX};

/// How long CRIU may take.
const CRIU_LIMIT: Duration = Duration::from_secs(120);

/// Images as CRIU is to find them.
struct Images {
    checked: PathBuf,
    names: Option<Names>,
}

impl Attempt<'_> {
    pub(super) fn restore_cpu(
        &self,
        sockets: &[ExternalSocket<'_>],
        before_resume: impl FnOnce(&Restored) -> Result<()>,
    ) -> Result<CpuHalf> {
        cpu_pages::furnish(self.image, &self.sandbox.pages)?;
        let criu = self.criu()?;
        let spec = RestoreSpec {
            sandbox: self.sandbox.spec(),
            criu: &criu,
            inventory: Some(&self.metadata.inventory),
            sockets: sockets.to_vec(),
            input: self.request.input.as_ref().map(AsFd::as_fd),
            timeout: CRIU_LIMIT,
            steps_told: log::log_enabled!(log::Level::Debug),
        };
        std::thread::scope(|scope| {
            let vacant = scope
                .spawn(|| self.timeline.lane(SANDBOX).time("namespaces", || Ok(ReadySandbox::make(&spec)?)));
            let pages = scope.spawn(|| {
                go_first();
                self.timeline.lane(PAGES).time("check pages", || self.check_pages())
            });
            let ready = self.check_files().and_then(|images| self.link_pages().map(|()| images));
            let vacant = self.timeline.lane(CPU).wait("wait for the sandbox", &[SANDBOX], || join(vacant));
            let (mut images, vacant) = match (ready, vacant) {
                (Ok(images), Ok(vacant)) => (images, vacant),
                (Ok(_), Err(error)) => return Err(error),
                (Err(error), vacant) => {
                    vacant.into_iter().for_each(ReadySandbox::kill);
                    return Err(error);
                }
            };
            if let Err(error) = fault::point("restore-vacant") {
                vacant.kill();
                return Err(error);
            }
            let mut pages = Some(pages);
            let lane = self.timeline.lane(CPU);
            let mut whole = || match pages.take() {
                Some(pages) => lane.wait("wait for the pages", &[PAGES], || join(pages)),
                None => Ok(()),
            };
            let checked = images.checked.clone();
            let restored = self.bring_cpu_back(vacant, &mut images, |restored| {
                whole()?;
                self.populate(&checked, restored)?;
                before_resume(restored)
            });
            match restored {
                Ok(cpu) => Ok(cpu),
                Err(error) => whole().and(Err(error)),
            }
        })
    }

    fn criu(&self) -> Result<Criu> {
        match self.metadata.amd.is_empty() {
            true => Ok(self.daemon.criu()?.clone()),
            false => {
                driver_half::amd_criu(self.daemon.criu()?, || "the image has an AMD GPU half".to_string())
            }
        }
    }

    fn bring_cpu_back(
        &self,
        vacant: ReadySandbox,
        images: &mut Images,
        before_resume: impl FnOnce(&Restored) -> Result<()>,
    ) -> Result<CpuHalf> {
        let Images { checked, names } = images;
        let directory = names.as_ref().map_or(&**checked, |names| names.images(checked)).to_path_buf();
        let failure = Mutex::new(None);
        let start_us = self.timeline.elapsed_us();
        let restored = vacant.restore(&directory, |restored| {
            if let Some(names) = names {
                names.bound();
            }
            let members = Members::living("restored", restored.pids().into_values());
            before_resume(restored).map_err(|error| {
                let error = members.explain(error);
                let sentence = error.to_string();
                *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                sentence
            })
        });
        match restored {
            Ok((cpu, report)) => {
                self.note_restore(start_us, &report);
                for warning in &report.warnings {
                    log::warn!("image {:?}: {warning}", self.image.manifest().name);
                }
                self.warnings.lock().unwrap_or_else(PoisonError::into_inner).extend(report.warnings);
                Ok(cpu)
            }
            Err(error) => {
                let cause = failure.lock().unwrap_or_else(PoisonError::into_inner).take();
                Err(cause.unwrap_or_else(|| self.daemon.paths.keep_words(error)))
            }
        }
    }

    /// Writes what CRIU did not read into the program.
    fn populate(&self, images: &Path, restored: &Restored) -> Result<()> {
        let start_us = self.timeline.elapsed_us();
        let written = pages::populate(images, &restored.pids()).map_err(|what| self.refused(&what))?;
        if written > 0 {
            let took_us = self.timeline.elapsed_us() - start_us;
            self.timeline.lane(CPU).note("populate", start_us, took_us, written);
        }
        Ok(())
    }

    fn note_restore(&self, start_us: u64, report: &RestoreReport) {
        let micros = |duration: Duration| duration.as_micros() as u64;
        let cpu = self.timeline.lane(CPU);
        let mut step_us = 0;
        for step in &report.steps {
            let name = format!("criu to {}", step.name);
            cpu.note(&name, start_us + step_us, step.at_us.saturating_sub(step_us), 0);
            step_us = step.at_us;
        }
        let end_us = micros(report.until_restored + report.restored_step);
        // CRIU's clock began when it was asked, which its last step so far tells.
        let asked_us = micros(report.until_restored).saturating_sub(step_us);
        let mut done_us = end_us;
        for step in &report.last_steps {
            let (name, at_us) = (format!("criu to {}", step.name), asked_us + step.at_us);
            cpu.note(&name, start_us + done_us, at_us.saturating_sub(done_us), 0);
            done_us = done_us.max(at_us);
        }
        let left = micros(report.total).saturating_sub(done_us);
        cpu.note("criu lets go", start_us + done_us, left, 0);
    }

    /// Checks whole what CRIU reads in place and acts on, and sees to the names in it.
    fn check_files(&self) -> Result<Images> {
        let cpu = self.timeline.lane(CPU);
        let checked = cpu.time("check files", || cpu_images::check(self.image, available_threads()))?;
        if self.is_proof {
            return Ok(Images { checked: self.images_aside(checked)?, names: None });
        }
        if self.sandbox.network.network().is_some() {
            // Nobody else has names there.
            return Ok(Images { checked, names: None });
        }
        let own = self.sandbox.pages.with_extension("images");
        let names = autobound::settle(&checked, &own)
            .map_err(|source| Error::io("give other names to sockets in", &own, source))?;
        Ok(Images { checked, names })
    }

    fn link_pages(&self) -> Result<()> {
        self.timeline.lane(CPU).time("link pages", || {
            cpu_pages::link(self.image, &self.sandbox.pages)?;
            let mapped = page_files::open(self.image, &self.sandbox.pages)?;
            *self.mapped.lock().unwrap_or_else(PoisonError::into_inner) = mapped;
            Ok(())
        })
    }

    fn check_pages(&self) -> Result<()> {
        // The other half of the processors makes the sandbox and does the GPU half.
        let threads = available_threads().div_ceil(2);
        cpu_images::check_contents(self.image, threads)?;
        cpu_pages::check_linked(self.image, &self.sandbox.pages, threads)
    }
}
