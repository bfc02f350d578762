//! Services: images whose programs answer HTTP requests, instances of which come and go with those.
//!
//! The [gateway](rekindle_gateway) has the requests and decides; here is what it knows nothing of: images, sandboxes, and
//! what is kept for the next daemon. That one finds instances again by the service that their records name.

mod canary;
mod error;
mod instances;
mod memory;
mod naming;
mod places;
mod record;
mod resume;
mod sizes;
mod socket;
mod variants;
mod workflow_record;
mod workflows;

use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{Backlog, listen as lengthen};
use rekindle_gateway::{Plan, Service, Source, Tenant, Tls};
use rekindle_protocol::daemon::{Level, Limits, Mode};
use rekindle_protocol::network::Port;
use rekindle_protocol::service::{ServiceRequest, SleepStage, TlsFiles, TlsRequest};
use rekindle_protocol::service_name::ServiceName;
use rekindle_protocol::tenant::NOBODY;
use rekindle_sandbox::who_listens;
use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::host::records::StoredRecord;
use crate::images::metadata::ImageMetadata;
use crate::lifecycle::{portions, slices};
use crate::network::{self, NetworkDialer};
use crate::reply::Reply;
use crate::tenants;
use instances::InstanceMaker;
use memory::Whose;
use record::ServiceRecord;
use variants::PendingVariants;

pub use error::ServiceError;
pub use memory::{context, held};
pub use resume::resume;
pub use workflows::serve as serve_workflow;

/// How often a command that waits is looked for, which may be gone.
const LOOK: Duration = Duration::from_millis(200);
/// How many clients the kernel keeps until they are let in.
const BACKLOG: i32 = 4096;

/// What is not said of a new service.
const USUAL: Plan = Plan {
    min: 0,
    max: 4,
    concurrency: 8,
    idle_ms: 30_000,
    idle_end_ms: 300_000,
    stages: Vec::new(),
    context_ms: 0,
    queue: 100,
    timeout_ms: 60_000,
};

/// Makes a service, or has another image take the place of the one that it has. Returns when an instance listens.
pub fn serve(daemon: &Arc<Daemon>, name: &str, image: &str, request: &ServiceRequest) -> Result<Value> {
    naming::check(name)?;
    let name = &naming::meant(daemon, name, request.tenant.as_deref())?;
    let _serving = daemon.serving.take(name)?;
    if daemon.gateway.workflow(name).is_some() {
        return Err(ServiceError::IsWorkflow { name: name.clone() }.into());
    }
    if let Some(share) = request.canary {
        return canary::serve(daemon, name, image, request, share);
    }
    let former = match daemon.gateway.get(name) {
        Some(service) => Some((service, load(daemon, name)?)),
        None => None,
    };
    let kept = former.as_ref().map(|(_, record)| record);
    let membership = match (&name.tenant, kept) {
        (Some(tenant), None) => Some(tenants::join(daemon, tenant, &name.name)?),
        _ => None,
    };
    let plan = plan(request, kept.map_or(&USUAL, |record| &record.plan));
    plan.check().map_err(|source| ServiceError::BadPlan { name: name.clone(), source })?;
    let tls = tls(request.tls.as_ref(), kept.and_then(|record| record.tls.as_ref()));
    let certificate = certificate(daemon, name, tls.as_ref())?;
    let wanted = request.port.or(kept.map(|record| record.port));
    let mut port = wanted.ok_or_else(|| ServiceError::NoPort { name: name.clone() })?;
    let tenant = former.as_ref().and_then(|(service, _)| service.tenant());
    let tenant = tenant.or(membership.as_ref().map(|one| &one.tenant));
    let source = source(daemon, image, request, kept, (name, port))?;
    memory::check(daemon, image, tenant, &source)?;
    port.to = source.to;
    let is_there =
        |record: &&ServiceRecord| (record.port.address, record.port.port) == (port.address, port.port);
    let listener = match kept.filter(is_there) {
        Some(_) => None,
        None => Some(listen(name, &mut port)?),
    };
    let service = match &former {
        Some((service, _)) => service.clone(),
        None => make(daemon, (name, &stem(name)), tenant, &plan, None)?.0,
    };
    match kept {
        Some(record) if record.source.makes_the_same(&source) && !record.draining => {
            service.replan(plan.clone())
        }
        _ => service.roll_out(source.clone(), plan.clone()).map_err(|error| ServiceError::CannotServe {
            image: image.to_string(),
            reason: error.to_string(),
        })?,
    }
    let canaries = kept.map_or(0, |record| record.canaries);
    let mut record = ServiceRecord {
        name: name.name.clone(),
        tenant: name.tenant.clone(),
        port,
        source,
        plan,
        tls,
        canary: None,
        canaries,
        draining: false,
    };
    canary::take_back(&service, &mut record);
    let kept = record.save(&daemon.paths.services());
    if former.is_none() {
        if let Err(error) = kept {
            service.end_all();
            return Err(error);
        }
        daemon.gateway.add(&service, membership);
    } else {
        kept?;
    }
    let served = |source| Error::system("serve a port", source);
    daemon.gateway.secure(name, certificate).map_err(served)?;
    if let Some(listener) = listener {
        daemon.gateway.listen(name, listener).map_err(served)?;
    }
    if former.is_none() {
        socket::listen(daemon, name);
    }
    sizes::learn(daemon, &record);
    log::info!("the service {name} is of the image {image:?}, at port {}", record.port.port);
    Ok(shown(daemon, &service, &record))
}

