//! The client, `libcuda.so.1`, and the environment that makes a program find it.
//!
//! ```text
//! an installation ─┐                       ┌─ run/ID/lib/libcuda.so.1 ── mapped by a program ─┐
//!                  ├─▶ clients/NAME/HASH ──┤                                                  ├─▶ its image
//! an image ────────┘                       └─ run/ID/lib/libcuda.so.1 ── … ───────────────────┘
//! ```
//!
//! A program goes on with the build that it has mapped, so its image has that build too, and a restore puts it where the program
//! had it. After an upgrade, or on a machine with another build, images come back as long as both speak one version of the
//! client's protocol. Programs with the same build map one file, by hard links.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rekindle_protocol::client::RUN_DIRECTORY;
use rekindle_store::{Draft, Encoding, Image, Part, PartKind};
use serde_json::json;

use crate::error::{Error, Result};
use crate::host::paths::{Paths, private_directory};
use crate::host::{HostError, opencl};

/// The names by which programs ask for the driver.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// Where the client lies in a run directory: a program finds it at one place before and after a restore.
pub const DIRECTORY: &str = "lib";

/// An attribute of the part of an image.
const HASH: &str = "blake3";

/// The client of an installation (`../lib/rekindle` beside the executable), or the one that lies beside the executable, as it
/// does where it was built.
fn find(executable: &Path) -> Result<PathBuf> {
    let beside = executable.parent().unwrap_or(Path::new("/"));
    [beside.join("../lib/rekindle/libcuda.so.1"), beside.join("libcuda.so.1"), beside.join("libcuda.so")]
        .into_iter()
        .find_map(|path| fs::canonicalize(path).ok())
        .ok_or_else(|| HostError::NoClientLibrary { executable: executable.to_path_buf() }.into())
}

/// A build of the client, where it can be mapped from.
pub struct Build(PathBuf);

impl Build {
    /// That of the installation that this executable belongs to.
    pub fn installed(paths: &Paths, executable: &Path) -> Result<Build> {
        let library = find(executable)?;
        let bytes = fs::read(&library).map_err(|source| Error::io("read", &library, source))?;
        Build::keep(paths, &blake3::hash(&bytes).to_hex(), || Ok(bytes))
    }

    /// That of an image's program; none of an image that has none.
    pub fn of_image(paths: &Paths, image: &Image) -> Result<Option<Build>> {
        let Some(part) = image.part(kind(), NAMES[0]) else { return Ok(None) };
        // What is no hash would be a path.
        let hash = part.attributes[HASH].as_str().and_then(|text| blake3::Hash::from_hex(text).ok());
        let Some(hash) = hash else { return Ok(None) };
        let read = || {
            let mut bytes = vec![0; part.bytes as usize];
            image.read_part(part, 0, &mut bytes)?;
            Ok(bytes)
        };
        Build::keep(paths, &hash.to_hex(), read).map(Some)
    }

    fn keep(paths: &Paths, hash: &str, bytes: impl FnOnce() -> Result<Vec<u8>>) -> Result<Build> {
        let directory = paths.clients();
        let place = directory.join(hash);
        if !place.exists() {
            let bytes = bytes()?;
            private_directory(&directory, true)?;
            write(&directory, &place, &bytes).map_err(|source| Error::io("write", &place, source))?;
        }
        Ok(Build(place))
    }

    /// Puts it into a run directory, in place of another one.
    pub fn put_into(&self, run_directory: &Path) -> Result<()> {
        let directory = run_directory.join(DIRECTORY);
        let made = fs::create_dir_all(&directory)
            .and_then(|()| fs::set_permissions(&directory, Permissions::from_mode(0o755)));
        made.map_err(|source| Error::io("make directory", &directory, source))?;
        for name in NAMES {
            let (place, new) = (directory.join(name), directory.join("new"));
            let put = fs::hard_link(&self.0, &new).and_then(|()| fs::rename(&new, &place));
            // A rename of one name of a file to another of the same file does nothing.
            let put = put.map(|()| drop(fs::remove_file(&new)));
            put.map_err(|source| Error::io("make the link", &place, source))?;
        }
        Ok(())
    }
}

/// Whole, or not at all.
fn write(directory: &Path, place: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(bytes)?;
    file.as_file().set_permissions(Permissions::from_mode(0o755))?;
    file.persist(place)?;
    Ok(())
}

/// Puts the build that a program has mapped into an image in the making. One that was started by a daemon which kept none has
/// mapped the installation's.
pub fn keep_with(draft: &Draft, run_directory: &Path) -> Result<()> {
    let place = run_directory.join(DIRECTORY).join(NAMES[0]);
    if !place.symlink_metadata().is_ok_and(|found| found.is_file()) {
        return Ok(());
    }
    let failed = |source| Error::io("read", &place, source);
    let identity = Identity::of(&fs::metadata(&place).map_err(failed)?);
    let last = LAST.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some(last) = last.filter(|last| last.identity == identity)
        && last.enter(draft)?
    {
        return Ok(());
    }
    let bytes = fs::read(&place).map_err(failed)?;
    let hash = blake3::hash(&bytes).to_hex();
    draft.put(kind(), NAMES[0], json!({ HASH: hash.as_str() }), &bytes)?;
    let part = draft.manifest().part(&kind(), NAMES[0]).cloned();
    *LAST.lock().unwrap_or_else(PoisonError::into_inner) = part.map(|part| Entered { identity, part });
    Ok(())
}

