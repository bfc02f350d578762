//! What is told of GPUs, sandboxes, what is done to them, and what lies in memory for them.

use std::collections::BTreeMap;

use prometheus_client::registry::Unit;
use serde_json::Value;

use super::families::{Families, word};
use crate::daemon::Daemon;
use crate::gpu_map;
use crate::tally;

/// Whoever may have memory of a GPU, as the map of GPU memory calls it, and here.
const HOLDERS: [(&str, &str); 7] = [
    ("program", "programs"),
    ("asleep", "asleep"),
    ("waiting", "waiting-workers"),
    ("contexts", "shared-contexts"),
    ("cache", "caches"),
    ("handed-on", "handed-on"),
    ("other", "other"),
];

pub fn tell(families: &mut Families, daemon: &Daemon) {
    tell_of_gpus(families, daemon);
    tell_of_pool(families, daemon);
    tell_of_work(families);
    tell_of_sandboxes(families, daemon);
    tell_of_caches(families, daemon);
    tell_of_data(families, daemon);
}

fn tell_of_gpus(families: &mut Families, daemon: &Daemon) {
    let gpus = gpu_map::by_gpu(daemon);
    let name = |gpu: &Value| gpu["gpu"].as_str().unwrap_or_default().to_string();
    let help = "GPU memory in use, by who has it: programs (instances of services among them), halves that sleep there, \
                workers that wait, caches, and others.";
    let family = families.gauge("gpu_memory", Some(Unit::Bytes), help);
    for gpu in &gpus {
        let segments = || gpu["segments"].as_array().into_iter().flatten();
        for (kind, holder) in HOLDERS {
            let bytes = segments().filter(|one| one["kind"] == kind).filter_map(|one| one["bytes"].as_u64());
            family.is(&[("gpu", &name(gpu)), ("holder", holder)], bytes.sum());
        }
    }
    let mut one = |metric, field, help| {
        let family = families.gauge(metric, Some(Unit::Bytes), help);
        gpus.iter().for_each(|gpu| family.may_be(&[("gpu", &name(gpu))], gpu[field].as_u64()));
    };
    one("gpu_memory_free", "free_bytes", "GPU memory that nobody has, where a worker has looked.");
    one("gpu_memory_size", "total_bytes", "GPU memory that there is, where a worker has looked.");
    one(
        "gpu_service_memory_limit",
        "service_limit_bytes",
        "GPU memory that all instances of services may have, if there is a limit.",
    );
    let mut waiting: BTreeMap<String, [u64; 2]> = BTreeMap::new();
    for spare in daemon.pool.shown() {
        waiting.entry(spare.gpu).or_default()[usize::from(spare.ready)] += 1;
    }
    let family = families.gauge("waiting_workers", None, "Workers that wait, ready or not yet.");
    for (gpu, counts) in waiting {
        for (ready, count) in ["false", "true"].into_iter().zip(counts) {
            family.is(&[("gpu", &gpu), ("ready", ready)], count);
        }
    }
}

fn tell_of_pool(families: &mut Families, daemon: &Daemon) {
    let targets = daemon.pool.targets();
    let help = "Workers that are to wait: the most of the reasons, as far as there is room.";
    let family = families.gauge("waiting_workers_target", None, help);
    targets.iter().for_each(|target| family.is(&[("gpu", &target.gpu)], target.workers as u64));
    let help = "Why workers are to wait: some always are, so many were taken at once of late, so many programs sleep for \
                which a context is kept, so many processes has an image that was used within a day.";
    let family = families.gauge("waiting_workers_reason", None, help);
    for target in &targets {
        let reasons = [
            ("least", target.least),
            ("recent", target.recent),
            ("asleep", target.asleep),
            ("processes", target.processes),
        ];
        for (reason, count) in reasons {
            family.is(&[("gpu", &target.gpu), ("reason", reason)], count as u64);
        }
    }
    let help = "Whether fewer workers wait than are to, for little of the GPU's memory is free.";
    let family = families.gauge("waiting_workers_short", None, help);
    targets.iter().for_each(|target| family.is(&[("gpu", &target.gpu)], u64::from(target.short_of_memory)));
}

