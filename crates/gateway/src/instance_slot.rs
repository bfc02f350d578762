//! A request's place at an instance, which is given back when this goes.

use std::sync::Arc;

use tokio::task::spawn_blocking;

use crate::policy::Outcome;
use crate::service::Service;
use crate::upstream::Upstream;

pub struct InstanceSlot {
    pub service: Arc<Service>,
    pub instance: u32,
    pub upstream: Arc<Upstream>,
    /// What became of the request: by this, if nobody says more, the client has gone.
    pub outcome: Outcome,
    /// It counts among those that the service has had.
    pub counts: bool,
    /// Why its instance is of no use any more, if that was found.
    fault: Option<String>,
}

impl InstanceSlot {
    pub fn new(service: Arc<Service>, instance: u32, upstream: Arc<Upstream>) -> InstanceSlot {
        InstanceSlot { service, instance, upstream, outcome: Outcome::Unheard, counts: true, fault: None }
    }

    /// Something went wrong with the request: looks whether the instance's GPU context is over. Another one takes its place then.
    pub async fn look_for_fault(&mut self) -> Option<&str> {
        self.fault = look_for_fault(self.service.clone(), self.instance, self.upstream.clone()).await;
        self.fault.as_deref()
    }
}

async fn look_for_fault(service: Arc<Service>, number: u32, upstream: Arc<Upstream>) -> Option<String> {
    let instance = upstream.instance.clone();
    let fault = spawn_blocking(move || instance.fault()).await.ok().flatten()?;
    let why = format!("the GPU context of the instance {:?} is over: {fault}", upstream.name);
    log::warn!("{why}; another one takes its place");
    service.act(|policy, now| policy.faulted(number, why.clone(), now));
    Some(why)
}

impl Drop for InstanceSlot {
    fn drop(&mut self) {
        let (instance, faulted) = (self.instance, self.fault.is_some());
        if self.outcome == Outcome::Broken && !faulted {
            let look = look_for_fault(self.service.clone(), instance, self.upstream.clone());
            self.service.runtime().spawn(look);
        }
        let outcome = match self.outcome {
            _ if !self.counts => Outcome::Unheard,
            Outcome::Answered if faulted => Outcome::Broken,
            outcome => outcome,
        };
        self.service.act(|policy, now| policy.done(instance, outcome, now));
    }
}
