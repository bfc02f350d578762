//! Records that are kept on disk, so that the next daemon has them: one JSON file each, replaced as a whole.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rekindle_store::bounded;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::replace::{Outlasting, PRIVATE, replace};
use crate::error::{Error, Result};

/// The longest record read.
pub const LONGEST: u64 = 1 << 20;

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

    /// What its file is called.
    fn key(&self) -> Cow<'_, str>;

    /// An error says why it cannot be used.
    fn check(&self) -> std::result::Result<(), RecordError> {
        Ok(())
    }

    /// Writes it beside its place and moves it there. Nobody else can read it.
    fn save(&self, directory: &Path) -> Result<()> {
        let place = path(directory, &self.key());
        serde_json::to_vec_pretty(self)
            .map_err(io::Error::from)
            .and_then(|text| replace(&place, &text, PRIVATE, Outlasting::Contents))
            .map_err(|source| Error::io("write the record", &place, source))
    }

    fn load(directory: &Path, key: &str) -> std::result::Result<Self, RecordError> {
        let text = bounded::read(&path(directory, key), LONGEST)?;
        let record: Self = serde_json::from_slice(&text)?;
        match record.key() == key {
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
            let Some(key) = file.to_str().and_then(|file| file.strip_suffix(".json")) else { continue };
            match Self::load(directory, key) {
                Ok(record) => records.push(record),
                Err(reason) => {
                    log::error!("the record of the {} {key:?} cannot be used: {reason}", Self::KIND);
                }
            }
        }
        Ok(records)
    }

    /// Whether there is one, even if it cannot be read.
    fn is_there(directory: &Path, key: &str) -> bool {
        path(directory, key).symlink_metadata().is_ok()
    }

    fn remove(directory: &Path, key: &str) -> Result<()> {
        let place = path(directory, key);
        fs::remove_file(&place).map_err(|source| Error::io("remove", &place, source))
    }
}

fn path(directory: &Path, key: &str) -> PathBuf {
    directory.join(format!("{key}.json"))
}
