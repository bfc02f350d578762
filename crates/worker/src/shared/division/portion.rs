//! Parts of the device that streams are made on.

use std::sync::Arc;

use rekindle_cuda::CuResult;
use rekindle_device::{Device, Part, Result};

/// So many parts that nobody has streams on are kept where shares change all the time. Each takes 4 to 6 MB of the GPU.
const KEPT: usize = 16;

/// Multiprocessors that streams are made on, until nobody has such streams.
pub(crate) struct Portion {
    device: Arc<dyn Device>,
    part: Part,
    units: u64,
}

impl Portion {
    /// What makes no unit goes with the last one.
    fn new(device: &Arc<dyn Device>, units: u64) -> Result<Arc<Portion>> {
        let all = device.units().unwrap_or_default();
        let has_last = units >> all.count.saturating_sub(1) & 1 == 1;
        let part = device.part_create(units | if has_last { all.rest() } else { 0 })?;
        Ok(Arc::new(Portion { device: device.clone(), part, units }))
    }

    pub(crate) fn part(&self) -> Part {
        self.part
    }

    pub(super) fn units(&self) -> u64 {
        self.units
    }

    pub(super) fn multiprocessors(&self) -> u32 {
        let all = self.device.units().unwrap_or_default();
        let has_last = self.units >> all.count.saturating_sub(1) & 1 == 1;
        all.multiprocessors_of(self.units | if has_last { all.rest() } else { 0 })
    }
}

impl Drop for Portion {
    fn drop(&mut self) {
        if let Err(code) = self.device.bind().and_then(|()| self.device.part_destroy(self.part)) {
            log::warn!("a part of the multiprocessors stays: {code}");
        }
    }
}

/// The parts that there are, by their units: who has the same units has the same part, and what was given back is there
/// when it is wanted again.
#[derive(Default)]
pub(super) struct Portions {
    /// The one that was asked for last is last.
    known: Vec<Arc<Portion>>,
}

impl Portions {
    pub(super) fn of(
        &mut self,
        device: &Arc<dyn Device>,
        units: u64,
    ) -> std::result::Result<Arc<Portion>, CuResult> {
        let portion = match self.known.iter().position(|known| known.units == units) {
            Some(at) => self.known.remove(at),
            None => Portion::new(device, units)?,
        };
        self.known.push(portion.clone());
        Ok(portion)
    }

    /// Gives back what nobody has, but for those asked for last where they are to be kept.
    pub(super) fn trim(&mut self, keep: bool) {
        let mut surplus = self.idle().saturating_sub(if keep { KEPT } else { 0 });
        self.known.retain(|portion| {
            let goes = surplus > 0 && Arc::strong_count(portion) == 1;
            surplus -= usize::from(goes);
            !goes
        });
    }

    fn idle(&self) -> usize {
        self.known.iter().filter(|portion| Arc::strong_count(portion) == 1).count()
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.known.len()
    }
}
