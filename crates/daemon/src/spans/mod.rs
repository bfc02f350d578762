//! Requests as spans of traces, told to a collector by OpenTelemetry's protocol (OTLP over HTTP, protobuf).
//!
//! ```text
//!   gateway ── comes ─▶ its span, in `traceparent`        traces of sandboxes ─┐
//!           ── through ─▶ a queue with an end ─▶ a thread ─▶ spans of it ──────┴─▶ collector
//!                           └ full: counted                                          └ away: counted
//! ```
//!
//! A request never waits for it. One that is not sampled costs an id and a header. What an instance's start or wake was made
//! of is what `rekindle trace` tells.

mod error;
mod exporter;
mod tree;

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{SpanContext, SpanKind, TraceContextExt};
use opentelemetry::{Context, TraceFlags};
use opentelemetry_http::{HeaderExtractor, HeaderInjector};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Config, SamplingDecision};
use prometheus_client::metrics::counter::Counter;
use rekindle_gateway::{HeaderMap, Record, Span};

use crate::error::{Error, Result};
use crate::sandboxes::registry::Registry;
use exporter::Exporter;

pub use error::{CollectorError, SpanError};

/// How many requests wait to be told of.
const ROOM: usize = 2048;

pub struct Spans {
    sampling: Config,
    propagator: TraceContextPropagator,
    sender: SyncSender<Record>,
    /// Until the thread has begun.
    waiting: Mutex<Option<(Receiver<Record>, Exporter)>>,
    tally: Arc<Tally>,
}

/// Of requests that are followed.
#[derive(Default)]
pub struct Tally {
    pub sent: Counter,
    /// Those that the collector did not take, or for which it was too slow.
    pub dropped: Counter,
}

impl Spans {
    /// To the collector at this endpoint. Which requests are followed, and what is told of this process, is said by
    /// OpenTelemetry's own variables.
    pub fn open(endpoint: &str) -> Result<Arc<Spans>> {
        let sampling = Config::default();
        let exporter = Exporter::new(endpoint, &sampling.resource)
            .map_err(|source| SpanError::NoCollector { endpoint: endpoint.to_string(), source })?;
        let (sender, records) = sync_channel(ROOM);
        Ok(Arc::new(Spans {
            sampling,
            propagator: TraceContextPropagator::new(),
            sender,
            waiting: Mutex::new(Some((records, exporter))),
            tally: Arc::default(),
        }))
    }

    /// Has requests told of from now on, with what these sandboxes have traces of.
    pub fn begin(&self, sandboxes: Weak<Registry>) -> Result<()> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((records, exporter)) = waiting else { return Ok(()) };
        let tally = self.tally.clone();
        let run = move || exporter.run(&records, &sandboxes, &tally);
        let thread = std::thread::Builder::new().name("spans".into()).spawn(run);
        thread.map(drop).map_err(|source| Error::system("start a thread", source))
    }

    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The span that a request is, if it is sampled. Whatever it is, the program learns of it.
    pub fn comes(&self, headers: &mut HeaderMap) -> Option<Span> {
        let context = self.propagator.extract_with_context(&Context::new(), &HeaderExtractor(headers));
        let parent = Some(context.span().span_context().clone()).filter(SpanContext::is_valid);
        let trace =
            parent.as_ref().map_or_else(|| self.sampling.id_generator.new_trace_id(), SpanContext::trace_id);
        let sampled = self.sampling.sampler.should_sample(
            Some(&context),
            trace,
            "request",
            &SpanKind::Server,
            &[],
            &[],
        );
        let is_sampled = sampled.decision == SamplingDecision::RecordAndSample;
        let flags = TraceFlags::default().with_sampled(is_sampled);
        let id = self.sampling.id_generator.new_span_id();
        let own = SpanContext::new(trace, id, flags, false, sampled.trace_state);
        let context = Context::new().with_remote_span_context(own.clone());
        self.propagator.inject_context(&context, &mut HeaderInjector(headers));
        if own.trace_state().header().is_empty() {
            headers.remove("tracestate");
        }
        is_sampled.then(|| Span { context: own, parent, tries: Vec::new() })
    }

    /// Never waits.
    pub fn note(&self, record: Record) {
        if self.sender.try_send(record).is_err() {
            self.tally.dropped.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0";

    fn comes(given: Option<&str>) -> (Option<Span>, String, bool) {
        let spans = Spans::open("http://127.0.0.1:1").unwrap();
        let mut headers = HeaderMap::new();
        if let Some(given) = given {
            headers.insert("traceparent", given.parse().unwrap());
            headers.insert("tracestate", "a=1".parse().unwrap());
        }
        let span = spans.comes(&mut headers);
        (span, headers["traceparent"].to_str().unwrap().to_string(), headers.contains_key("tracestate"))
    }

    #[test]
    fn a_request_goes_on_in_the_trace_of_its_client() {
        let (span, passed_on, has_state) = comes(Some(&format!("{PARENT}1")));
        let span = span.unwrap();
        let own = &span.context;
        assert_eq!(passed_on, format!("00-{}-{}-01", own.trace_id(), own.span_id()));
        assert!(has_state && passed_on[..36] == PARENT[..36] && passed_on[36..] != PARENT[36..]);
        assert_eq!(span.parent.unwrap().span_id().to_string(), "00f067aa0ba902b7");
        // Whoever is not followed by its client is not followed here, and the program learns so.
        let (span, passed_on, _) = comes(Some(&format!("{PARENT}0")));
        assert!(span.is_none() && passed_on.ends_with("-00") && passed_on[..36] == PARENT[..36]);
        for none in [None, Some("nonsense"), Some("00-0-0-01")] {
            let (span, passed_on, has_state) = comes(none);
            let span = span.unwrap();
            assert!(span.parent.is_none() && !has_state && passed_on.ends_with("-01"), "{passed_on}");
            assert!(span.context.is_valid());
        }
    }
}
