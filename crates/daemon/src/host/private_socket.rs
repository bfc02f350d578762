//! Sockets of the daemon's own user's.

use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use crate::error::{Error, Result};

/// Listens in the place of whoever listened there before.
pub fn listen(socket: &Path) -> Result<UnixListener> {
    let failed = |source| Error::io("listen on", socket, source);
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::bind(socket).map_err(failed)?;
    std::fs::set_permissions(socket, Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}
