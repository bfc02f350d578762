//! The order in which parts of an image are best loaded: a file beside the manifest, for it is learned after the image
//! was made. It is advice: what it does not name is loaded too, and what is not there is passed over.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::image::Image;

const FILE: &str = "load-order.json";
/// Longer files are none of ours.
const MOST_BYTES: u64 = 64 << 20;

#[derive(Serialize, Deserialize)]
struct LoadOrder {
    /// Names of parts of GPU memory, the first to load first.
    parts: Vec<String>,
}

impl Image {
    /// The order that was recorded; empty if none was.
    pub fn load_order(&self) -> Result<Vec<String>> {
        let path = self.load_order_path();
        let Ok(found) = std::fs::metadata(&path) else { return Ok(Vec::new()) };
        let damaged = |reason: String| Error::Damaged { path: path.clone(), reason };
        if found.len() > MOST_BYTES {
            return Err(damaged(format!(
                "it has {} bytes, and at most {MOST_BYTES} make sense",
                found.len()
            )));
        }
        let text = std::fs::read(&path).map_err(|error| Error::io("read", &path, 0, error))?;
        let order: LoadOrder = serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        Ok(order.parts)
    }

    /// Keeps an order, in place of one that was recorded before.
    pub fn set_load_order(&self, parts: &[String]) -> Result<()> {
        let path = self.load_order_path();
        let text = serde_json::to_vec(&LoadOrder { parts: parts.to_vec() });
        let text = text.map_err(|error| Error::io("write", &path, 0, error.into()))?;
        let disk = Disk::default();
        let new = path.with_extension(format!("{}.new", std::process::id()));
        disk.write_new(&new, &text).and_then(|file| disk.sync_file(&file, &new))?;
        disk.rename(&new, &path)?;
        disk.sync_dir(self.path())
    }

    pub(crate) fn load_order_path(&self) -> PathBuf {
        self.path().join(FILE)
    }
}
