//! Whether CRIU can bring an image's CPU half back: looked at when the image is made, before it is restored, and when it
//! is verified.

use std::path::Path;

use rekindle_sandbox::pages;
use rekindle_sandbox::soundness::faults;
use rekindle_store::{Draft, Image, PartKind};

use crate::error::Result;
use crate::images::ImageError;
use crate::images::cpu_images;

/// Where an image has CRIU's images.
const CPU_DIRECTORY: &str = "cpu";

/// Checks a draft that has all of CRIU's images, while its program is there.
pub fn check_draft(draft: &Draft) -> Result<()> {
    let images = draft.directory(&PartKind::CpuFile)?;
    match faults(&images, Some(&images.with_file_name(pages::DIRECTORY))).into_iter().next() {
        None => Ok(()),
        Some(what) => Err(ImageError::Unsound { what }.into()),
    }
}

/// Checks an image that is to be restored. If files of it are damaged, that is the better reason.
pub fn check(image: &Image, threads: usize) -> Result<()> {
    let Some(what) = faults_of(image).into_iter().next() else { return Ok(()) };
    cpu_images::check(image, threads)?;
    Err(ImageError::CannotRestore {
        image: image.manifest().name.clone(),
        reason: format!("CRIU cannot bring its CPU half back: {what}"),
    }
    .into())
}

/// What is wrong with an image, a sentence each.
pub fn faults_of(image: &Image) -> Vec<String> {
    let directory_of = |kind: PartKind| {
        let path = image.parts(kind).find_map(|part| image.file_path(part))?;
        path.parent().map(|parent| parent.to_path_buf())
    };
    match directory_of(PartKind::CpuFile) {
        Some(images) => faults(&images, directory_of(PartKind::CpuPages).as_deref()),
        // All of it is in a container's archive.
        None => Vec::new(),
    }
}

/// As [`faults_of`], of the directory of an image that is to be.
pub fn faults_in(directory: &Path) -> Vec<String> {
    let images = directory.join(CPU_DIRECTORY);
    match images.is_dir() {
        true => faults(&images, Some(&directory.join(pages::DIRECTORY))),
        false => Vec::new(),
    }
}
