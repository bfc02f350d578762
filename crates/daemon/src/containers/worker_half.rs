//! Containers whose GPU halves workers have, one for each process that uses a GPU: the same cut as of a sandbox, with the engine's runtime in the middle.
//!
//! ```text
//! program   ──runs──┬─calls parked──┬─frozen by CRIU──────────────┬─(stopped)──▶ runs, or is ended
//! worker            ├Quiesce─Save───┴─(still saving)─SavePinned───┤             Resume
//! CRIU, by engine   │       dump ───┬ relay: wait for all parts ──┘
//! image             draft                                           archive as one part, manifest, rename
//! ```
//!
//! The relay adds the client's socket to what the runtime asks of CRIU, in both directions. The container is stopped by
//! a signal before CRIU lets go of it: until its writable layer is archived too, or, if it is to end, until its image is
//! safe; if that fails it goes on.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rekindle_protocol::daemon::{Mode, Report, State};
use rekindle_protocol::worker::Contents;
use rekindle_sandbox::process::{namespace, tree};
use rekindle_store::{Draft, Image};

use super::dump::{Dump, Dumped};
use super::engine::{Container, Engine};
use super::images::{DetachedImages, Import, find};
use super::podman::{Manner, Podman};
use super::{ARCHIVE, device, kind, proof};
use crate::checkpoint::{CheckpointRequest, Done, Scratch};
use crate::containers::ContainerError;
use crate::daemon::Daemon;
use crate::error::Result;
use crate::host::client_library::{self, Build};
use crate::host::gpu;
use crate::images::ImageError;
use crate::images::machine;
use crate::images::metadata::ContainerMetadata;
use crate::images::metadata::ImageMetadata;
use crate::images::verify::cpu_half;
use crate::reply::Reply;
use crate::restore::halves::Half;
use crate::restore::loading::{self, PendingLoad};
use crate::sandboxes::Sandbox;
use crate::sandboxes::members;
use crate::sandboxes::standstill::{self, Standstill};
use crate::sleep::wake;
use crate::timeline::{CPU, Clock, PINNED, Timeline};
use crate::workers::{Worker, WorkerError, gpu_half};
use crate::{fault, restore};

pub fn checkpoint(
    daemon: &Daemon,
    sandbox: &Arc<Sandbox>,
    container: &Container,
    request: &CheckpointRequest<'_>,
    reply: &Reply<'_>,
) -> Result<Report> {
    let timeline = Timeline::begin();
    let _operation = wake::begin_awake(sandbox, State::Checkpointing, "checkpointed")?;
    if sandbox.record().image.is_some() && !shares_network(container.pid) {
        return Err(ContainerError::Restored { name: container.name.clone() }.into());
    }
    let _claim = daemon.claims.take(tree(container.pid))?;
    let workers = sandbox.serving_workers()?;
    let draft = Mutex::new(daemon.store.begin(request.to)?);
    fault::point("checkpoint-begun")?;
    // All are on the same GPUs.
    let status = workers.first().map(|worker| worker.status()).transpose()?;
    reply.progress("quiesce", 0, 0);
    let standing = timeline.time("quiesce", || Standstill::begin(sandbox, &workers, Contents::Saved))?;
    fault::point("quiesced")?;
    let id = format!("container-{}", container.id);
    let scratch = Scratch::make(daemon.paths.dumps().join(&id))?;
    let archive = scratch.path.join(ARCHIVE);
    reply.progress("dump", 0, 0);
    let clients: Vec<_> = standing.clients().cloned().collect();
    let apart = standing.apart();
    let sockets: Vec<_> = clients.iter().map(|client| client.socket_inode as u32).collect();
    let saved = OnceLock::new();
    let dump = Dump {
        daemon,
        container,
        scratch: &scratch,
        sockets: &sockets,
        first: (!workers.is_empty()).then_some(&saved),
        timeline: &timeline,
    };
    let dumped = both(&dump, (&workers, &standing), &saved, &draft, &archive)?;
    let draft = draft.into_inner().unwrap_or_else(PoisonError::into_inner);
    let Dumped { exported, stopped, memory } = dumped;
    let mut of =
        ContainerMetadata { memory_beside: true, ..super::described(Podman::NAME, container, exported) };
    let device = device::keep(sandbox);
    // They come with the device.
    of.devices.retain(|name| !device::is_one(name));
    of.mounts.retain(|path| *path != device.run_directory);
    of.device = Some(device);
    let mut stopped_us = timeline.elapsed_us();
    let mut still = Some((stopped, standing));
    if let Some((stopped, standing)) = still.take_if(|_| request.leave_running) {
        drop(stopped);
        timeline.time("resume", || standing.resume())?;
        stopped_us = timeline.elapsed_us();
    }
    reply.progress("commit", 0, 0);
    fault::point("frozen")?;
    timeline.time("cpu files", || memory.take(&draft))?;
    timeline.time("check", || cpu_half::check_draft(&draft))?;
    timeline.time("archive", || draft.take_file(kind(), ARCHIVE, &archive))?;
    client_library::keep_with(&draft, &sandbox.run_directory)?;
    {
        let mut manifest = draft.manifest();
        manifest.mode = machine::mode(Mode::Sandbox);
        manifest.program = machine::program_of(&container.command);
        manifest.machine = machine::this();
        manifest.gpus = status.as_ref().map(machine::gpus).unwrap_or_default();
        manifest.halves = apart;
        // All that it has mapped is in its own root file system, or the device's: the inventory is empty.
        let metadata = ImageMetadata {
            name: container.name.clone(),
            gpu: sandbox.record().gpu,
            clients,
            container: Some(of.clone()),
            ..ImageMetadata::default()
        };
        metadata.write(&mut manifest)?;
    }
    fault::point("before-commit")?;
    let warnings = proof::commit(daemon, container, draft, request, &timeline, reply)?;
    if let Some((stopped, standing)) = still {
        timeline.lane(CPU).time("end", || Podman::with(daemon.criu()?).stop(container))?;
        drop(stopped);
        standing.end();
        stopped_us = timeline.elapsed_us();
    }
    Ok(super::report(&of, request.to, Mode::Sandbox, workers.len(), &timeline, stopped_us, warnings))
}

