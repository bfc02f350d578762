//! Services: images whose programs answer HTTP requests, instances of which come and go with those.
//!
//! The [gateway](rekindle_gateway) has the requests and decides; here is what it knows nothing of: images, sandboxes, and
//! what is kept for the next daemon. That one finds instances again by the service that their records name.

mod instances;
mod record;

use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{Backlog, listen as lengthen};
use rekindle_gateway::{Plan, Service, Source};
use rekindle_protocol::daemon::Level;
use rekindle_protocol::network::Port;
use rekindle_protocol::service::ServiceWish;
use rekindle_sandbox::who_listens;
use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::images::metadata::ImageMetadata;
use crate::lifecycle::end::{GRACE, end};
use crate::lifecycle::slices;
use crate::network::{self, Door};
use crate::reply::Reply;
use instances::InstanceMaker;
use record::{ServiceRecord, check_name};

/// How often a command that waits is looked for, which may be gone.
const LOOK: Duration = Duration::from_millis(200);
/// How often a port is asked for again that another program has.
const AGAIN: Duration = Duration::from_secs(1);
/// How many clients the kernel keeps until they are let in.
const BACKLOG: i32 = 4096;

/// What is not said of a new service.
const USUAL: Plan = Plan {
    min: 0,
    max: 4,
    concurrency: 8,
    idle_ms: 30_000,
    idle_end_ms: 300_000,
    queue: 100,
    timeout_ms: 60_000,
};

/// Makes a service, or has another image take the place of the one that it has. Returns when an instance listens.
pub fn serve(daemon: &Arc<Daemon>, name: &str, image: &str, wish: &ServiceWish) -> Result<Value> {
    check_name(name)?;
    let _serving = daemon.serving.take_service(name)?;
    let former = match daemon.gateway.get(name) {
        Some(service) => Some((service, load(daemon, name)?)),
        None => None,
    };
    let kept = former.as_ref().map(|(_, record)| record);
    let plan = plan(wish, kept.map_or(&USUAL, |record| &record.plan));
    plan.check().map_err(|reason| Error::BadPlan { name: name.to_string(), reason })?;
    let wanted = wish.port.or(kept.map(|record| record.port));
    let mut port = wanted.ok_or_else(|| Error::NoServicePort { name: name.to_string() })?;
    let source = source(daemon, image, wish, kept, port)?;
    port.to = source.to;
    let is_there =
        |record: &&ServiceRecord| (record.port.address, record.port.port) == (port.address, port.port);
    let listener = match kept.filter(is_there) {
        Some(_) => None,
        None => Some(listen(name, &mut port)?),
    };
    let service = match &former {
        Some((service, _)) => service.clone(),
        None => make(daemon, name, &plan, None)?.0,
    };
    match kept {
        Some(record) if record.source == source && !record.draining => service.replan(plan.clone()),
        _ => service
            .roll_out(source.clone(), plan.clone())
            .map_err(|reason| Error::CannotServe { image: image.to_string(), reason })?,
    }
    let record = ServiceRecord { name: name.to_string(), port, source, plan, draining: false };
    let kept = record.save(&daemon.places.services());
    if former.is_none() {
        if let Err(error) = kept {
            service.end_all();
            return Err(error);
        }
        daemon.gateway.add(&service);
    } else {
        kept?;
    }
    if let Some(listener) = listener {
        daemon.gateway.listen(&service, listener).map_err(|source| Error::system("serve a port", source))?;
    }
    log::info!("the service {name:?} is of the image {image:?}, at port {}", record.port.port);
    Ok(shown(&service, &record))
}

pub fn list(daemon: &Daemon) -> Result<Value> {
    let records = ServiceRecord::load_all(&daemon.places.services())?;
    let mut records: BTreeMap<String, ServiceRecord> =
        records.into_iter().map(|record| (record.name.clone(), record)).collect();
    let all = daemon.gateway.all();
    let services: Vec<Value> =
        all.iter().filter_map(|service| Some(shown(service, &records.remove(&service.name)?))).collect();
    Ok(json!({ "services": services }))
}

