//! What a program has of GPU contexts that it shares: its weight on the link.

use rekindle_protocol::daemon::{Limits, State};
use rekindle_protocol::worker::ask;
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::sandboxes::Sandbox;

/// Whether there is anything to divide, where something is said of it.
pub fn check(limits: &Limits, tenant: Option<&str>) -> Result<()> {
    if limits.names_portion() && tenant.is_none() { Err(Error::NoPortion) } else { Ok(()) }
}

/// Changes what a program has, while it runs. Its next worker, and its images, have it too.
pub fn set(sandbox: &Sandbox, link_weight: Option<u32>) -> Result<Value> {
    let wanted = "given another part of its GPU contexts";
    let operation = sandbox.begin_settled(State::Running, wanted)?;
    let record = sandbox.record();
    if record.share().is_none() {
        return Err(Error::NotShared { name: record.name });
    }
    let limits = Limits { link_weight, ..Limits::default() }.or(record.limits);
    let portion = limits.portion();
    for worker in sandbox.serving_workers()? {
        let set = worker.ask("divide its contexts anew", ask::SetPortion { portion }, &[]);
        set.map_err(|error| operation.explain(error))?;
    }
    sandbox.update(|record| record.limits = limits)?;
    Ok(json!(limits))
}
