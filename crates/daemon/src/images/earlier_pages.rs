//! What the next image of a program need not write, as its memory lies there already: page files that it was restored
//! from, and those of its last image, with what their images say of them. They do not change, so this is read while the
//! program runs.

use std::path::{Path, PathBuf};

use rekindle_sandbox::pages::PageFiles;
use rekindle_store::Part;

use crate::images::shared_pages;

pub struct EarlierPages {
    /// Where those lie that it was restored from, if it was from some.
    pub restored: PathBuf,
    pub files: PageFiles,
    /// With the directory that each is in; `None` where nothing is known, and nothing can be shared.
    pub known: Option<Vec<(PathBuf, Part)>>,
}

impl EarlierPages {
    /// `last` has the page files of the program's last image.
    pub fn read(restored: PathBuf, last: Option<&Path>) -> EarlierPages {
        let directories: Vec<_> = last.into_iter().chain([&*restored]).collect();
        let files = PageFiles::open(&directories);
        let known = shared_pages::read_all(&directories);
        EarlierPages { restored, files, known }
    }
}
