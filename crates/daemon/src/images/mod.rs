//! What the daemon puts into images, and checks before it acts on it.

pub mod checked_files;
pub mod code;
pub mod cpu_images;
pub mod cpu_pages;
pub mod declared;
pub mod driver_half;
pub mod earlier_pages;
mod error;
pub mod machine;
pub mod metadata;
pub mod page_cache;
pub mod preflight;
pub mod shared_pages;
pub mod verify;

use std::time::{Duration, Instant};

use rekindle_store::Store;

pub use error::{ImageError, no_memory};

/// What the names of images begin with that are there for a migration alone, and no other's.
pub const PASSING: &str = "migration:";

/// How long an image that is to be removed may still be in use. A process that is being started has what this one had open
/// until it has become another program, an image's lock too, and a worker that ends has its own until it has ended.
const IN_USE_LIMIT: Duration = Duration::from_secs(10);

/// Removes an image once nobody holds it.
pub fn remove_when_free(store: &Store, name: &str) -> rekindle_store::Result<()> {
    once_free(|| store.remove(name))
}

/// As [`remove_when_free`], if it is the one with this id.
pub fn remove_made_when_free(store: &Store, name: &str, id: &str) -> rekindle_store::Result<()> {
    once_free(|| store.remove_made(name, id))
}

fn once_free(remove: impl Fn() -> rekindle_store::Result<()>) -> rekindle_store::Result<()> {
    let began = Instant::now();
    loop {
        match remove() {
            Err(rekindle_store::Error::ImageInUse { .. }) if began.elapsed() < IN_USE_LIMIT => {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}
