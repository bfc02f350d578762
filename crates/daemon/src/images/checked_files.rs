//! Which page files were read whole and found to be what their images say, since this daemon began: they are not read
//! again for every restore.
//!
//! A file is the same as long as its inode, its length, when it was written and when the inode changed are. The last of
//! them cannot be set back by anybody, but also changes with each name that a file gets or loses, as it does for every
//! program that maps it. So the daemon gives and takes those names through [`Checked::keeping`], which looks before and
//! after. A name that comes or goes otherwise costs a check more. What a disk changes by itself, in pages that memory has
//! let go of, is not seen so: `restore --verify` and `verify` read everything.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

use rekindle_store::{ContentHash, Part, bounded};

/// Those of this process.
pub static CHECKED: LazyLock<Checked> = LazyLock::new(Checked::default);

/// So many files are remembered.
const MOST: usize = 1 << 16;

/// Device and inode.
type Key = (u64, u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Identity {
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Identity {
    fn of(found: &Metadata) -> (Key, Identity) {
        let identity = Identity {
            bytes: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        };
        ((found.dev(), found.ino()), identity)
    }

    fn is_but_for_names(&self, other: &Identity) -> bool {
        (self.bytes, self.modified) == (other.bytes, other.modified)
    }
}

struct Entry {
    identity: Identity,
    /// What it was compared with.
    expected: ContentHash,
    /// Else somebody reads it.
    whole: bool,
}

#[derive(Default)]
pub struct Checked {
    entries: Mutex<HashMap<Key, Entry>>,
    ended: Condvar,
}

/// A file that is being read; dropped, nothing is known of it.
pub struct Claim<'a> {
    checked: &'a Checked,
    key: Key,
}

impl Checked {
    /// Whether it is known that the file is what the part says.
    pub fn knows(&self, part: &Part, path: &Path) -> bool {
        let entries = self.lock();
        let Ok(found) = bounded::look(path) else { return false };
        let (key, identity) = Identity::of(&found);
        entries.get(&key).is_some_and(|entry| entry.whole && entry.is_of(part, identity))
    }

    /// Claims a file for reading it, after whoever reads it already; none if it is known by then. Who claims several does so
    /// by [`place`].
    pub fn claim(&self, part: &Part, file: &File) -> std::io::Result<Option<Claim<'_>>> {
        let mut entries = self.lock();
        loop {
            let (key, identity) = Identity::of(&file.metadata()?);
            match entries.get(&key) {
                Some(entry) if entry.whole && entry.is_of(part, identity) => return Ok(None),
                Some(entry) if !entry.whole => {
                    entries = self.ended.wait(entries).unwrap_or_else(PoisonError::into_inner);
                }
                _ => {
                    if entries.len() >= MOST {
                        entries.retain(|_, entry| !entry.whole);
                    }
                    entries.insert(key, Entry { identity, expected: expected(part), whole: false });
                    return Ok(Some(Claim { checked: self, key }));
                }
            }
        }
    }

    /// Gives a file a further name, or takes one of several, which changes nothing of what is known of it.
    pub fn keeping<T>(&self, path: &Path, change: impl FnOnce() -> T) -> T {
        let mut entries = self.lock();
        let Ok(file) = bounded::open(path) else { return change() };
        let look = || file.metadata().ok().map(|found| Identity::of(&found));
        let before = look();
        let value = change();
        if let (Some((key, before)), Some((_, after))) = (before, look())
            && let Some(entry) = entries.get_mut(&key)
            && entry.identity == before
            && before.is_but_for_names(&after)
        {
            entry.identity = after;
        }
        value
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn is_of(&self, part: &Part, identity: Identity) -> bool {
        self.identity == identity && self.expected == expected(part)
    }
}

impl Claim<'_> {
    /// All of the file was read and is what it should be, unless it was changed meanwhile.
    pub fn found_whole(self, file: &File) {
        let mut entries = self.checked.lock();
        if let Some(entry) = entries.get_mut(&self.key) {
            let now = file.metadata().ok().map(|found| Identity::of(&found));
            entry.whole = now == Some((self.key, entry.identity));
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut entries = self.checked.lock();
        if entries.get(&self.key).is_some_and(|entry| !entry.whole) {
            entries.remove(&self.key);
        }
        self.checked.ended.notify_all();
    }
}

/// In which order files are claimed, so that nobody waits for one who waits for him.
pub fn place(file: &File) -> Key {
    file.metadata().map(|found| Identity::of(&found).0).unwrap_or_default()
}

/// All that a part says of its file.
fn expected(part: &Part) -> ContentHash {
    let chunks = part.chunks.iter().flat_map(|chunk| [*chunk.hash.bytes(), length(chunk.bytes)]);
    let all: Vec<u8> = [length(part.bytes), length(part.tail)].into_iter().chain(chunks).flatten().collect();
    ContentHash::of(&all)
}

fn length(bytes: u64) -> [u8; 32] {
    let mut word = [0; 32];
    word[..8].copy_from_slice(&bytes.to_le_bytes());
    word
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt;

    use rekindle_store::{Encoding, HashedChunks, Image, PartKind, Store};
    use tempfile::TempDir;

    use super::*;

    /// One with a page file.
    fn image() -> (TempDir, Image) {
        let root = tempfile::tempdir().unwrap();
        let store = Store::open(&root.path().join("store")).unwrap();
        let pages = root.path().join("pages");
        fs::write(&pages, [7; 100_000]).unwrap();
        let draft = store.begin("job").unwrap();
        draft.take_pages(PartKind::CpuPages, "anon-1", &pages, 100_000, &HashedChunks::new()).unwrap();
        let image = draft.commit().unwrap();
        (root, image)
    }

    #[test]
    fn a_file_is_known_until_anything_of_it_changes() {
        let (root, image) = image();
        let part = image.part(PartKind::CpuPages, "anon-1").unwrap();
        let path = image.file_path(part).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();

        let checked = Checked::default();
        let claim = || checked.claim(part, &file).unwrap();
        let find_whole = || claim().unwrap().found_whole(&file);
        assert!(!checked.knows(part, &path));
        drop(claim().unwrap());
        assert!(!checked.knows(part, &path));
        find_whole();
        assert!(checked.knows(part, &path) && claim().is_none());

        // Names that programs get and lose, beside others.
        let link = root.path().join("link");
        checked.keeping(&path, || fs::hard_link(&path, &link)).unwrap();
        assert!(checked.knows(part, &path) && checked.knows(part, &link));
        checked.keeping(&link, || fs::remove_file(&link)).unwrap();
        assert!(checked.knows(part, &path));
        // A name that somebody else gives.
        fs::hard_link(&path, &link).unwrap();
        assert!(!checked.knows(part, &path));

        // Contents, their time set back.
        find_whole();
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        file.write_all_at(&[8], 4711).unwrap();
        file.set_modified(time).unwrap();
        assert!(!checked.knows(part, &path));
        // The same while it is read, and while it gets a name.
        let reading = claim().unwrap();
        file.write_all_at(&[7], 4711).unwrap();
        reading.found_whole(&file);
        assert!(!checked.knows(part, &path));
        find_whole();
        checked.keeping(&path, || file.write_all_at(&[7], 4711)).unwrap();
        assert!(!checked.knows(part, &path));

        // Another image says something else of the same file.
        find_whole();
        let mut other = part.clone();
        other.chunks[0].encoding = Encoding::Raw;
        other.chunks[0].hash = ContentHash::of(b"something else");
        assert!(checked.knows(part, &path) && !checked.knows(&other, &path));
    }

    #[test]
    fn one_reads_and_the_others_wait() {
        let (_root, image) = image();
        let part = image.part(PartKind::CpuPages, "anon-1").unwrap();
        let file = File::open(image.file_path(part).unwrap()).unwrap();
        let checked = Checked::default();
        let first = checked.claim(part, &file).unwrap().unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| checked.claim(part, &file).unwrap().is_none());
            first.found_whole(&file);
            assert!(second.join().unwrap());
        });
    }
}
