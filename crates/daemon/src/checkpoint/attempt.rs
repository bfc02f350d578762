//! One attempt: CPU half and GPU half brought to a stand and written side by side, and all undone if that fails.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::socket::{Shutdown, shutdown};
use rekindle_device::Slice;
use rekindle_driver::Hold;
use rekindle_parallel::{BESIDE_A_PROGRAM, giving_way};
use rekindle_protocol::client::Quiesced;
use rekindle_protocol::daemon::{Limits, Mode, Report};
use rekindle_protocol::mounts::Mounts;
use rekindle_protocol::network::{Network, Port};
use rekindle_protocol::worker::{Phase, Status};
use rekindle_sandbox::pages::{Layout, PreCopy, Served};
use rekindle_sandbox::{Cpu, Criu, DumpReport, DumpSpec, Frozen, KnownFiles, Prepared, TRACER_ARGUMENT};
use rekindle_store::Draft;

use crate::checkpoint::CheckpointError;
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::fault;
use crate::images::ImageError;
use crate::images::cpu_pages::Pages;
use crate::images::driver_half;
use crate::images::earlier_pages::EarlierPages;
use crate::images::metadata::ImageMetadata;
use crate::network;
use crate::reply::Reply;
use crate::sandboxes::Sandbox;
use crate::sandboxes::last_cut::LastCut;
use crate::sandboxes::last_image::{LastImage, Links, patience};
use crate::sandboxes::standstill::Standstill;
use crate::timeline::{CPU, PAGES, Timeline};
use crate::workers::{Worker, WorkerError};

use super::gather::Done;
use super::scratch::Scratch;
use super::{CheckpointRequest, Purpose};

/// For how long at most a program that goes on has the machine to itself before its image is written.
const CATCH_UP_LIMIT: Duration = Duration::from_millis(100);
/// Bytes a second that are written to an image, about.
const WRITE_RATE: f64 = 5e9;
/// CRIU counts in these.
const PAGE: u64 = 4096;

/// How it went.
pub(super) struct AttemptReport {
    /// The processes whose GPU halves there are.
    pub(super) gpu_processes: usize,
}

/// What is taken.
pub(super) struct Subject<'a> {
    /// Names its directory for the time of the dump.
    pub(super) id: String,
    pub(super) name: String,
    pub(super) command: Vec<String>,
    /// As the user said it.
    pub(super) gpu: String,
    pub(super) mode: Mode,
    pub(super) network: Network,
    pub(super) ports: Vec<Port>,
    pub(super) limits: Limits,
    pub(super) mounts: Mounts,
    pub(super) slice: Option<Slice>,
    /// Whose programs it shares contexts with.
    pub(super) tenant: Option<String>,
    pub(super) cpu: Cpu<'a>,
}

/// Who has the GPU halves.
pub(super) enum Gpu<'a> {
    None,
    /// One for each process that uses the GPU.
    Workers {
        sandbox: &'a Sandbox,
        workers: Vec<Arc<Worker>>,
    },
    Driver,
}

/// What is known of the GPU halves, and keeps them where they are.
pub(super) struct QuiescedGpu<'a> {
    pub(super) standing: Option<&'a Standstill<'a>>,
    pub(super) status: Option<&'a Status>,
    pub(super) hold: Option<&'a Hold<'a>>,
}

impl QuiescedGpu<'_> {
    /// The processes that have a worker each.
    pub(super) fn clients(&self) -> impl Iterator<Item = &Quiesced> {
        self.standing.into_iter().flat_map(Standstill::clients)
    }
}

