//! Named files in a program's `/dev/shm`, which a dump takes along and a restore puts back.
//!
//! CRIU keeps the contents of deleted files only; named ones it expects to find. While the program stands still they
//! are packed into one file among the images, so that an image takes them as it takes CRIU's: for each a length (four
//! bytes, little endian), a [`Header`] in JSON, and the bytes of its extents. Holes are left out. A further name of a
//! file is a [`Link`], which has no bytes.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Component, Path, PathBuf};

use rekindle_protocol::frame;
use serde::{Deserialize, Serialize};

/// The file's name among the images.
pub const NAME: &str = "devshm.img";
const BLOCK: usize = 1 << 16;
const LONGEST_HEADER: usize = 64 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    /// Below `/dev/shm`.
    path: OsString,
    directory: bool,
    mode: u32,
    uid: u32,
    gid: u32,
    bytes: u64,
    /// Offset and length of what is not zero.
    extents: Vec<(u64, u64)>,
}

/// Another name of a file that came before.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Link {
    /// Both below `/dev/shm`.
    path: OsString,
    link_to: OsString,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Entry {
    Link(Link),
    File(Header),
}

/// All files and directories under `root`.
pub fn all(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut out = Vec::new();
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            out.push(entry.path());
            out.extend(all(&entry.path())?);
        } else if kind.is_file() && !is_criu_link(&entry.path()) {
            out.push(entry.path());
        }
    }
    Ok(out)
}

/// Packs `paths`, those among them that are under `root`, into the file `to`; none is made where there are none.
pub fn pack(root: &Path, paths: &[PathBuf], to: &Path) -> io::Result<()> {
    let mut paths: Vec<_> = paths.iter().filter_map(|path| path.strip_prefix(root).ok()).collect();
    paths.retain(|path| !is_criu_link(path));
    paths.sort();
    paths.dedup();
    if paths.is_empty() {
        return Ok(());
    }
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(to)?;
    let mut out = BufWriter::with_capacity(BLOCK, file);
    let mut first_names = HashMap::new();
    for path in paths {
        let meta = fs::metadata(root.join(path))?;
        match first_names.get(&(meta.dev(), meta.ino())) {
            Some(first) if !meta.is_dir() => {
                let link = Link { path: path.into(), link_to: OsString::clone(first) };
                put(&link, &mut out)?;
            }
            _ => {
                first_names.insert((meta.dev(), meta.ino()), path.into());
                pack_one(root, path, &meta, &mut out)?;
            }
        }
    }
    out.flush()
}

fn put(header: &impl Serialize, out: &mut impl Write) -> io::Result<()> {
    out.write_all(&frame::encode(header, LONGEST_HEADER).map_err(io::Error::other)?)
}

fn pack_one(root: &Path, path: &Path, meta: &Metadata, out: &mut impl Write) -> io::Result<()> {
    let mut file = File::open(root.join(path))?;
    let extents = if meta.is_dir() { Vec::new() } else { extents(&mut file)? };
    let header = Header {
        path: path.into(),
        directory: meta.is_dir(),
        mode: meta.mode() & 0o7777,
        uid: meta.uid(),
        gid: meta.gid(),
        bytes: meta.len(),
        extents,
    };
    put(&header, out)?;
    for (at, bytes) in header.extents {
        file.seek(SeekFrom::Start(at))?;
        copy(&mut file, out, bytes)?;
    }
    Ok(())
}

/// Where the file is not zero, in blocks.
pub fn extents(file: &mut impl Read) -> io::Result<Vec<(u64, u64)>> {
    let (mut out, mut at, mut block) = (Vec::<(u64, u64)>::new(), 0, vec![0; BLOCK]);
    loop {
        let got = file.read(&mut block)? as u64;
        if got == 0 {
            return Ok(out);
        }
        if block[..got as usize].iter().any(|&byte| byte != 0) {
            match out.last_mut() {
                Some((start, bytes)) if *start + *bytes == at => *bytes += got,
                _ => out.push((at, got)),
            }
        }
        at += got;
    }
}

pub fn copy(from: &mut impl Read, to: &mut impl Write, bytes: u64) -> io::Result<()> {
    match io::copy(&mut from.take(bytes), to)? {
        copied if copied == bytes => Ok(()),
        copied => Err(io::Error::other(format!("it ends after {copied} of {bytes} bytes"))),
    }
}

