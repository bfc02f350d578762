//! The general registers of a thread, and the system call that they say it is in.

use std::io;

use super::request::{registers, set_registers};
use super::tracee::GENERAL;

/// The instruction of a system call.
pub const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// In place of a system call's number.
const NONE: u64 = u64::MAX;
/// The kernel's own `ERESTARTNOHAND` and `ERESTART_RESTARTBLOCK`.
const RESTART_NO_HANDLER: i64 = -514;
const RESTART_BLOCK: i64 = -516;
/// `EINTR`, as a system call gives it back.
const FAILED: i64 = -(libc::EINTR as i64);

/// What becomes of an interrupted system call when the thread goes on and runs no handler of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupted {
    /// It waits for what is left of its time.
    GoesOn,
    Fails,
}

/// The general registers of a thread.
pub struct General(libc::user_regs_struct);

impl General {
    pub fn of(thread: i32) -> io::Result<Self> {
        Self::read(&registers(thread, GENERAL)?).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    pub fn read(bytes: &[u8]) -> Option<Self> {
        // SAFETY: the structure is plain numbers, and as many bytes are there as it has.
        (bytes.len() == size_of::<libc::user_regs_struct>())
            .then(|| Self(unsafe { bytes.as_ptr().cast::<libc::user_regs_struct>().read_unaligned() }))
    }

    pub fn set(&self, thread: i32) -> io::Result<()> {
        set_registers(thread, GENERAL, self.bytes())
    }

    pub fn bytes(&self) -> &[u8] {
        let at = (&raw const self.0).cast::<u8>();
        // SAFETY: the structure is plain numbers without gaps.
        unsafe { std::slice::from_raw_parts(at, size_of::<libc::user_regs_struct>()) }
    }

    /// Where the next instruction is.
    pub fn instruction(&self) -> u64 {
        self.0.rip
    }

    /// The thread makes a system call next, by an instruction of that which lies there.
    pub fn enter(&mut self, instruction: u64, number: i64, [first, second, third, fourth]: [u64; 4]) {
        self.0.rip = instruction;
        self.0.rax = number as u64;
        self.leave_call();
        (self.0.rdi, self.0.rsi, self.0.rdx, self.0.r10) = (first, second, third, fourth);
    }

    /// It is in no system call any more, and makes none that has not begun.
    pub fn leave_call(&mut self) {
        self.0.orig_rax = NONE;
    }

    /// The number of the system call that it is in.
    pub fn call(&self) -> Option<i64> {
        (self.0.orig_rax as i64 >= 0).then_some(self.0.orig_rax as i64)
    }

    /// What the system call that it is in was asked for.
    pub fn arguments(&self) -> [u64; 4] {
        [self.0.rdi, self.0.rsi, self.0.rdx, self.0.r10]
    }

    /// What becomes of the system call that it is in, if that was interrupted and does not just begin anew.
    pub fn interrupted(&self) -> Option<Interrupted> {
        self.call()?;
        match self.0.rax as i64 {
            RESTART_BLOCK => Some(Interrupted::GoesOn),
            FAILED => Some(Interrupted::Fails),
            _ => None,
        }
    }

    /// The kernel is to begin the interrupted call anew in place of that, if no handler of a signal runs.
    pub fn begins_anew_unless_handled(&mut self) {
        self.0.rax = RESTART_NO_HANDLER as u64;
    }

    /// It makes the system call that it is in anew, which is this one.
    pub fn begin_call_again(&mut self, number: i64) {
        self.0.rip -= SYSCALL.len() as u64;
        self.0.rax = number as u64;
        self.leave_call();
    }

    /// Where its stack ends.
    pub fn stack(&self) -> u64 {
        self.0.rsp
    }

    /// Of the system call that has just ended.
    pub fn result(&self) -> io::Result<u64> {
        let done = self.0.rax as i64;
        if done < 0 { Err(io::Error::from_raw_os_error(-done as i32)) } else { Ok(done as u64) }
    }
}
