//! Images of containers: the driver takes the GPU half, the container's engine the rest, with the writable layer.
//!
//! ```text
//! program   ──runs──┬─driver locks, takes GPU half──┬─engine ▶ runtime ▶ CRIU──┬─restore, unlock──▶ (or ends)
//! memory                                            └─copied beside──┐
//! image             draft                            archive as one part, memory, manifest, rename
//! ```
//!
//! An image holds the engine's archive as one part, and of Podman's containers memory and CRIU's images beside it, as an
//! image of a program without a container has them. Whatever fails, the container goes on.

mod archive;
mod cdi;
mod checkpoint;
mod containerd;
pub mod device;
mod dump;
mod engine;
mod error;
mod images;
mod podman;
pub mod proof;
mod worker_half;

use std::path::{Path, PathBuf};

use rekindle_driver::UuidPair;
use rekindle_protocol::daemon::{Mode, Report};
use rekindle_protocol::tuning;
use rekindle_sandbox::process::{pid_map, tree};
use rekindle_sandbox::{ending, refuse_headless};
use rekindle_store::{Image, PartKind};

use crate::checkpoint::CheckpointRequest;
use crate::daemon::Daemon;
use crate::error::Result;
use crate::images::ImageError;
use crate::images::driver_half::{self, DriverHalf};
use crate::images::metadata::{ContainerMetadata, ImageMetadata};
use crate::images::preflight;
use crate::reply::Reply;
use crate::sandboxes::SandboxError;
use crate::sandboxes::members::Members;
use crate::sandboxes::names;
use crate::timeline::{CPU, GPU, Timeline};
use crate::{fault, restore};

use containerd::Containerd;
use engine::{Container, Engine, Exported};
use images::{DetachedImages, Import};
use podman::{Manner, Podman};

pub use error::ContainerError;

/// The part's name.
const ARCHIVE: &str = "archive.tar";

/// What is known of a container that was exported.
fn described(engine: &str, container: &Container, exported: Exported) -> ContainerMetadata {
    ContainerMetadata {
        engine: engine.to_string(),
        runtime: container.runtime.clone(),
        name: container.name.clone(),
        namespace: container.namespace.clone(),
        reference: exported.reference,
        devices: exported.devices,
        mounts: exported.mounts,
        memory_beside: false,
        device: None,
    }
}

fn kind() -> PartKind {
    PartKind::Other("container".to_string())
}

pub fn checkpoint(
    daemon: &Daemon,
    name: &str,
    wanted: Option<&str>,
    request: &CheckpointRequest<'_>,
    reply: &Reply<'_>,
) -> Result<Report> {
    let (engine, container) = engine::find(daemon.criu()?, name, wanted)?;
    let container = container.running()?;
    let pids = tree(container.pid);
    refuse_headless(pids.iter().copied())?;
    let members = Members::living("checkpointed", pids);
    let taken = take(daemon, engine.as_ref(), &container, request, reply);
    taken.map_err(|error| match error.may_come_of_an_end() && is_ending(container.pid, &members) {
        true => {
            log::info!("{error}");
            SandboxError::EndedMeanwhile { name: container.name, wanted: "checkpointed" }.into()
        }
        false => members.explain(error),
    })
}

/// Whether a container's first process has ended, or does so within a moment.
fn is_ending(root: i32, members: &Members) -> bool {
    ending::ends_soon(root, || !members.has(root))
}

fn take(
    daemon: &Daemon,
    engine: &dyn Engine,
    container: &Container,
    request: &CheckpointRequest<'_>,
    reply: &Reply<'_>,
) -> Result<Report> {
    if let Some(sandbox) = device::of(daemon, container.pid) {
        if engine.name() != Podman::NAME {
            return Err(ContainerError::ForeignDevice {
                name: container.name.clone(),
                device: sandbox.name(),
            }
            .into());
        }
        return worker_half::checkpoint(daemon, &sandbox, container, request, reply);
    }
    match engine.name() {
        Podman::NAME => checkpoint::by_podman(daemon, container, request, reply),
        _ => checkpoint::by_containerd(daemon, container, request, reply),
    }
}

