//! Whatever a client left in its ring, the worker reads records that lie inside it or says that it
//! is corrupt, and every operation decodes or is refused.
//!
//! An input replaces the bytes of a full ring, after its positions were published.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rekindle_protocol::operation;
use rekindle_ring::{Consumer, Header, Producer};

const CAPACITY: usize = 4096;

/// As aligned as a ring's data in its mapping.
#[repr(align(16))]
struct Data([u8; CAPACITY]);

fuzz_target!(|input: &[u8]| {
    let header = Header::new();
    let mut data = Box::new(Data([0; CAPACITY]));
    let bytes = data.0.as_mut_ptr();
    // SAFETY: `data` has that many bytes, outlives both ends, and each end is the only one.
    let (mut producer, mut consumer) =
        unsafe { (Producer::new(&header, bytes, CAPACITY), Consumer::new(&header, bytes, CAPACITY)) };
    while producer.try_push(0, &[0; 200], &[], || 0) {}
    let length = input.len().min(CAPACITY);
    // SAFETY: no record is borrowed, and `length` bytes fit.
    unsafe { std::ptr::copy_nonoverlapping(input.as_ptr(), bytes, length) };
    while let Ok(Some(record)) = consumer.peek() {
        match operation::check(record.opcode, record.body) {
            Ok(name) => assert_eq!(operation::name(record.opcode), Some(name)),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        assert!(record.body.len() + record.trailer.len() <= CAPACITY);
        consumer.release(record);
    }
});