/// One attempt.
pub(super) struct Attempt<'a> {
    pub(super) daemon: &'a Daemon,
    pub(super) criu: Criu,
    pub(super) subject: Subject<'a>,
    pub(super) gpu: Gpu<'a>,
    /// The processes that use an AMD GPU, which CRIU's plugin takes.
    pub(super) amd: Vec<i32>,
    /// Whether a program that uses no GPU is refused.
    pub(super) needs_gpu: bool,
    pub(super) request: &'a CheckpointRequest<'a>,
    pub(super) timeline: &'a Timeline,
    pub(super) warnings: Mutex<Vec<String>>,
    /// The pages, once CRIU has written the rest.
    pub(super) served: Mutex<Option<Served>>,
    /// When the workers were asked to save their halves, microseconds since the beginning.
    pub(super) saved_us: OnceLock<u64>,
    /// Set if the workers were asked to write GPU memory ahead.
    pub(super) written_ahead: OnceLock<()>,
    /// Set if memory was copied ahead, whose pages are not in order then.
    pub(super) copied_ahead: OnceLock<()>,
    /// What the program's last image has of it, if it goes on.
    pub(super) last_image: Option<&'a Arc<LastImage>>,
    /// What its GPU memory was then.
    pub(super) last_cut: Option<&'a LastCut>,
    /// Set once the program has written to pinned memory while that was copied behind its work.
    pub(super) writes_pinned: Option<&'a AtomicBool>,
    /// The page files of that image, if it is of use.
    pub(super) last_links: OnceLock<Links>,
    /// Those page files, and those that it was restored from, once they were opened.
    pub(super) earlier_pages: OnceLock<EarlierPages>,
    /// Build ids of the files that it has mapped, read while it runs.
    pub(super) known_files: OnceLock<KnownFiles>,
    /// Where memory lies in the page files of this one.
    pub(super) layout: Mutex<Layout>,
    /// What the image is to say of the program, once that was seen.
    pub(super) described: Mutex<Option<ImageMetadata>>,
    /// The id of the image, once it is there.
    pub(super) made: OnceLock<String>,
    /// Its ports, where who comes waits from the freeze until it goes on.
    pub(super) published: Option<&'a network::SandboxNetwork>,
    pub(super) reply: &'a Reply<'a>,
}

impl<'a> Attempt<'a> {
    /// What fails leaves the draft where it is.
    pub(super) fn make(&self, draft: &Mutex<Option<Draft>>) -> Result<AttemptReport> {
        self.step("checkpoint-begun")?;
        self.take(draft).inspect_err(|_| self.give_up_drain())
    }

    pub(super) fn report(&self, taken: &AttemptReport) -> Report {
        let Subject { name, mode, .. } = &self.subject;
        log::info!("{name:?} is in image {:?}", self.request.to);
        Report {
            name: name.clone(),
            image: self.request.to.to_string(),
            mode: *mode,
            container: None,
            gpu_processes: taken.gpu_processes,
            total_us: self.timeline.elapsed_us(),
            stopped_us: self.timeline.stopped_us(),
            warnings: self.warnings.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            phases: self.timeline.phases(),
            memory: self.timeline.memory(),
            waited: self.timeline.waited(),
            written: self.timeline.written(),
        }
    }

    pub(super) fn workers(&self) -> &[Arc<Worker>] {
        match &self.gpu {
            Gpu::Workers { workers, .. } => workers,
            Gpu::None | Gpu::Driver => &[],
        }
    }

    /// The end of a worker, if what failed may have come of it: the process that it served may end in turn, in the middle of its
    /// dump. Otherwise what failed.
    pub(super) fn caused_by_worker(&self, error: Error) -> std::result::Result<Error, Error> {
        let failure = || self.workers().iter().find_map(|worker| worker.failure("save the GPU half"));
        match error {
            Error::Workers(WorkerError::Ended { .. }) if failure().is_some() => Ok(error),
            error if error.may_come_of_an_end() => failure().ok_or(error),
            error => Err(error),
        }
    }

