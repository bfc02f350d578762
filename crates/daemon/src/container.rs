//! Images of containers: the driver takes the GPU half, the container's engine the rest, with the writable layer.
//!
//! ```text
//! program   ──runs──┬─driver locks, takes GPU half──┬─engine ▶ runtime ▶ CRIU──┬─restore, unlock──▶ (or ends)
//! image             draft                            archive as one part          manifest, rename
//! ```
//!
//! An image holds the engine's archive as one part. Whatever fails, the container runs again: an engine keeps what it
//! has written of a container that it has stopped, and continues it from that.

mod archive;
mod cdi;
mod containerd;
pub mod device;
mod engine;
mod podman;
mod standing;
mod worker_half;

use std::path::{Path, PathBuf};

use rekindle_driver::{Hold, UuidPair};
use rekindle_protocol::daemon::{Mode, Report};
use rekindle_sandbox::Inventory;
use rekindle_sandbox::process::{innermost_pid, pid_map, tree};
use rekindle_store::{Draft, Image, PartKind};
use serde::{Deserialize, Serialize};

use crate::checkpoint::{Scratch, Wish};
use crate::daemon::Daemon;
use crate::driver_half::{self, DriverHalf};
use crate::error::{Error, Result};
use crate::kept::Kept;
use crate::reply::Reply;
use crate::timeline::{CPU, GPU, Timeline};
use crate::{fault, machine, names, preflight, restore};

use engine::{Container, Engine, Exported};
use standing::Stopped;

/// The part's name.
const ARCHIVE: &str = "archive.tar";

/// What an image keeps of a container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeptContainer {
    /// Who runs it.
    pub engine: String,
    /// The OCI runtime that has written the archive, and alone understands it.
    pub runtime: String,
    /// What it was called.
    pub name: String,
    /// The engine's own division of names, where it has such.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// What the archive calls itself, where its engine asks for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// Its devices by their names in the container device interface.
    #[serde(default)]
    pub devices: Vec<String>,
    /// Of the machine, what is mounted in it.
    #[serde(default)]
    pub mounts: Vec<PathBuf>,
    /// The GPU of Rekindle's that it had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<device::KeptDevice>,
}

impl KeptContainer {
    fn new(engine: &dyn Engine, container: &Container, exported: Exported) -> KeptContainer {
        KeptContainer {
            engine: engine.name().to_string(),
            runtime: container.runtime.clone(),
            name: container.name.clone(),
            namespace: container.namespace.clone(),
            reference: exported.reference,
            devices: exported.devices,
            mounts: exported.mounts,
            device: None,
        }
    }
}

fn kind() -> PartKind {
    PartKind::Other("container".to_string())
}

