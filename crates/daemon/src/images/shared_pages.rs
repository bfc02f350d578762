//! Page files that an image has in common with the one that its program was restored from.
//!
//! A restored program's page files are links of its own, beside a list of what the image said of them. From these the
//! program's next image takes the files that it goes on to map, whether the first image still exists or not: in each
//! image the file has a name, its hashes, and the name of the image that it was made for.

use std::fs;
use std::path::{Path, PathBuf};

use rekindle_store::bounded;
use rekindle_store::{Draft, Image, Origin, Part, PartKind};

use crate::error::{Error, Result};
use crate::images::ImageError;
use crate::images::checked_files::CHECKED;

/// Beside the page files of a program.
const LIST: &str = "parts.json";
/// As long as a manifest may be, from which it is taken.
const LONGEST: u64 = 256 << 20;

/// Writes down what the image says of its page files, where they are linked.
pub fn note(image: &Image, directory: &Path, parts: &[&Part]) -> Result<()> {
    if parts.is_empty() {
        return Ok(());
    }
    let origin = image.manifest().origin();
    let place = directory.join(LIST);
    let failed = |source| Error::io("write", &place, source);
    let mut passed = Vec::with_capacity(parts.len());
    for &part in parts {
        // One that says otherwise was read whole.
        let found = fs::metadata(image.file_path(part).unwrap_or_default()).map_err(failed)?;
        let modified_ns = Some(rekindle_store::modified_ns(&found));
        passed.push(Part { modified_ns, ..part.clone().passed_on(&origin) });
    }
    let text = serde_json::to_vec(&passed).map_err(|error| failed(error.into()))?;
    fs::write(&place, text).map_err(failed)
}

/// What is known of the page files in a directory; `None` where nothing is, and nothing can be shared.
pub fn read(directory: &Path) -> Option<Vec<Part>> {
    let text = match bounded::read(&directory.join(LIST), LONGEST) {
        Ok(text) => text,
        Err(rekindle_store::Error::Io { .. }) => return None,
        Err(error) => {
            log::warn!("{error}");
            return None;
        }
    };
    let parts: Vec<Part> = serde_json::from_slice(&text)
        .inspect_err(|error| log::warn!("{}: {error}", directory.display()))
        .ok()?;
    parts.iter().all(|part| part.check().is_ok()).then_some(parts)
}

/// What is known of the page files in several directories; `None` where nothing is of one of them.
pub fn read_all(directories: &[&Path]) -> Option<Vec<(PathBuf, Part)>> {
    let mut all = Vec::new();
    for directory in directories.iter().filter(|directory| directory.is_dir()) {
        all.extend(read(directory)?.into_iter().map(|part| (directory.to_path_buf(), part)));
    }
    Some(all)
}

/// Takes those of these names into the draft.
pub fn take(draft: &Draft, names: &[String], known: &[(PathBuf, Part)]) -> Result<()> {
    for name in names {
        let found = known.iter().find(|(_, part)| part.name == *name);
        let (directory, part) = found.ok_or_else(|| ImageError::Pages {
            what: format!("the program maps the page file {name:?}, which its image did not list"),
        })?;
        let path = directory.join(name);
        CHECKED
            .keeping(&path, || draft.share_pages(part.clone(), &path))
            .map_err(|error| with_origin(part.origin(), error))?;
    }
    Ok(())
}

/// The error with the name of the image that the damaged file came from, if it is one of this image's page files.
pub fn explained(image: &Image, error: rekindle_store::Error) -> Error {
    let origin = match &error {
        rekindle_store::Error::Damaged { path, .. } | rekindle_store::Error::ChunkMissing { path } => {
            let mut parts = image.parts(PartKind::CpuPages);
            parts.find(|part| image.file_path(part).as_ref() == Some(path)).and_then(Part::origin)
        }
        _ => None,
    };
    with_origin(origin, error)
}

pub fn with_origin(origin: Option<Origin>, error: rekindle_store::Error) -> Error {
    match (origin, error) {
        (Some(origin), source @ rekindle_store::Error::Damaged { .. })
        | (Some(origin), source @ rekindle_store::Error::ChunkMissing { .. }) => {
            ImageError::SharedPages { image: origin.image, source }.into()
        }
        (_, error) => error.into(),
    }
}
