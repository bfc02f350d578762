//! Opening what lies in a store or in the daemon's state without trusting what it is.
//!
//! Whoever may put things there may put a named pipe, a link to a device or a file of a terabyte where a file of a few
//! bytes belongs. Opening the first waits for a writer, reading the others takes all memory. So everything is opened
//! here: never through a link, never waiting, only a regular file, and read only if it is as short as it should be.

use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use crate::error::{Error, Result};

/// A last component that is a link is refused, and nothing is waited for: opening a pipe returns at once.
const FLAGS: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;

/// Opens a regular file for reading.
pub fn open(path: &Path) -> Result<File> {
    open_with(OpenOptions::new().read(true), path)
}

/// Opens a regular file as `options` say.
pub fn open_with(options: &mut OpenOptions, path: &Path) -> Result<File> {
    let failed = |error| Error::io("open", path, 0, error);
    match options.custom_flags(FLAGS).open(path) {
        Ok(file) => {
            let found = file.metadata().map_err(failed)?.file_type();
            if found.is_file() { Ok(file) } else { Err(strange(path, found, "a regular file")) }
        }
        // A link, a socket or a device without a driver cannot be opened so; what it is says more than the error.
        Err(error) => match fs::symlink_metadata(path) {
            Ok(found) if !found.is_file() => Err(strange(path, found.file_type(), "a regular file")),
            _ => Err(failed(error)),
        },
    }
}

/// All of a regular file, unless it is longer than `most` bytes.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    read_open(&open(path)?, path, most)
}

/// As [`read`] for a file that is open already.
pub fn read_open(file: &File, path: &Path, most: u64) -> Result<Vec<u8>> {
    let failed = |error| Error::io("read", path, 0, error);
    let too_long = |bytes| Error::TooLong { path: path.to_path_buf(), bytes, most };
    let bytes = file.metadata().map_err(failed)?.len();
    if bytes > most {
        return Err(too_long(bytes));
    }
    let mut text = Vec::with_capacity(bytes as usize);
    // One byte more than it may have, for it may grow meanwhile.
    file.take(most + 1).read_to_end(&mut text).map_err(failed)?;
    match text.len() as u64 {
        read if read > most => Err(too_long(read)),
        _ => Ok(text),
    }
}

/// What the file system says of a regular file.
pub fn look(path: &Path) -> Result<Metadata> {
    let found = fs::symlink_metadata(path).map_err(|error| Error::io("look at", path, 0, error))?;
    match found.is_file() {
        true => Ok(found),
        false => Err(strange(path, found.file_type(), "a regular file")),
    }
}

/// That there is a directory, and no link to one.
pub fn check_directory(path: &Path) -> Result<()> {
    let found = fs::symlink_metadata(path).map_err(|error| Error::io("look at", path, 0, error))?;
    match found.is_dir() {
        true => Ok(()),
        false => Err(strange(path, found.file_type(), "a directory")),
    }
}

/// Whether there is anything of that name, were it a link to nowhere.
pub(crate) fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// The error's kind where it came from the system.
pub(crate) fn is_not_found(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
}

fn strange(path: &Path, found: FileType, expected: &'static str) -> Error {
    let found = match found {
        kind if kind.is_symlink() => "a symbolic link",
        kind if kind.is_dir() => "a directory",
        kind if kind.is_fifo() => "a named pipe",
        kind if kind.is_socket() => "a socket",
        kind if kind.is_file() => "a regular file",
        _ => "a device",
    };
    Error::Strange { path: path.to_path_buf(), found, expected }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_read_as_far_as_they_may_go() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| -> PathBuf { root.path().join(name) };
        fs::write(at("file"), b"12345").unwrap();
        fs::create_dir(at("directory")).unwrap();
        mkfifo(&at("pipe"), Mode::S_IRWXU).unwrap();
        let _listener = UnixListener::bind(at("socket")).unwrap();
        symlink("file", at("link")).unwrap();
        symlink("/dev/zero", at("zeros")).unwrap();
        symlink("nowhere", at("dangling")).unwrap();

        assert_eq!(read(&at("file"), 5).unwrap(), b"12345");
        assert_eq!(look(&at("file")).unwrap().len(), 5);
        check_directory(&at("directory")).unwrap();
        assert!(matches!(read(&at("file"), 4), Err(Error::TooLong { bytes: 5, most: 4, .. })));
        for (name, expected) in [
            ("directory", "a directory"),
            ("pipe", "a named pipe"),
            ("socket", "a socket"),
            ("link", "a symbolic link"),
            ("zeros", "a symbolic link"),
            ("dangling", "a symbolic link"),
        ] {
            for error in [open(&at(name)).unwrap_err(), look(&at(name)).unwrap_err()] {
                assert!(matches!(error, Error::Strange { found, .. } if found == expected), "{error}");
            }
            if name != "directory" {
                assert!(matches!(check_directory(&at(name)), Err(Error::Strange { .. })));
            }
        }
        assert!(is_not_found(&open(&at("missing")).unwrap_err()));
        let error = open(Path::new("/dev/zero")).unwrap_err();
        assert!(error.to_string().contains("a device"), "{error}");
    }

    #[test]
    fn a_terabyte_of_nothing_is_not_read() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("long");
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(matches!(read(&path, 1 << 20), Err(Error::TooLong { .. })));
    }
}
