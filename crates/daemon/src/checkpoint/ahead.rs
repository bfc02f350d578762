//! Memory of the CPU half, copied while the program runs.

use std::path::Path;

use rekindle_protocol::daemon::Mode;
use rekindle_protocol::tuning;
use rekindle_sandbox::Cpu;
use rekindle_sandbox::pages::Ahead;

use crate::error::Result;
use crate::host::places::private_directory;
use crate::timeline::PAGES;

use super::attempt::Attempt;

/// Among CRIU's images, which are no directories.
const DIRECTORY: &str = "ahead";

impl Attempt<'_> {
    /// Copies what a program that is to go on has in memory; none where that is not wanted, or cannot be done.
    pub(super) fn copy_ahead(&self, scratch: &Path) -> Result<Option<Ahead>> {
        // `off` has memory copied while programs stand still; `check` has what was copied before compared with what it is then.
        let wish = tuning::word(tuning::PRECOPY).unwrap_or_default();
        let Cpu::Sandbox(sandbox) = self.subject.cpu else { return Ok(None) };
        if wish == "off" || !self.request.leave_running || self.subject.mode != Mode::Sandbox {
            return Ok(None);
        }
        self.reply.progress("copy ahead", 0, 0);
        let out = scratch.join(DIRECTORY);
        private_directory(&out, true)?;
        let lane = self.timeline.lane(PAGES);
        let ahead = match lane.time("protect", || Ahead::begin(sandbox, &out, wish == "check")) {
            Ok(ahead) if !ahead.is_empty() => ahead,
            Ok(_) => return Ok(None),
            Err(error) => {
                log::info!("the program's memory is copied while it stands still: {error}");
                return Ok(None);
            }
        };
        self.step("ahead-begun")?;
        let start_us = self.timeline.elapsed_us();
        let bytes = ahead.copy(&|| self.reply.check_wanted().is_ok());
        lane.note("copy ahead", start_us, self.timeline.elapsed_us() - start_us, bytes);
        let _ = self.copied_ahead.set(());
        self.step("ahead-copied")?;
        Ok(Some(ahead))
    }
}
