//! What workers wait for.

use std::path::PathBuf;

use rekindle_protocol::daemon::Level;
use rekindle_store::Image;

/// How many workers wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSize {
    /// For each GPU, as `--gpu` names it.
    pub per_gpu: usize,
    /// For all GPUs together; those used last come first.
    pub most: usize,
    /// How many images have workers wait for them alone.
    pub images: usize,
    /// The most bytes of code that one which waits for anybody has loaded ahead.
    pub modules: u64,
}

/// What a worker waits for: any sandbox on a GPU, or the restore of one image there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Want {
    pub gpu: String,
    pub image: Option<ImageKey>,
}

/// One image, which another of its name is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageKey {
    id: String,
    pub(super) path: PathBuf,
    /// It lies in memory that workers may pin, for it stays there in any case until it is loaded.
    pub(super) in_memory: bool,
}

impl ImageKey {
    pub fn of(image: &Image) -> ImageKey {
        ImageKey { id: image.manifest().id.clone(), path: image.path().to_path_buf(), in_memory: false }
    }

    /// Of what sleeps at this level.
    pub fn of_asleep(image: &Image, level: Level) -> ImageKey {
        ImageKey { in_memory: level == Level::Host, ..ImageKey::of(image) }
    }
}

/// A GPU, and an image on it, were used: they come first.
pub(super) fn note(wants: &mut Vec<Want>, gpu: &str, image: Option<&ImageKey>, size: &PoolSize) {
    for image in [Some(None), image.map(|image| Some(image.clone()))].into_iter().flatten() {
        let want = Want { gpu: gpu.to_string(), image };
        wants.retain(|known| *known != want);
        wants.insert(0, want);
    }
    let mut images = 0;
    wants.retain(|want| {
        images += usize::from(want.image.is_some());
        want.image.is_none() || images <= size.images
    });
    wants.truncate(size.most);
}
