//! Services of an earlier daemon, and the instances that still run of them.

use std::sync::Arc;
use std::time::Duration;

use rekindle_gateway::{Service, Source};
use rekindle_protocol::service_name::ServiceName;

use super::canary::{self, CanaryRecord};
use super::instances::InstanceMaker;
use super::record::ServiceRecord;
use super::{certificate, listen, make, memory, record, sizes, socket, stem, workflows};
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::host::records::StoredRecord;
use crate::lifecycle::end::{GRACE, end};
use crate::sandboxes::Sandbox;
use crate::sandboxes::record::Record;
use crate::tenants;

/// How often a port is asked for again that another program has.
const AGAIN: Duration = Duration::from_secs(1);

/// Takes over what an earlier daemon has served.
pub fn resume(daemon: &Arc<Daemon>) -> Result<()> {
    record::rename_earlier(&daemon.paths.services())?;
    for record in ServiceRecord::load_all(&daemon.paths.services())? {
        if let Err(error) = bring_back(daemon, &record) {
            log::error!("the service {} is not there: {error}", record.service());
        }
    }
    workflows::resume(daemon)?;
    for sandbox in daemon.sandboxes.all() {
        let service = sandbox.record().of_service().filter(|_| sandbox.is_live());
        if service.is_some_and(|name| daemon.gateway.get(&name).is_none()) {
            end_stray(sandbox);
        }
    }
    Ok(())
}

/// Ends an instance that no service has any more.
fn end_stray(sandbox: Arc<Sandbox>) {
    log::warn!("{:?} is an instance of a service that is not there, and is ended", sandbox.name());
    std::thread::spawn(move || {
        if let Ok(cpu) = sandbox.cpu("ended") {
            let _ = end(&sandbox, cpu, GRACE);
        }
    });
}

fn bring_back(daemon: &Arc<Daemon>, record: &ServiceRecord) -> Result<()> {
    let (name, mut record) = (&record.service(), record.clone());
    if record.source.need.gpu.is_empty() {
        // An earlier version has not looked.
        record.source.need = memory::need_of(daemon, &record, Vec::new()).unwrap_or_default();
    }
    let record = &record;
    // Without its tenant it would be open to everybody.
    let membership =
        record.tenant.as_ref().map(|tenant| tenants::join(daemon, tenant, &name.name)).transpose()?;
    let tenant = membership.as_ref().map(|one| &one.tenant);
    let (service, maker) = make(daemon, (name, &stem(name)), tenant, &record.plan, Some(&record.source))?;
    let mut own: Vec<(Record, Arc<Sandbox>)> =
        daemon.sandboxes.all().into_iter().map(|sandbox| (sandbox.record(), sandbox)).collect();
    own.retain(|(own, _)| own.is_live() && own.of_service().as_ref() == Some(name));
    let earlier = ServiceName::new(None, &name.name);
    adopt((&service, &maker), [&stem(name), &stem(&earlier)], &record.source, &mut own);
    if let Some(CanaryRecord { source, share, number }) = &record.canary {
        let (stem, earlier) = (canary::stem(name, *number), canary::stem(&earlier, *number));
        let (begun, maker) = make(daemon, (name, &stem), tenant, &canary::plan(&record.plan), Some(source))?;
        adopt((&begun, &maker), [&stem, &earlier], source, &mut own);
        canary::begin(&service, begun, *share);
    }
    // Of a canary that was taken back, or came to nothing.
    own.into_iter().for_each(|(_, sandbox)| end_stray(sandbox));
    if record.draining {
        service.drain();
    }
    daemon.gateway.add(&service, membership);
    socket::listen(daemon, name);
    sizes::learn(daemon, record);
    let (daemon, name, mut record) = (daemon.clone(), name.clone(), record.clone());
    let mut listening = move || match daemon.gateway.get(&name) {
        // It was removed meanwhile, or has another port.
        None => true,
        Some(_) if daemon.gateway.is_open(&name) => true,
        Some(service) => {
            let secured = certificate(&daemon, &name, record.tls.as_ref()).and_then(|tls| {
                let secured = daemon.gateway.secure(&name, tls);
                secured.map_err(|source| Error::system("serve a port", source))
            });
            let heard = secured.and_then(|()| listen(&name, &mut record.port)).and_then(|listener| {
                daemon
                    .gateway
                    .listen(&service.name, listener)
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

/// Takes over the instances whose names begin so; the others are left. Those of an earlier version's have the first one's
/// names from then on.
fn adopt(
    (service, maker): (&Arc<Service>, &InstanceMaker),
    [stem, earlier]: [&str; 2],
    source: &Source,
    all: &mut Vec<(Record, Arc<Sandbox>)>,
) {
    all.retain(|(own, sandbox)| {
        let number = |stem| own.name.strip_prefix(stem).and_then(|number: &str| number.parse().ok());
        let Some(number) = number(stem).or_else(|| number(earlier)) else { return true };
        let name = format!("{stem}{number}");
        if own.name != name
            && let Err(error) = maker.daemon.sandboxes.rename(sandbox, &name)
        {
            log::warn!("the instance {:?} is not taken over: {error}", own.name);
            return true;
        }
        let own_image = own.image.clone().unwrap_or_default();
        let is_of_it = source.images().any(|variant| variant.image == own_image);
        let image = if is_of_it { source.image.clone() } else { own_image };
        let there = source.gpus.iter().find(|place| place.gpu == own.gpu);
        let source = there.and_then(|place| source.on(&place.counted)).unwrap_or_else(|| source.clone());
        let source = Source { image, ..source };
        let asleep = own.asleep.as_ref().map(|asleep| asleep.level);
        service.adopt(number, maker.adopt(sandbox), asleep, &source);
        false
    });
}
