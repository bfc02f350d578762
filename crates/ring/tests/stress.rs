//! Two threads hammer a ring; small enough for Miri and valgrind, larger without them.
#![cfg(not(loom))]

use std::sync::Mutex;
use std::thread;

use rekindle_ring::{Board, Consumer, Header, Merge, Producer, Spin, Wait};

#[repr(align(16))]
struct Buffer([u8; 4096]);

fn rounds() -> u64 {
    let slow = cfg!(miri) || std::env::var_os("REKINDLE_STRESS_SHORT").is_some();
    if slow { 60 } else { 100_000 }
}

#[test]
fn requests_of_threads_that_synchronise_keep_their_order() {
    let board = Board::new();
    let headers = [Header::new(), Header::new()];
    let mut buffers = [Buffer([0; 4096]), Buffer([0; 4096])];
    let data: Vec<usize> = buffers.iter_mut().map(|b| b.0.as_mut_ptr() as usize).collect();
    let counter = Mutex::new(0u64);
    thread::scope(|scope| {
        for side in 0..2 {
            let (board, header, counter, data) = (&board, &headers[side], &counter, data[side]);
            scope.spawn(move || {
                // SAFETY: the only producer of this ring; the buffer outlives the scope.
                let mut producer = unsafe { Producer::new(header, data as *mut u8, 4096) };
                for _ in 0..rounds() {
                    let mut count = counter.lock().unwrap();
                    let body = count.to_ne_bytes();
                    let wait = header.space().wait(
                        Spin(50),
                        || true,
                        || producer.try_push(7, &body, b"tail", || board.ticket()),
                    );
                    assert_eq!(wait, Wait::Ready);
                    *count += 1;
                    drop(count);
                    board.ring();
                }
            });
        }
        let mut merge = Merge::new();
        for side in 0..2 {
            // SAFETY: the only consumer of this ring.
            merge.add(unsafe { Consumer::new(&headers[side], data[side] as *const u8, 4096) });
        }
        for expected in 0..2 * rounds() {
            let (ring, record) = loop {
                if let Some(found) = merge.peek().unwrap() {
                    break found;
                }
                board.wait(Spin(50), std::time::Duration::from_millis(40), || false);
            };
            assert_eq!(record.body, expected.to_ne_bytes());
            assert_eq!(record.trailer, b"tail");
            merge.release(ring, record);
        }
    });
    assert!(headers.iter().all(Header::is_drained));
}

#[test]
fn a_waiting_producer_notices_a_dead_consumer() {
    let header = Header::new();
    let started = std::time::Instant::now();
    assert_eq!(header.space().wait(Spin(10), || false, || false), Wait::Dead);
    assert!(started.elapsed() < std::time::Duration::from_secs(120));
}
