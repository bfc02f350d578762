//! Contents that only the disk has.

use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::caches::support::*;
use crate::harness::{Rekindle, refuse, wait};

/// Has no memory hold what the store keeps. What becomes of it is read past the page cache where the machine can do that.
fn forget_chunks(rekindle: &Rekindle) -> &'static str {
    let mut direct = true;
    for chunk in rekindle.large_chunks() {
        let file = fs::File::open(&chunk).unwrap();
        file.sync_all().unwrap();
        // SAFETY: advice about an open file.
        assert_eq!(unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) }, 0);
        let flags = libc::O_DIRECT;
        direct &=
            fs::File::options().read(true).custom_flags(flags).open(&chunk).is_ok() && !is_tmpfs(&chunk);
    }
    let mut parameters = [0u8; 256];
    // SAFETY: asks for a ring, with parameters of more bytes than it has.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) };
    if ring < 0 || !direct {
        eprintln!("this machine refuses io_uring or direct reads: what is tested is the way without");
        return "store";
    }
    // SAFETY: opened above, and nobody else's.
    drop(unsafe { OwnedFd::from_raw_fd(ring as i32) });
    "disk"
}

fn is_tmpfs(path: &Path) -> bool {
    nix::sys::statfs::statfs(path).unwrap().filesystem_type() == nix::sys::statfs::TMPFS_MAGIC
}

#[test]
fn what_only_the_disk_has_is_read_past_the_page_cache_and_lies_there_for_the_next() {
    for hashed_by_gpu in ["off", "on"] {
        let rekindle = Rekindle::with(&[("REKINDLE_GPU_HASH", hashed_by_gpu)]);
        image(&rekindle, "image", "7");
        let place = forget_chunks(&rekindle);
        assert_eq!(megabytes(&restore(&rekindle, "image"), place), 6);
        wait("the page cache", || megabytes(&restore(&rekindle, "image"), "store") == 6);
    }
}

#[test]
fn damage_is_seen_in_what_is_read_past_the_page_cache() {
    for hashed_by_gpu in ["off", "on"] {
        let rekindle = Rekindle::with(&[("REKINDLE_GPU_HASH", hashed_by_gpu)]);
        image(&rekindle, "image", "7");
        let chunk = &rekindle.large_chunks()[1];
        let mut bytes = fs::read(chunk).unwrap();
        bytes[1_234_567] ^= 1;
        fs::write(chunk, bytes).unwrap();
        forget_chunks(&rekindle);
        let output = rekindle.output(&["restore", "image", "-d", "--name", "damaged"]);
        let problem = match output.status.success() {
            true => {
                wait("the end", || rekindle.sandbox("damaged")["pid"] == 0);
                rekindle.sandbox("damaged")["problem"].as_str().unwrap().to_string()
            }
            false => String::from_utf8(output.stderr).unwrap(),
        };
        let name = chunk.file_name().unwrap().to_str().unwrap();
        assert!(problem.contains(name) && problem.contains("hash to"), "{problem}");
    }
}

#[test]
fn where_the_kernel_refuses_it_all_is_read_through_the_page_cache() {
    const CACHESTAT: i64 = 451;
    let rekindle = Rekindle::new();
    image(&rekindle, "image", "7");
    for call in [libc::SYS_io_uring_setup, CACHESTAT] {
        forget_chunks(&rekindle);
        rekindle.ok(&["shutdown"]);
        let mut command = rekindle.command(&["images"]);
        refuse(&mut command, call);
        assert!(command.output().unwrap().status.success(), "the next daemon, which inherits that");
        assert_eq!(uncached(&restore(&rekindle, "image")), 6);
    }
}
