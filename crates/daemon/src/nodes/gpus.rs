//! Which GPUs of this node a program is to have that comes with several, where nobody has named them.

use std::cmp::Reverse;

use rekindle_protocol::worker::Status;
use rekindle_store::{Gpu, Image};

use crate::daemon::Daemon;
use crate::error::Result;
use crate::host::gpu;
use crate::images::{machine, preflight};

/// The variable with the settings of emulated GPUs of which a choice says nothing.
const SETTINGS: &str = "REKINDLE_EMULATED";

/// As many as an image is of, of the models that it is of, those with the most memory free; all of the machine's are asked. With
/// one GPU, or where too few fit, the usual choice, which is checked as any.
pub(super) fn choose(daemon: &Daemon, image: &Image) -> Result<String> {
    let wanted = &image.manifest().gpus;
    if wanted.len() < 2 {
        return gpu::choose(None);
    }
    let all = gpu::all()?;
    let worker = daemon.pool.spares.start(&all, Box::new(|_| ()))?;
    let status = worker.first_status();
    worker.kill();
    let settings = std::env::var(SETTINGS).unwrap_or_default();
    Ok(match places(wanted, &preflight::gpus_bytes(image)?, &status?) {
        Some(places) => gpu::some_of(&all, &places, &settings),
        None => all,
    })
}

/// A GPU for each that is wanted, which needs so much memory, by the places where they were found; none if there is not one for
/// each.
fn places(wanted: &[Gpu], needed: &[u64], found: &Status) -> Option<Vec<usize>> {
    let gpus = machine::gpus(found);
    let free = |place: usize| found.free_bytes.get(place).copied().unwrap_or_default();
    let mut left: Vec<usize> = (0..gpus.len()).collect();
    // Of those with as much the first.
    left.sort_by_key(|place| Reverse(free(*place)));
    let needs = |which: usize| needed.get(which).copied().unwrap_or_default();
    // Whoever needs most has the first choice.
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by_key(|which| Reverse(needs(*which)));
    let mut chosen = vec![0; wanted.len()];
    for which in order {
        let fits = |place: &usize| {
            (gpus[*place].kind, &gpus[*place].model) == (wanted[which].kind, &wanted[which].model)
        };
        chosen[which] = left.remove(left.iter().position(fits)?);
    }
    Some(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_device::{DeviceInfo, GpuKind};

    fn found(gpus: &[(&str, u64)]) -> Status {
        let device = |(name, _): &(&str, u64)| DeviceInfo {
            kind: GpuKind::Nvidia,
            index: 0,
            name: name.to_string(),
            uuid: [0; 16],
            pci_bus_id: String::new(),
            total_memory: 80,
            compute_capability: (9, 0),
            attributes: Vec::new(),
            stream_priorities: (0, 0),
            limits: Vec::new(),
        };
        Status {
            devices: gpus.iter().map(device).collect(),
            free_bytes: gpus.iter().map(|(_, free)| *free).collect(),
            ..Status::default()
        }
    }

    #[test]
    fn gpus_are_taken_by_model_and_by_the_memory_that_is_free() {
        let there = found(&[("A", 10), ("B", 70), ("A", 60), ("A", 50)]);
        let choice = |wanted: &[(&str, u64)]| {
            let needed: Vec<u64> = wanted.iter().map(|(_, needed)| *needed).collect();
            places(&machine::gpus(&found(wanted)), &needed, &there)
        };
        assert_eq!(choice(&[("A", 5), ("A", 5)]), Some(vec![2, 3]));
        assert_eq!(choice(&[("A", 5), ("A", 55)]), Some(vec![3, 2]));
        assert_eq!(choice(&[("A", 5), ("B", 5)]), Some(vec![2, 1]));
        assert_eq!(choice(&[("B", 5), ("B", 5)]), None);
    }
}
