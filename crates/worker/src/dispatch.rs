//! The dispatch thread: takes requests from all rings in their order, and looks at what is outstanding in between.
//!
//! While there are requests it makes no system call; while there is nothing it sleeps on the board. Other threads of the
//! worker have it do things through a [`Remote`].

use std::time::{Duration, Instant};

use rekindle_protocol::operation::{Asynchronous, Download, Origin, Upload, WaitFor, dispatch};
use rekindle_protocol::worker::Recording;
use rekindle_ring::{Board, Merge, Record, Spin, spin};

use crate::client::{Client, Lane, Request, Thread};
use crate::image::{CacheMemories, Loading, Marks, Outcome, Preparing, Registering};
use crate::ondemand::{Mend, Uses};

mod activity;
mod deferred_work;
mod error;
mod first_use;
mod leaving;
mod mend;
mod moment;
mod outlive;
mod quiesce;
mod remote;
mod shadow;
mod sharing;
mod slow;

pub(crate) use activity::{Activity, Admission, Shared};
pub(crate) use deferred_work::DeferredWork;
pub(crate) use error::DispatchError;
use first_use::Freed;
pub(crate) use leaving::Mappings;
use moment::Moment;
pub(crate) use outlive::Outliving;
use quiesce::QuiesceState;
pub(crate) use quiesce::{QuiesceLevel, Rest};
pub(crate) use remote::{Inbox, Remote, remote};

/// Requests between two looks at what is outstanding.
const ROUND: usize = 64;
/// Polls of outstanding work between two offers of the processor to others.
const POLLS: u32 = 64;
/// A program that has asked for nothing for so long, and has no work under way, is not held up by a few milliseconds of work.
const QUIET: Duration = Duration::from_millis(2);
/// How often work that runs ahead of loading is looked at.
const LOADING_NAP: Duration = Duration::from_micros(200);
/// How often it is looked whether the GPU has done what a request of a program that shares buffers waits for.
const SHARING_NAP: Duration = Duration::from_micros(20);

/// Why the dispatch thread ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The program has ended, or the daemon said so.
    Done,
    /// What is wrong, in a sentence.
    Failed(String),
}

/// What the dispatch thread works on.
pub(crate) struct Dispatcher {
    pub client: Client,
    pub activity: Activity,
    /// What the contents of whatever image comes are copied through, in a worker that waits.
    pub blocks: Option<Preparing>,
    /// Where contents in memory are made known to a device.
    pub registering: Option<Registering>,
    pub cache: CacheMemories,
    /// How loading has ended.
    pub loaded: Option<Outcome>,
    /// What buffers were marked with, to see whether they are written to.
    pub marks: Option<Marks>,
    /// Which parts of the image's memory requests have named.
    pub uses: Option<Uses>,
    /// What the program is not to be held up by.
    pub later: DeferredWork,
    /// What the program has freed, which it gets back itself where memory comes at the first use.
    freed: Freed,
    /// How it gets along with the end of a context that it shares.
    pub outliving: Option<Outliving>,
    /// How the loss of this worker is mended, if that is wanted.
    pub mend: Option<Mend>,
    merge: Merge<'static>,
    /// The program is coming to a stop.
    stopping: Option<QuiesceState>,
    /// Somebody waits for its GPUs to have nothing to do.
    moment: Option<Moment>,
    /// Whether the last one that was waited for did not come.
    moment_was_missed: bool,
    ended: Option<Ended>,
    spin: Spin,
    /// How long outstanding work is polled without rest.
    eager: Duration,
    /// Rounds of that.
    polls: u32,
    quiet_since: Instant,
    /// The next request of a ring waits there.
    is_held: bool,
    /// It does so for what it may change to be in an image.
    is_guarded: bool,
}

impl Dispatcher {
    pub(crate) fn new(client: Client) -> Dispatcher {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        spin::watch();
        Dispatcher {
            client,
            activity: Activity::Running,
            blocks: None,
            registering: None,
            cache: CacheMemories::default(),
            loaded: None,
            marks: None,
            uses: None,
            later: DeferredWork::default(),
            freed: Freed::default(),
            outliving: None,
            mend: None,
            merge: Merge::new(),
            stopping: None,
            moment: None,
            moment_was_missed: false,
            ended: None,
            spin: Spin::for_cores(cores),
            eager: if cores <= 4 { Duration::from_micros(20) } else { Duration::from_millis(3) },
            polls: 0,
            quiet_since: Instant::now(),
            is_held: false,
            is_guarded: false,
        }
    }

