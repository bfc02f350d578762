//! What processes have of NVIDIA GPUs' memory, their contexts and code included.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rekindle_driver::Helper;

/// For how long the driver is not asked again.
const FRESH: Duration = Duration::from_millis(500);

/// As it was a moment ago.
#[derive(Default)]
pub struct GpuUsage {
    known: Mutex<Option<(Instant, HashMap<i32, u64>)>>,
}

impl GpuUsage {
    /// Bytes of a process; none where the driver does not tell, as in a container.
    pub fn of(&self, driver: &Helper, pid: i32) -> Option<u64> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref().is_none_or(|(at, _)| at.elapsed() > FRESH) {
            let used = driver.usage().unwrap_or_else(|error| {
                log::debug!("what processes have on the GPUs is not known: {error}");
                Vec::new()
            });
            let mut all = HashMap::new();
            used.iter().for_each(|one| *all.entry(one.pid).or_default() += one.bytes);
            *known = Some((Instant::now(), all));
        }
        known.as_ref().and_then(|(_, all)| all.get(&pid).copied())
    }
}
