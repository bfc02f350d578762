//! What can go wrong in the daemon, each as one sentence. What a folder says is its own `error.rs`; here is what all say, and
//! how a command ends by it.

use std::io;
use std::path::{Path, PathBuf};

use rekindle_protocol::fault::Injected;
use rekindle_protocol::frame::FrameError;
use rekindle_protocol::worker::NO_GPU_MEMORY;

use crate::checkpoint::CheckpointError;
use crate::claims::ClaimError;
use crate::containers::ContainerError;
use crate::frameworks::FrameworkError;
use crate::host::HostError;
use crate::images::ImageError;
use crate::lifecycle::LifecycleError;
use crate::migration::MigrationError;
use crate::network::NetworkError;
use crate::nodes::NodeError;
use crate::page::PageError;
use crate::peers::PeerError;
use crate::restore::RestoreError;
use crate::sandboxes::SandboxError;
use crate::server::ServerError;
use crate::services::ServiceError;
use crate::sleep::SleepError;
use crate::spans::SpanError;
use crate::tenants::TenantError;
use crate::workers::WorkerError;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },

    #[error("cannot {action}: {source}")]
    System { action: &'static str, source: io::Error },

    #[error(
        "the request came without the {expected} descriptors that belong to it; is `rekindle` of another version?"
    )]
    Descriptors { expected: usize },

    #[error("the checkpoint was cancelled: the program goes on, and there is no image")]
    Cancelled,

    #[error("several failed: {}", .0.join("; "))]
    Several(Vec<String>),

    #[error(transparent)]
    Injected(#[from] Injected),
    #[error(transparent)]
    Driver(#[from] rekindle_driver::Error),
    #[error(transparent)]
    Sandbox(#[from] rekindle_sandbox::Error),
    #[error(transparent)]
    Store(#[from] rekindle_store::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Claims(#[from] ClaimError),
    #[error(transparent)]
    Peers(#[from] PeerError),
    #[error(transparent)]
    Workers(#[from] WorkerError),
    #[error(transparent)]
    Images(#[from] ImageError),
    #[error(transparent)]
    Sandboxes(#[from] SandboxError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Spans(#[from] SpanError),
    #[error(transparent)]
    Frameworks(#[from] FrameworkError),
    #[error(transparent)]
    Sleep(#[from] SleepError),
    #[error(transparent)]
    Migration(#[from] MigrationError),
    #[error(transparent)]
    Lifecycle(#[from] LifecycleError),
    #[error(transparent)]
    Restore(#[from] RestoreError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Nodes(#[from] NodeError),
    #[error(transparent)]
    Tenants(#[from] TenantError),
    #[error(transparent)]
    Services(#[from] ServiceError),
    #[error(transparent)]
    Containers(#[from] ContainerError),
    #[error(transparent)]
    Page(#[from] PageError),
    #[error(transparent)]
    Server(#[from] ServerError),
}

impl Error {
    /// Whether a program that ends can be behind it, which workers, CRIU and the driver have no word for. A refusal of what
    /// was asked is none of these.
    pub fn may_come_of_an_end(&self) -> bool {
        use rekindle_sandbox::Error as Cpu;
        match self {
            Error::Io { .. }
            | Error::System { .. }
            | Error::Driver(_)
            | Error::Frame(_)
            | Error::Workers(_) => true,
            Error::Sandbox(error) => !matches!(
                error,
                Cpu::DiskFull { .. } | Cpu::Refused { .. } | Cpu::NoCriu { .. } | Cpu::Start { .. }
            ),
            Error::Images(error) => matches!(
                error,
                ImageError::CannotRestore { .. }
                    | ImageError::NoGpuMemory { .. }
                    | ImageError::Unsound { .. }
                    | ImageError::Pages { .. }
            ),
            Error::Sandboxes(error) => {
                matches!(error, SandboxError::NotRunning { .. } | SandboxError::WorkerDead { .. })
            }
            Error::Sleep(error) => matches!(error, SleepError::NothingToSleep { .. }),
            Error::Checkpoint(error) => matches!(error, CheckpointError::NoGpuProcess { .. }),
            Error::Containers(error) => matches!(error, ContainerError::Engine { .. }),
            Error::Restore(error) => matches!(error, RestoreError::Unproven { .. }),
            _ => false,
        }
    }

    /// Whether GPU memory is what was missing: how many bytes, 0 if that is not known.
    pub fn missing_gpu_memory(&self) -> Option<u64> {
        match self {
            Error::Images(ImageError::NoGpuMemory { needed, free, .. }) => Some(needed.saturating_sub(*free)),
            Error::Sleep(
                SleepError::CannotWake { missing, .. } | SleepError::CannotGoDown { missing, .. },
            ) => *missing,
            Error::Workers(WorkerError::Failed { reason, .. } | WorkerError::Start { reason, .. }) => {
                reason.contains(NO_GPU_MEMORY).then_some(0)
            }
            _ => None,
        }
    }

    /// How the command that asked is to end, where that is not with 1.
    pub fn exit_code(&self) -> Option<u8> {
        match self {
            // As a command that SIGINT ends.
            Error::Cancelled | Error::Migration(MigrationError::Cancelled) => Some(130),
            Error::Network(NetworkError::PortsOfHost) => Some(2),
            Error::Sandbox(rekindle_sandbox::Error::Start { shell_code, .. }) => *shell_code,
            Error::Lifecycle(LifecycleError::Exec { why, .. }) => why.shell_code,
            _ => None,
        }
    }

    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Error {
        Error::Io { action, path: path.to_path_buf(), source }
    }

    pub(crate) fn system(action: &'static str, source: impl Into<io::Error>) -> Error {
        Error::System { action, source: source.into() }
    }
}
