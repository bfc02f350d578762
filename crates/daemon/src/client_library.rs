//! Where the client, `libcuda.so.1`, lies, and the environment that makes a program find it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rekindle_protocol::client::RUN_DIRECTORY;

use crate::error::{Error, Result};
use crate::places::{Places, private_directory};

/// The names by which programs ask for the driver.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// A directory that holds the client under both names: that of an installation (`../lib/rekindle` beside the
/// executable), or one of links to the library that lies beside the executable, as it does where it was built.
pub fn directory(places: &Places, executable: &Path) -> Result<PathBuf> {
    let beside = executable.parent().unwrap_or(Path::new("/"));
    let installed = beside.join("../lib/rekindle");
    if NAMES.iter().all(|name| installed.join(name).exists()) {
        return fs::canonicalize(&installed).map_err(|source| Error::io("find", &installed, source));
    }
    let built = [beside.join("libcuda.so.1"), beside.join("libcuda.so"), installed.join("libcuda.so.1")]
        .into_iter()
        .find(|path| path.is_file())
        .ok_or_else(|| Error::NoClientLibrary { executable: executable.to_path_buf() })?;
    let links = places.state.join("client");
    private_directory(&links, true)?;
    for name in NAMES {
        link(&built, &links.join(name))?;
    }
    Ok(links)
}

/// Adds the client to the environment of a program.
pub fn add_to(environment: &mut Vec<(String, String)>, directory: &Path, run_path: &str) {
    let directory = directory.to_string_lossy();
    prepend(environment, "LD_PRELOAD", &format!("{directory}/{}", NAMES[0]));
    prepend(environment, "LD_LIBRARY_PATH", &directory);
    environment.retain(|(name, _)| name != RUN_DIRECTORY);
    environment.push((RUN_DIRECTORY.to_string(), run_path.to_string()));
}

fn prepend(environment: &mut Vec<(String, String)>, name: &str, value: &str) {
    match environment.iter_mut().find(|(found, _)| found == name) {
        Some((_, rest)) if !rest.is_empty() => *rest = format!("{value}:{rest}"),
        Some((_, rest)) => *rest = value.to_string(),
        None => environment.push((name.to_string(), value.to_string())),
    }
}

fn link(target: &Path, place: &Path) -> Result<()> {
    let failed = |source: io::Error| Error::io("make the link", place, source);
    if fs::read_link(place).is_ok_and(|found| found == target) {
        return Ok(());
    }
    match fs::remove_file(place) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    std::os::unix::fs::symlink(target, place).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_comes_first_in_the_environment() {
        let pair = |name: &str, value: &str| (name.to_string(), value.to_string());
        let mut environment =
            vec![pair("LD_PRELOAD", "/x.so"), pair("LD_LIBRARY_PATH", ""), pair(RUN_DIRECTORY, "/old")];
        add_to(&mut environment, Path::new("/lib/r"), "/run/rekindle");
        let expected = [
            pair("LD_PRELOAD", "/lib/r/libcuda.so.1:/x.so"),
            pair("LD_LIBRARY_PATH", "/lib/r"),
            pair(RUN_DIRECTORY, "/run/rekindle"),
        ];
        assert_eq!(environment, expected);
    }
}
