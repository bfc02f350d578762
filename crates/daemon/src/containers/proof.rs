//! The proof of a container's image: Podman restores it once beside the container that it was taken of, as another one that
//! never runs.
//!
//! CRIU brings the program to its last step before threads run, a worker makes the GPU half that it had, and all of it is
//! torn down, as of a sandbox ([`crate::restore::proof`]). The other container has addresses of its own and ports that
//! nobody has, and the volumes as they are.

use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use rekindle_sandbox::aside;
use rekindle_store::{Draft, Image};

use super::engine::{Container, Engine};
use super::images::{DetachedImages, Import, find};
use super::podman::{Manner, Podman};
use super::{archive_of, worker_half};
use crate::checkpoint::{CheckpointRequest, Scratch};
use crate::containers::ContainerError;
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::fault;
use crate::images::ImageError;
use crate::images::metadata::ImageMetadata;
use crate::reply::Reply;
use crate::restore::proof::{self, NO_MORE, unproven};
use crate::timeline::Timeline;

/// Where sockets with paths get other ones: a container's own, in memory.
const PLACE: &str = "/dev";
/// Of the containers that a proof makes.
const PREFIX: &str = "rekindle-proof-";

/// Makes a draft the image of a container that is there still, and proves it, if that is wished. Returns what could not be
/// proven.
pub fn commit(
    daemon: &Daemon,
    container: &Container,
    draft: Draft,
    request: &CheckpointRequest<'_>,
    timeline: &Timeline,
    reply: &Reply<'_>,
) -> Result<Vec<String>> {
    let prove = |image: &Image| prove(daemon, container, image);
    proof::commit(daemon, draft, request.is_proof_wanted(), timeline, reply, prove).map(|(_, told)| told)
}

/// Of a container of containerd's: refuses what was asked for, and warns of what is set.
pub fn without(container: &Container, request: &CheckpointRequest<'_>) -> Result<Vec<String>> {
    match (request.prove, request.is_proof_wanted()) {
        (true, _) => Err(ContainerError::NoProof { name: container.name.clone() }.into()),
        (false, true) => Ok(unproven("its container is run by containerd, whose restores nobody can hold")),
        (false, false) => Ok(Vec::new()),
    }
}

fn prove(daemon: &Daemon, container: &Container, image: &Image) -> Result<Vec<String>> {
    let metadata = ImageMetadata::read(image)?;
    let refused = |reason: &str| {
        let image = image.manifest().name.clone();
        ImageError::CannotRestore { image, reason: reason.to_string() }.into()
    };
    let of = metadata.container.as_ref().ok_or_else(|| refused("it has no container"))?;
    let beside = DetachedImages::check(image, of)?.ok_or_else(|| refused("its memory is in its archive"))?;
    if let Some(why) = obstacle(container, &beside)? {
        return Ok(unproven(&why));
    }
    let beside_itself = Manner::DetachedImages { publishes: Podman::publishes(&archive_of(image)?)? };
    proof::in_place(daemon, image, &metadata, |attempt| {
        let id = &attempt.sandbox.id;
        let scratch = Scratch::make(daemon.paths.dumps().join(format!("aside-{id}")))?;
        let beside = beside.aside(scratch.path.join("images"), PLACE)?;
        attempt.prove(|sockets| {
            let sockets: Vec<(u32, BorrowedFd<'_>)> =
                sockets.iter().map(|socket| (socket.inode, socket.socket)).collect();
            let (name, timeline, beside) = (name_of(id), attempt.timeline, Some(&beside));
            let import =
                Import { daemon, id, image, beside, of, name: &name, manner: &beside_itself, timeline };
            let is_there = AtomicBool::new(false);
            let ended = import.make(
                &sockets,
                |relay| {
                    for pid in gpu_pids(&metadata) {
                        find(relay, pid)?;
                    }
                    fault::point("proof-complete")?;
                    is_there.store(true, Ordering::SeqCst);
                    Err::<(), _>(refused(NO_MORE))
                },
                Ok,
            );
            match ended {
                Err(_) if is_there.load(Ordering::SeqCst) => Ok(()),
                Err(error) => Err(error),
                // Nothing lets it run.
                Ok(()) => Err(refused("it ran where it was to be proven")),
            }
        })
    })
}

/// The processes that have a GPU half, as their container knows them.
fn gpu_pids(metadata: &ImageMetadata) -> Vec<i32> {
    let served = metadata.clients.iter().map(|client| client.process as i32);
    served.chain(metadata.driver.iter().flat_map(|half| half.pids.clone())).collect()
}

/// Why a container cannot be restored beside itself, if it cannot.
fn obstacle(container: &Container, beside: &DetachedImages<'_>) -> Result<Option<String>> {
    let images = beside.directory();
    if worker_half::shares_network(container.pid) {
        return Ok(Some(
            "its container has the machine's network, in which addresses are had once".to_string(),
        ));
    }
    if !has_own(container.pid, PLACE) {
        return Ok(Some(format!("its container has no {PLACE} of its own, where a proof puts its sockets")));
    }
    aside::obstacle(images).map_err(|source| Error::io("read", images, source))
}

/// Whether a directory of a container is in memory and not the machine's.
fn has_own(pid: i32, directory: &str) -> bool {
    let inside = PathBuf::from(format!("/proc/{pid}/root{directory}"));
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    let is_in_memory = statfs(&inside).is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC);
    is_in_memory && device(&inside) != device(Path::new(directory))
}

fn name_of(id: &str) -> String {
    format!("{PREFIX}{id}")
}

/// Removes the container of a proof of an earlier daemon's, if `scratch` is what that proof has left.
pub fn clear(daemon: &Daemon, scratch: &Path) {
    let name = scratch.file_name().unwrap_or_default().to_string_lossy();
    let Some(id) = name.strip_prefix("aside-") else { return };
    if let Ok(criu) = daemon.criu() {
        let (podman, name) = (Podman::with(criu), name_of(id));
        if podman.find(&name).is_ok_and(|found| !found.is_empty()) {
            podman.discard(&name);
        }
    }
}
