//! What the last image of a program that goes on has of its memory, for its next one.
//!
//! Memory stays protected meanwhile, which costs the program a fault at the first write to each page, and large pages where
//! it writes. So it is let go of when no further image was begun for a while.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rekindle_protocol::tuning;
use rekindle_sandbox::pages::Baseline;
use rekindle_store::{Image, PartKind};

use crate::error::Result;
use crate::host::paths::private_directory;
use crate::images::{cpu_pages, shared_pages};
use crate::sandboxes::remove_directory;

/// Unless [`tuning::INCREMENT`] says for how many seconds; 0 has each image take all memory.
const KEPT: Duration = Duration::from_secs(3600);

/// How long memory stays protected after an image; none if it does not.
pub fn patience() -> Option<Duration> {
    let wanted = tuning::word(tuning::INCREMENT).and_then(|text| text.parse().ok());
    let patience = wanted.map_or(KEPT, Duration::from_secs);
    (!patience.is_zero()).then_some(patience)
}

/// Names of its own for an image's page files, which may be removed meanwhile. Dropped, they go.
pub struct Links(PathBuf);

impl Links {
    pub fn make(directory: PathBuf, image: &Image) -> Result<Links> {
        private_directory(&directory, true)?;
        let links = Links(directory);
        cpu_pages::link(image, &links.0)?;
        let parts: Vec<_> = image.parts(PartKind::CpuPages).collect();
        shared_pages::note(image, &links.0, &parts)?;
        Ok(links)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        if let Err(error) = remove_directory(&self.0) {
            log::warn!("{error}");
        }
    }
}

/// What an image has, and the page files that it has it in.
pub struct ImageBaseline {
    pub baseline: Baseline,
    pub links: Links,
}

/// Of one sandbox.
#[derive(Default)]
pub struct LastImage {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// With the time until which it is kept.
    kept: Option<(Instant, ImageBaseline)>,
    /// Whether a thread waits for that time.
    is_awaited: bool,
    has_ended: bool,
}

impl LastImage {
    /// It is the caller's from now on: what is protected under it is about to become another.
    pub fn take(&self) -> Option<ImageBaseline> {
        let kept = self.lock().kept.take();
        self.changed.notify_all();
        kept.map(|(_, kept)| kept)
    }

    pub fn keep(self: &Arc<LastImage>, kept: ImageBaseline, patience: Duration) {
        let mut state = self.lock();
        if state.has_ended {
            return;
        }
        state.kept = Some((Instant::now() + patience, kept));
        if !std::mem::replace(&mut state.is_awaited, true) {
            let last = self.clone();
            std::thread::spawn(move || last.wait());
        }
    }

    /// The program has ended.
    pub fn end(&self) {
        self.lock().has_ended = true;
        drop(self.take());
    }

    /// Lets go of what is there when its time has come.
    fn wait(&self) {
        let mut state = self.lock();
        while let Some((until, _)) = &state.kept {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.kept = None;
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.is_awaited = false;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
