//! Work on many chunks at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::error::Result;

/// More threads than this no longer help: memory bandwidth is the bound.
const MOST_THREADS: usize = 16;

/// How many threads suit this machine.
pub(crate) fn threads() -> usize {
    thread::available_parallelism().map_or(1, |count| count.get()).min(MOST_THREADS)
}

/// So many things that take a system call or two are done in about the time that a thread takes to begin, some times over.
const QUICK: usize = 64;

/// How many threads suit so many quick things.
pub(crate) fn threads_for(items: usize) -> usize {
    threads().min(items.div_ceil(QUICK))
}

/// Calls `work` for each of `0..items` on up to `threads` threads, each with its own state, and
/// returns the results in order. The first error ends it, once the calls under way have ended.
pub(crate) fn map<S, T: Send>(
    threads: usize,
    items: usize,
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
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
            match work(&mut state, item) {
                Ok(result) => done.push((item, result)),
                Err(error) => {
                    stop.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
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
    use crate::error::Error;

    #[test]
    fn results_are_in_order() {
        for threads in [1, 2, 7] {
            let squares = map(threads, 100, || (), |(), n| Ok(n * n)).unwrap();
            assert_eq!(squares, (0..100).map(|n| n * n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_error_ends_it() {
        let calls = AtomicUsize::new(0);
        let error = map(
            4,
            1_000_000,
            || (),
            |(), n| {
                calls.fetch_add(1, Ordering::Relaxed);
                match n {
                    10 => Err(Error::ImageInUse { name: "x".into() }),
                    _ => Ok(()),
                }
            },
        );
        assert!(error.is_err());
        assert!(calls.into_inner() < 1_000_000);
    }
}