/// Has the driver bring the GPU half of a container of containerd's that runs again back.
fn bring_back(
    daemon: &Daemon,
    engine: &Containerd,
    of: &ContainerMetadata,
    id: &str,
    half: Option<&DriverHalf>,
    pairs: &[UuidPair],
    timeline: &Timeline,
) -> Result<()> {
    let Some(half) = half else { return Ok(()) };
    let pids = pid_map(engine::running(engine, of.namespace.as_deref(), &of.name)?.pid);
    let host = |pid: &i32| {
        pids.get(pid).copied().ok_or_else(|| {
            ContainerError::Engine {
                engine: engine.name(),
                action: "restore the container",
                reason: format!("process {pid} of it did not come back"),
            }
            .into()
        })
    };
    let host = half.pids.iter().map(host).collect::<Result<Vec<_>>>()?;
    restore_gpu(daemon, id, host, pairs, timeline)
}

fn restore_gpu(
    daemon: &Daemon,
    id: &str,
    pids: Vec<i32>,
    pairs: &[UuidPair],
    timeline: &Timeline,
) -> Result<()> {
    let start_us = timeline.elapsed_us();
    let phases = daemon.driver.restore(id, pids, pairs.to_vec())?;
    timeline.lane(GPU).merge(start_us, phases);
    Ok(())
}

fn report(
    of: &ContainerMetadata,
    image: &str,
    mode: Mode,
    gpu_processes: usize,
    timeline: &Timeline,
    stopped_us: u64,
    warnings: Vec<String>,
) -> Report {
    log::info!("container {:?} and image {image:?} are done", of.name);
    Report {
        name: of.name.clone(),
        image: image.to_string(),
        mode,
        container: Some(of.engine.clone()),
        gpu_processes,
        total_us: timeline.elapsed_us(),
        stopped_us,
        warnings,
        phases: timeline.phases(),
        memory: timeline.memory(),
        waited: timeline.waited(),
        written: None,
    }
}

