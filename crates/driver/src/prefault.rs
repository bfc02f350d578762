//! Memory for what the driver puts into a process, brought in ahead of it by many threads.
//!
//! A checkpoint has the driver map an area as large as all that the process has on its GPUs and fill it in one thread,
//! from its beginning. Half of that thread's time would go into the kernel's clearing of pages.
//!
//! `process_vm_writev` from a source that cannot be read does what is needed and no more: the kernel makes the pages
//! ready to be written to, finds nothing to write, and leaves what is in them. So it does not matter whether the driver
//! was there first.
//!
//! Another thread of the program that maps memory just then gets it brought in as well, so there is a limit: what the
//! GPUs hold. The largest area, which is the driver's, comes before what others map.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::areas::AreasBefore;

/// What the kernel brings in with one call.
const PIECE: u64 = 4 << 20;
/// More wait for each other in the kernel.
const MOST_THREADS: usize = 12;
/// How often it is looked for new memory, and how long a thread without work waits.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// An address that nothing can be read from.
const NOWHERE: usize = 4096;

/// Threads that bring in what comes, until this is dropped.
pub struct Prefaulter {
    work: Arc<PrefaultQueue>,
    threads: Vec<JoinHandle<()>>,
}

struct PrefaultQueue {
    done: AtomicBool,
    pieces: Mutex<Pieces>,
}

struct Pieces {
    /// The largest first, however little of it is left: its driver is at work on it.
    areas: Vec<Unfinished>,
    /// How much may still be brought in.
    limit: u64,
}

/// An area of a process, of which some is left to bring in.
struct Unfinished {
    pid: i32,
    left: Range<u64>,
    /// Of all of it.
    bytes: u64,
}

impl Prefaulter {
    /// Brings in what the processes map from now on, as far as `limit` bytes.
    pub fn begin(before: &AreasBefore, limit: u64) -> Prefaulter {
        let pieces = Mutex::new(Pieces { areas: Vec::new(), limit });
        let work = Arc::new(PrefaultQueue { done: AtomicBool::new(false), pieces });
        let cores = std::thread::available_parallelism().map_or(1, |count| count.get());
        let (watching, known) = (work.clone(), before.clone());
        let mut threads = vec![std::thread::spawn(move || watching.watch(known))];
        // The driver's own thread needs a core, and so may the program's.
        threads.extend((0..(cores / 2).clamp(1, MOST_THREADS)).map(|_| {
            let work = work.clone();
            std::thread::spawn(move || work.bring())
        }));
        Prefaulter { work, threads }
    }
}

