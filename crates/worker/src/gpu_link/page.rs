//! What the workers of a GPU tell each other of its link, in memory that they share.
//!
//! ```text
//!   line 0, 1      each direction: until when copies for programs are expected, the last turn of such, the bell; claims
//!   from line 2    a slot for each worker, of two lines: what it has in each direction
//! ```
//!
//! A worker changes its own slot alone. All that holds for a while says until when, by the machine's monotonic clock: what one
//! that was killed or stopped has said is soon over, and nobody waits for it.

mod claims;

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use memmap2::MmapRaw;

use crate::shared::Direction;
use crate::worker_page;

pub(crate) use claims::Claimant;

/// A worker more than this is not scheduled.
const SLOTS: usize = 63;
/// What the file's name begins with. Another layout has another name.
const NAME: &str = "link-2-";
/// So long what a worker says of its copies holds, unless it says it again.
const LEASE: u64 = 100_000_000;
/// So long copies for programs are expected after the last one.
const EXPECTED: u64 = 200_000_000;

/// Words of one direction, of all workers.
#[repr(C, align(64))]
struct Way {
    /// Until when copies for programs are expected: programs' copies are noted until then.
    expected: AtomicU64,
    /// When something was last copied for a program.
    turn: AtomicU64,
    /// Changed when there may be room for who waits.
    bell: AtomicU32,
    sleepers: AtomicU32,
    /// Bits of the slots whose copies claim the link, and of those of shared contexts.
    claims: AtomicU64,
    queues: AtomicU64,
    /// The furthest virtual time at which a copy began.
    clock: AtomicU64,
}

/// What a worker has in one direction.
#[repr(C, align(64))]
struct Use {
    /// Until when its programs copy.
    copying: AtomicU64,
    /// When they last did.
    copied: AtomicU64,
    /// Bytes of copies for programs that are under way, and until when that holds.
    bulk: AtomicU64,
    bulk_until: AtomicU64,
    /// Until when copies of its programs claim the link, and the virtual time that they have come to.
    claimed: AtomicU64,
    virtual_time: AtomicU64,
}

#[repr(C)]
struct Page {
    ways: [Way; 2],
    slots: [[Use; 2]; SLOTS],
}

/// A worker's place in the page of a GPU.
pub(crate) struct LinkPage {
    mapping: MmapRaw,
    /// Holds the lock of the slot.
    _file: File,
    slot: usize,
}

