//! A new image that some of a service's requests go to before all do.

use std::sync::Arc;

use rekindle_gateway::{Canary, Plan, Service, Source};
use rekindle_protocol::service::ServiceRequest;
use rekindle_protocol::service_name::ServiceName;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::record::ServiceRecord;
use super::{find, load, make, memory, shown, source};
use crate::daemon::Daemon;
use crate::error::Result;
use crate::host::records::StoredRecord;
use crate::services::ServiceError;

/// What is kept of one for the next daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CanaryRecord {
    pub source: Source,
    /// Of ten thousand requests.
    pub share: u32,
    /// No two of a service have the same, nor the same names of instances.
    pub number: u64,
}

/// What the names of a canary's instances begin with.
pub fn stem(name: &ServiceName, number: u64) -> String {
    format!("{}-c{number}.", name.word())
}

/// None of it stays awake without requests.
pub fn plan(plan: &Plan) -> Plan {
    Plan { min: 0, ..plan.clone() }
}

/// Begins one, or changes the share of the one that there is. Returns when an instance of it listens.
pub fn serve(
    daemon: &Arc<Daemon>,
    name: &ServiceName,
    image: &str,
    request: &ServiceRequest,
    share: u32,
) -> Result<Value> {
    let refused = |reason: String| ServiceError::CannotServe { image: image.to_string(), reason }.into();
    let service = find(daemon, name)?;
    let mut record = load(daemon, name)?;
    check(request).map_err(|reason| refused(reason.to_string()))?;
    if record.draining {
        return Err(refused(format!(
            "the service {name} takes no more requests; serve it without --canary first"
        )));
    }
    let source = source(daemon, image, request, Some(&record), (name, record.port))?;
    memory::check(daemon, image, service.tenant(), &source)?;
    if (&source.image, &source.id) == (&record.source.image, &record.source.id) {
        return Err(refused(format!("all requests to the service {name} go to it already")));
    }
    let there = service.canary().zip(record.canary.clone());
    match there.filter(|(canary, _)| canary.stopped().is_none()) {
        Some((canary, kept)) if kept.source.makes_the_same(&source) => {
            record.canary = Some(CanaryRecord { share, ..kept });
            record.save(&daemon.paths.services())?;
            canary.set_share(share);
            return Ok(shown(daemon, &service, &record));
        }
        Some((_, kept)) => {
            let other = &kept.source.image;
            return Err(refused(format!(
                "the image {other:?} is a canary of the service {name} already; serve that one or {:?} without \
                 --canary first",
                record.source.image
            )));
        }
        None => {}
    }
    let number = record.canaries + 1;
    let (begun, _) = make(daemon, (name, &stem(name, number)), service.tenant(), &plan(&record.plan), None)?;
    begun.roll_out(source.clone(), plan(&record.plan)).map_err(|error| refused(error.to_string()))?;
    record.canary = Some(CanaryRecord { source, share, number });
    record.canaries = number;
    if let Err(error) = record.save(&daemon.paths.services()) {
        begun.end_all();
        return Err(error);
    }
    begin(&service, begun, share);
    log::info!("the image {image:?} is a canary of the service {name}");
    Ok(shown(daemon, &service, &record))
}

/// Has some requests go to it.
pub fn begin(service: &Service, canary: Arc<Service>, share: u32) {
    if let Some(former) = service.set_canary(Some(Canary::new(canary, share))) {
        former.service.drain();
    }
}

/// No more requests go to it; its instances end with those that they have.
pub fn take_back(service: &Service, record: &mut ServiceRecord) -> Option<Arc<Service>> {
    record.canary = None;
    let canary = service.set_canary(None)?;
    canary.service.drain();
    Some(canary.service.clone())
}

/// Beside a canary nothing else of the service is changed.
fn check(request: &ServiceRequest) -> std::result::Result<(), &'static str> {
    let ServiceRequest { port, min, max, concurrency, queue, idle_ms, idle_end_ms, timeout_ms, .. } = request;
    let of_service = port.is_some()
        || request.tls.is_some()
        || request.stages.is_some()
        || [min, max, concurrency, queue].iter().any(|request| request.is_some())
        || [idle_ms, idle_end_ms, timeout_ms].iter().any(|request| request.is_some());
    match of_service {
        true => Err("ports, TLS, numbers and times are the service's; change them without --canary"),
        false => Ok(()),
    }
}
