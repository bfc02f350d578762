//! The sandboxes by their names. A live sandbox keeps its name to itself; an ended one gives it up to the next.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Result;
use crate::events;
use crate::sandboxes::names;
use crate::sandboxes::record::state_word;
use crate::sandboxes::{Sandbox, SandboxError};

/// How many ended sandboxes are remembered, with their logs.
pub const ENDED_KEPT: usize = 100;

#[derive(Default)]
pub struct Registry {
    sandboxes: Mutex<HashMap<String, Arc<Sandbox>>>,
}

/// The place of a sandbox that is being made. Nobody else is given one meanwhile.
pub struct NameReservation<'a> {
    pub name: String,
    /// The ended one that had the name.
    pub former: Option<&'a Sandbox>,
    known: &'a HashMap<String, Arc<Sandbox>>,
}

impl NameReservation<'_> {
    /// The sandboxes that run, or are about to.
    pub fn live(&self) -> impl Iterator<Item = &Sandbox> {
        self.known.values().map(|sandbox| &**sandbox).filter(|sandbox| sandbox.is_live())
    }
}

impl Registry {
    pub fn get(&self, name: &str) -> Result<Arc<Sandbox>> {
        self.lock().get(name).cloned().ok_or_else(|| SandboxError::Unknown { name: name.to_string() }.into())
    }

    /// All, the newest first.
    pub fn all(&self) -> Vec<Arc<Sandbox>> {
        let mut all: Vec<_> =
            self.lock().values().map(|sandbox| (sandbox.record(), sandbox.clone())).collect();
        all.sort_by(|(a, _), (b, _)| {
            (b.is_live(), &b.started, &a.name).cmp(&(a.is_live(), &a.started, &b.name))
        });
        all.into_iter().map(|(_, sandbox)| sandbox).collect()
    }

