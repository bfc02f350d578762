//! What the daemon puts into images, and checks before it acts on it.

pub mod checked_files;
pub mod cpu_images;
pub mod cpu_pages;
pub mod driver_half;
pub mod machine;
pub mod metadata;
pub mod page_cache;
pub mod page_check;
pub mod preflight;
pub mod shared_pages;
pub mod soundness;