pub fn checkpoint(
    daemon: &Daemon,
    name: &str,
    wanted: Option<&str>,
    wish: &Wish<'_>,
    reply: &Reply<'_>,
) -> Result<Report> {
    let timeline = Timeline::begin();
    let (engine, container) = engine::find(daemon.criu()?, name, wanted)?;
    let container = container.running()?;
    let engine = engine.as_ref();
    if let Some(held) = device::of(daemon, container.pid) {
        if engine.name() != podman::Podman::NAME {
            return Err(Error::ForeignDevice { name: container.name, device: held.name() });
        }
        return worker_half::checkpoint(daemon, &held, &container, wish, reply);
    }
    let _claim = daemon.claims.take(tree(container.pid))?;
    let draft = daemon.store.begin(wish.to)?;
    fault::point("checkpoint-begun")?;
    reply.progress("gpu", 0, 0);
    let id = format!("container-{}", container.id);
    let hold = hold(daemon, &id, container.pid, wish, &timeline)?;
    fault::point("detached")?;
    let half = hold.as_ref().map(|hold| DriverHalf {
        pids: hold.held.pids.iter().filter_map(|pid| innermost_pid(*pid)).collect(),
        gpus: hold.held.gpus.clone(),
    });
    let scratch = Scratch::make(daemon.places.dumps().join(&id))?;
    let archive = scratch.path.join(ARCHIVE);
    reply.progress("dump", 0, 0);
    let export = || match wish.leave_running && engine.name() == podman::Podman::NAME {
        true => standing::export(daemon, &scratch, &container, &archive),
        false => {
            let exported = engine.export(&container, &archive, wish.leave_running);
            exported.map(|exported| (exported, Stopped::default()))
        }
    };
    let (exported, stopped) = timeline.lane(CPU).time("dump", export)?;
    let kept = KeptContainer::new(engine, &container, exported);
    let processes = half.as_ref().map_or(0, |half| half.pids.len());
    let seal = || seal(draft, &archive, &container, kept.clone(), half.as_ref(), reply, &timeline);
    if wish.leave_running {
        drop(stopped);
        let released = hold.map(|hold| driver_half::release(hold, &timeline));
        released.transpose()?;
        let stopped_us = timeline.elapsed_us();
        seal()?;
        return Ok(report(&kept, wish.to, Mode::Driver, processes, &timeline, stopped_us));
    }
    let sealed = seal();
    if let Some(hold) = hold {
        hold.forget();
    }
    if let Err(error) = sealed {
        engine.go_on(&container)?;
        bring_back(daemon, engine, &kept, &id, half.as_ref(), &[], &timeline)?;
        return Err(error);
    }
    timeline.lane(CPU).time("end", || engine.end(&container))?;
    let stopped_us = timeline.elapsed_us();
    Ok(report(&kept, wish.to, Mode::Driver, processes, &timeline, stopped_us))
}

/// Takes the GPU halves of the container's processes; none where none has one.
fn hold<'a>(
    daemon: &'a Daemon,
    id: &str,
    root: i32,
    wish: &Wish<'_>,
    timeline: &Timeline,
) -> Result<Option<Hold<'a>>> {
    if !driver_half::is_used(tree(root)) {
        return Ok(None);
    }
    let start_us = timeline.elapsed_us();
    let hold = daemon.driver.hold(id, root, wish.gpu_wait)?;
    timeline.lane(GPU).merge(start_us, hold.held.phases.clone());
    if hold.held.pids.is_empty() {
        hold.forget();
        return Ok(None);
    }
    Ok(Some(hold))
}

/// Makes an image of the archive.
fn seal(
    draft: Draft,
    archive: &Path,
    container: &Container,
    of: KeptContainer,
    half: Option<&DriverHalf>,
    reply: &Reply<'_>,
    timeline: &Timeline,
) -> Result<()> {
    reply.progress("commit", 0, 0);
    fault::point("frozen")?;
    timeline.time("archive", || draft.take_file(kind(), ARCHIVE, archive))?;
    {
        let mut manifest = draft.manifest();
        manifest.mode = machine::mode(Mode::Driver);
        manifest.program = machine::program_of(&container.command);
        manifest.machine = machine::this();
        manifest.gpus = half.map(DriverHalf::shown_gpus).unwrap_or_default();
        let kept = Kept {
            name: container.name.clone(),
            gpu: "driver".to_string(),
            // All that it has mapped is in its own root file system.
            inventory: Inventory::default(),
            client: None,
            driver: half.cloned(),
            amd: Vec::new(),
            framework: false,
            container: Some(of),
            warnings: Vec::new(),
        };
        kept.write(&mut manifest)?;
    }
    fault::point("before-commit")?;
    timeline.time("commit", || draft.commit())?;
    Ok(())
}

/// Has the driver bring the GPU half of a container that runs again back.
fn bring_back(
    daemon: &Daemon,
    engine: &dyn Engine,
    of: &KeptContainer,
    id: &str,
    half: Option<&DriverHalf>,
    pairs: &[UuidPair],
    timeline: &Timeline,
) -> Result<()> {
    let Some(half) = half else { return Ok(()) };
    let pids = pid_map(engine::running(engine, of.namespace.as_deref(), &of.name)?.pid);
    let host = |pid: &i32| {
        pids.get(pid).copied().ok_or_else(|| Error::Engine {
            engine: engine.name(),
            action: "restore the container",
            reason: format!("process {pid} of it did not come back"),
        })
    };
    let host = half.pids.iter().map(host).collect::<Result<Vec<_>>>()?;
    let start_us = timeline.elapsed_us();
    let phases = daemon.driver.restore(id, host, pairs.to_vec())?;
    timeline.lane(GPU).merge(start_us, phases);
    Ok(())
}

