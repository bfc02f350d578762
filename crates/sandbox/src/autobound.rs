//! Unix sockets to which the kernel gave a name of its choice, so that no two instances of an image want the same.
//!
//! A socket that is bound without a name gets an abstract one of five hexadecimal digits, which nobody else on the
//! machine has. An image has it, and every restore of the image asks for it again: the first gets it, for the others it
//! is in use. Those get names that are free, in CRIU's list of files, where sockets that are connected to each other
//! find the other's name as well. What a program has of its names in its own memory stays as it was: one that gives them
//! to others from there is not found by them, in an instance that had to have other names.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::descriptors::{Described, FILES, Unix};
use crate::pages::image::Entries;

/// Restores of images with such names find out in turn which are free, until CRIU has bound them.
static LOCK: Mutex<()> = Mutex::new(());

const DIGITS: usize = 5;
const NAMES: u64 = 1 << (4 * DIGITS);

/// The names of one restore.
pub struct Names {
    guard: Option<MutexGuard<'static, ()>>,
    /// The images with other names, if there had to be other ones.
    directory: Option<PathBuf>,
}

/// Sees to the names of a restore from `images`; `None` if the program has none. Where some are in use, `own` is made,
/// on the same file system, for images that have others.
pub fn settle(images: &Path, own: &Path) -> io::Result<Option<Names>> {
    let path = images.join(FILES);
    if !path.exists() {
        return Ok(None);
    }
    let mut files = Entries::read(&path).map_err(io::Error::other)?;
    let wanted = names_of(&files);
    if wanted.is_empty() {
        return Ok(None);
    }
    let guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let mut names = Names { guard: Some(guard), directory: None };
    let in_use = in_use(&fs::read("/proc/self/net/unix")?);
    if wanted.is_disjoint(&in_use) {
        return Ok(Some(names));
    }
    let others = others(&wanted, &in_use, RandomState::new().hash_one(own));
    let others =
        others.ok_or_else(|| io::Error::other("every name that the kernel gives to sockets is in use"))?;
    rename(&mut files, &others);
    fs::DirBuilder::new().mode(0o700).create(own)?;
    names.directory = Some(own.to_path_buf());
    for entry in fs::read_dir(images)? {
        let name = entry?.file_name();
        if name != FILES {
            fs::hard_link(images.join(&name), own.join(&name))?;
        }
    }
    files.write(&own.join(FILES))?;
    Ok(Some(names))
}

impl Names {
    /// The directory to restore from, in place of `images`.
    pub fn images<'a>(&'a self, images: &'a Path) -> &'a Path {
        self.directory.as_deref().unwrap_or(images)
    }

    /// The sockets have their names: others may look which are free.
    pub fn bound(&mut self) {
        self.guard = None;
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        if let Some(directory) = &self.directory
            && let Err(error) = fs::remove_dir_all(directory)
        {
            log::warn!("{}: {error}", directory.display());
        }
    }
}

fn is_automatic(name: &[u8]) -> bool {
    let digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    matches!(name, [0, digits @ ..] if digits.len() == DIGITS && digits.iter().all(digit))
}

fn names_of(files: &Entries) -> HashSet<Vec<u8>> {
    let names = Unix::all(&files.entries).map(|socket| socket.name().to_vec());
    names.filter(|name| is_automatic(name)).collect()
}

/// The names in the kernel's list, in which a zero byte is written `@`.
fn in_use(list: &[u8]) -> HashSet<Vec<u8>> {
    let last = |line: &[u8]| {
        let name = line.rsplit(|byte| *byte == b' ').next()?.strip_prefix(b"@")?;
        Some([b"\0", name].concat())
    };
    list.split(|byte| *byte == b'\n').filter_map(last).filter(|name| is_automatic(name)).collect()
}

/// A free name for each wanted one that is in use; `None` if there are not so many.
fn others(
    wanted: &HashSet<Vec<u8>>,
    in_use: &HashSet<Vec<u8>>,
    first: u64,
) -> Option<HashMap<Vec<u8>, Vec<u8>>> {
    let names = (0..NAMES).map(|n| format!("\0{:05x}", first.wrapping_add(n) % NAMES).into_bytes());
    let mut free = names.filter(|name| !in_use.contains(name) && !wanted.contains(name));
    wanted.intersection(in_use).map(|name| Some((name.clone(), free.next()?))).collect()
}

fn rename(files: &mut Entries, others: &HashMap<Vec<u8>, Vec<u8>>) {
    for file in &mut files.entries {
        let Some(mut socket) = Unix::of(file) else { continue };
        if let Some(other) = others.get(socket.name()) {
            socket.rename(other.clone());
            socket.put(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Message;

    fn names(all: &[&str]) -> HashSet<Vec<u8>> {
        all.iter().map(|name| format!("\0{name}").into_bytes()).collect()
    }

    #[test]
    fn only_names_of_the_kernel_s_choice_are_meant() {
        let list = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 1 @0a1b2\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 2 @0A1b2\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 3 @0a1b2c\n\
            0000000000000000: 00000002 00000000 00000000 0002 01 4\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 5 /run/0a1b2\n";
        assert_eq!(in_use(list), names(&["0a1b2"]));
    }

    #[test]
    fn names_in_use_become_free_ones() {
        let (wanted, used) = (names(&["00001", "00002", "fffff"]), names(&["00001", "fffff", "00003"]));
        let found = others(&wanted, &used, u64::MAX - 1).unwrap();
        assert_eq!(found.keys().cloned().collect::<HashSet<_>>(), names(&["00001", "fffff"]));
        assert_eq!(found.into_values().collect::<HashSet<_>>(), names(&["ffffe", "00000"]));
        let all: HashSet<_> = (0..NAMES).map(|n| format!("\0{n:05x}").into_bytes()).collect();
        assert_eq!(others(&names(&["00001"]), &all, 7), None);
    }

    #[test]
    fn every_socket_of_a_name_gets_the_other_one() {
        let socket = |name: &[u8]| {
            let (mut socket, mut file) = (Message::default(), Message::default());
            socket.set(1, 5).set_bytes(11, name.to_vec());
            file.set(1, 5).set_bytes(16, socket.write());
            file
        };
        let mut files = Entries::default();
        files.entries =
            vec![socket(b"\x0012345"), socket(b"/run/x"), socket(b"\x0012345"), Message::default()];
        assert_eq!(names_of(&files), names(&["12345"]));
        rename(&mut files, &[(b"\x0012345".to_vec(), b"\x00abcde".to_vec())].into());
        let expected =
            vec![socket(b"\x00abcde"), socket(b"/run/x"), socket(b"\x00abcde"), Message::default()];
        assert_eq!(files.entries, expected);
    }
}
