//! The store: a directory of images and of the chunks that they share. See [`crate::layout`] for
//! where things lie. Several processes may have one store open, and change it, at once.

use std::collections::{HashMap, HashSet};
use std::fs::{self, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::bounded::{self, is_there};
use crate::disk::Disk;
use crate::draft::{Draft, bury};
use crate::error::{Error, Result};
use crate::faults::Faults;
use crate::image::{Image, peek};
use crate::layout::{Layout, MANIFEST};
use crate::lease::Lease;
use crate::manifest::{Manifest, Mode, Part, PartKind, Sizes};
use crate::names;

/// What the file `format` of a store says.
const FORMAT_LINE: &str = "rekindle store 1\n";
/// No version's is longer.
const LONGEST_FORMAT: u64 = 4096;
/// So often an image that was removed while it was opened is looked for again: another one may have its name by now.
const OPENINGS: u32 = 10;

/// An open store.
#[derive(Debug)]
pub struct Store {
    pub(crate) layout: Layout,
    pub(crate) disk: Arc<Disk>,
    abandoned: Vec<String>,
}

/// An image as a list shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    pub name: String,
    pub path: PathBuf,
    /// What its manifest says; why it cannot be used, if it cannot.
    pub state: std::result::Result<Outline, String>,
}

/// The gist of a manifest.
#[derive(Clone, Debug, PartialEq)]
pub struct Outline {
    pub id: String,
    pub created: String,
    pub mode: Mode,
    pub argv: Vec<String>,
    /// How many GPUs it was taken of.
    pub gpus: usize,
    pub sizes: Sizes,
    /// Of what is stored, the bytes that another image of the store refers to as well.
    pub shared: u64,
}

impl Outline {
    fn new(manifest: &Manifest, held: &HashMap<String, u64>, images_with: &HashMap<String, u32>) -> Outline {
        Outline {
            id: manifest.id.clone(),
            created: manifest.created.clone(),
            mode: manifest.mode,
            argv: manifest.program.argv.clone(),
            gpus: manifest.gpus.len(),
            sizes: manifest.sizes,
            shared: held.iter().filter(|(name, _)| images_with[*name] > 1).map(|(_, stored)| stored).sum(),
        }
    }
}

/// What the image at `path` has that others may have too: chunks of the store by their names, page files by what the file
/// system knows them by; and what each takes.
fn shareable(manifest: &Manifest, path: &Path) -> HashMap<String, u64> {
    let mut held: HashMap<String, u64> = manifest.shelved().collect();
    for part in manifest.parts.iter().filter(|part| part.kind == PartKind::CpuPages) {
        if let Some((device, inode)) = part.file.as_ref().and_then(|file| identity(&path.join(file))) {
            held.insert(format!("file {device}:{inode}"), part.stored());
        }
    }
    held
}

/// What the file system knows a file by, whatever its names.
fn identity(path: &Path) -> Option<(u64, u64)> {
    bounded::look(path).ok().map(|found| (found.dev(), found.ino()))
}

impl Store {
    /// Opens the store at `root`, making it if there is none, and removes what writers that died
    /// have left half done.
    pub fn open(root: &Path) -> Result<Store> {
        Store::open_with(root, Faults::from_environment().unwrap_or_default())
    }

    /// As [`Store::open`], of what counts only as long as the processes that write and read it: nothing waits for the disk, and
    /// images need not outlast the machine.
    pub fn open_transient(root: &Path) -> Result<Store> {
        Store::on(root, Disk::transient(Faults::from_environment().unwrap_or_default()))
    }

    /// Opens a store that meets faults; for tests.
    pub fn open_with(root: &Path, faults: Faults) -> Result<Store> {
        Store::on(root, Disk::new(faults))
    }

