//! Workflows: one request in, one answer out, and in between calls of services, each with results of those before it.
//!
//! ```text
//!  clients ─▶ listener ─▶ door ─▶ run ─▶ call ─▶ proxy ─▶ the step's service, as any request of it
//!                           ▲      │ ▲             │
//!                           │      │ └── result ◀──┘   arrays on a GPU stay there: results have references to them
//!                           └──────┘ of the last step, or what the first that failed has answered
//! ```
//!
//! The graph is data, which is deployed; here it is followed. Values go from step to step as they came ([`packed`]). All of a
//! request's steps are part of its answer: who goes away, or is too late, ends them.

mod arguments;
mod call;
mod door;
mod failure;
mod given;
mod packed;
mod pieces;
mod run;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use rekindle_protocol::service_name::ServiceName;
use rekindle_protocol::workflow::Graph;
use serde::Serialize;
use tokio::sync::watch;

use crate::directory::Directory;
use crate::latency::{Latency, Quantiles};
use crate::service::{Service, TenantAccess};
use crate::tally::Tally;

pub(crate) use door::answer;
pub(crate) use pieces::Pieces;

pub struct Workflow {
    pub name: ServiceName,
    /// Who is let in, if not everybody is.
    entrance: Option<TenantAccess>,
    /// Requests that come from now on follow it.
    graph: Mutex<Arc<Graph>>,
    /// Where the services of its steps are found, at each call anew.
    directory: Weak<Directory>,
    tally: Arc<Tally>,
    latency: Mutex<Latency>,
    in_flight: AtomicU32,
    served: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
    /// Ends all requests that are under way.
    ended: watch::Sender<bool>,
}

/// A workflow as it is shown.
#[derive(Clone, Debug, Serialize)]
pub struct WorkflowView {
    pub name: String,
    pub tenant: Option<String>,
    #[serde(flatten)]
    pub graph: Graph,
    pub in_flight: u32,
    /// Requests by what became of them, since the daemon started.
    pub served: u64,
    pub failed: u64,
    pub refused: u64,
    /// How long requests took of late until their answer began.
    pub latency: Option<Quantiles>,
    pub problem: Option<String>,
}

impl Workflow {
    pub(crate) fn new(
        name: ServiceName,
        entrance: Option<TenantAccess>,
        graph: Graph,
        directory: &Arc<Directory>,
    ) -> Arc<Workflow> {
        Arc::new(Workflow {
            name,
            entrance,
            graph: Mutex::new(Arc::new(graph)),
            directory: Arc::downgrade(directory),
            tally: Arc::default(),
            latency: Mutex::default(),
            in_flight: AtomicU32::new(0),
            served: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            ended: watch::channel(false).0,
        })
    }

    /// Has requests that come from now on follow another graph. A removal that was given up is over.
    pub fn replace(&self, graph: Graph) {
        self.ended.send_replace(false);
        *self.graph.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(graph);
    }

    pub fn graph(&self) -> Arc<Graph> {
        self.graph.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is counted of it.
    pub fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// How many requests are under way.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Acquire)
    }

    /// Ends all requests that are under way.
    pub fn end_all(&self) {
        self.ended.send_replace(true);
    }

    pub fn shown(&self) -> WorkflowView {
        let graph = self.graph();
        let gone = graph.steps.iter().find(|step| self.find(&service_of(step)).is_none());
        WorkflowView {
            name: self.name.name.clone(),
            tenant: self.name.tenant.clone(),
            in_flight: self.in_flight(),
            served: self.served.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            latency: self.latency.lock().unwrap_or_else(PoisonError::into_inner).quantiles(Instant::now()),
            problem: gone.map(|step| failure::gone(&step.name, &service_of(step))),
            graph: Graph::clone(&graph),
        }
    }

    fn find(&self, name: &ServiceName) -> Option<Arc<Service>> {
        self.directory.upgrade()?.service(name)
    }

    /// The answer to a request has begun, which came so long ago.
    fn took(&self, time: Duration) {
        self.latency.lock().unwrap_or_else(PoisonError::into_inner).note(time, Instant::now());
    }

    /// What its clients call: what stands behind the app's name.
    fn method(&self) -> &str {
        self.name.name.rsplit('-').next().unwrap_or_default()
    }
}

/// Whose function a step calls.
fn service_of(step: &rekindle_protocol::workflow::Step) -> ServiceName {
    ServiceName::new(step.tenant.as_deref(), &step.service)
}
