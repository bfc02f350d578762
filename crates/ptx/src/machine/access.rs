//! Touching device memory that may be unmapped or read-only.
//!
//! The accessors below are the only code that does so. They lie between two labels and keep nothing on the
//! stack, so that the handler can turn a fault in any of them into the return of 1.

use std::sync::OnceLock;

std::arch::global_asm!(
    ".pushsection .text",
    ".balign 16",
    "rekindle_ptx_access_begin:",
    // (address, out) -> status
    "rekindle_ptx_load8:  movzx eax, byte ptr [rdi]",
    "mov [rsi], rax",
    "xor eax, eax",
    "ret",
    "rekindle_ptx_load16: movzx eax, word ptr [rdi]",
    "mov [rsi], rax",
    "xor eax, eax",
    "ret",
    "rekindle_ptx_load32: mov eax, [rdi]",
    "mov [rsi], rax",
    "xor eax, eax",
    "ret",
    "rekindle_ptx_load64: mov rax, [rdi]",
    "mov [rsi], rax",
    "xor eax, eax",
    "ret",
    // (address, value) -> status
    "rekindle_ptx_store8:  mov [rdi], sil",
    "xor eax, eax",
    "ret",
    "rekindle_ptx_store16: mov [rdi], si",
    "xor eax, eax",
    "ret",
    "rekindle_ptx_store32: mov [rdi], esi",
    "xor eax, eax",
    "ret",
    "rekindle_ptx_store64: mov [rdi], rsi",
    "xor eax, eax",
    "ret",
    // (address, new, expected and found) -> status
    "rekindle_ptx_swap16: mov rax, [rdx]",
    "lock cmpxchg [rdi], si",
    "movzx eax, ax",
    "mov [rdx], rax",
    "xor eax, eax",
    "ret",
    "rekindle_ptx_swap32: mov rax, [rdx]",
    "lock cmpxchg [rdi], esi",
    "mov eax, eax",
    "mov [rdx], rax",
    "xor eax, eax",
    "ret",
    "rekindle_ptx_swap64: mov rax, [rdx]",
    "lock cmpxchg [rdi], rsi",
    "mov [rdx], rax",
    "xor eax, eax",
    "ret",
    // (to, from, bytes) -> status
    "rekindle_ptx_copy: cmp rdx, 16",
    "jb 3f",
    "2: movups xmm0, [rsi]",
    "movups [rdi], xmm0",
    "add rsi, 16",
    "add rdi, 16",
    "sub rdx, 16",
    "cmp rdx, 16",
    "jae 2b",
    "3: mov rcx, rdx",
    "jrcxz 4f",
    "rep movsb",
    "4: xor eax, eax",
    "ret",
    "rekindle_ptx_access_end:",
    "rekindle_ptx_access_failed: mov eax, 1",
    "ret",
    // The same for 128 bits, which need a register that the caller keeps: it waits in r11.
    "rekindle_ptx_wide_begin:",
    "rekindle_ptx_swap128: mov r11, rbx",
    "mov r8, rdx",
    "mov rbx, [rsi]",
    "mov rcx, [rsi + 8]",
    "mov rax, [r8]",
    "mov rdx, [r8 + 8]",
    "lock cmpxchg16b [rdi]",
    "mov [r8], rax",
    "mov [r8 + 8], rdx",
    "mov rbx, r11",
    "xor eax, eax",
    "ret",
    "rekindle_ptx_wide_end:",
    "rekindle_ptx_wide_failed: mov rbx, r11",
    "mov eax, 1",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    static rekindle_ptx_access_begin: u8;
    static rekindle_ptx_access_end: u8;
    static rekindle_ptx_access_failed: u8;
    static rekindle_ptx_wide_begin: u8;
    static rekindle_ptx_wide_end: u8;
    static rekindle_ptx_wide_failed: u8;
    fn rekindle_ptx_load8(address: u64, out: *mut u64) -> u32;
    fn rekindle_ptx_load16(address: u64, out: *mut u64) -> u32;
    fn rekindle_ptx_load32(address: u64, out: *mut u64) -> u32;
    fn rekindle_ptx_load64(address: u64, out: *mut u64) -> u32;
    fn rekindle_ptx_store8(address: u64, value: u64) -> u32;
    fn rekindle_ptx_store16(address: u64, value: u64) -> u32;
    fn rekindle_ptx_store32(address: u64, value: u64) -> u32;
    fn rekindle_ptx_store64(address: u64, value: u64) -> u32;
    fn rekindle_ptx_swap16(address: u64, new: u64, expected: *mut u64) -> u32;
    fn rekindle_ptx_swap32(address: u64, new: u64, expected: *mut u64) -> u32;
    fn rekindle_ptx_swap64(address: u64, new: u64, expected: *mut u64) -> u32;
    fn rekindle_ptx_swap128(address: u64, new: *const [u64; 2], expected: *mut [u64; 2]) -> u32;
    fn rekindle_ptx_copy(to: u64, from: u64, bytes: u64) -> u32;
}

/// The page is not there, or not for writing.
#[derive(Debug)]
pub(crate) struct Unmapped;

