//! Page files that programs map, read whole and compared with what their image says. What was found whole is not read
//! again ([`CHECKED`]).

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rekindle_store::{Image, PageRun, Part, PartKind, bounded};

use crate::error::{Error, Result};
use crate::fault;
use crate::images::checked_files::{CHECKED, place};
use crate::images::shared_pages;
use rekindle_sandbox::process::maps::{self, Area};

const PAGE: u64 = 4096;

/// Pages that a program touches first, and whose: our pid.
#[derive(Default)]
pub struct First {
    pub runs: Vec<PageRun>,
    pub pid: i32,
}

/// A file that a program maps, open: it may end, and its links with it, before all is read.
pub struct Mapped {
    part: Part,
    file: File,
    /// What the user knows it by.
    shown: PathBuf,
}

/// Opens an image's page files where they are linked for a program, before that runs.
pub fn open(image: &Image, directory: &Path) -> Result<Vec<Mapped>> {
    let open = |part: &Part| {
        let path = directory.join(&part.name);
        let file = bounded::open(&path)?;
        let shown = image.file_path(part).unwrap_or(path);
        Ok(Mapped { part: part.clone(), file, shown })
    };
    image.parts(PartKind::CpuPages).map(open).collect()
}

/// Opens those of a program that an earlier daemon has restored; `image` is the directory of its image, if there is one.
pub fn open_again(directory: &Path, image: Option<&Path>) -> Vec<Mapped> {
    let open = |part: Part| {
        let path = directory.join(&part.name);
        // One that is not there any more nobody maps anew.
        let file = bounded::open(&path).inspect_err(|error| log::warn!("{error}")).ok()?;
        let shown = image.zip(part.file.as_ref()).map(|(image, file)| image.join(file));
        Some(Mapped { part, file, shown: shown.unwrap_or(path) })
    };
    shared_pages::read(directory).into_iter().flatten().filter_map(open).collect()
}

/// Reads what is not known yet. The bytes read; none if there was nothing to read.
pub fn check(mut files: Vec<Mapped>, first: &First, image: Option<&str>) -> Result<Option<u64>> {
    fault::point("mapped-opened")?;
    files.sort_by_key(|mapped| place(&mapped.file));
    let mut unknown = Vec::new();
    let mut claims = Vec::new();
    for mapped in files {
        let claim = CHECKED.claim(&mapped.part, &mapped.file);
        if let Some(claim) = claim.map_err(|source| Error::io("look at", &mapped.shown, source))? {
            claims.push(claim);
            unknown.push(mapped);
        }
    }
    if unknown.is_empty() {
        return Ok(None);
    }
    let areas = match first.pid {
        0 => Vec::new(),
        pid => maps::if_there(pid),
    };
    let order = order(&unknown, &places(&first.runs, &areas));
    let read = std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            rekindle_parallel::give_way(rekindle_parallel::IN_THE_BACKGROUND);
            read(&unknown, &order, image)
        });
        reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    for (claim, mapped) in claims.into_iter().zip(&unknown) {
        claim.found_whole(&mapped.file);
    }
    Ok(Some(read))
}

fn read(files: &[Mapped], order: &[(usize, usize)], image: Option<&str>) -> Result<u64> {
    let (mut scratch, mut bytes) = (Vec::new(), 0);
    for &(file, number) in order {
        let Mapped { part, file, shown } = &files[file];
        part.check_extent(number, file, shown, &mut scratch).map_err(|error| {
            let origin = part.origin().filter(|origin| image != Some(&origin.image));
            shared_pages::with_origin(origin, error)
        })?;
        bytes += part.chunks[number].stored;
    }
    Ok(bytes)
}

/// All extents, those first that have one of these places, in the order of places.
fn order(files: &[Mapped], first: &[(u64, u64)]) -> Vec<(usize, usize)> {
    let inodes: Vec<u64> = files.iter().map(|mapped| place(&mapped.file).1).collect();
    let wanted = first.iter().filter_map(|(inode, offset)| {
        let file = inodes.iter().position(|known| known == inode)?;
        let number = (offset / files[file].part.chunk_bytes) as usize;
        (number < files[file].part.chunks.len()).then_some((file, number))
    });
    let all = files.iter().enumerate();
    let all = all.flat_map(|(at, mapped)| (0..mapped.part.chunks.len()).map(move |number| (at, number)));
    let mut seen = HashSet::new();
    wanted.chain(all).filter(|extent| seen.insert(*extent)).collect()
}

/// Inodes and places in them of pages that are touched first.
fn places(runs: &[PageRun], areas: &[Area]) -> Vec<(u64, u64)> {
    let pages = runs.iter().flat_map(|run| (0..run.pages).map(|page| run.start.saturating_add(page * PAGE)));
    let find = |address: u64| {
        let area = areas.get(areas.partition_point(|area| area.span.end <= address))?;
        let is_in_file = area.inode != 0 && area.span.contains(&address);
        is_in_file.then(|| (area.inode, area.offset + (address - area.span.start)))
    };
    pages.filter_map(find).collect()
}

/// Reads all of an image's page files, for a program that nobody here could end.
pub fn check_whole(image: &Image, threads: usize) -> Result<()> {
    remembering(image, |unknown| {
        image.check_parts(unknown, threads).map_err(|error| shared_pages::explained(image, error))
    })
}

/// Has `check` read the image's page files, those given at least, which are not known; and remembers that they are whole.
pub fn remembering(image: &Image, check: impl FnOnce(&[&Part]) -> Result<()>) -> Result<()> {
    let mut files = Vec::new();
    for part in image.parts(PartKind::CpuPages) {
        // What cannot be opened is told of by whoever reads it.
        files.push((part, image.file_path(part).and_then(|path| bounded::open(&path).ok())));
    }
    files.sort_by_key(|(_, file)| file.as_ref().map(place));
    let mut unknown = Vec::new();
    let mut claims = Vec::new();
    for (part, file) in &files {
        match file.as_ref().map(|file| CHECKED.claim(part, file)) {
            Some(Ok(None)) => {}
            Some(Ok(Some(claim))) => {
                unknown.push(*part);
                claims.push((claim, file));
            }
            Some(Err(_)) | None => unknown.push(*part),
        }
    }
    check(&unknown)?;
    for (claim, file) in claims {
        if let Some(file) = file {
            claim.found_whole(file);
        }
    }
    Ok(())
}

/// Removes the names that a program had for page files that others have too.
pub fn let_go(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if bounded::look(&path).is_ok_and(|found| found.nlink() > 1) {
            let _ = CHECKED.keeping(&path, || fs::remove_file(&path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_touched_first_is_found_in_the_files() {
        let text = b"1000-5000 rw-p 00200000 08:01 77 /run/rekindle/pages/anon-1\n\
                    5000-6000 rw-p 00000000 00:00 0 [heap]\n\
                    8000-a000 r--p 00001000 08:01 78 /run/rekindle/pages/with a space\n";
        let areas = maps::parse(text);
        let run = |start, pages| PageRun { start, pages, written: false };
        let places = places(&[run(0x9000, 2), run(0x0, 1), run(0x4000, 2), run(0x1000, 1)], &areas);
        assert_eq!(places, [(78, 0x2000), (77, 0x203000), (77, 0x200000)]);
    }
}
