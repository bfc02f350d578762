//! An image as one file, for another store.
//!
//! ```text
//! a tar of
//!   manifest.json            as in the image's directory
//!   00000000/00000000        of the first part, the first chunk that is not all zero, as it is stored
//!   00000000/00000001  ...
//!   00000001/00000000  ...   a chunk that an earlier part has is left out
//! ```
//!
//! Names are numbers that the manifest gives the order of. What comes from elsewhere is held against it: each entry must be
//! the very one that is due, by name, kind and length, and match its hash. No name in an archive ever becomes that of a file,
//! and chunks are stored anew as this store does, so that an archive can spoil no other image.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use crate::chunk;
use crate::disk;
use crate::draft::Draft;
use crate::error::{Error, Result, free_bytes};
use crate::hash::ContentHash;
use crate::image::Image;
use crate::layout::MANIFEST;
use crate::manifest::{ChunkRef, Encoding, LONGEST_MANIFEST, Manifest, Part};
use crate::store::Store;

/// Told how far the work is: bytes done, and all.
pub type Progress<'a> = dyn Fn(u64, u64) + 'a;

impl Store {
    /// Writes an image as one file; each chunk is checked before.
    pub fn export(&self, name: &str, to: impl Write, progress: &Progress<'_>) -> Result<()> {
        let image = self.image(name)?;
        let manifest = image.manifest();
        let reason = |reason| Error::BadManifest { path: image.path().join(MANIFEST), reason };
        let text = manifest.to_bytes().map_err(reason)?;
        let all = due(manifest);
        let total: u64 = all.iter().map(|due| due.chunk.stored).sum();
        let mut archive = tar::Builder::new(to);
        append(&mut archive, MANIFEST, &text)?;
        let (mut scratch, mut done) = (Vec::new(), 0);
        for due in &all {
            progress(done, total);
            let part = &manifest.parts[due.part];
            let stored = image.stored_chunk(part, due.number, &mut scratch)?;
            append(&mut archive, &due.name(), &stored)?;
            done += due.chunk.stored;
        }
        archive.into_inner().and_then(|mut to| to.flush()).map_err(unwritten)
    }

    /// Takes an image in that [`Store::export`] has written, under its own name if no other is given. All of it is checked
    /// before there is an image, by `check` too: what is wrong with the directory of the image that is to be.
    pub fn import(
        &self,
        from: impl Read,
        name: Option<&str>,
        check: &dyn Fn(&Path) -> Option<String>,
        progress: &Progress<'_>,
    ) -> Result<Image> {
        let mut archive = tar::Archive::new(from);
        // Extensions, by which an entry could say that it is another, are entries like others then, and no due ones.
        let mut entries = archive.entries().map_err(unread)?.raw(true);
        let mut text = Vec::new();
        take_entry(&mut entries, MANIFEST, None, &mut text)?;
        let manifest = Manifest::from_bytes(&text, Path::new(MANIFEST)).map_err(|error| match error {
            newer @ Error::NewerFormat { .. } => newer,
            other => bad(other.to_string()),
        })?;
        let all = due(&manifest);
        let draft = self.begin(name.unwrap_or(&manifest.name))?;
        let total: u64 = all.iter().map(|due| due.chunk.stored).sum();
        let free = free_bytes(draft.path());
        if total > free {
            return Err(Error::DiskFull { path: draft.path().to_path_buf(), needed: total, free });
        }
        {
            let own = &mut *draft.manifest();
            let Manifest { name, id, .. } = std::mem::take(own);
            *own = Manifest { name, id, parts: Vec::new(), ..manifest.clone() };
        }
        let mut taking = ImageImport { draft: &draft, stored: HashMap::new(), scratch: Vec::new() };
        let (mut numbers, mut done) = (all.iter().peekable(), 0);
        for (at, part) in manifest.parts.iter().enumerate() {
            let mut place = taking.begin(part)?;
            while let Some(due) = numbers.next_if(|due| due.part == at) {
                progress(done, total);
                take_entry(&mut entries, &due.name(), Some(due.chunk.stored), &mut text)?;
                taking.chunk(part, due, &text, place.as_mut())?;
                done += due.chunk.stored;
            }
            taking.end(part, place)?;
        }
        if let Some(entry) = entries.next() {
            let name = entry.map_err(unread)?.path_bytes().into_owned();
            let name = String::from_utf8_lossy(&name[..name.len().min(100)]).into_owned();
            return Err(bad(format!("it goes on with {name:?} where its end is due")));
        }
        match check(draft.path()) {
            None => draft.commit(),
            Some(fault) => Err(bad(fault)),
        }
    }

    /// Gives an image another name: both have the same contents, and each can be removed.
    pub fn tag(&self, name: &str, other: &str) -> Result<Image> {
        // Held, so that it is not removed meanwhile.
        let image = self.image(name)?;
        let draft = self.begin(other)?;
        {
            let own = &mut *draft.manifest();
            let Manifest { name, id, .. } = std::mem::take(own);
            *own = Manifest { name, id, ..image.manifest().clone() };
        }
        for part in &image.manifest().parts {
            draft.share(&image, part)?;
        }
        draft.commit()
    }
}

