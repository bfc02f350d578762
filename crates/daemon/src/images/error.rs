//! What can go wrong with images, while they are made and before they are used.

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("the image {image:?} cannot be restored here: {reason}")]
    CannotRestore { image: String, reason: String },

    #[error(
        "the image {image:?} cannot be restored here: {}",
        no_memory(*needed, *free, gpu)
    )]
    NoGpuMemory { image: String, needed: u64, free: u64, gpu: String },

    #[error("the image {image:?} is damaged, and nothing was restored: {problems}")]
    Damaged { image: String, problems: String },

    #[error(
        "{source}; it is also that of the image {image:?}, so that all images made from that one are damaged: take it anew"
    )]
    SharedPages { image: String, source: rekindle_store::Error },

    #[error(
        "the image would not have come back: {what}; there is none, and the program goes on; that is a fault of Rekindle's or of CRIU's"
    )]
    Unsound { what: String },

    #[error(
        "the program's pages could not be taken into the image: {what}; make room if that is the reason, and checkpoint again"
    )]
    Pages { what: String },

    #[error("the image in the making is gone; try again")]
    NoDraft,

    #[error(
        "{what}, and CRIU's plugin for that, {}, is not in {places}; install it, or name its directory in {}",
        rekindle_sandbox::amd::PLUGIN,
        rekindle_sandbox::amd::PLUGINS_VARIABLE
    )]
    NoAmdPlugin { what: String, places: String },
}

/// That too little of a GPU's memory is free, in a sentence.
pub fn no_memory(needed: u64, free: u64, gpu: &str) -> String {
    let (needed, free) = (needed >> 20, free >> 20);
    format!(
        "it needs {needed} MB of GPU memory and {free} MB are free on {gpu}; free some or give another --gpu"
    )
}