fn tell_of_work(families: &mut Families) {
    let help = "How long operations on sandboxes took; a restore, until the program ran.";
    let family = families.durations("operation", help);
    tally::work().for_each(|(name, work)| family.took(&[("operation", name)], &work.took));
    let help = "How long programs stood still in operations on sandboxes.";
    let family = families.durations("operation_standstill", help);
    tally::work().for_each(|(name, work)| family.took(&[("operation", name)], &work.stood));
    let help = "Operations on sandboxes that had begun and came to nothing.";
    let family = families.counter("operation_failures", None, help);
    tally::work().for_each(|(name, work)| family.count(&[("operation", name)], work.failed.get()));
    let recoveries = tally::recoveries();
    let help = "Programs that were brought back, or started again, after they had failed.";
    families.counter("recoveries", None, help).count(&[], recoveries.done.get());
    let help = "Tries to bring a program back that came to nothing.";
    families.counter("recovery_failures", None, help).count(&[], recoveries.failed.get());
}

fn tell_of_sandboxes(families: &mut Families, daemon: &Daemon) {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for sandbox in daemon.sandboxes.all() {
        *counts.entry(word(sandbox.record().state)).or_default() += 1;
    }
    let family = families.gauge(
        "sandboxes",
        None,
        "Sandboxes, by their state; of those that have ended, the last ones.",
    );
    counts.iter().for_each(|(state, count)| family.is(&[("state", state)], *count));
}

fn tell_of_caches(families: &mut Families, daemon: &Daemon) {
    let caches = daemon.pool.caches.shown();
    let of_gpus = caches["gpus"].as_object().into_iter().flatten().map(|(gpu, cache)| (gpu.as_str(), cache));
    let all: Vec<(&str, &Value)> = std::iter::once(("host", &caches["host"])).chain(of_gpus).collect();
    let mut one = |metric, field, help| {
        let family = families.gauge(metric, Some(Unit::Bytes), help);
        all.iter().for_each(|(place, cache)| family.may_be(&[("place", place)], cache[field].as_u64()));
    };
    one("cache_held", "held_bytes", "Memory that caches of images have, of the host and of each GPU.");
    one("cache_used", "used_bytes", "Memory of caches of images with something in it.");
    one("cache_limit", "limit_bytes", "Memory that caches of images may have.");
}

fn tell_of_data(families: &mut Families, daemon: &Daemon) {
    // None while there is no memory daemon: nobody has wanted anything yet.
    let Some(count) = daemon.data.objects() else { return };
    let bytes = || Some(Unit::Bytes);
    let help = "Declared data that was in memory when it was wanted, or on its way there.";
    families.counter("data_hits", None, help).count(&[], count.hits);
    let help = "Declared data that had to be fetched.";
    families.counter("data_fetches", None, help).count(&[], count.fetches);
    let help = "Declared data that could not be fetched.";
    families.counter("data_fetch_failures", None, help).count(&[], count.failures);
    families
        .counter("data_fetched", bytes(), "Declared data that was fetched.")
        .count(&[], count.fetched_bytes);
    families.gauge("data_held", bytes(), "Memory that declared data has.").is(&[], count.held_bytes);
    families.gauge("data_limit", bytes(), "Memory that declared data may have.").is(&[], count.limit_bytes);
    let (handed_on, moves) = daemon.data.handed_on();
    let [gpu, host] =
        handed_on.iter().fold([0, 0], |[gpu, host], one| [gpu + one.gpu_bytes, host + one.host_bytes]);
    let family = families.gauge("handed_on", bytes(), "Memory of arrays that functions hand on.");
    family.is(&[("place", "gpu")], gpu);
    family.is(&[("place", "host")], host);
    let help = "Arrays that functions hand on, moved for room on a GPU, sent between nodes, or copied by takers on another GPU.";
    let family = families.counter("handed_on_moves", None, help);
    family.count(&[("way", "to-gpu")], moves.to_gpus);
    family.count(&[("way", "to-host")], moves.to_host);
    family.count(&[("way", "from-node")], moves.from_nodes);
    family.count(&[("way", "to-node")], moves.to_nodes);
    family.count(&[("way", "between-gpus")], moves.between_gpus);
}
