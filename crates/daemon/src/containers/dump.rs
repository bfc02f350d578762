//! Podman's dump of a container, in whose middle we stand: memory goes past CRIU's files and Podman's archive.
//!
//! ```text
//! podman ─▶ runtime ─▶ relay ─▶ CRIU ──pages──▶ page server, which copies them out of the program
//!                        │         └──images──▶ Podman's directory ─moved─▶ beside the archive
//!                        ├ before it is asked: the GPU half is in memory
//!                        └ at its last step, the program standing: all is here; a signal stops the program
//! ```
//!
//! The container stands still until its writable layer is archived too, which Podman does after its memory; or, if it is
//! to end, until its image is safe. If that fails, or we die, it goes on.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::ScopedJoinHandle;

use nix::sys::socket::{Shutdown, shutdown};
use rekindle_sandbox::pages::{Served, Wanted};
use rekindle_sandbox::process::pid_map;
use rekindle_sandbox::{Guard, Relay, RelayStep, RelayedRequest, Stopped};
use rekindle_store::Draft;

use super::engine::{Container, Exported};
use super::podman::Podman;
use crate::checkpoint::Scratch;
use crate::containers::ContainerError;
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::host::paths::private_directory;
use crate::images::cpu_pages;
use crate::images::cpu_pages::Pages;
use crate::timeline::{CPU, Timeline};

/// Podman looks whether it is there before it restores.
const INVENTORY: &str = "inventory.img";

/// One dump.
pub struct Dump<'a> {
    pub daemon: &'a Daemon,
    pub container: &'a Container,
    pub scratch: &'a Scratch,
    /// Inodes of the program's ends of sockets whose other ends are ours.
    pub sockets: &'a [u32],
    /// Set when what is copied first is copied: a worker's half.
    pub first: Option<&'a OnceLock<()>>,
    pub timeline: &'a Timeline,
}

/// A container that stands still, all of it written.
pub struct Dumped {
    pub exported: Exported,
    pub stopped: Stopped,
    pub memory: Memory,
}

/// What CRIU has written, and the memory that went past it.
pub struct Memory {
    images: PathBuf,
    served: Served,
}

impl Memory {
    /// Takes it into the draft.
    pub fn take(&self, draft: &Draft) -> Result<()> {
        cpu_pages::take(draft, &self.images, &self.served)
    }
}

