//! The spans of one request.
//!
//! ```text
//!   GET web ├── queue ── program          ← a try at an instance, and perhaps a further one
//!           │            ├── queue        ← what the instance tells of its time with it
//!           │            ├── method ── …
//!           │            └── stream       ← from the first piece of an answer whose length was not known
//!           └── restore, or wake of that instance
//!               ├── checks                ← phases, as `rekindle trace` names them
//!               └── …
//! ```

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status};
use opentelemetry::{InstrumentationScope, KeyValue, TraceFlags};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SpanData, SpanEvents, SpanLinks};
use rekindle_gateway::{ProgramSpan, Record, Span, SpanDetails, StreamCounts};
use rekindle_protocol::daemon::{Operation, Trace};
use rekindle_protocol::worker::Phase;

/// Methods that a span may be named after; whatever else clients say is not a name.
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

/// All spans of a request, with what traces say of how its instances came. None if it is not followed.
pub fn spans(record: &Record, mut traces: impl FnMut(&str) -> Vec<Trace>) -> Vec<SpanData> {
    let Some(span) = &record.span else { return Vec::new() };
    let whole = whole(record, span);
    let mut all = vec![];
    for one in &span.tries {
        let at = |after: Duration| record.time + after;
        all.push(below(&whole, "queue", (at(one.since), at(one.placed)), Vec::new()));
        let Some(instance) = &one.instance else { continue };
        let name = KeyValue::new("rekindle.instance", instance.clone());
        let program = below(&whole, "program", (at(one.placed), at(one.until)), vec![name]);
        all.extend(one.spans.iter().map(|span| told(&program, span)));
        all.extend(one.stream.map(|counts| stream(&program, (at(counts.first), at(one.until)), counts)));
        all.push(SpanData { span_kind: SpanKind::Client, ..program });
        for trace in traces(instance) {
            all.extend(coming(&whole, instance, &trace, (at(one.since), at(one.until))));
        }
    }
    all.insert(0, whole);
    all
}

/// Until its answer was through.
fn whole(record: &Record, Span { context, parent, .. }: &Span) -> SpanData {
    let method = record.method.as_str();
    let method = METHODS.into_iter().find(|known| *known == method).unwrap_or("HTTP");
    let mut attributes = vec![
        KeyValue::new("http.request.method", record.method.clone()),
        KeyValue::new("url.path", record.path.clone()),
        KeyValue::new("client.address", record.client.to_string()),
        KeyValue::new("rekindle.service", record.service.name.clone()),
        KeyValue::new("rekindle.request_id", record.request_id.clone()),
    ];
    attributes.extend(record.service.tenant.clone().map(|tenant| KeyValue::new("rekindle.tenant", tenant)));
    attributes
        .extend(record.status.map(|status| KeyValue::new("http.response.status_code", i64::from(status))));
    let status = match record.status {
        Some(500..) => Status::error(""),
        _ => Status::Unset,
    };
    let name = format!("{method} {}", record.service.name);
    let times = (record.time, record.time + record.took);
    SpanData {
        span_kind: SpanKind::Server,
        parent_span_id: parent.as_ref().map_or(SpanId::INVALID, SpanContext::span_id),
        parent_span_is_remote: parent.is_some(),
        status,
        ..data(context.clone(), name.into(), times, attributes)
    }
}

/// How an instance came, if that was while the request was on its way there.
fn coming(
    whole: &SpanData,
    instance: &str,
    trace: &Trace,
    (since, until): (SystemTime, SystemTime),
) -> Vec<SpanData> {
    let name = match trace.operation {
        Operation::Restore => "restore",
        Operation::Wake => "wake",
        Operation::Checkpoint | Operation::Sleep | Operation::Migrate => return Vec::new(),
    };
    let Ok(began) = trace.began.parse::<Timestamp>().map(SystemTime::from) else { return Vec::new() };
    let at = |us: u64| began + Duration::from_micros(us);
    if began > until || at(trace.total_us) < since {
        return Vec::new();
    }
    let attributes = vec![
        KeyValue::new("rekindle.instance", instance.to_string()),
        KeyValue::new("rekindle.from", trace.image.clone()),
    ];
    let mut top = below(whole, name, (began, at(trace.total_us)), attributes);
    if let Some(problem) = &trace.problem {
        top.status = Status::error(problem.clone());
    }
    let phase = |one: &Phase| {
        let times = (at(one.start_us), at(one.start_us + one.duration_us));
        let mut attributes = vec![KeyValue::new("rekindle.lane", one.lane.clone())];
        attributes.extend((one.bytes > 0).then(|| KeyValue::new("rekindle.bytes", one.bytes as i64)));
        below(&top, one.name.clone(), times, attributes)
    };
    let phases: Vec<SpanData> = trace.phases.iter().map(phase).collect();
    std::iter::once(top).chain(phases).collect()
}

/// What the program was at, as it says; not before it had the request, nor after its answer was through.
fn told(
    program: &SpanData,
    ProgramSpan { name, begin, took, id, within, details }: &ProgramSpan,
) -> SpanData {
    let inside = |time: SystemTime| time.clamp(program.start_time, program.end_time);
    let end = took.and_then(|took| begin.checked_add(took)).unwrap_or(program.end_time);
    let SpanDetails { error, pieces, received, first } = details;
    let first = first.map(|time| time.as_micros() as u64);
    let counts =
        [("rekindle.pieces", *pieces), ("rekindle.received", *received), ("rekindle.first_us", first)];
    let attributes = counts.into_iter().filter_map(|(name, count)| Some(KeyValue::new(name, count? as i64)));
    let span = below(program, name.clone(), (inside(*begin), inside(end)), attributes.collect());
    let own = &span.span_context;
    let context = SpanContext::new(own.trace_id(), *id, own.trace_flags(), false, own.trace_state().clone());
    SpanData {
        span_context: context,
        parent_span_id: within.unwrap_or(program.span_context.span_id()),
        status: error.clone().map_or(Status::Unset, Status::error),
        ..span
    }
}

/// The pieces of an answer, and how much they were.
fn stream(
    program: &SpanData,
    times: (SystemTime, SystemTime),
    StreamCounts { pieces, bytes, .. }: StreamCounts,
) -> SpanData {
    let counts = [("rekindle.pieces", pieces), ("rekindle.bytes", bytes)];
    below(program, "stream", times, counts.map(|(name, count)| KeyValue::new(name, count as i64)).into())
}

/// A child of this one.
fn below(
    parent: &SpanData,
    name: impl Into<Cow<'static, str>>,
    times: (SystemTime, SystemTime),
    attributes: Vec<KeyValue>,
) -> SpanData {
    let above = &parent.span_context;
    let id = RandomIdGenerator::default().new_span_id();
    let context =
        SpanContext::new(above.trace_id(), id, TraceFlags::SAMPLED, false, above.trace_state().clone());
    SpanData { parent_span_id: above.span_id(), ..data(context, name.into(), times, attributes) }
}

fn data(
    span_context: SpanContext,
    name: Cow<'static, str>,
    (start_time, end_time): (SystemTime, SystemTime),
    attributes: Vec<KeyValue>,
) -> SpanData {
    SpanData {
        span_context,
        parent_span_id: SpanId::INVALID,
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name,
        start_time,
        end_time,
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: InstrumentationScope::builder("rekindle")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build(),
    }
}
