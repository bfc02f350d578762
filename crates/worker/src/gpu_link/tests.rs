//! A GPU with a slow link, and another worker's place in its page.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rekindle_device::{Access, DEVICE_RANGE, Device, Stream};
use rekindle_emulated::Config;

use super::{Claimant, GpuLink, LinkPage, now};
use crate::shared::{Direction, LinkSettings};

const BYTES: u64 = 8 << 20;
const SETTINGS: LinkSettings = LinkSettings { piece: 1 << 20, window: 4 << 20 };
const WAY: Direction = Direction::ToHost;
/// Addresses of this process that the tests of shared contexts do not use.
static NEXT: AtomicU64 = AtomicU64::new(DEVICE_RANGE.start + (64 << 30));

/// A context with memory, and its place at the link.
struct Worker {
    device: Arc<dyn Device>,
    link: Arc<GpuLink>,
    /// Where what is copied comes from, and goes to.
    from: u64,
    to: u64,
    stream: Stream,
}

impl Worker {
    fn new(directory: &Path) -> Worker {
        // 8 MB take 125 ms.
        let config = Config::parse("memory=256M,bandwidth=64M,threads=1").unwrap();
        let device = rekindle_emulated::platform(&config).unwrap().open(0).unwrap();
        device.bind().unwrap();
        let from = NEXT.fetch_add(BYTES, Ordering::Relaxed);
        device.reserve(from, BYTES).unwrap();
        let memory = device.memory_create(BYTES).unwrap();
        device.map(from, BYTES, memory).unwrap();
        device.protect(from, BYTES, Access::ReadWrite).unwrap();
        // SAFETY: the device's memory is mapped at its addresses, and nothing else is done with it.
        let filled = unsafe { std::slice::from_raw_parts_mut(from as *mut u8, BYTES as usize) };
        filled.iter_mut().zip(0..).for_each(|(byte, n)| *byte = pattern(n));
        let to = Box::leak(vec![0; BYTES as usize].into_boxed_slice()).as_mut_ptr() as u64;
        device.host_register(to, BYTES).unwrap();
        let stream = device.stream_create(1, 0).unwrap();
        let link = GpuLink::open_in(directory, device.clone(), SETTINGS).unwrap();
        Worker { device, link, from, to, stream }
    }

    /// Its program's place at the page, as another worker has it.
    fn other(&self, directory: &Path) -> LinkPage {
        LinkPage::open(directory, &self.device.info().uuid).unwrap().unwrap()
    }

    fn program_copies(&self) {
        let copy = || self.device.copy(self.to, self.from, BYTES, self.stream);
        self.link.program_copies(WAY, BYTES, self.stream, copy).unwrap();
    }

    fn copies_for_program(&self) {
        let copy = (self.to, self.from, BYTES);
        GpuLink::copy_by(Some(&self.link), &*self.device, copy, self.stream).unwrap();
    }

    fn check(&self) {
        self.device.stream_synchronize(self.stream).unwrap();
        // SAFETY: it is memory of this process for ever, and nothing is copied there now.
        let found = unsafe { std::slice::from_raw_parts_mut(self.to as *mut u8, BYTES as usize) };
        assert!(found.iter().zip(0..).all(|(byte, n)| *byte == pattern(n)));
        found.fill(0);
    }
}

fn pattern(n: u64) -> u8 {
    (n * 31 + (n >> 8) * 7) as u8
}