impl Dump<'_> {
    /// Has Podman write the container's archive. CRIU begins when `ready` has said which memory is to be mapped on a
    /// restore; `at_step` runs while the program stands still.
    pub fn export(
        &self,
        archive: &Path,
        ready: impl FnOnce() -> Result<Vec<Wanted>> + Send,
        at_step: impl FnOnce() -> Result<()> + Send,
    ) -> Result<Dumped> {
        let relay = relay(self.daemon, self.scratch)?;
        let podman = Podman::through(self.daemon.criu()?, relay.directory());
        let failure = Mutex::new(None);
        // The first is the cause.
        let note = |error: Error| {
            let sentence = error.to_string();
            failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            sentence
        };
        let taken = Mutex::new(None);
        let (mut ready, mut wanted, mut tries) = (Some(ready), None, 0);
        let mut at_step = Some(at_step);
        let mut attend = |asked: RelayedRequest| {
            if let Some(ready) = ready.take() {
                wanted = ready().map_err(note).ok();
            }
            let Some(wanted) = wanted.clone() else { return };
            tries += 1;
            let images = self.scratch.path.join(format!("images-{tries}"));
            let found = self.lead(&asked, &images, wanted, &mut at_step, &note).map_err(note);
            *taken.lock().unwrap_or_else(PoisonError::into_inner) = found.ok().flatten();
        };
        let export = || self.timeline.lane(CPU).time("dump", || podman.export(self.container, archive));
        let mut exported = relay.conduct(&mut attend, export);
        let is_noted = || failure.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        let is_taken = || taken.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        // CRIU gives up where the kernel's freezer does not bring all to a stand within 10 s, which happens once and not
        // again.
        if let Err(error) = &exported
            && !is_noted()
            && !is_taken()
            && podman.runs(self.container)
        {
            log::warn!("{error}; it runs, and is tried once more");
            exported = relay.conduct(&mut attend, export);
        }
        let taken = taken.into_inner().unwrap_or_else(PoisonError::into_inner);
        let cause = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
        let exported = exported.map_err(|error| cause.unwrap_or(error))?;
        let (memory, stopped) = taken.ok_or_else(|| ContainerError::Engine {
            engine: Podman::NAME,
            action: "checkpoint the container",
            reason: "its runtime did not start the CRIU that it was given".to_string(),
        })?;
        Ok(Dumped { exported, stopped, memory })
    }

    /// Has one CRIU dump the container; nothing if it ended before all was written.
    fn lead<N: Fn(Error) -> String + Sync>(
        &self,
        asked: &RelayedRequest,
        images: &Path,
        wanted: Vec<Wanted>,
        at_step: &mut Option<impl FnOnce() -> Result<()>>,
        note: &N,
    ) -> Result<Option<(Memory, Stopped)>> {
        private_directory(images, true)?;
        let root = self.container.pid;
        let guard = Guard::start(&self.daemon.program)?;
        let (pages, criu_end) = Pages::begin(images)?;
        let mut taken = None;
        std::thread::scope(|scope| {
            let host_pid = |pid| pid_map(root).get(&pid).copied();
            let served = scope
                .spawn(move || pages.serve(&host_pid, wanted, true, self.first, None, None).map_err(note));
            let gather = || -> std::result::Result<(Memory, Stopped), String> {
                let served = self.timeline.lane(CPU).time("wait for the pages", || join(served))?;
                let once = at_step.take().ok_or("this was done before and failed")?;
                once().map_err(note)?;
                move_images(&asked.images, images)
                    .map_err(|source| note(Error::io("take CRIU's images into", images, source)))?;
                let stopped = guard.stop(root).map_err(|error| note(error.into()))?;
                Ok((Memory { images: images.to_path_buf(), served }, stopped))
            };
            let course = RelayStep::Dump {
                sockets: self.sockets,
                page_server: criu_end.as_fd(),
                steps_told: log::log_enabled!(log::Level::Debug),
            };
            let led = asked.lead(course, || gather().map(|all| taken = Some(all)));
            // Pages of a CRIU that has ended in the middle do not come any more.
            let _ = shutdown(criu_end.as_raw_fd(), Shutdown::Both);
            led.map_err(|source| match source.kind() {
                ErrorKind::BrokenPipe => ContainerError::Engine {
                    engine: Podman::NAME,
                    action: "checkpoint the container",
                    reason:
                        "the relay before CRIU ended meanwhile; no image was taken, and the container goes on"
                            .into(),
                }
                .into(),
                _ => Error::system("speak to the relay before CRIU", source),
            })
        })?;
        Ok(taken)
    }
}

fn join(
    served: ScopedJoinHandle<'_, std::result::Result<Option<Served>, String>>,
) -> std::result::Result<Served, String> {
    let served = served.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    served.ok_or_else(|| "the container's pages were not taken".to_string())
}

/// Moves CRIU's images from where its runtime wanted them.
fn move_images(from: &File, to: &Path) -> io::Result<()> {
    let from = PathBuf::from(format!("/proc/self/fd/{}", from.as_raw_fd()));
    for entry in fs::read_dir(&from)? {
        let name = entry?.file_name();
        if !name.as_encoded_bytes().ends_with(b".img") {
            continue;
        }
        let (old, new) = (from.join(&name), to.join(&name));
        let renamed = match name == INVENTORY {
            true => fs::copy(&old, &new).map(drop),
            false => fs::rename(&old, &new),
        };
        match renamed {
            Err(error) if error.kind() == ErrorKind::CrossesDevices => {
                fs::copy(&old, &new)?;
                fs::remove_file(&old)?;
            }
            other => other?,
        }
    }
    Ok(())
}

/// The relay of one checkpoint or restore. Its socket's path must be short.
pub fn relay(daemon: &Daemon, scratch: &Scratch) -> Result<Relay> {
    let socket = daemon.paths.runs.join(format!("{}-criu.sock", daemon.paths.new_id()?));
    Ok(Relay::make(&scratch.path.join("criu"), &socket, &daemon.program, daemon.criu()?)?)
}