/// All, or those of a tenant, or of nobody.
pub fn list(daemon: &Daemon, tenant: Option<&str>) -> Result<Value> {
    let whose = tenant.map(naming::whose);
    if let Some(Some(tenant)) = whose {
        tenants::find(daemon, tenant)?;
    }
    let records = ServiceRecord::load_all(&daemon.paths.services())?;
    let mut records: BTreeMap<ServiceName, ServiceRecord> =
        records.into_iter().map(|record| (record.service(), record)).collect();
    let mut all = daemon.gateway.all();
    all.retain(|service| whose.is_none_or(|whose| service.name.tenant.as_deref() == whose));
    all.iter().for_each(|service| service.measure());
    let services: Vec<Value> = all
        .iter()
        .filter_map(|service| Some(shown(daemon, service, &records.remove(&service.name)?)))
        .collect();
    let workflows = workflows::list(daemon, whose)?;
    let memory = daemon.gateway.memory();
    let memory = json!({ "limit_bytes": memory.limit(), "used_bytes": memory.used() });
    let access_log = daemon.access_log.as_ref().map(|log| log.shown());
    Ok(json!({ "services": services, "workflows": workflows, "memory": memory, "access_log": access_log }))
}

/// Names of the images that services have.
pub fn images(daemon: &Daemon) -> impl Iterator<Item = String> {
    let of = |service: Arc<Service>| {
        let canary = service.canary().and_then(|canary| canary.service.source());
        let sources = service.source().into_iter().chain(canary);
        sources.flat_map(|source| source.images().map(|variant| variant.image).collect::<Vec<_>>())
    };
    daemon.gateway.all().into_iter().flat_map(of)
}

/// Changes the numbers and times of a service's plan that are given.
pub fn scale(
    daemon: &Daemon,
    (name, tenant): (&str, Option<&str>),
    wanted: &ServiceRequest,
) -> Result<Value> {
    let name = &naming::meant(daemon, name, tenant)?;
    let _serving = daemon.serving.take(name)?;
    let service = find(daemon, name)?;
    let mut record = load(daemon, name)?;
    record.plan = plan(wanted, &record.plan);
    record.plan.check().map_err(|source| ServiceError::BadPlan { name: name.clone(), source })?;
    record.save(&daemon.paths.services())?;
    service.replan(record.plan.clone());
    if let Some(canary) = service.canary().filter(|canary| canary.stopped().is_none()) {
        canary.service.replan(canary::plan(&record.plan));
    }
    Ok(shown(daemon, &service, &record))
}

/// Has no more requests come, and waits until those that there are have been answered and all instances have ended.
pub fn drain(
    daemon: &Daemon,
    (name, tenant): (&str, Option<&str>),
    (remove, now): (bool, bool),
    reply: &Reply<'_>,
) -> Result<Value> {
    let name = &naming::meant(daemon, name, tenant)?;
    let _serving = daemon.serving.take(name)?;
    if remove && let Some(workflow) = daemon.gateway.workflow(name) {
        return workflows::remove(daemon, &workflow, now, reply);
    }
    let service = find(daemon, name)?;
    let mut record = ServiceRecord { draining: true, ..load(daemon, name)? };
    let canary = canary::take_back(&service, &mut record);
    record.save(&daemon.paths.services())?;
    if remove {
        daemon.gateway.close(name);
        socket::remove(daemon, name);
    }
    service.drain();
    reply.progress("drain", 0, 0);
    for service in std::iter::once(&service).chain(&canary) {
        if now {
            service.end_all();
        }
        while !service.wait_drained(LOOK) {
            // It goes on with that.
            reply.check_wanted()?;
        }
    }
    let last = shown(daemon, &service, &record);
    if remove {
        daemon.gateway.remove(name);
        ServiceRecord::remove(&daemon.paths.services(), &name.word())?;
    }
    Ok(last)
}