    fn on(root: &Path, disk: Disk) -> Result<Store> {
        let disk = Arc::new(disk);
        if let Some(parent) = root.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fs::create_dir_all(parent).map_err(|error| Error::io("create directory", parent, 0, error))?;
        }
        // It may be a link, what is in it may not.
        if !root.is_dir() {
            disk.create_dir(root)?;
        }
        // Paths of images go to other processes, whose working directory may be another.
        let root = fs::canonicalize(root).map_err(|error| Error::io("find", root, 0, error))?;
        let layout = Layout::new(&root);
        settle_format(&layout, &disk)?;
        for directory in [layout.chunks(), layout.images(), layout.staging()] {
            disk.create_dir(&directory)?;
        }
        for shelf in (0..=u8::MAX).map(|first| layout.shelf(first)).filter(|shelf| is_there(shelf)) {
            bounded::check_directory(&shelf)?;
        }
        disk.sync_dir(&root)?;
        let mut store = Store { layout, disk, abandoned: Vec::new() };
        store.abandoned = store.sweep()?;
        Ok(store)
    }

    pub fn root(&self) -> &Path {
        self.layout.root()
    }

    /// The names of images in the making that opening the store found abandoned and removed.
    pub fn abandoned(&self) -> &[String] {
        &self.abandoned
    }

    /// Begins an image. The name must be free now, and still be so when the image is committed.
    pub fn begin(&self, name: &str) -> Result<Draft> {
        Draft::begin(&self.layout, &self.disk, name)
    }

    /// Begins the image once more of which a draft is given up. What chunks that one has are not written again: see
    /// [`Staging`](crate::Staging). Those that the image is not made of go with the draft.
    pub fn begin_again(&self, given_up: Draft) -> Result<Draft> {
        Draft::begin_again(given_up)
    }

    /// All images, by name.
    pub fn images(&self) -> Result<Vec<Summary>> {
        let mut found = Vec::new();
        let mut images_with: HashMap<String, u32> = HashMap::new();
        for path in list(&self.layout.images())? {
            let read = peek(&path);
            if let Err(Error::NotAnImage { .. }) = read
                && !is_there(&path)
            {
                continue;
            }
            let held = read.as_ref().map(|manifest| shareable(manifest, &path)).unwrap_or_default();
            for name in held.keys() {
                *images_with.entry(name.clone()).or_default() += 1;
            }
            found.push((path, held, read));
        }
        let summary = |(path, held, read): (PathBuf, HashMap<String, u64>, Result<Manifest>)| {
            let file_name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let name = match &read {
                Ok(manifest) => manifest.name.clone(),
                Err(_) => names::decode(&file_name).unwrap_or(file_name),
            };
            let outline = read.map(|manifest| Outline::new(&manifest, &held, &images_with));
            Summary { name, path, state: outline.map_err(|error| error.to_string()) }
        };
        let mut images: Vec<_> = found.into_iter().map(summary).collect();
        images.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(images)
    }

    /// The names of images that begin so, whatever the state of those.
    pub fn names_with(&self, beginning: &str) -> Result<Vec<String>> {
        let paths = list(&self.layout.images())?;
        let names = paths.iter().filter_map(|path| names::decode(&path.file_name()?.to_string_lossy()));
        Ok(names.filter(|name| name.starts_with(beginning)).collect())
    }

    /// The image of this name.
    pub fn image(&self, name: &str) -> Result<Image> {
        let path = self.layout.image(name);
        let mut again = 0..OPENINGS;
        let image = loop {
            match Image::open(&path) {
                Err(Error::NotAnImage { .. }) if !is_there(&path) => return Err(self.no_image(name)),
                Err(Error::NotAnImage { .. }) if again.next().is_some() => {}
                opened => break opened?,
            }
        };
        if image.manifest().name != name {
            return Err(Error::BadManifest {
                path: path.join(MANIFEST),
                reason: format!("it is that of {:?}, and lies where {name:?} should", image.manifest().name),
            });
        }
        Ok(image)
    }

    /// Removes an image, whatever its state, unless someone holds it. Its chunks go when the store
    /// is next collected.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.remove_that(name, |_| true)
    }

    /// Removes the image of this name if it is the one with this id, and not another one that has the name by now.
    pub fn remove_made(&self, name: &str, id: &str) -> Result<()> {
        self.remove_that(name, |path| peek(path).is_ok_and(|manifest| manifest.id == id))
    }

    fn remove_that(&self, name: &str, is_meant: impl Fn(&Path) -> bool) -> Result<()> {
        let path = self.layout.image(name);
        if !is_there(&path) {
            return Err(self.no_image(name));
        }
        let manifest = path.join(MANIFEST);
        let lease = match bounded::check_directory(&path).and_then(|()| bounded::open(&manifest)) {
            Ok(file) => match file.try_lock() {
                Ok(()) => Some(file),
                Err(TryLockError::WouldBlock) => return Err(Error::ImageInUse { name: name.to_string() }),
                Err(TryLockError::Error(error)) => return Err(Error::io("lock", &manifest, 0, error)),
            },
            // What is no image, or has something else in a manifest's place, nobody holds.
            Err(Error::Strange { .. }) => None,
            Err(error) if bounded::is_not_found(&error) => None,
            Err(error) => return Err(error),
        };
        // Nobody else removes it while it is locked.
        if !is_meant(&path) {
            return Err(self.no_image(name));
        }
        let removed = bury(&self.layout, &self.disk, &path);
        drop(lease);
        removed.and_then(|()| self.disk.sync_dir(&self.layout.images()))
    }

    /// What an image keeps in its directory that no other image has: removing it frees that much, beside chunks, once no
    /// program maps it any more.
    pub fn bytes_of_its_own(&self, image: &Image) -> Result<u64> {
        let mut others = HashSet::new();
        for path in list(&self.layout.images())?.iter().filter(|path| *path != image.path()) {
            let pages = list(&path.join(PartKind::CpuPages.directory())).unwrap_or_default();
            others.extend(pages.iter().filter_map(|path| identity(path)));
        }
        let alone = |part: &&Part| {
            let place = image.file_path(part);
            place.is_some_and(|place| identity(&place).is_none_or(|found| !others.contains(&found)))
        };
        Ok(image.manifest().parts.iter().filter(alone).map(Part::stored).sum())
    }

    fn no_image(&self, name: &str) -> Error {
        Error::NoImage { name: name.to_string(), store: self.root().to_path_buf() }
    }

    /// Removes what dead writers left in staging; returns the names of their images.
    pub(crate) fn sweep(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for path in list(&self.layout.staging())? {
            if path.extension().is_some_and(|extension| extension == "lock") {
                let draft = path.with_extension("");
                let inherited = match Lease::inherit(&path) {
                    // Nobody's lease is that.
                    Err(Error::Strange { .. }) => {
                        self.disk.remove_tree(&draft).and_then(|()| self.disk.remove_tree(&path))?;
                        continue;
                    }
                    inherited => inherited?,
                };
                if let Some((lease, name)) = inherited {
                    if is_there(&draft) {
                        bury(&self.layout, &self.disk, &draft)?;
                        names.push(name);
                    }
                    lease.end(&self.disk)?;
                }
            } else if !is_there(&path.with_extension("lock")) {
                self.disk.remove_tree(&path)?;
            }
        }
        names.sort();
        Ok(names)
    }
}

