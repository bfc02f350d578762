//! The request queue of a ring: one producer, one consumer, records of bytes in shared memory.
//!
//! Positions count bytes since the ring was made and never wrap in practice (64 bits). `tail` is written by the
//! producer, `head` by the consumer; each reads the other's with acquire and keeps its last reading, so that a busy
//! pair touches the other's cache line once in many records. A record never wraps: where it would, a filler record
//! takes up the rest of the buffer.
//!
//! The consumer trusts nothing that it reads: lengths are checked against the buffer before use.

use crate::atomic::{AtomicU64, Ordering};
use crate::line::Line;
use crate::signal::Signal;

/// Bytes before each record's payload: length, opcode, body length, ticket.
const PREFIX: usize = 24;
const ALIGN: usize = 16;
const FILLER: u32 = u32::MAX;

/// The longest payload (body and trailer together) that a record may have, in bytes.
pub const MAX_PAYLOAD: usize = 128 << 10;
/// Bytes of records by which a producer runs ahead of its consumer. Whoever wants the program to stand still waits for all
/// that it has asked for: a hundred launches keep a worker busy, and more only wait there in place of in the program.
const AHEAD: u64 = 16 << 10;

/// The shared positions, at the start of a ring file.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    tail: Line<AtomicU64>,
    head: Line<AtomicU64>,
    /// Raised by the consumer when it has freed space that the producer waits for.
    space: Line<Signal>,
    /// Raised by the worker when the reply area holds an answer.
    pub reply: Line<Signal>,
    /// Position up to which staged transfers are complete.
    pub(crate) staged: Line<AtomicU64>,
    pub(crate) staged_signal: Signal,
}

impl Header {
    pub fn new() -> Header {
        Header {
            tail: Line(AtomicU64::new(0)),
            head: Line(AtomicU64::new(0)),
            space: Line(Signal::new()),
            reply: Line(Signal::new()),
            staged: Line(AtomicU64::new(0)),
            staged_signal: Signal::new(),
        }
    }

    /// Signal that wakes a producer blocked on a full ring.
    pub fn space(&self) -> &Signal {
        &self.space
    }

    /// True when the consumer has read all that was published.
    pub fn is_drained(&self) -> bool {
        self.head.load(Ordering::Acquire) == self.tail.load(Ordering::Acquire)
    }
}

impl Default for Header {
    fn default() -> Self {
        Self::new()
    }
}

/// The producing end. `'m` is the life of the mapping.
pub struct Producer<'m> {
    header: &'m Header,
    data: *mut u8,
    capacity: u64,
    tail: u64,
    head: u64,
}

// SAFETY: a producer is the only writer of the bytes between tail and head + capacity, wherever it runs.
unsafe impl Send for Producer<'_> {}

/// The consuming end.
pub struct Consumer<'m> {
    header: &'m Header,
    data: *const u8,
    capacity: u64,
    head: u64,
    tail: u64,
}

// SAFETY: a consumer only reads bytes that were published and not yet released, wherever it runs.
unsafe impl Send for Consumer<'_> {}

/// A published request. Bytes stay valid until the consumer releases the record.
#[derive(Clone, Copy, Debug)]
pub struct Record<'r> {
    pub opcode: u32,
    pub ticket: u64,
    pub body: &'r [u8],
    pub trailer: &'r [u8],
    bytes: u64,
}

impl<'m> Producer<'m> {
    /// # Safety
    /// `data` points to `capacity` bytes (a power of two, at least four times [`MAX_PAYLOAD`] or a test's own small
    /// records) that live for `'m`, and no other producer of this ring exists.
    pub unsafe fn new(header: &'m Header, data: *mut u8, capacity: usize) -> Producer<'m> {
        let tail = header.tail.load(Ordering::Acquire);
        let head = header.head.load(Ordering::Acquire);
        Producer { header, data, capacity: capacity as u64, tail, head }
    }

    /// Appends a record if there is room, and the consumer is not too far behind. `ticket` is asked for right before the
    /// record is published.
    pub fn try_push(
        &mut self,
        opcode: u32,
        body: &[u8],
        trailer: &[u8],
        ticket: impl FnOnce() -> u64,
    ) -> bool {
        let payload = body.len() + trailer.len();
        debug_assert!(payload <= MAX_PAYLOAD);
        let bytes = round(PREFIX + payload) as u64;
        let at = self.tail % self.capacity;
        let rest = self.capacity - at;
        let filler = if rest < bytes { rest } else { 0 };
        if !self.room(filler + bytes) {
            return false;
        }
        if filler != 0 {
            self.write(at, &FILLER.to_ne_bytes());
        }
        let at = (self.tail + filler) % self.capacity;
        let mut prefix = [0u8; PREFIX];
        prefix[0..4].copy_from_slice(&(payload as u32).to_ne_bytes());
        prefix[4..8].copy_from_slice(&opcode.to_ne_bytes());
        prefix[8..12].copy_from_slice(&(body.len() as u32).to_ne_bytes());
        self.write(at + PREFIX as u64, body);
        self.write(at + (PREFIX + body.len()) as u64, trailer);
        prefix[16..24].copy_from_slice(&ticket().to_ne_bytes());
        self.write(at, &prefix);
        self.tail += filler + bytes;
        self.header.tail.store(self.tail, Ordering::Release);
        true
    }

    /// Bytes of records that the consumer has not taken.
    pub fn unread(&mut self) -> u64 {
        self.head = self.header.head.load(Ordering::Acquire);
        self.tail - self.head
    }

    fn room(&mut self, bytes: u64) -> bool {
        let has_room = |unread: u64| unread <= AHEAD && self.capacity - unread >= bytes;
        if has_room(self.tail - self.head) {
            return true;
        }
        self.head = self.header.head.load(Ordering::Acquire);
        has_room(self.tail - self.head)
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        // SAFETY: `room` said that these bytes are free, and only this producer writes free bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.data.add(at as usize), bytes.len()) };
    }
}

impl<'m> Consumer<'m> {
    /// # Safety
    /// `data` points to `capacity` bytes (a power of two) that live for `'m`, and no other consumer exists.
    pub unsafe fn new(header: &'m Header, data: *const u8, capacity: usize) -> Consumer<'m> {
        let head = header.head.load(Ordering::Acquire);
        Consumer { header, data, capacity: capacity as u64, head, tail: head }
    }

    /// The oldest record, if there is one. `Err` when the producer wrote nonsense.
    pub fn peek(&mut self) -> Result<Option<Record<'m>>, Corrupt> {
        loop {
            if self.tail == self.head {
                self.tail = self.header.tail.load(Ordering::Acquire);
            }
            let ready = self.tail.wrapping_sub(self.head);
            if ready == 0 {
                return Ok(None);
            }
            let at = self.head % self.capacity;
            let rest = (self.capacity - at).min(ready);
            if ready > self.capacity || rest < 4 {
                return Err(Corrupt);
            }
            let payload = self.word(at);
            if payload == FILLER {
                self.release_bytes(self.capacity - at);
                continue;
            }
            let bytes = round(PREFIX + payload as usize) as u64;
            if bytes > rest {
                return Err(Corrupt);
            }
            let body = self.word(at + 8) as usize;
            if body > payload as usize {
                return Err(Corrupt);
            }
            let ticket = u64::from(self.word(at + 16)) | u64::from(self.word(at + 20)) << 32;
            // SAFETY: the record lies inside the buffer (checked above) and the producer leaves it alone until release.
            let payload =
                unsafe { std::slice::from_raw_parts(self.data.add(at as usize + PREFIX), payload as usize) };
            let (body, trailer) = payload.split_at(body);
            return Ok(Some(Record { opcode: self.word(at + 4), ticket, body, trailer, bytes }));
        }
    }

