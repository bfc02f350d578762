//! What the daemon puts into images, and checks before it acts on it.

pub mod checked_files;
pub mod cpu_images;
pub mod cpu_pages;
pub mod driver_half;
pub mod machine;
pub mod metadata;
pub mod page_cache;
pub mod preflight;
pub mod shared_pages;
pub mod verify;

use std::time::{Duration, Instant};

use rekindle_store::Store;

/// Removes an image, waiting so long for those who hold it. A process that is being started has what this one had open until
/// it has become another program, an image's lock too.
pub fn remove_when_free(store: &Store, name: &str, limit: Duration) -> rekindle_store::Result<()> {
    let began = Instant::now();
    loop {
        match store.remove(name) {
            Err(rekindle_store::Error::ImageInUse { .. }) if began.elapsed() < limit => {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}