    /// Ends the thread, once it has done what it is doing.
    pub(crate) fn end(&mut self, how: Ended) {
        self.ended = Some(how);
    }

    /// Requests before this one were done by a worker before this.
    pub(crate) fn go_on_with(&mut self, next: u64) -> Result<(), DispatchError> {
        Ok(self.merge.set_next(next)?)
    }

    /// The ticket of the next request.
    pub(crate) fn next_request(&self) -> u64 {
        self.merge.next()
    }

    /// How the thread is to end, if it is.
    pub(crate) fn ended(&mut self) -> Option<Ended> {
        self.ended.take()
    }

    /// Takes a ring in. Its place among the threads is its number in [`Origin`].
    pub(crate) fn add_ring(&mut self, index: u32, name: String, ring: rekindle_ring::Ring) {
        if self.client.threads.iter().any(|thread| thread.name == name) {
            return;
        }
        if let Some(journal) = self.journal() {
            journal.push_ring(index, &name);
        }
        // SAFETY: each ring file is taken in once, as the line above says, so this is its one consumer.
        self.merge.add(unsafe { ring.consumer() });
        self.client.threads.push(Thread { index, name, ring, lane: Lane::default(), streams: Vec::new() });
    }

    /// `again` is called when a fault of work that ran ahead of loading is to be mended.
    pub(crate) fn run(
        &mut self,
        inbox: &Inbox,
        again: impl FnOnce(&mut Dispatcher, &Inbox) -> Ended,
    ) -> Ended {
        // The kernel may otherwise lengthen short sleeps by 50 µs.
        let _ = nix::sys::prctl::set_timerslack(1000);
        loop {
            if inbox.is_wanted_anew() {
                inbox.obey(self);
            }
            if let Some(ended) = self.ended.take() {
                return ended;
            }
            if self.client.is_broken() {
                return match self.lost_context() {
                    Some(ended) => ended,
                    None => again(self, inbox),
                };
            }
            if self.meets_fault() {
                continue;
            }
            let Some(board) = self.client.board.filter(|_| self.activity.takes_requests()) else {
                if !inbox.obey_next(self) {
                    return Ended::Done;
                }
                continue;
            };
            self.activity.catch_up(&mut self.client);
            self.look_at_waits();
            if self.client.is_broken() {
                continue;
            }
            let worked = match self.round() {
                Ok(worked) => worked,
                Err(error) => return Ended::Failed(error.to_string()),
            };
            if worked < ROUND && self.client.waiting.transfers != 0 {
                self.client.close_batches();
            }
            let progress = !self.client.waiting.is_empty() && self.client.poll();
            if self.activity.is_loading() && worked < ROUND {
                Loading::settle(self);
                if self.activity.is_loading() {
                    self.rest_while_loading(board, inbox);
                }
                self.quiet_since = Instant::now();
                continue;
            }
            if self.look_at_sharing() {
                let attention = || inbox.is_wanted();
                board.wait(self.spin, SHARING_NAP, attention);
                self.look_at_drain(1);
                continue;
            }
            let is_quiet = worked == 0 && !progress;
            let look = self.look_at_mend(is_quiet).into_iter().chain(self.look_at_moment(is_quiet)).min();
            if worked != 0 || progress || self.client.is_broken() {
                self.quiet_since = Instant::now();
                self.look_at_drain(worked);
            } else {
                self.look_at_drain(0);
                self.rest(board, inbox, look);
            }
            self.look_at_uses();
            self.look_at_later();
            self.look_at_request();
            self.look_at_freed();
        }
    }

    /// A request has to wait for bytes, or need not any more.
    fn note_wait(&mut self, admission: &Admission) {
        self.is_held = *admission == Admission::Wait;
        match admission {
            Admission::Wait | Admission::Aside => {
                let for_data = matches!(self.activity, Activity::Running);
                self.client.waits.begin(if for_data { WaitFor::Data } else { WaitFor::Image });
            }
            Admission::Now | Admission::Alone | Admission::Refuse(_) => self.look_at_waits(),
        }
    }

    fn look_at_waits(&mut self) {
        if self.client.waits.is_under_way() && !self.is_held && !self.activity.has_aside(&self.client) {
            self.client.waits.end();
        }
    }

