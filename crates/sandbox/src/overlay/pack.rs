//! What a layer holds, as one file: first for which directory that is, then for each file of the layer a length (four
//! bytes, little endian), an [`Entry`] in JSON and the bytes of its extents. Directories come before what is in them.
//!
//! What the layer says of files beneath it is kept as overlayfs has it: one that is removed is a device with the number 0,
//! a directory that hides the one beneath has an attribute that says so.

use std::collections::{HashMap, HashSet};
use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{
    DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown, symlink,
};
use std::path::{Component, Path, PathBuf};

use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use rekindle_protocol::frame;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::devshm::{copy, extents};

const BLOCK: usize = 1 << 16;
const LONGEST_ENTRY: usize = 64 << 20;
/// What overlayfs notes of files; of these only what hides directories is true of another machine's.
const NOTES: &[u8] = b"trusted.overlay.";
const OPAQUE: &[u8] = b"trusted.overlay.opaque";

#[derive(Debug, Serialize, Deserialize)]
struct Head {
    directory: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    /// Below the directory; empty for itself.
    path: OsString,
    mode: u32,
    uid: u32,
    gid: u32,
    /// When it was modified: seconds and nanoseconds.
    modified: (i64, i64),
    attributes: Vec<(OsString, Vec<u8>)>,
    kind: Kind,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Directory,
    File {
        bytes: u64,
        /// Offset and length of what is not zero.
        extents: Vec<(u64, u64)>,
    },
    /// Another name of a file that came before.
    Link {
        to: OsString,
    },
    Symlink {
        to: OsString,
    },
    /// A pipe, a socket's name, or a device.
    Node {
        device: u64,
    },
}

/// Packs what is in `upper`, the layer over `directory`, into the file `to`.
pub fn pack(directory: &Path, upper: &Path, to: &Path) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(to)?;
    let mut packer =
        Packer { root: upper, names: HashMap::new(), out: BufWriter::with_capacity(BLOCK, file) };
    packer.put(&Head { directory: directory.into() })?;
    packer.pack(Path::new(""))?;
    packer.out.flush()
}

struct Packer<'a, W> {
    root: &'a Path,
    /// The first name of each file that has several.
    names: HashMap<(u64, u64), PathBuf>,
    out: W,
}

impl<W: Write> Packer<'_, W> {
    fn pack(&mut self, path: &Path) -> io::Result<()> {
        let place = self.root.join(path);
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let meta = fs::symlink_metadata(&place).map_err(named)?;
        self.pack_one(path, &place, &meta).map_err(named)?;
        if meta.is_dir() {
            let mut names =
                fs::read_dir(&place)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
            names.sort();
            names.iter().try_for_each(|name| self.pack(&path.join(name)))?;
        }
        Ok(())
    }

    fn pack_one(&mut self, path: &Path, place: &Path, meta: &Metadata) -> io::Result<()> {
        let mut file = None;
        let kind = match self.names.get(&(meta.dev(), meta.ino())) {
            Some(first) if !meta.is_dir() => Kind::Link { to: first.into() },
            _ if meta.is_dir() => Kind::Directory,
            _ if meta.is_symlink() => Kind::Symlink { to: fs::read_link(place)?.into() },
            _ if meta.is_file() => {
                let contents = file.insert(File::open(place)?);
                Kind::File { bytes: meta.len(), extents: extents(contents)? }
            }
            _ => Kind::Node { device: meta.rdev() },
        };
        // All that overlayfs removes may be names of one device.
        if meta.nlink() > 1 && !meta.is_dir() && !meta.file_type().is_char_device() {
            self.names.entry((meta.dev(), meta.ino())).or_insert_with(|| path.into());
        }
        let entry = Entry {
            path: path.into(),
            mode: meta.mode(),
            uid: meta.uid(),
            gid: meta.gid(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            attributes: attributes(place)?,
            kind,
        };
        self.put(&entry)?;
        if let (Some(mut file), Kind::File { extents, .. }) = (file, &entry.kind) {
            for (at, bytes) in extents {
                file.seek(SeekFrom::Start(*at))?;
                copy(&mut file, &mut self.out, *bytes)?;
            }
        }
        Ok(())
    }

    fn put(&mut self, what: &impl Serialize) -> io::Result<()> {
        self.out.write_all(&frame::encode(what, LONGEST_ENTRY).map_err(io::Error::other)?)
    }
}