/// Puts what the file `from` holds under `root`; files that are there are written over.
pub fn unpack(from: &Path, root: &Path) -> io::Result<()> {
    let mut from = BufReader::with_capacity(BLOCK, File::open(from)?);
    while let Some(entry) = frame::read(&mut from, LONGEST_HEADER).map_err(io::Error::other)? {
        match entry {
            Entry::Link(link) => link_one(&link, root)?,
            Entry::File(header) => unpack_one(&header, &mut from, root)?,
        }
    }
    Ok(())
}

fn below(root: &Path, path: &OsString) -> io::Result<PathBuf> {
    let path = Path::new(path);
    if !path.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(io::Error::other(format!("{} is no place below {}", path.display(), root.display())));
    }
    Ok(root.join(path))
}

fn link_one(link: &Link, root: &Path) -> io::Result<()> {
    let (first, target) = (below(root, &link.link_to)?, below(root, &link.path)?);
    match fs::remove_file(&target) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::hard_link(first, target)
}

fn unpack_one(header: &Header, from: &mut impl Read, root: &Path) -> io::Result<()> {
    let target = below(root, &header.path)?;
    if header.directory {
        DirBuilder::new().recursive(true).mode(0o700).create(&target)?;
    } else {
        if let Some(above) = target.parent() {
            DirBuilder::new().recursive(true).create(above)?;
        }
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&target)?;
        for (at, bytes) in &header.extents {
            file.seek(SeekFrom::Start(*at))?;
            copy(from, &mut file, *bytes)?;
        }
        file.set_len(header.bytes)?;
    }
    chown(&target, Some(header.uid), Some(header.gid))?;
    fs::set_permissions(&target, Permissions::from_mode(header.mode))
}

/// CRIU gives deleted files that are still linked elsewhere a name for the time of the dump.
fn is_criu_link(path: &Path) -> bool {
    path.file_name().is_none_or(|name| name.to_string_lossy().starts_with("link_remap."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_directories_modes_and_holes_are_kept() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let packed = to.path().join(NAME);
        let pack_all = || pack(from.path(), &all(from.path()).unwrap(), &packed).unwrap();
        pack_all();
        assert!(!packed.exists(), "nothing to pack makes no file");

        fs::create_dir(from.path().join("d")).unwrap();
        fs::write(from.path().join("d/f"), b"text").unwrap();
        fs::write(from.path().join("link_remap.1"), b"CRIU's").unwrap();
        fs::set_permissions(from.path().join("d/f"), Permissions::from_mode(0o640)).unwrap();
        let mut hole = File::create(from.path().join("hole")).unwrap();
        hole.set_len(1 << 24).unwrap();
        hole.seek(SeekFrom::Start(1 << 23)).unwrap();
        hole.write_all(b"middle").unwrap();
        pack_all();
        assert!(fs::metadata(&packed).unwrap().len() < 1 << 20);

        let target = to.path().join("target");
        fs::create_dir(&target).unwrap();
        unpack(&packed, &target).unwrap();
        assert_eq!(fs::read(target.join("d/f")).unwrap(), b"text");
        assert_eq!(fs::metadata(target.join("d/f")).unwrap().mode() & 0o7777, 0o640);
        assert_eq!(fs::read(target.join("hole")).unwrap(), fs::read(from.path().join("hole")).unwrap());
        assert!(fs::metadata(target.join("hole")).unwrap().blocks() < 1000);
        assert!(!target.join("link_remap.1").exists());
    }

    #[test]
    fn names_of_one_file_stay_names_of_one_file() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(from.path().join("d")).unwrap();
        fs::write(from.path().join("d/one"), b"text").unwrap();
        fs::hard_link(from.path().join("d/one"), from.path().join("two")).unwrap();
        let packed = to.path().join(NAME);
        pack(from.path(), &all(from.path()).unwrap(), &packed).unwrap();
        let target = to.path().join("target");
        fs::create_dir(&target).unwrap();
        for _ in 0..2 {
            unpack(&packed, &target).unwrap();
            fs::write(target.join("two"), b"another").unwrap();
            assert_eq!(fs::read(target.join("d/one")).unwrap(), b"another");
        }
    }

    #[test]
    fn nothing_is_put_outside() {
        let dir = tempfile::tempdir().unwrap();
        let header = r#"{"path":{"Unix":[46,46,47,120]},"directory":false,"mode":0,"uid":0,"gid":0,"bytes":0,"extents":[]}"#;
        let packed = dir.path().join(NAME);
        fs::write(&packed, [&(header.len() as u32).to_le_bytes()[..], header.as_bytes()].concat()).unwrap();
        assert!(unpack(&packed, &dir.path().join("root")).unwrap_err().to_string().contains("../x"));
        fs::write(&packed, u32::MAX.to_le_bytes()).unwrap();
        assert!(unpack(&packed, dir.path()).is_err());
    }
}
