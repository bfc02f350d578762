//! What CRIU will ask or touch next, looked at while it has something else to do.

use std::collections::BTreeSet;
use std::ops::Range;

use super::TracerState;
use super::calls::Memory;
use super::interrupted;
use super::request::{
    self, ARCH_PRCTL, GET_RSEQ_CONFIGURATION, GET_THREAD_AREA, GETSIGMASK, PEEKSIGINFO, Request,
    SECCOMP_GET_FILTER, SECCOMP_GET_METADATA, SHADOW_STACK_STATUS, SIGINFO, pointer, ptrace,
};
use super::tracee::{GENERAL, Shared, VECTOR};
use crate::assist::Answer;
use crate::process;

/// Entries of the thread's own segments.
const SEGMENTS: [u64; 3] = [12, 13, 14];
const SEGMENT: usize = 16;
/// What the kernel tells of a thread's `rseq` structure, and what CRIU reads of that.
const RSEQ: usize = 24;
const RSEQ_WORDS: u64 = 4;
const MOST_FILTERS: u64 = 4;
const INSTRUCTION: usize = 8;
const MOST_INSTRUCTIONS: usize = 256;
const METADATA: usize = 16;
/// Of signals, how many at most, and whether those of the whole process.
const SIGNALS: u32 = 32;
const KINDS_OF_SIGNALS: [u32; 2] = [0, 1];

impl TracerState {
    /// Whether all is known that could be looked at now. Who adds to that, or forgets some of it, says so.
    pub(super) fn is_all_looked_at(&mut self) -> bool {
        // Asked before each call, of hundreds of threads.
        self.knows_all = self.knows_all || self.has_looked_at_all();
        self.knows_all
    }

    fn has_looked_at_all(&self) -> bool {
        let is_known =
            |process: &i32| self.shared.contains_key(process) || self.untouched.contains_key(process);
        self.tracees.values().all(|tracee| is_known(&tracee.process))
    }

    /// CRIU has something else to do for a while, as it has once all stand: takes what it will touch, which takes milliseconds
    /// where there are thousands of areas.
    pub(super) fn prefetch(&mut self) {
        let processes: BTreeSet<i32> = self.tracees.values().map(|tracee| tracee.process).collect();
        for process in processes.difference(&self.shared.keys().copied().collect()) {
            let stands = |thread: &i32| self.tracees.get(thread).is_some_and(|tracee| tracee.stop.is_some());
            if process::threads(*process).iter().all(stands) {
                self.untouched.entry(*process).or_insert_with(|| Shared::take(*process));
            }
        }
    }
}

/// The answers about a thread that stands, and which of its memory is in them. Of one that was touched before, those alone that
/// are asked for after each stop.
pub fn answers(thread: i32, is_untouched: bool) -> (Range<u64>, Vec<Answer>) {
    let mut answers = vec![read(thread, libc::PTRACE_GETSIGINFO, 0, SIGINFO), registers(thread, GENERAL)];
    if !is_untouched {
        return (0..0, answers);
    }
    if let Some(told) = interrupted::told(thread, &answers[1].bytes) {
        answers[1].bytes = told.bytes().to_vec();
    }
    answers.push(read(thread, GETSIGMASK, 8, 8));
    answers.push(registers(thread, VECTOR));
    answers.push(read(thread, libc::PTRACE_GETFPREGS, 0, size_of::<libc::user_fpregs_struct>()));
    answers.push(shadow_stack(thread));
    answers.extend(SEGMENTS.map(|segment| read(thread, GET_THREAD_AREA, segment, SEGMENT)));
    for index in 0..MOST_FILTERS {
        let filter = read(thread, SECCOMP_GET_FILTER, index, MOST_INSTRUCTIONS * INSTRUCTION);
        let is_last = filter.result < 0;
        // A longer one than is known here is not told of.
        if filter.result <= MOST_INSTRUCTIONS as i64 {
            answers.push(filter);
        }
        if is_last {
            break;
        }
        answers.push(metadata(thread, index));
    }
    answers.extend(KINDS_OF_SIGNALS.iter().filter_map(|kind| no_signals(thread, *kind)));
    let configuration = read(thread, GET_RSEQ_CONFIGURATION, RSEQ as u64, RSEQ);
    let memory = rseq(thread, &configuration, &mut answers);
    answers.push(configuration);
    (memory, answers)
}

fn read(thread: i32, request: Request, address: u64, size: usize) -> Answer {
    let mut bytes = vec![0; size];
    let done = ptrace(request, thread, address, pointer(&mut bytes));
    let result = result(done);
    if request == SECCOMP_GET_FILTER {
        bytes.truncate(result.clamp(0, MOST_INSTRUCTIONS as i64) as usize * INSTRUCTION);
    }
    Answer { request, address, key: 0, result, bytes }
}

fn result(done: std::io::Result<i64>) -> i64 {
    done.unwrap_or_else(|error| -i64::from(error.raw_os_error().unwrap_or(libc::EIO)))
}

fn registers(thread: i32, kind: u64) -> Answer {
    let mut bytes = Vec::new();
    let done = request::registers(thread, kind).map(|read| bytes = read).map(|()| 0);
    Answer { request: libc::PTRACE_GETREGSET, address: kind, key: 0, result: result(done), bytes }
}

/// The state of its shadow stack, for which the request's arguments have changed places.
fn shadow_stack(thread: i32) -> Answer {
    let mut bytes = vec![0; 8];
    let done = ptrace(ARCH_PRCTL, thread, pointer(&mut bytes), SHADOW_STACK_STATUS);
    Answer { request: ARCH_PRCTL, address: 0, key: SHADOW_STACK_STATUS, result: result(done), bytes }
}

/// The flags of one of its filters.
fn metadata(thread: i32, index: u64) -> Answer {
    let mut bytes = vec![0; METADATA];
    bytes[..8].copy_from_slice(&index.to_ne_bytes());
    let done = ptrace(SECCOMP_GET_METADATA, thread, METADATA as u64, pointer(&mut bytes));
    Answer {
        request: SECCOMP_GET_METADATA,
        address: METADATA as u64,
        key: index,
        result: result(done),
        bytes,
    }
}

/// That it has no signals to take, if it has none.
fn no_signals(thread: i32, kind: u32) -> Option<Answer> {
    let mut wanted = [[0; 8], [0; 8]];
    wanted[1][..4].copy_from_slice(&kind.to_ne_bytes());
    wanted[1][4..].copy_from_slice(&SIGNALS.to_ne_bytes());
    let mut signals = vec![0; SIGNALS as usize * SIGINFO];
    let found = ptrace(PEEKSIGINFO, thread, wanted.as_mut_ptr() as u64, pointer(&mut signals));
    let none = Answer { request: PEEKSIGINFO, address: 0, key: kind.into(), result: 0, bytes: Vec::new() };
    (found.ok()? == 0).then_some(none)
}

/// The words of its `rseq` structure; where they lie.
fn rseq(thread: i32, configuration: &Answer, answers: &mut Vec<Answer>) -> Range<u64> {
    let at = configuration.bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
    if configuration.result < 0 || at == 0 {
        return 0..0;
    }
    let Ok(bytes) = Memory(thread).read(at, RSEQ_WORDS as usize * 8) else { return 0..0 };
    answers.extend(bytes.chunks_exact(8).zip((at..).step_by(8)).map(|(word, address)| Answer {
        request: libc::PTRACE_PEEKDATA,
        address,
        key: 0,
        result: 0,
        bytes: word.to_vec(),
    }));
    at..at + RSEQ_WORDS * 8
}
