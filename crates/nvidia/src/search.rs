//! Where the real driver library is: `REKINDLE_LIBCUDA` where set, else the first `libcuda.so.1` of the usual
//! directories that is not Rekindle's own client, which bears the same name.

use std::path::{Path, PathBuf};

use rekindle_code::elf::{Elf, ReadCache};

/// Names the library to open, by absolute path; nothing else is then looked at.
pub const VARIABLE: &str = "REKINDLE_LIBCUDA";

/// The symbol by which our client's `libcuda.so.1` is told from the driver's.
const CLIENT_SYMBOL: &[u8] = b"rekindle_client";

const FILE: &str = "libcuda.so.1";

const DIRECTORIES: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib64",
    "/usr/lib64/nvidia",
    "/usr/lib",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
    "/lib/x86_64-linux-gnu",
    "/lib64",
];

/// Why no driver library was chosen.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SearchError {
    #[error(
        "no NVIDIA driver was found: no libcuda.so.1 in {0}; install the driver, or set REKINDLE_LIBCUDA to its path"
    )]
    Absent(String),
    #[error(
        "REKINDLE_LIBCUDA is {0}, which is not an absolute path to a file; set it to the driver's libcuda.so.1"
    )]
    NotAFile(PathBuf),
    #[error("REKINDLE_LIBCUDA is {0}, which is Rekindle's own client; set it to the driver's libcuda.so.1")]
    Client(PathBuf),
}

/// The driver library's absolute path, links resolved.
pub fn find() -> Result<PathBuf, SearchError> {
    if let Some(path) = std::env::var_os(VARIABLE) {
        return chosen(Path::new(&path));
    }
    let linker = std::fs::read_to_string("/etc/ld.so.conf").unwrap_or_default();
    let mut directories = configured(&linker, &|pattern| included(pattern));
    directories.extend(DIRECTORIES.iter().map(PathBuf::from));
    search(&present(directories))
}

/// The directories that exist, each once, in order.
fn present(directories: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for directory in directories.iter().filter_map(|directory| directory.canonicalize().ok()) {
        if directory.is_dir() && !all.contains(&directory) {
            all.push(directory);
        }
    }
    all
}

fn chosen(path: &Path) -> Result<PathBuf, SearchError> {
    if !path.is_absolute() || !path.is_file() {
        return Err(SearchError::NotAFile(path.to_owned()));
    }
    if is_client(path) {
        return Err(SearchError::Client(path.to_owned()));
    }
    Ok(path.canonicalize().unwrap_or_else(|_| path.to_owned()))
}

fn search(directories: &[PathBuf]) -> Result<PathBuf, SearchError> {
    directories
        .iter()
        .map(|directory| directory.join(FILE))
        .filter_map(|path| path.canonicalize().ok())
        .find(|path| path.is_file() && is_native(path) && !is_client(path))
        .ok_or_else(|| {
            let names: Vec<_> = directories.iter().map(|directory| directory.display().to_string()).collect();
            SearchError::Absent(names.join(", "))
        })
}

/// The directories of a linker configuration, those of included files in their places.
fn configured(text: &str, include: &dyn Fn(&str) -> Vec<String>) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if let Some(pattern) = line.strip_prefix("include ") {
            // Included files that include further ones are not seen in practice.
            for text in include(pattern.trim()) {
                directories.extend(configured(&text, &|_| Vec::new()));
            }
        } else if line.starts_with('/') {
            directories.push(PathBuf::from(line));
        }
    }
    directories
}

/// The texts of the files that `DIRECTORY/*SUFFIX` names, in order.
fn included(pattern: &str) -> Vec<String> {
    let Some((directory, suffix)) = pattern.rsplit_once("/*") else {
        return std::fs::read_to_string(pattern).into_iter().collect();
    };
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut paths: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.to_string_lossy().ends_with(suffix))
        .collect();
    paths.sort();
    paths.iter().filter_map(|path| std::fs::read_to_string(path).ok()).collect()
}

fn is_native(path: &Path) -> bool {
    let elf = |file| Elf::read(&ReadCache::new(file)).is_some_and(|elf| elf.is_native());
    std::fs::File::open(path).is_ok_and(elf)
}

