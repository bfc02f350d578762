//! Looking again and again before a sleep, as long as nobody else wants the processor.
//!
//! A program may keep every processor busy with threads that wait for each other, as OpenMP's do. Whoever spins beside
//! them takes the processor of one, and all wait for that one. So who spins offers its processor now and then. If it comes
//! back late, somebody else wanted it. Where nobody else waits for this very processor, two may share another one: a
//! process that [watches](watch) counts, too, who runs. In either case nobody of this process spins for a while.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::atomic::relax;

/// How many times a side looks before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spin(pub u32);

impl Spin {
    /// Long where cores are plenty; short where spinning takes the core that the other side needs.
    pub fn for_cores(cores: usize) -> Spin {
        Spin(if cores <= 4 { 300 } else { 20_000 })
    }
}

/// Looks between two offers: 5 to 25 µs, by the processor. A short spin makes none.
const LOOKS: u32 = 512;
/// Who has the processor back later than this, in nanoseconds, has shared it.
const LATE: u64 = 100_000;
/// Between two counts of who runs, in nanoseconds.
const COUNTED: u64 = 1_000_000;
/// How long nobody spins after that, in nanoseconds: at first, and at most. It is twice as long each time that the
/// next offer is taken too.
const CROWDED: (u64, u64) = (20_000_000, 1_280_000_000);

/// When an offer was last taken, on the monotonic clock; 0 if none was.
static TAKEN: AtomicU64 = AtomicU64::new(0);
/// How long nobody spins from then on.
static REST: AtomicU64 = AtomicU64::new(0);
/// What counts who runs, and how many can.
static MACHINE: OnceLock<(File, u64)> = OnceLock::new();
/// When they were last counted.
static LAST: AtomicU64 = AtomicU64::new(0);

/// From now on this process counts who runs while it spins. It keeps a file open for that.
pub fn watch() {
    if let Ok(file) = File::open("/proc/loadavg") {
        // SAFETY: no conditions.
        let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        MACHINE.get_or_init(|| (file, processors.max(1) as u64));
    }
}

/// Looks until `ready`, as long as `spin` says; false if it was not.
pub fn spin(spin: Spin, mut ready: impl FnMut() -> bool) -> bool {
    let looks = if is_crowded() { spin.0.min(1) } else { spin.0 };
    for look in 1..=looks {
        if ready() {
            return true;
        }
        relax();
        if look.is_multiple_of(LOOKS) && !offer() {
            return ready();
        }
    }
    false
}

/// Lets others have the processor; false if somebody wanted it.
pub fn offer() -> bool {
    let before = now();
    std::thread::yield_now();
    let after = now();
    let taken = after.saturating_sub(before) > LATE || more_run_than_can(after);
    if taken {
        REST.store(next_rest(after), Ordering::Relaxed);
        TAKEN.store(after, Ordering::Relaxed);
    }
    !taken
}

fn more_run_than_can(now: u64) -> bool {
    let Some((file, processors)) = MACHINE.get() else { return false };
    if now.saturating_sub(LAST.load(Ordering::Relaxed)) < COUNTED {
        return false;
    }
    LAST.store(now, Ordering::Relaxed);
    let mut text = [0; 64];
    let Ok(count) = file.read_at(&mut text, 0) else { return false };
    running(&text[..count]).is_some_and(|running| running > *processors)
}

/// How many threads run or could: of `0.20 0.18 0.12 1/80 11206` it is 1.
fn running(loadavg: &[u8]) -> Option<u64> {
    let field = loadavg.split(|byte| *byte == b' ').nth(3)?;
    std::str::from_utf8(field.split(|byte| *byte == b'/').next()?).ok()?.parse().ok()
}

/// Whether somebody else wanted the processor of a thread that spun, a short while ago.
pub fn is_crowded() -> bool {
    let taken = TAKEN.load(Ordering::Relaxed);
    // A restored program may have a clock that is behind; then it looks anew.
    taken != 0 && now().checked_sub(taken).is_some_and(|since| since < REST.load(Ordering::Relaxed))
}

fn next_rest(now: u64) -> u64 {
    let rest = REST.load(Ordering::Relaxed);
    let since = now.saturating_sub(TAKEN.load(Ordering::Relaxed));
    if since < 2 * rest { (2 * rest).min(CROWDED.1) } else { CROWDED.0 }
}

/// Nanoseconds.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the time there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    use super::*;

    /// Seconds of processor that this thread has had.
    fn used() -> f64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes the time there.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    }

    /// Has this thread run on one processor alone.
    fn stay() {
        // SAFETY: a set of processors is plain bits, of the size that is said.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
            let first = (0..libc::CPU_SETSIZE as usize).find(|&cpu| libc::CPU_ISSET(cpu, &set)).unwrap();
            libc::CPU_ZERO(&mut set);
            libc::CPU_SET(first, &mut set);
            assert_eq!(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set), 0);
        }
    }

    /// Seconds that a thread spins which shares its processor with one that works for 0.6 s.
    fn spun_beside_work() -> f64 {
        let end = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                stay();
                let began = Instant::now();
                while began.elapsed() < Duration::from_millis(600) {
                    std::hint::spin_loop();
                }
                end.store(true, Ordering::Relaxed);
            });
            let spinner = scope.spawn(|| {
                stay();
                while !end.load(Ordering::Relaxed) {
                    spin(Spin(20_000), || end.load(Ordering::Relaxed));
                    std::thread::sleep(Duration::from_micros(100));
                }
                used()
            });
            spinner.join().unwrap()
        })
    }

    #[test]
    fn who_spins_leaves_the_processor_to_who_works() {
        // Whatever else the machine has to do meanwhile takes part: one of these is left alone.
        let spun: Vec<f64> = (0..3).map(|_| spun_beside_work()).take_while(|spun| *spun >= 0.1).collect();
        assert!(spun.len() < 3, "{spun:?} s of 0.6");
    }

    #[test]
    fn who_runs_is_counted() {
        assert_eq!(running(b"0.20 0.18 0.12 17/80 11206\n"), Some(17));
        assert_eq!(running(b"0.20 0.18"), None);
        assert_eq!(running(b""), None);
        let here = std::fs::read("/proc/loadavg").unwrap();
        assert!(running(&here).is_some_and(|running| running > 0));
    }

    #[test]
    fn a_look_is_made_whatever_the_machine_does() {
        let mut looks = 0;
        assert!(spin(Spin(3), || {
            looks += 1;
            true
        }));
        assert_eq!(looks, 1);
        assert!(!spin(Spin(0), || true));
    }
}
