//! An image on its way to another store, which asks only for contents that it does not have.
//!
//! ```text
//! from   manifest ──▶                                      ┌─ chunks, as they are stored, in the manifest's order
//! to                what is there is taken ─ what is not ──┘─▶ each checked by its hash ─ committed
//! ```
//!
//! As with [archives](crate::archive) the manifest alone says what comes: how much of what, and with which hash. What is not
//! exactly that is refused, and nothing of it becomes an image.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rekindle_parallel as parallel;

use crate::archive::{DueChunk, Progress, due, keep_part};
use crate::bounded;
use crate::chunk;
use crate::draft::Draft;
use crate::error::{Error, Result, free_bytes};
use crate::hash::ContentHash;
use crate::image::{Image, peek};
use crate::layout::MANIFEST;
use crate::manifest::{ChunkRef, Encoding, LONGEST_MANIFEST, Manifest, Part, PartKind};
use crate::store::{Store, list};

/// The most files of its own that an image may have that comes: each is open until all of it is there.
const MOST_FILES: usize = 2048;
/// The longest manifest that comes from elsewhere.
pub const LONGEST_SENT: u64 = LONGEST_MANIFEST;

impl Image {
    /// What says of the image all that is needed to take it in.
    pub fn manifest_text(&self) -> Result<Vec<u8>> {
        let reason = |reason| Error::BadManifest { path: self.path().join(MANIFEST), reason };
        self.manifest().to_bytes().map_err(reason)
    }

    /// Sends the chunks that another store has asked for, each checked before. Returns their bytes.
    pub fn send(&self, wanted: &[u32], mut to: impl Write, progress: &Progress<'_>) -> Result<u64> {
        let all = due(self.manifest());
        let unknown = || bad("a chunk is asked for that the image does not have".to_string());
        let chunks = wanted.iter().map(|at| all.get(*at as usize)).collect::<Option<Vec<_>>>();
        let chunks = chunks.ok_or_else(unknown)?;
        let total: u64 = chunks.iter().map(|due| due.chunk.stored).sum();
        let (mut scratch, mut done) = (Vec::new(), 0);
        for due in chunks {
            progress(done, total);
            let part = &self.manifest().parts[due.part];
            let stored = self.stored_chunk(part, due.number, &mut scratch)?;
            to.write_all(&stored).map_err(|source| Error::Unsent { source })?;
            done += due.chunk.stored;
        }
        to.flush().map_err(|source| Error::Unsent { source })?;
        Ok(total)
    }
}

/// An image that comes. Dropped, nothing of it stays.
pub struct Incoming {
    draft: Draft,
    manifest: Manifest,
    /// Of each part.
    places: Vec<Place>,
    /// Contents that this store keeps as chunks, as it does that.
    kept: HashMap<ContentHash, ChunkRef>,
    wanted: Vec<u32>,
}

/// Where a part's contents go.
enum Place {
    Chunks,
    New(File),
    /// Nothing is to come: an image of this store has the same page file, of which this one has a name too.
    Linked(Part),
}

/// Where contents lie in a page file of an image.
struct PageFileLocation {
    path: PathBuf,
    offset: u64,
}

/// The page files of this store's images.
struct Known {
    chunks: HashMap<(ContentHash, u64), PageFileLocation>,
    files: Vec<(PathBuf, Part)>,
}

