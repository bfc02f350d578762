//! The sandboxes by their names. A live sandbox keeps its name to itself; an ended one gives it up to the next.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::sandboxes::Held;
use crate::sandboxes::names;

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
    /// reserved, and with the ended sandbox that had it, which is forgotten when the new one is up.
    pub fn add(
        &self,
        name: Option<&str>,
        stem: &str,
        make: impl FnOnce(String, Option<&Held>) -> Result<Arc<Held>>,
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
        let held = make(name.clone(), sandboxes.get(&name).map(|former| &**former))?;
        if let Some(former) = sandboxes.insert(name, held.clone()) {
            held.set_former(former);
        }
        trim(&mut sandboxes);
        Ok(held)
    }

    /// Takes an earlier daemon's sandboxes over. It may have died between a sandbox's record and forgetting the former
    /// one of that name.
    pub fn adopt(&self, mut all: Vec<Arc<Held>>) {
        all.sort_by_cached_key(|held| (held.is_live(), held.record().started));
        let mut sandboxes = self.lock();
        for held in all {
            if let Some(former) = sandboxes.insert(held.name(), held) {
                former.forget();
            }
        }
        trim(&mut sandboxes);
    }

    /// Forgets a sandbox. The one whose place it was to take, if it never came to run, is there again.
    pub fn remove(&self, held: &Arc<Held>) {
        let mut sandboxes = self.lock();
        let name = held.name();
        if sandboxes.get(&name).is_some_and(|found| Arc::ptr_eq(found, held)) {
            sandboxes.remove(&name);
            if let Some(former) = held.take_former() {
                sandboxes.insert(name, former);
            }
        }
        held.forget();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Held>>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn trim(sandboxes: &mut HashMap<String, Arc<Held>>) {
    if sandboxes.values().filter(|held| !held.is_live()).count() <= ENDED_KEPT {
        return;
    }
    let mut ended: Vec<_> =
        sandboxes.values().map(|held| held.record()).filter(|record| !record.is_live()).collect();
    ended.sort_by(|a, b| b.ended.cmp(&a.ended));
    for record in &ended[ENDED_KEPT..] {
        if let Some(held) = sandboxes.remove(&record.name) {
            held.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rekindle_protocol::daemon::State;

    use super::*;
    use crate::caches::{CacheLimits, Caches};
    use crate::host::places::Places;
    use crate::pool::{PoolSize, WorkerPool};
    use crate::sandboxes::record::Record;

    fn held(places: &Places, name: &str, state: State) -> Arc<Held> {
        let record = Record {
            pid: 1,
            started: name.to_string(),
            ended: Some(name.to_string()),
            ..Record::new(
                format!("{:x}", name.len()),
                name.to_string(),
                rekindle_protocol::daemon::Mode::default(),
                state,
                String::new(),
            )
        };
        let caches = Caches::new(CacheLimits::default(), places.store());
        let none = PoolSize { per_gpu: 0, most: 0, images: 0, modules: 0 };
        Held::new(places, &WorkerPool::open(places, "/rekindled".into(), none, caches), record)
    }

    fn places(root: &Path) -> Places {
        let at = |name| Some(root.join(name));
        let places = Places::new(at("socket"), at("state"), at("runs")).unwrap();
        places.prepare().unwrap();
        places
    }

    #[test]
    fn ten_thousand_live_sandboxes_keep_their_names() {
        let root = tempfile::tempdir().unwrap();
        let (places, registry) = (places(root.path()), Registry::default());
        let name = |n: usize| format!("../job {n} $(x)");
        for n in 0..10_000 {
            registry.add(Some(&name(n)), "", |name, _| Ok(held(&places, &name, State::Running))).unwrap();
        }
        for n in 0..10_000 {
            assert_eq!(registry.get(&name(n)).unwrap().name(), name(n));
            let again = registry.add(Some(&name(n)), "", |_, _| panic!("a name was given twice"));
            assert!(matches!(again, Err(Error::NameInUse { .. })));
        }
        assert!(matches!(registry.get("job"), Err(Error::UnknownSandbox { .. })));
    }

    #[test]
    fn ended_sandboxes_give_up_their_names_and_are_forgotten_in_time() {
        let root = tempfile::tempdir().unwrap();
        let (places, registry) = (places(root.path()), Registry::default());
        for n in 0..ENDED_KEPT + 50 {
            let name = format!("{n:04}");
            let add = || registry.add(Some(&name), "", |name, _| Ok(held(&places, &name, State::Exited)));
            let first = add().unwrap();
            let second = add().unwrap();
            registry.remove(&second);
            assert!(Arc::ptr_eq(&registry.get(&name).unwrap(), &first), "nothing came of the second");
            add().unwrap();
        }
        assert_eq!(registry.all().len(), ENDED_KEPT);
        assert!(registry.get("0000").is_err());
        assert!(registry.get("0149").is_ok());
    }
}
