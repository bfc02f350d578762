//! How the program of an image is brought back.

use clap::Args;
use clap_complete::engine::ArgValueCandidates;

use super::{LimitArguments, NetworkArguments, OrderArgument, SandboxArguments, VolumeArguments};
use crate::completion;

/// A restore: of which image, and as what.
#[derive(Debug, Args)]
pub struct RestoreArguments {
    /// The image's name, as `images` shows it.
    #[arg(add = ArgValueCandidates::new(completion::images))]
    pub image: String,
    #[command(flatten)]
    pub sandbox: SandboxArguments,
    #[command(flatten)]
    pub network: NetworkArguments,
    #[command(flatten)]
    pub limits: LimitArguments,
    #[command(flatten)]
    pub volumes: VolumeArguments,
    /// For an image of mode driver: put what was on the GPU with UUID OLD on the one with UUID NEW.
    #[arg(long, value_name = "OLD=NEW", value_delimiter = ',')]
    pub gpu_map: Vec<String>,
    /// In which order GPU buffers are loaded; with `none`, GPU calls wait for all of them.
    #[arg(long)]
    pub order: Option<OrderArgument>,
    /// Read and check every byte of the image before its program runs.
    #[arg(long)]
    pub verify: bool,
}

/// A restore from which the order of loading is learned.
#[derive(Debug, Args)]
pub struct ProfileArguments {
    #[arg(add = ArgValueCandidates::new(completion::images))]
    pub image: String,
    /// The GPU: emulated[:SETTINGS] or nvidia[:INDEX].
    #[arg(long, value_name = "GPU")]
    pub gpu: Option<String>,
    /// Share GPU contexts with the tenant's programs, as the image's program did with `--share-memory lazy`: also learn how much GPU
    /// memory the request needs, and when.
    #[arg(long, value_name = "TENANT")]
    pub share: Option<String>,
    /// What sends the request, and its arguments; it ends when the request is answered.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "REQUEST")]
    pub request: Vec<String>,
}
