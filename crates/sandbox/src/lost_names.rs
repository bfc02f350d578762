//! Files that the program opened by a name that is gone, while another link to them is left: semaphores of `sem_open`,
//! which makes a file, links it under the semaphore's name and removes the first one.
//!
//! CRIU keeps such a file by a link of its own beside the lost name (`link_remap.N`), which a restore uses up. Here
//! CRIU is told that they come from elsewhere, so that no such link is made, and its images are written again while the
//! program stands still:
//!
//! | the file | then |
//! | --- | --- |
//! | has another name that is found | is the file of that name: shared with all that have it by that one |
//! | has none, and is not written to | is kept whole in the image, as a deleted file is |
//! | has none, and may be written to | is refused, before the program is stopped: who has it by its other name would see no more of it |
//!
//! A name that is lost while CRIU begins is met by CRIU's link; that is treated in the same way, and removed.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::descriptors::{self, Described, FILES, Regular};
use crate::ghost_file::{self, GHOST_LIMIT};
use crate::pages::image::Entries;
use crate::process::maps;
use crate::proto::Message;

const GONE: &[u8] = b" (deleted)";
const REMAPS: &str = "remap-fpath.img";
const REMAPS_MAGIC: u32 = 0x5913_3954;
/// Of an entry in [`REMAPS`].
const ORIGINAL: u64 = 1;
const REPLACEMENT: u64 = 2;
const KIND: u64 = 3;
const LINKED: u64 = 0;
const GHOST: u64 = 1;

/// What tells one file from another: device and inode.
type Key = (u64, u64);

/// A file whose opened name is gone.
#[derive(Debug)]
struct Lost {
    /// Of a process that has it.
    pid: i32,
    /// Where it can be opened.
    reached: PathBuf,
    /// The name that is gone.
    name: PathBuf,
    /// CRIU's name for it as something from elsewhere.
    external: Option<String>,
    is_written: bool,
    bytes: u64,
}

/// The files of some processes whose opened names are gone.
#[derive(Debug, Default)]
pub struct LostNames {
    files: HashMap<Key, Lost>,
    others: HashMap<Key, PathBuf>,
}

impl LostNames {
    /// Those of the processes `pids`, which may run.
    pub fn find(pids: &[i32]) -> LostNames {
        let mut found = LostNames::default();
        for &pid in pids {
            each_use(pid, true, |link, reached, is_written| found.note(pid, link, reached, is_written));
        }
        if found.files.is_empty() {
            return found;
        }
        let mut named = HashMap::new();
        for &pid in pids {
            each_use(pid, false, |link, reached, _| {
                if let Ok(meta) = fs::metadata(reached) {
                    named.entry((meta.dev(), meta.ino())).or_insert_with(|| link.to_path_buf());
                }
            });
        }
        for (key, lost) in &found.files {
            let other = named.get(key).cloned().filter(|path| is_at(lost.pid, path, *key));
            if let Some(other) = other.or_else(|| beside(lost.pid, &lost.name, *key)) {
                found.others.insert(*key, other);
            }
        }
        found
    }

    fn note(&mut self, pid: i32, link: &Path, reached: &Path, is_written: bool) {
        let Ok(meta) = fs::metadata(reached) else { return };
        let key = (meta.dev(), meta.ino());
        // A name that ends so and is there is one like others.
        if !meta.is_file() || meta.nlink() == 0 || !link.is_absolute() || is_at(pid, link, key) {
            return;
        }
        let text = link.as_os_str().as_bytes();
        let lost = self.files.entry(key).or_insert_with(|| Lost {
            pid,
            reached: reached.to_path_buf(),
            name: PathBuf::from(OsStr::from_bytes(&text[..text.len() - GONE.len()])),
            external: mount_of(reached).map(|mount| format!("file[{mount:x}:{:x}]", meta.ino())),
            is_written: false,
            bytes: meta.len(),
        });
        lost.is_written |= is_written;
    }

    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Why a dump cannot keep them, if it cannot.
    pub fn refusal(&self) -> Option<String> {
        let without = self.files.iter().filter(|(key, _)| !self.others.contains_key(key));
        let mut refused: Vec<_> = without.filter_map(|(_, lost)| lost.refusal()).collect();
        refused.sort();
        refused.into_iter().next()
    }

    /// Those that CRIU is to be told of at a dump.
    pub fn external(&self) -> impl Iterator<Item = String> {
        let mut keys: Vec<_> = self.files.values().filter_map(|lost| lost.external.clone()).collect();
        keys.sort();
        keys.into_iter()
    }

