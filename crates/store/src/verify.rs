//! Reading an image through, to say all that is wrong with it.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use rekindle_parallel as parallel;

use crate::advice::{self, is_advice};
use crate::bounded;
use crate::chunk;
use crate::error::{Error, Result};
use crate::image::Image;
use crate::layout::{DAMAGED, MANIFEST};
use crate::manifest::{Encoding, Part};
use crate::store::{Store, check_format};

/// What reading an image through has shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub name: String,
    /// Extents read, each shared one once.
    pub chunks: u64,
    pub bytes: u64,
    /// A sentence for each thing that is wrong.
    pub problems: Vec<String>,
}

impl Report {
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }
}

impl Store {
    /// Reads all of an image and checks it, calling `progress` with the bytes done and the bytes
    /// in all. A damaged chunk is set aside, so that the next checkpoint that has those contents
    /// writes them again in place of relying on it. A manifest that cannot be read is an error.
    pub fn verify(&self, name: &str, progress: &dyn Fn(u64, u64)) -> Result<Report> {
        let format = check_format(&self.layout).err();
        let (image, format) = match (self.image(name), format) {
            (Err(Error::BadStore { .. }), Some(format)) => return Err(format),
            (image, format) => (image?, format),
        };
        let extents = extents(&image);
        let total = extents.iter().map(|(part, number)| part.chunks[*number].bytes).sum();
        let mut report = Report { name: name.to_string(), chunks: extents.len() as u64, ..Report::default() };
        let next = AtomicUsize::new(0);
        let problems = Mutex::new(Vec::new());
        let found = Filled::default();
        let (send, finished) = mpsc::channel();
        thread::scope(|scope| {
            for _ in 0..parallel::threads() {
                let send = send.clone();
                let (next, extents, problems, image) = (&next, &extents, &problems, &image);
                let found = &found;
                scope.spawn(move || {
                    let mut scratch = Vec::new();
                    while let Some((part, number)) = extents.get(next.fetch_add(1, Ordering::Relaxed)) {
                        match image.check_chunk(part, *number, &mut scratch) {
                            Ok(()) => found.see(part, &scratch),
                            Err(error) => {
                                if let Ok(mut problems) = problems.lock() {
                                    problems.push((*part, *number, error));
                                }
                            }
                        }
                        // The receiver outlives the scope.
                        let _ = send.send(part.chunks[*number].bytes);
                    }
                });
            }
            drop(send);
            for bytes in &finished {
                report.bytes += bytes;
                progress(report.bytes, total);
            }
        });
        let problems = problems.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        let damaged: HashSet<&str> = problems.iter().map(|(part, ..)| part.name.as_str()).collect();
        report.problems.extend(found.differences(&image, &damaged));
        for (part, number, error) in problems {
            self.set_aside(part, &error);
            let offset = number as u64 * part.chunk_bytes;
            report.problems.push(format!("{} at {offset}: {error}", named(part)));
        }
        for part in &image.manifest().parts {
            if let Err(error) = image.check_tail(part) {
                report.problems.push(format!("{} at its end: {error}", named(part)));
            }
        }
        report.problems.extend(strangers(&image)?);
        report.problems.extend(advice::problems(&image)?);
        report.problems.extend(format.map(|error| error.to_string()));
        report.problems.sort();
        Ok(report)
    }

    /// Takes a damaged chunk out of use. A file that the image keeps whole stays.
    fn set_aside(&self, part: &Part, error: &Error) {
        if let (None, Error::Damaged { path, .. }) = (&part.file, error) {
            let mut aside = path.clone().into_os_string();
            aside.push(format!(".{DAMAGED}"));
            // Where this fails, the report still tells; nothing else depends on it.
            let _ = self.disk.rename(path, Path::new(&aside));
        }
    }
}

/// How much of each page file is found to be filled.
#[derive(Default)]
struct Filled(Mutex<HashMap<String, u64>>);

impl Filled {
    fn see(&self, part: &Part, contents: &[u8]) {
        if part.filled.is_none() {
            return;
        }
        let filled = chunk::filled(contents);
        if let Ok(mut all) = self.0.lock() {
            *all.entry(part.name.clone()).or_default() += filled;
        }
    }

    /// A sentence for each page file, but for those with damage, whose manifest says otherwise.
    fn differences(self, image: &Image, damaged: &HashSet<&str>) -> Vec<String> {
        let found = self.0.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        let whole = image.manifest().parts.iter().filter(|part| !damaged.contains(part.name.as_str()));
        whole
            .filter_map(|part| Some((part, part.filled?, found.get(&part.name).copied().unwrap_or(0))))
            .filter(|(_, said, found)| said != found)
            .map(|(part, said, found)| {
                format!("{}: {found} bytes of it are filled, its manifest says {said}", named(part))
            })
            .collect()
    }
}

/// A part as the user is told of it.
fn named(part: &Part) -> String {
    let Part { kind, name, .. } = part;
    match part.origin() {
        Some(origin) => format!("{kind} {name:?}, which is also that of image {:?},", origin.image),
        None => format!("{kind} {name:?}"),
    }
}

/// All that there is to read, each chunk of the store once.
fn extents(image: &Image) -> Vec<(&Part, usize)> {
    let mut seen = HashSet::new();
    let mut extents = Vec::new();
    for part in &image.manifest().parts {
        for (number, chunk) in part.chunks.iter().enumerate() {
            let wanted = match (&part.file, chunk.encoding) {
                (Some(_), _) => true,
                (None, Encoding::Zero) => false,
                (None, encoding) => seen.insert((chunk.hash, encoding, chunk.bytes, chunk.stored)),
            };
            if wanted {
                extents.push((part, number));
            }
        }
    }
    extents
}

/// Problems with the image's directory itself: files that the manifest does not list, and whole
/// files of another length than it says (which an empty one has no extent to show).
fn strangers(image: &Image) -> Result<Vec<String>> {
    let mut expected: Vec<(PathBuf, Option<u64>)> = vec![(image.path().join(MANIFEST), None)];
    for part in &image.manifest().parts {
        expected.extend(image.file_path(part).map(|path| (path, Some(part.file_length()))));
    }
    let mut problems = Vec::new();
    for (path, bytes) in &expected {
        match (bounded::look(path), bytes) {
            (Ok(found), Some(bytes)) if found.len() != *bytes => problems.push(format!(
                "{} is {} bytes long, its manifest says {bytes}",
                path.display(),
                found.len()
            )),
            (Ok(_), _) => {}
            (Err(error), _) if bounded::is_not_found(&error) => {
                problems.push(format!("{} is missing", path.display()));
            }
            (Err(error), _) => problems.push(error.to_string()),
        }
    }
    let known: HashSet<&PathBuf> = expected.iter().map(|(path, _)| path).collect();
    let within: HashSet<PathBuf> =
        image.manifest().directories().iter().map(|directory| image.path().join(directory)).collect();
    let halves: HashSet<PathBuf> = image.halves()?.iter().map(|half| half.path().to_path_buf()).collect();
    let mut directories = vec![image.path().to_path_buf()];
    while let Some(directory) = directories.pop() {
        let failed = |error| Error::io("list", &directory, 0, error);
        for entry in fs::read_dir(&directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let is_advice = || halves.contains(&directory) && is_advice(&directory, &entry.path());
            if within.contains(&entry.path()) {
                directories.push(entry.path());
            } else if !known.contains(&entry.path()) && !is_advice() {
                problems.push(format!("{} is not in the manifest", entry.path().display()));
            }
        }
    }
    Ok(problems)
}
