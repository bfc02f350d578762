//! What is in use by one operation and cannot be by another: processes that are being checkpointed, which CRIU can trace
//! only once, names of images in the making, and services that
//! are being changed.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

use rekindle_protocol::service_name::ServiceName;

use crate::error::Result;

#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error("the sandbox {name:?} is {state} just now; try again when that is done")]
    Sandbox { name: String, state: String },

    #[error("process {pid} is being checkpointed just now; try again when that is done")]
    Process { pid: i32 },

    #[error(
        "an image named {name:?} is being made just now; choose another name, or try again when that is done"
    )]
    Image { name: String },

    #[error("the service {name} is being changed by another command; try again when that is done")]
    Service { name: ServiceName },
}

pub struct Claims<T>(Mutex<HashSet<T>>);

/// A tree's processes, or a name; free again when it is dropped.
pub struct Claim<'a, T: Eq + Hash> {
    claims: &'a Claims<T>,
    taken: Vec<T>,
}

impl<T> Default for Claims<T> {
    fn default() -> Self {
        Claims(Mutex::default())
    }
}

impl Claims<i32> {
    pub fn take(&self, pids: impl IntoIterator<Item = i32>) -> Result<Claim<'_, i32>> {
        self.take_all(pids).map_err(|pid| ClaimError::Process { pid }.into())
    }
}

impl Claims<String> {
    pub fn take(&self, name: &str) -> Result<Claim<'_, String>> {
        self.take_all([name.to_string()]).map_err(|name| ClaimError::Image { name }.into())
    }

    /// A sandbox by its id.
    pub fn take_sandbox(&self, id: &str, name: &str) -> Result<Claim<'_, String>> {
        let occupied =
            || ClaimError::Sandbox { name: name.to_string(), state: "migrating".to_string() }.into();
        self.take_all([id.to_string()]).map_err(|_| occupied())
    }
}

impl Claims<ServiceName> {
    pub fn take(&self, name: &ServiceName) -> Result<Claim<'_, ServiceName>> {
        self.take_all([name.clone()]).map_err(|name| ClaimError::Service { name }.into())
    }

    /// Does something short for which nobody may have the service; none: somebody has it. Who takes it meanwhile waits.
    pub fn if_free<R>(&self, name: &ServiceName, act: impl FnOnce() -> R) -> Option<R> {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (!taken.contains(name)).then(act)
    }
}

impl<T: Eq + Hash + Clone> Claims<T> {
    /// All or none; what somebody else has, if it is none.
    fn take_all(&self, wanted: impl IntoIterator<Item = T>) -> std::result::Result<Claim<'_, T>, T> {
        let wanted: Vec<T> = wanted.into_iter().collect();
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(occupied) = wanted.iter().find(|one| taken.contains(one)) {
            return Err(occupied.clone());
        }
        taken.extend(wanted.iter().cloned());
        Ok(Claim { claims: self, taken: wanted })
    }
}

impl<T: Eq + Hash> Drop for Claim<'_, T> {
    fn drop(&mut self) {
        let mut taken = self.claims.0.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|one| !self.taken.contains(one));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn a_process_is_taken_once_at_a_time() {
        let claims = Claims::<i32>::default();
        let first = claims.take([7, 8]).unwrap();
        assert!(matches!(claims.take([6, 8]), Err(Error::Claims(ClaimError::Process { pid: 8 }))));
        drop(first);
        assert!(claims.take([6, 8]).is_ok());
    }

    #[test]
    fn a_name_is_for_one_image_at_a_time() {
        let claims = Claims::<String>::default();
        let first = claims.take("x").unwrap();
        assert!(matches!(claims.take("x"), Err(Error::Claims(ClaimError::Image { name })) if name == "x"));
        assert!(claims.take("y").is_ok());
        drop(first);
        assert!(claims.take("x").is_ok());
    }

    #[test]
    fn services_of_one_name_are_changed_at_once_if_they_are_not_of_one_tenant() {
        let claims = Claims::<ServiceName>::default();
        let of = |tenant| ServiceName::new(tenant, "web");
        let first = claims.take(&of(Some("a"))).unwrap();
        assert!(matches!(
            claims.take(&of(Some("a"))),
            Err(Error::Claims(ClaimError::Service { name })) if name == of(Some("a"))
        ));
        let _others = (claims.take(&of(Some("b"))).unwrap(), claims.take(&of(None)).unwrap());
        drop(first);
        assert!(claims.take(&of(Some("a"))).is_ok());
    }
}
