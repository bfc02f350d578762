//! The dispatch thread: takes requests from all rings in their order, and looks at what is outstanding in between.
//!
//! While there are requests it makes no system call; while there is nothing it sleeps on the board. Other threads of the
//! worker have it do things through a [`Remote`].

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use rekindle_protocol::operation::{Asynchronous, Download, Origin, Upload, dispatch};
use rekindle_ring::{Board, Merge, Spin};

use crate::client::{Client, Lane, Thread};
use crate::image::{Ahead, CacheMemories, Loading, Marks, Outcome, Prepared, Preparing};
use crate::ondemand::{Admission, Journal, Sharing, Turn, Uses};

mod later;
mod remote;
mod sharing;
mod slow;

use later::Later;
pub(crate) use remote::{Inbox, Remote, remote};

/// Requests between two looks at what is outstanding.
const ROUND: usize = 64;
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
    /// What was done of a restore before it was asked for.
    pub prepared: Option<Prepared>,
    /// Modules that whatever comes may need.
    pub ahead: Ahead,
    /// What a save will copy through, made while the program comes to a stop.
    pub blocks: Option<Preparing>,
    pub cache: CacheMemories,
    /// Contents of buffers that are on their way; requests wait for them.
    pub loading: Option<Loading>,
    /// How that ended.
    pub loaded: Option<Outcome>,
    /// What is done of requests while contents are on their way, for whoever has to do it once more.
    pub journal: Option<Journal>,
    /// Buffers are shared with other programs.
    pub sharing: Option<Sharing>,
    /// What buffers were marked with, to see whether they are written to.
    pub marks: Option<Marks>,
    /// Requests of the program are not done any more.
    pub is_closed: bool,
    /// They are not done until what another worker did of them is done once more.
    pub is_behind: bool,
    /// Which parts of the image's memory requests have named.
    pub uses: Option<Uses>,
    /// What the program is not to be held up by.
    pub later: Later,
    merge: Merge<'static>,
    draining: Option<Drain>,
    ended: Option<Ended>,
    spin: Spin,
    /// How long outstanding work is polled without rest.
    eager: Duration,
    quiet_since: Instant,
}

/// Somebody waits until nothing is under way.
struct Drain {
    limit: Duration,
    since: Instant,
    answer: Sender<Result<(), String>>,
}

impl Dispatcher {
    pub(crate) fn new(client: Client) -> Dispatcher {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Dispatcher {
            client,
            prepared: None,
            ahead: Ahead::default(),
            blocks: None,
            cache: CacheMemories::default(),
            loading: None,
            loaded: None,
            journal: None,
            sharing: None,
            marks: None,
            is_closed: false,
            is_behind: false,
            uses: None,
            later: Later::default(),
            merge: Merge::new(),
            draining: None,
            ended: None,
            spin: Spin::for_cores(cores),
            eager: if cores <= 4 { Duration::from_micros(20) } else { Duration::from_millis(3) },
            quiet_since: Instant::now(),
        }
    }

    /// Ends the thread, once it has done what it is doing.
    pub(crate) fn end(&mut self, how: Ended) {
        self.ended = Some(how);
    }

    /// Requests before this one were done by a worker before this.
    pub(crate) fn go_on_with(&mut self, next: u64) -> Result<(), String> {
        self.merge.set_next(next).map_err(|error| error.to_string())
    }

    /// Whoever waits for the end of all work is told why that is not waited for.
    pub(crate) fn refuse_drain(&mut self, problem: &str) {
        if let Some(drain) = self.draining.take() {
            let _ = drain.answer.send(Err(problem.to_string()));
        }
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
        if let Some(journal) = &mut self.journal {
            journal.push_ring(index, &name);
        }
        // SAFETY: each ring file is taken in once, as the line above says, so this is its one consumer.
        self.merge.add(unsafe { ring.consumer() });
        self.client.threads.push(Thread { index, name, ring, lane: Lane::default(), streams: Vec::new() });
    }