fn checked(status: u32) -> Result<(), Unmapped> {
    if status == 0 { Ok(()) } else { Err(Unmapped) }
}

/// Reads `width` bytes (1, 2, 4 or 8) of device memory. The address must lie in a range of the grid: memory
/// that belongs to the device, if to anyone.
pub(crate) fn load(address: u64, width: u8) -> Result<u64, Unmapped> {
    let mut value = 0;
    // SAFETY: `address` is in memory that only devices use, or is not mapped, which the fault handler turns
    // into an error; `value` is live.
    let status = unsafe {
        match width {
            1 => rekindle_ptx_load8(address, &mut value),
            2 => rekindle_ptx_load16(address, &mut value),
            4 => rekindle_ptx_load32(address, &mut value),
            _ => rekindle_ptx_load64(address, &mut value),
        }
    };
    checked(status).map(|()| value)
}

/// Writes `width` bytes of device memory; as for [`load`].
pub(crate) fn store(address: u64, width: u8, value: u64) -> Result<(), Unmapped> {
    // SAFETY: as in `load`.
    checked(unsafe {
        match width {
            1 => rekindle_ptx_store8(address, value),
            2 => rekindle_ptx_store16(address, value),
            4 => rekindle_ptx_store32(address, value),
            _ => rekindle_ptx_store64(address, value),
        }
    })
}

/// Replaces `expected` by `new` if it is there, at once for all threads and devices; says what was there.
pub(crate) fn compare_exchange(address: u64, width: u8, expected: u64, new: u64) -> Result<u64, Unmapped> {
    let mut found = expected;
    // SAFETY: as in `load`.
    let status = unsafe {
        match width {
            2 => rekindle_ptx_swap16(address, new, &mut found),
            4 => rekindle_ptx_swap32(address, new, &mut found),
            _ => rekindle_ptx_swap64(address, new, &mut found),
        }
    };
    checked(status).map(|()| found)
}

/// The same for 16 bytes; the address must be a multiple of 16.
pub(crate) fn compare_exchange128(
    address: u64,
    expected: [u64; 2],
    new: [u64; 2],
) -> Result<[u64; 2], Unmapped> {
    let mut found = expected;
    // SAFETY: as in `load`; x86-64 processors that run Rekindle have `cmpxchg16b`.
    checked(unsafe { rekindle_ptx_swap128(address, &new, &mut found) }).map(|()| found)
}

/// Copies device memory into `buffer`.
pub(crate) fn read(address: u64, buffer: &mut [u8]) -> Result<(), Unmapped> {
    // SAFETY: as in `load`; the buffer takes as many bytes.
    checked(unsafe { rekindle_ptx_copy(buffer.as_mut_ptr() as u64, address, buffer.len() as u64) })
}

/// Copies `buffer` into device memory.
pub(crate) fn write(address: u64, buffer: &[u8]) -> Result<(), Unmapped> {
    // SAFETY: as in `load`.
    checked(unsafe { rekindle_ptx_copy(address, buffer.as_ptr() as u64, buffer.len() as u64) })
}

struct Previous {
    segv: libc::sigaction,
    bus: libc::sigaction,
}

static PREVIOUS: OnceLock<Previous> = OnceLock::new();

/// Makes faults of kernels on device memory errors of the kernels. Other faults go to the handler that was there
/// before. Calls after the first do nothing.
pub fn install_fault_handler() {
    PREVIOUS.get_or_init(|| {
        // SAFETY: the structures are plain data that the calls fill; the handler is async-signal-safe.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let handler: unsafe extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = handle;
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            let mut previous = Previous { segv: std::mem::zeroed(), bus: std::mem::zeroed() };
            // Saved before the handler can run.
            libc::sigaction(libc::SIGSEGV, std::ptr::null(), &mut previous.segv);
            libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut previous.bus);
            libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
            previous
        }
    });
}

unsafe extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid context to a handler with SA_SIGINFO.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let at = registers[libc::REG_RIP as usize] as u64;
    let within = |begin: *const u8, end: *const u8| (begin as u64..end as u64).contains(&at);
    if within(&raw const rekindle_ptx_access_begin, &raw const rekindle_ptx_access_end) {
        registers[libc::REG_RIP as usize] = &raw const rekindle_ptx_access_failed as i64;
        return;
    }
    if within(&raw const rekindle_ptx_wide_begin, &raw const rekindle_ptx_wide_end) {
        registers[libc::REG_RIP as usize] = &raw const rekindle_ptx_wide_failed as i64;
        return;
    }
    let Some(previous) = PREVIOUS.get() else {
        // Another thread faulted while the handler was being installed: the default action, on return.
        // SAFETY: restoring the default action is always allowed.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    };
    let previous = if signal == libc::SIGBUS { &previous.bus } else { &previous.segv };
    match previous.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: as above; the instruction faults again and ends the process.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: it was installed as a handler of this form.
            let handler: unsafe extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            // SAFETY: called as the kernel would call it.
            unsafe { handler(signal, info, context) };
        }
        handler => {
            // SAFETY: it was installed as a handler of this form.
            let handler: unsafe extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
            // SAFETY: called as the kernel would call it.
            unsafe { handler(signal) };
        }
    }
}
