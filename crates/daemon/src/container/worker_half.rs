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
use std::sync::{Arc, Mutex, PoisonError};

use rekindle_protocol::client::Quiesced;
use rekindle_protocol::daemon::{Mode, Report, State};
use rekindle_protocol::worker::{Request, Response};
use rekindle_sandbox::process::{innermost_pid, namespace, tree};
use rekindle_sandbox::{Course, Inventory, Relay};
use rekindle_store::{Draft, Image, Part};

use super::engine::{Container, Engine, Exported};
use super::podman::Podman;
use super::standing::{self, Stopped};
use super::{ARCHIVE, KeptContainer, device, kind};
use crate::checkpoint::{Scratch, Wish, parse_part, serving_worker};
use crate::client_library;
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::held::Held;
use crate::kept::Kept;
use crate::loading::{self, Rest};
use crate::quiet::Quiet;
use crate::replacement::Left;
use crate::reply::Reply;
use crate::timeline::{CPU, GPU, PINNED, Timeline};
use crate::worker::Worker;
use crate::worker_pool::ImageKey;
use crate::{fault, gpu, machine, restore, wake};

/// The client that the program has mapped: it must be the same in a restore.
const LIBRARY: &str = "libcuda.so.1";

pub fn checkpoint(
    daemon: &Daemon,
    held: &Arc<Held>,
    container: &Container,
    wish: &Wish<'_>,
    reply: &Reply<'_>,
) -> Result<Report> {
    let timeline = Timeline::begin();
    let _operation = wake::begin_awake(held, State::Checkpointing, "checkpointed")?;
    if held.record().image.is_some() && !shares_network(container.pid) {
        return Err(Error::RestoredContainer { name: container.name.clone() });
    }
    let _claim = daemon.claims.take(tree(container.pid))?;
    let worker = serving_worker(held)?;
    let draft = Mutex::new(daemon.store.begin(wish.to)?);
    fault::point("checkpoint-begun")?;
    let status = worker.as_ref().map(|worker| worker.status()).transpose()?;
    reply.progress("quiesce", 0, 0);
    let quiet = worker.as_ref().map(|worker| timeline.time("quiesce", || Quiet::begin(held, worker, false)));
    let mut quiet = quiet.transpose()?;
    fault::point("quiesced")?;
    let id = format!("container-{}", container.id);
    let scratch = Scratch::make(daemon.places.dumps().join(&id))?;
    let archive = scratch.path.join(ARCHIVE);
    let relay = standing::relay(daemon, &held.id, &scratch)?;
    let podman = Podman::through(daemon.criu()?, relay.directory());
    reply.progress("dump", 0, 0);
    let client = quiet.as_ref().map(|quiet| quiet.client.clone());
    let (exported, stopped) =
        dump(&relay, &podman, container, worker.as_deref(), client.as_ref(), &draft, &archive, &timeline)?;
    let draft = draft.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut of = KeptContainer::new(&podman, container, exported);
    let device = device::keep(held);
    // They come with the device.
    of.devices.retain(|name| !device::is_one(name));
    of.mounts.retain(|path| *path != device.run_directory);
    of.device = Some(device);
    let mut stopped_us = timeline.elapsed_us();
    let mut stopped = Some(stopped);
    if wish.leave_running {
        stopped = None;
        if let Some(quiet) = quiet.take() {
            timeline.time("resume", || quiet.resume())?;
        }
        stopped_us = timeline.elapsed_us();
    }
    reply.progress("commit", 0, 0);
    fault::point("frozen")?;
    timeline.time("archive", || draft.take_file(kind(), ARCHIVE, &archive))?;
    let library = held.run_directory.join(client_library::LINKS).join(LIBRARY);
    draft.put_file(kind(), LIBRARY, &library)?;
    {
        let mut manifest = draft.manifest();
        manifest.mode = machine::mode(Mode::Sandbox);
        manifest.program = machine::program_of(&container.command);
        manifest.machine = machine::this();
        manifest.gpus = status.as_ref().map(machine::gpus).unwrap_or_default();
        let kept = Kept {
            name: container.name.clone(),
            gpu: held.record().gpu,
            // All that it has mapped is in its own root file system, or the device's.
            inventory: Inventory::default(),
            client,
            driver: None,
            amd: Vec::new(),
            framework: false,
            container: Some(of.clone()),
            warnings: Vec::new(),
        };
        kept.write(&mut manifest)?;
    }
    fault::point("before-commit")?;
    timeline.time("commit", || draft.commit())?;
    if !wish.leave_running {
        timeline.lane(CPU).time("end", || podman.stop(container))?;
        if let Some(stopped) = stopped {
            stopped.forget();
        }
        if let Some(quiet) = quiet {
            quiet.end();
        }
        stopped_us = timeline.elapsed_us();
    }
    let gpu_processes = usize::from(worker.is_some());
    Ok(super::report(&of, wish.to, Mode::Sandbox, gpu_processes, &timeline, stopped_us))
}

