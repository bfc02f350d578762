//! Programs at rest outlive a fault of another one in the context that they share: each goes on in another context, with
//! its memory where it lies.
//!
//! ```text
//! program         ──runs─────────────────────────────────────────────────────────────▶ its requests wait, if it has any
//! its worker      ├ fault ─ Leave ─ Save ──────── memory: descriptors ─┬─ Part ─┬ ends
//! another process ├ its context is made, if there is none ─────────────┴ Restore ┴ TakeOver ─ Resume: a byte ──▶
//! ```
//!
//! It is a move to the same GPU, of a program that runs; who has it at which time is decided as in any.

use std::sync::Arc;

use rekindle_protocol::daemon::{Operation as Traced, State};
use rekindle_protocol::worker::{Contents, ContextLost};
use rekindle_store::{Image, Store};

use super::{arrive, hand_over};
use crate::error::{Error, Result};
use crate::fault;
use crate::images::machine;
use crate::sandboxes::Sandbox;
use crate::sandboxes::asleep::forget;
use crate::sandboxes::record::{Moving, MovingProcess};
use crate::sandboxes::traces::Tracing;
use crate::timeline::{GPU, Timeline};
use crate::workers::{Worker, gpu_half};

const WANTED: &str = "moved out of a GPU context that has failed";
/// So many processes are tried: the first one may meet a fault of its own.
const ATTEMPTS: u32 = 2;

/// Does what is to be done for a program whose shared context has failed.
pub fn outlive(sandbox: Arc<Sandbox>, source: Arc<Worker>, lost: ContextLost) {
    if lost == ContextLost::Told {
        return sandbox.report_problem(
            "the GPU context that it shares has failed while it had work there; its GPU calls return an error from now on"
                .to_string(),
        );
    }
    if let Err(error) = go_on_elsewhere(&sandbox, &source)
        && !sandbox.is_ending()
    {
        sandbox.report_problem(format!(
            "the GPU context that it shared has failed, and it could not go on in another one ({error}); its GPU calls return \
             an error from now on"
        ));
    }
}

fn go_on_elsewhere(sandbox: &Arc<Sandbox>, source: &Arc<Worker>) -> Result<()> {
    let timeline = Timeline::begin();
    let tracing = Tracing::begin(Traced::Migrate, &sandbox.record().gpu);
    let operation = sandbox.begin_after(State::Migrating, WANTED).inspect_err(|_| stay(source))?;
    source.set_followed(true);
    let moved = Leaving { sandbox, source, timeline: &timeline }.perform();
    forget(&sandbox.moving, &image_name(sandbox));
    source.set_followed(false);
    if moved.is_err() {
        stay(source);
        sandbox.leave_alone(source);
        sandbox.note(|record| record.moving = None);
        sandbox.note_workers();
    }
    let moved = moved.map_err(|error| operation.explain(error));
    drop(operation);
    let held_us = moved.as_ref().map_or(0, |held_us| *held_us);
    let held_us = tracing.end(sandbox, &timeline, held_us, moved)?;
    log::info!(
        "{:?} was at rest when the GPU context that it shared failed, and goes on in another one after {} ms",
        sandbox.name(),
        held_us / 1000
    );
    Ok(())
}

/// The program is told of the fault; it was before, if the worker has heard of that by itself.
fn stay(source: &Worker) {
    if let Err(error) = gpu_half::resume(source, false, false) {
        log::info!("a program whose GPU context has failed is told by its worker's end: {error}");
    }
}

fn image_name(sandbox: &Sandbox) -> String {
    format!("{}.0", sandbox.id)
}

/// A program that leaves its context.
struct Leaving<'a> {
    sandbox: &'a Arc<Sandbox>,
    source: &'a Arc<Worker>,
    timeline: &'a Timeline,
}

