//! What is kept on disk of a tenant, so that the next daemon has it again. One JSON file each, replaced as a whole.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rekindle_gateway::Token;
use rekindle_protocol::tenant::Quota;
use rekindle_store::bounded;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The longest record read.
const LONGEST: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantRecord {
    pub name: String,
    pub quota: Quota,
    pub tokens: Vec<Token>,
}

impl TenantRecord {
    /// Writes it beside its place and moves it there.
    pub fn save(&self, directory: &Path) -> Result<()> {
        let place = path(directory, &self.name);
        let partial = place.with_added_extension("partial");
        let write = || {
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
            file.write_all(&serde_json::to_vec_pretty(self)?)?;
            file.sync_data()?;
            fs::rename(&partial, &place)
        };
        write().map_err(|source| {
            let _ = fs::remove_file(&partial);
            Error::io("write the record", &place, source)
        })
    }

    fn load(directory: &Path, name: &str) -> std::result::Result<TenantRecord, String> {
        let text = bounded::read(&path(directory, name), LONGEST).map_err(|error| error.to_string())?;
        let record: TenantRecord = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        match record.name == name {
            true => Ok(record),
            false => Err("it is named after another tenant".to_string()),
        }
    }

    /// All that can be read; the others are reported and left alone.
    pub fn load_all(directory: &Path) -> Result<Vec<TenantRecord>> {
        let failed = |source| Error::io("list", directory, source);
        let mut records = Vec::new();
        for entry in fs::read_dir(directory).map_err(failed)? {
            let file = entry.map_err(failed)?.file_name();
            let Some(name) = file.to_str().and_then(|file| file.strip_suffix(".json")) else { continue };
            match TenantRecord::load(directory, name) {
                Ok(record) => records.push(record),
                Err(reason) => log::error!("the record of the tenant {name:?} cannot be used: {reason}"),
            }
        }
        Ok(records)
    }

    /// Whether a tenant of this name is kept, even if its record cannot be read.
    pub fn is_there(directory: &Path, name: &str) -> bool {
        path(directory, name).symlink_metadata().is_ok()
    }

    pub fn remove(directory: &Path, name: &str) -> Result<()> {
        let place = path(directory, name);
        fs::remove_file(&place).map_err(|source| Error::io("remove", &place, source))
    }
}

fn path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.json"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn records_are_nobody_else_s_and_broken_ones_are_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let (token, told) = Token::make("now".into()).unwrap();
        let quota = Quota { memory_bytes: Some(1), rate: "2/s".parse().ok(), ..Quota::default() };
        let record = TenantRecord { name: "a".into(), quota, tokens: vec![token] };
        record.save(directory.path()).unwrap();
        let file = path(directory.path(), "a");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!fs::read_to_string(&file).unwrap().contains(told.rsplit('-').next().unwrap()));
        fs::write(directory.path().join("b.json"), "{").unwrap();
        fs::copy(&file, directory.path().join("c.json")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", directory.path().join("d.json")).unwrap();
        assert_eq!(TenantRecord::load_all(directory.path()).unwrap(), std::slice::from_ref(&record));
        assert!(
            TenantRecord::is_there(directory.path(), "b") && !TenantRecord::is_there(directory.path(), "e")
        );
        TenantRecord::remove(directory.path(), "a").unwrap();
        assert!(TenantRecord::load_all(directory.path()).unwrap().is_empty());
    }
}
