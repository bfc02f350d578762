//! Why a request of the daemon's is not obeyed.

use std::io;

use rekindle_protocol::fault::Injected;

use crate::dispatch::DispatchError;
use crate::driver_half::DriverHalfError;
use crate::image::{self, LoadingError};
use crate::link::Unanswered;
use crate::ondemand::OnDemandError;
use crate::shared::PortionError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    /// It cannot be, as the worker is, or without what was to come along.
    #[error("{0}")]
    Refused(&'static str),
    #[error("this worker has no client {0}")]
    NoClient(u32),
    #[error("{memories} memories came with {descriptors} descriptors")]
    Memories { memories: usize, descriptors: usize },
    #[error("{descriptors} descriptors came with {names} names")]
    Names { descriptors: usize, names: usize },
    /// What the client says.
    #[error("{0}")]
    Busy(String),
    #[error("{what}: {source}")]
    Io { what: &'static str, source: io::Error },
    #[error(transparent)]
    Client(#[from] Unanswered),
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
    #[error(transparent)]
    DriverHalf(#[from] DriverHalfError),
    #[error(transparent)]
    Image(#[from] image::Error),
    #[error(transparent)]
    Loading(#[from] LoadingError),
    #[error(transparent)]
    OnDemand(#[from] OnDemandError),
    #[error(transparent)]
    Portion(#[from] PortionError),
    #[error(transparent)]
    Injected(#[from] Injected),
}

impl From<&'static str> for ControlError {
    fn from(why: &'static str) -> ControlError {
        ControlError::Refused(why)
    }
}

impl ControlError {
    pub(super) fn io(what: &'static str) -> impl FnOnce(io::Error) -> ControlError {
        move |source| ControlError::Io { what, source }
    }
}
