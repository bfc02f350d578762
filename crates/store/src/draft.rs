//! An image in the making, as the process that makes it sees it. It becomes an image by [`Draft::commit`].

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde_json::Value;

use rekindle_parallel as parallel;

use crate::bounded;
use crate::disk::{Disk, Linked};
use crate::error::{Error, Result};
use crate::half;
use crate::image::Image;
use crate::layout::{CHUNKS, Layout};
use crate::lease::Lease;
use crate::manifest::{ChunkRef, Encoding, Manifest, Part, PartKind};
use crate::part_writer::PartWriter;
use crate::staging::{HashedChunks, Staging};

/// An image in the making. Dropped without being committed, it is removed with all its contents.
#[derive(Debug)]
pub struct Draft {
    pub(crate) layout: Layout,
    pub(crate) disk: Arc<Disk>,
    pub(crate) staging: Staging,
    manifest: Arc<Mutex<Manifest>>,
    /// None once the draft has become an image or was removed.
    pub(crate) lease: Option<Lease>,
}

impl Draft {
    pub(crate) fn begin(layout: &Layout, disk: &Arc<Disk>, name: &str) -> Result<Draft> {
        crate::names::check(name)?;
        if bounded::is_there(&layout.image(name)) {
            return Err(Error::NameInUse { name: name.to_string() });
        }
        let (id, lease) = loop {
            let id = crate::id::random()?;
            if let Some(lease) = Lease::take(disk, &layout.staging().join(format!("{id}.lock")), name)? {
                break (id, lease);
            }
        };
        let path = layout.staging().join(&id);
        let staging = Staging::new(layout.clone(), &path, disk.clone());
        let manifest = Manifest {
            name: name.to_string(),
            id,
            created: crate::id::rfc3339(SystemTime::now()),
            ..Manifest::default()
        };
        let made = disk.create_dir(&path).and_then(|()| disk.create_dir(&path.join(CHUNKS)));
        match (staging, made) {
            (Ok(staging), Ok(())) => Ok(Draft {
                layout: layout.clone(),
                disk: disk.clone(),
                staging,
                manifest: Arc::new(Mutex::new(manifest)),
                lease: Some(lease),
            }),
            (Err(error), _) | (_, Err(error)) => {
                let _ = bury(layout, disk, &path).and_then(|()| lease.end(disk));
                Err(error)
            }
        }
    }

    pub(crate) fn begin_again(given_up: Draft) -> Result<Draft> {
        let name = given_up.manifest().name.clone();
        let mut draft = Draft::begin(&given_up.layout, &given_up.disk, &name)?;
        // In place of the empty directory. Whoever still writes to the draft that is given up fails. What cannot be had so is
        // written again.
        if draft.disk.rename(&given_up.path().join(CHUNKS), &draft.path().join(CHUNKS)).is_ok() {
            draft.staging = Staging::new(draft.layout.clone(), draft.path(), draft.disk.clone())?;
        }
        Ok(draft)
    }

    /// The directory of the image in the making; another process writes to it by
    /// [`Staging::open`].
    pub fn path(&self) -> &Path {
        self.staging.path()
    }

    /// By which another process writes to the half of this process of the program's, where there are several; see
    /// [`Image::half`].
    pub fn half_path(&self, process: u32) -> PathBuf {
        half::path(self.path(), process)
    }

    /// Writes a part from memory, many chunks at once.
    pub fn put(&self, kind: PartKind, name: &str, attributes: Value, data: &[u8]) -> Result<()> {
        self.enter(self.staging.put(kind, name, attributes, data)?);
        Ok(())
    }

    /// Begins a part that is written piece by piece; finishing it enters it in the image.
    pub fn part(&self, kind: PartKind, name: &str, attributes: Value, bytes: u64) -> Result<PartWriter> {
        Ok(self.staging.part(kind, name, attributes, bytes)?.entering(self.manifest.clone()))
    }

    /// Writes a part from a file, holes and all, and leaves the file as it is.
    pub fn put_file(&self, kind: PartKind, name: &str, path: &Path) -> Result<()> {
        self.enter(self.staging.put_file(kind, name, path)?);
        Ok(())
    }

    /// Moves a file into the image as it is; see [`Staging::take_file`].
    pub fn take_file(&self, kind: PartKind, name: &str, path: &Path) -> Result<()> {
        self.enter(self.staging.take_file(kind, name, path)?);
        Ok(())
    }

    /// Moves a file into the image of which some contents are known; see [`Staging::take_known`].
    pub fn take_known(&self, kind: PartKind, name: &str, path: &Path, known: &HashedChunks) -> Result<()> {
        self.enter(self.staging.take_known(kind, name, path, known)?);
        Ok(())
    }

    /// Moves a file into the image that is to be mapped in place; see [`Staging::take_pages`].
    pub fn take_pages(
        &self,
        kind: PartKind,
        name: &str,
        path: &Path,
        bytes: u64,
        known: &HashedChunks,
    ) -> Result<()> {
        self.enter(self.staging.take_pages(kind, name, path, bytes, known)?);
        Ok(())
    }

    /// Takes in what another image has too; see [`Staging::share_pages`].
    pub fn share_pages(&self, part: Part, path: &Path) -> Result<()> {
        self.enter(self.link_pages(part, path)?);
        Ok(())
    }