impl Store {
    /// Begins to take in the image of this manifest under a name of this store's: takes what is here of it.
    pub fn receive(&self, manifest: &[u8], name: &str) -> Result<Incoming> {
        let manifest = Manifest::from_bytes(manifest, Path::new(MANIFEST)).map_err(|error| match error {
            newer @ Error::NewerFormat { .. } => newer,
            other => bad(other.to_string()),
        })?;
        let kept_whole = manifest.parts.iter().filter(|part| part.file.is_some()).count();
        if kept_whole > MOST_FILES {
            return Err(bad(format!("it has {kept_whole} files, and at most {MOST_FILES} may come")));
        }
        let draft = self.begin(name)?;
        {
            let own = &mut *draft.manifest();
            let Manifest { name, id, .. } = std::mem::take(own);
            *own = Manifest { name, id, parts: Vec::new(), ..manifest.clone() };
        }
        let known = self.known()?;
        let linked: Vec<_> = manifest.parts.iter().map(|part| known.link(&draft, part)).collect();
        let new = || manifest.parts.iter().zip(&linked).filter(|(_, linked)| linked.is_none());
        let needed = new().map(|(part, _)| part.stored()).sum();
        let free = free_bytes(draft.path());
        if needed > free {
            return Err(Error::DiskFull { path: draft.path().to_path_buf(), needed, free });
        }
        let place = |(part, linked): (&Part, Option<Part>)| match linked {
            Some(linked) => Ok(Place::Linked(linked)),
            None if part.file.is_some() => draft.new_file(part).map(Place::New),
            None => Ok(Place::Chunks),
        };
        let places = manifest.parts.iter().zip(linked).map(place).collect::<Result<Vec<_>>>()?;
        let mut incoming = Incoming { draft, manifest, places, kept: HashMap::new(), wanted: Vec::new() };
        incoming.take_known(&known.chunks)?;
        Ok(incoming)
    }

    fn known(&self) -> Result<Known> {
        let (mut chunks, mut files) = (HashMap::new(), Vec::new());
        for image in list(&self.layout.images())? {
            let Ok(manifest) = peek(&image) else { continue };
            for part in manifest.parts {
                let Some(file) = &part.file else { continue };
                for (number, chunk) in part.chunks.iter().enumerate() {
                    if chunk.encoding != Encoding::Zero {
                        let location = PageFileLocation {
                            path: image.join(file),
                            offset: number as u64 * part.chunk_bytes,
                        };
                        chunks.insert((chunk.hash, chunk.bytes), location);
                    }
                }
                if part.kind == PartKind::CpuPages {
                    files.push((image.join(file), part));
                }
            }
        }
        Ok(Known { chunks, files })
    }
}

impl Known {
    /// Gives a draft a name for the page file that is to come, if one is here that has all of it.
    fn link(&self, draft: &Draft, part: &Part) -> Option<Part> {
        let shape = |part: &Part| (part.bytes, part.tail, part.chunk_bytes);
        let is_same = |known: &Part| {
            known.kind == part.kind && shape(known) == shape(part) && known.chunks == part.chunks
        };
        let mut same = self.files.iter().filter(|(_, known)| is_same(known));
        // One that is removed or written to meanwhile does not have it.
        same.find_map(|(path, known)| {
            draft.link_pages(Part { modified_ns: known.modified_ns, ..part.clone() }, path).ok()
        })
    }
}

impl Incoming {
    /// The chunks that are not here, by their places in the manifest's order.
    pub fn wanted(&self) -> &[u32] {
        &self.wanted
    }

    /// Takes what this store has. Who sends is asked for the rest, each content once.
    fn take_known(&mut self, places: &HashMap<(ContentHash, u64), PageFileLocation>) -> Result<()> {
        let all = due(&self.manifest);
        let this = &*self;
        let found = parallel::map(parallel::threads(), all.len(), Vec::new, |scratch, at| {
            this.take_one_known(&all[at], places, scratch)
        })?;
        let mut asked = std::collections::HashSet::new();
        let (mut kept, mut wanted) = (HashMap::new(), Vec::new());
        for ((at, due), found) in all.iter().enumerate().zip(found) {
            match found {
                Some(Some(chunk)) => drop(kept.insert(due.chunk.hash, chunk)),
                Some(None) => {}
                None if asked.insert((due.chunk.hash, due.chunk.bytes)) => wanted.push(at as u32),
                None => {}
            }
        }
        drop(all);
        (self.kept, self.wanted) = (kept, wanted);
        Ok(())
    }

    /// None if it is not here; else how it is kept, if it is kept as a chunk.
    fn take_one_known(
        &self,
        due: &DueChunk<'_>,
        places: &HashMap<(ContentHash, u64), PageFileLocation>,
        scratch: &mut Vec<u8>,
    ) -> Result<Option<Option<ChunkRef>>> {
        let part = &self.manifest.parts[due.part];
        let file = match &self.places[due.part] {
            Place::Chunks => return Ok(self.draft.known(due.chunk)?.map(Some)),
            Place::Linked(_) => return Ok(Some(None)),
            Place::New(file) => file,
        };
        let Some(location) = places.get(&(due.chunk.hash, due.chunk.bytes)) else { return Ok(None) };
        scratch.resize(due.chunk.bytes as usize, 0);
        // An image that is removed meanwhile, or damaged, does not have it.
        let read = bounded::open(&location.path)
            .is_ok_and(|file| file.read_exact_at(scratch, location.offset).is_ok());
        if !read || ContentHash::of(scratch) != due.chunk.hash {
            return Ok(None);
        }
        self.draft.write_at(part, file, due.number as u64 * part.chunk_bytes, scratch)?;
        Ok(Some(None))
    }

