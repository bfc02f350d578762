//! Disks that fail while a restored program runs: it ends with a sentence that names the image.
//!
//! The errors are the kernel's: a file system on a loop device whose file has lost its end. Where this machine allows no
//! such mounts, that is said on standard error, and files that have lost their end are left.

use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{Rekindle, is_alive, wait};

const WEIGHTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/weights.py");
const NOISE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/noise.py");
const BLOCK: u64 = 4096;

/// The state directory, as a file system of its own.
struct Disk {
    mounted: PathBuf,
    file: PathBuf,
}

impl Disk {
    /// None, with the reason on standard error, where that is not allowed.
    fn under(rekindle: &Rekindle) -> Option<Disk> {
        let disk = Disk { mounted: rekindle.path("state"), file: rekindle.path("disk") };
        fs::create_dir_all(&disk.mounted).unwrap();
        File::create(&disk.file).unwrap().set_len(256 << 20).unwrap();
        let block = BLOCK.to_string();
        let mut make = Command::new("mkfs.ext4");
        let made = make.args(["-q", "-O", "^has_journal", "-b", &block]).arg(&disk.file).output();
        let made = made.is_ok_and(|made| made.status.success());
        let mounted = Command::new("mount").args(["-o", "loop"]).args([&disk.file, &disk.mounted]).output();
        match mounted {
            Ok(mounted) if made && mounted.status.success() => Some(disk),
            other => {
                eprintln!(
                    "not tested: this machine makes or mounts no file system on a loop device: {other:?}"
                );
                std::mem::forget(disk);
                None
            }
        }
    }

    /// From this byte of the file on nothing can be read but what is in memory, where this file is not any more, and all
    /// others are.
    fn fails_from(&self, path: &Path, byte: u64) {
        let mut places = vec![self.mounted.clone()];
        while let Some(place) = places.pop() {
            // Only root comes into what the file system has for itself.
            for entry in fs::read_dir(place).into_iter().flatten().map(Result::unwrap) {
                match entry.file_type().unwrap() {
                    kind if kind.is_dir() => places.push(entry.path()),
                    kind if kind.is_file() && entry.path() != path => remember(&entry.path()),
                    _ => {}
                }
            }
        }
        forget(path);
        let block = block_of(path, byte);
        assert!(block > 0, "{path:?} has a hole at {byte}");
        File::options().write(true).open(&self.file).unwrap().set_len(block * BLOCK).unwrap();
    }

    /// As [`Disk::fails_from`], in one of the chunks of GPU memory: of these, which are read past memory, none lies behind it.
    fn fails_in_gpu_memory(&self, rekindle: &Rekindle) {
        let chunk = rekindle.large_chunks().into_iter().max_by_key(|chunk| block_of(chunk, 1 << 20)).unwrap();
        self.fails_from(&chunk, 1 << 20);
    }
}

/// Where on the disk a byte of a file lies, in blocks; 0 for a hole.
fn block_of(path: &Path, byte: u64) -> u64 {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    let mut block = (byte / BLOCK) as i32;
    const FIBMAP: libc::c_ulong = 1;
    // SAFETY: an open file, and a number that is read and written.
    assert_eq!(unsafe { libc::ioctl(file.as_raw_fd(), FIBMAP, &mut block) }, 0);
    block as u64
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.mounted).output();
    }
}

/// Has no memory hold a file, as far as nobody has mapped it.
fn forget(path: &Path) {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    // SAFETY: advice about an open file.
    assert_eq!(unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) }, 0);
}

/// What is said of a restore that could not end well: by the command, or of the program that was ended.
fn problem(rekindle: &Rekindle, name: &str) -> String {
    let output = rekindle.output(&["restore", "image", "-d", "--name", name]);
    match output.status.success() {
        true => end_of(rekindle, name),
        false => String::from_utf8(output.stderr).unwrap(),
    }
}

fn end_of(rekindle: &Rekindle, name: &str) -> String {
    wait("the program's end", || rekindle.sandbox(name)["pid"] == 0);
    rekindle.sandbox(name)["problem"].as_str().unwrap_or("no problem is told").to_string()
}

fn image_of_weights(rekindle: &Rekindle) {
    rekindle.start("weights", &["python3", WEIGHTS, "7", "24"]);
    rekindle.goes_on("weights");
    rekindle.ok(&["checkpoint", "weights", "--to", "image", "--stop"]);
}

/// An image of a program that has not touched most of its memory since it was restored, and the file with that memory.
fn restored_noise(rekindle: &Rekindle) -> PathBuf {
    let go = rekindle.path("go");
    rekindle.start("noise", &["python3", NOISE, go.to_str().unwrap()]);
    wait("the program", || rekindle.lines("noise") == ["ready"]);
    rekindle.ok(&["checkpoint", "noise", "--to", "image", "--stop"]);
    let files = fs::read_dir(rekindle.path("state/store/images/image/pages")).unwrap();
    let files = files.map(|entry| entry.unwrap().path());
    let largest = files.max_by_key(|path| path.metadata().unwrap().blocks()).unwrap();
    forget(&largest);
    rekindle.ok(&["restore", "image", "-d", "--name", "again"]);
    largest
}

