//! An image to read. Nothing read from it is returned before its hash was checked.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rekindle_parallel as parallel;

use crate::bounded;
use crate::error::{Error, Result};
use crate::hash::ContentHash;
use crate::layout::{Layout, MANIFEST};
use crate::manifest::{ChunkRef, Encoding, Manifest, Part, PartKind};
use crate::raw_chunk::RawChunk;
use crate::store::list;
use crate::{chunk, disk, extent, half, sparse};

/// A committed image, or one [half](Image::half) of it. While one is held, by any process, the image cannot be removed.
/// Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Image {
    layout: Layout,
    /// Its directory.
    place: PathBuf,
    path: PathBuf,
    manifest: Arc<Manifest>,
    /// Open and locked shared, which keeps the image from being removed.
    lease: Arc<File>,
}

/// How many chunks a glance looks at.
const GLANCES: usize = 4;
/// What is checked in about the time that a thread takes to begin, some times over.
const BYTES_OF_A_THREAD: u64 = 512 << 10;

impl Image {
    /// Opens the image, or the half of one, whose path this is; see [`Image::path`].
    pub fn open(path: &Path) -> Result<Image> {
        match half::split(path) {
            Some((image, process)) => Image::open_whole(image)?.half(process),
            None => Image::open_whole(path),
        }
    }

    fn open_whole(path: &Path) -> Result<Image> {
        let lease = open_manifest(path)?;
        let layout = Layout::around(path).ok_or_else(|| Error::BadStore {
            path: path.to_path_buf(),
            reason: "it lies in no store: there is no file `format` two directories above it".into(),
        })?;
        let manifest = read_manifest(&lease, path)?;
        for directory in manifest.directories() {
            match bounded::check_directory(&path.join(directory)) {
                // The first file that is read there is told of.
                Err(error) if bounded::is_not_found(&error) => {}
                checked => checked?,
            }
        }
        let failed = |error| Error::io("lock", &path.join(MANIFEST), 0, error);
        lease.lock_shared().map_err(failed)?;
        if lease.metadata().map_err(failed)?.nlink() == 0 {
            return Err(Error::NotAnImage { path: path.to_path_buf() });
        }
        let (place, path) = (path.to_path_buf(), path.to_path_buf());
        Ok(Image { layout, place, path, manifest: Arc::new(manifest), lease: Arc::new(lease) })
    }

    /// The image that is about to be at `place`, held by the file of its manifest before anybody can find it.
    pub(crate) fn made(layout: &Layout, place: &Path, manifest: Manifest, file: File) -> Result<Image> {
        file.lock_shared().map_err(|error| Error::io("lock", &place.join(MANIFEST), 0, error))?;
        let (layout, place, path) = (layout.clone(), place.to_path_buf(), place.to_path_buf());
        Ok(Image { layout, place, path, manifest: Arc::new(manifest), lease: Arc::new(file) })
    }

