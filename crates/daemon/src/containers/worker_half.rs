//! Containers whose GPU half a worker has: the same cut as of a sandbox, with the engine's runtime in the middle.
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

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rekindle_protocol::client::Quiesced;
use rekindle_protocol::daemon::Limits;
use rekindle_protocol::daemon::{Mode, Report, State};
use rekindle_protocol::mounts::Mounts;
use rekindle_protocol::network::Network;
use rekindle_protocol::worker::Contents;
use rekindle_sandbox::Inventory;
use rekindle_sandbox::process::{namespace, tree};
use rekindle_store::{Draft, Image};

use super::dump::{Dump, Dumped};
use super::engine::{Container, Engine};
use super::images::{DetachedImages, Import, find};
use super::podman::{Manner, Podman};
use super::{ARCHIVE, device, kind, proof};
use crate::checkpoint::{CheckpointRequest, Done, Scratch};
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::host::client_library::{self, Build};
use crate::host::gpu;
use crate::images::machine;
use crate::images::metadata::ContainerMetadata;
use crate::images::metadata::ImageMetadata;
use crate::images::verify::cpu_half;
use crate::reply::Reply;
use crate::restore::loading::{self, PendingLoad};
use crate::restore::replacement::RecoveryState;
use crate::sandboxes::Sandbox;
use crate::sandboxes::members;
use crate::sandboxes::quiesce::QuiesceBarrier;
use crate::sleep::wake;
use crate::timeline::{CPU, Clock, PINNED, Timeline};
use crate::workers::{Worker, gpu_half};
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
        return Err(Error::RestoredContainer { name: container.name.clone() });
    }
    let _claim = daemon.claims.take(tree(container.pid))?;
    let worker = sandbox.serving_worker("checkpointed in a container")?;
    let draft = Mutex::new(daemon.store.begin(request.to)?);
    fault::point("checkpoint-begun")?;
    let status = worker.as_ref().map(|worker| worker.status()).transpose()?;
    reply.progress("quiesce", 0, 0);
    let barrier = worker
        .as_ref()
        .map(|worker| timeline.time("quiesce", || QuiesceBarrier::begin(sandbox, worker, Contents::Saved)));
    let mut barrier = barrier.transpose()?;
    fault::point("quiesced")?;
    let id = format!("container-{}", container.id);
    let scratch = Scratch::make(daemon.places.dumps().join(&id))?;
    let archive = scratch.path.join(ARCHIVE);
    reply.progress("dump", 0, 0);
    let client = barrier.as_ref().map(|barrier| barrier.client.clone());
    let sockets: Vec<_> = client.iter().map(|client| client.socket_inode as u32).collect();
    let saved = OnceLock::new();
    let dump = Dump {
        daemon,
        container,
        scratch: &scratch,
        sockets: &sockets,
        first: worker.is_some().then_some(&saved),
        timeline: &timeline,
    };
    let dumped = both(&dump, worker.as_deref(), &saved, &draft, &archive)?;
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
    let mut stopped = Some(stopped);
    if request.leave_running {
        stopped = None;
        if let Some(barrier) = barrier.take() {
            timeline.time("resume", || barrier.resume())?;
        }
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
        let metadata = ImageMetadata {
            slice: None,
            name: container.name.clone(),
            gpu: sandbox.record().gpu,
            // All that it has mapped is in its own root file system, or the device's.
            inventory: Inventory::default(),
            clients: client.into_iter().collect(),
            driver: None,
            amd: Vec::new(),
            framework: false,
            container: Some(of.clone()),
            network: Network::Host,
            ports: Vec::new(),
            limits: Limits::default(),
            mounts: Mounts::default(),
            warnings: Vec::new(),
        };
        metadata.write(&mut manifest)?;
    }
    fault::point("before-commit")?;
    let warnings = proof::commit(daemon, container, draft, request, &timeline, reply)?;
    if !request.leave_running {
        timeline.lane(CPU).time("end", || Podman::with(daemon.criu()?).stop(container))?;
        drop(stopped);
        if let Some(barrier) = barrier {
            barrier.end();
        }
        stopped_us = timeline.elapsed_us();
    }
    let gpu_processes = usize::from(worker.is_some());
    Ok(super::report(&of, request.to, Mode::Sandbox, gpu_processes, &timeline, stopped_us, warnings))
}