/// A chunk that an archive has.
pub(crate) struct DueChunk<'a> {
    pub part: usize,
    pub number: usize,
    pub chunk: &'a ChunkRef,
}

impl DueChunk<'_> {
    fn name(&self) -> String {
        format!("{:08}/{:08}", self.part, self.number)
    }
}

/// What an archive has of an image, in its order.
pub(crate) fn due(manifest: &Manifest) -> Vec<DueChunk<'_>> {
    let mut seen = HashSet::new();
    let mut all = Vec::new();
    for (at, part) in manifest.parts.iter().enumerate() {
        for (number, chunk) in part.chunks.iter().enumerate() {
            let is_kept = chunk.encoding != Encoding::Zero;
            let is_new = part.file.is_some() || seen.insert((chunk.hash, chunk.encoding));
            if is_kept && is_new {
                all.push(DueChunk { part: at, number, chunk });
            }
        }
    }
    all
}

/// An image that is being taken in.
struct ImageImport<'a> {
    draft: &'a Draft,
    /// Contents that are there already, as this store keeps them.
    stored: HashMap<ContentHash, ChunkRef>,
    scratch: Vec<u8>,
}

impl ImageImport<'_> {
    /// The file of a part that is kept whole.
    fn begin(&self, part: &Part) -> Result<Option<File>> {
        match part.file.is_some() {
            true => self.draft.new_file(part).map(Some),
            false => Ok(None),
        }
    }

    /// Takes in what is stored of a chunk.
    fn chunk(
        &mut self,
        part: &Part,
        due: &DueChunk<'_>,
        stored: &[u8],
        file: Option<&mut File>,
    ) -> Result<()> {
        let wrong = |reason: String| bad(format!("of its entry {} {reason}", due.name()));
        self.scratch.resize(due.chunk.bytes as usize, 0);
        chunk::decode(due.chunk, stored, &mut self.scratch).map_err(wrong)?;
        match file {
            Some(file) => {
                let offset = due.number as u64 * part.chunk_bytes;
                self.draft.write_at(part, file, offset, &self.scratch)
            }
            None => {
                let kept = self.draft.keep(part, &self.scratch)?;
                self.stored.insert(due.chunk.hash, kept);
                Ok(())
            }
        }
    }

    /// All of a part is there.
    fn end(&self, part: &Part, file: Option<File>) -> Result<()> {
        keep_part(self.draft, part, file, &self.stored)
    }
}

/// Enters a part, all of which is there, as this store has it.
pub(crate) fn keep_part(
    draft: &Draft,
    part: &Part,
    file: Option<File>,
    stored: &HashMap<ContentHash, ChunkRef>,
) -> Result<()> {
    let mut part = part.clone();
    match file {
        Some(file) => {
            let found = draft.set_length(&part, &file)?;
            part.modified_ns = part.modified_ns.map(|_| disk::modified_ns(&found));
        }
        None => {
            for chunk in part.chunks.iter_mut().filter(|chunk| chunk.encoding != Encoding::Zero) {
                let kept = stored.get(&chunk.hash).filter(|kept| kept.bytes == chunk.bytes);
                *chunk = *kept.ok_or_else(|| bad("two of its chunks have one hash".to_string()))?;
            }
        }
    }
    draft.adopt(vec![part])
}

fn append(archive: &mut tar::Builder<impl Write>, name: &str, bytes: &[u8]) -> Result<()> {
    let mut header = tar::Header::new_ustar();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o600);
    header.set_mtime(0);
    archive.append_data(&mut header, name, bytes).map_err(unwritten)
}

/// Reads the next entry, which must be the one that is due.
fn take_entry<'a, R: Read + 'a>(
    entries: &mut tar::Entries<'a, R>,
    name: &str,
    length: Option<u64>,
    into: &mut Vec<u8>,
) -> Result<()> {
    let mut entry = match entries.next() {
        Some(entry) => entry.map_err(unread)?,
        None => return Err(bad(format!("it ends where {name:?} is due"))),
    };
    let found = entry.path_bytes().into_owned();
    if found != name.as_bytes() {
        let found = String::from_utf8_lossy(&found[..found.len().min(100)]).into_owned();
        return Err(bad(format!("it has {found:?} where {name:?} is due")));
    }
    if entry.header().entry_type() != tar::EntryType::Regular {
        return Err(bad(format!("its entry {name:?} is no regular file")));
    }
    let bytes = entry.header().entry_size().map_err(unread)?;
    match length {
        Some(length) if bytes != length => {
            return Err(bad(format!("its entry {name:?} has {bytes} bytes, and {length} are due")));
        }
        None if bytes > LONGEST_MANIFEST => {
            return Err(bad(format!(
                "its manifest has {bytes} bytes, and at most {LONGEST_MANIFEST} may be"
            )));
        }
        _ => {}
    }
    into.clear();
    let read = entry.read_to_end(into).map_err(unread)? as u64;
    match read == bytes {
        true => Ok(()),
        false => Err(bad(format!("it ends within its entry {name:?}"))),
    }
}

fn bad(reason: String) -> Error {
    Error::BadArchive { reason }
}

fn unread(error: io::Error) -> Error {
    bad(format!("it cannot be read: {error}"))
}

fn unwritten(source: io::Error) -> Error {
    Error::Unwritten { source }
}