    /// Takes the chunks that were asked for, and makes an image of all; `check` says what is wrong with its directory. Returns
    /// how many bytes came.
    pub fn take(
        mut self,
        mut from: impl Read,
        check: &dyn Fn(&Path) -> Option<String>,
    ) -> Result<(Image, u64)> {
        let all = due(&self.manifest);
        let mut places: HashMap<(ContentHash, u64), Vec<usize>> = HashMap::new();
        for (at, due) in all.iter().enumerate() {
            places.entry((due.chunk.hash, due.chunk.bytes)).or_default().push(at);
        }
        let (mut stored, mut contents, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut kept = std::mem::take(&mut self.kept);
        for at in &self.wanted {
            let due = &all[*at as usize];
            stored.resize(due.chunk.stored as usize, 0);
            from.read_exact(&mut stored).map_err(|error| bad(format!("it did not come whole: {error}")))?;
            bytes += due.chunk.stored;
            contents.resize(due.chunk.bytes as usize, 0);
            let wrong = |reason: String| bad(format!("of its chunk {at} {reason}"));
            chunk::decode(due.chunk, &stored, &mut contents).map_err(wrong)?;
            for at in &places[&(due.chunk.hash, due.chunk.bytes)] {
                let due = &all[*at];
                let part = &self.manifest.parts[due.part];
                match &self.places[due.part] {
                    Place::New(file) => {
                        self.draft.write_at(part, file, due.number as u64 * part.chunk_bytes, &contents)?;
                    }
                    Place::Chunks => drop(kept.insert(due.chunk.hash, self.draft.keep(part, &contents)?)),
                    Place::Linked(_) => {}
                }
            }
        }
        for (part, place) in self.manifest.parts.iter().zip(self.places) {
            match place {
                Place::Chunks => keep_part(&self.draft, part, None, &kept)?,
                Place::New(file) => keep_part(&self.draft, part, Some(file), &kept)?,
                Place::Linked(linked) => self.draft.adopt(vec![linked])?,
            }
        }
        match check(self.draft.path()) {
            None => Ok((self.draft.commit()?, bytes)),
            Some(fault) => Err(bad(fault)),
        }
    }
}

fn bad(reason: String) -> Error {
    Error::BadTransfer { reason }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const NOTHING_WRONG: &dyn Fn(&Path) -> Option<String> = &|_| None;

    fn stores() -> (tempfile::TempDir, Store, Store) {
        let root = tempfile::tempdir().unwrap();
        let open = |name: &str| Store::open(&root.path().join(name)).unwrap();
        let (here, there) = (open("here"), open("there"));
        (root, here, there)
    }

    fn noise(seed: u64, bytes: usize) -> Vec<u8> {
        let mut state = seed;
        let next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u8
        };
        std::iter::repeat_with(next).take(bytes).collect()
    }

    fn image(store: &Store, root: &Path, name: &str, gpu: &[u8], pages: &[u8]) -> Image {
        let draft = store.begin(name).unwrap();
        draft.put(PartKind::GpuBuffer, "weights", Value::Null, gpu).unwrap();
        let file = root.join("pages");
        std::fs::write(&file, pages).unwrap();
        draft.take_file(PartKind::CpuPages, "anon", &file).unwrap();
        draft.commit().unwrap()
    }

    fn transfer(image: &Image, there: &Store) -> (Image, u64) {
        let incoming = there.receive(&image.manifest_text().unwrap(), &image.manifest().name).unwrap();
        let mut sent = Vec::new();
        let bytes = image.send(incoming.wanted(), &mut sent, &|_, _| {}).unwrap();
        assert_eq!(bytes, sent.len() as u64);
        incoming.take(&sent[..], NOTHING_WRONG).unwrap()
    }

