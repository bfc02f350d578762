//! What is learned of an image after it was made: files beside the manifest. They are advice, which changes how fast and
//! into how much memory an image is restored, never what is restored.
//!
//! Writers take turns by a lock on the image's directory, and a whole file is renamed into place.
//!
//! ```text
//! {"checksum":"<64 hexadecimal digits>","parts":...
//! ```
//! The checksum is the BLAKE3 hash of the whole file with those 64 digits replaced by zeros. Files of older versions have
//! none, and begin with what they hold.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::bounded;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::half;
use crate::hash::ContentHash;
use crate::image::Image;

pub(crate) const LOAD_ORDER: &str = "load-order.json";
pub(crate) const FIRST_PAGES: &str = "first-pages.json";
pub(crate) const UNWRITTEN: &str = "unwritten.json";
pub(crate) const MEMORY_DEMAND: &str = "memory-demand.json";
/// Written and then renamed by whoever has the lock.
const NEW_FILE: &str = "advice.new";
/// Longer files are none of ours.
const MOST_BYTES: u64 = 64 << 20;

const OPENING: &str = "{\"checksum\":\"";
const DIGITS: usize = 64;
const NO_CHECKSUM: [u8; DIGITS] = [b'0'; DIGITS];
/// The first words of files without a checksum.
const OLDER: [&str; 2] = ["parts", "runs"];

/// What a file holds; none if it is not there.
pub(crate) fn read<T: DeserializeOwned>(image: &Image, file: &str) -> Result<Option<T>> {
    let Some(text) = read_checked(image, file)? else { return Ok(None) };
    let damaged = |error: serde_json::Error| damaged(image, file, error.to_string());
    serde_json::from_slice(&text).map(Some).map_err(damaged)
}

fn read_checked(image: &Image, file: &str) -> Result<Option<Vec<u8>>> {
    let text = match bounded::read(&image.path().join(file), MOST_BYTES) {
        Err(error) if bounded::is_not_found(&error) => return Ok(None),
        read => read?,
    };
    check(&text).map_err(|reason| damaged(image, file, reason.into()))?;
    Ok(Some(text))
}

fn damaged(image: &Image, file: &str, reason: String) -> Error {
    Error::BadAdvice { path: image.path().join(file), reason }
}

/// That the contents match their checksum, where they have one.
fn check(text: &[u8]) -> std::result::Result<(), &'static str> {
    if let Some(rest) = text.strip_prefix(OPENING.as_bytes()) {
        let (digits, rest) = rest.split_at_checked(DIGITS).ok_or("it ends within its checksum")?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(OPENING.as_bytes()).update(&NO_CHECKSUM).update(rest);
        let matches = digits == ContentHash::from(hasher.finalize()).to_string().as_bytes();
        return if matches { Ok(()) } else { Err("its contents do not match its checksum") };
    }
    let mut words = text.split(|byte| *byte == b'"');
    let opens = words.next().is_some_and(|start| start.trim_ascii() == b"{");
    let is_older = words.next().is_some_and(|word| OLDER.iter().any(|older| older.as_bytes() == word));
    if opens && is_older { Ok(()) } else { Err("it does not begin as such a file does") }
}

/// The file's bytes. What is written is an object with something in it.
fn with_checksum(contents: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let object = serde_json::to_vec(contents)?;
    let fields = object.strip_prefix(b"{").unwrap_or(&object);
    let mut text = [OPENING.as_bytes(), &NO_CHECKSUM, b"\",", fields].concat();
    let checksum = ContentHash::of(&text).to_string();
    text[OPENING.len()..OPENING.len() + DIGITS].copy_from_slice(checksum.as_bytes());
    Ok(text)
}

/// Writes a file in place of one that was there. The caller has the lock.
pub(crate) fn write(image: &Image, file: &str, contents: &impl Serialize) -> Result<()> {
    let path = image.path().join(file);
    let text = with_checksum(contents).map_err(|error| Error::io("write", &path, 0, error.into()))?;
    let disk = Disk::default();
    let new = image.path().join(NEW_FILE);
    // Of a writer that died.
    disk.remove_tree(&new)?;
    disk.write_new(&new, &text).and_then(|file| disk.sync_file(&file, &new))?;
    if path.is_dir() {
        disk.remove_tree(&path)?;
    }
    disk.rename(&new, &path)?;
    disk.sync_dir(image.path())
}

pub(crate) fn lock(image: &Image) -> Result<File> {
    if half::split(image.path()).is_some() {
        Disk::default().create_dir(image.path())?;
    }
    let failed = |error| Error::io("lock", image.path(), 0, error);
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let directory = OpenOptions::new().read(true).custom_flags(flags).open(image.path()).map_err(failed)?;
    directory.lock().map_err(failed)?;
    Ok(directory)
}

/// A sentence for each of these files that is damaged, of all halves. A restore goes on without it.
pub(crate) fn problems(image: &Image) -> Result<Vec<String>> {
    Ok(image.halves()?.iter().flat_map(problems_of).collect())
}

fn problems_of(image: &Image) -> Vec<String> {
    let unfinished = match bounded::look(&image.path().join(NEW_FILE)) {
        Err(error) if !bounded::is_not_found(&error) => Err(error),
        _ => Ok(()),
    };
    let read = [
        image.load_order().map(drop),
        image.first_pages().map(drop),
        image.unwritten().map(drop),
        image.memory_demand().map(drop),
        unfinished,
    ];
    read.into_iter().filter_map(|read| Some(read.err()?.to_string())).collect()
}

impl Image {
    /// A sentence for each file of advice that does not match its checksum: what a restore does without.
    pub fn damaged_advice(&self) -> Vec<String> {
        let halves = self.halves().unwrap_or_default();
        let files = [LOAD_ORDER, FIRST_PAGES, UNWRITTEN, MEMORY_DEMAND];
        let read = halves.iter().flat_map(|half| files.map(|file| read_checked(half, file)));
        read.filter_map(|read| Some(read.err()?.to_string())).collect()
    }
}

/// Whether a file in the directory of an image, or of a half, is one that was written after the image was made.
pub(crate) fn is_advice(directory: &Path, path: &Path) -> bool {
    [LOAD_ORDER, FIRST_PAGES, UNWRITTEN, MEMORY_DEMAND, NEW_FILE]
        .iter()
        .any(|file| path == directory.join(file))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_byte_changes_unseen() {
        let text = with_checksum(&json!({ "parts": ["one", "two"], "restores": 2 })).unwrap();
        check(&text).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(value["parts"], json!(["one", "two"]));
        for at in 0..text.len() {
            for flip in 1..=u8::MAX {
                let mut changed = text.clone();
                changed[at] ^= flip;
                assert!(check(&changed).is_err(), "{}", String::from_utf8_lossy(&changed));
            }
            assert!(check(&text[..at]).is_err());
        }
    }

    #[test]
    fn files_without_a_checksum_are_those_of_older_versions() {
        for text in ["{\"parts\": [\"a\"]}", " {\n \"runs\":[],\"restores\":1}", "{\"parts\":[]}"] {
            assert_eq!(check(text.as_bytes()), Ok(()));
        }
        for text in ["", "nonsense", "{}", "[\"parts\"]", "{\"part\":[]}", "{\"restores\":1,\"parts\":[]}"] {
            assert!(check(text.as_bytes()).is_err(), "{text}");
        }
    }
}