    /// The name that a file has still.
    pub fn other_name(&self, device: u64, inode: u64) -> Option<&Path> {
        self.others.get(&(device, inode)).map(PathBuf::as_path)
    }

    /// All those names.
    pub fn other_names(&self) -> impl Iterator<Item = &Path> {
        self.others.values().map(PathBuf::as_path)
    }
}

impl Lost {
    fn refusal(&self) -> Option<String> {
        let (pid, name) = (self.pid, self.name.display());
        if self.is_written {
            return Some(format!(
                "process {pid} may write to a file that it opened as {name}, which has lost that name and has another one that \
                 was not found beside it; close it, or give it a name in {}",
                self.name.parent().unwrap_or(Path::new("/")).display()
            ));
        }
        (self.bytes > GHOST_LIMIT).then(|| {
            format!(
                "process {pid} has a file that it opened as {name}, which has lost that name and is with {} bytes too large \
                 to be kept in an image (the most is {GHOST_LIMIT}); give it its name back",
                self.bytes
            )
        })
    }
}

/// Calls `with` for each file that a process has open or mapped by a name that is gone, or by one that is not: its link,
/// where it is reached, and whether it may be written to.
fn each_use(pid: i32, is_gone: bool, mut with: impl FnMut(&Path, &Path, bool)) {
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
        let Ok(link) = fs::read_link(entry.path()) else { continue };
        if link.is_absolute() && link.as_os_str().as_bytes().ends_with(GONE) == is_gone {
            let is_written = is_gone && is_open_for_writing(pid, &entry.file_name());
            with(&link, &entry.path(), is_written);
        }
    }
    let mut seen = HashSet::new();
    for area in maps::if_there(pid) {
        let is_written = area.is_shared && area.may(libc::PROT_WRITE);
        if area.is_deleted() == is_gone && area.name.starts_with(b"/") && seen.insert((area.name, is_written))
        {
            let reached = format!("/proc/{pid}/map_files/{:x}-{:x}", area.span.start, area.span.end);
            let reached = Path::new(&reached);
            if let Ok(link) = fs::read_link(reached) {
                with(&link, reached, is_written);
            }
        }
    }
}

fn is_open_for_writing(pid: i32, number: &OsStr) -> bool {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", number.display())).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
}

/// Whether the file is there under this name, as the process sees names.
fn is_at(pid: i32, name: &Path, key: Key) -> bool {
    fs::symlink_metadata(inside(pid, name)).is_ok_and(|meta| (meta.dev(), meta.ino()) == key)
}

fn inside(pid: i32, path: &Path) -> PathBuf {
    Path::new("/proc").join(pid.to_string()).join("root").join(path.strip_prefix("/").unwrap_or(path))
}

/// Another name of the file in the directory of the one that is gone.
fn beside(pid: i32, gone: &Path, key: Key) -> Option<PathBuf> {
    let directory = gone.parent()?;
    let entries = fs::read_dir(inside(pid, directory)).ok()?.flatten();
    let mut names: Vec<_> = entries
        .filter(|entry| entry.ino() == key.1 && !is_link_of_criu(&entry.path()))
        .map(|entry| directory.join(entry.file_name()))
        .filter(|path| is_at(pid, path, key))
        .collect();
    names.sort();
    names.into_iter().next()
}

/// CRIU's own names for such files, while it dumps.
fn is_link_of_criu(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    name.strip_prefix("link_remap.").is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}

fn mount_of(path: &Path) -> Option<u64> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: all bytes zero are a valid value of this plain structure.
    let mut of: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a zero byte, and the result is written to a structure of its type.
    let done = unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), 0, libc::STATX_MNT_ID, &mut of) };
    (done == 0 && of.stx_mask & libc::STATX_MNT_ID != 0).then_some(of.stx_mnt_id)
}

