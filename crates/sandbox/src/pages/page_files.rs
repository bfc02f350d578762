//! The page files that memory of a program may lie in, each opened: those that it was restored from, and those of its last
//! image. They are never changed, so this may be done at any time before they are needed.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::backing::BackingFile;
use super::contents::Base;
use super::{few_threads, is_page_file};

#[derive(Debug, Default)]
pub struct PageFiles {
    pub(super) names: Arc<HashSet<String>>,
    files: HashMap<String, PageFile>,
}

#[derive(Debug)]
struct PageFile {
    path: PathBuf,
    /// Why it cannot be read is told where it is needed.
    file: io::Result<Arc<BackingFile>>,
}

impl PageFiles {
    /// Those in some directories; of two of one name, which are one file, either will do.
    pub fn open(directories: &[&Path]) -> PageFiles {
        let entries = directories.iter().filter_map(|path| fs::read_dir(path).ok()).flatten().flatten();
        let named = entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()));
        let found: HashMap<_, _> = named.filter(|(name, _)| is_page_file(name)).collect();
        let found: Vec<_> = found.into_iter().collect();
        let open =
            |(): &mut (), at: usize| Ok::<_, Infallible>(BackingFile::open(&found[at].1).map(Arc::new));
        let Ok(opened) = rekindle_parallel::map(few_threads(), found.len(), || (), open);
        let names = Arc::new(found.iter().map(|(name, _)| name.clone()).collect());
        let all = found.into_iter().zip(opened);
        PageFiles { names, files: all.map(|((name, path), file)| (name, PageFile { path, file })).collect() }
    }

    /// What lies behind an area that maps the file of this name from there on.
    pub(super) fn base(&self, name: &str, offset: u64) -> Result<Base, String> {
        match self.files.get(name) {
            None => Err(format!("the page file {name:?} is not there")),
            Some(PageFile { file: Ok(file), .. }) => Ok(Base { file: file.clone(), offset }),
            Some(PageFile { path, file: Err(error) }) => {
                Err(format!("the page file {}: {error}", path.display()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_files_are_found_in_several_directories_and_others_are_not() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(one.path().join("anon-7"), [1; 4096]).unwrap();
        fs::write(one.path().join("parts.json"), "[]").unwrap();
        fs::write(other.path().join("file-7"), "").unwrap();
        fs::create_dir(other.path().join("anon-8")).unwrap();
        let files = PageFiles::open(&[one.path(), other.path(), Path::new("/nowhere")]);
        let base = files.base("anon-7", 0).unwrap();
        assert_eq!(base.file.filled(0..1 << 40).next(), Some(0..4096));
        assert!(files.base("file-7", 0).is_ok());
        assert!(files.base("parts.json", 0).is_err() && files.base("anon-9", 0).is_err());
        assert_eq!(files.names.len(), 3);
    }
}