    #[test]
    fn what_is_there_does_not_come_again() {
        let (root, here, there) = stores();
        let (mut gpu, mut pages) = (noise(1, 9 << 20), noise(2, 9 << 20));
        let (_, all) = transfer(&image(&here, root.path(), "one", &gpu, &pages), &there);
        assert!(all >= 18 << 20, "{all}");
        gpu[5 << 20] ^= 1;
        pages[5 << 20] ^= 1;
        let (second, some) = transfer(&image(&here, root.path(), "two", &gpu, &pages), &there);
        assert!(some > 0 && some <= 4 << 20, "{some}");
        for (kind, name, expected) in
            [(PartKind::GpuBuffer, "weights", gpu), (PartKind::CpuPages, "anon", pages)]
        {
            let part = second.part(kind, name).unwrap();
            let mut read = vec![0; expected.len()];
            second.read_part(part, 0, &mut read).unwrap();
            assert!(read == expected, "{name}");
        }
    }

    #[test]
    fn a_page_file_that_is_there_gets_another_name() {
        let (root, here, there) = stores();
        let image = |name: &str, first: &[u8], second: &[u8]| {
            let draft = here.begin(name).unwrap();
            for (name, bytes) in [("anon", first), ("more", second)] {
                let file = root.path().join("pages");
                std::fs::write(&file, bytes).unwrap();
                let known = crate::HashedChunks::new();
                draft.take_pages(PartKind::CpuPages, name, &file, bytes.len() as u64, &known).unwrap();
            }
            draft.commit().unwrap()
        };
        let (pages, mut changed) = (noise(1, 9 << 20), noise(2, 1 << 20));
        transfer(&image("one", &pages, &changed), &there);
        changed[0] ^= 1;
        let second = image("two", &pages, &changed);
        let inode = |image: &Image, name: &str| {
            use std::os::unix::fs::MetadataExt;
            let part = image.part(PartKind::CpuPages, name).unwrap();
            std::fs::metadata(image.file_path(part).unwrap()).unwrap().ino()
        };
        let (came, bytes) = transfer(&second, &there);
        let first = there.image("one").unwrap();
        assert!(bytes <= 2 << 20, "{bytes}");
        assert!(
            inode(&came, "anon") == inode(&first, "anon") && inode(&came, "more") != inode(&first, "more")
        );
        let names =
            |image: &Image| image.manifest().parts.iter().map(|part| part.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&came), names(&second));
        // One that was written to is not what it was.
        let part = came.part(PartKind::CpuPages, "anon").unwrap();
        std::fs::write(came.file_path(part).unwrap(), &changed).unwrap();
        drop(came);
        there.remove("two").unwrap();
        let (again, bytes) = transfer(&second, &there);
        assert!(bytes >= 9 << 20 && inode(&again, "anon") != inode(&first, "anon"), "{bytes}");
        let mut read = vec![0; pages.len()];
        again.read_part(again.part(PartKind::CpuPages, "anon").unwrap(), 0, &mut read).unwrap();
        assert!(read == pages);
    }

    #[test]
    fn what_is_not_as_the_manifest_says_becomes_no_image() {
        let (root, here, there) = stores();
        let image = image(&here, root.path(), "one", &noise(1, 3 << 20), &noise(2, 3 << 20));
        let text = image.manifest_text().unwrap();
        let mut sent = Vec::new();
        image.send(there.receive(&text, "one").unwrap().wanted(), &mut sent, &|_, _| {}).unwrap();
        sent[2 << 20] ^= 1;
        let whole = there.receive(&text, "one").unwrap().take(&sent[..], NOTHING_WRONG);
        assert!(matches!(whole, Err(Error::BadTransfer { .. })), "{whole:?}");
        let cut = there.receive(&text, "one").unwrap().take(&sent[..1 << 20], NOTHING_WRONG);
        assert!(matches!(cut, Err(Error::BadTransfer { .. })), "{cut:?}");
        assert!(there.receive(&text[..text.len() / 2], "one").is_err());
        assert!(image.send(&[u32::MAX], Vec::new(), &|_, _| {}).is_err());
        assert!(there.images().unwrap().is_empty());
        assert!(list(&there.layout.staging()).unwrap().is_empty());
    }
}