/// Nanoseconds of the machine's monotonic clock.
pub(crate) fn now() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to one valid structure.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl LinkPage {
    /// Takes a place in the page of the GPU with this UUID; none if all are taken.
    pub(crate) fn open(directory: &Path, uuid: &[u8; 16]) -> io::Result<Option<LinkPage>> {
        let (file, mapping) = worker_page::open(directory, NAME, uuid, size_of::<Page>())?;
        let Some(slot) = worker_page::take_slot(&file, SLOTS) else { return Ok(None) };
        let page = LinkPage { mapping, _file: file, slot };
        page.clear();
        Ok(Some(page))
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping is page-aligned, as long as a page, and lives as long as `self`. All in it is atomic, and any
        // bytes are valid.
        unsafe { &*self.mapping.as_mut_ptr().cast::<Page>() }
    }

    fn way(&self, way: Direction) -> &Way {
        &self.page().ways[way as usize]
    }

    fn own(&self, way: Direction) -> &Use {
        &self.page().slots[self.slot][way as usize]
    }

    fn others(&self, way: Direction) -> impl Iterator<Item = &Use> {
        let slots = self.page().slots.iter().enumerate();
        slots.filter(|(slot, _)| *slot != self.slot).map(move |(_, uses)| &uses[way as usize])
    }

    /// Forgets what its slot says, of whoever had it.
    fn clear(&self) {
        for own in &self.page().slots[self.slot] {
            for word in [&own.copying, &own.copied, &own.bulk, &own.bulk_until] {
                word.store(0, Ordering::Release);
            }
        }
        Direction::ALL.iter().for_each(|way| self.leave_queues(*way));
    }

    /// Copies for a program are made, or wait.
    pub(crate) fn expect_bulk(&self, way: Direction, now: u64) {
        self.way(way).expected.store(now + EXPECTED, Ordering::Release);
    }

    /// Whether any worker has such, so that what programs copy is to be noted.
    pub(crate) fn expects_bulk(&self, way: Direction, now: u64) -> bool {
        self.way(way).expected.load(Ordering::Acquire) > now
    }

    /// Programs of this worker's copy now, or begin to.
    pub(crate) fn note_copy(&self, way: Direction, now: u64) {
        self.own(way).copied.store(now, Ordering::Release);
    }

    /// Whether programs of this worker's copy now. It has to be said again before it lapses.
    pub(crate) fn set_copying(&self, way: Direction, copying: bool, now: u64) {
        self.own(way).copying.store(if copying { now + LEASE } else { 0 }, Ordering::Release);
    }

    /// Whether programs of other workers copy.
    pub(crate) fn copying_elsewhere(&self, way: Direction, now: u64) -> bool {
        self.others(way).any(|uses| uses.copying.load(Ordering::Acquire) > now)
    }

    /// Whether programs of any worker copy.
    pub(crate) fn copying(&self, way: Direction, now: u64) -> bool {
        self.own(way).copying.load(Ordering::Acquire) > now || self.copying_elsewhere(way, now)
    }

    /// When programs of other workers last copied.
    pub(crate) fn last_copy_elsewhere(&self, way: Direction) -> u64 {
        self.others(way).map(|uses| uses.copied.load(Ordering::Acquire)).fold(0, u64::max)
    }

    /// When those of this worker did.
    pub(crate) fn last_copy(&self, way: Direction) -> u64 {
        self.own(way).copied.load(Ordering::Acquire)
    }

    /// What of this worker's copies for programs is under way.
    pub(crate) fn set_bulk(&self, way: Direction, bytes: u64, now: u64) {
        let own = self.own(way);
        own.bulk.store(bytes, Ordering::Release);
        own.bulk_until.store(now + LEASE, Ordering::Release);
    }

    /// What of other workers' is.
    pub(crate) fn bulk_elsewhere(&self, way: Direction, now: u64) -> u64 {
        let live = self.others(way).filter(|uses| uses.bulk_until.load(Ordering::Acquire) > now);
        live.map(|uses| uses.bulk.load(Ordering::Acquire)).fold(0, u64::saturating_add)
    }

    /// Takes the one turn that copies for programs have each `interval` (nanoseconds) while programs copy.
    pub(crate) fn take_turn(&self, way: Direction, now: u64, interval: u64) -> bool {
        let word = &self.way(way).turn;
        let last = word.load(Ordering::Acquire);
        is_due(last, now, interval)
            && word.compare_exchange(last, now, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Whether that turn may be taken.
    pub(crate) fn is_turn_due(&self, way: Direction, now: u64, interval: u64) -> bool {
        is_due(self.way(way).turn.load(Ordering::Acquire), now, interval)
    }

    /// Something was copied for a program without such a turn.
    pub(crate) fn note_turn(&self, way: Direction, now: u64) {
        self.way(way).turn.store(now, Ordering::Release);
    }

    /// What [`LinkPage::sleep`] is to be told.
    pub(crate) fn bell(&self, way: Direction) -> u32 {
        self.way(way).bell.load(Ordering::Acquire)
    }

    /// Wakes who waits for room.
    pub(crate) fn ring(&self, way: Direction) {
        let way = self.way(way);
        way.bell.fetch_add(1, Ordering::SeqCst);
        if way.sleepers.load(Ordering::SeqCst) != 0 {
            worker_page::wake(&way.bell);
        }
    }

    /// Sleeps until the bell is rung after it was `seen`, and no longer than `limit`.
    pub(crate) fn sleep(&self, way: Direction, seen: u32, limit: Duration) {
        let way = self.way(way);
        // Of one that is killed here more is counted than there are, which wakes nobody.
        way.sleepers.fetch_add(1, Ordering::SeqCst);
        worker_page::wait(&way.bell, seen, limit);
        way.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for LinkPage {
    fn drop(&mut self) {
        self.clear();
        Direction::ALL.iter().for_each(|way| self.ring(*way));
    }
}

fn is_due(last: u64, now: u64, interval: u64) -> bool {
    // One of the future is of another machine, or from before the clock began anew.
    now.checked_sub(last).is_none_or(|since| since >= interval)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use super::*;

    const WAY: Direction = Direction::ToGpu;
    const UUID: [u8; 16] = [7; 16];
    /// By this the second process of a test is told where the page is.
    const PLACE: &str = "REKINDLE_TEST_LINK_PAGE";

    fn open(directory: &Path) -> LinkPage {
        LinkPage::open(directory, &UUID).unwrap().unwrap()
    }

    #[test]
    fn each_says_what_it_has_and_the_others_see_it_until_it_lapses() {
        let directory = tempfile::tempdir().unwrap();
        let [a, b] = [open(directory.path()), open(directory.path())];
        assert_ne!(a.slot, b.slot);
        let now = now();
        a.set_copying(WAY, true, now);
        assert!(a.copying(WAY, now) && !a.copying_elsewhere(WAY, now));
        assert!(b.copying(WAY, now) && b.copying_elsewhere(WAY, now));
        assert!(!b.copying(Direction::ToHost, now));
        assert!(!b.copying(WAY, now + LEASE));
        a.set_bulk(WAY, 5, now);
        assert_eq!((a.bulk_elsewhere(WAY, now), b.bulk_elsewhere(WAY, now)), (0, 5));
        assert_eq!(b.bulk_elsewhere(WAY, now + LEASE), 0);
        a.expect_bulk(WAY, now);
        assert!(b.expects_bulk(WAY, now) && !b.expects_bulk(WAY, now + EXPECTED));
        a.note_copy(WAY, now);
        assert_eq!((a.last_copy(WAY), b.last_copy(WAY), b.last_copy_elsewhere(WAY)), (now, 0, now));
        drop(a);
        assert!(!b.copying(WAY, now));
        assert_eq!((b.bulk_elsewhere(WAY, now), b.last_copy_elsewhere(WAY)), (0, 0));
    }

    #[test]
    fn gpus_have_pages_of_their_own_and_slots_are_taken_until_there_are_none() {
        let directory = tempfile::tempdir().unwrap();
        let mut all: Vec<_> = (0..SLOTS).map(|_| open(directory.path())).collect();
        assert!(LinkPage::open(directory.path(), &UUID).unwrap().is_none());
        assert_eq!(LinkPage::open(directory.path(), &[8; 16]).unwrap().unwrap().slot, 0);
        all.remove(9);
        assert_eq!(open(directory.path()).slot, 9);
    }

    #[test]
    fn one_turn_is_taken_each_interval_by_one() {
        let directory = tempfile::tempdir().unwrap();
        let pages = [open(directory.path()), open(directory.path())];
        let taken = |now| {
            std::thread::scope(|scope| {
                let turns = pages.each_ref().map(|page| scope.spawn(move || page.take_turn(WAY, now, 10)));
                turns.into_iter().map(|turn| turn.join().unwrap()).filter(|taken| *taken).count()
            })
        };
        assert_eq!([taken(100), taken(105), taken(110)], [1, 0, 1]);
        // The clock of before was another machine's.
        assert_eq!(taken(3), 1);
    }

    #[test]
    fn a_bell_that_wraps_around_wakes_who_sleeps() {
        let directory = tempfile::tempdir().unwrap();
        let [a, b] = [open(directory.path()), open(directory.path())];
        a.way(WAY).bell.store(u32::MAX, Ordering::SeqCst);
        let (seen, began) = (b.bell(WAY), Instant::now());
        std::thread::scope(|scope| {
            scope.spawn(|| b.sleep(WAY, seen, Duration::from_secs(60)));
            while a.way(WAY).sleepers.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            a.ring(WAY);
        });
        assert!(a.bell(WAY) == 0 && began.elapsed() < Duration::from_secs(30));
        // Rung before: it does not sleep.
        b.sleep(WAY, seen, Duration::from_secs(60));
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    /// Not a test of its own: the process that the next one kills.
    #[test]
    fn holder() {
        let Some(place) = std::env::var_os(PLACE) else { return };
        let page = open(Path::new(&place));
        loop {
            page.set_copying(WAY, true, now());
            page.set_bulk(WAY, 1 << 20, now());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_process_that_is_killed_is_waited_for_no_longer_and_its_slot_is_free() {
        let directory = tempfile::tempdir().unwrap();
        let page = open(directory.path());
        let mut holder = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "gpu_link::page::tests::holder"])
            .env(PLACE, directory.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let began = Instant::now();
        let wait_until = |reached: &dyn Fn() -> bool| {
            while !reached() {
                assert!(began.elapsed() < Duration::from_secs(60));
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        wait_until(&|| page.copying(WAY, now()) && page.bulk_elsewhere(WAY, now()) > 0);
        holder.kill().unwrap();
        holder.wait().unwrap();
        wait_until(&|| !page.copying(WAY, now()) && page.bulk_elsewhere(WAY, now()) == 0);
        let next = open(directory.path());
        assert_eq!(next.slot, 1 - page.slot);
        assert_eq!(next.own(WAY).bulk.load(Ordering::SeqCst), 0);
    }
}
