//! Images of containers: the driver takes the GPU half, Podman the rest, with the container's writable layer.
//!
//! ```text
//! program   ──runs──┬─driver locks, takes GPU half──┬─Podman ▶ runtime ▶ CRIU──┬─restore, unlock──▶ (or ends)
//! image             draft                            archive as one part          manifest, rename
//! ```
//!
//! An image holds Podman's archive as one part. Whatever fails, the container runs again: Podman keeps what it has
//! written of a container that it has stopped, and continues it from that.

use std::path::Path;

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
use crate::podman::{Container, Podman};
use crate::reply::Reply;
use crate::timeline::{CPU, GPU, Timeline};
use crate::{fault, machine, names, preflight, restore};

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
}

fn kind() -> PartKind {
    PartKind::Other("container".to_string())
}

pub fn checkpoint(daemon: &Daemon, name: &str, wish: &Wish<'_>, reply: &Reply<'_>) -> Result<Report> {
    let timeline = Timeline::begin();
    let podman = Podman::with(daemon.criu()?);
    let container = podman.inspect(name)?;
    let root = container.pid()?;
    let _claim = daemon.claims.take(tree(root))?;
    let draft = daemon.store.begin(wish.to)?;
    fault::point("checkpoint-begun")?;
    reply.progress("gpu", 0, 0);
    let id = format!("container-{}", container.id);
    let hold = hold(daemon, &id, root, wish, &timeline)?;
    fault::point("detached")?;
    let half = hold.as_ref().map(|hold| DriverHalf {
        pids: hold.held.pids.iter().filter_map(|pid| innermost_pid(*pid)).collect(),
        gpus: hold.held.gpus.clone(),
    });
    let scratch = Scratch::make(daemon.places.dumps().join(&id))?;
    let archive = scratch.path.join(ARCHIVE);
    reply.progress("dump", 0, 0);
    timeline.lane(CPU).time("dump", || podman.export(&container.id, &archive, wish.leave_running))?;
    if wish.leave_running {
        let released = hold.map(|hold| driver_half::release(hold, &timeline));
        released.transpose()?;
        let stopped_us = timeline.elapsed_us();
        seal(draft, &archive, &container, half.as_ref(), reply, &timeline)?;
        return Ok(report(&container, wish, half.as_ref(), &timeline, stopped_us));
    }
    match seal(draft, &archive, &container, half.as_ref(), reply, &timeline) {
        Ok(()) => {
            if let Some(hold) = hold {
                hold.forget();
            }
            let stopped_us = timeline.elapsed_us();
            Ok(report(&container, wish, half.as_ref(), &timeline, stopped_us))
        }
        Err(error) => {
            if let Some(hold) = hold {
                hold.forget();
            }
            go_on(daemon, &podman, &container, &id, half.as_ref(), &timeline)?;
            Err(error)
        }
    }
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
        manifest.program = machine::program_of(&container.command());
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
            container: Some(KeptContainer {
                engine: "podman".to_string(),
                runtime: container.runtime.clone(),
                name: container.name.clone(),
            }),
            warnings: Vec::new(),
        };
        kept.write(&mut manifest)?;
    }
    fault::point("before-commit")?;
    timeline.time("commit", || draft.commit())?;
    Ok(())
}

/// Continues a container that Podman has stopped, because its image could not be made.
fn go_on(
    daemon: &Daemon,
    podman: &Podman,
    container: &Container,
    id: &str,
    half: Option<&DriverHalf>,
    timeline: &Timeline,
) -> Result<()> {
    podman.resume(&container.id)?;
    bring_back(daemon, podman, &container.id, id, half, &[], timeline)
}

/// Has the driver bring the GPU half of a container that runs again back.
fn bring_back(
    daemon: &Daemon,
    podman: &Podman,
    name: &str,
    id: &str,
    half: Option<&DriverHalf>,
    pairs: &[UuidPair],
    timeline: &Timeline,
) -> Result<()> {
    let Some(half) = half else { return Ok(()) };
    let pids = pid_map(podman.inspect(name)?.pid()?);
    let host = |pid: &i32| {
        pids.get(pid).copied().ok_or_else(|| Error::Podman {
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
    container: &Container,
    wish: &Wish<'_>,
    half: Option<&DriverHalf>,
    timeline: &Timeline,
    stopped_us: u64,
) -> Report {
    log::info!("container {:?} is in image {:?}", container.name, wish.to);
    Report {
        name: container.name.clone(),
        image: wish.to.to_string(),
        mode: Mode::Driver,
        container: Some("podman".to_string()),
        gpu_processes: half.map_or(0, |half| half.pids.len()),
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
    let podman = Podman::with(daemon.criu()?);
    let name = wish.name.unwrap_or(&of.name);
    names::check(name)?;
    if of.engine != "podman" || !is_runtime(&of.runtime) {
        return Err(refused(format!(
            "its container was run by {:?} with {:?}, and this Rekindle speaks to podman",
            of.engine, of.runtime
        )));
    }
    preflight::check_machine(&daemon.places, image, kept)?;
    let pairs = driver_half::check(daemon, image, kept, wish.gpu_map)?;
    let part = image
        .part(kind(), ARCHIVE)
        .ok_or_else(|| refused(format!("its part {ARCHIVE}, all of the container, is missing")))?;
    if podman.has(name)? {
        return Err(Error::ContainerExists { name: name.to_string() });
    }
    fault::point("restore-checked")?;
    let id = format!("container-{}", crate::run::new_id()?);
    reply.progress("restore", 0, 0);
    let archive = image.file_path(part).ok_or_else(|| refused(format!("its part {ARCHIVE} is no file")))?;
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    timeline.time("check", || image.check_parts(&[part], threads))?;
    timeline.lane(CPU).time("restore", || podman.import(&archive, name, &of.runtime))?;
    let half = kept.driver.as_ref();
    let back = fault::point("restore-complete")
        .and_then(|()| bring_back(daemon, &podman, name, &id, half, &pairs, &timeline));
    if let Err(error) = back {
        podman.remove(name);
        daemon.driver.abandon(&id);
        return Err(error);
    }
    log::info!("image {:?} runs as container {name:?}", image.manifest().name);
    let total_us = timeline.elapsed_us();
    Ok(Report {
        name: name.to_string(),
        image: image.manifest().name.clone(),
        mode: Mode::Driver,
        container: Some(of.engine.clone()),
        gpu_processes: half.map_or(0, |half| half.pids.len()),
        total_us,
        stopped_us: total_us,
        warnings: kept.warnings.clone(),
        phases: timeline.phases(),
    })
}

/// Whether it is the name of a runtime, not an option or a path that an image brings along.
fn is_runtime(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('-') && !name.contains('/')
}
