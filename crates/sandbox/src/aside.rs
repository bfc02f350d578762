//! Images of a program that is restored beside itself: it takes nothing that the other one has.
//!
//! A Unix socket that has a path would take that of the running program's away, and a lock on a file would not be had. So
//! sockets get names in a directory of its own, a sandbox's run directory or a container's `/dev`, and locks are left out.
//! Ports, addresses and abstract names are those of a network of its own.

use std::collections::HashMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use crate::descriptors::{Described, FILES, Unix};
use crate::pages::image::Entries;
use crate::proto::Message;

const LOCKS: &str = "filelocks.img";
const REMAPS: &str = "remap-fpath.img";

/// Why a program cannot be restored beside itself, if it cannot.
pub fn obstacle(images: &Path) -> io::Result<Option<String>> {
    const KIND: u64 = 3;
    const OTHER: u64 = 2;
    const LINKED: u64 = 0;
    const GHOST_BIT: u64 = 1 << 31;
    let path = images.join(REMAPS);
    if !path.exists() {
        return Ok(None);
    }
    let entries = Entries::read(&path).map_err(io::Error::other)?.entries;
    let is_linked = |entry: &Message| match entry.number(KIND) {
        Some(kind) => kind == LINKED,
        None => entry.number(OTHER).is_some_and(|other| other & GHOST_BIT == 0),
    };
    Ok(entries.iter().any(is_linked).then(|| {
        "it has a file open that has lost the name by which it was opened, and a restore takes the name that CRIU has given it"
            .to_string()
    }))
}

/// Makes `own`, on the same file system, with the images as they are to be restored beside the program. Sockets get names
/// in the directory `place`, as the restored program sees it.
pub fn settle(images: &Path, own: &Path, place: &str) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(own)?;
    for entry in fs::read_dir(images)? {
        let name = entry?.file_name();
        if name != FILES && name != LOCKS {
            fs::hard_link(images.join(&name), own.join(&name))?;
        }
    }
    let mut files = Entries::read(&images.join(FILES)).map_err(io::Error::other)?;
    rename(&mut files.entries, place);
    files.write(&own.join(FILES))
}

fn rename(files: &mut [Message], place: &str) {
    let mut names: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
    for file in files {
        let Some(mut socket) = Unix::of(file) else { continue };
        let name = socket.name().to_vec();
        // Those without a path have no name, or one of their network.
        if name.first().is_none_or(|first| *first == 0) {
            continue;
        }
        let key = [socket.directory(), b"\0", &name].concat();
        let number = names.len();
        let end = if name.ends_with(b"\0") { "\0" } else { "" };
        let new = names.entry(key).or_insert_with(|| format!("{place}/s{number}{end}").into_bytes());
        socket.rename(new.clone());
        socket.put(file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(id: u64, name: &[u8], directory: Option<&str>) -> Message {
        let mut socket = Message::default();
        socket.set(1, id).set_bytes(11, name.to_vec());
        if let Some(directory) = directory {
            socket.set_bytes(14, directory.as_bytes().to_vec());
        }
        let mut file = Message::default();
        file.set(1, 5).set(2, id).set_bytes(16, socket.write());
        file
    }

    fn name(file: &Message) -> Vec<u8> {
        let socket = Unix::of(file).unwrap();
        assert_eq!(socket.directory(), b"");
        socket.name().to_vec()
    }

    #[test]
    fn sockets_with_paths_get_others_and_the_same_ones_the_same() {
        let mut files = vec![
            socket(1, b"/tmp/a\0", None),
            socket(2, b"/tmp/a\0", None),
            socket(3, b"b\0", Some("/tmp")),
            socket(4, b"b\0", Some("/run")),
            socket(5, b"\0abstract", None),
            socket(6, b"", None),
        ];
        rename(&mut files, "/run/rekindle");
        let names: Vec<_> = files.iter().map(name).collect();
        assert_eq!(names[0], b"/run/rekindle/s0\0");
        assert_eq!(names[1], names[0]);
        assert!(names[2] != names[3] && names[2] != names[0]);
        assert_eq!((&names[4][..], &names[5][..]), (&b"\0abstract"[..], &b""[..]));
    }

    #[test]
    fn files_that_lost_their_names_are_an_obstacle() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(obstacle(directory.path()).unwrap(), None);
        let put = |kind: Option<u64>, other: u64| {
            let mut entries = Entries::default();
            let mut entry = Message::default();
            entry.set(1, 4).set(2, other);
            if let Some(kind) = kind {
                entry.set(3, kind);
            }
            entries.entries.push(entry);
            entries.write(&directory.path().join(REMAPS)).unwrap();
            // Nothing is before the entries.
            let text = [&[0; 8][..], &fs::read(directory.path().join(REMAPS)).unwrap()].concat();
            fs::write(directory.path().join(REMAPS), text).unwrap();
            obstacle(directory.path()).unwrap().is_some()
        };
        assert!(put(Some(0), 7) && put(None, 7));
        assert!(!put(Some(1), 7) && !put(None, 1 << 31 | 7));
    }
}
