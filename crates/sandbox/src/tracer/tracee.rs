//! A thread that is traced, and what it was about to do when it was first touched.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;
use std::rc::Rc;

use nix::sched::CpuSet;

use super::calls::Memory;
use super::general::General;
use super::interrupted;
use super::request::{self, mask, registers, rseq};
use super::seize::Ahead;
use crate::process::maps::{self, Area};
use crate::process::status_field;
use crate::processor;

/// The kinds of registers: general, vector and floating point, shadow stack.
pub const GENERAL: u64 = 1;
pub const VECTOR: u64 = 0x202;
const KINDS: [u64; 3] = [GENERAL, VECTOR, 0x204];
/// Where `rseq` structures say which critical section is under way.
const CRITICAL: u64 = 8;
const EVENT_STOP: i32 = 128;
const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;

/// How a thread stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// It was interrupted, or its process is stopped.
    Event,
    /// Before it takes a signal.
    Signal(i32),
    /// Before or after a system call.
    Call,
}

impl Stop {
    /// From what `wait4` tells of a thread that has stopped.
    pub fn read(status: i32) -> Self {
        match (status >> 16, libc::WSTOPSIG(status)) {
            (EVENT_STOP, _) => Self::Event,
            (_, SYSCALL_STOP) => Self::Call,
            (_, signal) => Self::Signal(signal),
        }
    }
}

#[derive(Debug, Default)]
pub struct Tracee {
    pub process: i32,
    pub options: u64,
    /// None while it runs.
    pub stop: Option<Stop>,
    /// The status of one that has ended, of which CRIU was not told yet.
    pub ended: Option<i32>,
    /// The error of a request that CRIU has left with us, of which it was not told yet.
    pub failed: Option<i32>,
    pub before: Option<Rc<Before>>,
    pub ahead: Ahead,
    /// Those that it had, while it has [one](super::together).
    pub processors: Option<CpuSet>,
}

impl Tracee {
    /// One of the processes `known`, or of another.
    pub fn new(thread: i32, options: u64, known: &BTreeSet<i32>) -> Self {
        let has = |process: &&i32| Path::new(&format!("/proc/{process}/task/{thread}")).exists();
        // The kernel needs some twenty times as long for all that it says of a thread.
        let found = || status_field(thread, "Tgid").and_then(|pid| pid.parse().ok()).unwrap_or(thread);
        let process = known.iter().find(has).copied().unwrap_or_else(found);
        Self::of(process, options)
    }

    /// One of this process.
    pub fn of(process: i32, options: u64) -> Self {
        Self { process, options, ..Self::default() }
    }
}

/// What a thread was about to do.
#[derive(Debug)]
pub struct Before {
    pub registers: Vec<(u64, Vec<u8>)>,
    pub mask: u64,
    /// The signals that it alone was sent and has not taken.
    pub pending: u64,
    /// The critical section that it was in, and where that stands.
    pub critical: Option<(u64, u64)>,
}

impl Before {
    pub fn take(thread: i32) -> io::Result<Self> {
        let critical = rseq(thread).map(|at| at + CRITICAL);
        let registers = KINDS.into_iter().filter_map(|kind| Some((kind, registers(thread, kind).ok()?)));
        Ok(Self {
            registers: registers.collect(),
            mask: mask(thread)?,
            pending: if request::has_no_signals(thread) { 0 } else { pending(thread) },
            critical: critical.and_then(|at| Some((at, Memory(thread).word(at).ok()?))),
        })
    }

    /// Its vector registers, if there is something in tiles, which CRIU does not keep.
    pub fn tiles(&self) -> Option<&[u8]> {
        let (_, registers) = self.registers.iter().find(|(kind, _)| *kind == VECTOR)?;
        processor::are_tiles_in(registers).then_some(registers)
    }

    /// Has the thread, which stands, do that again once it is interrupted or let go of.
    pub fn put_back(&self, thread: i32) -> io::Result<()> {
        if let Some((at, section)) = self.critical
            && Memory(thread).word(at)? != section
        {
            Memory(thread).write(at, &section.to_ne_bytes())?;
        }
        for (kind, bytes) in &self.registers {
            match General::read(bytes).filter(|_| *kind == GENERAL) {
                Some(general) => interrupted::goes_on(thread, general).set(thread)?,
                None => request::set_registers(thread, *kind, bytes)?,
            }
        }
        request::set_mask(thread, self.mask)
    }
}

/// The signals that a thread alone was sent and has not taken.
pub fn pending(thread: i32) -> u64 {
    status_field(thread, "SigPnd").and_then(|set| u64::from_str_radix(&set, 16).ok()).unwrap_or(0)
}

/// What all threads of a process share, before the first of them was touched.
#[derive(Debug)]
pub struct Shared {
    pub descriptors: BTreeSet<i32>,
    pub areas: Vec<Area>,
    /// What was written over, by its address.
    pub words: BTreeMap<u64, u64>,
}

impl Shared {
    pub fn take(process: i32) -> Self {
        Self { descriptors: descriptors(process), areas: maps::if_there(process), words: BTreeMap::new() }
    }
}

pub fn descriptors(process: i32) -> BTreeSet<i32> {
    let entries = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_are_told_apart() {
        let status = |signal: i32, event: i32| (event << 16) | (signal << 8) | 0x7f;
        assert_eq!(Stop::read(status(libc::SIGTRAP, EVENT_STOP)), Stop::Event);
        assert_eq!(Stop::read(status(libc::SIGSTOP, EVENT_STOP)), Stop::Event);
        assert_eq!(Stop::read(status(SYSCALL_STOP, 0)), Stop::Call);
        assert_eq!(Stop::read(status(libc::SIGPIPE, 0)), Stop::Signal(libc::SIGPIPE));
    }
}
