//! A GPU half that goes down a level while it sleeps. Whoever wants it awake has that given up: it sleeps on where it was.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Sandbox;
use crate::workers::Worker;

#[derive(Default)]
pub(super) struct Descent(Mutex<Option<UnderWay>>);

#[derive(Default)]
struct UnderWay {
    is_called_off: bool,
    /// Those that copy.
    workers: Vec<Arc<Worker>>,
}

/// It is under way until this is dropped.
pub struct DescentGuard<'a>(&'a Sandbox);

impl Sandbox {
    pub fn begin_descent(&self) -> DescentGuard<'_> {
        *self.lock_descent() = Some(UnderWay::default());
        DescentGuard(self)
    }

    /// Gives it up; false if none is under way.
    pub fn call_off_descent(&self) -> bool {
        let mut place = self.lock_descent();
        let Some(under_way) = place.as_mut() else { return false };
        under_way.is_called_off = true;
        under_way.workers.iter().for_each(|worker| worker.kill());
        true
    }

    fn lock_descent(&self) -> MutexGuard<'_, Option<UnderWay>> {
        self.descent.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DescentGuard<'_> {
    pub fn is_called_off(&self) -> bool {
        self.0.lock_descent().as_ref().is_some_and(|under_way| under_way.is_called_off)
    }

    /// These are killed if it is called off, also if it was before.
    pub fn by(&self, workers: Vec<Arc<Worker>>) {
        let mut place = self.0.lock_descent();
        let Some(under_way) = place.as_mut() else { return };
        if under_way.is_called_off {
            workers.iter().for_each(|worker| worker.kill());
        }
        under_way.workers = workers;
    }
}

impl Drop for DescentGuard<'_> {
    fn drop(&mut self) {
        *self.0.lock_descent() = None;
    }
}
