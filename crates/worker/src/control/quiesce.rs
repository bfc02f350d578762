//! The program stands still for a checkpoint, and goes on.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rekindle_protocol::client::{
    Quiesced, RELEASING_CLIENT_VERSION, STEPPING_CLIENT_VERSION, TELLING_CLIENT_VERSION, ToClient,
};
use rekindle_protocol::rounds::Rounds;
use rekindle_protocol::tuning;
use rekindle_protocol::worker::{Contents, WorkWait};

use super::{Control, ControlError};
use crate::dispatch::{DispatchError, Dispatcher, QuiesceLevel, Rest};
use crate::driver_half;
use crate::image::{self, CodePreCopy, Unused};
use crate::link::Answer;

/// How long the client may take to let its threads run again.
const RESUME_LIMIT: Duration = Duration::from_secs(10);
/// How long what a restore has left behind may take to come to rest.
const STAND_LIMIT: Duration = Duration::from_secs(30);
/// How long a client goes on for a call that it cannot make alone.
const MOMENT: Duration = Duration::from_micros(500);
/// How long work on one GPU, and on several, is waited for before the program makes some calls more, for which that may wait.
const PATIENCE: Duration = Duration::from_secs(1);
const PATIENCE_FOR_SEVERAL: Duration = Duration::from_millis(50);
/// The least time that work has to end in, however late its program stopped.
const LEAST_LEFT: Duration = Duration::from_millis(100);
/// A wait for the GPU that took less is none.
const WAIT: Duration = Duration::from_millis(1);
/// How long a client may take to say what is unused. An estimate is not worth more.
const TELL_LIMIT: Duration = Duration::from_millis(100);
/// What the client is given beyond the limit that it was told, to answer that it could not keep it.
const ANSWER_SLACK: Duration = Duration::from_secs(1);

impl Control {
    /// Whether the client's GPUs have nothing to do now.
    pub(super) fn await_moment(&self, limit: Duration) -> Result<bool, ControlError> {
        let (answer, moment) = channel();
        self.remote.run(move |dispatcher| dispatcher.await_moment(limit, answer));
        // One that comes to another state meanwhile does not look any more.
        Ok(moment.recv_timeout(limit + ANSWER_SLACK).unwrap_or(false))
    }

    /// For what is copied beside the program, work that the GPU has goes on, and a save waits for it.
    pub(super) fn quiesce(&mut self, limit: Duration, contents: Contents) -> Result<Quiesced, ControlError> {
        if self.is_shared() && self.remote.ask(|dispatcher| dispatcher.is_leaving())? {
            return Err(DispatchError::Leaving.into());
        }
        let began = Instant::now();
        self.quiesced = true;
        self.waited = None;
        self.remote.run(move |dispatcher| {
            let blocks = image::blocks(&dispatcher.client, contents);
            dispatcher.expect_stop(blocks);
        });
        let shares = self.remote.ask(|dispatcher| dispatcher.client.ipc.is_used())?;
        // Where it shares memory, others may use what its own allocator has free.
        let unused = contents != Contents::Left && !shares && !tuning::is(tuning::UNUSED, "keep");
        let asked = ToClient::Quiesce { limit_ms: limit.as_millis() as u64, unused };
        self.stop((asked, began, limit), contents)
    }

    /// A program that stands still makes some calls more, so many in each thread, and stands still again. A client that does not
    /// know of this goes on for some moments instead.
    pub(super) fn step(
        &mut self,
        calls: u32,
        limit: Duration,
        contents: Contents,
    ) -> Result<Quiesced, ControlError> {
        if !self.quiesced || !self.link.is_connected() {
            return Err("only a program that stands still makes a step".into());
        }
        let began = Instant::now();
        let (version, driver_attached) =
            self.remote.ask(|dispatcher| (dispatcher.client.version(), dispatcher.client.driver_attached))?;
        if version < STEPPING_CLIENT_VERSION {
            self.resume(false, driver_attached)?;
            std::thread::sleep(MOMENT * calls);
            return self.quiesce(limit, contents);
        }
        self.undone = None;
        self.remote.run(Dispatcher::step);
        let asked = ToClient::Step { calls, limit_ms: limit.as_millis() as u64 };
        self.stop((asked, began, limit), contents)
    }

