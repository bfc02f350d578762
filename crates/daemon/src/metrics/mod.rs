//! What Prometheus is told of the daemon, at `/metrics` of the [page](crate::page).
//!
//! Values are those that the page and the commands show, read when somebody asks; what only grows is counted where it
//! happens ([`crate::tally`], [`rekindle_gateway::Tally`]). Names are told in `docs/operations.md`.

mod families;
mod machine;
mod services;

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::registry::Unit;

use crate::daemon::Daemon;
use families::Families;

/// All metrics, as text; none if they cannot be written.
pub fn collect(daemon: &Daemon, began: SystemTime) -> Option<String> {
    let mut families = Families::default();
    let help = "The version of the daemon.";
    families.gauge("build_info", None, help).is(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    let since = began.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let help = "When the daemon started, seconds since 1970.";
    families.gauge("start_time", Some(Unit::Seconds), help).is(&[], since);
    services::tell(&mut families, daemon);
    services::tell_of_tenants(&mut families, daemon);
    machine::tell(&mut families, daemon);
    families.text().inspect_err(|error| log::error!("the metrics cannot be written: {error}")).ok()
}
