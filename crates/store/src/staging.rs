//! An image in the making, as each process that writes to it sees it.
//!
//! The directory is whole in itself: every chunk that the image refers to has a name in its
//! `chunks/`, also those that the store had before (hard links), so that collecting what no image
//! refers to can take nothing away from it. A name there means a complete file: chunks are written
//! under another name first.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use serde_json::Value;

use rekindle_parallel as parallel;

use crate::bounded;
use crate::chunk;
use crate::disk::{self, Disk, Linked};
use crate::error::{Error, Result};
use crate::faults::Faults;
use crate::half;
use crate::hash::ContentHash;
use crate::layout::{CHUNKS, Layout};
use crate::manifest::{ChunkRef, Encoding, Part, PartKind};
use crate::part_writer::PartWriter;
use crate::sparse;

/// What is known of so many bytes of a file, from whoever wrote them: they need not be read again.
#[derive(Clone, Copy, Debug)]
pub struct HashedChunk {
    pub hash: ContentHash,
    /// Bytes of its pages that are not all zero.
    pub filled: u64,
}

/// By their places in the file.
pub type HashedChunks = HashMap<u64, HashedChunk>;
const KNOWN_BYTES: u64 = 2 << 20;
/// Of so many bytes, all zero.
static ZEROS: LazyLock<ContentHash> = LazyLock::new(|| ContentHash::of(&vec![0; KNOWN_BYTES as usize]));

/// Writes parts of one image in the making, or of one half of it. Cloning is cheap; all clones write to the same image.
#[derive(Clone, Debug)]
pub struct Staging {
    inner: Arc<Inner>,
    /// What names of parts begin with.
    prefix: Arc<str>,
}

#[derive(Debug)]
struct Inner {
    layout: Layout,
    path: PathBuf,
    disk: Arc<Disk>,
    /// Tells the temporary files of this process from those of others.
    token: String,
    files: AtomicU64,
    /// Chunks were there before this process came: others have written them, or they are of a draft that was given up.
    has_others: bool,
    /// What this process has staged.
    staged: Mutex<HashMap<ContentHash, (Encoding, u64)>>,
}

impl Staging {
    /// Joins an image in the making that another process began; `path` is its `Draft::path()`, or a
    /// `Draft::half_path()`. What is written here comes back as [`Part`]s, to be handed to that process's
    /// `Draft::adopt`.
    pub fn open(path: &Path) -> Result<Staging> {
        let (path, prefix) = match half::split(path) {
            Some((image, process)) => (image, half::prefix(process)),
            None => (path, String::new()),
        };
        let layout = Layout::around(path).filter(|_| path.join(CHUNKS).is_dir());
        let layout = layout.ok_or_else(|| Error::BadStore {
            path: path.to_path_buf(),
            reason: "it is no image in the making, or was given up".into(),
        })?;
        let staging =
            Staging::new(layout, path, Arc::new(Disk::new(Faults::from_environment().unwrap_or_default())))?;
        Ok(Staging { prefix: prefix.into(), ..staging })
    }

    pub(crate) fn new(layout: Layout, path: &Path, disk: Arc<Disk>) -> Result<Staging> {
        let inner = Inner {
            layout,
            path: path.to_path_buf(),
            disk,
            token: crate::id::random()?,
            files: AtomicU64::new(0),
            has_others: fs::read_dir(path.join(CHUNKS)).is_ok_and(|mut chunks| chunks.next().is_some()),
            staged: Mutex::default(),
        };
        Ok(Staging { inner: Arc::new(inner), prefix: "".into() })
    }

    /// The same, that knows what was written to that image through another.
    pub fn joined(self, other: &Staging) -> Staging {
        Staging { inner: other.inner.clone(), prefix: self.prefix }
    }

    /// The directory of the image in the making.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Writes a part from memory, many chunks at once.
    pub fn put(&self, kind: PartKind, name: &str, attributes: Value, data: &[u8]) -> Result<Part> {
        let mut part = self.new_part(kind, name, attributes, data.len() as u64)?;
        let pieces: Vec<&[u8]> = data.chunks(part.chunk_bytes as usize).collect();
        part.chunks = parallel::map(
            parallel::threads(),
            pieces.len(),
            || (),
            |(), at| self.stage(&part.kind, pieces[at]),
        )?;
        Ok(part)
    }

