//! The part of a move for which the program stands still.

use std::path::Path;
use std::time::Instant;

use rekindle_protocol::daemon::{MigrationPath, Round};
use rekindle_protocol::worker::{Cached, Contents};
use rekindle_store::{Draft, Image, Store};

use crate::error::{Error, Result};
use crate::fault;
use crate::images::machine;
use crate::migration::MigrationError;
use crate::sandboxes::standstill::Standstill;
use crate::timeline::GPU;
use crate::workers::WorkerError;
use crate::workers::gpu_half;

use super::hand_over::{self, Together};
use super::ipc_names;
use super::plan::Way;
use super::pre_copy::PreCopy;
use super::{Half, Migration, arrive, plan};

impl Migration<'_> {
    /// Brings the program to a stand, and has it go on there; or where it is, if that fails. `pre_copy`: of each half.
    pub(super) fn stop_and_move(
        &self,
        store: &Store,
        way: &Way,
        pre_copy: &[Option<PreCopy>],
    ) -> Result<Round> {
        let contents = if way.path == MigrationPath::Direct { Contents::Left } else { Contents::Saved };
        let begin = |half: &Half| Ok(store.begin(&self.image_name(half, 0))?);
        let drafts = self.halves.iter().map(begin).collect::<Result<Vec<_>>>()?;
        let halves: Vec<_> = self.halves.iter().zip(&drafts).collect();
        let save_code = |(half, draft): &(&Half, &Draft)| gpu_half::save_code(&half.source, draft.path());
        self.timeline.time("code", || gpu_half::each(&halves, save_code))?;
        drop(halves);
        let began = Instant::now();
        self.reply.progress("quiesce", 0, 0);
        let sources = self.halves.iter().map(|half| &half.source);
        let begin = || Standstill::begin(self.sandbox, sources, contents);
        let standing = self.timeline.time("quiesce", begin)?;
        match self.move_halves(&standing, drafts, (contents, &way.stays), pre_copy) {
            Ok((bytes, problem)) => {
                standing.end();
                let stopped_us = began.elapsed().as_micros() as u64;
                let rows = self.halves.iter().map(|half| (half.process(), Some(&half.source), &half.target));
                let moving = self.sandbox.record().moving;
                moving.into_iter().for_each(|moving| arrive(self.sandbox, &moving, rows.clone()));
                if let Some(error) = problem {
                    self.sandbox.report_problem(error.to_string());
                }
                Ok(Round { bytes, duration_us: stopped_us, stopped_us })
            }
            Err(error) => {
                // None may have its client when the program goes on where it was.
                self.halves.iter().for_each(|half| half.target.kill());
                Err(error)
            }
        }
    }

    /// Returns once the program goes on there, with how many bytes were copied, and with what is to be said of it.
    fn move_halves(
        &self,
        standing: &Standstill<'_>,
        drafts: Vec<Draft>,
        (contents, stays): (Contents, &[usize]),
        pre_copy: &[Option<PreCopy>],
    ) -> Result<(u64, Option<Error>)> {
        fault::point("migrate-quiesced")?;
        self.reply.progress("save", 0, 0);
        let halves: Vec<_> = self.halves.iter().zip(&drafts).collect();
        gpu_half::each(&halves, |(half, draft)| {
            draft.adopt(gpu_half::save(&half.source, draft.path(), contents, self.timeline)?)?;
            draft.manifest().gpus = machine::gpus(&half.status);
            Ok(())
        })?;
        drop(halves);
        let commit = || drafts.into_iter().map(|draft| Ok(draft.commit()?)).collect::<Result<Vec<_>>>();
        let images = self.timeline.time("commit", commit)?;
        fault::point("migrate-saved")?;
        let mut bytes = 0;
        let mut halves = Vec::new();
        for ((half, image), pre_copy) in self.halves.iter().zip(&images).zip(pre_copy) {
            bytes += match contents {
                Contents::Left => {
                    let kept: u64 = stays.iter().map(|place| half.bytes_on(*place)).sum();
                    half.status.device_bytes.saturating_sub(kept)
                }
                _ => half.new_in(image, pre_copy.as_ref()),
            };
            let cached = pre_copy.as_ref().map_or_else(Vec::new, |pre_copy| pre_copy.rows(image));
            halves.push((half, image, cached));
        }
        if contents == Contents::Left {
            let lend = |half: &Half| hand_over::lend(&half.source, &half.target, Some(stays));
            self.timeline.time("lend memory", || gpu_half::each(&self.halves, lend))?;
        }
        ipc_names::withdraw(&self.sandbox.run_directory)?;
        self.reply.progress("restore", 0, 0);
        gpu_half::each(&halves, |(half, image, cached)| {
            self.rebuild(half, image, contents, cached.clone()).inspect_err(|_| {
                // Others may wait for memory of this one.
                self.halves.iter().for_each(|half| half.target.kill());
            })
        })?;
        fault::point("migrate-restored")?;
        self.reply.check_wanted()?;
        plan::check_all(self)?;
        let together = if self.halves.len() > 1 { Some(Together::new()?) } else { None };
        self.timeline.time("hand over", || {
            let give = |half: &Half| hand_over::give(&half.source, &half.target, together.as_ref());
            self.halves.iter().try_for_each(give)
        })?;
        let attached: Vec<bool> = standing.clients().map(|client| client.driver_attached).collect();
        let problem = match together {
            Some(together) => self.go_on_together(together, &attached)?,
            None => self.go_on(&attached)?,
        };
        Ok((bytes, problem))
    }

    /// Of a program with one half: it goes on there when the worker there has written its byte.
    fn go_on(&self, attached: &[bool]) -> Result<Option<Error>> {
        let ([half], [attached]) = (&self.halves[..], attached) else { return Ok(None) };
        match self.resume(half, *attached) {
            Ok(()) => Ok(None),
            // It has the word, and goes on when it comes to read it: it may be stopped by a signal.
            Err(error) if hand_over::is_there(self.sandbox, &half.source, &half.target) => Ok(Some(error)),
            Err(error) => Err(error),
        }
    }

    /// Of a program with several: all go on there from the moment when that is said. The first problem is told.
    fn go_on_together(&self, together: Together, attached: &[bool]) -> Result<Option<Error>> {
        // One that has ended meanwhile, or stopped listening, is known of now.
        gpu_half::each(&self.halves, |half| half.target.status())?;
        fault::point("migrate-together")?;
        together.say(self.halves.len())?;
        let said = fault::point("migrate-said");
        let halves = self.halves.iter().zip(attached);
        // Each, whether or not another did.
        let resumed: Vec<Result<()>> = halves.map(|(half, attached)| self.resume(half, *attached)).collect();
        Ok(std::iter::once(said).chain(resumed).find_map(Result::err))
    }

    fn resume(&self, half: &Half, attached: bool) -> Result<()> {
        self.timeline
            .time("resume", || gpu_half::resume(&half.target, false, attached))
            .and_then(|()| fault::point("migrate-resumed"))
    }

    fn rebuild(&self, half: &Half, image: &Image, contents: Contents, cached: Vec<Cached>) -> Result<()> {
        let (lane, start_us) = (self.timeline.lane(GPU), self.timeline.elapsed_us());
        let directory: &Path = &self.sandbox.run_directory;
        let restored = gpu_half::restore_beside(&half.target, image, directory, cached);
        lane.merge(start_us, restored.map_err(|error| self.advise(error, contents))?);
        // Contents too: until they are there, the program can go on where it was.
        lane.merge(start_us, gpu_half::loaded(&half.target, None)?);
        Ok(())
    }

    /// What the other GPU could not copy by itself may go through the host's memory.
    fn advise(&self, error: Error, contents: Contents) -> Error {
        match error {
            Error::Workers(WorkerError::Failed { reason, .. }) if contents == Contents::Left => {
                MigrationError::CannotMove {
                    name: self.sandbox.name(),
                    reason: format!("{reason}; with `--rounds 4` its memory goes through the host's"),
                }
                .into()
            }
            other => other,
        }
    }
}
