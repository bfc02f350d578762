//! CRIU's images of a container that lie beside its archive, and Podman's restore from them.
//!
//! The runtime names the images that Podman has unpacked; the relay gives CRIU the image's own in their place, and its
//! page files by descriptors, for the container has another root. What CRIU acts on is checked before that, contents of
//! memory beside it, before the program runs. An image whose archive has all is restored as the runtime wants it.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::ScopedJoinHandle;

use rekindle_sandbox::process::{innermost_pid, namespace, tree};
use rekindle_sandbox::{Images, RelayStep, RelayedRequest, aside, pages};
use rekindle_store::{Image, PartKind};

use super::archive_of;
use super::dump::relay;
use super::engine::Engine;
use super::podman::{Manner, Podman};
use crate::checkpoint::Scratch;
use crate::containers::ContainerError;
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::images::ImageError;
use crate::images::cpu_images;
use crate::images::metadata::ContainerMetadata;
use crate::images::verify::cpu_half;
use crate::images::verify::page_files;
use crate::timeline::{CPU, PAGES, Timeline};
use rekindle_sandbox::process::maps::{self, Area};

/// Images that lie beside an archive; what CRIU acts on is checked.
pub struct DetachedImages<'a> {
    image: &'a Image,
    directory: PathBuf,
    /// The page files that they speak of, and where those are.
    names: Vec<String>,
    page_files: Option<PathBuf>,
}

impl<'a> DetachedImages<'a> {
    /// None of an image whose archive has all.
    pub fn check(image: &'a Image, of: &ContainerMetadata) -> Result<Option<DetachedImages<'a>>> {
        if !of.memory_beside {
            return Ok(None);
        }
        let refused =
            |reason: String| ImageError::CannotRestore { image: image.manifest().name.clone(), reason };
        cpu_half::check(image, threads())?;
        let directory = cpu_images::check(image, threads())?;
        let names = pages::named(&directory).map_err(refused)?;
        let mut page_files = None;
        for name in &names {
            let part = image.part(PartKind::CpuPages, name).and_then(|part| image.file_path(part));
            let path = part
                .ok_or_else(|| refused(format!("its page file {name}, memory of its program, is missing")))?;
            page_files = path.parent().map(Path::to_path_buf);
        }
        Ok(Some(DetachedImages { image, directory, names, page_files }))
    }

    /// CRIU's images.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// With images as they are restored beside the program, which are made in `own`; sockets get names in `place`.
    pub fn aside(self, own: PathBuf, place: &str) -> Result<DetachedImages<'a>> {
        let settled = aside::settle(&self.directory, &own, place);
        settled.map_err(|source| Error::io("give other names to sockets in", &own, source))?;
        Ok(DetachedImages { directory: own, ..self })
    }

    fn check_contents(&self) -> Result<()> {
        // The other half of the processors has CRIU's work, and the GPU half's.
        let threads = threads().div_ceil(2);
        cpu_images::check_contents(self.image, threads)?;
        page_files::check_whole(self.image, threads)
    }

    /// Which of these processes maps a page file still; none should once the driver has read them.
    pub fn mapped_by(&self, pids: &[i32]) -> Option<i32> {
        let is_ours = |area: &Area| {
            let name = String::from_utf8_lossy(&area.name);
            let (directory, name) = name.rsplit_once('/').unwrap_or_default();
            directory.ends_with(pages::DIRECTORY) && self.names.iter().any(|known| known == name)
        };
        pids.iter().copied().find(|pid| maps::if_there(*pid).iter().any(is_ours))
    }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get())
}

/// One restore by Podman.
pub struct Import<'a> {
    pub daemon: &'a Daemon,
    /// Names the relay; short.
    pub id: &'a str,
    pub image: &'a Image,
    pub beside: Option<&'a DetachedImages<'a>>,
    pub of: &'a ContainerMetadata,
    /// What the container is to be called.
    pub name: &'a str,
    pub manner: &'a Manner,
    pub timeline: &'a Timeline,
}