    /// Asks the client to stop, and waits for what is under way by then. Where that does not end, the client makes some calls more:
    /// kernels may wait for others that were not launched yet.
    fn stop(
        &mut self,
        (mut asked, began, limit): (ToClient, Instant, Duration),
        contents: Contents,
    ) -> Result<Quiesced, ControlError> {
        let (several, reason) = self.remote.ask(|dispatcher| {
            let client = &dispatcher.client;
            (client.has_several_gpus(), client.why_work_ends_first())
        })?;
        let once = "its work did not end the last time that it stood still";
        let reason = reason.or(self.waits_for_work.then_some(once));
        let beside = contents == Contents::Shadowed && reason.is_none();
        let wanted = if beside { QuiesceLevel::Requests } else { QuiesceLevel::Work };
        let mut rounds = Rounds::new(if several { PATIENCE_FOR_SEVERAL } else { PATIENCE });
        let mut since = None;
        let stopped = loop {
            let quiesced = match self.halt(&asked, limit) {
                Ok(quiesced) => quiesced,
                Err(error) => break Err(error),
            };
            since.get_or_insert_with(Instant::now);
            let left = limit.saturating_sub(began.elapsed()).max(LEAST_LEFT);
            let steps = quiesced.version >= STEPPING_CLIENT_VERSION && left > LEAST_LEFT;
            let patience = if steps { left.min(rounds.patience()) } else { left };
            match self.remote.drain(wanted, patience) {
                Ok(rest) => break Ok((quiesced, rest)),
                Err(DispatchError::Working { .. }) if steps => {
                    self.remote.run(Dispatcher::step);
                    asked = ToClient::Step { calls: rounds.begin(), limit_ms: limit.as_millis() as u64 };
                }
                Err(DispatchError::Working { .. }) => break Err(DispatchError::Working { limit }.into()),
                Err(error) => break Err(error.into()),
            }
        };
        let (quiesced, rest) = stopped.inspect_err(|_| self.let_go())?;
        if rest.level == QuiesceLevel::Requests {
            self.undone = Some(limit);
        } else if let Some(since) = since.filter(|_| contents == Contents::Shadowed) {
            self.note_wait(since, reason.or(rest.why));
        }
        Ok(quiesced)
    }

    /// Asks the client to stop, and keeps what it says of itself.
    fn halt(&self, asked: &ToClient, limit: Duration) -> Result<Quiesced, ControlError> {
        let answer = self.link.ask(asked, limit + ANSWER_SLACK, |answer| match answer {
            Answer::Quiesced(quiesced) => Some(Ok(quiesced)),
            Answer::Busy(reason) => Some(Err(ControlError::Busy(reason))),
            _ => None,
        });
        let mut quiesced = answer.map_err(ControlError::from).flatten()?;
        let driver_attached = quiesced.driver_attached;
        let uncollected = std::mem::take(&mut quiesced.uncollected);
        let unused = std::mem::take(&mut quiesced.unused);
        self.remote.run(move |dispatcher| {
            dispatcher.client.driver_attached = driver_attached;
            dispatcher.client.uncollected = uncollected;
            dispatcher.client.unused = Unused::new(unused);
        });
        Ok(quiesced)
    }

    /// Has a half that was restored stand still without its client, which sleeps.
    pub(super) fn stand_still(&mut self) -> Result<(), ControlError> {
        if !self.held_back || self.link.is_connected() {
            return Err("only a program that was restored and does not run stands still by itself".into());
        }
        self.remote.run(|dispatcher| {
            let blocks = image::blocks(&dispatcher.client, Contents::Saved);
            dispatcher.expect_stop(blocks);
        });
        self.remote.drain(QuiesceLevel::Work, STAND_LIMIT)?;
        self.quiesced = true;
        Ok(())
    }

    /// Waits for the work that goes on while the program stands still, if there is any, and what is to be saved cannot be copied
    /// behind it. Whether it did.
    pub(super) fn await_work(&mut self, contents: Contents) -> Result<bool, ControlError> {
        let Some(limit) = self.undone.take() else { return Ok(false) };
        let behind = contents == Contents::Shadowed && !tuning::is(tuning::BEHIND, "off");
        let wanted = if behind { QuiesceLevel::Enqueued } else { QuiesceLevel::Work };
        let since = Instant::now();
        let Rest { level, why } =
            self.remote.drain(wanted, limit).inspect_err(|_| self.waits_for_work = true)?;
        let off = "images are to wait for it (`gpu.behind=off`)";
        self.note_wait(since, why.or((!behind && contents == Contents::Shadowed).then_some(off)));
        Ok(level == QuiesceLevel::Work)
    }