fn report(
    of: &KeptContainer,
    image: &str,
    mode: Mode,
    gpu_processes: usize,
    timeline: &Timeline,
    stopped_us: u64,
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
        warnings: Vec::new(),
        phases: timeline.phases(),
    }
}

/// Makes a container of the image and continues it. Everything is checked first.
pub fn restore(
    daemon: &Daemon,
    image: &Image,
    kept: &Kept,
    of: &KeptContainer,
    wish: &restore::Wish<'_>,
    reply: &Reply<'_>,
) -> Result<Report> {
    let timeline = Timeline::begin();
    let refused = |reason: String| Error::CannotRestore { image: image.manifest().name.clone(), reason };
    let engine = engine::named(daemon.criu()?, &of.engine).filter(|_| is_word(&of.runtime));
    let engine = engine.ok_or_else(|| {
        let (engine, runtime) = (&of.engine, &of.runtime);
        refused(format!(
            "its container was run by {engine:?} with {runtime:?}, and this Rekindle speaks to podman and containerd"
        ))
    })?;
    let engine = engine.as_ref();
    let name = wish.name.unwrap_or(&of.name);
    names::check(name)?;
    if [&of.namespace, &of.reference].into_iter().flatten().any(|word| word.starts_with('-')) {
        return Err(refused("what it says of its container is no name".to_string()));
    }
    preflight::check_machine(&daemon.places, image, kept)?;
    check_surroundings(of).map_err(refused)?;
    let pairs = driver_half::check(daemon, image, kept, wish.gpu_map)?;
    let part = image
        .part(kind(), ARCHIVE)
        .ok_or_else(|| refused(format!("its part {ARCHIVE}, all of the container, is missing")))?;
    if engine.find(name)?.iter().any(|found| found.namespace == of.namespace) {
        return Err(Error::ContainerExists { name: name.to_string() });
    }
    fault::point("restore-checked")?;
    let id = format!("container-{}", crate::run::new_id()?);
    reply.progress("restore", 0, 0);
    let archive = image.file_path(part).ok_or_else(|| refused(format!("its part {ARCHIVE} is no file")))?;
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    timeline.time("check", || image.check_parts(&[part], threads))?;
    let renamed = KeptContainer { name: name.to_string(), ..of.clone() };
    if of.device.is_some() {
        worker_half::restore(daemon, image, kept, of, name, wish, &timeline)?;
        let (image, processes) = (&image.manifest().name, usize::from(kept.client.is_some()));
        return Ok(report(&renamed, image, Mode::Sandbox, processes, &timeline, timeline.elapsed_us()));
    }
    timeline.lane(CPU).time("restore", || engine.import(&archive, of, name))?;
    let half = kept.driver.as_ref();
    let back = fault::point("restore-complete")
        .and_then(|()| bring_back(daemon, engine, &renamed, &id, half, &pairs, &timeline));
    if let Err(error) = back {
        engine.remove(of, name);
        daemon.driver.abandon(&id);
        return Err(error);
    }
    let (image, processes) = (&image.manifest().name, half.map_or(0, |half| half.pids.len()));
    Ok(report(&renamed, image, Mode::Driver, processes, &timeline, timeline.elapsed_us()))
}

/// What a restore needs of the machine, beside GPUs: the devices that the container was given by name, and what is
/// mounted in it.
fn check_surroundings(of: &KeptContainer) -> std::result::Result<(), String> {
    let directories = cdi::DIRECTORIES.map(Path::new);
    if let Some(name) = cdi::missing(&of.devices, &directories).first() {
        let places = cdi::DIRECTORIES.join(" or ");
        return Err(format!(
            "it needs the device {name}, which no description in {places} has; make one (NVIDIA's: `nvidia-ctk cdi generate`)"
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
