//! `ptrace` as CRIU calls it, done by the tracer: what the arguments point to lies in CRIU's memory.

use std::io;

use super::calls::Memory;

pub type Request = libc::c_uint;

pub const SIGINFO: usize = size_of::<libc::siginfo_t>();
const USER_DESCRIPTOR: usize = 16;
/// Vector registers have so many bytes at most.
const MOST_REGISTERS: usize = 16 << 10;
const MOST: usize = 1 << 20;
/// A filter has so many instructions of 8 bytes at most.
const FILTER: usize = 4096 * 8;
const METADATA: usize = 16;
pub const ARCH_PRCTL: Request = 30;
pub const SHADOW_STACK_STATUS: u64 = 0x5005;
pub const GET_RSEQ_CONFIGURATION: Request = 0x420f;
pub const SETSIGMASK: Request = 0x420b;
pub const GETSIGMASK: Request = 0x420a;
pub const PEEKSIGINFO: Request = 0x4209;
pub const SECCOMP_GET_FILTER: Request = 0x420c;
pub const SECCOMP_GET_METADATA: Request = 0x420d;
pub const GET_THREAD_AREA: Request = 25;

/// The kernel's own `ptrace`: a word that is peeked goes to where `data` points.
pub fn ptrace(request: Request, pid: i32, address: u64, data: u64) -> io::Result<i64> {
    // SAFETY: pointers among the arguments are to memory of the caller's of the size that the request asks for.
    let done = unsafe { libc::syscall(libc::SYS_ptrace, request, pid, address, data) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}

pub fn pointer(bytes: &mut [u8]) -> u64 {
    bytes.as_mut_ptr() as u64
}

/// Whether it changes what a traced thread is about to do, or its memory.
pub fn changes(request: Request) -> bool {
    matches!(
        request,
        libc::PTRACE_SETREGS
            | libc::PTRACE_SETFPREGS
            | libc::PTRACE_SETREGSET
            | SETSIGMASK
            | libc::PTRACE_POKETEXT
            | libc::PTRACE_POKEDATA
    )
}

/// Whether a thread that stands is as it was after it, but for what it does when it goes on.
pub fn leaves_as_it_is(request: Request, data: u64) -> bool {
    let asks_for_a_stack = request == ARCH_PRCTL && data == SHADOW_STACK_STATUS;
    asks_for_a_stack
        || matches!(
            request,
            libc::PTRACE_PEEKTEXT
                | libc::PTRACE_PEEKDATA
                | libc::PTRACE_PEEKUSER
                | libc::PTRACE_GETEVENTMSG
                | libc::PTRACE_GETREGS
                | libc::PTRACE_GETFPREGS
                | libc::PTRACE_GETSIGINFO
                | libc::PTRACE_GETREGSET
                | libc::PTRACE_SETOPTIONS
                | GETSIGMASK
                | GET_THREAD_AREA
                | PEEKSIGINFO
                | GET_RSEQ_CONFIGURATION
                | SECCOMP_GET_FILTER
                | SECCOMP_GET_METADATA
        )
}

/// Does what is asked.
pub fn carry_out(request: Request, pid: i32, address: u64, data: u64, asker: Memory) -> io::Result<i64> {
    let read = |size: usize| -> io::Result<i64> {
        let mut bytes = vec![0; size];
        let done = ptrace(request, pid, address, pointer(&mut bytes))?;
        asker.write(data, &bytes)?;
        Ok(done)
    };
    let write = |size: usize| {
        let mut bytes = asker.read(data, size)?;
        ptrace(request, pid, address, pointer(&mut bytes))
    };
    match request {
        libc::PTRACE_SEIZE
        | libc::PTRACE_INTERRUPT
        | libc::PTRACE_CONT
        | libc::PTRACE_SYSCALL
        | libc::PTRACE_SINGLESTEP
        | libc::PTRACE_DETACH
        | libc::PTRACE_SETOPTIONS
        | libc::PTRACE_LISTEN
        | libc::PTRACE_POKETEXT
        | libc::PTRACE_POKEDATA
        | libc::PTRACE_POKEUSER => ptrace(request, pid, address, data),
        libc::PTRACE_PEEKTEXT | libc::PTRACE_PEEKDATA | libc::PTRACE_PEEKUSER | libc::PTRACE_GETEVENTMSG => {
            read(8)
        }
        libc::PTRACE_GETREGS => read(size_of::<libc::user_regs_struct>()),
        libc::PTRACE_SETREGS => write(size_of::<libc::user_regs_struct>()),
        libc::PTRACE_GETFPREGS => read(size_of::<libc::user_fpregs_struct>()),
        libc::PTRACE_SETFPREGS => write(size_of::<libc::user_fpregs_struct>()),
        libc::PTRACE_GETSIGINFO => read(SIGINFO),
        libc::PTRACE_SETSIGINFO => write(SIGINFO),
        GETSIGMASK => read(bounded(address)?),
        SETSIGMASK => write(bounded(address)?),
        GET_THREAD_AREA => read(USER_DESCRIPTOR),
        libc::PTRACE_GETREGSET | libc::PTRACE_SETREGSET => register_set(request, pid, address, data, asker),
        PEEKSIGINFO => peek_signals(pid, address, data, asker),
        GET_RSEQ_CONFIGURATION => read(bounded(address)?),
        SECCOMP_GET_FILTER if data == 0 => ptrace(request, pid, address, 0),
        SECCOMP_GET_FILTER => {
            let mut bytes = vec![0; FILTER];
            let count = ptrace(request, pid, address, pointer(&mut bytes))?;
            asker.write(data, &bytes[..FILTER.min(count as usize * 8)])?;
            Ok(count)
        }
        SECCOMP_GET_METADATA => {
            let mut bytes = asker.read(data, METADATA.min(bounded(address)?))?;
            let done = ptrace(request, pid, bytes.len() as u64, pointer(&mut bytes))?;
            asker.write(data, &bytes)?;
            Ok(done)
        }
        ARCH_PRCTL if data == SHADOW_STACK_STATUS => {
            let mut bytes = [0; 8];
            let done = ptrace(request, pid, pointer(&mut bytes), data)?;
            asker.write(address, &bytes)?;
            Ok(done)
        }
        ARCH_PRCTL => ptrace(request, pid, address, data),
        _ => Err(io::Error::from_raw_os_error(libc::EIO)),
    }
}

fn bounded(size: u64) -> io::Result<usize> {
    usize::try_from(size)
        .ok()
        .filter(|size| *size <= MOST)
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
}

/// The argument is a vector of one part, whose length comes back as what there was.
fn register_set(request: Request, pid: i32, kind: u64, at: u64, asker: Memory) -> io::Result<i64> {
    let (base, length) = (asker.word(at)?, bounded(asker.word(at + 8)?)?);
    let mut bytes = match request {
        libc::PTRACE_SETREGSET => asker.read(base, length)?,
        _ => vec![0; length],
    };
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: length };
    let done = ptrace(request, pid, kind, &raw mut part as u64)?;
    if request == libc::PTRACE_GETREGSET {
        asker.write(base, &bytes[..part.iov_len.min(length)])?;
    }
    asker.write(at + 8, &(part.iov_len as u64).to_ne_bytes())?;
    Ok(done)
}