    /// A part that was written to the same image in the making before it was known whose it would be, as this half's.
    pub fn own(&self, part: Part, name: &str) -> Part {
        Part { name: [&self.prefix, name].concat(), ..part }
    }

    /// Begins a part that is written piece by piece.
    pub fn part(&self, kind: PartKind, name: &str, attributes: Value, bytes: u64) -> Result<PartWriter> {
        Ok(PartWriter::new(self.clone(), self.new_part(kind, name, attributes, bytes)?))
    }

    /// Writes a part from a file, holes and all, and leaves the file as it is.
    pub fn put_file(&self, kind: PartKind, name: &str, path: &Path) -> Result<Part> {
        let failed = |error| Error::io("read", path, 0, error);
        let bytes = fs::metadata(path).map_err(failed)?.len();
        self.file_part(kind, name, path, bytes, |_, _| None, |kind, _, data| self.stage(kind, data))
    }

    /// Moves a file into the image as it is: it will lie at `Image::file_path`, ready to be read
    /// or mapped in place. It takes its full room in the store, shared with nothing. A failure
    /// may leave it moved.
    pub fn take_file(&self, kind: PartKind, name: &str, path: &Path) -> Result<Part> {
        self.take_known(kind, name, path, &HashedChunks::new())
    }

    /// As [`Staging::take_file`], for a file of which some contents are known.
    pub fn take_known(&self, kind: PartKind, name: &str, path: &Path, known: &HashedChunks) -> Result<Part> {
        let failed = |error| Error::io("read", path, 0, error);
        let bytes = fs::metadata(path).map_err(failed)?.len();
        let known = |start, length| known.get(&start).filter(|_| length == KNOWN_BYTES).map(|one| one.hash);
        self.take(kind, name, path, bytes, known, |_| {})
    }

    /// As [`Staging::take_file`], for a file that is to be mapped in place. The part is its first `bytes`; what is
    /// beyond them is a hole that is kept as it is.
    pub fn take_pages(
        &self,
        kind: PartKind,
        name: &str,
        path: &Path,
        bytes: u64,
        known: &HashedChunks,
    ) -> Result<Part> {
        let failed = |error| Error::io("read", path, 0, error);
        let length = fs::metadata(path).map_err(failed)?.len();
        let filled = AtomicU64::new(0);
        let known = |start, length| {
            let one = known.get(&start).filter(|_| length == KNOWN_BYTES)?;
            filled.fetch_add(one.filled, Ordering::Relaxed);
            Some(one.hash)
        };
        let mut part = self.take(kind, name, path, bytes, known, |data| {
            filled.fetch_add(chunk::filled(data), Ordering::Relaxed);
        })?;
        part.filled = Some(filled.into_inner());
        part.tail = length.saturating_sub(bytes);
        let place = self.path().join(part.kept_as());
        let mut found = fs::metadata(&place).map_err(failed)?;
        if found.len() != length {
            let file = File::options().write(true).open(&place).map_err(failed)?;
            self.inner.disk.set_length(&file, length, &place)?;
            found = file.metadata().map_err(failed)?;
        }
        part.modified_ns = Some(disk::modified_ns(&found));
        Ok(part)
    }

    /// Gives the image a name of its own for a file that is mapped in place and that another image took in as `part`. It
    /// must be as it was then.
    pub fn share_pages(&self, part: Part, path: &Path) -> Result<Part> {
        part.check().map_err(|reason| Error::BadPart { part: part.name.clone(), reason })?;
        let found = bounded::look(path)?;
        if found.len() != part.file_length() || part.modified_ns != Some(disk::modified_ns(&found)) {
            let reason = "it was written to since it was made".to_string();
            return Err(Error::Damaged { path: path.to_path_buf(), reason });
        }
        self.directory(&part.kind)?;
        let to = self.path().join(part.kept_as());
        match self.inner.disk.link(path, &to)? {
            Linked::Made => Ok(Part { file: Some(part.kept_as()), ..part }),
            Linked::NoSource | Linked::Exists => {
                let reason = format!("{} cannot be given another name", path.display());
                Err(Error::BadPart { part: part.name, reason })
            }
        }
    }