impl Import<'_> {
    /// Makes a container of the archive. `at_step` runs when its program is complete and does not run yet, with the pid
    /// of a process that it descends from; `then` with what that gave, when CRIU has let go, beside what Podman has left
    /// to do. Nothing is left of a container that does not come up.
    pub fn make<T: Send>(
        &self,
        sockets: &[(u32, BorrowedFd<'_>)],
        at_step: impl FnOnce(i32) -> Result<T> + Send,
        then: impl FnOnce(T) -> Result<()> + Send,
    ) -> Result<()> {
        let Import { daemon, beside, timeline, .. } = self;
        let archive = archive_of(self.image)?;
        let scratch = Scratch::make(daemon.paths.dumps().join(format!("restore-{}", self.id)))?;
        let relay = relay(daemon, &scratch)?;
        let podman = Podman::through(daemon.criu()?, relay.directory());
        let open = |path: &PathBuf| File::open(path).map_err(|source| Error::io("open", path, source));
        let directory = beside.map(|beside| open(&beside.directory)).transpose()?;
        let page_files = beside.and_then(|beside| beside.page_files.as_ref()).map(open).transpose()?;
        let names = beside.map_or(&[][..], |beside| &beside.names);
        let images = directory.as_ref().map(|directory| Images {
            directory: directory.as_fd(),
            page_files: page_files.as_ref().map(|place| (place.as_fd(), names)),
        });
        let failure = Mutex::new(None);
        let note = |error: Error| {
            let sentence = error.to_string();
            failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            sentence
        };
        let imported = std::thread::scope(|scope| {
            let lane = timeline.lane(PAGES);
            let check = |beside: &&'_ DetachedImages<'_>| beside.check_contents();
            let mut checking =
                beside.as_ref().map(|beside| scope.spawn(move || lane.time("check pages", || check(beside))));
            let mut both = Some((at_step, then));
            let attend = |asked: RelayedRequest| {
                // A runtime that tries again is refused.
                let Some((step, then)) = both.take() else { return };
                let mut given = None;
                let leave = || {
                    let filled = whole(checking.take()).and_then(|()| self.populate(asked.pid));
                    let done = filled.and_then(|()| step(asked.pid));
                    given = Some(done.map_err(note)?);
                    Ok(())
                };
                let steps_told = log::log_enabled!(log::Level::Debug);
                // What goes wrong between us is told by CRIU, which undoes all then.
                let _ = asked.lead(RelayStep::Restore { sockets, images, steps_told }, leave);
                if let Some(given) = given
                    && asked.until_end().is_ok()
                {
                    let _ = then(given).map_err(note);
                }
            };
            let import = || {
                timeline.lane(CPU).time("restore", || podman.make(&archive, self.of, self.name, self.manner))
            };
            let imported = relay.conduct(attend, import);
            // If CRIU fails, what is damaged of memory is the better reason.
            whole(checking).and(imported)
        });
        let cause = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
        let done = cause.map_or(imported, Err);
        done.inspect_err(|_| podman.remove(self.of, self.name))
    }

    /// Writes what CRIU did not read into the program.
    fn populate(&self, relay: i32) -> Result<()> {
        let Some(beside) = self.beside else { return Ok(()) };
        let start_us = self.timeline.elapsed_us();
        let written = pages::populate(&beside.directory, &pids(relay)).map_err(|reason| {
            ImageError::CannotRestore { image: self.image.manifest().name.clone(), reason }
        })?;
        let took_us = self.timeline.elapsed_us() - start_us;
        self.timeline.lane(CPU).note("populate", start_us, took_us, written);
        Ok(())
    }
}

/// What a container knows its processes as, which descend from its relay, with our pids.
fn pids(relay: i32) -> BTreeMap<i32, i32> {
    let ours = namespace(relay, "pid");
    let (shared, own): (Vec<_>, Vec<_>) =
        tree(relay).into_iter().partition(|pid| namespace(*pid, "pid") == ours);
    // The relay and CRIU come first: a container may have a pid that one of them has outside of it.
    shared.into_iter().chain(own).filter_map(|pid| Some((innermost_pid(pid)?, pid))).collect()
}

/// Our pid of the process that a container knows as `inside`, which descends from its relay.
pub fn find(relay: i32, inside: i32) -> Result<i32> {
    pids(relay).get(&inside).copied().ok_or_else(|| {
        ContainerError::Engine {
            engine: Podman::NAME,
            action: "restore the container",
            reason: format!("CRIU has brought no process {inside} of it back"),
        }
        .into()
    })
}

fn whole(checking: Option<ScopedJoinHandle<'_, Result<()>>>) -> Result<()> {
    let join = |check: ScopedJoinHandle<'_, Result<()>>| {
        check.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    };
    checking.map_or(Ok(()), join)
}
