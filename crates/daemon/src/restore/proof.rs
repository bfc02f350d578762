//! The proof of an image: it is restored once, beside the program that it was taken of, in a sandbox that never runs.
//!
//! CRIU brings the CPU half to its last step before threads run, a worker makes the GPU half (memory, modules, streams and
//! globals in their places; contents have checksums), and all of it is torn down. What the program has and nobody else can have at
//! the same time stays its own: the sandbox has a network of its own, and images that name other sockets and no locks
//! ([`aside`]).

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Mutex;

use rekindle_protocol::daemon::State;
use rekindle_sandbox::{Addresses, ExternalSocket, RUN_PATH, aside};
use rekindle_store::{Draft, Error as StoreError, Image, Manifest};
use serde::{Deserialize, Serialize};

use super::halves::Half;
use super::{Attempt, RestoreRequest, available_threads, join};
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::host::paths::Paths;
use crate::images::metadata::ImageMetadata;
use crate::images::{cpu_images, machine, preflight, remove_made_when_free};
use crate::lifecycle::run::{create, give_back};
use crate::reply::Reply;
use crate::restore::RestoreError;
use crate::sandboxes::admission::AdmissionSocket;
use crate::sandboxes::record::Record;
use crate::sleep::wake;
use crate::timeline::Timeline;
use crate::{fault, frameworks};

/// `on` has every checkpoint prove its image.
const VARIABLE: &str = "REKINDLE_PROVE";

/// Why a program that is complete does not run.
pub const NO_MORE: &str = "it was to be proven and no more";

pub fn is_wanted_always() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|wanted| wanted == "on")
}

/// Makes a draft an image. One that is to be proven stays one only if it comes back, even if this daemon dies meanwhile.
/// Returns its id and what could not be proven, a sentence each.
pub fn commit(
    daemon: &Daemon,
    draft: Draft,
    is_wanted: bool,
    timeline: &Timeline,
    reply: &Reply<'_>,
    prove: impl FnOnce(&Image) -> Result<Vec<String>>,
) -> Result<(String, Vec<String>)> {
    let marker = is_wanted.then(|| UnprovenMarker::leave(&daemon.paths, &draft.manifest())).transpose()?;
    let image = timeline.time("commit", || draft.commit())?;
    let (name, id) = (image.manifest().name.clone(), image.manifest().id.clone());
    let Some(marker) = marker else { return Ok((id, Vec::new())) };
    reply.progress("prove", 0, 0);
    let proven = timeline.time("prove", || prove(&image));
    drop(image);
    let told = proven.map_err(|error| RestoreError::Unproven { reason: error.to_string() });
    match told.is_err().then(|| remove_made_when_free(&daemon.store, &name, &id)) {
        Some(Err(error)) => {
            log::error!("the image of a checkpoint that was not proven stays until the next daemon: {error}");
            std::mem::forget(marker);
        }
        Some(Ok(())) | None => drop(marker),
    }
    Ok((id, told?))
}

/// Removes the images that a daemon before this one did not come to prove.
pub fn remove_unproven(daemon: &Daemon) {
    for (path, image) in UnprovenMarker::all(&daemon.paths) {
        match daemon.store.remove_made(&image.name, &image.id) {
            Ok(()) => {
                log::warn!("the daemon died before the image {:?} was proven; it is removed", image.name)
            }
            // It was not made yet, or its name is another one's by now.
            Err(StoreError::NoImage { .. }) => {}
            Err(error) => {
                log::error!("an image that was not proven stays: {error}");
                continue;
            }
        }
        drop(UnprovenMarker(path));
    }
}

/// Says of an image that it is not proven yet, for as long as it is there.
struct UnprovenMarker(PathBuf);

impl UnprovenMarker {
    fn leave(paths: &Paths, manifest: &Manifest) -> Result<UnprovenMarker> {
        let marker = UnprovenMarker(paths.unproven().join(&manifest.id));
        let image = Unproven { name: manifest.name.clone(), id: manifest.id.clone() };
        let write = || -> io::Result<()> {
            let mut file = File::create_new(&marker.0)?;
            file.write_all(&serde_json::to_vec(&image)?)?;
            file.sync_all()?;
            // As durable as the image will be.
            File::open(paths.unproven())?.sync_all()
        };
        write().map_err(|source| Error::io("write", &marker.0, source))?;
        Ok(marker)
    }

    fn all(paths: &Paths) -> Vec<(PathBuf, Unproven)> {
        let entries = fs::read_dir(paths.unproven()).into_iter().flatten().flatten();
        let read = |path: PathBuf| {
            let image = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
            Some((path, image))
        };
        entries.filter_map(|entry| read(entry.path())).collect()
    }
}

