//! Which GPUs of this node a program is to have that comes with several, where nobody has named them.

use rekindle_protocol::worker::Status;
use rekindle_store::{Gpu, Image};

use crate::daemon::Daemon;
use crate::error::Result;
use crate::host::gpu;
use crate::images::machine;

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
    Ok(match places(wanted, &status?) {
        Some(places) => gpu::some_of(&all, &places, &settings),
        None => all,
    })
}

/// A GPU for each that is wanted, by the places where they were found; none if there is not one for each.
fn places(wanted: &[Gpu], found: &Status) -> Option<Vec<usize>> {
    let gpus = machine::gpus(found);
    let free = |place: &usize| found.free_bytes.get(*place).copied().unwrap_or_default();
    let mut left: Vec<usize> = (0..gpus.len()).collect();
    // Of those with as much the first.
    left.sort_by_key(|place| std::cmp::Reverse(free(place)));
    let take = |wanted: &Gpu| {
        let fits = |place: &usize| (gpus[*place].kind, &gpus[*place].model) == (wanted.kind, &wanted.model);
        left.iter().position(fits).map(|at| left.remove(at))
    };
    let mut chosen: Vec<usize> = wanted.iter().map(take).collect::<Option<_>>()?;
    if wanted.iter().all(|gpu| gpu.model == wanted[0].model) {
        // Any of them may be any of the program's: in the machine's order.
        chosen.sort_unstable();
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
        let wanted = |models: &[(&str, u64)]| machine::gpus(&found(models));
        let there = found(&[("A", 10), ("B", 70), ("A", 60), ("A", 50)]);
        assert_eq!(places(&wanted(&[("A", 0), ("A", 0)]), &there), Some(vec![2, 3]));
        assert_eq!(places(&wanted(&[("A", 0), ("B", 0)]), &there), Some(vec![2, 1]));
        assert_eq!(places(&wanted(&[("B", 0), ("B", 0)]), &there), None);
    }
}