fn attributes(place: &Path) -> io::Result<Vec<(OsString, Vec<u8>)>> {
    let names =
        xattr::list(place)?.filter(|name| name.as_bytes() == OPAQUE || !name.as_bytes().starts_with(NOTES));
    names.map(|name| Ok((name.clone(), xattr::get(place, &name)?.unwrap_or_default()))).collect()
}

/// What is packed in a file.
struct Unpacker {
    from: BufReader<File>,
}

impl Unpacker {
    fn open(path: &Path) -> io::Result<(Self, Head)> {
        let mut unpacker = Self { from: BufReader::with_capacity(BLOCK, File::open(path)?) };
        let head = unpacker.next()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok((unpacker, head))
    }

    fn next<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        frame::read(&mut self.from, LONGEST_ENTRY).map_err(io::Error::other)
    }

    /// Passes over the contents of a file.
    fn skip(&mut self, entry: &Entry) -> io::Result<()> {
        if let Kind::File { extents, .. } = &entry.kind {
            let bytes: u64 = extents.iter().map(|(_, bytes)| bytes).sum();
            self.from.seek_relative(i64::try_from(bytes).map_err(io::Error::other)?)?;
        }
        Ok(())
    }
}

/// Which files an image keeps of a layer.
#[derive(Debug)]
pub struct LayerFiles {
    directory: PathBuf,
    names: HashSet<PathBuf>,
}

impl LayerFiles {
    pub fn read(path: &Path) -> io::Result<Self> {
        let (mut unpacker, Head { directory }) = Unpacker::open(path)?;
        let mut names = HashSet::new();
        while let Some(entry) = unpacker.next::<Entry>()? {
            unpacker.skip(&entry)?;
            names.insert(entry.path.into());
        }
        Ok(Self { directory, names })
    }

    pub fn has(&self, path: &Path) -> bool {
        path.strip_prefix(&self.directory).is_ok_and(|below| self.names.contains(below))
    }
}

/// Fills the empty layer `upper` over `directory` with what the file `from` holds.
pub fn unpack(from: &Path, directory: &Path, upper: &Path) -> io::Result<()> {
    let (mut unpacker, head) = Unpacker::open(from)?;
    if head.directory != directory {
        let kept = head.directory.display();
        return Err(io::Error::other(format!("the image has a layer over {kept} in its place")));
    }
    let mut directories = Vec::new();
    while let Some(entry) = unpacker.next::<Entry>()? {
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", Path::new(&entry.path).display()))
        };
        let place = below(upper, &entry.path).map_err(named)?;
        make(&entry, &place, upper, &mut unpacker.from)
            .and_then(|()| furnish(&entry, &place))
            .map_err(named)?;
        if matches!(entry.kind, Kind::Directory) {
            directories.push((place, entry.modified));
        }
    }
    // What is put into a directory modifies it.
    directories.iter().rev().try_for_each(|(place, modified)| set_modified(place, *modified))
}

fn below(root: &Path, path: &OsStr) -> io::Result<PathBuf> {
    let path = Path::new(path);
    match path.components().all(|part| matches!(part, Component::Normal(_))) {
        true if path.as_os_str().is_empty() => Ok(root.into()),
        true => Ok(root.join(path)),
        false => Err(io::Error::other("it is no place below the directory")),
    }
}

