//! System calls made directly, and `syscall`, by which programs make theirs.

use std::arch::{asm, naked_asm};
use std::ffi::c_long;

/// What the kernel returns from here up to -1 is a negated error number.
const FIRST_ERROR: isize = -4095;

/// Makes a system call; a negated error number on failure.
///
/// # Safety
/// As of the call that is made.
pub unsafe fn call(number: c_long, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let result;
    // SAFETY: the registers are those of the kernel's interface; the caller answers for what the call does.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    result
}

/// A result as C functions return it.
pub fn finish(result: isize) -> isize {
    if (FIRST_ERROR..0).contains(&result) {
        set_error(-result as i32);
        return -1;
    }
    result
}

pub fn set_error(number: i32) {
    // SAFETY: the C library's own place for this thread's error number.
    unsafe { *libc::__errno_location() = number };
}

extern "C" fn failed(result: isize) -> isize {
    finish(result)
}

/// The C library's `syscall`, but that the calls that are ours come to us. Nothing of ours is on the stack when the
/// system call is made: one such as clone returns twice, and on another stack.
///
/// # Safety
/// As of the call that is made. The declaration leaves out that it takes what the number says.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn syscall(number: c_long) -> c_long {
    naked_asm!(
        "cmp rdi, {madvise}",
        "je 2f",
        "cmp rdi, {mremap}",
        "je 3f",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 4f",
        "ret",
        "2:",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "jmp {our_madvise}",
        "3:",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov rcx, r8",
        "mov r8, r9",
        "jmp {our_mremap}",
        "4:",
        "mov rdi, rax",
        "jmp {failed}",
        madvise = const libc::SYS_madvise,
        mremap = const libc::SYS_mremap,
        our_madvise = sym super::advise::madvise,
        our_mremap = sym super::remap::mremap,
        failed = sym failed,
    )
}

#[cfg(test)]
mod tests {
    unsafe extern "C" {
        fn syscall(number: super::c_long, ...) -> super::c_long;
    }

    #[test]
    fn system_calls_are_made_with_all_their_arguments() {
        let file = tempfile::tempfile().unwrap();
        use std::os::fd::AsRawFd;
        let text = b"0123456789";
        // SAFETY: the buffers are as long as is said.
        let (wrote, failed) = unsafe {
            let wrote = syscall(libc::SYS_pwrite64, file.as_raw_fd(), text.as_ptr(), text.len(), 5usize);
            (wrote, syscall(libc::SYS_close, -1))
        };
        assert_eq!((wrote, failed), (10, -1));
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EBADF));
        assert_eq!(file.metadata().unwrap().len(), 15);
        // SAFETY: maps memory where the kernel likes, and gives it back.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let at = syscall(libc::SYS_mmap, 0usize, 8192usize, libc::PROT_READ, flags, -1isize, 0usize);
            assert!(at > 0);
            assert_eq!(syscall(libc::SYS_madvise, at, 8192usize, libc::MADV_DONTNEED), 0);
            let moved = syscall(libc::SYS_mremap, at, 8192usize, 16384usize, libc::MREMAP_MAYMOVE, 0usize);
            assert!(moved > 0);
            assert_eq!(syscall(libc::SYS_munmap, moved, 16384usize), 0);
        }
    }
}