    /// `again` is called when a fault of work that ran ahead of loading is to be mended.
    pub(crate) fn run(
        mut self,
        inbox: &Inbox,
        again: impl FnOnce(&mut Dispatcher, &Inbox) -> Ended,
    ) -> Ended {
        // The kernel may otherwise lengthen short sleeps by 50 µs.
        // SAFETY: sets a property of this thread only.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000) };
        loop {
            if inbox.is_wanted_anew() {
                inbox.obey(&mut self);
            }
            if let Some(ended) = self.ended.take() {
                return ended;
            }
            if self.client.broken.is_some() {
                return again(&mut self, inbox);
            }
            let ready =
                !self.is_closed && !self.is_behind && self.loading.as_ref().is_none_or(Loading::is_on_demand);
            let Some(board) = self.client.board.filter(|_| ready) else {
                if !inbox.obey_next(&mut self) {
                    return Ended::Done;
                }
                continue;
            };
            if let Some(on_demand) = self.loading.as_mut().and_then(Loading::on_demand)
                && let Some(journal) = &mut self.journal
                && on_demand.has_aside()
            {
                on_demand.catch_up(&mut self.client, journal);
                if self.client.broken.is_some() {
                    continue;
                }
            }
            let worked = match self.round() {
                Ok(worked) => worked,
                Err(problem) => return Ended::Failed(problem),
            };
            if worked < ROUND && self.client.waiting.transfers != 0 {
                self.client.close_batches();
            }
            let progress = !self.client.waiting.is_empty() && self.client.poll();
            if self.loading.is_some() && worked < ROUND {
                Loading::settle(&mut self);
                if self.loading.is_some() {
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
            if worked != 0 || progress {
                self.quiet_since = Instant::now();
                self.look_at_drain(worked);
            } else {
                self.look_at_drain(0);
                self.rest(board, inbox);
            }
            self.look_at_uses();
            self.look_at_later();
        }
    }

    /// Handles up to [`ROUND`] requests.
    fn round(&mut self) -> Result<usize, String> {
        for done in 0..ROUND {
            let Some((ring, record)) = self.merge.peek().map_err(|error| error.to_string())? else {
                return Ok(done);
            };
            if let (Some(sharing), Some(journal)) = (&mut self.sharing, &mut self.journal) {
                match sharing.admit(&mut self.client, journal, ring, &record) {
                    Turn::Now => {}
                    Turn::Later => return Ok(done),
                    Turn::Alone => self.end_sharing_for_good(),
                }
            }
            let mut ahead = self.loading.as_mut().and_then(Loading::on_demand).zip(self.journal.as_mut());
            let admission = ahead.as_mut().map_or(Admission::Now, |(on_demand, journal)| {
                on_demand.admit(&self.client, journal, ring, &record)
            });
            if admission == Admission::Wait {
                return Ok(done);
            }
            if let Some(uses) = &mut self.uses {
                if record.opcode == Download::OPCODE {
                    uses.note_answer();
                }
                match &ahead {
                    Some((on_demand, journal)) => uses.note_parts(on_demand.admitted(journal)),
                    None => uses.note(&self.client, record.opcode, record.body, record.trailer),
                }
            }
            if let (Some((_, journal)), Admission::Aside) = (&mut ahead, admission) {
                journal.done(record.ticket, None);
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
            let answer =
                dispatch(&mut self.client, origin, record.opcode, record.body, record.trailer, failed);
            let answer = answer.map_err(|error| error.to_string())?;
            slow::end(&self.client, began, record.opcode, record.body);
            if let Some(reply) = &answer {
                has_failed |= self.client.note_failure(self.client.bound(), reply);
            }
            if let Some(journal) = &mut self.journal {
                if self.client.broken.is_some() {
                    journal.put_back_admitted();
                    return Ok(done);
                }
                if has_failed {
                    journal.fail_admitted();
                }
            }
            self.client.operations += 1;
            // Whoever goes on after this worker finds a request either still to be done, or done and answered.
            match (answer, &mut self.journal) {
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

    /// Requests wait for memory, or for the end of what ran ahead, or there are none.
    fn rest_while_loading(&mut self, board: &Board, inbox: &Inbox) {
        let attention = || inbox.is_wanted();
        let merge = &mut self.merge;
        let idle = matches!(merge.peek(), Ok(None));
        let ready = || attention() || idle && !matches!(merge.peek(), Ok(None));
        board.wait(self.spin, LOADING_NAP, ready);
    }

    /// Nothing to do right now: polls on, or sleeps.
    fn rest(&mut self, board: &Board, inbox: &Inbox) {
        let again = match (&mut self.sharing, &mut self.journal) {
            (Some(sharing), Some(journal)) => sharing.rest(&mut self.client, journal),
            _ => None,
        };
        let nap = again.unwrap_or(Duration::from_secs(1));
        let nap = self.uses.as_ref().and_then(Uses::pause).map_or(nap, |pause| nap.min(pause));
        let attention = || inbox.is_wanted();
        let merge = &mut self.merge;
        // A ring that holds nonsense is ready too: the next round finds out.
        let mut ready = || attention() || !matches!(merge.peek(), Ok(None));
        if self.client.waiting.is_empty() && self.draining.is_none() {
            board.wait(self.spin, nap, ready);
            return;
        }
        let quiet = self.quiet_since.elapsed();
        let age = self.client.waiting.youngest().map_or(quiet, |youngest| youngest.min(quiet));
        if age < self.eager {
            std::hint::spin_loop();
            return;
        }
        let nap = (age / 50).clamp(Duration::from_micros(20), Duration::from_millis(1));
        if !ready() {
            board.wait(Spin(0), nap, ready);
        }
    }

    /// Once the program's first work is done, what it used first is known.
    fn look_at_uses(&mut self) {
        let busy = self.loading.is_some() || !self.client.waiting.is_empty();
        let quiet = if busy { Duration::ZERO } else { self.quiet_since.elapsed() };
        let pid = self.client.pid;
        let Some(uses) = self.uses.as_mut().filter(|_| self.loading.is_none()) else { return };
        if uses.is_learned(quiet) {
            uses.keep(pid);
            self.uses = None;
        } else if uses.has_answered(quiet) {
            uses.keep(pid);
        }
    }

    fn look_at_drain(&mut self, worked: usize) {
        let Some(drain) = &self.draining else { return };
        let (since, limit) = (drain.since, drain.limit);
        let settled = worked == 0 && self.client.waiting.is_empty() && self.rings_are_empty();
        let result = match settled.then(|| self.client.settle()) {
            Some(Ok(true)) => Ok(()),
            Some(Err(problem)) => Err(problem),
            _ if since.elapsed() < limit => return,
            _ => Err(format!(
                "the GPU was still running the program's work after {:.1} s; wait for it, or give more time",
                limit.as_secs_f64()
            )),
        };
        if let Some(drain) = self.draining.take() {
            let _ = drain.answer.send(result);
        }
    }

    fn rings_are_empty(&mut self) -> bool {
        matches!(self.merge.peek(), Ok(None))
            && self.client.threads.iter().all(|thread| thread.ring.header().is_drained())
    }
}