fn wait_until(reached: impl Fn() -> bool) {
    let began = Instant::now();
    while !reached() {
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_a_program_copies_is_noted_from_its_begin_to_its_end_while_others_copy_for_programs() {
    let directory = tempfile::tempdir().unwrap();
    let worker = Worker::new(directory.path());
    let other = worker.other(directory.path());
    worker.program_copies();
    assert!(other.last_copy_elsewhere(WAY) > 0);
    assert!(worker.link.shared.state().copies.is_empty(), "nobody wants to know of it");
    worker.check();
    // Behind another copy it does not use the link yet, and then it does.
    other.expect_bulk(WAY, now());
    worker.program_copies();
    wait_until(|| other.copying_elsewhere(WAY, now()));
    worker.check();
    wait_until(|| !other.copying_elsewhere(WAY, now()) && worker.link.shared.state().copies.is_empty());
    assert!(!other.copying_elsewhere(Direction::ToGpu, now()));
}

#[test]
fn to_the_gpu_a_copy_for_a_program_goes_as_it_comes() {
    let directory = tempfile::tempdir().unwrap();
    let worker = Worker::new(directory.path());
    let other = worker.other(directory.path());
    other.set_copying(Direction::ToGpu, true, now() + 600_000_000_000);
    let copy = (worker.from, worker.to, BYTES);
    GpuLink::copy_by(Some(&worker.link), &*worker.device, copy, worker.stream).unwrap();
    assert!(worker.link.shared.state().pieces.iter().all(|pieces| pieces.is_empty()), "it is not cut");
    worker.device.stream_synchronize(worker.stream).unwrap();
    other.expect_bulk(Direction::ToGpu, now());
    let copies = || worker.device.copy(worker.from, worker.to, BYTES, worker.stream);
    worker.link.program_copies(Direction::ToGpu, BYTES, worker.stream, copies).unwrap();
    assert!(worker.link.shared.state().copies.is_empty(), "nobody wants to know of it");
    worker.device.stream_synchronize(worker.stream).unwrap();
}

#[test]
fn what_a_program_copies_claims_the_link_beside_shared_contexts_that_wait_and_keeps_its_place() {
    let (directory, way) = (tempfile::tempdir().unwrap(), Direction::ToGpu);
    let worker = Worker::new(directory.path());
    let [other, third] = [worker.other(directory.path()), worker.other(directory.path())];
    let copies = || worker.device.copy(worker.from, worker.to, BYTES, worker.stream);
    let give = || worker.link.program_copies(way, BYTES, worker.stream, copies).unwrap();
    // Another program's copies are none of its business.
    third.claim(way, Claimant::Program, 1, now());
    give();
    assert!(worker.link.shared.state().copies.is_empty());
    third.unclaim(way);
    worker.device.stream_synchronize(worker.stream).unwrap();
    let first = 100 << 20;
    other.claim(way, Claimant::Queue, first, now() + 600_000_000_000);
    give();
    give();
    // The first begins with those that wait. The second comes right behind it, and so where it has come to.
    for come_to in [first + BYTES, first + 2 * BYTES] {
        wait_until(|| other.least_claim(way, now()) == Some(come_to));
    }
    worker.device.stream_synchronize(worker.stream).unwrap();
    wait_until(|| other.least_claim(way, now()).is_none());
    // One that comes after a while has saved up nothing.
    other.claim(way, Claimant::Queue, 2 * first, now() + 600_000_000_000);
    std::thread::sleep(Duration::from_millis(5));
    give();
    wait_until(|| other.least_claim(way, now()) == Some(2 * first + BYTES));
    worker.device.stream_synchronize(worker.stream).unwrap();
}

#[test]
fn a_copy_for_a_program_has_turns_beside_programs_and_all_of_the_link_then() {
    let directory = tempfile::tempdir().unwrap();
    let worker = Worker::new(directory.path());
    let other = worker.other(directory.path());
    worker.copies_for_program();
    assert!(worker.link.shared.state().bytes == [0, 0], "no program copies: it is not cut");
    worker.check();
    let began = Instant::now();
    let most = std::thread::scope(|scope| {
        // It holds for all of the test.
        other.set_copying(WAY, true, now() + 600_000_000_000);
        let (copying, mut most) = (scope.spawn(|| worker.copies_for_program()), 0);
        while !copying.is_finished() {
            most = most.max(other.bulk_elsewhere(WAY, now()));
            std::thread::sleep(Duration::from_micros(200));
        }
        most
    });
    // A piece takes 16 ms: seven times the time of fifteen at least lie between eight of them, but for the first, of which
    // it is not known how long it takes. On a busy machine a piece may take less, where the link catches up on what it was late
    // with; all eight take 125 ms in a row.
    assert!(began.elapsed() > Duration::from_millis(300), "{:?}", began.elapsed());
    assert!(most <= SETTINGS.piece, "{most}");
    worker.check();
    // One that has copied lately may do so again.
    other.set_copying(WAY, false, now());
    other.note_copy(WAY, now());
    worker.copies_for_program();
    assert!(worker.link.shared.state().bytes[WAY as usize] <= SETTINGS.window / 2);
    worker.check();
    wait_until(|| other.bulk_elsewhere(WAY, now()) == 0);
}

#[test]
fn a_copy_for_a_program_goes_on_when_a_worker_says_no_more_that_its_program_copies() {
    let directory = tempfile::tempdir().unwrap();
    let worker = Worker::new(directory.path());
    let other = worker.other(directory.path());
    other.set_copying(WAY, true, now());
    // Nobody says it again, as if its worker had been killed: soon it holds no more.
    let began = Instant::now();
    worker.copies_for_program();
    worker.check();
    assert!(began.elapsed() < Duration::from_secs(30));
}
