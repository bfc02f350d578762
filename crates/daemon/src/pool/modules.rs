//! Which modules images have in common, and how much they are used.
//!
//! What is counted is what lies in the store, each image once and once more for each of its restores. A module is worth
//! loading ahead if two images need it, or one image that was restored twice; those used most come first.
//!
//! And which images begin alike, so that what was made ready for one is so for the other.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rekindle_protocol::worker::{CommonModule, Surveyed};

/// So many images are looked at, those made last.
const MOST_IMAGES: usize = 64;
/// So many modules are loaded ahead, however small they are.
const MOST_MODULES: usize = 512;
/// So much a module must be used.
const LEAST_USES: u64 = 2;

/// What tells an image's directory from another of the same name.
pub(super) type Identity = (u64, u64, i64);

/// What is known of images.
#[derive(Default)]
pub(super) struct Modules {
    /// By GPU and directory.
    images: HashMap<(String, PathBuf), Known>,
    restores: HashMap<PathBuf, u64>,
}

struct Known {
    identity: Identity,
    surveyed: Surveyed,
    /// So many restores it had before.
    restores: u64,
}

/// A module to load ahead, and an image that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    pub image: PathBuf,
    pub module: CommonModule,
}

impl Modules {
    pub fn note_restore(&mut self, image: &Path) {
        *self.restores.entry(image.to_path_buf()).or_default() += 1;
    }

    /// The image is to be removed.
    pub fn forget(&mut self, image: &Path) {
        self.images.retain(|(_, path), _| path != image);
        self.restores.remove(image);
    }

    /// This module cannot be loaded from this image, which may have been removed meanwhile.
    pub fn fails(&mut self, gpu: &str, planned: &Planned) {
        if let Some(known) = self.images.get_mut(&(gpu.to_string(), planned.image.clone())) {
            known.surveyed.modules.retain(|module| *module != planned.module);
        }
    }

    pub fn know(
        &mut self,
        gpu: &str,
        (path, identity): (PathBuf, Identity),
        surveyed: Surveyed,
        restores: u64,
    ) {
        self.images.insert((gpu.to_string(), path), Known { identity, surveyed, restores });
    }

    /// Those of the images in this directory that nothing is known of yet. What is known of others is forgotten.
    pub fn unknown(&mut self, gpu: &str, images: &Path) -> Vec<(PathBuf, Identity)> {
        let found = newest(images);
        let there: HashSet<&PathBuf> = found.iter().map(|(path, _)| path).collect();
        self.images.retain(|(of, path), _| of != gpu || there.contains(path));
        self.restores.retain(|path, _| there.contains(path));
        let is_new = |(path, identity): &(PathBuf, Identity)| {
            let known = self.images.get(&(gpu.to_string(), path.clone()));
            known.is_none_or(|known| known.identity != *identity)
        };
        found.iter().filter(|one| is_new(one)).cloned().collect()
    }

    /// Whether a worker that was made ready for one image is so for another, too.
    pub fn is_alike(&self, gpu: &str, image: &Path, made_for: &Path) -> bool {
        let course = |path: &Path| {
            let known = self.images.get(&(gpu.to_string(), path.to_path_buf()))?;
            let course = &known.surveyed.course;
            (identity(path)? == known.identity && !course.is_empty()).then_some(course)
        };
        course(made_for).zip(course(image)).is_some_and(|(made_for, image)| image.starts_with(made_for))
    }

    /// What a worker on this GPU is to have loaded, the most used first, in so many bytes.
    pub fn plan(&self, gpu: &str, most_bytes: u64) -> Vec<Planned> {
        let mut uses: HashMap<&str, (u64, u64, &Path, &CommonModule)> = HashMap::new();
        for ((_, path), known) in self.images.iter().filter(|((of, _), _)| of == gpu) {
            let restores = known.restores.max(self.restores.get(path).copied().unwrap_or(0));
            let keys: HashMap<&str, &CommonModule> =
                known.surveyed.modules.iter().map(|module| (&*module.key, module)).collect();
            for (key, module) in keys {
                let row = uses.entry(key).or_insert((0, 0, path, module));
                *row = (row.0 + 1, row.1 + restores, row.2.min(path), module);
            }
        }
        let worth = |row: &(u64, u64, &Path, &CommonModule)| row.0 >= LEAST_USES || row.1 >= LEAST_USES;
        let mut rows: Vec<_> = uses.into_values().filter(worth).collect();
        rows.sort_by(|a, b| (b.0 + b.1).cmp(&(a.0 + a.1)).then_with(|| a.3.key.cmp(&b.3.key)));
        let mut left = most_bytes;
        let fits = |row: &(u64, u64, &Path, &CommonModule)| match left.checked_sub(row.3.bytes) {
            Some(rest) => {
                left = rest;
                true
            }
            None => false,
        };
        let planned = |(_, _, image, module): (u64, u64, &Path, &CommonModule)| Planned {
            image: image.to_path_buf(),
            module: module.clone(),
        };
        rows.into_iter().filter(fits).take(MOST_MODULES).map(planned).collect()
    }
}

