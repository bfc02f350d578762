//! Memory of which the kernel notes the first write to each page.
//!
//! A userfaultfd with asynchronous write protection (Linux 6.7) makes the kernel note such a write and let it through:
//! nobody has to answer. A page whose note is still there has not been written since it was protected, as
//! [`page_scan`](crate::page_scan) tells. What is new in memory, moved there or come back after it was given up has none.
//! Closed, the userfaultfd takes all notes with it.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A userfaultfd for the memory of one process. Closed, it protects nothing any more.
#[derive(Debug)]
pub struct Protection(OwnedFd);

/// Nothing that the program does is held up, so it need not be allowed to hold the kernel up.
const USER_MODE_ONLY: u64 = 1;
/// What is to be passed to the system call that makes one.
pub const FLAGS: u64 = libc::O_CLOEXEC as u64 | USER_MODE_ONLY;

const VERSION: u64 = 0xaa;
const UNPOPULATED: u64 = 1 << 13;
const ASYNCHRONOUS: u64 = 1 << 15;
const WRITES: u64 = 1 << 1;
const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_UNREGISTER: u64 = 0x8010_aa01;

impl Protection {
    /// Of a userfaultfd that nothing was asked of yet; an error where the kernel cannot do it.
    pub fn begin(descriptor: OwnedFd) -> io::Result<Protection> {
        let mut asked = [VERSION, UNPOPULATED | ASYNCHRONOUS, 0];
        request(&descriptor, UFFDIO_API, asked.as_mut_ptr())?;
        Ok(Protection(descriptor))
    }

    /// Has pages within `span` be protectable.
    pub fn cover(&self, span: &Range<u64>) -> io::Result<()> {
        let mut asked = [span.start, span.end - span.start, WRITES, 0];
        request(&self.0, UFFDIO_REGISTER, asked.as_mut_ptr())
    }

    /// Has nothing within `span` be protected any more.
    pub fn uncover(&self, span: &Range<u64>) -> io::Result<()> {
        let mut asked = [span.start, span.end - span.start];
        request(&self.0, UFFDIO_UNREGISTER, asked.as_mut_ptr())
    }

    /// The same one: it protects until both are closed.
    pub fn try_clone(&self) -> io::Result<Protection> {
        self.0.try_clone().map(Protection)
    }

    /// Whether this kernel can do it.
    pub fn is_there() -> bool {
        Protection::of_own_memory().is_ok()
    }

    /// Of this process.
    pub fn of_own_memory() -> io::Result<Protection> {
        // SAFETY: the call takes flags and touches no memory of ours.
        let made = unsafe { libc::syscall(libc::SYS_userfaultfd, FLAGS) };
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us; nobody else knows it.
        Protection::begin(unsafe { OwnedFd::from_raw_fd(made as i32) })
    }
}

fn request(descriptor: &OwnedFd, number: u64, words: *mut u64) -> io::Result<()> {
    // SAFETY: `words` are as many as the request reads and writes: three of the interface, four or two of a range.
    match unsafe { libc::ioctl(descriptor.as_raw_fd(), number as _, words) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