    /// Whether a request would change what is to be written to an image first.
    fn waits_for_image(&mut self, record: &Record<'_>) -> bool {
        let shadow = self.client.shadow.as_ref();
        self.is_guarded = shadow.is_some_and(|shadow| shadow.holds(&self.client, record));
        if self.is_guarded {
            self.is_held = true;
            self.client.waits.begin(WaitFor::Checkpoint);
        }
        self.is_guarded
    }

    /// Handles up to [`ROUND`] requests.
    fn round(&mut self) -> Result<usize, String> {
        self.is_guarded = false;
        for done in 0..ROUND {
            let Some((ring, record)) = self.merge.peek().map_err(|error| error.to_string())? else {
                return Ok(done);
            };
            if !self.may_go_on() {
                return Ok(done);
            }
            if let Some(mend) = &mut self.mend
                && !mend.may_go_on(&mut self.client, ring, &record)
            {
                return Ok(done);
            }
            if self.client.is_refused(ring, &record) || !self.has_memory_for(ring, &record) {
                self.client.operations += 1;
                self.merge.release(ring, record);
                continue;
            }
            if self.waits_for_image(&record) {
                return Ok(done);
            }
            let admission = self.activity.admit(&mut self.client, ring, &record);
            if admission == Admission::Now
                && let (Activity::Running, Some(mend)) = (&self.activity, &mut self.mend)
            {
                mend.admit(&mut self.client, ring, &record);
            }
            self.note_wait(&admission);
            match admission {
                Admission::Wait => return Ok(done),
                Admission::Alone => self.end_sharing_for_good(),
                Admission::Now | Admission::Aside | Admission::Refuse(_) => {}
            }
            if let Admission::Refuse(code) = admission {
                self.client.refuse(ring, &record, code);
                self.merge.release(ring, record);
                continue;
            }
            self.note_uses(&record);
            if admission == Admission::Aside {
                if let Some(journal) = self.activity.journal() {
                    journal.done(record.ticket, None);
                }
                self.merge.release(ring, record);
                continue;
            }
            if self.client.waiting.transfers != 0
                && record.opcode != Upload::OPCODE
                && record.opcode != Download::OPCODE
            {
                self.client.close_batches();
            }
            let mut has_failed = false;
            let failed = |client: &mut Client, name: &'static str, code| {
                has_failed = true;
                client.asynchronous_failure(name, code);
            };
            let origin = Origin { ring };
            let began = slow::begin();
            let mut answer = match self.alone_on(&record) {
                Some(device) => {
                    let (body, trailer) = (record.body.to_vec(), record.trailer.to_vec());
                    let request = Request { origin, opcode: record.opcode, body, trailer };
                    self.client.do_alone(device, request)
                }
                None => {
                    dispatch(&mut self.client, origin, record.opcode, record.body, record.trailer, failed)
                        .map_err(|error| error.to_string())?
                }
            };
            if answer.as_ref().is_some_and(|answer| self.gives_way(answer)) {
                let again =
                    |client: &mut Client, name: &'static str, code| client.asynchronous_failure(name, code);
                let second =
                    dispatch(&mut self.client, origin, record.opcode, record.body, record.trailer, again);
                answer = second.map_err(|error| error.to_string())?;
            }
            slow::end(&self.client, began, record.opcode, record.body);
            self.client.waiting.forget_behind(record.opcode);
            if let Some(reply) = &answer {
                self.client.tell_late_failures();
                has_failed |= self.client.note_failure(self.client.bound(), reply);
            }
            if !has_failed {
                self.note_done(ring, &record, answer.as_deref());
            }
            let is_broken = self.client.is_broken();
            if let Some(journal) = self.journal() {
                if is_broken {
                    journal.put_back_admitted();
                    return Ok(done);
                }
                if has_failed {
                    journal.fail_admitted();
                }
            }
            self.client.operations += 1;
            // Whoever goes on after this worker finds a request either still to be done, or done and answered.
            if answer.is_some() {
                self.client.note_told();
            }
            let journal = match self.mend.as_mut().and_then(Mend::journal) {
                Some(journal) => Some(journal),
                None => self.activity.journal(),
            };
            match (answer, journal) {
                (Some(reply), Some(journal)) => self.client.reply_when(ring, &reply, |count| {
                    journal.done(record.ticket, Some((ring, count)));
                }),
                (Some(reply), None) => self.client.reply(ring, &reply),
                (None, Some(journal)) => journal.done(record.ticket, None),
                (None, None) => {}
            }
            self.merge.release(ring, record);
        }
        Ok(ROUND)
    }

    /// The GPU that a request has to itself. What may be done once more is done in the order in which it comes.
    fn alone_on(&mut self, record: &Record<'_>) -> Option<usize> {
        let device = self.client.alone_on(record.opcode, record.body)?;
        let is_once = self.journal().is_none_or(|journal| !journal.has_admitted());
        is_once.then_some(device)
    }

    /// Notes which parts of the image's memory a request names that is done.
    fn note_uses(&mut self, record: &Record<'_>) {
        let Some(uses) = &mut self.uses else { return };
        if uses.recording() == Recording::Asked {
            self.client.note_named(record);
        }
        if record.opcode == Download::OPCODE {
            uses.note_answer();
        }
        match self.activity.admitted_parts() {
            Some(parts) => uses.note_parts(parts),
            None => uses.note(&self.client, record.opcode, record.body, record.trailer),
        }
    }

    /// Requests wait for memory, or for the end of what ran ahead, or there are none.
    fn rest_while_loading(&mut self, board: &Board, inbox: &Inbox) {
        let attention = || inbox.is_wanted();
        let merge = &mut self.merge;
        let idle = matches!(merge.peek(), Ok(None));
        let ready = || attention() || idle && !matches!(merge.peek(), Ok(None));
        board.wait(self.spin, LOADING_NAP, ready);
    }

    /// Nothing to do right now: polls on, or sleeps.
    fn rest(&mut self, board: &Board, inbox: &Inbox, look: Option<Duration>) {
        if self.client.data.holds() || self.is_guarded {
            let is_told = self.client.waiting.is_empty() && !self.is_guarded;
            let nap = if is_told { Duration::from_secs(1) } else { LOADING_NAP };
            board.wait(self.spin, nap, || inbox.is_wanted());
            return;
        }
        let again = match &mut self.activity {
            Activity::Sharing(Shared { sharing, journal }) => sharing.rest(&mut self.client, journal),
            _ => None,
        };
        let nap = again.unwrap_or(Duration::from_secs(1)).min(look.unwrap_or(Duration::MAX));
        let nap = self.uses.as_ref().and_then(Uses::pause).map_or(nap, |pause| nap.min(pause));
        let nap = self.client.exchange.look_again(nap);
        let attention = || inbox.is_wanted();
        let idle = self.client.waiting.is_empty() && !self.is_draining();
        // The driver may wait for all work of the GPU when memory goes.
        if idle {
            self.client.drop_kept();
            self.client.output.show();
        }
        let nap = if idle {
            let nap = self.look_for_freed(nap);
            let nap = self.look_for_rest(nap);
            let nap = self.unpin(nap);
            self.look_ahead(nap)
        } else {
            nap
        };
        let merge = &mut self.merge;
        // A ring that holds nonsense is ready too: the next round finds out.
        let mut ready = || attention() || !matches!(merge.peek(), Ok(None));
        if idle {
            board.wait(self.spin, nap, ready);
            return;
        }
        let quiet = self.quiet_since.elapsed();
        let age = self.client.waiting.youngest().map_or(quiet, |youngest| youngest.min(quiet));
        if age < self.eager && !spin::is_crowded() {
            self.polls = self.polls.wrapping_add(1);
            if self.polls.is_multiple_of(POLLS) {
                spin::offer();
            }
            std::hint::spin_loop();
            return;
        }
        let nap = (age / 50).clamp(Duration::from_micros(20), Duration::from_millis(1));
        if !ready() {
            board.wait(Spin(0), nap, ready);
        }
    }

    /// Makes, in a quiet moment, one of the instances of graphs that a restore has left for later; until when it is to be
    /// looked again.
    fn look_ahead(&mut self, nap: Duration) -> Duration {
        if self.client.unmade.is_empty() || !self.client.recordings.is_empty() {
            return nap;
        }
        if self.quiet_since.elapsed() < QUIET {
            return nap.min(QUIET);
        }
        self.client.make_ahead();
        Duration::ZERO
    }

    /// Once the program's first work is done, what it used first is known.
    fn look_at_uses(&mut self) {
        let loading = self.activity.is_loading();
        let busy = loading || !self.client.waiting.is_empty();
        let quiet = if busy { Duration::ZERO } else { self.quiet_since.elapsed() };
        let pid = self.client.pid;
        let Some(uses) = self.uses.as_mut().filter(|_| !loading) else { return };
        if uses.is_learned(quiet) {
            uses.keep(pid);
            self.uses = None;
        } else if uses.has_answered(quiet) {
            uses.keep(pid);
        }
    }
}