fn is_client(path: &Path) -> bool {
    let Ok(file) = std::fs::File::open(path) else { return false };
    // SAFETY: an installed library is replaced by renaming, not rewritten in place; only its symbols are read here.
    let Ok(bytes) = (unsafe { memmap2::Mmap::map(&file) }) else { return false };
    rekindle_code::symbols(&bytes)
        .iter()
        .any(|symbol| symbol.name == CLIENT_SYMBOL && !symbol.section.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_code_samples::synthetic;

    fn library(directory: &Path, symbol: &str) -> PathBuf {
        std::fs::create_dir_all(directory).unwrap();
        let mut bytes = synthetic(&[".text"], &[(symbol, 1, 2, 8)]);
        let machine = if cfg!(target_arch = "aarch64") { 183u16 } else { 62 };
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        let path = directory.join(FILE);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn the_first_library_that_is_not_the_client_is_taken() {
        let top = tempfile::tempdir().unwrap();
        let directories = ["absent", "ours", "stub", "real", "second"].map(|name| top.path().join(name));
        library(&directories[1], "rekindle_client");
        std::fs::create_dir(&directories[2]).unwrap();
        std::fs::write(directories[2].join(FILE), "/* GNU ld script */").unwrap();
        let real = library(&directories[3], "cuInit");
        library(&directories[4], "cuInit");
        assert_eq!(search(&directories).unwrap(), real.canonicalize().unwrap());
    }

    #[test]
    fn links_are_resolved() {
        let top = tempfile::tempdir().unwrap();
        let real = library(&top.path().join("store"), "cuInit");
        let directory = top.path().join("lib");
        std::fs::create_dir(&directory).unwrap();
        std::os::unix::fs::symlink(&real, directory.join(FILE)).unwrap();
        assert_eq!(search(&[directory]).unwrap(), real.canonicalize().unwrap());
    }

    #[test]
    fn each_directory_is_looked_at_once() {
        let top = tempfile::tempdir().unwrap();
        let real = top.path().canonicalize().unwrap().join("real");
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, top.path().join("link")).unwrap();
        let directories = ["link", "absent", "real"].map(|name| top.path().join(name));
        assert_eq!(present(directories.to_vec()), [real]);
    }

    #[test]
    fn absence_is_one_sentence_that_says_what_to_do() {
        let error = search(&[PathBuf::from("/nowhere"), PathBuf::from("/else")]).unwrap_err().to_string();
        assert!(
            error.contains("/nowhere, /else") && error.contains(VARIABLE) && !error.contains('\n'),
            "{error}"
        );
    }

    #[test]
    fn a_chosen_file_must_be_there_and_not_ours() {
        let top = tempfile::tempdir().unwrap();
        let client = library(&top.path().join("ours"), "rekindle_client");
        let real = library(&top.path().join("real"), "cuInit");
        assert_eq!(chosen(&client), Err(SearchError::Client(client.clone())));
        assert_eq!(chosen(&real).unwrap(), real.canonicalize().unwrap());
        assert!(matches!(chosen(Path::new("libcuda.so.1")), Err(SearchError::NotAFile(_))));
        assert!(matches!(chosen(&top.path().join("none")), Err(SearchError::NotAFile(_))));
    }

    #[test]
    fn linker_configuration_is_followed() {
        let include = |pattern: &str| {
            assert_eq!(pattern, "/etc/ld.so.conf.d/*.conf");
            vec!["# nvidia\n/usr/local/nvidia/lib64\n".to_owned()]
        };
        let text = "/opt/lib # ours\ninclude /etc/ld.so.conf.d/*.conf\n\n/last\n";
        assert_eq!(
            configured(text, &include),
            ["/opt/lib", "/usr/local/nvidia/lib64", "/last"].map(PathBuf::from)
        );
    }

    #[test]
    fn included_files_come_in_order() {
        let top = tempfile::tempdir().unwrap();
        for (name, text) in [("b.conf", "/b"), ("a.conf", "/a"), ("c.txt", "/c")] {
            std::fs::write(top.path().join(name), text).unwrap();
        }
        assert_eq!(included(&format!("{}/*.conf", top.path().display())), ["/a", "/b"]);
    }
}