/// Has the engine dump the container while the worker saves the GPU half. It stands still afterwards, for as long as
/// what is given beside has it: its writable layer is archived after its memory.
#[allow(clippy::too_many_arguments, reason = "all of one checkpoint's parts meet here")]
fn dump(
    relay: &Relay,
    engine: &dyn Engine,
    container: &Container,
    worker: Option<&Worker>,
    client: Option<&Quiesced>,
    draft: &Mutex<Draft>,
    archive: &Path,
    timeline: &Timeline,
) -> Result<(Exported, Stopped)> {
    let staging = draft.lock().unwrap_or_else(PoisonError::into_inner).path().to_string_lossy().into_owned();
    let sockets: Vec<_> = client.iter().map(|client| client.socket_inode as u32).collect();
    let stopped = Mutex::new(Stopped::default());
    let failure = Mutex::new(None);
    let exported = std::thread::scope(|scope| {
        let request = Request::Save { staging: staging.clone(), leave_memory: false };
        let save = worker
            .map(|worker| scope.spawn(move || saved(worker, GPU, "save the GPU half", &request, timeline)));
        let gather = || -> Result<()> {
            let parts = save.map_or(Ok(Vec::new()), |save| save.join().unwrap_or_else(|_| panicked()))?;
            let draft = draft.lock().unwrap_or_else(PoisonError::into_inner);
            draft.adopt(parts)?;
            fault::point("saved")?;
            if let Some(worker) = worker {
                let request = Request::SavePinned { staging: staging.clone() };
                draft.adopt(saved(worker, PINNED, "save pinned memory", &request, timeline)?)?;
            }
            *stopped.lock().unwrap_or_else(PoisonError::into_inner) = Stopped::all(container.pid);
            fault::point("pinned-saved")
        };
        let at_step = |_| {
            gather().map_err(|error| {
                let sentence = error.to_string();
                *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                sentence
            })
        };
        let export = || timeline.lane(CPU).time("dump", || engine.export(container, archive, true));
        relay.conduct(Course::Dump { sockets: &sockets }, at_step, export)
    });
    let cause = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
    let exported = exported.map_err(|error| cause.unwrap_or(error))?;
    Ok((exported, stopped.into_inner().unwrap_or_else(PoisonError::into_inner)))
}

fn panicked<T>() -> Result<T> {
    Err(Error::Worker { action: "work on the GPU half", reason: "the thread that asked panicked".into() })
}

fn saved(
    worker: &Worker,
    lane: &'static str,
    action: &'static str,
    request: &Request,
    timeline: &Timeline,
) -> Result<Vec<Part>> {
    let start_us = timeline.elapsed_us();
    match worker.ask(action, request, &[], None)? {
        Response::Saved { parts, phases } => {
            timeline.lane(lane).merge(start_us, phases);
            parts.into_iter().map(|part| parse_part(action, part)).collect()
        }
        other => Err(Error::Worker { action, reason: format!("it answered {other:?}") }),
    }
}

/// Whether a process is in our network namespace, in which a restored program's socket was made.
fn shares_network(pid: i32) -> bool {
    namespace(pid, "net") == namespace(std::process::id() as i32, "net")
}

/// Makes a container of the image and continues it, its GPU half in a new worker. The name is free, the archive whole.
pub fn restore(
    daemon: &Daemon,
    image: &Image,
    kept: &Kept,
    of: &KeptContainer,
    name: &str,
    wish: &restore::Wish<'_>,
    timeline: &Timeline,
) -> Result<()> {
    let refused = |reason: String| Error::CannotRestore { image: image.manifest().name.clone(), reason };
    let device =
        of.device.as_ref().ok_or_else(|| refused("its container had no GPU of Rekindle's".to_string()))?;
    check_library(daemon, image).map_err(refused)?;
    let gpu = gpu::choose(Some(wish.gpu.unwrap_or(&kept.gpu)))?;
    let held = device::bring_back(daemon, device, &gpu).map_err(refused)?;
    let operation = held.begin_settled(State::Restoring, "restored")?;
    held.note(|record| {
        record.gpu = gpu;
        record.image = Some(image.manifest().name.clone());
    });
    let attempt = restore::Attempt { daemon, held: &held, image, kept, pairs: &[], timeline, wish };
    let part = image.part(kind(), ARCHIVE).and_then(|part| image.file_path(part));
    let archive = part.ok_or_else(|| refused(format!("its part {ARCHIVE} is no file")))?;
    let Some(client) = &kept.client else {
        return timeline
            .lane(CPU)
            .time("restore", || Podman::with(daemon.criu()?).import(&archive, of, name));
    };
    for (file, _) in &client.files {
        let _ = std::fs::remove_file(held.run_directory.join(file));
    }
    attempt.make_files(client)?;
    timeline.lane(PINNED).time("load", || attempt.load_pinned(client))?;
    let worker = timeline.time("take a worker", || held.start_worker(Some(&ImageKey::of(image))))?;
    let back = both_halves(daemon, &attempt, client, &worker, of, name, &archive);
    let rest = match back {
        Ok(rest) => rest,
        Err(error) => {
            Podman::with(daemon.criu()?).remove(of, name);
            held.end_worker(&worker);
            held.note_workers();
            return Err(error);
        }
    };
    drop(operation);
    loading::follow(&held, image, Some(rest), timeline.elapsed_us());
    Ok(())
}

