//! Images of containers whose GPU half, if there is one, the driver takes.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rekindle_driver::Hold;
use rekindle_protocol::daemon::{Mode, Report};
use rekindle_sandbox::process::{innermost_pid, tree};
use rekindle_store::Draft;

use super::containerd::Containerd;
use super::dump::{Dump, Dumped};
use super::engine::Container;
use super::podman::Podman;
use super::{ARCHIVE, bring_back, kind, proof, report};
use crate::checkpoint::{CheckpointRequest, Scratch};
use crate::daemon::Daemon;
use crate::error::Result;
use crate::fault;
use crate::images::driver_half::{self, DriverHalf};
use crate::images::machine;
use crate::images::metadata::ContainerMetadata;
use crate::images::metadata::ImageMetadata;
use crate::images::verify::cpu_half;
use crate::reply::Reply;
use crate::sandboxes::members;
use crate::timeline::{CPU, GPU, Timeline};

/// Of a container of Podman's: CRIU begins when the GPU half is in memory, and Podman meanwhile prepares for it.
pub fn by_podman(
    daemon: &Daemon,
    container: &Container,
    request: &CheckpointRequest<'_>,
    reply: &Reply<'_>,
) -> Result<Report> {
    let timeline = Timeline::begin();
    let _claim = daemon.claims.take(tree(container.pid))?;
    let draft = daemon.store.begin(request.to)?;
    fault::point("checkpoint-begun")?;
    reply.progress("gpu", 0, 0);
    let id = format!("container-{}", container.id);
    let scratch = Scratch::make(daemon.paths.dumps().join(&id))?;
    let archive = scratch.path.join(ARCHIVE);
    let dump = Dump { daemon, container, scratch: &scratch, sockets: &[], first: None, timeline: &timeline };
    let held = Mutex::new(None);
    let dumped = std::thread::scope(|scope| {
        let holding = scope.spawn(|| {
            let hold = hold(daemon, &id, container.pid, request, &timeline)?;
            fault::point("detached")?;
            reply.check_wanted()?;
            Ok(hold)
        });
        let ready = || {
            let hold: Result<Option<Hold<'_>>> =
                holding.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let hold = hold?;
            reply.progress("dump", 0, 0);
            let areas = driver_half::areas(hold.as_ref());
            // As long as all are there.
            let half = hold.as_ref().map(half_of);
            *held.lock().unwrap_or_else(PoisonError::into_inner) = hold.zip(half);
            Ok(areas)
        };
        // The program stands still.
        let all_live = || {
            let held = held.lock().unwrap_or_else(PoisonError::into_inner);
            held.as_ref().map_or(Ok(()), |(hold, _)| members::all_live(&hold.held.pids))
        };
        dump.export(&archive, ready, all_live)
    });
    let (hold, half) = held.into_inner().unwrap_or_else(PoisonError::into_inner).unzip();
    let Dumped { exported, stopped, memory } = dumped?;
    let metadata =
        ContainerMetadata { memory_beside: true, ..super::described(Podman::NAME, container, exported) };
    let processes = half.as_ref().map_or(0, |half: &DriverHalf| half.pids.len());
    let commit = || {
        timeline.time("cpu files", || memory.take(&draft))?;
        timeline.time("check", || cpu_half::check_draft(&draft))?;
        let draft = complete(draft, &archive, container, metadata.clone(), half.as_ref(), reply, &timeline)?;
        proof::commit(daemon, container, draft, request, &timeline, reply)
    };
    let (stopped_us, warnings) = if request.leave_running {
        drop(stopped);
        let released = hold.map(|hold| driver_half::release(hold, &timeline));
        released.transpose()?;
        let stopped_us = timeline.elapsed_us();
        (stopped_us, commit()?)
    } else {
        let end = || timeline.lane(CPU).time("end", || Podman::with(daemon.criu()?).stop(container));
        let ended = commit().and_then(|warnings| end().map(|()| warnings));
        // What has ended hears of nothing; the driver brings the GPU half of what is there back to a program that runs.
        drop(stopped);
        let warnings = ended?;
        if let Some(hold) = hold {
            hold.forget();
        }
        (timeline.elapsed_us(), warnings)
    };
    Ok(report(&metadata, request.to, Mode::Driver, processes, &timeline, stopped_us, warnings))
}

