//! How a program comes to a stop for a checkpoint, and goes on.

use std::mem::replace;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use super::activity::Quiesced;
use super::{Activity, DispatchError, Dispatcher};
use crate::image::Preparing;

/// The program is coming to a stop.
#[derive(Default)]
pub(super) struct QuiesceState {
    /// What a save will copy through, made meanwhile.
    blocks: Option<Preparing>,
    drain: Option<Drain>,
}

/// How far a program that makes no more calls has come to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuiesceLevel {
    /// All that it asked for has been given to the GPU, which does it without the program.
    Requests,
    /// So, and what it leaves in memory can be [copied behind it](crate::client::Client::has_to_wait).
    Enqueued,
    /// Nothing is under way.
    Work,
}

/// What a program has come to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    pub level: QuiesceLevel,
    /// Why it has waited for the GPU, if it has.
    pub why: Option<&'static str>,
}

/// Somebody waits for rest.
struct Drain {
    wanted: QuiesceLevel,
    limit: Duration,
    since: Instant,
    /// Why it waits for the GPU.
    why: Option<&'static str>,
    answer: Sender<Result<Rest, DispatchError>>,
}

impl Dispatcher {
    /// The program is told to stop.
    pub(crate) fn expect_stop(&mut self, blocks: Option<Preparing>) {
        self.stopping = Some(QuiesceState { blocks, drain: None });
        // With a journal each request is answered once, when it is done.
        self.client.hurry_waits(matches!(self.activity, Activity::Running));
    }

    /// The program makes no more calls: it stands still when nothing is under way, if that is so before the limit. The answer
    /// comes once it has come to the rest that is wanted, or to more.
    pub(super) fn drain(
        &mut self,
        wanted: QuiesceLevel,
        limit: Duration,
        answer: Sender<Result<Rest, DispatchError>>,
    ) {
        if self.is_leaving() {
            let _ = answer.send(Err(DispatchError::Leaving));
            return;
        }
        let drain = Drain { wanted, limit, since: Instant::now(), why: None, answer };
        self.stopping.get_or_insert_default().drain = Some(drain);
    }

    pub(super) fn is_draining(&self) -> bool {
        self.stopping.as_ref().is_some_and(|stopping| stopping.drain.is_some())
    }

    /// Whoever waits for the end of all work is told why that is not waited for.
    pub(crate) fn refuse_drain(&mut self, problem: DispatchError) {
        if let Some(drain) = self.stopping.as_mut().and_then(|stopping| stopping.drain.take()) {
            let _ = drain.answer.send(Err(problem));
        }
    }

    pub(super) fn look_at_drain(&mut self, worked: usize) {
        let Some(drain) = self.stopping.as_ref().and_then(|stopping| stopping.drain.as_ref()) else { return };
        let (wanted, since, limit) = (drain.wanted, drain.since, drain.limit);
        let loaded = self.client.data.is_settled();
        let given = worked == 0 && loaded && self.rings_are_empty();
        let work_goes_on = given && wanted == QuiesceLevel::Requests && self.work_needs_nobody();
        let settled = given && self.client.waiting.is_empty();
        if given && wanted == QuiesceLevel::Enqueued && self.is_enqueued(settled) {
            return;
        }
        let result = match settled.then(|| self.client.settle()) {
            Some(Ok(true)) => match self.client.data.problem() {
                None => self.client.own_arrays(),
                Some(problem) => Err(DispatchError::Data { sentence: problem.sentence.clone() }),
            },
            Some(Err(problem)) => Err(problem),
            _ if work_goes_on => {
                if let Some(drain) = self.stopping.as_mut().and_then(|stopping| stopping.drain.take()) {
                    let _ = drain.answer.send(Ok(Rest { level: QuiesceLevel::Requests, why: None }));
                }
                return;
            }
            _ if since.elapsed() < limit => {
                if let Some(needs) = self.work_needs().filter(|_| given && wanted == QuiesceLevel::Requests) {
                    self.note_why(needs);
                }
                return;
            }
            _ if !loaded => Err(DispatchError::Loading { limit }),
            _ => Err(DispatchError::Working { limit }),
        };
        let Some(QuiesceState { blocks, drain: Some(drain) }) = self.stopping.take() else { return };
        if matches!(result, Err(DispatchError::Working { .. })) {
            // It may end once the program has made a step.
            self.stopping = Some(QuiesceState { blocks, drain: None });
        } else if result.is_ok() {
            let shared = match replace(&mut self.activity, Activity::Running) {
                Activity::Sharing(shared) => Some(shared),
                _ => None,
            };
            self.activity = Activity::Quiesced(Quiesced { blocks, shared, behind: false });
        }
        let _ = drain.answer.send(result.map(|()| Rest { level: QuiesceLevel::Work, why: drain.why }));
    }

