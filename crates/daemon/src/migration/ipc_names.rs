//! The names by which processes of a program find each other's GPU memory, while that moves.
//!
//! A worker that builds a half asks the others for what its process has of theirs ([CUDA IPC](rekindle_protocol::ipc)), by the
//! names of sockets in the run directory. It is to find the workers on the other GPU there, and wait for those that are not
//! there yet; so the names of those before are put aside. A worker that goes on with its client has its name again by itself.

use std::io::ErrorKind;
use std::path::Path;

use rekindle_protocol::ipc::{is_socket_name, withdrawn_name};

use crate::error::{Error, Result};

/// Puts all of a run directory aside.
pub(super) fn withdraw(run_directory: &Path) -> Result<()> {
    let failed = |source| Error::io("list", run_directory, source);
    for entry in std::fs::read_dir(run_directory).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let Some(name) = name.to_str().filter(|name| is_socket_name(name)) else { continue };
        let place = run_directory.join(name);
        match std::fs::rename(&place, run_directory.join(withdrawn_name(name))) {
            // Its worker has ended meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(source) => return Err(Error::io("rename", &place, source)),
            Ok(()) => {}
        }
    }
    Ok(())
}
