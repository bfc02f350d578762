//! Bringing everything to a stop for a checkpoint.

use super::Client;
use crate::dispatch::DispatchError;

impl Client {
    /// Whether work that was issued may wait for what only the program does: call its functions, or write a value.
    pub(crate) fn work_needs_program(&self) -> bool {
        self.waits_for_values || self.calls_in_graphs || self.link.has_calls()
    }

    /// Whether work of a GPU may wait for what the program asks for next: kernels of several GPUs wait for each other, streams for
    /// values.
    pub(crate) fn work_needs_requests(&self) -> bool {
        self.waits_for_values || self.has_several_gpus()
    }

    pub(crate) fn has_several_gpus(&self) -> bool {
        self.contexts.iter().flatten().nth(1).is_some()
    }

    /// Why an image is taken when all work has ended, if it is: a copy behind the work of all GPUs, which what the program asks for
    /// next comes behind, would never be made where a kernel waits for one that was not launched yet.
    pub(crate) fn why_work_ends_first(&self) -> Option<&'static str> {
        let is = |found: bool, why| found.then_some(why);
        is(self.ipc.is_used(), "it has memory or events that other processes have too").or_else(|| {
            is(self.has_several_gpus(), "it has several GPUs, whose work may wait for each other's")
        })
    }

    /// True when no device has work under way; then all of them have also been synchronised.
    pub(crate) fn settle(&mut self) -> Result<bool, DispatchError> {
        if !self.recordings.is_empty() {
            return Err(DispatchError::Capturing);
        }
        let failed = |device, code| DispatchError::Context { device, code };
        for device in self.open_devices() {
            if !self.is_idle(device).map_err(|code| failed(device, code))? {
                return Ok(false);
            }
        }
        for device in self.open_devices() {
            self.on(device).and_then(|gpu| gpu.synchronize()).map_err(|code| failed(device, code))?;
        }
        // The driver has handed out what kernels printed, and may be gone before the program waits for them.
        self.output.show();
        Ok(true)
    }
}