    /// Some of this image.
    pub(crate) fn of(&self, path: PathBuf, manifest: Arc<Manifest>) -> Image {
        let Image { layout, place, lease, .. } = self.clone();
        Image { layout, place, path, manifest, lease }
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// By which another process can [`Image::open`] it: the image's directory, or the half's in it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All parts of a kind.
    pub fn parts(&self, kind: PartKind) -> impl Iterator<Item = &Part> {
        self.manifest.parts.iter().filter(move |part| part.kind == kind)
    }

    /// The part of this kind and name.
    pub fn part(&self, kind: PartKind, name: &str) -> Option<&Part> {
        self.manifest.part(&kind, name)
    }

    /// Where a part lies as a file of its own, to be read or mapped in place: only those that
    /// `take_file` brought in. What is read there is not checked; [`Image::check_parts`] does.
    pub fn file_path(&self, part: &Part) -> Option<PathBuf> {
        part.file.as_ref().map(|file| self.place.join(file))
    }

    /// Where a chunk's file lies; none for zeros, and none of a part that lies in its own file.
    pub fn chunk_path(&self, chunk: &ChunkRef) -> Option<PathBuf> {
        self.layout.chunk(chunk)
    }

    /// Fills `into` from `offset` of the part. On an error its contents are undefined.
    pub fn read_part(&self, part: &Part, offset: u64, into: &mut [u8]) -> Result<()> {
        self.read_range(part, offset, into, 1)
    }

    /// Fills `into` from the part's start, on so many threads.
    pub fn read_part_parallel(&self, part: &Part, into: &mut [u8], threads: usize) -> Result<()> {
        self.read_range(part, 0, into, threads)
    }

    /// Opens the chunk of the part that begins at `offset`, where it has so many bytes and is kept as it is in a file of
    /// its own: for those who have a faster way to read or to hash it.
    pub fn open_raw(&self, part: &Part, offset: u64, bytes: u64) -> Result<Option<RawChunk>> {
        let number = (offset / part.chunk_bytes) as usize;
        let whole = part.chunks.get(number).filter(|chunk| {
            part.file.is_none()
                && chunk.encoding == Encoding::Raw
                && offset.is_multiple_of(part.chunk_bytes)
                && chunk.bytes == bytes
        });
        let Some(chunk) = whole else { return Ok(None) };
        let (path, file, _) = self.open_stored(part, number, chunk)?;
        Ok(Some(RawChunk { path, file, bytes, hash: chunk.hash }))
    }

    /// The error for a chunk of the part, at `offset`, whose contents hash to something else than they should.
    pub fn damaged(&self, part: &Part, offset: u64, found: ContentHash) -> Error {
        let number = (offset / part.chunk_bytes) as usize;
        let chunk = part.chunks.get(number);
        let path = self.file_path(part).or_else(|| chunk.and_then(|chunk| self.layout.chunk(chunk)));
        let expected = chunk.map_or(ContentHash::NONE, |chunk| chunk.hash);
        let reason = chunk::match_hash(expected, found).err().unwrap_or_default();
        Error::Damaged { path: path.unwrap_or_else(|| self.path.clone()), reason }
    }

    /// The file of a chunk, checked to be as long as it was, and where in it the chunk begins.
    fn open_stored(&self, part: &Part, number: usize, chunk: &ChunkRef) -> Result<(PathBuf, File, u64)> {
        let path = self.file_path(part).or_else(|| self.layout.chunk(chunk));
        let path = path.unwrap_or_else(|| self.path.clone());
        let file = open_chunk(&path)?;
        let (offset, expected) = match part.file {
            Some(_) => (number as u64 * part.chunk_bytes, part.file_length()),
            None => (0, chunk.stored),
        };
        let found = file.metadata().map_err(|error| Error::io("read", &path, 0, error))?.len();
        check_length(&path, found, expected)?;
        Ok((path, file, offset))
    }

    /// A chunk that is not all zero, as it is stored; its contents, checked, are put into `scratch`.
    pub(crate) fn stored_chunk(&self, part: &Part, number: usize, scratch: &mut Vec<u8>) -> Result<Vec<u8>> {
        self.check_chunk(part, number, scratch)?;
        let chunk = &part.chunks[number];
        if chunk.encoding != Encoding::Zstd {
            return Ok(scratch.clone());
        }
        let (path, file, _) = self.open_stored(part, number, chunk)?;
        let mut stored = vec![0; chunk.stored as usize];
        file.read_exact_at(&mut stored, 0).map_err(|error| Error::io("read", &path, 0, error))?;
        let damaged = |reason| Error::Damaged { path: path.clone(), reason };
        chunk::decode(chunk, &stored, scratch).map_err(damaged)?;
        Ok(stored)
    }

    fn read_range(&self, part: &Part, offset: u64, into: &mut [u8], threads: usize) -> Result<()> {
        let length = into.len() as u64;
        if offset.checked_add(length).is_none_or(|end| end > part.bytes) {
            return Err(Error::OutOfRange { part: part.name.clone(), bytes: part.bytes, offset, length });
        }
        let size = part.chunk_bytes;
        let mut pieces = Vec::new();
        let (mut at, mut rest) = (offset, into);
        while !rest.is_empty() {
            let length = rest.len().min((size - at % size) as usize);
            let (piece, after) = rest.split_at_mut(length);
            pieces.push(Mutex::new(Some((at, piece))));
            at += length as u64;
            rest = after;
        }
        parallel::map(threads, pieces.len(), Vec::new, |scratch, n| {
            let piece = pieces[n].lock().ok().and_then(|mut piece| piece.take());
            match piece {
                Some((at, piece)) => self.read_piece(part, at, piece, scratch),
                None => Ok(()),
            }
        })?;
        Ok(())
    }

    /// Reads a range that lies within one chunk.
    fn read_piece(&self, part: &Part, at: u64, into: &mut [u8], scratch: &mut Vec<u8>) -> Result<()> {
        let number = (at / part.chunk_bytes) as usize;
        let start = (at % part.chunk_bytes) as usize;
        let chunk = part.chunks.get(number).ok_or_else(|| Error::OutOfRange {
            part: part.name.clone(),
            bytes: part.bytes,
            offset: at,
            length: into.len() as u64,
        })?;
        if into.len() as u64 == chunk.bytes {
            return self.read_chunk(part, number, chunk, into);
        }
        scratch.resize(chunk.bytes as usize, 0);
        self.read_chunk(part, number, chunk, scratch)?;
        into.copy_from_slice(&scratch[start..start + into.len()]);
        Ok(())
    }

    /// Reads and checks one whole chunk of a part.
    fn read_chunk(&self, part: &Part, number: usize, chunk: &ChunkRef, into: &mut [u8]) -> Result<()> {
        if part.file.is_none() && chunk.encoding == Encoding::Zero {
            into.fill(0);
            return Ok(());
        }
        let (path, file, offset) = self.open_stored(part, number, chunk)?;
        let damaged = |reason| Error::Damaged { path: path.clone(), reason };
        let failed = |error| Error::io("read", &path, 0, error);
        match chunk.encoding {
            Encoding::Raw | Encoding::Zero => extent::read(chunk, &file, &path, offset, into),
            Encoding::Zstd => {
                let mut stored = vec![0; chunk.stored as usize];
                file.read_exact_at(&mut stored, 0).map_err(failed)?;
                chunk::decode(chunk, &stored, into).map_err(damaged)
            }
        }
    }

    /// Whether all files of parts are there and as long as they were: what can be said without reading them.
    pub fn check_present(&self, parts: &[&Part]) -> Result<()> {
        let check = |path: &Path, expected| {
            let found = bounded::look(path).map_err(|error| or_missing(error, path))?;
            check_length(path, found.len(), expected)
        };
        let whole = parts.iter().filter_map(|part| Some((self.file_path(part)?, part.file_length())));
        whole.into_iter().try_for_each(|(path, expected)| check(&path, expected))?;
        let chunks: Vec<&ChunkRef> =
            parts.iter().filter(|part| part.file.is_none()).flat_map(|part| &part.chunks).collect();
        parallel::map(
            parallel::threads_for(chunks.len()),
            chunks.len(),
            || (),
            |(), at| {
                let chunk = chunks[at];
                self.layout.chunk(chunk).map_or(Ok(()), |path| check(&path, chunk.stored))
            },
        )?;
        Ok(())
    }

    /// That the directory for files of this kind has none but the image's: for those who read whatever is there.
    pub fn check_alone(&self, kind: &PartKind) -> Result<()> {
        let known: HashSet<PathBuf> =
            self.parts(kind.clone()).filter_map(|part| self.file_path(part)).collect();
        let found = list(&self.path.join(kind.directory()))?;
        match found.into_iter().find(|path| !known.contains(path)) {
            Some(path) => Err(Error::Stray { path }),
            None => Ok(()),
        }
    }

    /// Reads parts for nothing but their check, on up to so many threads: a thread takes longer to begin than a few
    /// chunks to check.
    pub fn check_parts(&self, parts: &[&Part], threads: usize) -> Result<()> {
        parts.iter().try_for_each(|part| self.check_tail(part))?;
        let bytes: u64 = parts.iter().map(|part| part.bytes).sum();
        let threads = threads.min((bytes / BYTES_OF_A_THREAD) as usize + 1);
        let chunks: Vec<_> =
            parts.iter().flat_map(|part| (0..part.chunks.len()).map(move |number| (*part, number))).collect();
        parallel::map(threads, chunks.len(), Vec::new, |scratch, at| {
            let (part, number) = chunks[at];
            self.check_chunk(part, number, scratch)
        })?;
        Ok(())
    }

    /// Checks parts that are mapped in place as far as that takes no time worth speaking of: nobody has written to their
    /// files since they were made, and a few of their chunks match their hashes. Where somebody has, all of it is read.
    pub fn check_glance(&self, parts: &[&Part], threads: usize) -> Result<()> {
        let mut filled = Vec::new();
        for &part in parts {
            match self.is_as_made(part)? {
                false => self.check_parts(&[part], threads)?,
                true => {
                    self.check_tail(part)?;
                    let numbers = 0..part.chunks.len();
                    let numbers = numbers.filter(|number| part.chunks[*number].encoding != Encoding::Zero);
                    filled.extend(numbers.map(|number| (part, number)));
                }
            }
        }
        let step = filled.len().div_ceil(GLANCES).max(1);
        // Other ones each time, so that damage anywhere is found in the end.
        let first = std::process::id() as usize ^ clock_ns();
        let chosen: Vec<_> = filled.into_iter().skip(first % step).step_by(step).collect();
        parallel::map(threads, chosen.len(), Vec::new, |scratch, at| {
            let (part, number) = chosen[at];
            self.check_chunk(part, number, scratch)
        })?;
        Ok(())
    }

    /// Whether it lies in a file of its own that nobody has written to since.
    fn is_as_made(&self, part: &Part) -> Result<bool> {
        let (Some(path), Some(modified_ns)) = (self.file_path(part), part.modified_ns) else {
            return Ok(false);
        };
        let found = bounded::look(&path).map_err(|error| or_missing(error, &path))?;
        Ok(disk::modified_ns(&found) == modified_ns)
    }

    /// Whether what is beyond a part in its file is a hole, as long as it was made.
    pub(crate) fn check_tail(&self, part: &Part) -> Result<()> {
        let Some(path) = self.file_path(part).filter(|_| part.tail > 0) else { return Ok(()) };
        let file = open_chunk(&path)?;
        let failed = |error| Error::io("read", &path, 0, error);
        let found = file.metadata().map_err(failed)?.len();
        let damaged = |reason| Err(Error::Damaged { path: path.clone(), reason });
        if found != part.file_length() {
            let expected = part.file_length();
            return damaged(format!("it is {found} bytes long, its manifest says {expected}"));
        }
        if sparse::has_data_from(&file, part.bytes).map_err(failed)? {
            return damaged(format!("it has contents beyond its {} bytes", part.bytes));
        }
        Ok(())
    }

    pub(crate) fn check_chunk(&self, part: &Part, number: usize, scratch: &mut Vec<u8>) -> Result<()> {
        let chunk = &part.chunks[number];
        scratch.resize(chunk.bytes as usize, 0);
        self.read_chunk(part, number, chunk, scratch)
    }

    /// Writes the part to a new file, with holes where it is zero. On an error the file is removed.
    pub fn extract(&self, part: &Part, to: &Path) -> Result<()> {
        let failed = |error| Error::io("write", to, part.bytes, error);
        let file = File::options().write(true).create_new(true).open(to).map_err(failed)?;
        let written = file.set_len(part.bytes).map_err(failed).and_then(|()| {
            parallel::map(parallel::threads(), part.chunks.len(), Vec::new, |scratch, number| {
                self.check_chunk(part, number, scratch)?;
                match part.chunks[number].encoding {
                    Encoding::Zero => Ok(()),
                    _ => file.write_all_at(scratch, number as u64 * part.chunk_bytes).map_err(failed),
                }
            })
        });
        if written.is_err() {
            let _ = std::fs::remove_file(to);
        }
        written.map(|_| ())
    }
}

fn clock_ns() -> usize {
    std::time::UNIX_EPOCH.elapsed().map_or(0, |now| now.as_nanos() as usize)
}

fn check_length(path: &Path, found: u64, expected: u64) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    let reason = format!("it is {found} bytes long, its manifest says {expected}");
    Err(Error::Damaged { path: path.to_path_buf(), reason })
}

fn open_chunk(path: &Path) -> Result<File> {
    bounded::open(path).map_err(|error| or_missing(error, path))
}

fn or_missing(error: Error, path: &Path) -> Error {
    match bounded::is_not_found(&error) {
        true => Error::ChunkMissing { path: path.to_path_buf() },
        false => error,
    }
}

/// The manifest of the image at `path`, without holding the image: what it refers to may go.
pub(crate) fn peek(path: &Path) -> Result<Manifest> {
    read_manifest(&open_manifest(path)?, path)
}

fn open_manifest(path: &Path) -> Result<File> {
    let opened = bounded::check_directory(path).and_then(|()| bounded::open(&path.join(MANIFEST)));
    opened.map_err(|error| match bounded::is_not_found(&error) {
        true => Error::NotAnImage { path: path.to_path_buf() },
        false => error,
    })
}

fn read_manifest(file: &File, path: &Path) -> Result<Manifest> {
    let place = path.join(MANIFEST);
    let text = bounded::read_open(file, &place, crate::manifest::LONGEST_MANIFEST)?;
    Manifest::from_bytes(&text, &place)
}
