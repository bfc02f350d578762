//! Memory of the CPU half, copied while the program runs.

use std::path::Path;
use std::sync::PoisonError;
use std::time::Instant;

use rekindle_protocol::daemon::Mode;
use rekindle_protocol::tuning;
use rekindle_protocol::worker::Phase;
use rekindle_sandbox::Cpu;
use rekindle_sandbox::pages::PreCopy;
use rekindle_store::Image;

use crate::error::Result;
use crate::host::paths::private_directory;
use crate::images::earlier_pages::EarlierPages;
use crate::sandboxes::last_image::{ImageBaseline, Links, patience};
use crate::timeline::PAGES;

use super::Purpose;
use super::attempt::Attempt;

/// Among CRIU's images, which are no directories.
const DIRECTORY: &str = "ahead";
/// The phases in which it is done.
const COPIES: [&str; 2] = ["copy ahead", "copy again"];

impl Attempt<'_> {
    /// Protects the memory of a program that is to go on, here or elsewhere, so that it can be copied; none where that is not
    /// wanted, or cannot be done.
    pub(super) fn protect(&self, scratch: &Path) -> Result<Option<PreCopy>> {
        // `off` has memory copied while programs stand still; `check` has what was copied before compared with what it is then.
        let wish = tuning::word(tuning::PRECOPY).unwrap_or_default();
        let Cpu::Sandbox(sandbox) = self.subject.cpu else { return Ok(None) };
        let goes_on = self.request.leave_running || matches!(self.request.purpose, Purpose::Move(_));
        if wish == "off" || !goes_on || self.subject.mode != Mode::Sandbox {
            return Ok(None);
        }
        let out = scratch.join(DIRECTORY);
        private_directory(&out, true)?;
        let last = self.last_image.and_then(|last| last.take()).map(|ImageBaseline { baseline, links }| {
            let _ = self.last_links.set(links);
            baseline
        });
        let lane = self.timeline.lane(PAGES);
        match lane.time("protect", || PreCopy::begin(sandbox, &out, wish == "check", last)) {
            Ok(pre_copy) => Ok(Some(pre_copy).filter(|pre_copy| !pre_copy.is_empty())),
            Err(error) => {
                log::info!("the program's memory is copied while it stands still: {error}");
                Ok(None)
            }
        }
    }

    /// Copies what is protected, for as long as it `goes_on`.
    pub(super) fn copy_ahead(&self, pre_copy: &PreCopy, goes_on: &dyn Fn() -> bool) -> Result<()> {
        self.reply.progress("copy ahead", 0, 0);
        self.step("ahead-begun")?;
        let (lane, start_us) = (self.timeline.lane(PAGES), self.timeline.elapsed_us());
        let bytes = pre_copy.copy(&|| goes_on() && self.reply.check_wanted().is_ok());
        let [ahead, _] = COPIES;
        lane.note(ahead, start_us, self.timeline.elapsed_us() - start_us, bytes);
        if self.last_links.get().is_some() {
            lane.note("in the last image", self.timeline.elapsed_us(), 0, pre_copy.based_bytes());
        }
        let _ = self.copied_ahead.set(());
        self.step("ahead-copied")
    }

    /// Opens what the program's memory may lie in already.
    pub(super) fn read_earlier(&self) -> EarlierPages {
        let restored = self.daemon.paths.pages().join(&self.subject.id);
        let read = || EarlierPages::read(restored, self.last_links.get().map(Links::path));
        self.timeline.lane(PAGES).time("earlier page files", read)
    }

    /// Copies what was written while CRIU made itself ready.
    pub(super) fn copy_again(&self, pre_copy: Option<&PreCopy>) {
        let Some(pre_copy) = pre_copy else { return };
        let start_us = self.timeline.elapsed_us();
        let bytes = pre_copy.copy_again(&|| self.reply.check_wanted().is_ok());
        let [_, again] = COPIES;
        self.timeline.lane(PAGES).note(again, start_us, self.timeline.elapsed_us() - start_us, bytes);
    }

    /// Keeps of the image that was just made what the next one is to know. Nothing depends on it.
    pub(super) fn keep_last(&self, stood_at: Instant, pre_copy: Option<PreCopy>) {
        let Some(id) = self.made.get().filter(|_| self.request.leave_running) else { return };
        let image = self.daemon.store.image(self.request.to).ok();
        let Some(image) = image.filter(|image| image.manifest().id == *id) else { return };
        // The driver keeps GPU memory in the CPU half, where its chunks are not told apart.
        let last_cut = self.last_cut.filter(|_| self.subject.mode == Mode::Sandbox);
        let written = last_cut.and_then(|last| last.replace(stood_at, &image, self.new_bytes()));
        written.into_iter().for_each(|written| self.timeline.note_written(written));
        if let Some(pre_copy) = pre_copy {
            self.keep_protected(pre_copy, &image);
        }
    }

    /// Bytes of memory that are not in the last image, if there is one.
    fn new_bytes(&self) -> Option<u64> {
        self.last_links.get().and_then(|_| self.copied_bytes())
    }

    /// Bytes of memory that were copied ahead, if that was done.
    pub(super) fn copied_bytes(&self) -> Option<u64> {
        self.copied_ahead.get()?;
        let copied = |phase: &Phase| phase.lane == PAGES && COPIES.contains(&&*phase.name);
        Some(self.timeline.phases().iter().filter(|phase| copied(phase)).map(|phase| phase.bytes).sum())
    }

    /// Has memory stay protected until the next image, which has that of this one then.
    fn keep_protected(&self, pre_copy: PreCopy, image: &Image) {
        let (Some(last), Some(patience)) = (self.last_image, patience()) else { return };
        let layout = std::mem::take(&mut *self.layout.lock().unwrap_or_else(PoisonError::into_inner));
        if layout.is_empty() {
            return;
        }
        match Links::make(self.daemon.paths.last_images().join(&image.manifest().id), image) {
            Ok(links) => {
                let baseline = pre_copy.keep(layout, links.path());
                if !baseline.is_empty() {
                    last.keep(ImageBaseline { baseline, links }, patience);
                }
            }
            Err(error) => {
                log::info!("the next image of {:?} takes all of its memory: {error}", self.subject.name)
            }
        }
    }
}
