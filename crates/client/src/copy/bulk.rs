//! Bytes between the program's memory and the staging area.
//!
//! One processor copies a third of what the link carries. Large copies are done by the calling thread and helpers, chunk
//! by chunk: whoever is free takes the next one. Helpers are started by the first large copy, on machines with processors
//! to spare; they sleep between copies. One copy has them at a time; others are done by their callers alone.

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
use std::thread::Thread;

use rekindle_ring::{Spin, spin};

use crate::control;

/// Copies of this many bytes are large.
pub const LARGE: u64 = 1 << 20;
/// What a thread takes at once, bytes.
const CHUNK: usize = 64 << 10;
/// More of them do not copy faster.
const MOST_HELPERS: usize = 3;
/// Looks for a further chunk before a helper sleeps, longer than the next piece of the same copy takes; and for the end
/// of the last chunks.
const LOOKS: Spin = Spin(2_000);

/// How a chunk is written.
type Write = unsafe fn(*mut u8, *const u8, usize);

/// Fills a piece of the staging area. `large`: the whole copy is.
///
/// # Safety
/// `from` is readable for as many bytes as the piece has.
pub unsafe fn fill(staged: &mut [u8], from: *const u8, large: bool) {
    let (to, bytes) = (staged.as_mut_ptr(), staged.len());
    if large {
        // SAFETY: the caller's promise, and the piece's own length.
        unsafe { copy(to, from, bytes, past_the_cache) };
    } else {
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping(from, to, bytes) };
    }
}

/// Takes out what has arrived in a piece of the staging area.
///
/// # Safety
/// `to` is writable for as many bytes as the piece has.
pub unsafe fn drain(staged: &[u8], to: *mut u8, large: bool) {
    let (from, bytes) = (staged.as_ptr(), staged.len());
    if large {
        // SAFETY: the caller's promise, and the piece's own length.
        unsafe { copy(to, from, bytes, plainly) };
    } else {
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping(from, to, bytes) };
    }
}

/// # Safety
/// As of [`Write`].
unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize, write: Write) {
    match helpers().filter(|_| bytes > 2 * CHUNK) {
        // SAFETY: the caller's promise.
        Some(helpers) => unsafe { helpers.copy(to, from, bytes, write) },
        // SAFETY: as above.
        None => unsafe { write(to, from, bytes) },
    }
}

/// # Safety
/// `from` is readable and `to` writable for `bytes` bytes; they do not overlap.
unsafe fn plainly(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(from, to, bytes) };
}

/// Writes around the cache: only the GPU reads it, and a line that is written whole need not be read first.
///
/// # Safety
/// As of [`plainly`].
unsafe fn past_the_cache(to: *mut u8, from: *const u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const STEP: usize = 64;
    let head = to.align_offset(STEP).min(bytes);
    let end = head + (bytes - head) / STEP * STEP;
    // SAFETY: all three parts lie inside what the caller promises, and stores of the middle are aligned.
    unsafe {
        ptr::copy_nonoverlapping(from, to, head);
        for at in (head..end).step_by(STEP) {
            let (from, to) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
            for lane in 0..STEP / size_of::<__m128i>() {
                _mm_stream_si128(to.add(lane), _mm_loadu_si128(from.add(lane)));
            }
        }
        ptr::copy_nonoverlapping(from.add(end), to.add(end), bytes - end);
        // Before the worker hears of it.
        _mm_sfence();
    }
}

/// The helpers' copy, and who they are.
struct HelperThreads {
    /// Somebody's copy has the helpers.
    taken: AtomicBool,
    to: AtomicPtr<u8>,
    from: AtomicPtr<u8>,
    bytes: AtomicUsize,
    past_the_cache: AtomicBool,
    /// Number of the copy in the upper half, chunks that nobody has taken in the lower one. The fields above are of the
    /// copy that is said here for as long as it has such chunks.
    open: AtomicU64,
    /// Chunks that are not copied yet.
    left: AtomicUsize,
    asleep: AtomicUsize,
    helpers: OnceLock<Vec<Thread>>,
}

static CREW: HelperThreads = HelperThreads::new();

impl HelperThreads {
    const fn new() -> HelperThreads {
        HelperThreads {
            taken: AtomicBool::new(false),
            to: AtomicPtr::new(ptr::null_mut()),
            from: AtomicPtr::new(ptr::null_mut()),
            bytes: AtomicUsize::new(0),
            past_the_cache: AtomicBool::new(false),
            open: AtomicU64::new(0),
            left: AtomicUsize::new(0),
            asleep: AtomicUsize::new(0),
            helpers: OnceLock::new(),
        }
    }

