//! How large declared data is, where nobody has to wait to know it: without a limit of GPU memory a service is served before its
//! stores have said so. A limit that there is later, as the next daemon's, finds it in the record.

use std::sync::Arc;
use std::time::Duration;

use rekindle_gateway::MemoryNeed;

use super::memory;
use super::record::ServiceRecord;
use crate::daemon::Daemon;
use crate::error::Result;
use crate::host::records::StoredRecord;

/// Asks the stores, and notes what they say, unless that was done already.
pub fn learn(daemon: &Arc<Daemon>, record: &ServiceRecord) {
    let is_known = |url: &String| record.source.need.data.iter().any(|datum| datum.url == *url);
    if record.source.data.iter().all(is_known) {
        return;
    }
    let (daemon, record) = (daemon.clone(), record.clone());
    let ask = move || {
        let sizes = daemon.data.sizes(&record.source.data);
        if !sizes.is_empty()
            && let Err(error) = note(&daemon, &record, sizes)
        {
            log::warn!("how large the data of the service {} is was not noted: {error}", record.service());
        }
    };
    if let Err(error) = std::thread::Builder::new().name("sizes".into()).spawn(ask) {
        log::warn!("how large declared data is is not asked: {error}");
    }
}

/// How often the service is asked for that somebody is changing, and how many times.
const AGAIN: Duration = Duration::from_millis(100);
const TRIES: u32 = 600;

fn note(daemon: &Daemon, asked: &ServiceRecord, sizes: Vec<(String, u64)>) -> Result<()> {
    let need = memory::need_of(daemon, asked, sizes)?;
    let name = &asked.service();
    for _ in 0..TRIES {
        if let Some(noted) = daemon.serving.if_free(name, || write(daemon, asked, &need)) {
            return noted;
        }
        std::thread::sleep(AGAIN);
    }
    Ok(())
}

/// It may be served anew by now, or not be there any more.
fn write(daemon: &Daemon, asked: &ServiceRecord, need: &MemoryNeed) -> Result<()> {
    let name = &asked.service();
    let Some(service) = daemon.gateway.get(name) else { return Ok(()) };
    let mut record = super::load(daemon, name)?;
    if record.source.makes_the_same(&asked.source) {
        record.source.need = need.clone();
        record.save(&daemon.paths.services())?;
        service.learn(&record.source);
    }
    Ok(())
}