/// Has Podman dump the container while the workers save the GPU halves.
fn both(
    dump: &Dump<'_>,
    (workers, standing): (&[Arc<Worker>], &Standstill<'_>),
    saved_first: &OnceLock<()>,
    draft: &Mutex<Draft>,
    archive: &Path,
) -> Result<Dumped> {
    let timeline = dump.timeline;
    let paths = standing.paths(&draft.lock().unwrap_or_else(PoisonError::into_inner));
    std::thread::scope(|scope| {
        let save = scope.spawn(|| {
            // The pages of the CPU half wait until that is done, however it ends.
            let _done = Done(saved_first);
            standstill::save(workers, &paths, Contents::Saved, timeline)
        });
        let gather = || -> Result<()> {
            let parts = save.join().unwrap_or_else(|_| panicked())?;
            let draft = draft.lock().unwrap_or_else(PoisonError::into_inner);
            draft.adopt(parts)?;
            fault::point("saved")?;
            for (worker, place) in workers.iter().zip(&paths) {
                draft.adopt(gpu_half::save_pinned(worker, place, timeline)?)?;
            }
            fault::point("pinned-saved")?;
            let users: Vec<i32> = workers.iter().map(|worker| worker.client()).collect();
            members::all_live(&users)
        };
        dump.export(archive, || Ok(Vec::new()), gather)
    })
}

fn panicked<T>() -> Result<T> {
    Err(WorkerError::Failed {
        action: "work on the GPU half",
        reason: "the thread that asked panicked".into(),
    }
    .into())
}

/// Whether a process is in our network namespace, in which a restored program's socket was made.
pub fn shares_network(pid: i32) -> bool {
    namespace(pid, "net") == namespace(std::process::id() as i32, "net")
}

/// Makes a container of the image and continues it, its GPU half in a new worker. The name is free, the archive whole.
#[allow(clippy::too_many_arguments, reason = "all of one restore's parts meet here")]
pub fn restore(
    daemon: &Daemon,
    image: &Image,
    metadata: &ImageMetadata,
    of: &ContainerMetadata,
    beside: Option<&DetachedImages<'_>>,
    name: &str,
    request: &restore::RestoreRequest<'_>,
    timeline: &Timeline,
) -> Result<()> {
    let refused = |reason: String| ImageError::CannotRestore { image: image.manifest().name.clone(), reason };
    let device =
        of.device.as_ref().ok_or_else(|| refused("its container had no GPU of Rekindle's".to_string()))?;
    let gpu = gpu::choose(Some(request.gpu.unwrap_or(&metadata.gpu)))?;
    let sandbox = device::bring_back(daemon, device, &gpu).map_err(refused)?;
    let operation = sandbox.begin_settled(State::Restoring, "restored")?;
    if let Some(build) = Build::of_image(&daemon.paths, image)? {
        build.put_into(&sandbox.run_directory)?;
    }
    sandbox.note(|record| {
        record.gpu = gpu;
        record.image = Some(image.manifest().name.clone());
    });
    let warnings = Mutex::default();
    let attempt = restore::Attempt {
        daemon,
        sandbox: &sandbox,
        image,
        metadata,
        pairs: &[],
        timeline,
        request,
        warnings,
        is_proof: false,
        mapped: Mutex::default(),
    };
    let manner = &Manner::Itself;
    let import = Import { daemon, id: &sandbox.id, image, beside, of, name, manner, timeline };
    if metadata.clients.is_empty() {
        return import.make(&[], |_| Ok(()), Ok);
    }
    for (file, _) in metadata.clients.iter().flat_map(|client| &client.files) {
        let _ = std::fs::remove_file(sandbox.run_directory.join(file));
    }
    let gpu_load = daemon.pool.begin_load();
    let back = attempt.take_workers().and_then(|workers| attempt.halves(workers)).and_then(|halves| {
        sandbox.note_workers();
        let load = |half: &Half<'_>| attempt.load_pinned(&half.image, half.client);
        timeline.lane(PINNED).time("load", || halves.iter().try_for_each(load))?;
        both_halves(&import, &attempt, halves)
    });
    let pending = match back {
        Ok(pending) => pending,
        Err(error) => {
            Podman::with(daemon.criu()?).remove(of, name);
            sandbox.live_workers().iter().for_each(|worker| sandbox.end_worker(worker));
            sandbox.note_workers();
            return Err(error);
        }
    };
    drop(operation);
    loading::follow(&sandbox, image, pending, gpu_load, Clock::at(timeline.elapsed_us()));
    Ok(())
}

fn both_halves(
    import: &Import<'_>,
    attempt: &restore::Attempt<'_>,
    halves: Vec<Half<'_>>,
) -> Result<Vec<PendingLoad>> {
    let (sandbox, timeline) = (attempt.sandbox, attempt.timeline);
    let ends: Vec<_> = halves.iter().map(Half::socket).collect();
    let sockets: Vec<_> = ends.iter().map(|end| (end.inode, end.socket)).collect();
    let paths: Vec<_> = halves.iter().map(|half| (&half.worker, &half.image)).collect();
    let adopted = Mutex::new(None);
    std::thread::scope(|scope| {
        let gpu = scope.spawn(|| attempt.restore_gpu(&paths));
        let adopt = |relay_pid: i32| -> Result<()> {
            let loading = gpu.join().unwrap_or_else(|_| panicked())?;
            fault::point("restore-complete")?;
            let adopt = |half: &Half<'_>| {
                let pid = find(relay_pid, half.client.process as i32)?;
                half.adopt(pid).map(|()| pid)
            };
            let pids = halves.iter().map(adopt).collect::<Result<Vec<_>>>()?;
            *adopted.lock().unwrap_or_else(PoisonError::into_inner) = Some((loading, pids));
            Ok(())
        };
        import.make(&sockets, adopt, Ok)
    })?;
    drop((sockets, ends, paths));
    let adopted = adopted.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (loading, pids) = adopted.ok_or_else(|| WorkerError::Failed {
        action: "take the program over",
        reason: "its runtime did not start the CRIU that it was given".into(),
    })?;
    sandbox.note_workers();
    let resume = |half: &Half<'_>| gpu_half::resume(&half.worker, true, false);
    timeline.time("resume", || halves.iter().try_for_each(resume))?;
    fault::point("restore-running")?;
    let halves = halves.into_iter().zip(loading).zip(pids);
    Ok(halves.map(|((half, gpu), pid)| half.pending(gpu, pid)).collect())
}
