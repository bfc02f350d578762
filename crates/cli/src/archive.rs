//! Images as one file, which may be standard input or output.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rekindle_daemon::Paths;
use rekindle_protocol::daemon::Request;
use serde_json::Value;

use crate::connection::ask_passing;
use crate::error::{Error, Result};

/// Standard input or output.
pub const STANDARD: &str = "-";

/// Writes an image to a file, which is there once it is whole.
pub fn export(paths: &Paths, image: String, file: &Path) -> Result<Value> {
    let request = Request::Export { image };
    if file == Path::new(STANDARD) {
        return ask_passing(paths, &request, &[io::stdout().as_fd()], |_| Ok(()));
    }
    let failed = |action| move |source| Error::File { action, path: file.to_path_buf(), source };
    let partial = partial(file);
    let made = File::options().write(true).create_new(true).open(&partial).map_err(failed("write"))?;
    let asked = ask_passing(paths, &request, &[made.as_fd()], |_| Ok(()));
    let named = asked.and_then(|answer| {
        fs::rename(&partial, file).map_err(failed("name"))?;
        Ok(answer)
    });
    if named.is_err() {
        let _ = fs::remove_file(&partial);
    }
    named
}

/// Takes an image in from a file.
pub fn import(paths: &Paths, file: &Path, name: Option<String>) -> Result<Value> {
    let from: OwnedFd = match file == Path::new(STANDARD) {
        true => io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .map_err(|source| Error::system("read standard input", source))?,
        false => File::open(file)
            .map_err(|source| Error::File { action: "open", path: file.to_path_buf(), source })?
            .into(),
    };
    ask_passing(paths, &Request::Import { name }, &[from.as_fd()], |_| Ok(()))
}

/// Beside the file, so that it can take its name.
fn partial(file: &Path) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".partial-{}", std::process::id()));
    file.with_file_name(name)
}
