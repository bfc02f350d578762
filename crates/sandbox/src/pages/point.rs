//! Describing areas whose contents a page server has put into page files as mappings of those.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use super::area::Area;
use super::files::Files;
use super::process::Process;
use super::server::{Placed, Served};
use crate::inherited::TREE;

const FILES: &str = "files.img";

/// Whether an image is changed once CRIU has written it, here or by [`inherited::part`], or read for that.
pub fn is_pointed(name: &str) -> bool {
    name == FILES || name == TREE || ["mm-", "pagemap-", "pages-"].iter().any(|stem| name.starts_with(stem))
}

/// Changes the dump in `images`; CRIU has written all of it.
pub fn point(images: &Path, served: &Served) -> Result<(), String> {
    if served.placed.is_empty() {
        return Ok(());
    }
    let mut files = Files::read(&images.join(FILES))?;
    let ids: HashMap<&str, u64> =
        served.files.iter().map(|file| (file.name.as_str(), files.add(&file.name))).collect();
    for mut process in Process::all(images)? {
        let pid = process.pid;
        for placed in served.placed.iter().filter(|placed| placed.pid == pid) {
            let holds = |area: &Area| {
                area.span.start <= placed.span.start
                    && placed.span.end <= area.span.end
                    && area.is_anonymous()
            };
            let found = process.areas.iter().position(holds).ok_or_else(|| {
                let at = placed.span.start;
                format!(
                    "CRIU describes the memory of process {pid} at {at:#x} otherwise than the kernel does"
                )
            })?;
            let file = ids.get(placed.file.as_str());
            let file = file.ok_or_else(|| format!("the page file {} was not written", placed.file))?;
            let parts = split(&process.areas[found], placed, *file);
            process.areas.splice(found..=found, parts);
        }
        process.write_areas().map_err(|error| format!("the images could not be written again: {error}"))?;
    }
    files.write(&images.join(FILES)).map_err(|error| format!("files.img could not be written: {error}"))
}

/// The area with its placed part as a mapping of that file.
fn split(area: &Area, placed: &Placed, file: u64) -> Vec<Area> {
    let mut mapped = area.part(placed.span.clone());
    mapped.map(file, placed.offset);
    let (before, after) = (area.span.start..placed.span.start, placed.span.end..area.span.end);
    let part = |span: Range<u64>| (!span.is_empty()).then(|| area.part(span));
    part(before).into_iter().chain([mapped]).chain(part(after)).collect()
}
