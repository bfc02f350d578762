//! Where a dump is written before it is in an image.

use std::path::PathBuf;

use crate::error::Result;
use crate::host::paths::private_directory;

/// A directory for the time of a dump.
pub struct Scratch {
    pub path: PathBuf,
}

impl Scratch {
    pub fn make(path: PathBuf) -> Result<Scratch> {
        private_directory(&path, true)?;
        Ok(Scratch { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            log::warn!("{} stays: {error}", self.path.display());
        }
    }
}
