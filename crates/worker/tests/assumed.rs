//! Waits for a stream that has nothing but transfers, on an emulated GPU whose link is slow.

mod common;

use std::path::Path;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use common::program::{Program, begin, bytes_of, download, pinned, upload, words};
use common::{Client, Worker, alone};
use rekindle_device::{MemorySet, PINNED_RANGE};
use rekindle_protocol::operation::*;
use rekindle_worker::{Gpu, OpenedDriver};
use tempfile::TempDir;

/// What a transfer of [`WORDS`] takes.
const TAKES: Duration = Duration::from_millis(600);
const WORDS: usize = 150_000;
/// A stream that waits for no other one.
const FIRST: u32 = 2;
const SECOND: u32 = 3;

fn program(directory: &Path) -> Program {
    let worker = Worker::start_on(directory, Arc::default(), || {
        let opened = Gpu::parse("emulated:memory=1G,bandwidth=1000000").unwrap().open()?;
        Ok(OpenedDriver { in_pieces: false, ..opened })
    });
    let daemon = worker.daemon();
    let (mut client, _) = Client::connect(&worker, &daemon);
    let mut lane = begin(&mut client);
    for id in [FIRST, SECOND] {
        lane.post(StreamCreate { device: 0, id, flags: 1, priority: 0 });
    }
    Program { worker, daemon, client, lane }
}

/// How long a wait for a stream takes.
fn wait(program: &mut Program, stream: u32) -> Duration {
    let begun = Instant::now();
    assert_eq!(program.lane.ask(StreamAwait { device: 0, stream }), Ok(true));
    begun.elapsed()
}

/// A program with a buffer of zeros, and a stream that is known to be idle; the first is to be held to the end.
fn begun() -> ((MutexGuard<'static, ()>, TempDir), Program, u64) {
    let held = (alone(), tempfile::tempdir().unwrap());
    let mut program = program(held.1.path());
    let bytes = 4 * WORDS as u64;
    let buffer = program.lane.ask(MemoryAllocate { device: 0, bytes }).unwrap();
    let set = MemorySet { address: buffer, pitch: 0, value: 0, element: 1, width: bytes, height: 1 };
    program.lane.post(SetMemory { device: 0, stream: FIRST, set });
    wait(&mut program, FIRST);
    (held, program, buffer)
}

fn numbers() -> Vec<u32> {
    (1..=WORDS as u32).collect()
}

#[test]
fn a_wait_for_transfers_is_over_at_once_and_other_streams_come_after_them() {
    let (_held, mut program, buffer) = begun();
    for round in 0..3 {
        let begun = Instant::now();
        upload(&mut program.lane, FIRST, buffer, &bytes_of(&numbers()));
        assert!(wait(&mut program, FIRST) < TAKES / 2, "round {round}");
        let last = buffer + 4 * (WORDS as u64 - 1);
        assert_eq!(words(&download(&mut program.lane, SECOND, last, 4)), [WORDS as u32]);
        assert!(begun.elapsed() > TAKES * 3 / 4, "round {round}: {:?}", begun.elapsed());
        // The second stream is idle, the first one is not known to be.
        wait(&mut program, FIRST);
    }
    program.end();
}

#[test]
fn a_wait_for_other_work_and_for_memory_that_the_program_sees_waits() {
    let (_held, mut program, buffer) = begun();
    upload(&mut program.lane, FIRST, buffer, &bytes_of(&numbers()));
    let set = MemorySet { address: buffer, pitch: 0, value: 7, element: 4, width: 1, height: 1 };
    program.lane.post(SetMemory { device: 0, stream: FIRST, set });
    assert!(wait(&mut program, FIRST) > TAKES / 2);

    let seen = pinned(&mut program.lane, &program.client, "pinned-9-0", PINNED_RANGE.start);
    wait(&mut program, FIRST);
    upload(&mut program.lane, FIRST, buffer, &bytes_of(&numbers()));
    upload(&mut program.lane, FIRST, PINNED_RANGE.start, &bytes_of(&[5]));
    assert!(wait(&mut program, FIRST) > TAKES / 2);
    assert_eq!(seen.load(std::sync::atomic::Ordering::Acquire), 5);
    program.end();
}

/// What is asked right after a wait that is over at once comes after the transfers all the same.
fn comes_after_transfers(ask: impl FnOnce(&mut Program, u64)) {
    let (_held, mut program, buffer) = begun();
    let begun = Instant::now();
    upload(&mut program.lane, FIRST, buffer, &bytes_of(&numbers()));
    assert!(wait(&mut program, FIRST) < TAKES / 2);
    ask(&mut program, buffer);
    assert!(begun.elapsed() > TAKES * 3 / 4, "{:?}", begun.elapsed());
    program.end();
}

#[test]
fn memory_is_given_back_after_transfers_to_it() {
    comes_after_transfers(|program, address| {
        program.lane.ask(MemoryFree { device: 0, address }).unwrap();
    });
}

#[test]
fn other_processes_have_memory_after_transfers_to_it() {
    comes_after_transfers(|program, address| {
        program.lane.ask(IpcMemoryExport { device: 0, address }).unwrap();
    });
}