/// Of a container of containerd's, which cannot be given a relay.
pub fn by_containerd(
    daemon: &Daemon,
    container: &Container,
    request: &CheckpointRequest<'_>,
    reply: &Reply<'_>,
) -> Result<Report> {
    let warnings = proof::without(container, request)?;
    let timeline = Timeline::begin();
    let engine = Containerd::with(daemon.criu()?);
    let _claim = daemon.claims.take(tree(container.pid))?;
    let draft = daemon.store.begin(request.to)?;
    fault::point("checkpoint-begun")?;
    reply.progress("gpu", 0, 0);
    let id = format!("container-{}", container.id);
    let hold = hold(daemon, &id, container.pid, request, &timeline)?;
    fault::point("detached")?;
    reply.check_wanted()?;
    let half = hold.as_ref().map(half_of);
    let scratch = Scratch::make(daemon.paths.dumps().join(&id))?;
    let archive = scratch.path.join(ARCHIVE);
    reply.progress("dump", 0, 0);
    let export = || engine.export(container, &archive, request.leave_running);
    let exported = timeline.lane(CPU).time("dump", export)?;
    let metadata = super::described(Containerd::NAME, container, exported);
    let processes = half.as_ref().map_or(0, |half| half.pids.len());
    let commit = || -> Result<()> {
        let draft = complete(draft, &archive, container, metadata.clone(), half.as_ref(), reply, &timeline)?;
        timeline.time("commit", || draft.commit())?;
        Ok(())
    };
    if request.leave_running {
        // Those that were not there any more when CRIU came are not now.
        hold.as_ref().map_or(Ok(()), |hold| members::all_live(&hold.held.pids))?;
        let released = hold.map(|hold| driver_half::release(hold, &timeline));
        released.transpose()?;
        let stopped_us = timeline.elapsed_us();
        commit()?;
        return Ok(report(&metadata, request.to, Mode::Driver, processes, &timeline, stopped_us, warnings));
    }
    let committed = commit();
    if let Some(hold) = hold {
        hold.forget();
    }
    if let Err(error) = committed {
        engine.go_on(container)?;
        bring_back(daemon, &engine, &metadata, &id, half.as_ref(), &[], &timeline)?;
        return Err(error);
    }
    timeline.lane(CPU).time("end", || engine.end(container))?;
    let stopped_us = timeline.elapsed_us();
    Ok(report(&metadata, request.to, Mode::Driver, processes, &timeline, stopped_us, warnings))
}

/// What an image keeps of processes that are there.
fn half_of(hold: &Hold<'_>) -> DriverHalf {
    let pids = hold.held.pids.iter().filter_map(|pid| innermost_pid(*pid)).collect();
    DriverHalf { pids, gpus: hold.held.gpus.clone() }
}

/// Takes the GPU halves of the container's processes; none where none has one.
fn hold<'a>(
    daemon: &'a Daemon,
    id: &str,
    root: i32,
    request: &CheckpointRequest<'_>,
    timeline: &Timeline,
) -> Result<Option<Hold<'a>>> {
    if !driver_half::is_used(tree(root)) {
        return Ok(None);
    }
    let start_us = timeline.elapsed_us();
    let hold = daemon.driver.hold(id, root, request.gpu_wait)?;
    timeline.lane(GPU).merge(start_us, hold.held.phases.clone());
    if hold.held.pids.is_empty() {
        hold.forget();
        return Ok(None);
    }
    Ok(Some(hold))
}

/// Adds the archive to what is in the draft already, so that it can become an image.
fn complete(
    draft: Draft,
    archive: &Path,
    container: &Container,
    of: ContainerMetadata,
    half: Option<&DriverHalf>,
    reply: &Reply<'_>,
    timeline: &Timeline,
) -> Result<Draft> {
    reply.progress("commit", 0, 0);
    fault::point("frozen")?;
    reply.check_wanted()?;
    timeline.time("archive", || draft.take_file(kind(), ARCHIVE, archive))?;
    {
        let mut manifest = draft.manifest();
        manifest.mode = machine::mode(Mode::Driver);
        manifest.program = machine::program_of(&container.command);
        manifest.machine = machine::this();
        manifest.gpus = half.map(DriverHalf::shown_gpus).unwrap_or_default();
        // All that it has mapped is in its own root file system: the inventory is empty.
        let metadata = ImageMetadata {
            name: container.name.clone(),
            gpu: "driver".to_string(),
            driver: half.cloned(),
            container: Some(of),
            ..ImageMetadata::default()
        };
        metadata.write(&mut manifest)?;
    }
    fault::point("before-commit")?;
    reply.check_wanted()?;
    Ok(draft)
}