impl Leaving<'_> {
    /// For how long the program's requests waited, if it had any.
    fn perform(&self) -> Result<u64> {
        self.timeline.time("hold", || gpu_half::leave(self.source))?;
        fault::point("migrate-begun")?;
        let image = std::thread::scope(|scope| {
            // A process that has no contexts yet makes them meanwhile.
            let first = scope.spawn(|| self.take());
            let image = self.save();
            let first = first.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok::<_, Error>((image.inspect_err(|_| self.end(&first))?, first))
        });
        let (image, mut target) = image?;
        let mut attempt = 1;
        loop {
            match target.and_then(|target| self.arrive_at(&target, &image)) {
                Ok(held_us) => return Ok(held_us),
                Err(error) if attempt >= ATTEMPTS || !self.is_held() => return Err(error),
                Err(error) => log::warn!("{:?} tries another GPU context: {error}", self.sandbox.name()),
            }
            target = self.take();
            attempt += 1;
        }
    }

    /// What serves the program in another process, once that has its contexts.
    fn take(&self) -> Result<Arc<Worker>> {
        self.timeline.time("another context", || self.sandbox.take_worker_at(self.source.slice()))
    }

    fn end(&self, target: &Result<Arc<Worker>>) {
        if let Ok(target) = target {
            self.sandbox.end_worker(target);
        }
    }

    /// Writes all that is known of the GPU half but its memory.
    fn save(&self) -> Result<Image> {
        let name = image_name(self.sandbox);
        let store = Store::open_transient(&self.sandbox.moving)?;
        forget(store.root(), &name);
        let draft = store.begin(&name)?;
        draft.adopt(gpu_half::save(self.source, draft.path(), Contents::Left, self.timeline)?)?;
        draft.manifest().gpus = machine::gpus(&self.source.status()?);
        let image = self.timeline.time("commit", || draft.commit())?;
        fault::point("migrate-saved")?;
        Ok(image)
    }

    /// Has the program go on with this worker, which is ended if that fails.
    fn arrive_at(&self, target: &Arc<Worker>, image: &Image) -> Result<u64> {
        target.set_followed(true);
        self.move_to(target, image).inspect_err(|_| {
            self.sandbox.end_worker(target);
            target.kill();
        })
    }

    fn move_to(&self, target: &Arc<Worker>, image: &Image) -> Result<u64> {
        let process = MovingProcess { worker: target.number(), pid: self.source.client() };
        let MovingProcess { worker, pid } = process;
        let moving = Moving { gpu: self.sandbox.record().gpu, worker, pid, others: Vec::new() };
        self.sandbox.update(|record| record.moving = Some(moving.clone()))?;
        self.sandbox.note_workers();
        self.timeline.time("lend memory", || hand_over::lend(self.source, target, None))?;
        let (lane, start_us) = (self.timeline.lane(GPU), self.timeline.elapsed_us());
        lane.merge(start_us, gpu_half::restore_beside_running(target, image, &self.sandbox.run_directory)?);
        lane.merge(start_us, gpu_half::loaded(target, None)?);
        fault::point("migrate-restored")?;
        // Of one that has ended meanwhile it is known now, while the program can go on with another one.
        target.status()?;
        self.timeline.time("hand over", || hand_over::give(self.source, target, None))?;
        let resumed = self
            .timeline
            .time("resume", || gpu_half::resume(target, false, false))
            .and_then(|()| fault::point("migrate-resumed"));
        match resumed {
            Ok(()) => {}
            Err(error) if hand_over::is_there(self.sandbox, self.source, target) => {
                log::warn!("{:?} goes on in another GPU context all the same: {error}", self.sandbox.name());
            }
            Err(error) => return Err(error),
        }
        let held_us = self.timeline.elapsed_us();
        arrive(self.sandbox, &moving, [(process, Some(self.source), target)]);
        Ok(held_us)
    }

    /// Whether the program's requests wait yet, so that it can go on with another worker.
    fn is_held(&self) -> bool {
        self.source.ended().is_none() && gpu_half::leave(self.source).is_ok()
    }
}
