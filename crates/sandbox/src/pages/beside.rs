//! Work on many things at once.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;

use super::copier::threads;

/// More threads than this gain nothing: what they do is short.
const MOST_THREADS: usize = 8;

/// Does a step with each of `all`, several at once, each thread with a state of its own; the results in order. The first
/// failure ends it.
pub fn map<T: Sync, S, R: Send>(
    all: &[T],
    state: impl Fn() -> S + Sync,
    step: impl Fn(&mut S, &T) -> io::Result<R> + Sync,
) -> io::Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let (mut state, mut done) = (state(), Vec::new());
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(one) = all.get(number) else { return Ok(done) };
            let result = step(&mut state, one).inspect_err(|_| next.store(all.len(), Ordering::Relaxed))?;
            done.push((number, result));
        }
    };
    let done = std::thread::scope(|scope| {
        let most = threads().min(MOST_THREADS).min(all.len());
        let others: Vec<_> = (1..most).map(|_| scope.spawn(work)).collect();
        let own = work();
        let join = |thread: ScopedJoinHandle<'_, io::Result<_>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        others.into_iter().map(join).chain([own]).collect::<io::Result<Vec<_>>>()
    })?;
    let mut done: Vec<_> = done.into_iter().flatten().collect();
    done.sort_unstable_by_key(|(number, _)| *number);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_and_a_failure_ends_it() {
        let all: Vec<usize> = (0..1000).collect();
        let squares = map(&all, || (), |(), number| Ok(number * number)).unwrap();
        assert!(squares.into_iter().eq(all.iter().map(|number| number * number)));
        assert!(map(&all[..0], || (), |(), number| Ok(*number)).unwrap().is_empty());
        let calls = AtomicUsize::new(0);
        let failed = map(
            &all,
            || (),
            |(), number| {
                calls.fetch_add(1, Ordering::Relaxed);
                if *number == 5 { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
            },
        );
        assert!(failed.is_err() && calls.into_inner() < 1000);
    }
}
