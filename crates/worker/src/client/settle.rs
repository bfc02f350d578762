//! Bringing everything to a stop for a checkpoint.

use super::Client;
use crate::dispatch::DispatchError;

impl Client {
    /// Whether work that was issued may wait for what only the program does: call its functions, or write a value.
    pub(crate) fn work_needs_program(&self) -> bool {
        self.waits_for_values || self.calls_in_graphs || self.link.has_calls()
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
        Ok(true)
    }
}