    /// `known` is asked for each extent that may hold data, by place and length; `see` is shown those that it does not
    /// know, or that must be read anyway.
    fn take(
        &self,
        kind: PartKind,
        name: &str,
        path: &Path,
        bytes: u64,
        known: impl Fn(u64, u64) -> Option<ContentHash> + Sync,
        see: impl Fn(&[u8]) + Sync,
    ) -> Result<Part> {
        let disk = &self.inner.disk;
        self.directory(&kind)?;
        let place = self.file_named(kind.clone(), name, 0)?.kept_as();
        let to = self.path().join(&place);
        let mut part = match disk.rename(path, &to) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::CrossesDevices => {
                let copy = disk.create_new(&to)?;
                let unknown = |_, _| None;
                let part = self.file_part(kind, name, path, bytes, unknown, |_, offset, data| {
                    see(data);
                    let extent = extent(data);
                    if extent.encoding != Encoding::Zero {
                        disk.write_at(&copy, data, offset, &to)?;
                    }
                    Ok(extent)
                })?;
                disk.set_length(&copy, part.bytes, &to)?;
                disk.start_writeback(&copy);
                disk.remove_file(path)?;
                part
            }
            moved => {
                moved?;
                let failed = |error| Error::io("set the mode of", &to, 0, error);
                fs::set_permissions(&to, fs::Permissions::from_mode(0o600)).map_err(failed)?;
                disk.start_writeback(&File::open(&to).map_err(failed)?);
                self.file_part(kind, name, &to, bytes, known, |_, _, data| {
                    see(data);
                    Ok(extent(data))
                })?
            }
        };
        part.file = Some(place);
        Ok(part)
    }

    /// A directory of the image in the making where a program may write files of this kind itself;
    /// those that are then given to [`Staging::take_file`] under their own names need no copying.
    pub fn directory(&self, kind: &PartKind) -> Result<PathBuf> {
        let path = self.path().join(kind.directory());
        self.inner.disk.create_dir(&path)?;
        Ok(path)
    }

    fn file_part(
        &self,
        kind: PartKind,
        name: &str,
        path: &Path,
        bytes: u64,
        known: impl Fn(u64, u64) -> Option<ContentHash> + Sync,
        keep: impl Fn(&PartKind, u64, &[u8]) -> Result<ChunkRef> + Sync,
    ) -> Result<Part> {
        let failed = |error| Error::io("read", path, 0, error);
        let file = bounded::open(path)?;
        let mut part = self.file_named(kind, name, bytes)?;
        let spans = sparse::data_spans(&file, bytes).map_err(failed)?;
        let size = part.chunk_bytes;
        let count = bytes.div_ceil(size) as usize;
        part.chunks = parallel::map(parallel::threads(), count, Vec::new, |buffer: &mut Vec<u8>, at| {
            let start = at as u64 * size;
            let length = size.min(bytes - start);
            if !sparse::overlaps(&spans, start..start + length) {
                return Ok(ChunkRef::zero(length));
            }
            if let Some(hash) = known(start, length) {
                return Ok(ChunkRef { hash, bytes: length, stored: length, encoding: Encoding::Raw });
            }
            buffer.resize(length as usize, 0);
            file.read_exact_at(buffer, start).map_err(failed)?;
            keep(&part.kind, start, buffer)
        })?;
        Ok(part)
    }

    /// Makes sure that the image has this chunk.
    pub(crate) fn stage(&self, kind: &PartKind, data: &[u8]) -> Result<ChunkRef> {
        if chunk::is_zero(data) {
            return Ok(ChunkRef::zero(data.len() as u64));
        }
        self.stage_known(kind, data, ContentHash::of(data))
    }

    /// As [`Staging::stage`] for data whose hash is known.
    pub(crate) fn stage_hashed(&self, kind: &PartKind, data: &[u8], hash: ContentHash) -> Result<ChunkRef> {
        if chunk::is_zero(data) {
            return Ok(ChunkRef::zero(data.len() as u64));
        }
        self.stage_known(kind, data, hash)
    }

    /// Whether the chunk of so many bytes that has this hash is all zero, or the image or the store has it.
    pub fn has(&self, bytes: u64, hash: ContentHash) -> Result<bool> {
        self.known(bytes, hash).map(|known| known.is_some())
    }

    /// The chunk of so many bytes that has this hash, if it is all zero or the image or the store has it.
    pub(crate) fn known(&self, bytes: u64, hash: ContentHash) -> Result<Option<ChunkRef>> {
        if bytes == KNOWN_BYTES && hash == *ZEROS {
            return Ok(Some(ChunkRef::zero(bytes)));
        }
        let known = |encoding, stored| ChunkRef { hash, bytes, stored, encoding };
        if let Some((encoding, stored)) = self.staged().get(&hash) {
            return Ok(Some(known(*encoding, *stored)));
        }
        let found = match self.reuse(known(Encoding::Raw, bytes))? {
            Some(chunk) => Some(chunk),
            None => self.reuse(known(Encoding::Zstd, 0))?,
        };
        if let Some(chunk) = &found {
            self.staged().insert(hash, (chunk.encoding, chunk.stored));
        }
        Ok(found)
    }

    fn stage_known(&self, kind: &PartKind, data: &[u8], hash: ContentHash) -> Result<ChunkRef> {
        let bytes = data.len() as u64;
        if let Some(chunk) = self.known(bytes, hash)? {
            return Ok(chunk);
        }
        let new = |encoding, stored| ChunkRef { hash, bytes, stored, encoding };
        let chunk = match chunk::compress(kind, data) {
            Some(frame) => self.write(new(Encoding::Zstd, frame.len() as u64), &frame)?,
            None => self.write(new(Encoding::Raw, bytes), data)?,
        };
        self.staged().insert(hash, (chunk.encoding, chunk.stored));
        Ok(chunk)
    }

    /// Takes the chunk from the store, if it has it, or if it is in the image already. A file of the wrong length is passed over:
    /// the chunk is then written again and takes its place.
    pub(crate) fn reuse(&self, chunk: ChunkRef) -> Result<Option<ChunkRef>> {
        let (Some(kept), Some(staged)) = (self.inner.layout.chunk(&chunk), self.place(&chunk)) else {
            return Ok(None);
        };
        let is_staged = || self.inner.has_others && bounded::is_there(&staged);
        if self.inner.disk.link(&kept, &staged)? == Linked::NoSource && !is_staged() {
            return Ok(None);
        }
        let stored = bounded::look(&staged).map_or(0, |found| found.len());
        let fits = match chunk.encoding {
            Encoding::Raw => stored == chunk.bytes,
            _ => stored > 0 && stored < chunk.bytes,
        };
        if !fits {
            self.inner.disk.remove_file(&staged)?;
            return Ok(None);
        }
        Ok(Some(ChunkRef { stored, ..chunk }))
    }

    fn write(&self, chunk: ChunkRef, stored: &[u8]) -> Result<ChunkRef> {
        let disk = &self.inner.disk;
        let number = self.inner.files.fetch_add(1, Ordering::Relaxed);
        let partial = self.path().join(CHUNKS).join(format!("{}-{number}.partial", self.inner.token));
        let file = disk.write_new(&partial, stored)?;
        disk.start_writeback(&file);
        if let Some(place) = self.place(&chunk)
            && let Err(error) = disk.rename(&partial, &place)
        {
            let _ = disk.remove_file(&partial);
            return Err(error);
        }
        Ok(chunk)
    }

    /// Where a chunk lies within the image in the making; nowhere if it is all zero.
    pub(crate) fn place(&self, chunk: &ChunkRef) -> Option<PathBuf> {
        Some(self.path().join(CHUNKS).join(chunk.file_name()?))
    }

    fn file_named(&self, kind: PartKind, name: &str, bytes: u64) -> Result<Part> {
        self.new_part(kind, name, Value::Null, bytes)
    }

    fn new_part(&self, kind: PartKind, name: &str, attributes: Value, bytes: u64) -> Result<Part> {
        crate::names::check(name)?;
        let chunk_bytes = chunk::chunk_bytes_for(&kind, bytes);
        Ok(Part {
            kind,
            name: [&self.prefix, name].concat(),
            bytes,
            attributes,
            file: None,
            tail: 0,
            modified_ns: None,
            filled: None,
            chunk_bytes,
            chunks: Vec::new(),
        })
    }

    fn staged(&self) -> std::sync::MutexGuard<'_, HashMap<ContentHash, (Encoding, u64)>> {
        self.inner.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An extent of a file that is kept whole.
fn extent(data: &[u8]) -> ChunkRef {
    let bytes = data.len() as u64;
    if chunk::is_zero(data) {
        return ChunkRef::zero(bytes);
    }
    ChunkRef { hash: ContentHash::of(data), bytes, stored: bytes, encoding: Encoding::Raw }
}