    /// The program has stood still for this reason, if for one.
    fn note_wait(&mut self, since: Instant, why: Option<&str>) {
        let took = since.elapsed();
        if let Some(why) = why.filter(|_| took >= WAIT) {
            self.waited = Some(WorkWait { why: why.to_string(), duration_us: took.as_micros() as u64 });
        }
    }

    /// Detaches the driver half of the client while that runs, if it can give it up; whether it did. Before, the client says what
    /// is unused.
    pub(super) fn release(&mut self, processes: &[(i32, i32)], limit_ms: u32) -> Result<bool, ControlError> {
        let (seen, version) =
            self.remote.ask(|dispatcher| (dispatcher.client.seen(), dispatcher.client.version()))?;
        self.expect_unused(version);
        let pid = processes.iter().find(|(inside, _)| *inside == seen).map(|(_, pid)| *pid);
        let Some(pid) = pid.filter(|_| version >= RELEASING_CLIENT_VERSION) else { return Ok(false) };
        self.remote.run(move |dispatcher| dispatcher.client.pid = pid);
        let limit = Duration::from_millis(limit_ms.into());
        let answer = self.link.ask(&ToClient::Release, limit, |answer| match answer {
            Answer::Released(released) => Some(released),
            _ => None,
        });
        Ok(answer??)
    }

    /// Learns which memory an image is likely not to have.
    fn expect_unused(&self, version: u32) {
        if version < TELLING_CLIENT_VERSION || tuning::is(tuning::UNUSED, "keep") {
            return;
        }
        let told = self.link.ask(&ToClient::TellUnused, TELL_LIMIT, |answer| match answer {
            Answer::Unused(ranges) => Some(ranges),
            _ => None,
        });
        if let Ok(ranges) = told {
            self.remote.run(move |dispatcher| dispatcher.client.unused_before = Unused::new(ranges));
        }
    }

    pub(super) fn detach(&mut self, pid: i32, limit_ms: u32) -> Result<(), ControlError> {
        Ok(driver_half::detach(&self.remote, Some(pid), limit_ms)?)
    }

    pub(super) fn resume(&mut self, restored: bool, driver_attached: bool) -> Result<(), ControlError> {
        self.comes_back()?;
        self.give_word()?;
        self.undone = None;
        self.held_back = false;
        self.left.clear();
        if std::mem::take(&mut self.runs) {
            self.remote.run(Dispatcher::take_requests);
            return Ok(());
        }
        if self.stays() {
            return Ok(());
        }
        self.remote.run(Dispatcher::go_on);
        let message = ToClient::Resume { restored, driver_attached };
        let answered =
            self.link.ask(&message, RESUME_LIMIT, |answer| matches!(answer, Answer::Resumed).then_some(()));
        self.quiesced = false;
        Ok(answered?)
    }

    /// A client that waits to leave its context does not; false if it does not wait for that.
    pub(super) fn stays(&mut self) -> bool {
        let stays = self.is_shared() && self.remote.ask(Dispatcher::stay).unwrap_or(false);
        if std::mem::take(&mut self.leaves) {
            self.link.set_parted(false);
        }
        stays
    }

    /// Lets the client go on after a checkpoint that came to nothing; one that was parted with as soon as that is known.
    pub(super) fn undo(&mut self) {
        if self.parted.is_some() {
            return;
        }
        self.stays();
        self.let_go();
    }

    /// Ends a stand that comes to nothing.
    fn let_go(&mut self) {
        self.undone = None;
        if std::mem::take(&mut self.quiesced) {
            self.remote.run(Dispatcher::go_on);
            if let Ok(driver_attached) = self.remote.ask(|dispatcher| dispatcher.client.driver_attached) {
                self.link.send(&ToClient::Resume { restored: false, driver_attached });
            }
        }
        self.left.clear();
        self.code = CodePreCopy::default();
        self.forget_ahead();
        let remote = self.remote.clone();
        self.remote.run(move |dispatcher| dispatcher.give_up_shadow(remote));
    }
}
