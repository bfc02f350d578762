//! A new image that some of a service's requests go to, beside the one that all others go to.
//!
//! It has a queue and instances of its own. When an instance of it cannot be started, or fails a request, it gets no more
//! of them: what waits goes to the service's other instances, as does what is sent once more.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::latency::Quantiles;
use crate::policy::Counts;
use crate::service::{InstanceView, Service};

/// All requests.
const WHOLE: u32 = 10_000;

pub struct Canary {
    pub service: Arc<Service>,
    /// Of ten thousand requests.
    share: AtomicU32,
    /// Its share of all requests so far, but for the whole ones that it had.
    accumulated: AtomicU32,
    stopped: Mutex<Option<String>>,
}

/// A canary as it is shown.
#[derive(Clone, Debug, Serialize)]
pub struct CanaryView {
    pub image: Option<String>,
    /// Of all requests, 0 to 1.
    pub share: f64,
    pub instances: Vec<InstanceView>,
    pub queued: usize,
    pub in_flight: u32,
    pub gpu_bytes: u64,
    #[serde(flatten)]
    pub counts: Counts,
    pub latency: Option<Quantiles>,
    /// Why it takes no further requests, if it does not.
    pub stopped: Option<String>,
}

impl Canary {
    /// Of so many requests of ten thousand.
    pub fn new(service: Arc<Service>, share: u32) -> Arc<Canary> {
        let (share, accumulated) = (AtomicU32::new(share), AtomicU32::new(0));
        Arc::new(Canary { service, share, accumulated, stopped: Mutex::default() })
    }

    pub fn set_share(&self, share: u32) {
        self.share.store(share, Ordering::Relaxed);
    }

    /// Whether the next request is one for it: of each hundred as many as its share says, as evenly as can be.
    pub(crate) fn takes_next(&self) -> bool {
        if let Some(why) = self.stopped() {
            self.stop(why);
            return false;
        }
        let share = self.share.load(Ordering::Relaxed);
        let next = |accumulated: u32| Some((accumulated + share) % WHOLE);
        let before = self.accumulated.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or(0);
        before + share >= WHOLE
    }

    /// It takes no further requests, and its instances end.
    pub(crate) fn stop(&self, why: String) {
        let mut stopped = self.why();
        if stopped.is_some() {
            return;
        }
        log::warn!("the canary of the service {} takes no further requests: {why}", self.service.name);
        *stopped = Some(why);
        drop(stopped);
        self.service.drain();
    }

    pub(crate) fn shown(&self) -> CanaryView {
        let shown = self.service.shown();
        CanaryView {
            image: shown.source.map(|source| source.image),
            share: f64::from(self.share.load(Ordering::Relaxed)) / f64::from(WHOLE),
            instances: shown.instances,
            queued: shown.queued,
            in_flight: shown.in_flight,
            gpu_bytes: shown.gpu_bytes,
            counts: shown.counts,
            latency: shown.latency,
            stopped: self.stopped(),
        }
    }

    /// Why it takes no further requests, if it does not.
    pub fn stopped(&self) -> Option<String> {
        self.why().clone().or_else(|| self.service.trouble())
    }

    fn why(&self) -> MutexGuard<'_, Option<String>> {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
