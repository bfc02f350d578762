//! What can go wrong with containers and their engines.

#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    #[error("{engine} could not {action}: {reason}")]
    Engine { engine: &'static str, action: &'static str, reason: String },

    #[error(
        "containers are run by {wanted}, which is not installed here (Debian: podman and runc, containerd)"
    )]
    NoEngine { wanted: String },

    #[error("there is no container {name}; asked: {asked}")]
    Unknown { name: String, asked: String },

    #[error(
        "there are several containers {name} ({places}); say which with `--engine`, or CONTAINERD_NAMESPACE"
    )]
    Several { name: String, places: String },

    #[error(
        "{gpu:?} is no GPU for a container; containers get real ones from their engine (`--device nvidia.com/gpu=all`)"
    )]
    RealGpu { gpu: String },

    #[error(
        "a container's GPU cannot be named {shown:?}; use letters, digits, `-`, `_` and `.`, a letter or digit first"
    )]
    BadDeviceName { shown: String },

    #[error(
        "the container {name} has the GPU {device:?} of Rekindle's; only Podman's containers are taken with such"
    )]
    ForeignDevice { name: String, device: String },

    #[error(
        "the container {name} was restored, so that its connection to its GPU is not in its network namespace, where CRIU looks for it; only one with the host's network (`--network host`) can be checkpointed again"
    )]
    Restored { name: String },

    #[error("the container {name} is {found}, not running; start it first")]
    NotRunning { name: String, found: String },

    #[error(
        "there is a container {name} already; give another with `--name`, or remove it (`podman rm {name}`, `ctr containers rm {name}`)"
    )]
    Exists { name: String },

    #[error(
        "`--network`, `-p`, `--memory`, `--cpus` and `--volume` are for sandboxes; a container has its network, its limits and its volumes from its engine"
    )]
    NotOfContainers,

    #[error(
        "the image of the container {name:?} cannot be proven, for containerd runs it, whose restores nobody can hold before they run; leave --prove out"
    )]
    NoProof { name: String },
}