    /// The same, for a part that comes into the manifest later.
    pub(crate) fn link_pages(&self, part: Part, path: &Path) -> Result<Part> {
        self.staging.share_pages(part, path)
    }

    /// A new file for a part that is kept whole.
    pub(crate) fn new_file(&self, part: &Part) -> Result<File> {
        self.directory(&part.kind)?;
        self.disk.create_new(&self.path().join(part.kept_as()))
    }

    /// Writes some of such a part.
    pub(crate) fn write_at(&self, part: &Part, file: &File, offset: u64, data: &[u8]) -> Result<()> {
        self.disk.write_at(file, data, offset, &self.path().join(part.kept_as()))
    }

    /// Makes the file of such a part as long as it should be; what it is then.
    pub(crate) fn set_length(&self, part: &Part, file: &File) -> Result<fs::Metadata> {
        let path = self.path().join(part.kept_as());
        self.disk.set_length(file, part.file_length(), &path)?;
        self.disk.start_writeback(file);
        file.metadata().map_err(|error| Error::io("look at", &path, 0, error))
    }

    /// Makes sure that the image has this chunk; how it is kept.
    pub(crate) fn keep(&self, part: &Part, data: &[u8]) -> Result<ChunkRef> {
        self.staging.stage(&part.kind, data)
    }

    /// As [`Draft::keep`] of contents that the store has; none if it has not.
    pub(crate) fn known(&self, chunk: &ChunkRef) -> Result<Option<ChunkRef>> {
        self.staging.known(chunk.bytes, chunk.hash)
    }

    /// Makes sure that the image has all of a part that it shares with another one, which is held meanwhile.
    pub(crate) fn share(&self, image: &Image, part: &Part) -> Result<()> {
        let gone = |path: &Path| Error::ChunkMissing { path: path.to_path_buf() };
        if let Some(from) = image.file_path(part) {
            self.directory(&part.kind)?;
            bounded::look(&from)?;
            return match self.disk.link(&from, &self.path().join(part.kept_as()))? {
                Linked::Made => Ok(()),
                Linked::NoSource | Linked::Exists => Err(gone(&from)),
            };
        }
        for chunk in part.chunks.iter().filter(|chunk| chunk.encoding != Encoding::Zero) {
            let is_there = self.staging.place(chunk).is_some_and(|place| bounded::is_there(&place));
            if !is_there && self.staging.reuse(*chunk)?.is_none_or(|kept| kept.stored != chunk.stored) {
                return Err(image.chunk_path(chunk).map_or(
                    Error::NoImage {
                        name: image.manifest().name.clone(),
                        store: self.layout.root().to_path_buf(),
                    },
                    |path| gone(&path),
                ));
            }
        }
        Ok(())
    }

    /// Where a program may write files of this kind itself; see [`Staging::directory`].
    pub fn directory(&self, kind: &PartKind) -> Result<PathBuf> {
        self.staging.directory(kind)
    }

    /// Enters parts that another process wrote through [`Staging`], once they are seen to be there.
    pub fn adopt(&self, parts: Vec<Part>) -> Result<()> {
        for part in &parts {
            part.check().map_err(|reason| Error::BadPart { part: part.name.clone(), reason })?;
        }
        self.check_present(&parts)?;
        self.manifest().parts.extend(parts);
        Ok(())
    }

    /// What the image says about itself, to be filled in. Name and id stay as they are; sizes are
    /// reckoned on committing.
    pub fn manifest(&self) -> MutexGuard<'_, Manifest> {
        self.manifest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, part: Part) {
        self.manifest().parts.push(part);
    }

    /// What parts are made of is there, as long as it should be.
    pub(crate) fn check_present(&self, parts: &[Part]) -> Result<()> {
        let files = parts
            .iter()
            .filter_map(|part| Some((part, self.path().join(part.file.as_ref()?), part.file_length())));
        let chunks = parts.iter().filter(|part| part.file.is_none()).flat_map(|part| {
            let places =
                part.chunks.iter().filter_map(|chunk| Some((self.staging.place(chunk)?, chunk.stored)));
            places.map(move |(place, bytes)| (part, place, bytes))
        });
        let all: Vec<_> = files.chain(chunks).collect();
        let check = |(): &mut (), at: usize| {
            let (part, path, bytes) = &all[at];
            match bounded::look(path) {
                Ok(found) if found.len() == *bytes => Ok(()),
                _ => {
                    let reason = format!("{} is not there with {bytes} bytes", path.display());
                    Err(Error::BadPart { part: part.name.clone(), reason })
                }
            }
        };
        parallel::map(parallel::threads_for(all.len()), all.len(), || (), check).map(|_| ())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            // What cannot be removed now is swept when the store is next opened.
            let _ = bury(&self.layout, &self.disk, self.staging.path()).and_then(|()| lease.end(&self.disk));
        }
    }
}

/// Removes a directory of an image or of one in the making. It is first renamed to where nothing
/// looks for it, so that a process still writing to it fails in place of adding to it. Without a
/// lease, it is swept if its removal is cut short. It may be gone already.
pub(crate) fn bury(layout: &Layout, disk: &Disk, path: &Path) -> Result<()> {
    let grave = layout.staging().join(crate::id::random()?);
    match disk.rename(path, &grave) {
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(()),
        renamed => renamed?,
    }
    // A file that was being created during the rename may still come after the directory was read.
    disk.remove_tree(&grave).or_else(|_| disk.remove_tree(&grave))
}
