//! Bringing everything to a stop for a checkpoint.

use super::Engine;

impl Engine {
    /// True when no device has work under way; then all of them have also been synchronised.
    pub(crate) fn settle(&mut self) -> Result<bool, String> {
        if !self.recordings.is_empty() {
            return Err(
                "the program is capturing a graph; try again when it has ended the capture".to_string()
            );
        }
        let failed = |device: usize, code| {
            format!("the GPU context of device {device} has failed with {code}; its state cannot be saved")
        };
        let open: Vec<usize> =
            (0..self.slots.len()).filter(|device| self.slots[*device].context.is_some()).collect();
        for device in open.iter().copied() {
            if !self.is_idle(device).map_err(|code| failed(device, code))? {
                return Ok(false);
            }
        }
        for device in open {
            self.on(device).and_then(|gpu| gpu.synchronize()).map_err(|code| failed(device, code))?;
        }
        Ok(true)
    }
}
