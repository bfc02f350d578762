//! The queue and the sleep protocol, checked over every interleaving that loom can make.
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p rekindle-ring --test model --release`.
#![cfg(loom)]

use std::time::Duration;

use loom::sync::Arc;
use loom::thread;
use rekindle_ring::{Board, Consumer, Header, Producer, Spin};

struct Shared {
    header: Header,
    board: Board,
    data: std::cell::UnsafeCell<Vec<u128>>,
}

// SAFETY: the queue under test decides who touches `data`.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

fn shared(bytes: usize) -> Arc<Shared> {
    Arc::new(Shared {
        header: Header::new(),
        board: Board::new(),
        data: std::cell::UnsafeCell::new(vec![0; bytes / 16]),
    })
}

fn base(shared: &Shared) -> *mut u8 {
    // SAFETY: only the address is taken.
    unsafe { (*shared.data.get()).as_mut_ptr().cast() }
}

#[test]
fn records_arrive_whole_and_in_order_when_the_ring_is_full() {
    loom::model(|| {
        let both = shared(64);
        let theirs = both.clone();
        let producer = thread::spawn(move || {
            // SAFETY: the only producer.
            let mut producer = unsafe { Producer::new(&theirs.header, base(&theirs), 64) };
            for n in 0u64..3 {
                while !producer.try_push(n as u32, &n.to_ne_bytes(), &[], || theirs.board.ticket()) {
                    thread::yield_now();
                }
            }
        });
        // SAFETY: the only consumer.
        let mut consumer = unsafe { Consumer::new(&both.header, base(&both), 64) };
        for n in 0u64..3 {
            let record = loop {
                match consumer.peek().unwrap() {
                    Some(record) => break record,
                    None => thread::yield_now(),
                }
            };
            assert_eq!((record.opcode, record.ticket, record.body), (n as u32, n, &n.to_ne_bytes()[..]));
            consumer.release(record);
        }
        producer.join().unwrap();
    });
}

/// The classic lost wake-up: the worker says that it sleeps and looks again, the client publishes and looks whether it
/// sleeps. In no interleaving may both miss each other: then the worker's `wait` would not have seen the request and
/// nobody would have rung.
#[test]
fn a_request_and_a_falling_asleep_worker_never_miss_each_other() {
    loom::model(|| {
        let both = shared(64);
        let theirs = both.clone();
        let producer = thread::spawn(move || {
            // SAFETY: the only producer.
            let mut producer = unsafe { Producer::new(&theirs.header, base(&theirs), 64) };
            assert!(producer.try_push(1, &[], &[], || theirs.board.ticket()));
            theirs.board.ring();
        });
        // SAFETY: the only consumer.
        let mut consumer = unsafe { Consumer::new(&both.header, base(&both), 64) };
        while !both.board.wait(Spin(0), Duration::ZERO, || consumer.peek().unwrap().is_some()) {
            thread::yield_now();
        }
        producer.join().unwrap();
    });
}