/// Has Podman dump the container while the worker saves the GPU half.
fn both(
    dump: &Dump<'_>,
    worker: Option<&Worker>,
    saved_first: &OnceLock<()>,
    draft: &Mutex<Draft>,
    archive: &Path,
) -> Result<Dumped> {
    let timeline = dump.timeline;
    let staging = draft.lock().unwrap_or_else(PoisonError::into_inner).path().to_path_buf();
    std::thread::scope(|scope| {
        let save = worker.map(|worker| {
            let staging = &staging;
            scope.spawn(move || {
                // The pages of the CPU half wait until that is done, however it ends.
                let _done = Done(saved_first);
                gpu_half::save(worker, staging, Contents::Saved, timeline)
            })
        });
        let gather = || -> Result<()> {
            let parts = save.map_or(Ok(Vec::new()), |save| save.join().unwrap_or_else(|_| panicked()))?;
            let draft = draft.lock().unwrap_or_else(PoisonError::into_inner);
            draft.adopt(parts)?;
            fault::point("saved")?;
            if let Some(worker) = worker {
                draft.adopt(gpu_half::save_pinned(worker, &staging, timeline)?)?;
            }
            fault::point("pinned-saved")?;
            worker.map_or(Ok(()), |worker| members::all_live(&[worker.client()]))
        };
        dump.export(archive, || Ok(Vec::new()), gather)
    })
}

fn panicked<T>() -> Result<T> {
    Err(Error::Worker { action: "work on the GPU half", reason: "the thread that asked panicked".into() })
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
    let refused = |reason: String| Error::CannotRestore { image: image.manifest().name.clone(), reason };
    let device =
        of.device.as_ref().ok_or_else(|| refused("its container had no GPU of Rekindle's".to_string()))?;
    let gpu = gpu::choose(Some(request.gpu.unwrap_or(&metadata.gpu)))?;
    let sandbox = device::bring_back(daemon, device, &gpu).map_err(refused)?;
    let operation = sandbox.begin_settled(State::Restoring, "restored")?;
    if let Some(build) = Build::of_image(&daemon.places, image)? {
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
    let client = match &metadata.clients[..] {
        [] => return import.make(&[], |_| Ok(()), Ok),
        [client] => client,
        several => {
            let count = several.len();
            return Err(refused(format!(
                "{count} processes of its container used the GPU, and one can be restored"
            )));
        }
    };
    for (file, _) in &client.files {
        let _ = std::fs::remove_file(sandbox.run_directory.join(file));
    }
    attempt.make_files(client)?;
    timeline.lane(PINNED).time("load", || attempt.load_pinned(image, client))?;
    let worker = timeline.time("take a worker", || sandbox.start_worker())?;
    let back = both_halves(&import, &attempt, client, &worker);
    let pending = match back {
        Ok(pending) => pending,
        Err(error) => {
            Podman::with(daemon.criu()?).remove(of, name);
            sandbox.end_worker(&worker);
            sandbox.note_workers();
            return Err(error);
        }
    };
    drop(operation);
    loading::follow(&sandbox, image, vec![pending], Clock::at(timeline.elapsed_us()));
    Ok(())
}

fn both_halves(
    import: &Import<'_>,
    attempt: &restore::Attempt<'_>,
    client: &Quiesced,
    worker: &Arc<Worker>,
) -> Result<PendingLoad> {
    let (sandbox, timeline) = (attempt.sandbox, attempt.timeline);
    let (client_end, worker_end) =
        UnixStream::pair().map_err(|source| Error::system("make a pair of sockets", source))?;
    let sockets = [(client.socket_inode as u32, client_end.as_fd())];
    let adopted = Mutex::new(None);
    std::thread::scope(|scope| {
        let gpu = scope.spawn(|| attempt.restore_gpu(&[(worker, attempt.image)]));
        let adopt = |relay_pid: i32| -> Result<()> {
            let loading = gpu.join().unwrap_or_else(|_| panicked())?.pop();
            fault::point("restore-complete")?;
            let pid = find(relay_pid, client.process as i32)?;
            gpu_half::adopt(worker, pid, false, worker_end.as_fd())?;
            *adopted.lock().unwrap_or_else(PoisonError::into_inner) = Some((pid, loading));
            Ok(())
        };
        import.make(&sockets, adopt, Ok)
    })?;
    let adopted = adopted.into_inner().unwrap_or_else(PoisonError::into_inner);
    let adopted = adopted.and_then(|(pid, half)| Some((pid, half?)));
    let (pid, half) = adopted.ok_or_else(|| Error::Worker {
        action: "take the program over",
        reason: "its runtime did not start the CRIU that it was given".into(),
    })?;
    worker.set_followed(true);
    worker.set_client(pid);
    sandbox.note_workers();
    timeline.time("resume", || gpu_half::resume(worker, true, false))?;
    fault::point("restore-running")?;
    let restore::halves::GpuHalf { began_us, lease, journal } = half;
    let recovery = RecoveryState { client: worker_end, journal, pid };
    let image = attempt.image.path().to_path_buf();
    Ok(PendingLoad { worker: worker.clone(), image, began_us, lease, recovery })
}