    /// Brings all processes that use the GPU to a stand. If one does not come to it, all go on.
    fn quiesce(&self) -> Result<Option<Standstill<'_>>> {
        let Gpu::Workers { sandbox, workers } = &self.gpu else { return Ok(None) };
        self.reply.progress("quiesce", 0, 0);
        self.timeline.time("quiesce", || Standstill::begin(sandbox, workers, self.contents())).map(Some)
    }

    /// The draft stays where it is until it is committed: the worker writes to it until its thread has ended.
    fn take(&self, draft: &Mutex<Option<Draft>>) -> Result<AttemptReport> {
        // All are on the same GPUs.
        let status = self.workers().first().map(|worker| worker.status()).transpose()?;
        let scratch = Scratch::make(self.daemon.paths.dumps().join(&self.subject.id))?;
        let (pages, criu_end) = Pages::begin(&scratch.path)?;
        let mut spec = DumpSpec::new(&self.criu, &scratch.path, self.request.leave_running);
        spec.page_server = Some(criu_end.as_fd());
        spec.steps_told = log::log_enabled!(log::Level::Debug);
        let program = self.daemon.pool.program.clone().into_os_string();
        spec.tracer = Some(vec![program, TRACER_ARGUMENT.into()]);
        let (pre_copy, prepared) = {
            let draft = draft.lock().unwrap_or_else(PoisonError::into_inner);
            self.get_ready(draft.as_ref().ok_or(ImageError::NoDraft)?, &scratch.path, &mut spec)?
        };
        self.await_moment();
        let stood_at = Instant::now();
        let mut standing = self.quiesce()?;
        self.step("quiesced")?;
        let followed = self.follow_pinned(standing.as_ref(), pre_copy.as_ref())?;
        for barrier in standing.iter_mut().flat_map(Standstill::barriers_mut) {
            let pid = self.client_pid(&barrier.client)?;
            self.timeline.time("detach", || barrier.detach(pid))?;
        }
        let clients = standing.iter().flat_map(Standstill::clients);
        spec.external_sockets = clients.map(|client| client.socket_inode as u32).collect();
        spec.external_sockets.sort_unstable();
        let (prepared, hold) = match self.gpu {
            // Making a process takes long in one as large as this.
            Gpu::Driver => std::thread::scope(|scope| {
                let prepared = scope.spawn(|| self.subject.cpu.prepare(&spec));
                let hold = self.hold();
                // Without it the dump starts a CRIU of its own.
                let prepared = prepared.join().unwrap_or_default();
                hold.map(|hold| (prepared, hold))
            })?,
            Gpu::None | Gpu::Workers { .. } => (prepared, None),
        };
        self.step("detached")?;
        let quiesced =
            QuiescedGpu { standing: standing.as_ref(), status: status.as_ref(), hold: hold.as_ref() };
        let pause = self.published.map(network::SandboxNetwork::pause);
        self.dump(draft, &spec, prepared, (pages, pre_copy.as_ref()), &quiesced)?;
        let driven = hold.as_ref().map_or(0, |hold| hold.held.pids.len());
        let gpu_processes = quiesced.clients().count() + driven + self.amd.len();
        match hold {
            Some(hold) if self.request.leave_running => driver_half::release(hold, self.timeline)?,
            Some(hold) => hold.forget(),
            None => {}
        }
        match standing {
            None => {}
            Some(standing) if self.request.leave_running => {
                self.timeline.time("resume", || standing.resume())?
            }
            Some(standing) => standing.end(),
        }
        let stopped = stood_at.elapsed();
        self.timeline.note_stop(stopped);
        drop(pause);
        // Nothing stays protected unless it is of use to the next image.
        let pre_copy = pre_copy.filter(|_| self.last_image.is_some() && patience().is_some());
        if self.request.leave_running {
            let (drained, taken) = std::thread::scope(|scope| {
                let drained = scope.spawn(|| {
                    self.await_copy(followed)?;
                    self.drain(draft, self.catch_up(stopped, None))
                });
                let taken = giving_way(BESIDE_A_PROGRAM, || {
                    let pause = self.catch_up(stopped, self.copied_bytes());
                    if !pause.is_zero() {
                        self.timeline.lane(PAGES).time("catch up", || std::thread::sleep(pause));
                    }
                    self.take_cpu(draft, &scratch.path)
                });
                (drained.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), taken)
            });
            drained.and(taken)?;
            giving_way(BESIDE_A_PROGRAM, || self.seal(draft))?;
        }
        self.keep_last(stood_at, pre_copy);
        fault::point("committed")?;
        Ok(AttemptReport { gpu_processes })
    }

    /// For how long a program that stood still so long has the machine to itself: whoever asked it for something meanwhile is
    /// answered first, which what writes the image would slow down.
    fn catch_up(&self, stopped: Duration, new_bytes: Option<u64>) -> Duration {
        match self.request.purpose {
            Purpose::Image => catch_up(stopped, new_bytes),
            Purpose::Round | Purpose::Move(_) => Duration::ZERO,
        }
    }

    /// A step is done after which it can still be given up.
    pub(super) fn step(&self, point: &'static str) -> Result<()> {
        fault::point(point)?;
        self.reply.check_wanted()
    }

    fn hold(&self) -> Result<Option<Hold<'a>>> {
        self.reply.progress("gpu", 0, 0);
        let Subject { id, name, cpu, .. } = &self.subject;
        let hold = driver_half::hold(&self.daemon.driver, id, cpu, self.request.gpu_wait, self.timeline)?;
        if hold.is_none() && self.amd.is_empty() && self.needs_gpu {
            return Err(CheckpointError::NoGpuProcess { name: name.clone() }.into());
        }
        Ok(hold)
    }

    pub(super) fn client_pid(&self, client: &Quiesced) -> Result<i32> {
        let inside = client.process as i32;
        self.subject.cpu.host_pid(inside).ok_or_else(|| {
            WorkerError::Failed {
                action: "find the program's process",
                reason: format!(
                    "the client says that it is process {inside}, and there is none in the sandbox"
                ),
            }
            .into()
        })
    }

    /// Has CRIU dump the CPU half while the worker saves the GPU half.
    fn dump(
        &self,
        draft: &Mutex<Option<Draft>>,
        spec: &DumpSpec<'_>,
        prepared: Prepared,
        (pages, pre_copy): (Pages<'_>, Option<&PreCopy>),
        quiesced: &QuiescedGpu<'_>,
    ) -> Result<()> {
        let paths = {
            let draft = draft.lock().unwrap_or_else(PoisonError::into_inner);
            let draft = draft.as_ref().ok_or(ImageError::NoDraft)?;
            quiesced.standing.map_or_else(Vec::new, |standing| standing.paths(draft))
        };
        self.reply.progress("dump", 0, 0);
        let failure = Mutex::new(None);
        // The first is the cause.
        let fail = |error: Error| {
            let sentence = error.to_string();
            failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            sentence
        };
        let (saved, stands) = (OnceLock::new(), OnceLock::new());
        let first = (!paths.is_empty()).then_some(&saved);
        let areas = driver_half::areas(quiesced.hold);
        let start_us = self.timeline.elapsed_us();
        let dumped = std::thread::scope(|scope| {
            let populate = self.subject.mode == Mode::Driver;
            let host_pid = |pid| self.subject.cpu.host_pid(pid);
            let until_stands = &stands;
            let pages = scope.spawn(move || {
                let _ended = Done(until_stands);
                pages.serve(&host_pid, areas, populate, first, pre_copy, Some(until_stands)).map_err(fail)
            });
            let save = first.map(|saved| scope.spawn(|| self.save(&paths, Done(saved))));
            // Beside CRIU, from when it has brought the program to a stand.
            let inventory = scope.spawn(|| {
                stands.wait();
                self.subject.cpu.begin_inventory(self.known_files())
            });
            let dumped = self.subject.cpu.dump(spec, prepared, |frozen| {
                let lost = || "the program's pages were not taken".to_string();
                let served = self.timeline.lane(CPU).wait("wait for the pages", &[PAGES], || pages.join());
                let served = served.map_err(|_| lost()).flatten()?.ok_or_else(lost)?;
                *self.served.lock().unwrap_or_else(PoisonError::into_inner) = Some(served);
                let lost = |_| "a thread that looked at the program panicked".to_string();
                let inventory = inventory.join().map_err(lost)?.map_err(|error| fail(error.into()))?;
                let gathered = self.gather(frozen, draft, save, &paths, quiesced, inventory);
                // A program that is to end does not end before its image is safe.
                let sealed = gathered.and_then(|()| match self.request.leave_running {
                    true => Ok(()),
                    false => self
                        .take_cpu(draft, spec.images_dir)
                        .and_then(|()| self.seal(draft))
                        .and_then(|()| self.hand_over(frozen)),
                });
                sealed.map_err(fail)
            });
            // Pages of a CRIU that has ended in the middle do not come any more.
            if let Some(socket) = spec.page_server {
                let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
            }
            dumped
        });
        match dumped {
            Ok(report) => {
                self.note_dump(start_us, &report);
                Ok(())
            }
            Err(error) => {
                self.undo(draft);
                let cause = failure.lock().unwrap_or_else(PoisonError::into_inner).take();
                Err(cause.unwrap_or_else(|| self.daemon.paths.keep_words(error)))
            }
        }
    }

    /// A program that moves has its image where it goes before it ends here.
    fn hand_over(&self, frozen: &Frozen<'_>) -> Result<()> {
        match self.request.purpose {
            Purpose::Move(hand_over) => hand_over(frozen),
            Purpose::Image | Purpose::Round => Ok(()),
        }
    }

    fn note_dump(&self, start_us: u64, report: &DumpReport) {
        let micros = |duration: Duration| duration.as_micros() as u64;
        let cpu = self.timeline.lane(CPU);
        let (frozen_us, freezing_us) = (micros(report.until_frozen), report.stats.freezing_us);
        // CRIU says how long freezing took and when all was written, and freezing is what it does first.
        let written = report.stats.pages_written * PAGE;
        cpu.note("freeze", start_us, freezing_us, 0);
        cpu.merge(
            start_us,
            [Phase {
                name: "dump".into(),
                start_us: freezing_us,
                duration_us: frozen_us.saturating_sub(freezing_us),
                bytes: written,
                counts: [
                    ("areas known".to_string(), report.stats.known_areas),
                    ("answers known".to_string(), report.stats.known_answers),
                    ("links known".to_string(), report.stats.known_links),
                ]
                .into(),
                ..Phase::default()
            }],
        );
        let end_us = frozen_us + micros(report.frozen_step);
        let after = if self.request.leave_running { "thaw" } else { "stop" };
        cpu.note(after, start_us + end_us, micros(report.total).saturating_sub(end_us), 0);
    }

    /// Leaves nothing of an attempt that failed.
    fn undo(&self, draft: &Mutex<Option<Draft>>) {
        drop(draft.lock().unwrap_or_else(PoisonError::into_inner).take());
        let goes_on = self.subject.cpu.goes_on();
        // An image that was finished before the dump failed is all that is left of a program that ended.
        if let Some(id) = self.made.get()
            && goes_on
            && let Err(error) = self.daemon.store.remove_made(self.request.to, id)
        {
            log::error!("the image of a checkpoint that failed stays: {error}");
        }
    }
}

/// How long a program that stood still so long has the machine to itself before so many bytes are written; all, if none are
/// known.
fn catch_up(stopped: Duration, new_bytes: Option<u64>) -> Duration {
    let writing = new_bytes.map(|bytes| Duration::from_secs_f64(bytes as f64 / WRITE_RATE));
    stopped.min(CATCH_UP_LIMIT).min(writing.unwrap_or(CATCH_UP_LIMIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_catches_up_for_as_long_as_it_stood_still_unless_little_is_new() {
        let ms = Duration::from_millis;
        assert_eq!([60, 300].map(|stopped| catch_up(ms(stopped), None)), [ms(60), ms(100)]);
        assert_eq!(
            [0, 50_000_000, 5_000_000_000].map(|new| catch_up(ms(60), Some(new))),
            [ms(0), ms(10), ms(60)]
        );
    }
}
