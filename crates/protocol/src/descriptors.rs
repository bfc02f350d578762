//! Room for descriptors: those of GPU memory that outlives its worker come by the hundred.

use std::fs::File;
use std::os::fd::AsRawFd;

/// As many as are passed on and taken without a wait.
const EXPECTED: u64 = 4096;

/// Has this process's table of descriptors be as long as it will have to be, or as its limit allows. To be called while
/// there is one thread: in a process of several the kernel waits for all processors whenever it makes the table longer,
/// 10 to 20 ms each time it doubles.
pub fn make_room() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: reads into one valid structure.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0;
    let Ok(any) = File::open("/dev/null") else { return };
    let last = EXPECTED.min(if known { limit.rlim_cur } else { 0 }).saturating_sub(1) as i32;
    // SAFETY: a second descriptor of an open file, closed again at once: the table keeps its length.
    unsafe {
        let number = libc::fcntl(any.as_raw_fd(), libc::F_DUPFD_CLOEXEC, last);
        if number >= 0 {
            libc::close(number);
        }
    }
}
