//! What all rings of one process share: the order of requests, the doorbell, and who is alive.

use std::time::Duration;

use crate::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};
use crate::futex;
use crate::line::Line;
use crate::signal::LOOK;
use crate::spin::{self, Spin};

/// One state each for client and worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Liveness {
    Starting = 0,
    Alive = 1,
    Dead = 2,
}

/// Lives at the start of the board file, zeroed when new.
#[repr(C)]
#[derive(Debug)]
pub struct Board {
    ticket: Line<AtomicU64>,
    doorbell: Line<AtomicU32>,
    sleeping: AtomicU32,
    worker: Line<AtomicU32>,
    client: AtomicU32,
    client_version: AtomicU32,
    errors: Line<[AtomicI32; 8]>,
    deep: Line<AtomicU64>,
    full: AtomicU64,
}

impl Board {
    pub fn new() -> Board {
        Board {
            ticket: Line(AtomicU64::new(0)),
            doorbell: Line(AtomicU32::new(0)),
            sleeping: AtomicU32::new(0),
            worker: Line(AtomicU32::new(Liveness::Starting as u32)),
            client: AtomicU32::new(Liveness::Starting as u32),
            client_version: AtomicU32::new(0),
            errors: Line(Default::default()),
            deep: Line(AtomicU64::new(0)),
            full: AtomicU64::new(0),
        }
    }

    /// The next place in the order of all requests. Take it last, right before publishing.
    pub fn ticket(&self) -> u64 {
        self.ticket.fetch_add(1, Ordering::AcqRel)
    }

    /// How many places were taken.
    pub fn tickets(&self) -> u64 {
        self.ticket.load(Ordering::Acquire)
    }

    /// Tells the worker, if it sleeps, that there is something to read. Call after publishing.
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) != 0 {
            self.doorbell.fetch_add(1, Ordering::Release);
            futex::wake(&self.doorbell);
        }
    }

    /// The worker's wait: returns when `ready` or after `limit`; spins first.
    pub fn wait(&self, spin: Spin, limit: Duration, mut ready: impl FnMut() -> bool) -> bool {
        if spin::spin(spin, &mut ready) {
            return true;
        }
        let seen = self.doorbell.load(Ordering::Acquire);
        self.sleeping.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let mut done = ready();
        if !done {
            futex::wait(&self.doorbell, seen, limit.min(LOOK));
            done = ready();
        }
        self.sleeping.store(0, Ordering::Relaxed);
        done
    }

    pub fn worker(&self) -> Liveness {
        liveness(&self.worker)
    }

    pub fn set_worker(&self, state: Liveness) {
        self.worker.store(state as u32, Ordering::Release);
    }

    pub fn client(&self) -> Liveness {
        liveness(&self.client)
    }

    pub fn set_client(&self, state: Liveness) {
        self.client.store(state as u32, Ordering::Release);
    }

    /// The version of the client's protocol; 0 while nobody has said it, as in a file that is new after a restore.
    pub fn client_version(&self) -> u32 {
        self.client_version.load(Ordering::Acquire)
    }

    pub fn set_client_version(&self, version: u32) {
        self.client_version.store(version, Ordering::Release);
    }

    /// These streams have much to do, and no others; those that are full as much as they take.
    pub fn set_deep(&self, streams: impl Iterator<Item = (u32, bool)>) {
        let all = streams.fold((0, 0), |(deep, full), (id, is_full)| {
            (deep | bit(id), full | if is_full { bit(id) } else { 0 })
        });
        self.full.store(all.1, Ordering::Relaxed);
        self.deep.store(all.0, Ordering::Release);
    }

    /// Whether a stream has much to do: it, or one whose number is like its own.
    pub fn is_deep(&self, stream: u32) -> bool {
        self.deep.load(Ordering::Relaxed) & bit(stream) != 0
    }

    /// As [`Board::is_deep`]: as much as it takes.
    pub fn is_full(&self, stream: u32) -> bool {
        self.full.load(Ordering::Acquire) & bit(stream) != 0
    }

    /// Notes an asynchronous error of a device (0 to 7); the first one stays until it is taken.
    pub fn set_error(&self, device: usize, code: i32) {
        let _ = self.errors[device & 7].compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The device's asynchronous error that is to be taken, 0 if none.
    pub fn error(&self, device: usize) -> i32 {
        self.errors[device & 7].load(Ordering::Acquire)
    }

    /// The device's asynchronous error, 0 if none. A sticky one stays.
    pub fn take_error(&self, device: usize, sticky: impl Fn(i32) -> bool) -> i32 {
        let word = &self.errors[device & 7];
        let code = word.load(Ordering::Acquire);
        if code != 0 && !sticky(code) {
            let _ = word.compare_exchange(code, 0, Ordering::AcqRel, Ordering::Acquire);
        }
        code
    }
}

impl Default for Board {
    fn default() -> Self {
        Self::new()
    }
}

fn bit(stream: u32) -> u64 {
    1 << (stream % u64::BITS)
}

fn liveness(word: &AtomicU32) -> Liveness {
    match word.load(Ordering::Acquire) {
        0 => Liveness::Starting,
        1 => Liveness::Alive,
        _ => Liveness::Dead,
    }
}
