//! The GPU halves of an image whose program has several processes that use a GPU.
//!
//! ```text
//! manifest   "halves": [12, 15]      parts  12/worker-state  12/7f..  15/worker-state  15/7f..
//! paths      IMAGE                   the whole image
//!            IMAGE/half@12           what process 12 had: parts worker-state, 7f.., and no others
//! ```
//!
//! A half is an image of its own to whoever reads it, or writes it: [`Image::open`] and [`Staging::open`](crate::Staging::open)
//! take its path, and its parts have the names that those of an image with a single half have. So who deals with one half
//! need not know whether there are others. No name of an image's is encoded with an `@`. The directory is there only once
//! something was learned of the half.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::image::Image;
use crate::manifest::{Manifest, Part, PartKind};

const BEFORE: &str = "half@";

pub(crate) fn directory(process: u32) -> String {
    format!("{BEFORE}{process}")
}

/// The path of the half of this process, by the path of an image, or of one in the making.
pub(crate) fn path(image: &Path, process: u32) -> PathBuf {
    image.join(directory(process))
}

/// The image and the process of such a path; none if it is that of an image.
pub(crate) fn split(path: &Path) -> Option<(&Path, u32)> {
    let process = path.file_name()?.to_str()?.strip_prefix(BEFORE)?.parse().ok()?;
    Some((path.parent()?, process))
}

/// What names of a half's parts begin with.
pub(crate) fn prefix(process: u32) -> String {
    format!("{process}/")
}

impl Image {
    /// The half of this process, as the program knows it. It holds the image as this does. Where the image has a single half,
    /// that is the image itself.
    pub fn half(&self, process: u32) -> Result<Image> {
        let manifest = self.manifest();
        if manifest.halves.is_empty() {
            return Ok(self.clone());
        }
        if !manifest.halves.contains(&process) {
            return Err(Error::NoHalf { image: manifest.name.clone(), process });
        }
        Ok(self.of(path(self.path(), process), Arc::new(manifest.of_half(process))))
    }

    /// How much GPU memory the half of this process has, bytes.
    pub fn half_gpu_bytes(&self, process: u32) -> u64 {
        let manifest = self.manifest();
        let prefix = if manifest.halves.is_empty() { String::new() } else { prefix(process) };
        let buffers = self.parts(PartKind::GpuBuffer).filter(|part| part.name.starts_with(&prefix));
        buffers.map(|part| part.bytes).sum()
    }

    /// All halves: the image itself where it has a single one, or none.
    pub fn halves(&self) -> Result<Vec<Image>> {
        match &self.manifest().halves[..] {
            [] => Ok(vec![self.clone()]),
            halves => halves.iter().map(|process| self.half(*process)).collect(),
        }
    }
}

impl Manifest {
    /// As that of an image which has this half and nothing else.
    fn of_half(&self, process: u32) -> Manifest {
        let prefix = prefix(process);
        let own =
            |part: &Part| Some(Part { name: part.name.strip_prefix(&prefix)?.to_string(), ..part.clone() });
        let mut half = Manifest {
            parts: self.parts.iter().filter(|part| part.name.starts_with(&prefix)).filter_map(own).collect(),
            name: self.name.clone(),
            id: self.id.clone(),
            created: self.created.clone(),
            mode: self.mode,
            program: self.program.clone(),
            machine: self.machine.clone(),
            gpus: self.gpus.clone(),
            ..Manifest::default()
        };
        half.measure();
        half
    }

    /// Whether the halves that it lists can be; if not, why.
    pub(crate) fn check_halves(&self) -> std::result::Result<(), String> {
        let halves = &self.halves;
        if halves.len() == 1 {
            return Err("it lists a single GPU half, which is never listed".into());
        }
        match halves.iter().enumerate().find(|(at, process)| halves[..*at].contains(process)) {
            Some((_, process)) => Err(format!("it lists the GPU half of process {process} twice")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_that_of_a_half_or_of_an_image() {
        let image = Path::new("/store/images/a");
        assert_eq!(split(&path(image, 12)), Some((image, 12)));
        for other in ["/store/images/a", "/store/images/half-12", "/store/images/half@x", "half@"] {
            assert_eq!(split(Path::new(other)), None, "{other}");
        }
        assert!(!crate::names::encode("half@12").contains('@'));
    }
}
