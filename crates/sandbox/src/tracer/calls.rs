//! Calls that the filter tells of, and answers to them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

/// The kernel runs whoever called on the processor of whoever answers.
const TOGETHER: u64 = 1;

/// A call that waits for its answer.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    id: u64,
    /// Who has made it.
    pub pid: i32,
    pub number: i64,
    pub words: [u64; 6],
}

/// What becomes of a call.
#[derive(Debug)]
pub enum Answer {
    /// It is the kernel's.
    Kernel,
    Value(i64),
    Error(i32),
    /// A new descriptor of the caller's for this file.
    Descriptor(OwnedFd),
}

impl From<io::Error> for Answer {
    fn from(error: io::Error) -> Self {
        Self::Error(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// Where calls come from.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl Listener {
    pub fn new(fd: OwnedFd) -> Self {
        let listener = Self(fd);
        // Only time is lost on a kernel that does not know it.
        // SAFETY: the request takes a number, and touches no memory of ours.
        unsafe { libc::ioctl(listener.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS as _, TOGETHER) };
        listener
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.0.as_fd()
    }

    /// The next call; none if its caller has ended meanwhile.
    pub fn take(&self) -> Option<Call> {
        // SAFETY: the kernel wants all of it zero, and fills it in.
        let mut told: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the structure is the one of this request, and ours.
        let taken =
            unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV as _, &raw mut told) };
        (taken == 0).then_some(Call {
            id: told.id,
            pid: told.pid as i32,
            number: told.data.nr.into(),
            words: told.data.args,
        })
    }

    /// Whether the caller still waits.
    pub fn waits(&self, call: &Call) -> bool {
        // SAFETY: the request reads a number that is ours.
        let known = unsafe {
            libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID as _, &raw const call.id)
        };
        known == 0
    }

    /// A caller that has ended needs none.
    pub fn answer(&self, call: &Call, answer: &Answer) {
        let (val, error, flags) = match answer {
            Answer::Kernel => (0, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
            Answer::Value(value) => (*value, 0, 0),
            Answer::Error(error) => (0, -error, 0),
            Answer::Descriptor(file) => return self.pass(call, file),
        };
        let mut told = libc::seccomp_notif_resp { id: call.id, val, error, flags };
        // SAFETY: the structure is the one of this request, and ours.
        unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND as _, &raw mut told) };
    }

    fn pass(&self, call: &Call, file: &OwnedFd) {
        let passed = libc::seccomp_notif_addfd {
            id: call.id,
            flags: libc::SECCOMP_ADDFD_FLAG_SEND as u32,
            srcfd: file.as_raw_fd() as u32,
            newfd: 0,
            newfd_flags: 0,
        };
        // SAFETY: the structure is the one of this request, and ours.
        let done = unsafe {
            libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ADDFD as _, &raw const passed)
        };
        if done < 0 {
            self.answer(call, &io::Error::last_os_error().into());
        }
    }
}

/// The memory of another process.
#[derive(Debug, Clone, Copy)]
pub struct Memory(pub i32);

impl Memory {
    pub fn read(self, at: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        let there = [RemoteIoVec { base: at as usize, len: length }];
        let read = process_vm_readv(Pid::from_raw(self.0), &mut [io::IoSliceMut::new(&mut bytes)], &there)?;
        if read == length { Ok(bytes) } else { Err(io::Error::from_raw_os_error(libc::EFAULT)) }
    }

    pub fn write(self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let there = [RemoteIoVec { base: at as usize, len: bytes.len() }];
        let written = process_vm_writev(Pid::from_raw(self.0), &[io::IoSlice::new(bytes)], &there)?;
        if written == bytes.len() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EFAULT)) }
    }

    pub fn word(self, at: u64) -> io::Result<u64> {
        let bytes = self.read(at, 8)?;
        Ok(bytes.try_into().map_or(0, u64::from_ne_bytes))
    }
}