fn identity(image: &Path) -> Option<Identity> {
    let data = std::fs::metadata(image).ok()?;
    Some((data.dev(), data.ino(), data.mtime()))
}

/// The images in a directory, those made last.
fn newest(images: &Path) -> Vec<(PathBuf, Identity)> {
    let row = |entry: std::fs::DirEntry| {
        let data = entry.metadata().ok()?;
        Some(((data.mtime(), data.mtime_nsec()), (entry.path(), identity(&entry.path())?)))
    };
    let mut found: Vec<_> =
        std::fs::read_dir(images).into_iter().flatten().flatten().filter_map(row).collect();
    found.sort_by_key(|(made, _)| std::cmp::Reverse(*made));
    found.into_iter().take(MOST_IMAGES).map(|(_, image)| image).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(key: &str, bytes: u64) -> CommonModule {
        CommonModule { key: key.to_string(), bytes }
    }

    fn with(modules: Vec<CommonModule>) -> Surveyed {
        Surveyed { modules, course: Vec::new() }
    }

    fn know(modules: &mut Modules, image: &str, keys: &[(&str, u64)]) {
        let rows = keys.iter().map(|(key, bytes)| module(key, *bytes)).collect();
        modules.know("gpu", (image.into(), (0, 0, 0)), with(rows), 0);
    }

    fn plan(modules: &Modules, bytes: u64) -> String {
        modules.plan("gpu", bytes).iter().map(|planned| &*planned.module.key).collect()
    }

    #[test]
    fn what_several_use_comes_first_and_stays_within_the_limit() {
        let mut modules = Modules::default();
        know(&mut modules, "a", &[("x", 10), ("y", 10), ("y", 10)]);
        know(&mut modules, "b", &[("x", 10), ("z", 50)]);
        // Twice in one image is one use.
        assert_eq!(plan(&modules, 100), "x");
        modules.note_restore(Path::new("b"));
        assert_eq!(plan(&modules, 100), "x");
        modules.note_restore(Path::new("b"));
        assert_eq!(plan(&modules, 100), "xz");
        // What does not fit gives way to what does.
        let rows = vec![module("x", 10), module("y", 10)];
        modules.know("gpu", ("a".into(), (0, 0, 0)), with(rows), 2);
        assert_eq!(plan(&modules, 20), "xy");
        assert_eq!(plan(&modules, 0), "");
        // What one image cannot give another may.
        let first = modules.plan("gpu", 20)[0].clone();
        assert_eq!((&*first.module.key, first.image.as_path()), ("x", Path::new("a")));
        modules.fails("gpu", &first);
        let first = modules.plan("gpu", 20)[0].clone();
        assert_eq!((&*first.module.key, first.image.as_path()), ("x", Path::new("b")));
        modules.fails("gpu", &first);
        assert_eq!(plan(&modules, 20), "y");
        assert!(modules.plan("other", 100).is_empty());
        modules.forget(Path::new("b"));
        assert_eq!(plan(&modules, 100), "y");
    }

    #[test]
    fn an_image_of_the_same_name_is_looked_at_anew() {
        let images = tempfile::tempdir().unwrap();
        let path = images.path().join("image");
        std::fs::create_dir(&path).unwrap();
        let mut modules = Modules::default();
        let unknown = modules.unknown("gpu", images.path());
        assert_eq!(unknown.len(), 1);
        let surveyed = Surveyed { modules: vec![module("x", 1)], course: vec![1, 2] };
        modules.know("gpu", unknown[0].clone(), surveyed, 2);
        assert!(modules.is_alike("gpu", &path, &path) && !modules.is_alike("other", &path, &path));
        assert!(modules.unknown("gpu", images.path()).is_empty());
        assert_eq!(modules.unknown("other", images.path()).len(), 1);
        // The next one has another inode, or at least another time.
        let kept = images.path().join("kept");
        std::fs::rename(&path, &kept).unwrap();
        std::fs::create_dir(&path).unwrap();
        let unknown = modules.unknown("gpu", images.path());
        assert_eq!(unknown.len(), 2);
        // Nor is it taken for the old one.
        assert!(!modules.is_alike("gpu", &path, &path));
        for (image, course) in unknown.into_iter().zip([vec![1, 2], vec![1, 2, 3]]) {
            modules.know("gpu", image, Surveyed { modules: Vec::new(), course }, 0);
        }
        let longer = modules.is_alike("gpu", &path, &kept);
        assert_ne!(longer, modules.is_alike("gpu", &kept, &path));
        std::fs::remove_dir(&path).unwrap();
        std::fs::remove_dir(&kept).unwrap();
        assert!(modules.unknown("gpu", images.path()).is_empty());
        assert_eq!(plan(&modules, 100), "");
    }
}