/// Makes the images in `images` complete, which CRIU has written of processes that stand still; `found` is theirs.
pub fn settle(found: &LostNames, images: &Path) -> Result<(), String> {
    let remaps = images.join(REMAPS);
    if found.files.is_empty() && !remaps.exists() {
        return Ok(());
    }
    let mut dump = Dump {
        images,
        files: Entries::read(&images.join(FILES))?,
        remaps: if remaps.exists() { Entries::read(&remaps)? } else { Entries::new(REMAPS_MAGIC) },
        ghosts: HashMap::new(),
    };
    let named = |what: &Path| {
        let what = what.display().to_string();
        move |error: io::Error| format!("keeping {what}, whose name is gone: {error}")
    };
    let (external, linked) = (dump.external(), dump.linked()?);
    if external.is_empty() && linked.is_empty() {
        return Ok(());
    }
    for (id, key) in external {
        let lost = found.files.iter().find(|(_, lost)| lost.external.as_ref() == Some(&key));
        let (file, lost) =
            lost.ok_or_else(|| format!("{key} was open when the checkpoint began and is no more"))?;
        dump.settle(id, found, *file, lost).map_err(named(&lost.name))?;
    }
    let mut links = Vec::new();
    for Linked { id, link, replacement } in linked {
        let meta = fs::metadata(&link).map_err(named(&link))?;
        let file = (meta.dev(), meta.ino());
        let lost = found.files.get(&file);
        let lost =
            lost.ok_or_else(|| format!("nobody has {} open, which CRIU has linked", link.display()))?;
        if let Some(refusal) = lost.refusal().filter(|_| !found.others.contains_key(&file)) {
            return Err(refusal);
        }
        dump.settle(id, found, file, lost).map_err(named(&lost.name))?;
        dump.files.entries.retain(|entry| descriptors::id(entry) != Some(replacement));
        links.push(link);
    }
    let written = dump.files.write(&images.join(FILES)).and_then(|()| dump.remaps.write(&remaps));
    written.map_err(|error| format!("writing the images again: {error}"))?;
    // CRIU does so too, but where the program ends.
    links.iter().try_for_each(|link| fs::remove_file(link).map_err(named(link)))
}

/// Whether CRIU has met such a file that it was not told of, and has linked it.
pub fn is_any_linked(images: &Path) -> Result<bool, String> {
    let remaps = images.join(REMAPS);
    Ok(remaps.exists() && Entries::read(&remaps)?.entries.iter().any(is_linked))
}

fn is_linked(remap: &Message) -> bool {
    remap.number(KIND).unwrap_or(LINKED) == LINKED
}

struct Dump<'a> {
    images: &'a Path,
    files: Entries,
    remaps: Entries,
    /// The numbers of files that are kept whole.
    ghosts: HashMap<Key, u64>,
}

/// A file that CRIU has made a link of.
struct Linked {
    id: u64,
    link: PathBuf,
    /// The link's own id.
    replacement: u64,
}

