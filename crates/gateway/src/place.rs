//! A request's place at an instance, which is given back when this goes.

use std::sync::Arc;

use crate::policy::Outcome;
use crate::service::Service;
use crate::upstream::Upstream;

pub struct Place {
    pub service: Arc<Service>,
    pub instance: u32,
    pub upstream: Arc<Upstream>,
    /// What became of the request: by this, if nobody says more, the client has gone.
    pub outcome: Outcome,
}

impl Drop for Place {
    fn drop(&mut self) {
        let (instance, outcome) = (self.instance, self.outcome);
        self.service.act(|policy, now| policy.done(instance, outcome, now));
    }
}
