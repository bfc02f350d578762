//! Where the client, `libcuda.so.1`, lies, and the environment that makes a program find it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rekindle_protocol::client::RUN_DIRECTORY;

use crate::error::{Error, Result};

/// The names by which programs ask for the driver.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// Where links to the client lie in a run directory. They are there, and not where the library is, so that a program
/// finds them at one place before and after a restore.
pub const LINKS: &str = "lib";

/// The client: that of an installation (`../lib/rekindle` beside the executable), or the one that lies beside the
/// executable, as it does where it was built.
pub fn find(executable: &Path) -> Result<PathBuf> {
    let beside = executable.parent().unwrap_or(Path::new("/"));
    [beside.join("../lib/rekindle/libcuda.so.1"), beside.join("libcuda.so.1"), beside.join("libcuda.so")]
        .into_iter()
        .find_map(|path| fs::canonicalize(path).ok())
        .ok_or_else(|| Error::NoClientLibrary { executable: executable.to_path_buf() })
}

/// Puts links to the client into a run directory.
pub fn link_into(run_directory: &Path, library: &Path) -> Result<()> {
    let links = run_directory.join(LINKS);
    open_directory(&links)?;
    for name in NAMES {
        let place = links.join(name);
        symlink(library, &place).map_err(|source| Error::io("make the link", &place, source))?;
    }
    Ok(())
}

/// Puts the client itself into a run directory that is mounted where there is nothing else of ours.
pub fn copy_into(run_directory: &Path, library: &Path) -> Result<()> {
    let place = run_directory.join(LINKS);
    open_directory(&place)?;
    for name in NAMES {
        let place = place.join(name);
        fs::copy(library, &place).map_err(|source| Error::io("write", &place, source))?;
    }
    Ok(())
}

/// Makes a directory that whatever user the program becomes can look into.
fn open_directory(path: &Path) -> Result<()> {
    fs::create_dir_all(path)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)))
        .map_err(|source| Error::io("make directory", path, source))
}

/// Adds the client to the environment of a program.
pub fn add_to(environment: &mut Vec<(String, String)>, run_path: &str) {
    let directory = format!("{run_path}/{LINKS}");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_comes_first_in_the_environment() {
        let pair = |name: &str, value: &str| (name.to_string(), value.to_string());
        let mut environment =
            vec![pair("LD_PRELOAD", "/x.so"), pair("LD_LIBRARY_PATH", ""), pair(RUN_DIRECTORY, "/old")];
        add_to(&mut environment, "/r");
        let expected = [
            pair("LD_PRELOAD", "/r/lib/libcuda.so.1:/x.so"),
            pair("LD_LIBRARY_PATH", "/r/lib"),
            pair(RUN_DIRECTORY, "/r"),
        ];
        assert_eq!(environment, expected);
    }
}
