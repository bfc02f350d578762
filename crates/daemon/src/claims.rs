//! Which processes are being checkpointed, so that none is twice at once: CRIU can trace a process only once.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result};

#[derive(Default)]
pub struct Claims(Mutex<HashSet<i32>>);

/// A tree's processes; free again when it is dropped.
pub struct Claim<'a> {
    claims: &'a Claims,
    pids: Vec<i32>,
}

impl Claims {
    pub fn take(&self, pids: impl IntoIterator<Item = i32>) -> Result<Claim<'_>> {
        let pids: Vec<i32> = pids.into_iter().collect();
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&pid) = pids.iter().find(|pid| taken.contains(pid)) {
            return Err(Error::PidOccupied { pid });
        }
        taken.extend(&pids);
        Ok(Claim { claims: self, pids })
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut taken = self.claims.0.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|pid| !self.pids.contains(pid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_taken_once_at_a_time() {
        let claims = Claims::default();
        let first = claims.take([7, 8]).unwrap();
        assert!(matches!(claims.take([6, 8]), Err(Error::PidOccupied { pid: 8 })));
        drop(first);
        assert!(claims.take([6, 8]).is_ok());
    }
}
