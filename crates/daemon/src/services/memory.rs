//! How much GPU memory instances need, and have.

use std::sync::Arc;

use rekindle_gateway::{Need, Source, Tenant};
use rekindle_protocol::daemon::{Level, Mode};
use rekindle_store::Image;

use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::host::gpu;
use crate::images::metadata::ImageMetadata;
use crate::images::{machine, preflight};
use crate::sandboxes::Sandbox;

/// The most that a context and its code were found to take of an NVIDIA GPU, where the driver does not tell what a process has.
const CONTEXT: u64 = 844 << 20;

/// What an instance of an image is going to need on this GPU, or on the image's, with data of so many bytes.
pub fn need(
    image: &Image,
    metadata: &ImageMetadata,
    (given, tenant): (Option<&str>, Option<&str>),
    data: u64,
) -> Result<Need> {
    if machine::shown_mode(image.manifest().mode) == Mode::Driver {
        // The driver brings contexts back with all else.
        let program = metadata.driver.as_ref().map_or(0, |half| half.bytes());
        return Ok(Need { gpu: metadata.gpu.clone(), program, context: 0 });
    }
    let gpu = gpu::choose(Some(given.unwrap_or(&metadata.gpu)))?;
    let contexts = match tenant {
        // The context is there before it, or is to be for others, too.
        Some(_) => 0,
        None => metadata.clients.len().max(1) as u64,
    };
    let program = preflight::gpu_bytes(image)? + data;
    Ok(Need { program, context: contexts * context(&gpu), gpu })
}

/// No instance could ever have what is more than all may have together.
pub fn check(daemon: &Daemon, image: &str, tenant: Option<&Arc<Tenant>>, source: &Source) -> Result<()> {
    let (needed, limit) = (source.need.program, daemon.gateway.memory().limit());
    if let Some((name, most)) = tenant.and_then(|tenant| Some((&tenant.name, tenant.quota().memory_bytes?)))
        && needed > most
    {
        let reason = format!(
            "an instance needs {} MB of GPU memory, and services of the tenant {name:?} may have {} MB; give it more by \
             `rekindle tenant set {name} --memory`",
            needed.div_ceil(1 << 20),
            most >> 20
        );
        return Err(Error::CannotServe { image: image.to_string(), reason });
    }
    let Some(limit) = limit.filter(|limit| needed > *limit) else { return Ok(()) };
    let reason = format!(
        "an instance needs {} MB of GPU memory, and services may have {} MB of each GPU; start rekindled with a larger \
         --service-memory",
        needed.div_ceil(1 << 20),
        limit >> 20
    );
    Err(Error::CannotServe { image: image.to_string(), reason })
}

/// What a sandbox has on its GPU, bytes; none if a worker has something else to do than to tell.
pub fn held(daemon: &Daemon, sandbox: &Sandbox) -> Option<u64> {
    let record = sandbox.record();
    if let Some(asleep) = &record.asleep {
        return Some(if asleep.level == Level::Gpu { asleep.bytes } else { 0 });
    }
    let used = |pid: i32| daemon.gpu_usage.of(&daemon.driver, pid);
    if record.mode == Mode::Driver {
        let cpu = sandbox.cpu("looked at").ok()?;
        return cpu.pids().into_values().map(used).sum();
    }
    let workers = sandbox.live_workers();
    let mut bytes = 0;
    for worker in &workers {
        let status = worker.glance()?;
        // What is mapped of a cache is the cache's.
        let own = status.device_bytes.saturating_sub(status.shared_bytes);
        let process = || used(worker.pid()).filter(|_| record.gpu.starts_with("nvidia"));
        bytes += match record.tenant {
            Some(_) => own + context(&record.gpu) / sharers(daemon, worker.pid()),
            None => process().unwrap_or(own + context(&record.gpu)),
        };
    }
    Some(bytes)
}

/// How many programs have their contexts in this process.
fn sharers(daemon: &Daemon, pid: i32) -> u64 {
    let has = |sandbox: &Sandbox| sandbox.live_workers().iter().any(|worker| worker.pid() == pid);
    daemon.sandboxes.all().iter().filter(|sandbox| has(sandbox)).count().max(1) as u64
}

/// What a context takes of such a GPU. The emulated one's takes nothing.
pub fn context(gpu: &str) -> u64 {
    if gpu.starts_with("nvidia") { CONTEXT } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_of_real_gpus_are_counted() {
        assert_eq!(context("nvidia:3"), CONTEXT);
        assert_eq!(context("emulated:memory=1G"), 0);
    }
}