    /// Adds a sandbox under the name given, or under one made from `stem`. `make` is called while its place is reserved;
    /// the ended sandbox that had the name is forgotten when the new one is up.
    pub fn add(
        &self,
        name: Option<&str>,
        stem: &str,
        make: impl FnOnce(NameReservation<'_>) -> Result<Arc<Sandbox>>,
    ) -> Result<Arc<Sandbox>> {
        let mut sandboxes = self.lock();
        let name = match name {
            Some(name) => {
                names::check(name)?;
                if sandboxes.get(name).is_some_and(|sandbox| sandbox.is_live()) {
                    return Err(SandboxError::NameInUse { name: name.to_string() }.into());
                }
                name.to_string()
            }
            None => names::unused(stem, |name| sandboxes.contains_key(name)),
        };
        let former = sandboxes.get(&name).map(|former| &**former);
        let sandbox = make(NameReservation { name: name.clone(), former, known: &sandboxes })?;
        if let Some(former) = sandboxes.insert(name, sandbox.clone()) {
            sandbox.set_former(former);
        }
        trim(&mut sandboxes);
        Ok(sandbox)
    }

    /// Takes an earlier daemon's sandboxes over. It may have died between a sandbox's record and forgetting the former
    /// one of that name.
    pub fn adopt(&self, mut all: Vec<Arc<Sandbox>>) {
        all.sort_by_cached_key(|sandbox| (sandbox.is_live(), sandbox.record().started));
        let mut sandboxes = self.lock();
        for sandbox in all {
            if let Some(former) = sandboxes.insert(sandbox.name(), sandbox) {
                former.forget();
            }
        }
        trim(&mut sandboxes);
    }

    /// Gives a live sandbox another name, as [`Registry::add`] would.
    pub fn rename(&self, sandbox: &Arc<Sandbox>, name: &str) -> Result<()> {
        names::check(name)?;
        let mut sandboxes = self.lock();
        if sandboxes.get(name).is_some_and(|other| other.is_live()) {
            return Err(SandboxError::NameInUse { name: name.to_string() }.into());
        }
        sandboxes.remove(&sandbox.name());
        sandbox.note(|record| record.name = name.to_string());
        if let Some(former) = sandboxes.insert(name.to_string(), sandbox.clone()) {
            former.forget();
        }
        Ok(())
    }

    /// Forgets a sandbox. The one whose place it was to take, if it never came to run, is there again.
    pub fn remove(&self, sandbox: &Arc<Sandbox>) {
        let mut sandboxes = self.lock();
        let name = sandbox.name();
        if sandboxes.get(&name).is_some_and(|found| Arc::ptr_eq(found, sandbox)) {
            sandboxes.remove(&name);
            if let Some(former) = sandbox.take_former() {
                sandboxes.insert(name, former);
            }
        }
        sandbox.forget();
    }

    /// Forgets the ended sandbox of this name, with its logs; the room that those took.
    pub fn forget(&self, name: &str) -> Result<u64> {
        let mut sandboxes = self.lock();
        let sandbox = sandboxes.get(name).ok_or_else(|| SandboxError::Unknown { name: name.to_string() })?;
        let state = sandbox.record().state;
        if state.is_live() {
            return Err(SandboxError::StillRuns {
                name: name.to_string(),
                state: state_word(state).to_string(),
            }
            .into());
        }
        Ok(sandboxes.remove(name).map_or(0, |sandbox| forget(name, &sandbox)))
    }

    /// Forgets all that have ended and stay so; their names, and the room that their logs took.
    pub fn forget_ended(&self) -> (Vec<String>, u64) {
        let mut freed = 0;
        let mut names: Vec<String> = self
            .lock()
            .extract_if(|_, sandbox| sandbox.has_ended())
            .map(|(name, sandbox)| {
                freed += forget(&name, &sandbox);
                name
            })
            .collect();
        names.sort();
        (names, freed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Sandbox>>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets a sandbox whose name is free from now on; the room that its logs took.
fn forget(name: &str, sandbox: &Sandbox) -> u64 {
    events::tell("removed", |happened| happened.sandbox = Some(name.to_string()));
    sandbox.forget()
}

fn trim(sandboxes: &mut HashMap<String, Arc<Sandbox>>) {
    let ended = sandboxes.values().filter(|sandbox| sandbox.has_ended());
    let mut ended: Vec<_> = ended.map(|sandbox| sandbox.record()).collect();
    if ended.len() <= ENDED_KEPT {
        return;
    }
    ended.sort_by(|a, b| b.ended.cmp(&a.ended));
    for record in &ended[ENDED_KEPT..] {
        if let Some(sandbox) = sandboxes.remove(&record.name) {
            forget(&record.name, &sandbox);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rekindle_protocol::daemon::State;

    use super::*;
    use crate::caches::{CacheLimits, Caches};
    use crate::contexts::Contexts;
    use crate::error::Error;
    use crate::host::paths::Paths;
    use crate::pool::{PoolSize, WorkerPool};
    use crate::sandboxes::record::Record;
    use crate::workers::Spares;

    fn sandbox(paths: &Paths, name: &str, state: State) -> Arc<Sandbox> {
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
        let spares = Spares::open(paths, "/rekindled".into());
        let caches = Caches::new(CacheLimits::default(), paths.store(), spares.clone());
        let contexts = Contexts::open(paths, "/rekindled".into());
        let none = PoolSize { per_gpu: 0, most: 0, window: std::time::Duration::ZERO };
        Sandbox::new(paths, &WorkerPool::new("/rekindled".into(), none, spares, caches, contexts), record)
    }

    fn paths(root: &Path) -> Paths {
        let at = |name| Some(root.join(name));
        let paths = Paths::new(at("socket"), at("state"), at("runs")).unwrap();
        paths.prepare().unwrap();
        paths
    }

    #[test]
    fn one_that_has_ended_is_given_no_worker() {
        let root = tempfile::tempdir().unwrap();
        let paths = paths(root.path());
        let ended = sandbox(&paths, "one", State::Running);
        std::fs::create_dir(&ended.run_directory).unwrap();
        ended.ended(None);
        // Somebody made the directory again meanwhile: what a worker would put there nobody would remove.
        std::fs::create_dir(&ended.run_directory).unwrap();
        let refused = ended.take_worker(None).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Sandboxes(SandboxError::EndedMeanwhile { .. })), "{refused}");
    }

    #[test]
    fn ten_thousand_live_sandboxes_keep_their_names() {
        let root = tempfile::tempdir().unwrap();
        let (paths, registry) = (paths(root.path()), Registry::default());
        let name = |n: usize| format!("../job {n} $(x)");
        for n in 0..10_000 {
            registry.add(Some(&name(n)), "", |at| Ok(sandbox(&paths, &at.name, State::Running))).unwrap();
        }
        for n in 0..10_000 {
            assert_eq!(registry.get(&name(n)).unwrap().name(), name(n));
            let again = registry.add(Some(&name(n)), "", |_| panic!("a name was given twice"));
            assert!(matches!(again, Err(Error::Sandboxes(SandboxError::NameInUse { .. }))));
        }
        assert!(matches!(registry.get("job"), Err(Error::Sandboxes(SandboxError::Unknown { .. }))));
    }

    #[test]
    fn one_that_is_renamed_is_found_by_its_new_name_alone() {
        let root = tempfile::tempdir().unwrap();
        let (paths, registry) = (paths(root.path()), Registry::default());
        let add =
            |name, state| registry.add(Some(name), "", |at| Ok(sandbox(&paths, &at.name, state))).unwrap();
        let (one, _) = (add("one", State::Running), add("taken", State::Running));
        add("over", State::Exited);
        assert!(matches!(
            registry.rename(&one, "taken"),
            Err(Error::Sandboxes(SandboxError::NameInUse { .. }))
        ));
        assert!(Arc::ptr_eq(&registry.get("one").unwrap(), &one));
        registry.rename(&one, "over").unwrap();
        assert!(Arc::ptr_eq(&registry.get("over").unwrap(), &one) && registry.get("one").is_err());
        assert_eq!((one.name(), registry.all().len()), ("over".to_string(), 2));
        let kept = Record::load_all(&paths.sandboxes()).unwrap();
        assert!(kept.iter().any(|record| record.name == "over" && record.is_live()));
    }

    #[test]
    fn ended_sandboxes_give_up_their_names_and_are_forgotten_in_time() {
        let root = tempfile::tempdir().unwrap();
        let (paths, registry) = (paths(root.path()), Registry::default());
        for n in 0..ENDED_KEPT + 50 {
            let name = format!("{n:04}");
            let add = || registry.add(Some(&name), "", |at| Ok(sandbox(&paths, &at.name, State::Exited)));
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
