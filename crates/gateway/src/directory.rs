//! What is served, by its names: services, and workflows of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rekindle_protocol::service_name::ServiceName;

use crate::listener::{Listener, Security};
use crate::service::Service;
use crate::tenant::Membership;
use crate::workflow::Workflow;

/// Who answers the clients of a name.
#[derive(Clone)]
pub enum Served {
    Service(Arc<Service>),
    Workflow(Arc<Workflow>),
}

impl Served {
    pub fn name(&self) -> &ServiceName {
        match self {
            Served::Service(service) => &service.name,
            Served::Workflow(workflow) => &workflow.name,
        }
    }
}

pub struct Entry {
    pub served: Served,
    pub listener: Option<Listener>,
    /// For programs of this machine that reach no port.
    pub socket: Option<Listener>,
    /// For who comes from now on.
    pub tls: Security,
    pub _tenant: Option<Membership>,
}

impl Entry {
    /// One that nobody comes to yet.
    pub fn new(served: Served, tenant: Option<Membership>) -> Entry {
        Entry { served, listener: None, socket: None, tls: Security::default(), _tenant: tenant }
    }
}

#[derive(Default)]
pub struct Directory(Mutex<BTreeMap<ServiceName, Entry>>);

impl Directory {
    pub fn lock(&self) -> MutexGuard<'_, BTreeMap<ServiceName, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn service(&self, name: &ServiceName) -> Option<Arc<Service>> {
        match &self.lock().get(name)?.served {
            Served::Service(service) => Some(service.clone()),
            Served::Workflow(_) => None,
        }
    }

    pub fn workflow(&self, name: &ServiceName) -> Option<Arc<Workflow>> {
        match &self.lock().get(name)?.served {
            Served::Workflow(workflow) => Some(workflow.clone()),
            Served::Service(_) => None,
        }
    }
}
