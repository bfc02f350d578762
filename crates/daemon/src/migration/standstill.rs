//! The part of a move for which the program stands still.

use std::path::Path;
use std::time::Instant;

use rekindle_protocol::daemon::{Round, Way};
use rekindle_protocol::worker::{Cached, Contents};
use rekindle_store::{Image, Store};

use crate::caches::chunks;
use crate::error::{Error, Result};
use crate::fault;
use crate::images::machine;
use crate::sandboxes::quiesce::QuiesceBarrier;
use crate::timeline::GPU;
use crate::workers::gpu_half;

use super::ahead::{Ahead, new_in};
use super::{Move, arrive, hand_over};

impl Move<'_> {
    /// Brings the program to a stand, and has it go on there; or where it is, if that fails.
    pub(super) fn stop_and_move(&self, store: &Store, way: Way, ahead: Option<&Ahead>) -> Result<Round> {
        let contents = if way == Way::Direct { Contents::Left } else { Contents::Saved };
        let draft = store.begin(&self.image_name(0))?;
        self.timeline.time("code", || gpu_half::save_code(&self.source, draft.path()))?;
        let began = Instant::now();
        self.reply.progress("quiesce", 0, 0);
        let barrier =
            self.timeline.time("quiesce", || QuiesceBarrier::begin(self.sandbox, &self.source, contents))?;
        let moved = self.move_half(&barrier, draft, contents, ahead);
        match moved {
            Ok((bytes, problem)) => {
                barrier.end();
                let stopped_us = began.elapsed().as_micros() as u64;
                let moved = Some(&self.source);
                arrive(self.sandbox, &self.moving, moved, &self.target);
                if let Some(error) = problem {
                    self.sandbox.report_problem(error.to_string());
                }
                Ok(Round { bytes, duration_us: stopped_us, stopped_us })
            }
            Err(error) => {
                // It may not have the client when the program goes on where it was.
                self.target.kill();
                Err(error)
            }
        }
    }

    /// Returns once the program goes on there, with how many bytes were copied, and with what is to be said of it.
    fn move_half(
        &self,
        barrier: &QuiesceBarrier<'_>,
        draft: rekindle_store::Draft,
        contents: Contents,
        ahead: Option<&Ahead>,
    ) -> Result<(u64, Option<Error>)> {
        fault::point("migrate-quiesced")?;
        self.reply.progress("save", 0, 0);
        draft.adopt(gpu_half::save(&self.source, draft.path(), contents, self.timeline)?)?;
        draft.manifest().gpus = machine::gpus(&self.status);
        let image = self.timeline.time("commit", || draft.commit())?;
        fault::point("migrate-saved")?;
        let chunks = chunks::of(&image);
        let bytes = match contents {
            Contents::Left => self.status.device_bytes,
            _ => new_in(&chunks, ahead),
        };
        if contents == Contents::Left {
            self.timeline.time("lend memory", || hand_over::lend(&self.source, &self.target, true))?;
        }
        self.rebuild(&image, contents, ahead.map_or_else(Vec::new, |ahead| ahead.rows(&chunks)))?;
        fault::point("migrate-restored")?;
        self.reply.check_wanted()?;
        let attached = barrier.client.driver_attached;
        self.timeline.time("hand over", || hand_over::give(&self.source, &self.target, self.moving.pid))?;
        let resumed = self
            .timeline
            .time("resume", || gpu_half::resume(&self.target, false, attached))
            .and_then(|()| fault::point("migrate-resumed"));
        match resumed {
            Ok(()) => Ok((bytes, None)),
            // It has the word, and goes on when it comes to read it: it may be stopped by a signal.
            Err(error) if hand_over::is_there(self.sandbox, &self.source, &self.target) => {
                Ok((bytes, Some(error)))
            }
            Err(error) => Err(error),
        }
    }

    fn rebuild(&self, image: &Image, contents: Contents, cached: Vec<Cached>) -> Result<()> {
        self.reply.progress("restore", 0, 0);
        let (lane, start_us) = (self.timeline.lane(GPU), self.timeline.elapsed_us());
        let directory: &Path = &self.sandbox.run_directory;
        let restored = gpu_half::restore_beside(&self.target, image, directory, cached);
        lane.merge(start_us, restored.map_err(|error| self.advise(error, contents))?);
        // Contents too: until they are there, the program can go on where it was.
        lane.merge(start_us, gpu_half::loaded(&self.target, None)?);
        Ok(())
    }

    /// What the other GPU could not copy by itself may go through the host's memory.
    fn advise(&self, error: Error, contents: Contents) -> Error {
        match error {
            Error::Worker { reason, .. } if contents == Contents::Left => Error::CannotMove {
                name: self.sandbox.name(),
                reason: format!("{reason}; with `--rounds 4` its memory goes through the host's"),
            },
            other => other,
        }
    }
}
