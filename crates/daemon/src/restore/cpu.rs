//! CRIU brings the CPU half back.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rekindle_sandbox::{ExternalSocket, RestoreReport, RestoreSpec, Restored, Sandbox, autobound};
use rekindle_store::PartKind;

use super::{Attempt, available_threads};
use crate::error::{Error, Result};
use crate::timeline::CPU;
use crate::{cpu_pages, driver_half};

/// How long CRIU may take.
const CRIU_LIMIT: Duration = Duration::from_secs(120);

impl Attempt<'_> {
    pub(super) fn restore_cpu(
        &self,
        sockets: &[ExternalSocket<'_>],
        before_resume: impl FnOnce(&Restored) -> Result<()>,
    ) -> Result<Sandbox> {
        let cpu = self.timeline.lane(CPU);
        let checked = cpu.time("check files", || self.check_cpu_files())?;
        let own = self.held.pages.with_extension("images");
        let mut names = autobound::settle(&checked, &own)
            .map_err(|source| Error::io("give other names to sockets in", &own, source))?;
        let images = names.as_ref().map_or(&*checked, |names| names.images(&checked)).to_path_buf();
        cpu.time("link pages", || cpu_pages::link(self.image, &self.held.pages, available_threads()))?;
        let sockets = sockets
            .iter()
            .map(|socket| ExternalSocket { inode: socket.inode, socket: socket.socket })
            .collect();
        let criu = match self.kept.amd.is_empty() {
            true => self.daemon.criu()?.clone(),
            false => {
                driver_half::amd_criu(self.daemon.criu()?, || "the image has an AMD GPU half".to_string())?
            }
        };
        let spec = RestoreSpec {
            sandbox: self.held.place(),
            criu: &criu,
            images_dir: &images,
            inventory: Some(&self.kept.inventory),
            sockets,
            timeout: CRIU_LIMIT,
        };
        let failure = Mutex::new(None);
        let start_us = self.timeline.elapsed_us();
        let restored = Sandbox::restore(&spec, |restored| {
            if let Some(names) = &mut names {
                names.bound();
            }
            before_resume(restored).map_err(|error| {
                let sentence = error.to_string();
                *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                sentence
            })
        });
        match restored {
            Ok((cpu, report)) => {
                self.note_restore(start_us, &report);
                Ok(cpu)
            }
            Err(error) => {
                let cause = failure.lock().unwrap_or_else(PoisonError::into_inner).take();
                Err(cause.unwrap_or_else(|| self.daemon.places.keep_words(error)))
            }
        }
    }

    fn note_restore(&self, start_us: u64, report: &RestoreReport) {
        let micros = |duration: Duration| duration.as_micros() as u64;
        let cpu = self.timeline.lane(CPU);
        cpu.note("namespaces", start_us, micros(report.namespaces), 0);
        let criu_us = start_us + micros(report.namespaces);
        let mut step_us = 0;
        for step in &report.steps {
            let name = format!("criu to {}", step.name);
            cpu.note(&name, criu_us + step_us, step.at_us.saturating_sub(step_us), 0);
            step_us = step.at_us;
        }
        let end_us = micros(report.until_restored + report.restored_step);
        // CRIU's clock began when it was asked, which its last step so far tells.
        let asked_us = micros(report.until_restored).saturating_sub(step_us);
        let mut done_us = end_us;
        for step in &report.last_steps {
            let (name, at_us) = (format!("criu to {}", step.name), asked_us + step.at_us);
            cpu.note(&name, criu_us + done_us, at_us.saturating_sub(done_us), 0);
            done_us = done_us.max(at_us);
        }
        let left = micros(report.total).saturating_sub(micros(report.namespaces) + done_us);
        cpu.note("criu lets go", criu_us + done_us, left, 0);
    }

    /// CRIU reads its files in place: they are checked whole before it does.
    fn check_cpu_files(&self) -> Result<PathBuf> {
        let parts: Vec<_> = self.image.parts(PartKind::CpuFile).collect();
        self.image.check_parts(&parts, available_threads())?;
        let file = parts.last().and_then(|part| self.image.file_path(part));
        let directory = file.and_then(|path| path.parent().map(Path::to_path_buf));
        directory.ok_or_else(|| self.refused("its CPU half does not lie in files of its own"))
    }
}
