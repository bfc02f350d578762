//! What a program has of GPU contexts that it shares: its weight on the link, and what it has of the
//! multiprocessors.

use rekindle_protocol::daemon::{Limits, Mode, State};
use rekindle_protocol::worker::ask;
use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::error::Result;
use crate::lifecycle::LifecycleError;
use crate::sandboxes::Sandbox;

/// Whether there is anything to divide, where something is said of it, and a worker of its own to mend.
pub fn check(limits: &Limits, tenant: Option<&str>, mode: Mode) -> Result<()> {
    if limits.mend.is_some() && mode == Mode::Driver {
        return Err(LifecycleError::NoMending { why: "in driver mode a program has no worker" }.into());
    }
    if limits.names_portion() && tenant.is_none() {
        return Err(LifecycleError::NoPortion.into());
    }
    check_most(limits)
}

/// A most below the share would be no most.
fn check_most(limits: &Limits) -> Result<()> {
    let portion = limits.portion();
    match portion.sm_share.zip(portion.sm_most) {
        Some((share, most)) if most < share => Err(LifecycleError::MostBelowShare { share, most }.into()),
        _ => Ok(()),
    }
}

/// Whether a sandbox can have its share beside what others of its tenant have on its GPU.
pub fn check_room(daemon: &Daemon, sandbox: &Sandbox) -> Result<()> {
    check_room_for(daemon, sandbox, &sandbox.record().limits)
}

fn check_room_for(daemon: &Daemon, sandbox: &Sandbox, limits: &Limits) -> Result<()> {
    let record = sandbox.record();
    let (Some(share), Some(wanted)) = (record.share(), limits.portion().sm_share) else { return Ok(()) };
    let all = daemon.sandboxes.all();
    let live = all.iter().filter(|other| other.is_live()).map(|other| other.record());
    let beside = live.filter(|other| other.name != record.name && other.gpu == record.gpu);
    let mut others: Vec<(String, u32)> = beside
        .filter(|other| other.share().is_some_and(|other| other.tenant == share.tenant))
        .filter_map(|other| Some((other.name, other.limits.portion().sm_share?)))
        .collect();
    others.sort();
    if others.iter().map(|(_, percent)| percent).sum::<u32>() + wanted <= 100 {
        return Ok(());
    }
    let others: Vec<String> =
        others.iter().map(|(name, percent)| format!("{name:?} has {percent} %")).collect();
    Err(LifecycleError::NoRoomForShare {
        name: record.name,
        tenant: share.tenant,
        wanted,
        others: others.join(", "),
    }
    .into())
}

/// Changes what a program has, while it runs. Its next worker, and its images, have it too.
pub fn set(daemon: &Daemon, sandbox: &Sandbox, wished: Limits) -> Result<Value> {
    let operation = sandbox.begin_settled(State::Running, "given another part of its GPU contexts")?;
    let record = sandbox.record();
    if record.share().is_none() {
        return Err(LifecycleError::NotShared { name: record.name }.into());
    }
    let limits = wished.or(record.limits);
    check_most(&limits)?;
    check_room_for(daemon, sandbox, &limits)?;
    let portion = limits.portion();
    for worker in sandbox.serving_workers()? {
        let set = worker.ask("divide its contexts anew", ask::SetPortion { portion }, &[]);
        set.map_err(|error| operation.explain(error))?;
    }
    sandbox.update(|record| record.limits = limits)?;
    Ok(json!(limits))
}
