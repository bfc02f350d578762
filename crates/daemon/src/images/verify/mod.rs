//! Whether images are what they say, and can be brought back.

pub mod cpu_half;
pub mod page_files;

use rekindle_store::{Image, Store};

use crate::error::Result;
use crate::images::ImageError;
use crate::reply::Reply;

/// Reads all of an image before anything else is done with it, as `rekindle verify` does.
pub fn whole(store: &Store, image: &Image, reply: &Reply<'_>) -> Result<()> {
    let name = &image.manifest().name;
    page_files::remembering(image, |_| {
        let report = store.verify(name, &|done, total| reply.progress("verify", done, total))?;
        match report.is_sound() {
            true => Ok(()),
            false => {
                Err(ImageError::Damaged { image: name.clone(), problems: report.problems.join("; ") }.into())
            }
        }
    })
}