    /// Whether the program stands still though the GPU works for it: a copy of its memory can come behind that. It is `settled`
    /// if nobody waits for an answer that this work has.
    fn is_enqueued(&mut self, settled: bool) -> bool {
        if self.client.is_at_rest() {
            return false;
        }
        let needs = self.work_needs();
        let why = if needs.is_some() {
            needs
        } else if !settled {
            Some("it waits for bytes from the GPU, or frees memory behind its work")
        } else {
            match self.client.has_to_wait() {
                Ok(why) => why,
                // Whoever waits for the GPU meets it.
                Err(_) => return false,
            }
        };
        if let Some(why) = why {
            self.note_why(why);
            return false;
        }
        let Some(QuiesceState { blocks, drain: Some(drain) }) = self.stopping.take() else { return false };
        self.activity = Activity::Quiesced(Quiesced { blocks, shared: None, behind: true });
        let _ = drain.answer.send(Ok(Rest { level: QuiesceLevel::Enqueued, why: drain.why }));
        true
    }

    fn note_why(&mut self, why: &'static str) {
        let drain = self.stopping.as_mut().and_then(|stopping| stopping.drain.as_mut());
        if drain.is_some_and(|drain| drain.why.replace(why) != Some(why)) {
            log::info!("an image waits for what the GPU has to do: {why}");
        }
    }

    /// Whether what the GPU has to do comes to its end while the program does nothing.
    fn work_needs_nobody(&self) -> bool {
        self.work_needs().is_none()
    }

    fn work_needs(&self) -> Option<&'static str> {
        let is = |found: bool, what| found.then_some(what);
        None.or_else(|| {
            is(!matches!(self.activity, Activity::Running), "what it has came from an image of late")
        })
        .or_else(|| is(!self.client.waiting.is_nobody_waiting(), "threads of it wait for the GPU's answers"))
        .or_else(|| is(self.client.work_needs_program(), "its work may call it, or wait for values of its"))
    }

    /// The program goes on, or is not to stop after all.
    pub(crate) fn go_on(&mut self) {
        self.stopping = None;
        self.client.hurry_waits(false);
        self.client.pinned_is_followed = false;
        self.client.unused_before = std::mem::take(&mut self.client.unused);
        self.client.ipc.be_found();
        if self.is_leaving() {
            return;
        }
        self.activity = match replace(&mut self.activity, Activity::Running) {
            Activity::Quiesced(Quiesced { shared, .. }) => {
                shared.map_or(Activity::Running, Activity::Sharing)
            }
            other => other,
        };
    }

    /// The program, which stands still, is to make some calls more.
    pub(crate) fn step(&mut self) {
        let blocks = match &mut self.activity {
            Activity::Quiesced(quiesced) => quiesced.blocks.take(),
            _ => self.stopping.take().and_then(|stopping| stopping.blocks),
        };
        self.go_on();
        self.expect_stop(blocks);
    }

    /// What was restored is that of a program that runs: its requests wait, now and when all is loaded.
    pub(crate) fn hold_requests(&mut self) {
        self.activity = match replace(&mut self.activity, Activity::Closed) {
            Activity::Loading { loading, .. } => Activity::Replaying(Some(loading)),
            other => other,
        };
    }

    /// They wait no longer.
    pub(crate) fn take_requests(&mut self) {
        if matches!(self.activity, Activity::Replaying(None)) {
            self.activity = Activity::Running;
        }
    }

    fn rings_are_empty(&mut self) -> bool {
        matches!(self.merge.peek(), Ok(None))
            && self.client.threads.iter().all(|thread| thread.ring.header().is_drained())
    }
}
