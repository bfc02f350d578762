//! Memory that the emulated GPUs of several processes have together, as they have a real GPU's.
//!
//! Each process keeps what it has in a file of its own, which it holds locked for as long as it lives: what one that was
//! killed had is free again. Whoever takes memory holds the directory's lock.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The file whose lock the directory has.
const LOCK: &str = "lock";
/// Devices that this process has had.
static LAST: AtomicU64 = AtomicU64::new(0);

pub(crate) struct Common {
    directory: PathBuf,
    device: u32,
    place: PathBuf,
    own: File,
}

impl Common {
    /// For the device of this number in the machine.
    pub fn join(directory: &Path, device: u32) -> io::Result<Common> {
        fs::create_dir_all(directory)?;
        let _locked = lock(directory)?;
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let place = directory.join(format!("{device}-{}-{number}", std::process::id()));
        let own = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&place)?;
        own.lock()?;
        Ok(Common { directory: directory.to_path_buf(), device, place, own })
    }

    /// Notes that this process has so many bytes; false, and nothing is noted, if all together would have more than `total`.
    pub fn note(&self, bytes: u64, total: u64) -> io::Result<bool> {
        let _locked = lock(&self.directory)?;
        if self.others().saturating_add(bytes) > total {
            return Ok(false);
        }
        self.write(bytes)?;
        Ok(true)
    }

    /// Notes that this process has no more than so many bytes.
    pub fn give_back(&self, bytes: u64) -> io::Result<()> {
        let _locked = lock(&self.directory)?;
        self.write(bytes)
    }

    fn write(&self, bytes: u64) -> io::Result<()> {
        let mut own = &self.own;
        own.rewind()?;
        // Of one length, so that nobody reads the end of a longer one.
        own.write_all(format!("{bytes:020}").as_bytes())
    }

    /// What the other processes have of the device.
    pub fn others(&self) -> u64 {
        let (of_device, places) = (format!("{}-", self.device), fs::read_dir(&self.directory));
        let places = places.into_iter().flatten().flatten().map(|entry| entry.path());
        let is_other = |place: &PathBuf| {
            let name = place.file_name().map(|name| name.to_string_lossy().into_owned());
            *place != self.place && name.is_some_and(|name| name.starts_with(&of_device))
        };
        places.filter(is_other).map(|place| held(&place).unwrap_or(0)).sum()
    }
}

impl Drop for Common {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.place);
    }
}

fn lock(directory: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(directory.join(LOCK))?;
    file.lock()?;
    Ok(file)
}

/// What its process has, if that lives.
fn held(place: &Path) -> io::Result<u64> {
    let mut file = File::open(place)?;
    if file.try_lock_shared().is_ok() {
        return Ok(0);
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text.parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_have_no_more_than_there_is_and_those_that_are_gone_have_nothing() {
        let directory = std::env::temp_dir().join(format!("rekindle-common-{}", std::process::id()));
        let one = Common::join(&directory, 0).unwrap();
        let other = directory.join("0-other");
        fs::write(&other, format!("{:020}", 60)).unwrap();
        assert_eq!(one.others(), 0, "nobody holds that one");
        let lives = File::open(&other).unwrap();
        lives.lock().unwrap();
        fs::write(directory.join("1-other"), format!("{:020}", 70)).unwrap();
        assert_eq!(one.others(), 60);
        assert!(one.note(40, 100).unwrap());
        assert!(!one.note(41, 100).unwrap());
        drop(lives);
        assert!(one.note(100, 100).unwrap());
        drop(one);
        fs::remove_dir_all(&directory).unwrap();
    }
}