    /// Gives the record's bytes back to the producer.
    pub fn release(&mut self, record: Record<'_>) {
        self.release_bytes(record.bytes);
    }

    fn release_bytes(&mut self, bytes: u64) {
        let before = self.head;
        self.head += bytes;
        self.header.head.store(self.head, Ordering::Release);
        // A producer that waits does so for a quarter of the ring at most, or since it is too far ahead: telling it once a
        // quarter, and when half of that is left, is enough.
        let quarter = self.capacity / 4;
        let tail = self.header.tail.load(Ordering::Relaxed);
        let (was, is) = (tail.wrapping_sub(before), tail.wrapping_sub(self.head));
        let has_caught_up = was > AHEAD / 2 && is <= AHEAD / 2;
        if before / quarter != self.head / quarter || has_caught_up || is == 0 {
            self.header.space.raise();
        }
    }

    fn word(&self, at: u64) -> u32 {
        // SAFETY: callers pass offsets inside the buffer, which is 16-byte aligned, at multiples of four.
        unsafe { self.data.add(at as usize).cast::<u32>().read() }
    }
}

/// The producer's side of the ring holds lengths that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request ring holds a record with impossible lengths; the program has overwritten shared memory")]
pub struct Corrupt;

const fn round(bytes: usize) -> usize {
    (bytes + ALIGN - 1) & !(ALIGN - 1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[repr(align(16))]
    struct Buffer([u8; 256]);

    #[test]
    fn records_come_out_as_they_went_in_across_the_end_of_the_buffer() {
        let header = Header::new();
        let mut buffer = Buffer([0; 256]);
        let data = buffer.0.as_mut_ptr();
        // SAFETY: one producer and one consumer over a live buffer of 256 bytes.
        let (mut producer, mut consumer) =
            unsafe { (Producer::new(&header, data, 256), Consumer::new(&header, data, 256)) };
        for n in 0u64..1000 {
            let body = vec![n as u8; (n % 60) as usize];
            let trailer = vec![!n as u8; (n % 7) as usize];
            assert!(producer.try_push(n as u32, &body, &trailer, || n));
            let record = consumer.peek().unwrap().unwrap();
            assert_eq!(
                (record.opcode, record.ticket, record.body, record.trailer),
                (n as u32, n, &body[..], &trailer[..])
            );
            consumer.release(record);
        }
        assert!(header.is_drained());
    }

    #[test]
    fn a_full_ring_refuses_and_recovers() {
        let header = Header::new();
        let mut buffer = Buffer([0; 256]);
        let data = buffer.0.as_mut_ptr();
        // SAFETY: as above.
        let (mut producer, mut consumer) =
            unsafe { (Producer::new(&header, data, 256), Consumer::new(&header, data, 256)) };
        let mut pushed = 0;
        while producer.try_push(pushed, &[1; 30], &[], || 0) {
            pushed += 1;
        }
        assert_eq!(pushed, 4);
        let record = consumer.peek().unwrap().unwrap();
        consumer.release(record);
        assert!(producer.try_push(9, &[1; 30], &[], || 0));
    }

    #[test]
    fn nonsense_from_the_producer_is_an_error() {
        let header = Header::new();
        let mut buffer = Buffer([0xee; 256]);
        let data = buffer.0.as_mut_ptr();
        header.tail.store(64, Ordering::Release);
        // SAFETY: as above.
        let mut consumer = unsafe { Consumer::new(&header, data, 256) };
        assert_eq!(consumer.peek().unwrap_err(), Corrupt);
    }
}