fn make(entry: &Entry, place: &Path, root: &Path, from: &mut impl Read) -> io::Result<()> {
    match &entry.kind {
        Kind::Directory if place == root => Ok(()),
        Kind::Directory => DirBuilder::new().mode(0o700).create(place),
        Kind::File { bytes, extents } => {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(place)?;
            for (at, bytes) in extents {
                file.seek(SeekFrom::Start(*at))?;
                copy(from, &mut file, *bytes)?;
            }
            file.set_len(*bytes)
        }
        Kind::Link { to } => fs::hard_link(below(root, to)?, place),
        Kind::Symlink { to } => symlink(to, place),
        Kind::Node { device } => {
            let path = CString::new(place.as_os_str().as_bytes())?;
            // SAFETY: the path ends with a zero byte.
            match unsafe { libc::mknod(path.as_ptr(), entry.mode, *device) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        }
    }
}

/// Gives it the owner and all else that it had. A change of the owner takes some of the others away.
fn furnish(entry: &Entry, place: &Path) -> io::Result<()> {
    if matches!(entry.kind, Kind::Link { .. }) {
        return Ok(());
    }
    lchown(place, Some(entry.uid), Some(entry.gid))?;
    if !matches!(entry.kind, Kind::Symlink { .. }) {
        fs::set_permissions(place, Permissions::from_mode(entry.mode & 0o7777))?;
    }
    entry.attributes.iter().try_for_each(|(name, value)| xattr::set(place, name, value))?;
    set_modified(place, entry.modified)
}

fn set_modified(place: &Path, (seconds, nanoseconds): (i64, i64)) -> io::Result<()> {
    let time = TimeSpec::new(seconds, nanoseconds);
    Ok(utimensat(AT_FDCWD, place, &time, &time, UtimensatFlags::NoFollowSymlink)?)
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn all_kinds_of_files_come_back_with_what_they_had() {
        let root = tempfile::tempdir().unwrap();
        let (upper, packed, other) =
            (root.path().join("upper"), root.path().join("packed"), root.path().join("other"));
        fs::create_dir_all(upper.join("d/inner")).unwrap();
        fs::write(upper.join("d/file"), "text").unwrap();
        fs::set_permissions(upper.join("d/file"), Permissions::from_mode(0o4750)).unwrap();
        fs::hard_link(upper.join("d/file"), upper.join("link")).unwrap();
        symlink("/nowhere", upper.join("symlink")).unwrap();
        mkfifo(&upper.join("pipe"), Mode::S_IRWXU).unwrap();
        let mut hole = File::create(upper.join("hole")).unwrap();
        hole.seek(SeekFrom::Start(1 << 23)).unwrap();
        hole.write_all(b"middle").unwrap();
        hole.set_len(1 << 24).unwrap();
        // Not all file systems have them.
        let has_attributes = xattr::set(upper.join("d/file"), "user.word", b"value").is_ok();
        for path in ["d/file", "symlink", "d", ""] {
            set_modified(&upper.join(path), (1_000_000_000, 42)).unwrap();
        }
        pack(Path::new("/app"), &upper, &packed).unwrap();
        assert!(fs::metadata(&packed).unwrap().len() < 1 << 20);

        fs::create_dir(&other).unwrap();
        unpack(&packed, Path::new("/app"), &other).unwrap();
        assert_eq!(fs::read(other.join("d/file")).unwrap(), b"text");
        assert_eq!(fs::read(other.join("hole")).unwrap(), fs::read(upper.join("hole")).unwrap());
        assert!(fs::metadata(other.join("hole")).unwrap().blocks() < 1000);
        assert_eq!(fs::read_link(other.join("symlink")).unwrap(), Path::new("/nowhere"));
        assert!(fs::metadata(other.join("pipe")).unwrap().file_type().is_fifo());
        let value = has_attributes.then(|| b"value".to_vec());
        assert_eq!(xattr::get(other.join("d/file"), "user.word").unwrap_or_default(), value);
        let found = |path: &str| fs::symlink_metadata(other.join(path)).unwrap();
        assert_eq!(found("d/file").mode() & 0o7777, 0o4750);
        assert_eq!(found("d/file").ino(), found("link").ino());
        for path in ["d/file", "symlink", "d", ""] {
            assert_eq!((found(path).mtime(), found(path).mtime_nsec()), (1_000_000_000, 42), "{path}");
        }
        let kept = LayerFiles::read(&packed).unwrap();
        assert!(kept.has(Path::new("/app/d/file")) && kept.has(Path::new("/app")));
        assert!(!kept.has(Path::new("/app/x")) && !kept.has(Path::new("/d/file")));
    }

    #[test]
    fn what_is_no_layer_of_the_directory_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let (upper, packed) = (root.path().join("upper"), root.path().join("packed"));
        fs::create_dir(&upper).unwrap();
        pack(Path::new("/app"), &upper, &packed).unwrap();
        let why = unpack(&packed, Path::new("/other"), &upper).unwrap_err().to_string();
        assert!(why.contains("/app"), "{why}");
        let whole = fs::read(&packed).unwrap();
        for cut in 1..whole.len() {
            fs::write(&packed, &whole[..cut]).unwrap();
            // Where the head ends, an empty layer does.
            let head = 4 + u32::from_le_bytes(whole[..4].try_into().unwrap()) as usize;
            assert!(cut == head || unpack(&packed, Path::new("/app"), &upper).is_err(), "{cut}");
        }
        fs::write(&packed, u32::MAX.to_le_bytes()).unwrap();
        assert!(unpack(&packed, Path::new("/app"), &upper).is_err());
    }

    #[test]
    fn nothing_is_put_outside() {
        for path in ["../x", "/x", "a/../../x"] {
            assert!(below(Path::new("/root"), OsStr::new(path)).is_err(), "{path}");
        }
        assert_eq!(below(Path::new("/root"), OsStr::new("a/b")).unwrap(), Path::new("/root/a/b"));
    }
}
