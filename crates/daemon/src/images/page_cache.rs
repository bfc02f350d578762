//! Images in the page cache: what a restore has read past it, as that is faster, is read into it once the program runs,
//! so that the next restore finds it there.
//!
//! One thread reads, and gives way to all others: the program may be waiting for pages of the same disk.

use std::io::Read;
use std::path::{Path, PathBuf};

use rekindle_protocol::worker::Phase;
use rekindle_store::bounded;
use rekindle_store::{Encoding, Image, PartKind};

use crate::host::resources::available_memory;

/// How much is read at once.
const STRIDE: usize = 2 << 20;

/// Whether some of it was read past the page cache.
pub fn was_passed_by(phases: &[Phase]) -> bool {
    phases.iter().any(|phase| phase.from.contains_key("disk"))
}

/// Has the page cache hold the image's GPU memory, if there is plenty of memory. Returns when that is done; the calling
/// thread gives way to all others from then on.
pub fn fill(path: &Path) {
    // The image is not held meanwhile: it may be removed.
    let Some(files) = files(path) else { return };
    rekindle_parallel::give_way(rekindle_parallel::IN_THE_BACKGROUND);
    let mut sink = vec![0; STRIDE];
    for path in files {
        let Ok(mut file) = bounded::open(&path) else { return };
        while file.read(&mut sink).is_ok_and(|read| read > 0) {}
    }
}

fn files(path: &Path) -> Option<Vec<PathBuf>> {
    let image = Image::open(path).ok()?;
    let chunks = || image.parts(PartKind::GpuBuffer).flat_map(|part| &part.chunks);
    let bytes: u64 = chunks().map(|chunk| chunk.stored).sum();
    let raw = chunks().filter(|chunk| chunk.encoding == Encoding::Raw);
    (bytes < available_memory() / 2).then(|| raw.filter_map(|chunk| image.chunk_path(chunk)).collect())
}