/// What the names of a service's instances begin with.
fn stem(name: &ServiceName) -> String {
    format!("{}-", name.word())
}

fn make(
    daemon: &Arc<Daemon>,
    (name, stem): (&ServiceName, &str),
    tenant: Option<&Arc<Tenant>>,
    plan: &Plan,
    source: Option<&Source>,
) -> Result<(Arc<Service>, Arc<InstanceMaker>)> {
    let failed = |source| Error::system("serve", source);
    let maker = Arc::new(InstanceMaker {
        daemon: daemon.clone(),
        service: name.clone(),
        dialer: NetworkDialer::here().map_err(failed)?,
        coming: PendingVariants::default(),
    });
    let source = source.cloned();
    let service = daemon
        .gateway
        .make((&name.name, stem), tenant.cloned(), plan.clone(), source, maker.clone())
        .map_err(failed)?;
    Ok((service, maker))
}

fn find(daemon: &Daemon, name: &ServiceName) -> Result<Arc<Service>> {
    if daemon.gateway.workflow(name).is_some() {
        return Err(ServiceError::IsWorkflow { name: name.clone() }.into());
    }
    daemon.gateway.get(name).ok_or_else(|| ServiceError::Unknown { name: name.clone() }.into())
}

fn load(daemon: &Daemon, name: &ServiceName) -> Result<ServiceRecord> {
    ServiceRecord::load(&daemon.paths.services(), &name.word())
        .map_err(|source| ServiceError::NoRecord { name: name.clone(), source }.into())
}

/// What was asked, and for the rest what there is.
fn plan(request: &ServiceRequest, kept: &Plan) -> Plan {
    Plan {
        min: request.min.unwrap_or(kept.min),
        max: request.max.unwrap_or(kept.max),
        concurrency: request.concurrency.unwrap_or(kept.concurrency),
        queue: request.queue.unwrap_or(kept.queue),
        idle_ms: request.idle_ms.unwrap_or(kept.idle_ms),
        idle_end_ms: request.idle_end_ms.unwrap_or(kept.idle_end_ms),
        stages: stages(request, kept),
        context_ms: match &request.stages {
            Some(_) => request.context_ms.unwrap_or(0),
            None if sleeps_at_one_level(request) => 0,
            None => request.context_ms.unwrap_or(kept.context_ms),
        },
        timeout_ms: request.timeout_ms.unwrap_or(kept.timeout_ms),
    }
}

/// The levels that instances sleep at one after the other. Who names one level, or its time, wants that one alone.
fn stages(request: &ServiceRequest, kept: &Plan) -> Vec<SleepStage> {
    match &request.stages {
        Some(stages) => stages.iter().filter(|stage| stage.ms > 0).copied().collect(),
        None if sleeps_at_one_level(request) => Vec::new(),
        None => kept.stages.clone(),
    }
}

fn sleeps_at_one_level(request: &ServiceRequest) -> bool {
    request.level.is_some() || request.idle_end_ms.is_some()
}

