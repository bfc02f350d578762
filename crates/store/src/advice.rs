//! What is learned of an image after it was made: files beside the manifest. They are advice, which changes how fast and
//! into how much memory an image is restored, never what is restored.
//!
//! Writers take turns by a lock on the image's directory, and a whole file is renamed into place.

use std::fs::File;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::image::Image;

pub(crate) const LOAD_ORDER: &str = "load-order.json";
pub(crate) const FIRST_PAGES: &str = "first-pages.json";
pub(crate) const UNWRITTEN: &str = "unwritten.json";
/// Written and then renamed by whoever has the lock.
const NEW_FILE: &str = "advice.new";
/// Longer files are none of ours.
const MOST_BYTES: u64 = 64 << 20;

/// What a file holds; none if it is not there.
pub(crate) fn read<T: DeserializeOwned>(image: &Image, file: &str) -> Result<Option<T>> {
    let path = image.path().join(file);
    let Ok(found) = std::fs::metadata(&path) else { return Ok(None) };
    let damaged = |reason: String| Error::Damaged { path: path.clone(), reason };
    if found.len() > MOST_BYTES {
        return Err(damaged(format!("it has {} bytes, and at most {MOST_BYTES} make sense", found.len())));
    }
    let text = std::fs::read(&path).map_err(|error| Error::io("read", &path, 0, error))?;
    serde_json::from_slice(&text).map(Some).map_err(|error| damaged(error.to_string()))
}

/// Writes a file in place of one that was there. The caller has the lock.
pub(crate) fn write(image: &Image, file: &str, contents: &impl Serialize) -> Result<()> {
    let path = image.path().join(file);
    let text = serde_json::to_vec(contents).map_err(|error| Error::io("write", &path, 0, error.into()))?;
    let disk = Disk::default();
    let new = image.path().join(NEW_FILE);
    // Of a writer that died.
    let _ = std::fs::remove_file(&new);
    disk.write_new(&new, &text).and_then(|file| disk.sync_file(&file, &new))?;
    disk.rename(&new, &path)?;
    disk.sync_dir(image.path())
}

pub(crate) fn lock(image: &Image) -> Result<File> {
    let failed = |error| Error::io("lock", image.path(), 0, error);
    let directory = File::open(image.path()).map_err(failed)?;
    directory.lock().map_err(failed)?;
    Ok(directory)
}

/// Whether a file in the image's directory is one that was written after the image was made.
pub(crate) fn is_advice(image: &Image, path: &Path) -> bool {
    [LOAD_ORDER, FIRST_PAGES, UNWRITTEN, NEW_FILE].iter().any(|file| path == image.path().join(file))
}
