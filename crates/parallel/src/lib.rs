//! Work on many things at once, by threads that live for as long as it takes: who calls may have forked, and counts its threads.

mod urgent;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

pub use urgent::Urgent;

/// How much less than others threads are run (`nice`) that nobody waits for.
pub const IN_THE_BACKGROUND: i32 = 15;
/// The same, of those that somebody waits for while a program goes on beside them.
pub const BESIDE_A_PROGRAM: i32 = 5;

/// The same, of those that a program is back with: they have a processor before others.
const FIRST: i32 = -10;

/// Has the calling thread, and those that it starts, run less than others.
pub fn give_way(nice: i32) {
    // SAFETY: changes how this thread is scheduled.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
}

/// Has the calling thread, and those that it starts, run before others, if it may.
pub fn go_first() {
    give_way(FIRST);
}

/// Has the calling thread run as the process's first one does, whoever started it. Who gave way stays so where raising a
/// thread is not allowed.
pub fn go_as_usual() {
    // SAFETY: asks how the process's first thread is scheduled.
    give_way(unsafe { libc::getpriority(libc::PRIO_PROCESS, std::process::id()) });
}

/// Does something on a thread that gives way.
pub fn giving_way<T: Send>(nice: i32, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            give_way(nice);
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// More threads than this no longer help: memory bandwidth is the bound.
const MOST_THREADS: usize = 16;

/// How many threads suit this machine.
pub fn threads() -> usize {
    thread::available_parallelism().map_or(1, |count| count.get()).min(MOST_THREADS)
}

/// So many things that take a system call or two are done in about the time that a thread takes to begin, some times over.
const QUICK: usize = 64;

/// How many threads suit so many quick things.
pub fn threads_for(items: usize) -> usize {
    threads().min(items.div_ceil(QUICK))
}

/// Calls `work` for each of `0..items` on up to `threads` threads, each with its own state, and
/// returns the results in order. The first error ends it, once the calls under way have ended.
pub fn map<S, T: Send, E: Send>(
    threads: usize,
    items: usize,
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    if threads <= 1 || items <= 1 {
        let mut state = state();
        return (0..items).map(|item| work(&mut state, item)).collect();
    }
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let run = || {
        let mut state = state();
        let mut done = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let item = next.fetch_add(1, Ordering::Relaxed);
            if item >= items {
                break;
            }
            let result = work(&mut state, item).inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
            done.push((item, result));
        }
        Ok(done)
    };
    let mut results: Vec<(usize, T)> = Vec::with_capacity(items);
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(items)).map(|_| scope.spawn(run)).collect();
        let mut outcome = run().map(|done| results.extend(done));
        for other in others {
            let done = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            match (done, &outcome) {
                (Ok(done), _) => results.extend(done),
                (Err(error), Ok(())) => outcome = Err(error),
                (Err(_), Err(_)) => {}
            }
        }
        outcome
    })?;
    results.sort_unstable_by_key(|(item, _)| *item);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gives_way_and_the_caller_does_not() {
        // SAFETY: asks how this thread is scheduled.
        let nice = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let before = nice();
        assert_eq!(
            giving_way(before + 1, || (nice(), thread::scope(|scope| scope.spawn(nice).join().unwrap()))),
            (before + 1, before + 1)
        );
        assert_eq!(nice(), before);
    }

    #[test]
    fn a_thread_that_goes_first_has_those_that_it_starts_go_first() {
        // SAFETY: asks how this thread is scheduled.
        let nice = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let of_its_own = move || thread::scope(|scope| scope.spawn(nice).join().unwrap());
        let before = nice();
        // Who may not goes on as it was.
        let first = thread::spawn(move || (go_first(), of_its_own()).1).join().unwrap();
        assert!(first == FIRST || first == before);
        assert_eq!(nice(), before);
    }

    #[test]
    fn a_thread_goes_as_the_process_does_whoever_started_it() {
        // SAFETY: asks how this thread is scheduled.
        let nice = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let usual = nice();
        let of_one_first = move || thread::spawn(move || (go_as_usual(), nice()).1).join().unwrap();
        assert_eq!(thread::spawn(move || (go_first(), of_one_first()).1).join().unwrap(), usual);
    }

    #[test]
    fn results_are_in_order() {
        for threads in [1, 2, 7] {
            let squares = map(threads, 100, || (), |(), n| Ok::<_, ()>(n * n)).unwrap();
            assert_eq!(squares, (0..100).map(|n| n * n).collect::<Vec<_>>());
        }
        assert!(map(4, 0, || (), |(), n| Ok::<_, ()>(n)).unwrap().is_empty());
    }

    #[test]
    fn an_error_ends_it() {
        let calls = AtomicUsize::new(0);
        let work = |(): &mut (), n| {
            calls.fetch_add(1, Ordering::Relaxed);
            if n == 10 { Err("no") } else { Ok(()) }
        };
        assert_eq!(map(4, 1_000_000, || (), work), Err("no"));
        assert!(calls.into_inner() < 1_000_000);
    }
}
