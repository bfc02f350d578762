//! Regular files that the program has open by name.
//!
//! CRIU refuses a file whose size is no longer that of the dump, unless it is only appended to. That is right
//! for what a program reads, but one that goes on after a checkpoint also goes on with its results. So files
//! open for writing that have changed their size are opened by us, where the program was in them, and given to
//! CRIU: the restored program writes again what it wrote after the checkpoint, over the same.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rekindle_protocol::mounts::Mounts;
use serde::{Deserialize, Serialize};

use crate::inventory::is_elsewhere;
use crate::lost_names::LostNames;
use crate::mapped_file;

/// One open file as a descriptor shows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OpenFile {
    pub path: PathBuf,
    pub size: u64,
    pub position: u64,
    /// As given to `open`.
    pub flags: i32,
    /// When it was written last, nanoseconds since 1970; 0 in older images.
    #[serde(default)]
    pub modified_ns: i128,
}

impl OpenFile {
    pub fn is_written(&self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_RDONLY
    }

    /// Whether CRIU lets the file have another size: it is a log.
    fn is_appended_to(&self) -> bool {
        self.flags & libc::O_ACCMODE == libc::O_WRONLY && self.flags & libc::O_APPEND != 0
    }

    /// Whether the file has another size now; that it is gone is not for this to tell.
    pub fn has_changed(&self, mounts: &Mounts) -> bool {
        fs::metadata(mounts.on_host(&self.path)).is_ok_and(|meta| meta.len() != self.size)
    }

    /// Whether the program reads what it has written there, as a database does, and the file has been written since.
    pub fn is_overtaken(&self, mounts: &Mounts) -> bool {
        let is_read = self.flags & libc::O_ACCMODE == libc::O_RDWR && self.flags & libc::O_APPEND == 0;
        let is_newer = |meta: fs::Metadata| mapped_file::modified_ns(&meta) != self.modified_ns;
        is_read && self.modified_ns != 0 && fs::metadata(mounts.on_host(&self.path)).is_ok_and(is_newer)
    }

    /// Opens the file as the program had it.
    pub fn open(&self) -> io::Result<File> {
        let mode = self.flags & libc::O_ACCMODE;
        let kept = self.flags & (libc::O_APPEND | libc::O_NONBLOCK | libc::O_DSYNC | libc::O_SYNC);
        let mut file = OpenOptions::new()
            .read(mode != libc::O_WRONLY)
            .write(mode != libc::O_RDONLY)
            .custom_flags(kept)
            .open(&self.path)?;
        file.seek(SeekFrom::Start(self.position))?;
        Ok(file)
    }

    /// CRIU's name for the file.
    pub fn key(&self) -> String {
        self.path.to_string_lossy().trim_start_matches('/').to_owned()
    }
}

/// What the process `pid` (ours) has open, by the names that the files have still, and its highest descriptor number. Those of
/// files that have lost the one by which they were opened are asked for where there are such.
pub fn list<'a>(pid: i32, lost_names: impl Fn() -> &'a LostNames) -> io::Result<(Vec<OpenFile>, u64)> {
    let (mut out, mut highest) = (Vec::new(), 0);
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        highest = highest.max(number);
        let mut link = fs::read_link(entry.path()).unwrap_or_default();
        let Ok(meta) = fs::metadata(entry.path()) else { continue };
        let is_gone = |link: &Path| link.as_os_str().as_bytes().ends_with(b" (deleted)");
        if is_gone(&link)
            && meta.nlink() > 0
            && let Some(other) = lost_names().other_name(meta.dev(), meta.ino())
        {
            link = other.to_path_buf();
        }
        let deleted = is_gone(&link);
        if !meta.is_file() || deleted || !link.is_absolute() || is_elsewhere(&link) {
            continue;
        }
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}"))?;
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let position = field("pos:").and_then(|text| text.parse().ok());
        let flags = field("flags:").and_then(|text| i32::from_str_radix(text, 8).ok());
        if let (Some(position), Some(flags)) = (position, flags) {
            let modified_ns = mapped_file::modified_ns(&meta);
            out.push(OpenFile { path: link, size: meta.len(), position, flags, modified_ns });
        }
    }
    Ok((out, highest))
}

/// Of `files`, which are seen through `mounts`, those to be opened for CRIU. One that is open in two ways is left to CRIU: what is given to it
/// stands for every use of the path.
pub fn to_pass(files: &[OpenFile], mounts: &Mounts) -> Vec<OpenFile> {
    let alone = |file: &OpenFile| files.iter().all(|other| other.path != file.path || other == file);
    files
        .iter()
        .filter(|file| file.is_written() && !file.is_appended_to() && file.has_changed(mounts) && alone(file))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn a_grown_log_is_opened_where_it_was_and_a_read_file_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (log, data) = (dir.path().join("log"), dir.path().join("data"));
        fs::write(&data, "data").unwrap();
        let appended =
            OpenOptions::new().append(true).create(true).open(dir.path().join("appended")).unwrap();
        let mut writer = File::create(&log).unwrap();
        writer.write_all(b"one ").unwrap();
        let mut reader = File::open(&data).unwrap();
        reader.read_exact(&mut [0; 2]).unwrap();

        let (files, highest) = list(std::process::id() as i32, || unreachable!()).unwrap();
        let of = |path| files.iter().find(|file| file.path == path).unwrap();
        assert!(highest > 2);
        assert_eq!((of(log.clone()).size, of(log.clone()).is_written()), (4, true));
        assert_eq!((of(data.clone()).position, of(data.clone()).is_written()), (2, false));
        let ours: Vec<_> = files.iter().filter(|file| file.path.starts_with(dir.path())).cloned().collect();
        assert_eq!(to_pass(&ours, &Mounts::default()), []);

        writer.write_all(b"two ").unwrap();
        (&appended).write_all(b"more").unwrap();
        fs::write(&data, "more data").unwrap();
        let passed = to_pass(&ours, &Mounts::default());
        assert_eq!(passed.len(), 1);
        passed[0].open().unwrap().write_all(b"three").unwrap();
        assert_eq!(fs::read_to_string(&log).unwrap(), "one three");
        fs::write(&log, "one").unwrap();
        assert_eq!(passed[0].key(), log.to_str().unwrap()[1..]);
        let twice = [passed[0].clone(), OpenFile { position: 77, ..passed[0].clone() }];
        assert_eq!(to_pass(&twice, &Mounts::default()), []);
    }
}
