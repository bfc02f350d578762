//! Code on its way to a device, and how an image refers to it.
//!
//! A library's code is mapped from its file, once for all modules that come from it, and an image names the file and
//! what identified its contents. All other code goes into the image, by the hash of its bytes.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use memmap2::Mmap;
use rekindle_code::elf::Elf;
use rekindle_device::Code;

use crate::image;

/// Code that was given to a device.
#[derive(Clone)]
pub(crate) enum LoadedCode {
    Owned(Code),
    Mapped(MappedCode),
    Pending(Arc<PendingCode>),
}

impl LoadedCode {
    /// `Err` says why code that was to be read could not be.
    pub(crate) fn code(&self) -> Result<Code, Arc<image::Error>> {
        match self {
            LoadedCode::Owned(code) => Ok(code.clone()),
            LoadedCode::Mapped(mapped) => Ok(Code::new(mapped.clone())),
            LoadedCode::Pending(pending) => pending.wait(),
        }
    }
}

/// Code of an image that another thread reads.
#[derive(Default)]
pub(crate) struct PendingCode {
    read: Mutex<Option<Result<Code, Arc<image::Error>>>>,
    is_read: Condvar,
}

impl PendingCode {
    pub(crate) fn set(&self, code: Result<Code, Arc<image::Error>>) {
        *self.read.lock().unwrap_or_else(PoisonError::into_inner) = Some(code);
        self.is_read.notify_all();
    }

    pub(crate) fn wait(&self) -> Result<Code, Arc<image::Error>> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match &*read {
                Some(code) => return code.clone(),
                None => read = self.is_read.wait(read).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// A range of a mapped file.
#[derive(Clone)]
pub(crate) struct MappedCode {
    file: Arc<MappedFile>,
    pub offset: u64,
    pub bytes: u64,
}

impl MappedCode {
    pub(crate) fn path(&self) -> &Path {
        &self.file.path
    }

    /// What tells this file's contents from another's.
    pub(crate) fn identity(&self) -> &str {
        self.file.identity.get_or_init(|| identify(&self.file.map))
    }
}

impl AsRef<[u8]> for MappedCode {
    fn as_ref(&self) -> &[u8] {
        // The range was checked against the map when this was made.
        &self.file.map[self.offset as usize..(self.offset + self.bytes) as usize]
    }
}

struct MappedFile {
    path: PathBuf,
    map: Mmap,
    identity: OnceLock<String>,
}

#[derive(PartialEq, Eq, Hash)]
struct FileKey {
    path: PathBuf,
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

/// Files that code was mapped from.
#[derive(Default)]
pub(crate) struct CodeCache {
    files: HashMap<FileKey, Arc<MappedFile>>,
}

impl CodeCache {
    /// A range of a file. A file that changed since it was last mapped is another file.
    pub(crate) fn map(&mut self, path: &Path, offset: u64, bytes: u64) -> io::Result<MappedCode> {
        let file = File::open(path)?;
        let data = file.metadata()?;
        let key = FileKey {
            path: path.to_owned(),
            device: data.dev(),
            inode: data.ino(),
            bytes: data.len(),
            modified: (data.mtime(), data.mtime_nsec()),
        };
        let mapped = match self.files.get(&key) {
            Some(mapped) => mapped.clone(),
            None => {
                // SAFETY: a private read-only mapping; a library that is cut short under its users breaks them all,
                // the program itself first, as it does natively.
                let map = unsafe { Mmap::map(&file)? };
                let mapped = Arc::new(MappedFile { path: path.to_owned(), map, identity: OnceLock::new() });
                self.files.insert(key, mapped.clone());
                mapped
            }
        };
        let length = mapped.map.len() as u64;
        if offset.checked_add(bytes).is_none_or(|end| end > length) {
            let reason =
                format!("bytes {offset} to {} of a file of {length} bytes", offset.saturating_add(bytes));
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason));
        }
        Ok(MappedCode { file: mapped, offset, bytes })
    }
}

/// The build id of an ELF file; else a hash of the length and of pages spread evenly over the file, for libraries with
/// code are often too long to be read whole while the program stands still.
fn identify(bytes: &[u8]) -> String {
    if let Some(id) = Elf::read(bytes).and_then(|elf| elf.build_id()) {
        return format!("build-id:{id}");
    }
    const SAMPLES: usize = 64;
    const PAGE: usize = 4096;
    let mut hash = blake3::Hasher::new();
    hash.update(&(bytes.len() as u64).to_le_bytes());
    for sample in 0..SAMPLES {
        let at = bytes.len() / SAMPLES * sample;
        hash.update(&bytes[at..bytes.len().min(at + PAGE)]);
    }
    hash.update(&bytes[bytes.len().saturating_sub(PAGE)..]);
    format!("sampled-blake3:{}", hash.finalize().to_hex())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_mapped_once_and_ranges_are_checked() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"0123456789").unwrap();
        let mut cache = CodeCache::default();
        let one = cache.map(file.path(), 2, 3).unwrap();
        assert_eq!(one.as_ref(), b"234");
        cache.map(file.path(), 0, 10).unwrap();
        assert_eq!(cache.files.len(), 1);
        assert!(cache.map(file.path(), 8, 3).is_err());
        assert!(cache.map(file.path(), u64::MAX, 3).is_err());
        assert!(one.identity().starts_with("sampled-blake3:"));
    }

    #[test]
    fn contents_decide_the_identity() {
        let long = vec![7u8; 1 << 20];
        let mut other = long.clone();
        assert_eq!(identify(&long), identify(&other));
        other.pop();
        assert_ne!(identify(&long), identify(&other));
    }
}
