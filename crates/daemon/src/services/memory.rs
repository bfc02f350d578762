//! How much GPU memory instances need, and have.

use std::sync::Arc;

use rekindle_gateway::{Datum, Holding, MemoryNeed, Source, Tenant};
use rekindle_protocol::daemon::{Level, Mode};
use rekindle_protocol::service_name::ServiceName;
use rekindle_protocol::worker::DeclaredData;
use rekindle_store::Image;

use crate::daemon::Daemon;
use crate::error::Result;
use crate::host::gpu;
use crate::images::declared::{self, Row};
use crate::images::metadata::ImageMetadata;
use crate::images::{machine, preflight};
use crate::sandboxes::Sandbox;
use crate::sandboxes::record::owner;
use crate::services::ServiceError;
use crate::services::record::ServiceRecord;

/// The most that a context and its code were found to take of an NVIDIA GPU, where the driver does not tell what a process has.
const CONTEXT: u64 = 844 << 20;

/// Where an instance is to be, and whose it is.
pub struct Whose<'w> {
    /// The image's GPU if none is given.
    pub gpu: Option<&'w str>,
    /// With whom it shares a context.
    pub sharers: Option<&'w str>,
    pub service: &'w ServiceName,
}

/// What an instance of an image is going to need, with these objects, which have so many bytes.
pub fn need(
    image: &Image,
    metadata: &ImageMetadata,
    whose: &Whose<'_>,
    objects: Vec<(String, u64)>,
) -> Result<MemoryNeed> {
    if machine::shown_mode(image.manifest().mode) == Mode::Driver {
        // The driver brings contexts back with all else.
        let program = metadata.driver.as_ref().map_or(0, |half| half.bytes());
        return Ok(MemoryNeed { gpu: gpu::first(&metadata.gpu).into(), program, ..MemoryNeed::default() });
    }
    let gpu = gpu::choose(Some(whose.gpu.unwrap_or(&metadata.gpu)))?;
    let contexts = match whose.sharers {
        // The context is there before it, or is to be for others, too.
        Some(_) => 0,
        None => metadata.clients.len().max(1) as u64,
    };
    let owner =
        owner(whose.service.tenant.as_deref(), whose.sharers, Some(&whose.service.name)).unwrap_or_default();
    let of = |url, version, bytes| Datum { owner: owner.clone(), url, version, bytes, is_maker: false };
    let mut holding = Holding::from(preflight::all_gpu_bytes(image)?);
    for Row { url, version, bytes, .. } in declared::read(image)? {
        holding.own = holding.own.saturating_sub(bytes);
        holding.add(of(url, Some(version), bytes));
    }
    objects.into_iter().for_each(|(url, bytes)| holding.add(of(url, None, bytes)));
    let Holding { own, data } = holding;
    let context = contexts * context(&gpu);
    Ok(MemoryNeed { program: own, data, context, gpu: gpu::first(&gpu).into() })
}

/// What an instance of a service that is there is going to need.
pub fn need_of(daemon: &Daemon, record: &ServiceRecord, objects: Vec<(String, u64)>) -> Result<MemoryNeed> {
    let source = &record.source;
    let image = daemon.store.image(&source.image)?;
    let (gpu, sharers) = (source.gpu.as_deref(), source.tenant.as_deref());
    let whose = Whose { gpu, sharers, service: &record.service() };
    need(&image, &ImageMetadata::read(&image)?, &whose, objects)
}

/// No instance could ever have what is more than all may have together.
pub fn check(daemon: &Daemon, image: &str, tenant: Option<&Arc<Tenant>>, source: &Source) -> Result<()> {
    let (needed, limit) = (source.need.alone(), daemon.gateway.memory().limit());
    if let Some((name, most)) = tenant.and_then(|tenant| Some((&tenant.name, tenant.quota().memory_bytes?)))
        && needed > most
    {
        let reason = format!(
            "an instance needs {} MB of GPU memory, and services of the tenant {name:?} may have {} MB; give it more by \
             `rekindle tenant set {name} --memory`",
            needed.div_ceil(1 << 20),
            most >> 20
        );
        return Err(ServiceError::CannotServe { image: image.to_string(), reason }.into());
    }
    let Some(limit) = limit.filter(|limit| needed > *limit) else { return Ok(()) };
    let reason = format!(
        "an instance needs {} MB of GPU memory, and services may have {} MB of each GPU; start rekindled with a larger \
         --service-memory",
        needed.div_ceil(1 << 20),
        limit >> 20
    );
    Err(ServiceError::CannotServe { image: image.to_string(), reason }.into())
}

/// What a sandbox has on its GPU; none if a worker has something else to do than to tell.
pub fn held(daemon: &Daemon, sandbox: &Sandbox) -> Option<Holding> {
    let record = sandbox.record();
    if let Some(asleep) = &record.asleep {
        return Some(Holding::from(if asleep.level == Level::Gpu { asleep.bytes } else { 0 }));
    }
    let used = |pid: i32| daemon.gpu_usage.of(&daemon.driver, pid);
    if record.mode == Mode::Driver {
        let cpu = sandbox.cpu("looked at").ok()?;
        return cpu.pids().into_values().map(used).sum::<Option<u64>>().map(Holding::from);
    }
    let workers = sandbox.live_workers();
    let owner = record.owner_of_several();
    let mut holding = Holding::default();
    for worker in &workers {
        let status = worker.glance()?;
        let datum = |owner: &String, one: DeclaredData| {
            let DeclaredData { url, version, bytes, is_shared } = one;
            // What is on its way may be another one's, and is no memory of the program's yet.
            let is_maker = !is_shared && version.is_some();
            Datum { owner: owner.clone(), url, version, bytes, is_maker }
        };
        let data = owner.iter().flat_map(|owner| status.declared.iter().map(|one| datum(owner, one.clone())));
        let data = Holding { own: 0, data: data.collect() };
        // What is mapped of a cache is the cache's.
        let own = status.device_bytes.saturating_sub(status.shared_bytes).saturating_sub(data.made());
        // It may count what several have for each of them.
        let process = || used(worker.pid()).filter(|_| record.gpu.starts_with("nvidia") && data.is_none());
        holding.own += match record.tenant {
            Some(_) => own + context(&record.gpu) / sharers(daemon, worker.pid()),
            None => process().unwrap_or(own + context(&record.gpu)),
        };
        holding.data.extend(data.data);
    }
    Some(holding)
}

/// How many programs have their contexts in this process.
fn sharers(daemon: &Daemon, pid: i32) -> u64 {
    let has = |sandbox: &Sandbox| sandbox.live_workers().iter().any(|worker| worker.pid() == pid);
    daemon.sandboxes.all().iter().filter(|sandbox| has(sandbox)).count().max(1) as u64
}

/// What the contexts of a process take of such GPUs. The emulated one's take nothing.
pub fn context(gpu: &str) -> u64 {
    if gpu.starts_with("nvidia") { CONTEXT * gpu.split(',').count() as u64 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_of_real_gpus_are_counted() {
        assert_eq!(context("nvidia:3"), CONTEXT);
        assert_eq!(context("nvidia:0,1"), 2 * CONTEXT);
        assert_eq!(context("emulated:memory=1G"), 0);
    }
}
