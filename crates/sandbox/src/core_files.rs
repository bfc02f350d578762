//! The files that CRIU writes for each thread and process, made before the program stands still.
//!
//! Making a file may take a file system long: ext4 looks at all inodes near by that were given up within minutes, as those of
//! earlier images are. CRIU writes to a file that is there.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;

use crate::process::{innermost_pid, threads};

const OF_THREAD: &str = "core";
const OF_PROCESS: [&str; 3] = ["ids", "mm", "fs"];

/// Makes those of a program in the directory of CRIU's images; `processes` are CRIU's numbers for them, with ours. CRIU makes
/// what is not made here.
pub fn make(images: &Path, processes: &BTreeMap<i32, i32>) {
    for (&inside, &host) in processes {
        let number = |thread| if inside == host { Some(thread) } else { innermost_pid(thread) };
        let of_threads = threads(host).into_iter().filter_map(number).map(|thread| (OF_THREAD, thread));
        for (kind, number) in of_threads.chain(OF_PROCESS.map(|kind| (kind, inside))) {
            if let Err(error) = File::create(images.join(name(kind, number))) {
                return log::debug!("{} has no file for {kind} {number} yet: {error}", images.display());
            }
        }
    }
}

/// Removes those that CRIU had nothing for, once it has written all: what they were made for had ended by then.
pub fn remove_unwritten(images: &Path) -> io::Result<()> {
    for entry in fs::read_dir(images)? {
        let entry = entry?;
        let name = entry.file_name();
        let kind = name.to_str().and_then(|name| name.strip_suffix(".img")?.split_once('-'));
        let is_ours = kind.is_some_and(|(kind, _)| kind == OF_THREAD || OF_PROCESS.contains(&kind));
        if is_ours && entry.metadata()?.len() == 0 {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn name(kind: &str, number: i32) -> String {
    format!("{kind}-{number}.img")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_were_not_written_go() {
        let images = tempfile::tempdir().unwrap();
        let own = std::process::id() as i32;
        make(images.path(), &BTreeMap::from([(own, own)]));
        let of_first = images.path().join(name(OF_THREAD, own));
        assert!(of_first.exists() && images.path().join(name("mm", own)).exists());
        fs::write(&of_first, "written").unwrap();
        fs::write(images.path().join("other-1.img"), "").unwrap();
        remove_unwritten(images.path()).unwrap();
        let mut left: Vec<_> =
            fs::read_dir(images.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [name(OF_THREAD, own).as_str(), "other-1.img"]);
    }
}