impl Drop for Prefaulter {
    fn drop(&mut self) {
        self.work.done.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl PrefaultQueue {
    fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }

    fn watch(&self, mut known: AreasBefore) {
        while !self.is_done() {
            let new = known.new_areas();
            if !new.is_empty() {
                let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
                new.iter().for_each(|area| pieces.add(area.pid, area.start..area.end));
                drop(pieces);
                known.add(&new);
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    fn bring(&self) {
        while !self.is_done() {
            let next = self.pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
            match next {
                Some((pid, piece)) => bring_in(pid, &piece),
                None => std::thread::sleep(LOOK_AGAIN),
            }
        }
    }
}

impl Pieces {
    fn add(&mut self, pid: i32, left: Range<u64>) {
        let bytes = left.end - left.start;
        let at = self.areas.partition_point(|area| area.bytes >= bytes);
        self.areas.insert(at, Unfinished { pid, left, bytes });
    }

    fn next(&mut self) -> Option<(i32, Range<u64>)> {
        let Unfinished { pid, left, .. } = self.areas.first_mut()?;
        let length = PIECE.min(left.end - left.start).min(self.limit);
        let found = (*pid, left.start..left.start + length);
        left.start += length;
        self.limit -= length;
        if left.is_empty() || self.limit == 0 {
            self.areas.remove(0);
        }
        (length > 0).then_some(found)
    }
}

/// Has the kernel bring in memory of a process. Where it cannot, the driver does it.
fn bring_in(pid: i32, memory: &Range<u64>) {
    let length = (memory.end - memory.start) as usize;
    let from = libc::iovec { iov_base: NOWHERE as *mut libc::c_void, iov_len: length };
    let to = libc::iovec { iov_base: memory.start as *mut libc::c_void, iov_len: length };
    // SAFETY: both ranges are looked up by the kernel, which writes nothing: there is nothing at the first one.
    unsafe { libc::process_vm_writev(pid, &from, 1, &to, 1, 0) };
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use super::*;

    const PAGE: u64 = 4096;

    /// Whether this process has no tests but the one that asks; else runs that one in such a process.
    fn is_alone(test: &str) -> bool {
        const ALONE: &str = "--exact";
        if std::env::args().any(|argument| argument == ALONE) {
            return true;
        }
        let mut process = Command::new(std::env::current_exe().unwrap());
        let output = process.args([ALONE, test, "--nocapture"]).stderr(Stdio::inherit()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains(" 1 passed"), "{said}");
        false
    }

    fn map(bytes: u64) -> Range<u64> {
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        at as u64..at as u64 + bytes
    }

    /// How many of its pages are there.
    fn present(memory: &Range<u64>) -> u64 {
        let file = File::open("/proc/self/pagemap").unwrap();
        let mut entry = [0; 8];
        let mut count = 0;
        for address in memory.clone().step_by(PAGE as usize) {
            file.read_exact_at(&mut entry, address / PAGE * 8).unwrap();
            count += u64::from_le_bytes(entry) >> 63;
        }
        count
    }

    #[test]
    fn new_memory_is_brought_in_up_to_the_limit_and_keeps_what_is_in_it() {
        // What tests beside it map would count: of the limit.
        if !is_alone("prefault::tests::new_memory_is_brought_in_up_to_the_limit_and_keeps_what_is_in_it") {
            return;
        }
        let pid = std::process::id() as i32;
        let before = AreasBefore::of(&[pid]);
        let memory = map(256 << 20);
        let bytes = memory.end - memory.start;
        let marked = memory.start + 7 * PAGE + 5;
        // SAFETY: it lies in the memory just mapped, which nothing else writes to.
        unsafe { (marked as *mut u8).write(42) };
        let prefaulter = Prefaulter::begin(&before, bytes / 2);
        let until = Instant::now() + Duration::from_secs(120);
        // The stacks of its own threads count, too.
        while present(&memory) < bytes / PAGE / 4 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(prefaulter);
        let found = present(&memory);
        assert!((bytes / PAGE / 4..=bytes / PAGE / 2 + 1).contains(&found), "{found}");
        // SAFETY: as above; pages that were not brought in are brought in by this.
        let content = unsafe { std::slice::from_raw_parts(memory.start as *const u8, bytes as usize) };
        assert_eq!(content.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 42);
        // SAFETY: unmaps what was mapped above and is not used any more.
        unsafe { libc::munmap(memory.start as *mut libc::c_void, bytes as usize) };
    }

    #[test]
    fn pieces_follow_each_other_until_the_limit() {
        let mut pieces = Pieces { areas: Vec::new(), limit: 3 * PIECE };
        pieces.add(7, 0..PAGE);
        pieces.add(8, 100 * PIECE..101 * PIECE + PAGE);
        assert_eq!(pieces.next(), Some((8, 100 * PIECE..101 * PIECE)), "the largest first");
        pieces.add(9, 200 * PIECE..201 * PIECE);
        pieces.add(10, 300 * PIECE..301 * PIECE + PAGE);
        let found: Vec<_> = std::iter::from_fn(|| pieces.next()).collect();
        // What is begun stays before others, though less is left of it.
        let begun = (8, 101 * PIECE..101 * PIECE + PAGE);
        let last = (9, 200 * PIECE..201 * PIECE - 2 * PAGE);
        let next = [(10, 300 * PIECE..301 * PIECE), (10, 301 * PIECE..301 * PIECE + PAGE)];
        assert_eq!(found, [vec![begun], next.to_vec(), vec![last]].concat());
    }
}