/// The middle of the most that a file has without a hole.
fn middle(path: &Path) -> u64 {
    let longest = data_of(&File::open(path).unwrap()).into_iter().max_by_key(|data| data.end - data.start);
    longest.map(|data| (data.start + data.end) / 2).unwrap()
}

/// What of a file is no hole.
fn data_of(file: &File) -> Vec<Range<u64>> {
    // SAFETY: an open file.
    let seek = |at, whence| unsafe { libc::lseek(file.as_raw_fd(), at, whence) };
    let (mut all, mut at) = (Vec::new(), 0);
    loop {
        let data = seek(at, libc::SEEK_DATA);
        if data < 0 {
            return all;
        }
        at = seek(data, libc::SEEK_HOLE);
        all.push(data as u64..at as u64);
    }
}

/// Has memory hold a file.
fn remember(path: &Path) {
    let (file, mut piece) = (File::open(path).unwrap(), vec![0; 1 << 20]);
    for data in data_of(&file) {
        let mut at = data.start;
        while at < data.end {
            let most = piece.len().min((data.end - at) as usize);
            at += file.read_at(&mut piece[..most], at).unwrap() as u64;
        }
    }
}

/// Lets the program read its memory. How it ended, and what is said of that: the kernel ends it at the page, unless the
/// check that goes on beside it comes there first.
fn read_noise(rekindle: &Rekindle) -> String {
    fs::write(rekindle.path("go"), "").unwrap();
    let said = end_of(rekindle, "again");
    let code = rekindle.sandbox("again")["exit_code"].as_i64().unwrap() as i32;
    assert!([128 + libc::SIGBUS, 128 + libc::SIGKILL].contains(&code), "{code}: {said}");
    assert!(said.contains("image \"image\""), "{said}");
    said
}

#[test]
fn gpu_memory_that_a_disk_does_not_give_ends_the_program() {
    let rekindle = Rekindle::new();
    let Some(disk) = Disk::under(&rekindle) else { return };
    image_of_weights(&rekindle);
    disk.fails_in_gpu_memory(&rekindle);
    let said = problem(&rekindle, "again");
    // A loop device may give zeros for a read that has its beginning still in the file: that is seen by the hash.
    let names_it = said.contains("Input/output error") || said.contains("is damaged");
    assert!(said.contains("image") && names_it, "{said}");
    rekindle.ok(&["shutdown"]);
}

#[test]
fn a_load_that_fails_before_the_program_runs_is_what_is_told() {
    let mut rekindle = Rekindle::new();
    let Some(disk) = Disk::under(&rekindle) else { return };
    image_of_weights(&rekindle);
    rekindle.set_fault(Some("loading-begun:hang,restore-adopted:hang"));
    disk.fails_in_gpu_memory(&rekindle);
    let mut restore = rekindle.command(&["restore", "image", "-d", "--name", "again"]);
    let restore = restore.stderr(std::process::Stdio::piped()).spawn().unwrap();
    rekindle.reached("loading-begun");
    rekindle.reached("restore-adopted");
    let worker = rekindle.workers()[0];
    rekindle.let_go("loading-begun");
    // It ends when it has failed, for nobody has asked yet how it went.
    wait("the worker's end", || !is_alive(worker));
    rekindle.let_go("restore-adopted");
    let output = crate::harness::end_of(restore);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("Input/output error") || said.contains("is damaged"), "{said}");
    rekindle.assert_tidy();
    rekindle.ok(&["shutdown"]);
}

#[test]
fn gpu_memory_that_is_lost_while_it_is_loaded_ends_the_program() {
    let mut rekindle = Rekindle::new();
    image_of_weights(&rekindle);
    rekindle.set_fault(Some("loading-begun:hang"));
    rekindle.ok(&["restore", "image", "-d", "--name", "again"]);
    rekindle.reached("loading-begun");
    for chunk in rekindle.large_chunks() {
        File::options().write(true).open(chunk).unwrap().set_len(1 << 20).unwrap();
    }
    rekindle.let_go("loading-begun");
    let said = end_of(&rekindle, "again");
    assert!(said.contains("image \"image\"") && said.contains("1048576 bytes long"), "{said}");
    // What it had copied before it was stopped it may tell of still.
    let lines = rekindle.lines("again");
    assert!(lines.len() <= 1, "it saw contents that were not there: {lines:?}");
}

#[test]
fn pages_that_a_disk_does_not_give_end_the_program_with_a_word() {
    let rekindle = Rekindle::new();
    let Some(disk) = Disk::under(&rekindle) else { return };
    let pages = restored_noise(&rekindle);
    disk.fails_from(&pages, middle(&pages));
    let said = read_noise(&rekindle);
    assert!(said.contains("Input/output error"), "{said}");
    rekindle.ok(&["shutdown"]);
}

#[test]
fn pages_that_are_lost_end_the_program_with_a_word() {
    let rekindle = Rekindle::new();
    let pages = restored_noise(&rekindle);
    let length = middle(&pages);
    File::options().write(true).open(&pages).unwrap().set_len(length).unwrap();
    let said = read_noise(&rekindle);
    assert!(said.contains(&format!("it is {length} bytes long")), "{said}");
}