fn both_halves(
    daemon: &Daemon,
    attempt: &restore::Attempt<'_>,
    client: &Quiesced,
    worker: &Arc<Worker>,
    of: &KeptContainer,
    name: &str,
    archive: &Path,
) -> Result<Rest> {
    let (held, timeline) = (attempt.held, attempt.timeline);
    let scratch = Scratch::make(daemon.places.dumps().join(format!("restore-{}", held.id)))?;
    let relay = standing::relay(daemon, &held.id, &scratch)?;
    let podman = Podman::through(daemon.criu()?, relay.directory());
    let (client_end, worker_end) =
        UnixStream::pair().map_err(|source| Error::system("make a pair of sockets", source))?;
    let sockets = [(client.socket_inode as u32, client_end.as_fd())];
    let (failure, adopted) = (Mutex::new(None), Mutex::new(None));
    let imported = std::thread::scope(|scope| {
        let gpu = scope.spawn(|| attempt.restore_gpu(worker));
        let adopt = |relay_pid: i32| -> Result<()> {
            let loading = gpu.join().unwrap_or_else(|_| panicked())?;
            fault::point("restore-complete")?;
            let pid = find(relay_pid, client.process as i32).ok_or_else(|| Error::Worker {
                action: "find the program's process",
                reason: format!("CRIU has brought no process {} back", client.process),
            })?;
            let adopt = Request::Adopt { pid, driver_attached: false };
            worker.command("take the program over", &adopt, &[worker_end.as_fd()])?;
            *adopted.lock().unwrap_or_else(PoisonError::into_inner) = Some((pid, loading));
            Ok(())
        };
        let at_step = |relay_pid| {
            adopt(relay_pid).map_err(|error| {
                let sentence = error.to_string();
                *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                sentence
            })
        };
        let import = || timeline.lane(CPU).time("restore", || podman.import(archive, of, name));
        relay.conduct(Course::Restore { sockets: &sockets }, at_step, import)
    });
    let cause = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
    imported.map_err(|error| cause.unwrap_or(error))?;
    let adopted = adopted.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (pid, half) = adopted.ok_or_else(|| Error::Worker {
        action: "take the program over",
        reason: "its runtime did not start the CRIU that it was given".into(),
    })?;
    worker.set_client(pid);
    held.note_workers();
    let resume = Request::Resume { restored: true, driver_attached: false };
    timeline.time("resume", || worker.command("let the program's GPU work go on", &resume, &[]))?;
    fault::point("restore-running")?;
    let restore::GpuHalf { began_us, loan, journal } = half;
    let left = Left { client: worker_end, journal, pid };
    Ok(Rest { worker: worker.clone(), began_us, loan, left })
}

/// Our pid of the process that the container knows as `inside`, which descends from the relay.
fn find(relay: i32, inside: i32) -> Option<i32> {
    let ours = namespace(relay, "pid");
    let mut restored = tree(relay).into_iter().filter(|pid| namespace(*pid, "pid") != ours);
    restored.find(|pid| innermost_pid(*pid) == Some(inside))
}

/// The program has the client of its image mapped.
fn check_library(daemon: &Daemon, image: &Image) -> std::result::Result<(), String> {
    let ours = client_library::find(&daemon.program).map_err(|error| error.to_string())?;
    let ours = std::fs::read(&ours).map_err(|error| format!("{} cannot be read: {error}", ours.display()))?;
    let part = image.part(kind(), LIBRARY).ok_or(format!("its part {LIBRARY} is missing"))?;
    let mut theirs = vec![0; if part.bytes == ours.len() as u64 { ours.len() } else { 0 }];
    image.read_part(part, 0, &mut theirs).map_err(|error| error.to_string())?;
    (theirs == ours).then_some(()).ok_or_else(|| {
        format!("its program has mapped another build of {LIBRARY} than this Rekindle has; install that one")
    })
}