/// The build that was put into an image last: of the next one with it nothing is read or hashed.
static LAST: Mutex<Option<Entered>> = Mutex::new(None);

#[derive(Clone)]
struct Entered {
    identity: Identity,
    part: Part,
}

/// Nobody can change a file and leave all of this as it was.
#[derive(Clone, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Identity {
    fn of(found: &fs::Metadata) -> Identity {
        Identity {
            device: found.dev(),
            inode: found.ino(),
            bytes: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        }
    }
}

impl Entered {
    /// Whether the store has all of it still.
    fn enter(&self, draft: &Draft) -> Result<bool> {
        let Part { bytes, attributes, chunk_bytes, chunks, .. } = &self.part;
        let writer = draft.part(kind(), NAMES[0], attributes.clone(), *bytes)?;
        for (number, chunk) in chunks.iter().enumerate().filter(|(_, chunk)| chunk.encoding != Encoding::Zero)
        {
            if !writer.enter_known(number as u64 * chunk_bytes, chunk.hash)? {
                return Ok(false);
            }
        }
        writer.finish()?;
        Ok(true)
    }
}

fn kind() -> PartKind {
    PartKind::Other("client".to_string())
}

/// Removes the builds that no program has.
pub fn clear(paths: &Paths) {
    for entry in fs::read_dir(paths.clients()).into_iter().flatten().flatten() {
        if entry.metadata().is_ok_and(|found| found.nlink() == 1) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Adds the client to the environment of a program.
pub fn add_to(environment: &mut Vec<(String, String)>, run_path: &str) {
    let directory = format!("{run_path}/{DIRECTORY}");
    prepend(environment, "LD_PRELOAD", &format!("{directory}/{}", NAMES[0]));
    prepend(environment, "LD_LIBRARY_PATH", &directory);
    opencl::withhold(environment, &directory);
    environment.retain(|(name, _)| name != RUN_DIRECTORY);
    environment.push((RUN_DIRECTORY.to_string(), run_path.to_string()));
}

fn prepend(environment: &mut Vec<(String, String)>, name: &str, value: &str) {
    match environment.iter_mut().find(|(found, _)| found == name) {
        Some((_, rest)) if !rest.is_empty() => *rest = format!("{value}:{rest}"),
        Some((_, rest)) => *rest = value.to_string(),
        None => environment.push((name.to_string(), value.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_image_has_the_client_that_its_program_has_then() {
        let directory = tempfile::tempdir().unwrap();
        let store = rekindle_store::Store::open(&directory.path().join("store")).unwrap();
        let library = directory.path().join(DIRECTORY).join(NAMES[0]);
        fs::create_dir(directory.path().join(DIRECTORY)).unwrap();
        let image = |name: &str| {
            let draft = store.begin(name).unwrap();
            keep_with(&draft, directory.path()).unwrap();
            let image = draft.commit().unwrap();
            let part = image.part(kind(), NAMES[0]).unwrap().clone();
            let mut bytes = vec![0; part.bytes as usize];
            image.read_part(&part, 0, &mut bytes).unwrap();
            assert_eq!(part.attributes[HASH], blake3::hash(&bytes).to_hex().as_str());
            bytes
        };
        let build: Vec<u8> =
            (0..300_000u32).flat_map(|word| word.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
        let padded = [build.as_slice(), &[0; 1 << 20], b"end"].concat();
        for (name, contents) in
            [("first", &build), ("second", &build), ("third", &padded), ("fourth", &padded)]
        {
            if fs::read(&library).ok().as_ref() != Some(contents) {
                fs::write(&library, contents).unwrap();
            }
            assert!(image(name) == *contents, "{name}");
        }
        // What was known is gone.
        for name in ["first", "second", "third", "fourth"] {
            store.remove(name).unwrap();
        }
        store.collect().unwrap();
        assert!(image("fifth") == padded);
    }

    #[test]
    fn the_client_comes_first_in_the_environment() {
        let pair = |name: &str, value: &str| (name.to_string(), value.to_string());
        // The program's own folder of OpenCL's drivers, whatever this machine has, and a list that is not left to it.
        let mut environment = vec![
            pair("LD_PRELOAD", "/x.so"),
            pair("LD_LIBRARY_PATH", ""),
            pair("OCL_ICD_FILENAMES", "libnvidia-opencl.so.1"),
            pair("OCL_ICD_VENDORS", "/own"),
            pair(RUN_DIRECTORY, "/old"),
        ];
        add_to(&mut environment, "/r");
        let expected = [
            pair("LD_PRELOAD", "/r/lib/libcuda.so.1:/x.so"),
            pair("LD_LIBRARY_PATH", "/r/lib"),
            pair("OCL_ICD_VENDORS", "/own"),
            pair(RUN_DIRECTORY, "/r"),
        ];
        assert_eq!(environment, expected);
    }
}