/// Names of the images that services have.
pub fn images(daemon: &Daemon) -> impl Iterator<Item = String> {
    daemon.gateway.all().into_iter().filter_map(|service| Some(service.source()?.image))
}

/// Changes how many instances there are.
pub fn scale(daemon: &Daemon, name: &str, min: Option<u32>, max: Option<u32>) -> Result<Value> {
    let service = find(daemon, name)?;
    let _serving = daemon.serving.take_service(name)?;
    let mut record = load(daemon, name)?;
    record.plan = plan(&ServiceWish { min, max, ..ServiceWish::default() }, &record.plan);
    record.plan.check().map_err(|reason| Error::BadPlan { name: name.to_string(), reason })?;
    record.save(&daemon.places.services())?;
    service.replan(record.plan.clone());
    Ok(shown(&service, &record))
}

/// Has no more requests come, and waits until those that there are have been answered and all instances have ended.
pub fn drain(daemon: &Daemon, name: &str, (remove, now): (bool, bool), reply: &Reply<'_>) -> Result<Value> {
    let service = find(daemon, name)?;
    let _serving = daemon.serving.take_service(name)?;
    let record = ServiceRecord { draining: true, ..load(daemon, name)? };
    record.save(&daemon.places.services())?;
    if remove {
        daemon.gateway.close(name);
    }
    service.drain();
    if now {
        service.end_all();
    }
    reply.progress("drain", 0, 0);
    while !service.wait_drained(LOOK) {
        // It goes on with that.
        reply.check_wanted()?;
    }
    let last = shown(&service, &record);
    if remove {
        daemon.gateway.remove(name);
        ServiceRecord::remove(&daemon.places.services(), name)?;
    }
    Ok(last)
}

/// Takes over what an earlier daemon has served.
pub fn resume(daemon: &Arc<Daemon>) -> Result<()> {
    for record in ServiceRecord::load_all(&daemon.places.services())? {
        if let Err(error) = bring_back(daemon, &record) {
            log::error!("the service {:?} is not there: {error}", record.name);
        }
    }
    for sandbox in daemon.sandboxes.all() {
        let service = sandbox.record().service.filter(|_| sandbox.is_live());
        if service.is_some_and(|name| daemon.gateway.get(&name).is_none()) {
            log::warn!("{:?} is an instance of a service that is not there, and is ended", sandbox.name());
            std::thread::spawn(move || {
                if let Ok(cpu) = sandbox.cpu("ended") {
                    let _ = end(&sandbox, cpu, GRACE);
                }
            });
        }
    }
    Ok(())
}

fn bring_back(daemon: &Arc<Daemon>, record: &ServiceRecord) -> Result<()> {
    let name = &record.name;
    let (service, maker) = make(daemon, name, &record.plan, Some(&record.source))?;
    for sandbox in daemon.sandboxes.all().into_iter().filter(|sandbox| sandbox.is_live()) {
        let own = sandbox.record();
        let number = own.name.strip_prefix(&format!("{name}-")).and_then(|number| number.parse().ok());
        if let Some(number) = number.filter(|_| own.service.as_ref() == Some(name)) {
            let image = own.image.unwrap_or_default();
            let source = Source { image, ..record.source.clone() };
            let instance = maker.adopt(&sandbox, source.level);
            service.adopt(number, instance, own.asleep.is_some(), &source);
        }
    }
    if record.draining {
        service.drain();
    }
    daemon.gateway.add(&service);
    let (daemon, mut record) = (daemon.clone(), record.clone());
    let mut listening = move || match daemon.gateway.get(&record.name) {
        // It was removed meanwhile, or has another port.
        None => true,
        Some(_) if daemon.gateway.is_open(&record.name) => true,
        Some(service) => {
            let heard = listen(&record.name, &mut record.port).and_then(|listener| {
                daemon
                    .gateway
                    .listen(&service, listener)
                    .map_err(|source| Error::system("serve a port", source))
            });
            service.report(heard.as_ref().err().map(Error::to_string));
            heard.is_ok()
        }
    };
    if !listening() {
        std::thread::spawn(move || {
            while !listening() {
                std::thread::sleep(AGAIN);
            }
        });
    }
    Ok(())
}

