//! GPU memory as a map: who has how much of each GPU.
//!
//! What is known adds up to less than what a real GPU has in use, by what other programs and the driver have: `other`. An
//! emulated GPU that workers do not have in common is free but for what is known.

use std::collections::BTreeMap;

use rekindle_protocol::worker::Status;
use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::services::{context, held};

#[derive(Default)]
struct Gpu {
    /// Its model, and how much memory it has.
    model: Option<(String, u64)>,
    /// The least that a worker has found free.
    free: Option<u64>,
    segments: Vec<Segment>,
}

struct Segment {
    kind: &'static str,
    name: String,
    bytes: u64,
}

impl Gpu {
    fn add(&mut self, kind: &'static str, name: impl Into<String>, bytes: u64) {
        self.segments.push(Segment { kind, name: name.into(), bytes });
    }

    /// A worker that is there has said what it sees.
    fn seen(&mut self, status: &Status) {
        let Some(device) = status.devices.first() else { return };
        self.model = Some((device.name.clone(), device.total_memory));
        // What keeps a program that sleeps has looked before that.
        let free = status.free_bytes.first().copied().filter(|_| !status.asleep);
        self.free = self.free.into_iter().chain(free).min();
    }

    /// What others have and what is free; neither is known without a worker that has looked.
    fn rest(&self) -> Option<(u64, u64)> {
        let (_, total) = self.model.as_ref()?;
        let known: u64 = self.segments.iter().map(|segment| segment.bytes).sum();
        let other = total.saturating_sub(self.free?).saturating_sub(known);
        Some((other, total.saturating_sub(known + other)))
    }

    fn shown(mut self, name: &str, limit: Option<u64>) -> Value {
        let rest = self.rest();
        if let Some((other, _)) = rest.filter(|(other, _)| *other > 0) {
            self.add("other", "", other);
        }
        let segment = |one: &Segment| json!({ "kind": one.kind, "name": one.name, "bytes": one.bytes });
        json!({
            "gpu": name,
            "model": self.model.as_ref().map(|(model, _)| model),
            "total_bytes": self.model.as_ref().map(|(_, total)| total),
            "free_bytes": rest.map(|(_, free)| free),
            "service_limit_bytes": limit,
            "segments": self.segments.iter().map(segment).collect::<Vec<_>>(),
        })
    }
}

pub fn by_gpu(daemon: &Daemon) -> Vec<Value> {
    let mut gpus: BTreeMap<String, Gpu> = BTreeMap::new();
    let mut serving = Vec::new();
    let mut live = daemon.sandboxes.all();
    live.retain(|sandbox| sandbox.is_live());
    live.sort_by_key(|sandbox| sandbox.name());
    for sandbox in live {
        let record = sandbox.record();
        let gpu = gpus.entry(record.gpu.clone()).or_default();
        for worker in sandbox.live_workers() {
            serving.push(worker.pid());
            worker.glance().iter().for_each(|status| gpu.seen(status));
        }
        let kind = if record.asleep.is_some() { "asleep" } else { "program" };
        let held = held(daemon, &sandbox).map(|holding| holding.made());
        if let Some(bytes) = held.filter(|bytes| *bytes > 0) {
            gpu.add(kind, record.name, bytes);
        }
    }
    let of_process = |name: &str, pid: i32| {
        let used = daemon.gpu_usage.of(&daemon.driver, pid).filter(|_| name.starts_with("nvidia"));
        used.unwrap_or_else(|| context(name))
    };
    for (spare, status) in daemon.pool.glance() {
        let gpu = gpus.entry(spare.gpu.clone()).or_default();
        status.iter().for_each(|status| gpu.seen(status));
        gpu.add("waiting", spare.pid.to_string(), of_process(&spare.gpu, spare.pid));
    }
    // One with programs counts with those.
    for shared in daemon.pool.contexts.shown().into_iter().filter(|shared| !serving.contains(&shared.pid)) {
        let bytes = of_process(&shared.gpu, shared.pid);
        gpus.entry(shared.gpu).or_default().add("contexts", shared.tenant, bytes);
    }
    for (name, cache) in daemon.pool.caches.shown()["gpus"].as_object().into_iter().flatten() {
        if let Some(bytes) = cache["held_bytes"].as_u64().filter(|bytes| *bytes > 0) {
            gpus.entry(name.clone()).or_default().add("cache", "", bytes);
        }
    }
    // On which of several GPUs an owner's arrays lie is not known.
    if let (1, Some(gpu)) = (gpus.len(), gpus.values_mut().next()) {
        for count in daemon.data.handed_on().0.into_iter().filter(|count| count.gpu_bytes > 0) {
            gpu.add("handed-on", count.owner, count.gpu_bytes);
        }
    }
    let limit = daemon.gateway.memory().limit();
    gpus.into_iter().map(|(name, gpu)| gpu.shown(&name, limit)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(total: u64, free: u64, known: &[u64]) -> Gpu {
        let mut gpu = Gpu { model: Some(("H200".into(), total)), free: Some(free), segments: Vec::new() };
        known.iter().for_each(|bytes| gpu.add("program", "", *bytes));
        gpu
    }

    #[test]
    fn what_nobody_is_known_to_have_is_others_or_free() {
        assert_eq!(gpu(100, 50, &[20, 10]).rest(), Some((20, 50)));
        // Each has all of an emulated one.
        assert_eq!(gpu(100, 70, &[20, 30]).rest(), Some((0, 50)));
        assert_eq!(gpu(100, 0, &[80, 80]).rest(), Some((0, 0)));
        assert_eq!(Gpu::default().rest(), None);
        let shown = gpu(100, 50, &[20]).shown("nvidia:0", None);
        let sum: u64 =
            shown["segments"].as_array().unwrap().iter().map(|one| one["bytes"].as_u64().unwrap()).sum();
        assert_eq!(sum + shown["free_bytes"].as_u64().unwrap(), 100);
    }
}
