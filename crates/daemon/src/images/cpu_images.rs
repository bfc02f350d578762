//! CRIU's images as parts of an image: taken into it when it is made, checked before CRIU has them again.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use rekindle_store::{Draft, HashedChunks, Image, Part, PartKind};

use crate::error::{Error, Result};
use crate::images::ImageError;
use crate::images::cpu_pages;

/// Moves those of CRIU's images into the draft that are chosen by their names. Its log and statistics stay: they are no part
/// of the program.
pub fn take(
    draft: &Draft,
    images: &Path,
    known: &HashMap<String, HashedChunks>,
    is_chosen: impl Fn(&str) -> bool,
) -> Result<()> {
    let failed = |source| Error::io("list", images, source);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(images).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".img") && is_chosen(&name) && entry.path().is_file() {
            names.push(name);
        }
    }
    let nothing = HashedChunks::new();
    let take = |(): &mut (), at: usize| {
        let name: &str = &names[at];
        let known = known.get(name).unwrap_or(&nothing);
        draft.take_known(PartKind::CpuFile, name, &images.join(name), known)
    };
    rekindle_parallel::map(cpu_pages::FILE_THREADS, names.len(), || (), take)?;
    Ok(())
}

/// Checks whole what CRIU acts on, and returns the directory that it is in.
pub fn check(image: &Image, threads: usize) -> Result<PathBuf> {
    let (contents, parts): (Vec<_>, Vec<_>) =
        image.parts(PartKind::CpuFile).partition(|part| is_contents(part));
    image.check_parts(&parts, threads)?;
    // CRIU opens them before they are read here.
    image.check_present(&contents)?;
    // CRIU looks for files that a dump need not have.
    if !(parts.is_empty() && contents.is_empty()) {
        image.check_alone(&PartKind::CpuFile)?;
    }
    let file = parts.last().or(contents.last()).and_then(|part| image.file_path(part));
    let directory = file.and_then(|path| path.parent().map(Path::to_path_buf));
    directory.ok_or_else(|| {
        ImageError::CannotRestore {
            image: image.manifest().name.clone(),
            reason: "its CPU half does not lie in files of its own".to_string(),
        }
        .into()
    })
}

/// Checks what CRIU only puts into the program's memory: before the program runs.
pub fn check_contents(image: &Image, threads: usize) -> Result<()> {
    let contents: Vec<_> = image.parts(PartKind::CpuFile).filter(|part| is_contents(part)).collect();
    Ok(image.check_parts(&contents, threads)?)
}

fn is_contents(part: &Part) -> bool {
    part.name.starts_with("pages-")
}