fn peek_signals(pid: i32, at: u64, data: u64, asker: Memory) -> io::Result<i64> {
    let mut wanted = asker.read(at, 16)?;
    let count = i32::from_ne_bytes([wanted[12], wanted[13], wanted[14], wanted[15]]);
    let mut bytes = vec![0; bounded(count.max(0) as u64 * SIGINFO as u64)?];
    let found = ptrace(PEEKSIGINFO, pid, pointer(&mut wanted), pointer(&mut bytes))?;
    asker.write(data, &bytes[..bytes.len().min(found as usize * SIGINFO)])?;
    Ok(found)
}

/// Whether nothing waits in a thread's own queue of signals, which is found out sooner than which signals do.
pub fn has_no_signals(pid: i32) -> bool {
    let mut wanted = [[0; 8], [0; 8]];
    wanted[1][4..].copy_from_slice(&1u32.to_ne_bytes());
    let mut signal = vec![0; SIGINFO];
    ptrace(PEEKSIGINFO, pid, wanted.as_mut_ptr() as u64, pointer(&mut signal)).is_ok_and(|found| found == 0)
}

/// All registers of a kind; an error where the machine or the thread has no such.
pub fn registers(pid: i32, kind: u64) -> io::Result<Vec<u8>> {
    // What is kept, for hundreds of threads, is no longer than what there is.
    let mut bytes = [0; MOST_REGISTERS];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    ptrace(libc::PTRACE_GETREGSET, pid, kind, &raw mut part as u64)?;
    Ok(bytes[..part.iov_len].to_vec())
}

pub fn set_registers(pid: i32, kind: u64, bytes: &[u8]) -> io::Result<()> {
    let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    ptrace(libc::PTRACE_SETREGSET, pid, kind, &raw const part as u64).map(drop)
}

pub fn mask(pid: i32) -> io::Result<u64> {
    let mut mask = 0u64;
    ptrace(GETSIGMASK, pid, 8, &raw mut mask as u64)?;
    Ok(mask)
}

pub fn set_mask(pid: i32, mask: u64) -> io::Result<()> {
    ptrace(SETSIGMASK, pid, 8, &raw const mask as u64).map(drop)
}

/// Where a thread's `rseq` structure lies.
pub fn rseq(pid: i32) -> Option<u64> {
    let mut bytes = [0; 24];
    ptrace(GET_RSEQ_CONFIGURATION, pid, bytes.len() as u64, pointer(&mut bytes)).ok()?;
    let at = u64::from_ne_bytes(bytes[..8].try_into().ok()?);
    (at != 0).then_some(at)
}