pub(crate) fn list(directory: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error| Error::io("list", directory, 0, error);
    fs::read_dir(directory).map_err(failed)?.map(|entry| Ok(entry.map_err(failed)?.path())).collect()
}

/// Refuses a store whose file `format` says something else than it should.
pub(crate) fn check_format(layout: &Layout) -> Result<()> {
    let line = bounded::read(&layout.format(), LONGEST_FORMAT)?;
    if line == FORMAT_LINE.as_bytes() {
        return Ok(());
    }
    let line: String = String::from_utf8_lossy(&line).chars().take(40).collect();
    let reason = format!(
        "its file `format` says {line:?}, expected {FORMAT_LINE:?}; use the Rekindle that made it, or write that line again if it was damaged"
    );
    Err(Error::BadStore { path: layout.root().to_path_buf(), reason })
}

/// Refuses a directory that is something else, or a later kind of store; marks an empty one.
fn settle_format(layout: &Layout, disk: &Disk) -> Result<()> {
    let path = layout.format();
    let bad = |reason: String| Error::BadStore { path: layout.root().to_path_buf(), reason };
    match check_format(layout) {
        Err(error) if bounded::is_not_found(&error) => {
            let strange = list(layout.root())?.into_iter().find(|entry| !is_ours(entry));
            if let Some(entry) = strange {
                return Err(bad(format!("it has no file `format`, and {} in it", entry.display())));
            }
            let draft = layout.root().join(format!("format.{}.new", crate::id::random()?));
            let file = disk.write_new(&draft, FORMAT_LINE.as_bytes())?;
            disk.sync_file(&file, &draft)?;
            disk.rename(&draft, &path)
        }
        settled => settled,
    }
}

/// Whether an entry of a store's root may be there while the store is being made.
fn is_ours(entry: &Path) -> bool {
    let name = entry.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("format") || matches!(&*name, "chunks" | "images" | "staging" | "lost+found")
}
