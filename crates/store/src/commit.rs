//! Making an image in the making an image.
//!
//! It is in this order, so that a death at any point leaves either no image or a whole one: contents durable in staging,
//! manifest written, chunks moved to their shelves, shelves durable, directory renamed to its place among the images, that
//! durable. Chunks moved before a failure are collected later.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rekindle_parallel as parallel;

use crate::bounded;
use crate::draft::Draft;
use crate::error::{Error, Result};
use crate::image::Image;
use crate::layout::{CHUNKS, MANIFEST};
use crate::lease::Guard;
use crate::manifest::{ChunkRef, Encoding, Manifest, Part};
use crate::store::list;

/// Syncs under way at once; they share the file system's journal commits.
const SYNCS: usize = 16;

impl Draft {
    /// Makes the image durable and visible under its name, or leaves nothing of it.
    pub fn commit(mut self) -> Result<Image> {
        let manifest = self.sealed()?;
        let chunks = staged_chunks(&manifest);
        self.check_present(&manifest.parts)?;
        let (file, chunks) = self.make_durable(&manifest, chunks)?;
        let published = self.publish(manifest, &chunks, file);
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

    /// Makes all in staging durable, and writes the manifest: its file, and the chunks as they are in staging.
    fn make_durable(&self, manifest: &Manifest, chunks: Vec<ChunkRef>) -> Result<(File, Vec<Staged>)> {
        let path = self.path().join(MANIFEST);
        let text = manifest.to_bytes().map_err(|reason| Error::BadManifest { path: path.clone(), reason })?;
        let kept: Vec<PathBuf> =
            manifest.parts.iter().filter_map(|part| Some(self.path().join(part.file.as_ref()?))).collect();
        let staged = parallel::map(
            SYNCS,
            kept.len() + chunks.len(),
            || (),
            |(), at| match kept.get(at) {
                Some(file) => self.sync(file).map(|()| None),
                None => self.sync_chunk(&chunks[at - kept.len()]),
            },
        )?;
        self.remove_strays(manifest)?;
        let directories: BTreeSet<&Path> =
            manifest.parts.iter().filter_map(|part| Path::new(part.file.as_ref()?).parent()).collect();
        for directory in directories {
            self.disk.sync_dir(&self.path().join(directory))?;
        }
        let file = self.disk.write_new(&path, &text)?;
        self.disk.sync_file(&file, &path)?;
        Ok((file, staged.into_iter().flatten().collect()))
    }

    fn sync(&self, path: &Path) -> Result<()> {
        let file = File::open(path).map_err(|error| Error::io("open", path, 0, error))?;
        self.disk.sync_file(&file, path)
    }

    /// A chunk with a second name came from the store, and was durable before it came there. None if it has no file.
    fn sync_chunk(&self, chunk: &ChunkRef) -> Result<Option<Staged>> {
        let Some(path) = self.staging.place(chunk) else { return Ok(None) };
        let is_new = bounded::look(&path)?.nlink() == 1;
        if is_new {
            self.sync(&path)?;
        }
        Ok(Some(Staged { chunk: *chunk, path, is_new }))
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

    /// `file` is the manifest's, by which the image is held from the moment that it is there.
    fn publish(&self, manifest: Manifest, chunks: &[Staged], file: File) -> Result<Image> {
        let _collecting_waits = Guard::shared(&self.disk, &self.layout.collect_lock())?;
        let mut shelves: BTreeMap<u8, Vec<&Staged>> = BTreeMap::new();
        for staged in chunks {
            shelves.entry(staged.chunk.hash.bytes()[0]).or_default().push(staged);
        }
        let shelves: Vec<_> = shelves.into_iter().collect();
        let make = |(): &mut (), at: usize| self.disk.create_dir(&self.layout.shelf(shelves[at].0));
        parallel::map(parallel::threads_for(shelves.len()), shelves.len(), || (), make)?;
        self.disk.sync_dir(&self.layout.chunks())?;
        let fill = |(): &mut (), at: usize| shelves[at].1.iter().try_for_each(|staged| self.shelve(staged));
        parallel::map(parallel::threads_for(chunks.len()), shelves.len(), || (), fill)?;
        // Behind all of them, so that few journal commits have them all.
        parallel::map(
            SYNCS,
            shelves.len(),
            || (),
            |(), at| self.disk.sync_dir(&self.layout.shelf(shelves[at].0)),
        )?;
        self.disk.remove_tree(&self.path().join(CHUNKS))?;
        self.disk.sync_dir(self.path())?;
        let place = self.layout.image(&manifest.name);
        let image = Image::made(&self.layout, &place, manifest, file)?;
        if !self.disk.rename_new(self.path(), &place)? {
            return Err(Error::NameInUse { name: image.manifest().name.clone() });
        }
        self.disk.sync_dir(&self.layout.images())?;
        Ok(image)
    }

    /// Gives a staged chunk its place in the store. One that came from the store only goes back if it was collected since; a
    /// new one replaces what is there, which can only be the same or damaged.
    fn shelve(&self, staged: &Staged) -> Result<()> {
        let Some(place) = self.layout.chunk(&staged.chunk) else { return Ok(()) };
        if !staged.is_new {
            // Nothing is collected before the image is there.
            return self.disk.link(&staged.path, &place).map(drop);
        }
        if place.is_dir() {
            self.disk.remove_tree(&place)?;
        }
        self.disk.rename(&staged.path, &place)
    }
}

/// A chunk in staging.
struct Staged {
    chunk: ChunkRef,
    path: PathBuf,
    /// It did not come from the store.
    is_new: bool,
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
