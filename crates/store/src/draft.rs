//! An image in the making, as the process that makes it sees it.
//!
//! Committing is in this order, so that a death at any point leaves either no image or a whole one:
//! contents durable in staging, manifest written, chunks moved to their shelves, shelves durable,
//! directory renamed to its place among the images, that durable. Chunks moved before a failure
//! are collected later.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde_json::Value;

use crate::bounded;
use crate::disk::{Disk, Linked};
use crate::error::{Error, Result};
use crate::half;
use crate::image::Image;
use crate::layout::{CHUNKS, Layout, MANIFEST};
use crate::lease::{Guard, Lease};
use crate::manifest::{ChunkRef, Encoding, Manifest, Part, PartKind};
use crate::part_writer::PartWriter;
use crate::pool;
use crate::staging::{HashedChunks, Staging};
use crate::store::list;

/// An image in the making. Dropped without being committed, it is removed with all its contents.
#[derive(Debug)]
pub struct Draft {
    layout: Layout,
    disk: Arc<Disk>,
    staging: Staging,
    manifest: Arc<Mutex<Manifest>>,
    /// None once the draft has become an image or was removed.
    lease: Option<Lease>,
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
        self.enter(self.staging.share_pages(part, path)?);
        Ok(())
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
            self.check_present(part)?;
        }
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

    /// Makes the image durable and visible under its name, or leaves nothing of it.
    pub fn commit(mut self) -> Result<Image> {
        let manifest = self.sealed()?;
        let chunks = staged_chunks(&manifest);
        for part in &manifest.parts {
            self.check_present(part)?;
        }
        self.make_durable(&manifest, &chunks)?;
        let published = self.publish(&manifest, &chunks);
        if published.is_err() {
            let (layout, disk) = (self.layout.clone(), self.disk.clone());
            drop(self);
            // Gives back the room of chunks that were moved already; else the next one does.
            let _ = crate::collect::collect(&layout, &disk);
            return published;
        }
        if let Some(lease) = self.lease.take() {
            // The image is whole; the next sweep removes a lease file that stays behind.
            let _ = lease.end(&self.disk);
        }
        published
    }

    fn sealed(&self) -> Result<Manifest> {
        let mut manifest = self.manifest().clone();
        manifest.parts.sort_by(|a, b| (&a.kind, &a.name).cmp(&(&b.kind, &b.name)));
        if let Some(pair) = manifest
            .parts
            .windows(2)
            .find(|pair| pair[0].kind == pair[1].kind && pair[0].name == pair[1].name)
        {
            let Part { kind, name, .. } = &pair[0];
            return Err(Error::PartExists { kind: kind.to_string(), part: name.clone() });
        }
        manifest.measure();
        Ok(manifest)
    }

    fn check_present(&self, part: &Part) -> Result<()> {
        let absent = |reason: String| Error::BadPart { part: part.name.clone(), reason };
        if let Some(file) = &part.file {
            let path = self.path().join(file);
            return match bounded::look(&path) {
                Ok(found) if found.len() == part.file_length() => Ok(()),
                _ => {
                    let (path, bytes) = (path.display(), part.file_length());
                    Err(absent(format!("{path} is not there with {bytes} bytes")))
                }
            };
        }
        for chunk in &part.chunks {
            let Some(path) = self.staging.place(chunk) else { continue };
            match bounded::look(&path) {
                Ok(found) if found.len() == chunk.stored => {}
                _ => {
                    return Err(absent(format!(
                        "{} is not there with {} bytes",
                        path.display(),
                        chunk.stored
                    )));
                }
            }
        }
        Ok(())
    }

    /// Writes the manifest and makes all in staging durable.
    fn make_durable(&self, manifest: &Manifest, chunks: &[ChunkRef]) -> Result<()> {
        let path = self.path().join(MANIFEST);
        let text = manifest.to_bytes().map_err(|reason| Error::BadManifest { path: path.clone(), reason })?;
        let mut files: Vec<PathBuf> = chunks.iter().filter_map(|chunk| self.staging.place(chunk)).collect();
        files.extend(manifest.parts.iter().filter_map(|part| Some(self.path().join(part.file.as_ref()?))));
        pool::map(
            SYNCS,
            files.len(),
            || (),
            |(), at| {
                let file = File::open(&files[at]).map_err(|error| Error::io("open", &files[at], 0, error))?;
                self.disk.sync_file(&file, &files[at])
            },
        )?;
        self.remove_strays(manifest)?;
        let directories: BTreeSet<&Path> =
            manifest.parts.iter().filter_map(|part| Path::new(part.file.as_ref()?).parent()).collect();
        for directory in directories {
            self.disk.sync_dir(&self.path().join(directory))?;
        }
        let file = self.disk.write_new(&path, &text)?;
        self.disk.sync_file(&file, &path)
    }

    /// Removes what lies in the directories for kept files and was not taken.
    fn remove_strays(&self, manifest: &Manifest) -> Result<()> {
        let kept: HashSet<PathBuf> =
            manifest.parts.iter().filter_map(|part| Some(self.path().join(part.file.as_ref()?))).collect();
        for directory in list(self.path())? {
            if directory.ends_with(CHUNKS) {
                continue;
            }
            if !directory.is_dir() {
                self.disk.remove_file(&directory)?;
                continue;
            }
            for path in list(&directory)? {
                if path.is_dir() {
                    self.disk.remove_tree(&path)?;
                } else if !kept.contains(&path) {
                    self.disk.remove_file(&path)?;
                }
            }
        }
        Ok(())
    }

    fn publish(&self, manifest: &Manifest, chunks: &[ChunkRef]) -> Result<Image> {
        let _collecting_waits = Guard::shared(&self.disk, &self.layout.collect_lock())?;
        let shelves: Vec<u8> =
            chunks.iter().map(|chunk| chunk.hash.bytes()[0]).collect::<BTreeSet<_>>().into_iter().collect();
        for first in &shelves {
            self.disk.create_dir(&self.layout.shelf(*first))?;
        }
        self.disk.sync_dir(&self.layout.chunks())?;
        for chunk in chunks {
            self.shelve(chunk)?;
        }
        pool::map(SYNCS, shelves.len(), || (), |(), at| self.disk.sync_dir(&self.layout.shelf(shelves[at])))?;
        self.disk.remove_tree(&self.path().join(CHUNKS))?;
        self.disk.sync_dir(self.path())?;
        let place = self.layout.image(&manifest.name);
        if !self.disk.rename_new(self.path(), &place)? {
            return Err(Error::NameInUse { name: manifest.name.clone() });
        }
        self.disk.sync_dir(&self.layout.images())?;
        Image::open(&place)
    }

    /// Gives a staged chunk its place in the store. One with a second name came from the store and
    /// only goes back if it was collected since; a new one replaces what is there, which can only
    /// be the same or damaged.
    fn shelve(&self, chunk: &ChunkRef) -> Result<()> {
        let (Some(staged), Some(place)) = (self.staging.place(chunk), self.layout.chunk(chunk)) else {
            return Ok(());
        };
        let names = fs::metadata(&staged).map_err(|error| Error::io("look at", &staged, 0, error))?.nlink();
        if names > 1 {
            self.disk.link(&staged, &place).map(|_| ())
        } else {
            if place.is_dir() {
                self.disk.remove_tree(&place)?;
            }
            self.disk.rename(&staged, &place)
        }
    }
}

/// Syncs under way at once; they share the file system's journal commits.
const SYNCS: usize = 16;

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

/// The chunks that the image refers to in the store, each once.
fn staged_chunks(manifest: &Manifest) -> Vec<ChunkRef> {
    let mut chunks = HashMap::new();
    for part in manifest.parts.iter().filter(|part| part.file.is_none()) {
        for chunk in part.chunks.iter().filter(|chunk| chunk.encoding != Encoding::Zero) {
            chunks.insert((chunk.hash, chunk.encoding), *chunk);
        }
    }
    chunks.into_values().collect()
}
