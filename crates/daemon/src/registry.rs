//! The sandboxes by their names. A live sandbox keeps its name to itself; an ended one gives it up to the next.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::held::Held;
use crate::names;

/// How many ended sandboxes are remembered, with their logs.
pub const ENDED_KEPT: usize = 100;

#[derive(Default)]
pub struct Registry {
    sandboxes: Mutex<HashMap<String, Arc<Held>>>,
}

impl Registry {
    pub fn get(&self, name: &str) -> Result<Arc<Held>> {
        self.lock().get(name).cloned().ok_or_else(|| Error::UnknownSandbox { name: name.to_string() })
    }

    /// All, the newest first.
    pub fn all(&self) -> Vec<Arc<Held>> {
        let mut all: Vec<_> = self.lock().values().map(|held| (held.record(), held.clone())).collect();
        all.sort_by(|(a, _), (b, _)| {
            (b.is_live(), &b.started, &a.name).cmp(&(a.is_live(), &a.started, &b.name))
        });
        all.into_iter().map(|(_, held)| held).collect()
    }

    /// Adds a sandbox under the name given, or under one made from `stem`. `make` is called with the name while it is
    /// reserved; an ended sandbox of that name is forgotten.
    pub fn add(
        &self,
        name: Option<&str>,
        stem: &str,
        make: impl FnOnce(String) -> Result<Arc<Held>>,
    ) -> Result<Arc<Held>> {
        let mut sandboxes = self.lock();
        let name = match name {
            Some(name) => {
                names::check(name)?;
                if sandboxes.get(name).is_some_and(|held| held.is_live()) {
                    return Err(Error::NameInUse { name: name.to_string() });
                }
                name.to_string()
            }
            None => names::unused(stem, |name| sandboxes.contains_key(name)),
        };
        let held = make(name.clone())?;
        if let Some(former) = sandboxes.insert(name, held.clone()) {
            former.forget();
        }
        trim(&mut sandboxes);
        Ok(held)
    }

    /// Takes a sandbox of an earlier daemon over.
    pub fn adopt(&self, held: Arc<Held>) {
        self.lock().insert(held.name(), held);
    }

    /// Forgets a sandbox that never came to run.
    pub fn remove(&self, held: &Arc<Held>) {
        let mut sandboxes = self.lock();
        let name = held.name();
        if sandboxes.get(&name).is_some_and(|found| Arc::ptr_eq(found, held)) {
            sandboxes.remove(&name);
        }
        held.forget();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Held>>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn trim(sandboxes: &mut HashMap<String, Arc<Held>>) {
    let mut ended: Vec<_> =
        sandboxes.values().map(|held| held.record()).filter(|record| !record.is_live()).collect();
    if ended.len() <= ENDED_KEPT {
        return;
    }
    ended.sort_by(|a, b| b.ended.cmp(&a.ended));
    for record in &ended[ENDED_KEPT..] {
        if let Some(held) = sandboxes.remove(&record.name) {
            held.forget();
        }
    }
}