/// What instances are to be made of. The program's port is the one that was published, if nobody says more.
fn source(
    daemon: &Daemon,
    name: &str,
    request: &ServiceRequest,
    kept: Option<&ServiceRecord>,
    (service, port): (&ServiceName, Port),
) -> Result<Source> {
    let image = daemon.store.image(name)?;
    let metadata = ImageMetadata::read(&image)?;
    instances::check(name, &metadata)?;
    let published = match metadata.ports.as_slice() {
        [one] => Some(one.to),
        _ => None,
    };
    let to = request.to.or(published).or(kept.map(|record| record.source.to));
    let to = to.or(Some(port.port).filter(|port| *port != 0)).ok_or_else(|| ServiceError::CannotServe {
        image: name.to_string(),
        reason: "say by `--to PORT` on which port its program listens".to_string(),
    })?;
    let tenant = match request.share.as_deref() {
        Some(NOBODY) => None,
        Some(tenant) => Some(tenant.to_string()),
        None => kept.and_then(|record| record.source.tenant.clone()),
    };
    tenant.as_deref().map(|tenant| slices::check(tenant, name, &metadata)).transpose()?;
    // What was said of contexts that it shared is over with that.
    let kept_limits =
        kept.filter(|_| tenant.is_some()).map(|record| record.source.limits).unwrap_or_default();
    let wished = Limits {
        link_weight: request.link_weight,
        sm_share: request.sm_share,
        sm_weight: request.sm_weight,
        sm_most: request.sm_most,
        share_memory: request.share_memory,
        ..Limits::default()
    };
    portions::check(&wished.or(kept_limits), tenant.as_deref(), Mode::Sandbox)?;
    let (gpu, gpus) = places::wanted(name, &metadata, request, kept.map(|record| &record.source))?;
    let data =
        request.data.clone().or_else(|| kept.map(|record| record.source.data.clone())).unwrap_or_default();
    let data_slots = request.data_slots.clone();
    let data_slots =
        data_slots.or_else(|| kept.map(|record| record.source.data_slots.clone())).unwrap_or_default();
    let objects = if daemon.gateway.memory().is_bounded() { daemon.data.sizes(&data) } else { Vec::new() };
    let whose = Whose { gpu: gpu.as_deref(), sharers: tenant.as_deref(), service };
    let need = memory::need(&image, &metadata, &whose, objects)?;
    // What was said of the image, and not of the service.
    let same = kept.filter(|record| {
        (&record.source.image, &record.source.id) == (&name.to_string(), &image.manifest().id)
    });
    let variants = match request.variants.as_slice() {
        [] => same.map(|record| record.source.variants.clone()).unwrap_or_default(),
        named => variants::find(daemon, (name, &metadata), tenant.as_deref(), named)?,
    };
    Ok(Source {
        tenant,
        limits: wished.or(kept_limits),
        variants,
        need,
        image: name.to_string(),
        id: image.manifest().id.clone(),
        to,
        ready: request.ready.clone().or_else(|| kept.and_then(|record| record.source.ready.clone())),
        gpu,
        gpus,
        data,
        data_slots,
        message: request.message.or_else(|| same.and_then(|record| record.source.message)),
        level: request.level.or(kept.map(|record| record.source.level)).unwrap_or(Level::Host),
    })
}

/// What clients speak TLS with: what was asked, or as it is.
fn tls(request: Option<&TlsRequest>, kept: Option<&TlsFiles>) -> Option<TlsFiles> {
    match request {
        Some(TlsRequest::Off) => None,
        Some(TlsRequest::With(files)) => Some(files.clone()),
        None => kept.cloned(),
    }
}

/// The certificate of a service or a workflow, as it is in use if its files stay the same.
fn certificate(daemon: &Daemon, name: &ServiceName, files: Option<&TlsFiles>) -> Result<Option<Arc<Tls>>> {
    let Some(files) = files else { return Ok(None) };
    if let Some(known) = daemon.gateway.tls(name).filter(|known| known.files() == files) {
        return Ok(Some(known));
    }
    Tls::load(files.clone())
        .map(Some)
        .map_err(|source| ServiceError::NoCertificate { name: name.clone(), source: source.into() }.into())
}

/// Takes the port for the service, and notes which it is.
fn listen(name: &ServiceName, port: &mut Port) -> Result<TcpListener> {
    let take = || {
        let listener = network::listen(*port)?;
        lengthen(&listener.as_fd(), Backlog::new(BACKLOG)?)?;
        let number = listener.local_addr()?.port();
        Ok((listener, number))
    };
    let (listener, number) = take().map_err(|source: io::Error| {
        let by = || who_listens(port.port).unwrap_or_else(|| "another process".to_string());
        let why = match source.kind() {
            io::ErrorKind::AddrInUse => format!("{} listens on it", by()),
            _ => source.to_string(),
        };
        ServiceError::CannotListen { name: name.clone(), port: port.port, why }
    })?;
    port.port = number;
    Ok(listener)
}

fn shown(daemon: &Daemon, service: &Service, record: &ServiceRecord) -> Value {
    let mut shown = json!(service.shown());
    let Port { address, port, .. } = record.port;
    shown["address"] = json!(address);
    shown["port"] = json!(port);
    shown["socket"] = json!(socket::place(daemon, &service.name));
    show_tls(daemon, &service.name, record.tls.as_ref(), &mut shown);
    shown
}

/// Its files, and what is wrong with what they have by now.
fn show_tls(daemon: &Daemon, name: &ServiceName, files: Option<&TlsFiles>, shown: &mut Value) {
    shown["tls"] = json!(files);
    if let Some(problem) = daemon.gateway.tls(name).and_then(|tls| tls.problem()) {
        shown["problem"] = json!(problem);
    }
}