impl Dump<'_> {
    /// The ids of files that CRIU took for others', and its names for them.
    fn external(&self) -> Vec<(u64, String)> {
        let entries = self.files.entries.iter();
        let named = entries.filter_map(|entry| {
            let regular = Regular::of(entry)?;
            let name = std::str::from_utf8(regular.name()).ok()?.to_string();
            (regular.is_external() && name.starts_with("file[")).then_some((descriptors::id(entry)?, name))
        });
        named.collect()
    }

    fn linked(&self) -> Result<Vec<Linked>, String> {
        let linked = self.remaps.entries.iter().filter(|entry| is_linked(entry));
        let read = linked.map(|entry| {
            let (id, replacement) = (entry.number(ORIGINAL)?, entry.number(REPLACEMENT)?);
            let mut files = self.files.entries.iter();
            let file = files.find(|file| descriptors::id(file) == Some(replacement))?;
            let link = Regular::of(file)?.path().to_path_buf();
            Some(Linked { id, link, replacement })
        });
        read.collect::<Option<_>>().ok_or_else(|| format!("{REMAPS} and {FILES} do not agree"))
    }

    /// Has the entry `id` be the file under its other name, or its contents.
    fn settle(&mut self, id: u64, found: &LostNames, file: Key, lost: &Lost) -> io::Result<()> {
        self.remaps.entries.retain(|entry| entry.number(ORIGINAL) != Some(id));
        let other = found.others.get(&file);
        self.rename(id, other.unwrap_or(&lost.name));
        if other.is_some() {
            return Ok(());
        }
        let number = match self.ghosts.get(&file) {
            Some(number) => *number,
            None => {
                let number = ghost_file::write(self.images, &File::open(&lost.reached)?)?;
                self.ghosts.insert(file, number);
                number
            }
        };
        let mut remap = Message::default();
        remap.set(ORIGINAL, id).set(REPLACEMENT, number).set(KIND, GHOST);
        self.remaps.entries.push(remap);
        Ok(())
    }

    fn rename(&mut self, id: u64, to: &Path) {
        for entry in self.files.entries.iter_mut().filter(|entry| descriptors::id(entry) == Some(id)) {
            let Some(mut regular) = Regular::of(entry) else { continue };
            regular.rename(to);
            regular.put(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::OpenOptionsExt;

    fn own() -> i32 {
        std::process::id() as i32
    }

    /// Opens a file, gives it another name and removes the first.
    fn lose(first: &Path, other: &Path, flags: i32) -> File {
        fs::write(first, "contents").unwrap();
        let write = flags & libc::O_ACCMODE != libc::O_RDONLY;
        let file = fs::OpenOptions::new().read(true).write(write).custom_flags(flags).open(first).unwrap();
        fs::hard_link(first, other).unwrap();
        fs::remove_file(first).unwrap();
        file
    }

    fn entry(id: u64, name: &Path) -> Message {
        Regular::new(id, 0, name, None).entry(id)
    }

    fn name_of(entry: &Message) -> PathBuf {
        Regular::of(entry).unwrap().path().to_path_buf()
    }

    #[test]
    fn names_that_are_left_are_found_and_others_are_refused_if_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("elsewhere")).unwrap();
        let beside = lose(&at("a"), &at("b"), libc::O_RDWR);
        let written = lose(&at("c"), &at("elsewhere/c"), libc::O_RDWR);
        let odd = at("d (deleted)");
        fs::write(&odd, "").unwrap();
        let _odd = File::open(&odd).unwrap();

        let found = LostNames::find(&[own()]);
        let key = |file: &File| file.metadata().map(|meta| (meta.dev(), meta.ino())).unwrap();
        assert_eq!(found.others.get(&key(&beside)), Some(&at("b")));
        assert!(found.files.values().all(|lost| lost.name != at("d") && lost.name != odd));
        let lost = &found.files[&key(&written)];
        assert!(lost.external.as_ref().unwrap().starts_with("file["));
        assert!(lost.refusal().unwrap().contains(&format!("opened as {}", at("c").display())));
        assert!(LostNames::find(&[own()]).refusal().is_some());
    }

    #[test]
    fn a_link_that_criu_has_made_becomes_a_name_or_contents() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("elsewhere")).unwrap();
        fs::create_dir(at("images")).unwrap();
        let named = lose(&at("a"), &at("b"), libc::O_RDWR);
        let kept = lose(&at("c"), &at("elsewhere/c"), libc::O_RDONLY);
        let links = [at("link_remap.11"), at("link_remap.13")];
        for (file, link) in [&named, &kept].into_iter().zip(&links) {
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
            nix::unistd::linkat(
                nix::fcntl::AT_FDCWD,
                path.as_str(),
                nix::fcntl::AT_FDCWD,
                link,
                nix::fcntl::AtFlags::AT_SYMLINK_FOLLOW,
            )
            .unwrap();
        }
        let images = at("images");
        let mut files = Entries::new(1);
        files.entries =
            vec![entry(10, &at("a")), entry(11, &links[0]), entry(12, &at("c")), entry(13, &links[1])];
        files.write(&images.join(FILES)).unwrap();
        let mut remaps = Entries::new(REMAPS_MAGIC);
        for (id, replacement) in [(10, 11), (12, 13)] {
            let mut remap = Message::default();
            remap.set(ORIGINAL, id).set(REPLACEMENT, replacement).set(KIND, LINKED);
            remaps.entries.push(remap);
        }
        remaps.write(&images.join(REMAPS)).unwrap();

        assert!(is_any_linked(&images).unwrap());
        settle(&LostNames::find(&[own()]), &images).unwrap();
        assert!(!is_any_linked(&images).unwrap());
        let files = Entries::read(&images.join(FILES)).unwrap();
        let names: Vec<_> = files.entries.iter().map(name_of).collect();
        assert_eq!(names, [at("b"), at("c")]);
        let remaps = Entries::read(&images.join(REMAPS)).unwrap();
        let [remap] = &remaps.entries[..] else { panic!("{remaps:?}") };
        assert_eq!((remap.number(ORIGINAL), remap.number(KIND)), (Some(12), Some(GHOST)));
        let ghost = fs::read(images.join(format!("ghost-file-{:x}.img", remap.number(REPLACEMENT).unwrap())));
        assert!(ghost.unwrap().ends_with(b"contents"));
        assert!(links.iter().all(|link| !link.exists()));
        settle(&LostNames::find(&[own()]), &images).unwrap();
    }
}
