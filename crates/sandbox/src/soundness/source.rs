//! Where images are read: a directory, or memory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The largest image of entries that is read: a process has at most some 100,000 areas.
const LARGEST: u64 = 256 << 20;

pub trait Source {
    /// The names of the images.
    fn names(&self) -> Vec<String>;

    /// An image whole.
    fn read(&self, name: &str) -> Result<Vec<u8>, String>;

    /// How long an image is, if it is there.
    fn length(&self, name: &str) -> Option<u64>;

    /// How long a page file is, if it is there.
    fn page_file(&self, name: &str) -> Option<u64>;
}

/// Images as files.
pub struct Directory {
    images: PathBuf,
    page_files: Option<PathBuf>,
    names: Vec<String>,
}

impl Directory {
    pub fn open(images: &Path, page_files: Option<&Path>) -> io::Result<Directory> {
        let mut names = Vec::new();
        for entry in fs::read_dir(images)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.ends_with(".img") {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(Directory { images: images.to_path_buf(), page_files: page_files.map(Path::to_path_buf), names })
    }
}

impl Source for Directory {
    fn names(&self) -> Vec<String> {
        self.names.clone()
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, String> {
        match self.length(name) {
            None => Err(format!("{name} is missing")),
            Some(bytes) if bytes > LARGEST => Err(format!("{name} has {bytes} bytes, the most is {LARGEST}")),
            Some(_) => fs::read(self.images.join(name)).map_err(|error| format!("{name}: {error}")),
        }
    }

    fn length(&self, name: &str) -> Option<u64> {
        length(&self.images.join(name))
    }

    fn page_file(&self, name: &str) -> Option<u64> {
        length(&self.page_files.as_ref()?.join(name))
    }
}

fn length(path: &Path) -> Option<u64> {
    let found = fs::symlink_metadata(path).ok()?;
    found.is_file().then_some(found.len())
}
