//! The document that the page shows. Its fields are documented in `docs/commands.md`.

use std::time::{SystemTime, UNIX_EPOCH};

use rekindle_gateway::{Lane, Service};
use serde_json::{Value, json};

use super::images::Images;
use crate::daemon::Daemon;
use crate::error::Result;
use crate::gpu_map;
use crate::images::machine;
use crate::sandboxes::Sandbox;
use crate::services;

/// How many sandboxes are shown that have ended, the last ones.
const ENDED: usize = 20;

pub fn collect(daemon: &Daemon, images: &Images, began: SystemTime) -> Value {
    let mut problems = Vec::new();
    let mut known = |found: Result<Value>, otherwise: Value| {
        found.unwrap_or_else(|error| {
            problems.push(error.to_string());
            otherwise
        })
    };
    let mut listed =
        known(services::list(daemon, None), json!({ "services": [], "workflows": [], "memory": null }));
    let images = known(images.shown(daemon), json!([]));
    for service in listed["services"].as_array_mut().into_iter().flatten() {
        // Where keys lie is nobody's business.
        service["tls"] = json!(!service["tls"].is_null());
    }
    let lanes: Vec<Value> = daemon.gateway.all().iter().flat_map(|service| lanes(service)).collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "host": machine::this().host,
        "now_ms": milliseconds(SystemTime::now()),
        "started_ms": milliseconds(began),
        "services": listed["services"].take(),
        "workflows": listed["workflows"].take(),
        "service_memory": listed["memory"].take(),
        "lanes": lanes,
        "gpus": gpu_map::by_gpu(daemon),
        "sandboxes": sandboxes(daemon),
        "images": images,
        "problems": problems,
    })
}

/// Those of a service and of its canary.
fn lanes(service: &Service) -> Vec<Value> {
    let shown = |lane: Lane| {
        let mut lane = json!(lane);
        lane["service"] = json!(service.name.name);
        lane["tenant"] = json!(service.name.tenant);
        lane
    };
    let canary = service.canary().map(|canary| canary.service.lanes()).unwrap_or_default();
    service.lanes().into_iter().chain(canary).map(shown).collect()
}

/// Those that run, and the last that have ended.
fn sandboxes(daemon: &Daemon) -> Vec<Value> {
    let mut all = daemon.sandboxes.all();
    all.sort_by_key(|sandbox| sandbox.name());
    let (live, mut ended): (Vec<_>, Vec<_>) = all.iter().partition(|sandbox| sandbox.is_live());
    ended.sort_by_key(|sandbox| std::cmp::Reverse(sandbox.record().ended));
    ended.truncate(ENDED);
    live.into_iter().chain(ended).map(|sandbox| row(sandbox)).collect()
}

/// What is shown of a sandbox: no words of its command's, which may be secret.
fn row(sandbox: &Sandbox) -> Value {
    let service = sandbox.record().of_service();
    let shown = sandbox.shown();
    json!({
        "name": shown.name,
        "mode": shown.mode,
        "state": shown.state,
        "asleep": shown.asleep,
        "live": shown.state.is_live(),
        "service": service.as_ref().map(|service| &service.name),
        "service_tenant": service.as_ref().and_then(|service| service.tenant.as_ref()),
        "image": shown.image,
        "gpu": shown.gpu,
        "tenant": shown.tenant,
        "started": shown.started,
        "ended": shown.ended,
        "exit_code": shown.exit_code,
        "device_bytes": shown.device_bytes,
        "shared_bytes": shown.shared_bytes,
        "pinned_bytes": shown.pinned_bytes,
        "problem": shown.problem,
    })
}

fn milliseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
