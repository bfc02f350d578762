//! The thread that tells the collector.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanExporter as _;
use rekindle_gateway::Record;
use rekindle_protocol::daemon::{State, Trace};
use tokio::runtime::{Builder, Runtime};

use super::{CollectorError, Tally, tree};
use crate::sandboxes::registry::Registry;
use crate::sandboxes::traces;

/// Requests are told of together that were through within this time, or so many.
const BATCH_TIME: Duration = Duration::from_secs(1);
const BATCH: usize = 256;
/// How long those of a batch are waited for whose instances are still waking: the trace of that is there once they have.
const WAKE_TIME: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(5);

pub struct Exporter {
    endpoint: String,
    exporter: SpanExporter,
    runtime: Runtime,
    /// The last batch was not taken.
    is_away: bool,
}

impl Exporter {
    /// Nobody is asked yet.
    pub fn new(endpoint: &str, resource: &Resource) -> Result<Exporter, CollectorError> {
        // Fails only where somebody has chosen one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(traces_of(endpoint)?)
            .build()?;
        exporter.set_resource(resource);
        Ok(Exporter { endpoint: endpoint.to_string(), exporter, runtime, is_away: false })
    }

    /// Returns when nobody tells of requests any more.
    pub fn run(mut self, records: &Receiver<Record>, sandboxes: &Weak<Registry>, tally: &Arc<Tally>) {
        while let Ok(first) = records.recv() {
            let batch = gather(first, records);
            let Some(sandboxes) = sandboxes.upgrade() else { return };
            let (mut read, patience) = (HashMap::new(), Instant::now() + WAKE_TIME);
            let mut traces = |instance: &str| -> Vec<Trace> {
                let known = read.entry(instance.to_string());
                known.or_insert_with(|| of_instance(&sandboxes, instance, patience)).clone()
            };
            let spans = batch.iter().flat_map(|record| tree::spans(record, &mut traces)).collect();
            let sent = self.runtime.block_on(self.exporter.export(spans));
            let counter = if sent.is_ok() { &tally.sent } else { &tally.dropped };
            counter.inc_by(batch.len() as u64);
            self.tell(sent.err().map(|error| error.to_string()));
        }
    }

    /// Says once that the collector is away, and that it is there again.
    fn tell(&mut self, why: Option<String>) {
        match (why, self.is_away) {
            (Some(why), false) => {
                log::warn!(
                    "the collector at {} does not take spans, which are dropped: {why}",
                    self.endpoint
                );
                self.is_away = true;
            }
            (None, true) => {
                log::info!("the collector at {} takes spans again", self.endpoint);
                self.is_away = false;
            }
            _ => {}
        }
    }
}

/// How an instance came of late, and was woken; if it is just being woken, that is waited for until then.
fn of_instance(sandboxes: &Registry, name: &str, patience: Instant) -> Vec<Trace> {
    let Ok(sandbox) = sandboxes.get(name) else { return Vec::new() };
    while sandbox.record().state == State::Waking && Instant::now() < patience {
        std::thread::sleep(LOOK);
    }
    traces::read(&sandbox.traces)
}

/// This request, and those that are through a little later.
fn gather(first: Record, records: &Receiver<Record>) -> Vec<Record> {
    let (mut batch, end) = (vec![first], Instant::now() + BATCH_TIME);
    while batch.len() < BATCH {
        match records.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(record) => batch.push(record),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    batch
}

/// Where a collector takes spans; what is wrong with the endpoint otherwise.
fn traces_of(endpoint: &str) -> Result<String, CollectorError> {
    let has_scheme = ["http://", "https://"].iter().any(|scheme| endpoint.starts_with(scheme));
    match has_scheme {
        true => Ok(format!("{}/v1/traces", endpoint.trim_end_matches('/'))),
        false => Err(CollectorError::NoHttp),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_known_by_an_http_address() {
        assert_eq!(traces_of("http://a:4318").unwrap(), "http://a:4318/v1/traces");
        assert_eq!(traces_of("https://a/b/").unwrap(), "https://a/b/v1/traces");
        for wrong in ["", "a:4318", "grpc://a"] {
            assert!(traces_of(wrong).is_err(), "{wrong}");
        }
        for wrong in ["http://", "http://a b"] {
            assert!(Exporter::new(wrong, &Resource::builder_empty().build()).is_err(), "{wrong}");
        }
    }
}