impl Drop for UnprovenMarker {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            log::error!("{} stays, which has the image removed later: {error}", self.0.display());
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Unproven {
    name: String,
    id: String,
}

/// What is told of an image that is not proven.
pub fn unproven(why: &str) -> Vec<String> {
    let warning = format!("the image was not proven by a restore: {why}");
    log::warn!("{warning}");
    vec![warning]
}

/// Proves an image of a program that is in no container. Returns what could not be proven.
pub fn prove(daemon: &Daemon, image: &Image) -> Result<Vec<String>> {
    let metadata = ImageMetadata::read(image)?;
    let images = cpu_images::check(image, available_threads())?;
    let obstacle = match metadata.amd.is_empty() {
        true => {
            let found = aside::obstacle(&images);
            found.map_err(|source| Error::io("read", &images, source))?
        }
        false => Some("it uses an AMD GPU, which its GPU half would be put on twice".to_string()),
    };
    if let Some(why) = obstacle {
        return Ok(unproven(&why));
    }
    in_place(daemon, image, &metadata, |attempt| {
        attempt.sandbox.network.furnish(Addresses::Any)?;
        attempt.prove(|sockets| attempt.prove_cpu(sockets))
    })
}

/// Proves an image with what a sandbox of its own needs, and gives all of that back. Returns what could not be proven.
pub fn in_place(
    daemon: &Daemon,
    image: &Image,
    metadata: &ImageMetadata,
    work: impl FnOnce(&Attempt<'_>) -> Result<Option<String>>,
) -> Result<Vec<String>> {
    preflight::check_machine(&daemon.paths, image, metadata, &metadata.mounts)?;
    fault::point("proof-begun")?;
    let mode = machine::shown_mode(image.manifest().mode);
    let sandbox = daemon.sandboxes.add(None, "proof", |at| {
        let record = Record {
            command: image.manifest().program.argv.clone(),
            directory: image.manifest().program.cwd.to_string_lossy().into_owned(),
            image: Some(image.manifest().name.clone()),
            mounts: metadata.mounts.clone(),
            ..Record::new(daemon.paths.new_id()?, at.name, mode, State::Restoring, metadata.gpu.clone())
        };
        create(daemon, record, None, Some(image))
    })?;
    let request = RestoreRequest { image: &image.manifest().name, ..RestoreRequest::default() };
    let attempt = Attempt {
        daemon,
        sandbox: &sandbox,
        image,
        metadata,
        pairs: &[],
        // Its steps would be taken for the checkpoint's own.
        timeline: &Timeline::begin(),
        request: &request,
        warnings: Mutex::default(),
        is_proof: true,
        mapped: Mutex::default(),
    };
    let load = daemon.pool.begin_load();
    let proven = work(&attempt);
    drop(load);
    give_back(daemon, &sandbox);
    proven.map(|warning| warning.into_iter().collect())
}

impl Attempt<'_> {
    /// Proves both halves: that of the CPU by `prove_cpu`, which gets what takes the place of the program's sockets.
    pub fn prove(
        &self,
        prove_cpu: impl FnOnce(&[ExternalSocket<'_>]) -> Result<()>,
    ) -> Result<Option<String>> {
        if self.metadata.framework {
            frameworks::open(&self.sandbox.run_directory)?;
        }
        if self.metadata.clients.is_empty() {
            return prove_cpu(&[]).map(|()| None);
        }
        AdmissionSocket::open(self.sandbox, wake::knocked)?;
        let halves = self.halves(self.take_workers()?)?;
        let sockets: Vec<_> = halves.iter().map(Half::socket).collect();
        std::thread::scope(|scope| {
            let gpu = scope.spawn(|| self.prove_gpu(&halves));
            let cpu = prove_cpu(&sockets);
            let gpu = join(gpu);
            cpu.and(gpu)
        })
    }

    /// Brings the CPU half to where it could run, and no further.
    fn prove_cpu(&self, sockets: &[ExternalSocket<'_>]) -> Result<()> {
        let is_there = Cell::new(false);
        let ended = self.restore_cpu(sockets, |_| {
            fault::point("proof-complete")?;
            is_there.set(true);
            Err(self.refused(NO_MORE))
        });
        match ended {
            Err(_) if is_there.get() => Ok(()),
            Err(error) => Err(error),
            Ok(cpu) => {
                // Nothing lets it run.
                let _ = cpu.kill();
                Err(self.refused("it ran where it was to be proven"))
            }
        }
    }

    /// Brings the GPU halves to where they could be used, if there is room beside the program's.
    fn prove_gpu(&self, halves: &[Half<'_>]) -> Result<Option<String>> {
        self.sandbox.note_workers();
        let paths: Vec<_> = halves.iter().map(|half| (&half.worker, &half.image)).collect();
        let Some((worker, _)) = paths.first() else { return Ok(None) };
        let status = worker.status()?;
        let needed = preflight::gpus_bytes(self.image)?;
        let mut gpus = needed.iter().zip(&status.free_bytes);
        if let Some((needed, free)) = gpus.find(|(needed, free)| free < needed) {
            return Ok(Some(format!(
                "the image's GPU half was not proven by a restore: it needs {} MB of GPU memory and {} MB are free beside the program",
                needed >> 20,
                free >> 20
            )));
        }
        self.restore_gpu(&paths).map(|_| None)
    }

    /// Images as they can be restored beside the program.
    pub(super) fn images_aside(&self, checked: PathBuf) -> Result<PathBuf> {
        let own = self.sandbox.pages.with_extension("images");
        let settled = aside::settle(&checked, &own, RUN_PATH);
        settled.map_err(|source| Error::io("give other names to sockets in", &own, source))?;
        Ok(own)
    }
}
