//! Services: HTTP requests that come to a port go to instances of an image, which come and go with them.
//!
//! ```text
//!  clients ─▶ listener ─▶ proxy ──────────▶ place at an instance ─▶ upstream ─▶ program
//!                  tenant ◀─┤ arrive, done         ▲ Send, Refuse
//!                           ▼                      │
//!                        service ──▶ policy ───────┤
//!                                     ▲            ▼ Start, Sleep, Wake, End
//!                                     └───────── maker
//! ```
//!
//! [`policy`] decides, and does nothing; [`Service`] does what it decides. A [`tenant`]'s service lets in who shows a token of
//! the tenant's. What an instance is, and how it is made, is the [`Maker`]'s. One thread serves all clients, and copies bodies
//! as they come; what may block has threads of its own.

mod access;
mod canary;
mod connection;
mod directory;
mod gateway;
mod headers;
mod history;
mod instance_slot;
mod late_spans;
mod latency;
mod limits;
mod listener;
mod maker;
mod memory;
mod message_version;
mod named_data;
mod placement;
mod plan;
mod policy;
mod program_spans;
mod proxy;
mod refusal;
mod relay;
mod service;
mod streams;
mod tally;
mod tenant;
mod tls;
mod tunnel;
mod upstream;
mod workflow;

pub use access::{Access, Record, RequestAttempt, Span, StreamCounts, Watch};
pub use canary::Canary;
pub use gateway::Gateway;
pub use history::{Lane, Step};
pub use hyper::header::HeaderMap;
pub use latency::Quantiles;
pub use maker::{Failure, Instance, Maker};
pub use memory::{Datum, Holding, Memory};
pub use plan::{MemoryNeed, Place, Plan, PlanError, Source, Variant};
pub use policy::{Counts, Stage};
pub use program_spans::{ProgramSpan, SpanDetails};
pub use service::{InstanceView, RolloutError, Service, ServiceView};
pub use tally::{Tally, durations};
pub use tenant::{Membership, Tenant, Tenants, Token};
pub use tls::{Tls, TlsError};
pub use tokio::net::TcpSocket;
pub use workflow::{Workflow, WorkflowView};