    /// Starts helpers; those that cannot be started are done without.
    fn start(&'static self, count: usize) -> &'static [Thread] {
        self.helpers.get_or_init(|| {
            let begin = |_| {
                let helper =
                    std::thread::Builder::new().name("rekindle-copy".to_owned()).stack_size(64 << 10);
                helper.spawn(move || self.help()).ok().map(|handle| handle.thread().clone())
            };
            control::deaf_but_for_faults(|| (0..count).map_while(begin).collect())
        })
    }

    /// # Safety
    /// As of [`plainly`].
    unsafe fn copy(&self, to: *mut u8, from: *const u8, bytes: usize, write: Write) {
        if self.taken.swap(true, Ordering::Acquire) {
            // SAFETY: the caller's promise.
            return unsafe { write(to, from, bytes) };
        }
        let chunks = bytes.div_ceil(CHUNK);
        self.to.store(to, Ordering::Relaxed);
        self.from.store(from.cast_mut(), Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        self.past_the_cache.store(ptr::fn_addr_eq(write, past_the_cache as Write), Ordering::Relaxed);
        self.left.store(chunks, Ordering::Relaxed);
        let number = (self.open.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        self.open.store(number << 32 | chunks as u64, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) != 0 {
            self.helpers.get().into_iter().flatten().for_each(Thread::unpark);
        }
        while self.take_part() {}
        while !spin::spin(LOOKS, || self.left.load(Ordering::Acquire) == 0) {
            spin::offer();
        }
        self.taken.store(false, Ordering::Release);
    }

    /// Copies one chunk; false if none is left.
    fn take_part(&self) -> bool {
        let open = self.open.load(Ordering::Acquire);
        if open as u32 == 0 {
            return false;
        }
        let (to, from) = (self.to.load(Ordering::Relaxed), self.from.load(Ordering::Relaxed));
        let bytes = self.bytes.load(Ordering::Relaxed);
        let past = self.past_the_cache.load(Ordering::Relaxed);
        if self.open.compare_exchange(open, open - 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return true;
        }
        let at = (open as u32 as usize - 1) * CHUNK;
        let length = CHUNK.min(bytes - at);
        let write: Write = if past { past_the_cache } else { plainly };
        // SAFETY: the chunk is of the copy that the fields describe, since it was still to be taken after they were
        // read; its caller promises the memory, and waits until all chunks are copied.
        unsafe { write(to.add(at), from.add(at), length) };
        self.left.fetch_sub(1, Ordering::Release);
        true
    }

    fn help(&self) {
        loop {
            while spin::spin(LOOKS, || self.take_part()) {}
            self.asleep.fetch_add(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if self.open.load(Ordering::Relaxed) as u32 == 0 {
                std::thread::park();
            }
            self.asleep.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The helpers, where there are processors for them.
fn helpers() -> Option<&'static HelperThreads> {
    static HELPERS: OnceLock<usize> = OnceLock::new();
    let helpers = *HELPERS.get_or_init(|| {
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
        (processors / 4).min(MOST_HELPERS)
    });
    (helpers != 0 && !CREW.start(helpers).is_empty()).then_some(&CREW)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(count: usize, seed: u8) -> Vec<u8> {
        (0..count).map(|at| (at / 251) as u8 ^ at as u8 ^ seed).collect()
    }

    #[test]
    fn bytes_written_past_the_cache_are_those_that_were_read() {
        for (offset, count) in [(0, 0), (0, 63), (1, 64), (7, 200), (63, 4097), (0, 8192)] {
            let from = bytes(count, 3);
            let mut to = vec![0; count + 64];
            // SAFETY: both are as long as is said.
            unsafe { past_the_cache(to.as_mut_ptr().add(offset), from.as_ptr(), count) };
            assert_eq!(to[offset..offset + count], from[..]);
            assert!(to[..offset].iter().chain(&to[offset + count..]).all(|byte| *byte == 0));
        }
    }

    #[test]
    fn copies_of_many_callers_are_whole_with_helpers_and_without() {
        static CREW: HelperThreads = HelperThreads::new();
        assert_eq!(CREW.start(2).len(), 2);
        let caller = |seed: u8| {
            for turn in 0..200 {
                let count = (turn * 7919 + 13) % (5 * CHUNK);
                let from = bytes(count, seed.wrapping_add(turn as u8));
                let mut to = vec![0; count];
                let write: Write = if turn % 2 == 0 { past_the_cache } else { plainly };
                // SAFETY: both are as long as is said.
                unsafe { CREW.copy(to.as_mut_ptr(), from.as_ptr(), count, write) };
                assert!(to == from, "turn {turn} of {count} bytes");
                if turn % 50 == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            }
        };
        std::thread::scope(|scope| {
            (0..3).for_each(|seed| {
                scope.spawn(move || caller(seed * 64));
            });
        });
    }
}
