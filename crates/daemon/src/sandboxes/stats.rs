//! What the programs of sandboxes use just now.

use rekindle_protocol::daemon::{State, Stats};

use crate::host::usage;
use crate::sandboxes::Sandbox;
use crate::sandboxes::recovery::Recovery;

impl Sandbox {
    /// A worker that has something else to do is not waited for.
    pub fn stats(&self) -> Stats {
        let record = self.record();
        let cpu = self.cpu("looked at").ok();
        let used = usage::of(cpu.into_iter().flat_map(|cpu| cpu.pids().into_values()));
        let workers = self.live_workers();
        let told: Vec<_> = match record.state {
            State::Running | State::Asleep => workers.iter().filter_map(|worker| worker.glance()).collect(),
            _ => Vec::new(),
        };
        let known = !told.is_empty() && told.len() == workers.len();
        let sum =
            |of: fn(&rekindle_protocol::worker::Status) -> u64| known.then(|| told.iter().map(of).sum());
        let portion = record.share().map(|share| share.portion);
        Stats {
            name: record.name,
            state: record.state,
            asleep: record.asleep.as_ref().map(|asleep| asleep.level),
            processes: used.processes,
            processor_us: used.processor_us,
            host_bytes: used.memory.filter(|_| used.processes > 0),
            device_bytes: sum(|status| status.device_bytes),
            shared_bytes: sum(|status| status.shared_bytes),
            unbacked_bytes: portion.and_then(|_| sum(|status| status.unbacked_bytes)),
            pool_bytes: portion.and_then(|_| sum(|status| status.pool_bytes)),
            pool_hits: portion.and_then(|_| sum(|status| status.pool_hits)),
            pool_misses: portion.and_then(|_| sum(|status| status.pool_misses)),
            pinned_bytes: sum(|status| status.pinned_bytes),
            to_gpu_bytes: sum(|status| status.to_gpu_bytes),
            from_gpu_bytes: sum(|status| status.from_gpu_bytes),
            unmade_graphs: sum(|status| status.unmade),
            link_waited_us: portion.and_then(|_| sum(|status| status.link_waited_us)),
            link_weight: portion.map(|portion| portion.link_weight),
            sm_share: portion.and_then(|portion| portion.sm_share),
            sm_weight: portion.and_then(|portion| portion.sm_weight),
            sm_most: portion.and_then(|portion| portion.sm_most),
            multiprocessors: portion.and_then(|_| sum(|status| status.multiprocessors.into())),
            mending: self.mending_shown(),
            recovery: record.recovery.as_ref().map(Recovery::shown),
        }
    }
}
