//! The pages of the CPU half in an image: converted to page files when it is made, linked for the program when it is
//! restored.

use std::fs;
use std::path::Path;

use rekindle_sandbox::pages;
use rekindle_store::{Draft, Image, PartKind};

use crate::error::{Error, Result};
use crate::places::private_directory;

/// `read` has CRIU read all pages before the program runs, as it does of itself; anything else maps them.
pub const VARIABLE: &str = "REKINDLE_CPU_PAGES";

/// Converts the dump in `images` and takes the page files into the draft. Returns what the user should know.
/// `earlier` has the page files that the program maps, if it was restored with such.
pub fn convert(draft: &Draft, images: &Path, earlier: &Path) -> Result<Vec<String>> {
    let map = std::env::var_os(VARIABLE).is_none_or(|wanted| wanted != "read");
    if !map && !earlier.is_dir() {
        return Ok(Vec::new());
    }
    let out = images.join(pages::DIRECTORY);
    private_directory(&out, true)?;
    let rewritten = match pages::rewrite(images, &out, earlier, map) {
        Ok(rewritten) => rewritten,
        Err(refusal) if refusal.harmless => {
            return Ok(vec![format!("the program's memory is read whole on a restore: {refusal}")]);
        }
        Err(refusal) => return Err(Error::Pages { what: refusal.to_string() }),
    };
    for file in &rewritten.files {
        draft.take_pages(PartKind::CpuPages, &file.name, &file.path, file.bytes)?;
    }
    Ok(rewritten.warnings)
}

/// Checks an image's page files and links them into a directory for the program to map, which is not made where there
/// are none.
pub fn link(image: &Image, directory: &Path, threads: usize) -> Result<()> {
    for part in image.parts(PartKind::CpuPages) {
        image.check_glance(part, threads)?;
        private_directory(directory, true)?;
        let to = directory.join(&part.name);
        let from = image.file_path(part).ok_or_else(|| Error::CannotRestore {
            image: image.manifest().name.clone(),
            reason: format!("its page file {:?} does not lie in a file of its own", part.name),
        })?;
        fs::hard_link(&from, &to).map_err(|source| Error::io("link", &to, source))?;
    }
    Ok(())
}