/// Makes a container of the image and continues it. Everything is checked first.
pub fn restore(
    daemon: &Daemon,
    image: &Image,
    metadata: &ImageMetadata,
    of: &ContainerMetadata,
    request: &restore::RestoreRequest<'_>,
    reply: &Reply<'_>,
) -> Result<Report> {
    if request.network.is_some()
        || !request.publish.is_empty()
        || !request.limits.is_none()
        || !request.volumes.is_empty()
    {
        return Err(ContainerError::NotOfContainers.into());
    }
    let timeline = Timeline::begin();
    let refused =
        |reason: String| ImageError::CannotRestore { image: image.manifest().name.clone(), reason }.into();
    let engine = engine::named(daemon.criu()?, &of.engine).filter(|_| is_word(&of.runtime));
    let engine = engine.ok_or_else(|| {
        let (engine, runtime) = (&of.engine, &of.runtime);
        refused(format!(
            "its container was run by {engine:?} with {runtime:?}, and this Rekindle speaks to podman and containerd"
        ))
    })?;
    let engine = engine.as_ref();
    let name = request.name.unwrap_or(&of.name);
    names::check(name)?;
    if [&of.namespace, &of.reference].into_iter().flatten().any(|word| word.starts_with('-')) {
        return Err(refused("what it says of its container is no name".to_string()));
    }
    preflight::check_machine(&daemon.paths, image, metadata, &metadata.mounts)?;
    check_surroundings(of).map_err(refused)?;
    let pairs = driver_half::check(&daemon.driver, || daemon.criu(), image, metadata, request.gpu_map)?;
    archive_of(image)?;
    if engine.find(name)?.iter().any(|found| found.namespace == of.namespace) {
        return Err(ContainerError::Exists { name: name.to_string() }.into());
    }
    fault::point("restore-checked")?;
    let new = daemon.paths.new_id()?;
    let id = format!("container-{new}");
    reply.progress("restore", 0, 0);
    let archive: Vec<_> = image.part(kind(), ARCHIVE).into_iter().collect();
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    let beside = timeline.time("check", || {
        image.check_parts(&archive, threads)?;
        DetachedImages::check(image, of)
    })?;
    let renamed = ContainerMetadata { name: name.to_string(), ..of.clone() };
    let beside = beside.as_ref();
    if of.device.is_some() {
        worker_half::restore(daemon, image, metadata, of, beside, name, request, &timeline)?;
        let (image, processes) = (&image.manifest().name, metadata.clients.len());
        let total_us = timeline.elapsed_us();
        return Ok(report(&renamed, image, Mode::Sandbox, processes, &timeline, total_us, Vec::new()));
    }
    let half = metadata.driver.as_ref();
    let mut warnings = Vec::new();
    let back = match engine.name() {
        Podman::NAME => {
            let manner = &Manner::Itself;
            let import = Import { daemon, id: &new, image, beside, of, name, manner, timeline: &timeline };
            let host = |relay| {
                let pids = half.map_or(&[][..], |half| &half.pids);
                pids.iter().map(|pid| images::find(relay, *pid)).collect::<Result<Vec<_>>>()
            };
            let then = |pids: Vec<i32>| {
                fault::point("restore-complete")?;
                if !pids.is_empty() {
                    restore_gpu(daemon, &id, pids.clone(), &pairs, &timeline)?;
                }
                warnings.extend(beside.and_then(|beside| beside.mapped_by(&pids)).map(mapped));
                Ok(())
            };
            import.make(&[], host, then)
        }
        _ => {
            let containerd = Containerd::with(daemon.criu()?);
            timeline.lane(CPU).time("restore", || containerd.import(&archive_of(image)?, of, name))?;
            let back = fault::point("restore-complete")
                .and_then(|()| bring_back(daemon, &containerd, &renamed, &id, half, &pairs, &timeline));
            back.inspect_err(|_| containerd.remove(of, name))
        }
    };
    back.inspect_err(|_| daemon.driver.abandon(&id))?;
    let (image, processes) = (&image.manifest().name, half.map_or(0, |half| half.pids.len()));
    Ok(report(&renamed, image, Mode::Driver, processes, &timeline, timeline.elapsed_us(), warnings))
}

/// What the user should know of a process that maps its image still.
fn mapped(pid: i32) -> String {
    format!(
        "process {pid} has memory mapped from the image, so that CRIU cannot take its container again; \
         {}={}=off in the daemon's environment at the checkpoint avoids that",
        tuning::VARIABLE,
        tuning::MAP_PAGES
    )
}

/// The archive of an image's container.
fn archive_of(image: &Image) -> Result<PathBuf> {
    let part = image.part(kind(), ARCHIVE).and_then(|part| image.file_path(part));
    part.ok_or_else(|| {
        ImageError::CannotRestore {
            image: image.manifest().name.clone(),
            reason: format!("its part {ARCHIVE}, all of the container but its memory, is missing"),
        }
        .into()
    })
}

/// What a restore needs of the machine, beside GPUs: the devices that the container was given by name, and what is
/// mounted in it.
fn check_surroundings(of: &ContainerMetadata) -> std::result::Result<(), String> {
    let directories = cdi::DIRECTORIES.map(Path::new);
    if let Some(name) = cdi::missing(&of.devices, &directories).first() {
        let paths = cdi::DIRECTORIES.join(" or ");
        return Err(format!(
            "it needs the device {name}, which no description in {paths} has; make one (NVIDIA's: `nvidia-ctk cdi generate`)"
        ));
    }
    match of.mounts.iter().find(|path| !path.exists()) {
        Some(path) => Err(format!("it mounts {}, which is not here; put it back", path.display())),
        None => Ok(()),
    }
}

/// Whether it is a name, not an option or a path that an image brings along.
fn is_word(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('-') && !name.contains('/')
}