fn make(
    daemon: &Arc<Daemon>,
    name: &str,
    plan: &Plan,
    source: Option<&Source>,
) -> Result<(Arc<Service>, Arc<InstanceMaker>)> {
    let failed = |source| Error::system("serve", source);
    let (daemon_, service) = (daemon.clone(), name.to_string());
    let maker = Arc::new(InstanceMaker { daemon: daemon_, service, door: Door::here().map_err(failed)? });
    let service = daemon.gateway.make(name, plan.clone(), source.cloned(), maker.clone()).map_err(failed)?;
    Ok((service, maker))
}

fn find(daemon: &Daemon, name: &str) -> Result<Arc<Service>> {
    daemon.gateway.get(name).ok_or_else(|| Error::UnknownService { name: name.to_string() })
}

fn load(daemon: &Daemon, name: &str) -> Result<ServiceRecord> {
    ServiceRecord::load(&daemon.places.services(), name).map_err(|why| Error::Service {
        name: name.to_string(),
        reason: format!("cannot be changed, for its record cannot be read: {why}"),
    })
}

/// What was asked, and for the rest what there is.
fn plan(wish: &ServiceWish, kept: &Plan) -> Plan {
    Plan {
        min: wish.min.unwrap_or(kept.min),
        max: wish.max.unwrap_or(kept.max),
        concurrency: wish.concurrency.unwrap_or(kept.concurrency),
        queue: wish.queue.unwrap_or(kept.queue),
        idle_ms: wish.idle_ms.unwrap_or(kept.idle_ms),
        idle_end_ms: wish.idle_end_ms.unwrap_or(kept.idle_end_ms),
        timeout_ms: wish.timeout_ms.unwrap_or(kept.timeout_ms),
    }
}

/// What instances are to be made of. The program's port is the one that was published, if nobody says more.
fn source(
    daemon: &Daemon,
    name: &str,
    wish: &ServiceWish,
    kept: Option<&ServiceRecord>,
    port: Port,
) -> Result<Source> {
    let image = daemon.store.image(name)?;
    let metadata = ImageMetadata::read(&image)?;
    instances::check(name, &metadata)?;
    let published = match metadata.ports.as_slice() {
        [one] => Some(one.to),
        _ => None,
    };
    let to = wish.to.or(published).or(kept.map(|record| record.source.to));
    let to = to.or(Some(port.port).filter(|port| *port != 0)).ok_or_else(|| Error::CannotServe {
        image: name.to_string(),
        reason: "say by `--to PORT` on which port its program listens".to_string(),
    })?;
    let tenant = wish.tenant.clone().or_else(|| kept.and_then(|record| record.source.tenant.clone()));
    tenant.as_deref().map(|tenant| slices::check(tenant, name, metadata.slice)).transpose()?;
    Ok(Source {
        tenant,
        image: name.to_string(),
        id: image.manifest().id.clone(),
        to,
        ready: wish.ready.clone().or_else(|| kept.and_then(|record| record.source.ready.clone())),
        gpu: wish.gpu.clone().or_else(|| kept.and_then(|record| record.source.gpu.clone())),
        data: wish.data.clone().or_else(|| kept.map(|record| record.source.data.clone())).unwrap_or_default(),
        level: wish.level.or(kept.map(|record| record.source.level)).unwrap_or(Level::Host),
    })
}

/// Takes the port for the service, and notes which it is.
fn listen(name: &str, port: &mut Port) -> Result<TcpListener> {
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
        Error::NoPortForService { name: name.to_string(), port: port.port, why }
    })?;
    port.port = number;
    Ok(listener)
}

fn shown(service: &Service, record: &ServiceRecord) -> Value {
    let mut shown = json!(service.shown());
    let Port { address, port, .. } = record.port;
    shown["address"] = json!(address);
    shown["port"] = json!(port);
    shown
}
