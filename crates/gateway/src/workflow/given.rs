//! Arrays that a request's steps have put for each other. When the request comes to no result nobody takes them any more, and
//! they are dropped.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::plan::Source;
use crate::service::Service;

use super::packed::Packed;

/// Dropped with it, unless the request was answered.
#[derive(Default)]
pub struct GivenArrays(Mutex<Vec<Given>>);

struct Given {
    service: Arc<Service>,
    source: Source,
    names: Vec<String>,
}

impl GivenArrays {
    /// What a step's function has returned has them. One that cannot be read has none that anybody takes.
    pub fn note(&self, service: &Arc<Service>, result: &Packed) {
        let references = result.references().unwrap_or_default();
        let names: Vec<String> =
            references.into_iter().filter(|one| one.is_given).map(|one| one.name).collect();
        if let (false, Some(source)) = (names.is_empty(), service.source()) {
            self.lock().push(Given { service: service.clone(), source, names });
        }
    }

    /// There is a result: each array is taken, or has been.
    pub fn are_taken(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Given>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for GivenArrays {
    fn drop(&mut self) {
        for Given { service, source, names } in std::mem::take(&mut *self.lock()) {
            let maker = service.maker().clone();
            service.runtime().spawn_blocking(move || maker.drop_arrays(&source, &names));
        }
    }
}
