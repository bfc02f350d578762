//! Code that is written to an image in the making while the program runs: it never changes, and hashing and writing it takes
//! nearly as long as a move between two GPUs copies memory.

use std::collections::HashMap;
use std::path::PathBuf;

use rekindle_device::Code;
use rekindle_store::{Part, PartKind, Staging};
use serde_json::json;

use super::error::{Error, Result};
use crate::code::LoadedCode;

/// What is in the image already. Where a code's bytes lie tells it from all others for as long as it is held.
#[derive(Default)]
pub(crate) struct CodePreCopy {
    staging: PathBuf,
    names: HashMap<(usize, usize), (Code, String)>,
    parts: HashMap<String, Part>,
}

impl CodePreCopy {
    /// Writes this code to the image in the making at `staging`.
    pub(crate) fn write(staging: PathBuf, codes: &[LoadedCode]) -> Result<CodePreCopy> {
        let draft = Staging::open(&staging)?;
        let mut ahead = CodePreCopy { staging, ..CodePreCopy::default() };
        for loaded in codes {
            match loaded {
                LoadedCode::Mapped(mapped) => {
                    mapped.identity();
                }
                given => {
                    let code = given.code().map_err(Error::PendingCode)?;
                    ahead.name(&draft, &code)?;
                }
            }
        }
        Ok(ahead)
    }

    /// If it is in that image.
    pub(super) fn into(self, staging: &Staging) -> Option<CodePreCopy> {
        (self.staging == staging.path()).then_some(self)
    }

    /// The name of the part with this code, which is written if it is not there yet.
    pub(super) fn name(&mut self, staging: &Staging, code: &Code) -> Result<String> {
        let key = (code.bytes().as_ptr() as usize, code.bytes().len());
        if let Some((_, name)) = self.names.get(&key) {
            return Ok(name.clone());
        }
        let name = blake3::hash(code.bytes()).to_hex().to_string();
        if !self.parts.contains_key(&name) {
            let part = staging.put(PartKind::Module, &name, json!({}), code.bytes())?;
            self.parts.insert(name.clone(), part);
        }
        self.names.insert(key, (code.clone(), name.clone()));
        Ok(name)
    }

    /// The parts of these names alone: what was unloaded meanwhile is not wanted.
    pub(super) fn parts(mut self, staging: &Staging, wanted: impl Iterator<Item = String>) -> Vec<Part> {
        wanted.filter_map(|name| Some(staging.own(self.parts.remove(&name)?, &name))).collect()
    }
}

#[cfg(test)]
mod tests {
    use rekindle_store::Store;

    use super::*;

    #[test]
    fn an_image_has_the_code_of_both_times_once_and_none_that_was_unloaded_between() {
        let location = tempfile::tempdir().unwrap();
        let draft = Store::open(location.path()).unwrap().begin("image").unwrap();
        let code = |byte: u8| Code::new(vec![byte; 100]);
        let (stays, goes, later) = (code(1), code(2), code(3));
        let before = [stays.clone(), goes, stays.clone()].map(LoadedCode::Owned);
        let staging = Staging::open(draft.path()).unwrap();
        let mut ahead = CodePreCopy::write(draft.path().into(), &before).unwrap().into(&staging).unwrap();
        assert_eq!(ahead.parts.len(), 2);
        let names = [&stays, &later, &code(1)].map(|code| ahead.name(&staging, code).unwrap());
        assert_eq!(names[0], names[2], "the same bytes elsewhere");
        let mut parts = ahead.parts(&staging, names.clone().into_iter());
        parts.sort_by_key(|part| part.name != names[0]);
        assert_eq!(parts.iter().map(|part| &part.name).collect::<Vec<_>>(), [&names[0], &names[1]]);
        draft.adopt(parts).unwrap();
        let image = draft.commit().unwrap();
        let read = |name: &str| super::super::code_parts::read(&image, name).unwrap().bytes().to_vec();
        assert_eq!((read(&names[0]), read(&names[1])), (vec![1; 100], vec![3; 100]));
        let other = Store::open(location.path()).unwrap().begin("other").unwrap();
        let ahead = CodePreCopy::write(other.path().into(), &before).unwrap();
        assert!(ahead.into(&staging).is_none(), "it is in another image");
    }
}
