//! Records that are kept on disk, so that the next daemon has them: one JSON file each, by name, replaced as a whole.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rekindle_store::bounded;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::replace::{Outlasting, PRIVATE, replace};
use crate::error::{Error, Result};

/// The longest record read.
const LONGEST: u64 = 1 << 20;

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error(transparent)]
    Read(#[from] rekindle_store::Error),
    #[error(transparent)]
    Parse(#[from] serde_json::Error),
    #[error("it is named after another {kind}")]
    Misnamed { kind: &'static str },
    #[error(transparent)]
    Refused(Box<dyn std::error::Error + Send + Sync>),
}

pub trait StoredRecord: Serialize + DeserializeOwned {
    /// What it is a record of.
    const KIND: &'static str;

    fn name(&self) -> &str;

    /// An error says why it cannot be used.
    fn check(&self) -> std::result::Result<(), RecordError> {
        Ok(())
    }

    /// Writes it beside its place and moves it there. Nobody else can read it.
    fn save(&self, directory: &Path) -> Result<()> {
        let place = path(directory, self.name());
        serde_json::to_vec_pretty(self)
            .map_err(io::Error::from)
            .and_then(|text| replace(&place, &text, PRIVATE, Outlasting::Contents))
            .map_err(|source| Error::io("write the record", &place, source))
    }

    fn load(directory: &Path, name: &str) -> std::result::Result<Self, RecordError> {
        let text = bounded::read(&path(directory, name), LONGEST)?;
        let record: Self = serde_json::from_slice(&text)?;
        match record.name() == name {
            true => record.check().map(|()| record),
            false => Err(RecordError::Misnamed { kind: Self::KIND }),
        }
    }

    /// All that can be read; the others are reported and left alone.
    fn load_all(directory: &Path) -> Result<Vec<Self>> {
        let failed = |source| Error::io("list", directory, source);
        let mut records = Vec::new();
        for entry in fs::read_dir(directory).map_err(failed)? {
            let file = entry.map_err(failed)?.file_name();
            let Some(name) = file.to_str().and_then(|file| file.strip_suffix(".json")) else { continue };
            match Self::load(directory, name) {
                Ok(record) => records.push(record),
                Err(reason) => {
                    log::error!("the record of the {} {name:?} cannot be used: {reason}", Self::KIND);
                }
            }
        }
        Ok(records)
    }

    /// Whether there is one of this name, even if it cannot be read.
    fn is_there(directory: &Path, name: &str) -> bool {
        path(directory, name).symlink_metadata().is_ok()
    }

    fn remove(directory: &Path, name: &str) -> Result<()> {
        let place = path(directory, name);
        fs::remove_file(&place).map_err(|source| Error::io("remove", &place, source))
    }
}

fn path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.json"))
}
