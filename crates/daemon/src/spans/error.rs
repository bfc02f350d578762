//! What can go wrong with spans.

use std::io;

use opentelemetry_otlp::ExporterBuildError;

#[derive(Debug, thiserror::Error)]
pub enum SpanError {
    #[error(
        "spans cannot be sent to {endpoint:?}: {source}; give the address of a collector, as \
         `rekindled --otlp-endpoint http://localhost:4318`"
    )]
    NoCollector { endpoint: String, source: CollectorError },
}

/// Why a collector cannot be told of spans.
#[derive(Debug, thiserror::Error)]
pub enum CollectorError {
    #[error("it is no HTTP address")]
    NoHttp,
    #[error(transparent)]
    Runtime(#[from] io::Error),
    #[error(transparent)]
    Exporter(#[from] ExporterBuildError),
}
