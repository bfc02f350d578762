//! What can go wrong with spans.

#[derive(Debug, thiserror::Error)]
pub enum SpanError {
    #[error(
        "spans cannot be sent to {endpoint:?}: {reason}; give the address of a collector, as \
         `rekindled --otlp-endpoint http://localhost:4318`"
    )]
    NoCollector { endpoint: String, reason: String },
}
